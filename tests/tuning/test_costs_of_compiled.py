"""The costs of a compiled pipeline are measured over compiled steps."""

import numpy as np
import pytest

from minipipe import Pipeline, init_process_group, nn
from minipipe.simulation.hosts import Hosts
from minipipe.tuning import stages

NUM_MICROBATCHES, NUM_STEPS = 2, 5
ONE_HOST = Hosts((0,), (1.0,))


class Counting(nn.Module):
    """Counts its calls, in its class: an attribute of a layer may not change."""

    is_compilable = True
    calls = 0

    def forward(self, x):
        Counting.calls += 1
        return x * 2


@pytest.fixture(autouse=True)
def watching():
    """Watch nothing: watched steps run eagerly."""


def calls_of(how):
    with init_process_group() as group:
        model = nn.Sequential(nn.Linear(4, 4), Counting(), nn.Linear(4, 2))
        options = {
            "loss": nn.MSELoss(),
            "num_microbatches": NUM_MICROBATCHES,
            "compile": how,
        }
        pipeline = Pipeline(model, group, **options)
        before = [parameter.data.copy() for parameter in pipeline.parameters()]
        x, Counting.calls = np.ones((8, 4), np.float32), 0
        costs = pipeline.measure_costs(x, x[:, :2], num_steps=NUM_STEPS)
        assert all(
            map(
                np.array_equal,
                before,
                (parameter.data for parameter in pipeline.parameters()),
            )
        )
        assert all(parameter.grad is None for parameter in pipeline.parameters())
        assert (
            costs.forward[0] > 0
            and costs.backward_input[0] > 0
            and costs.backward_weight[0] > 0
        )
        return Counting.calls


@pytest.mark.parametrize("hosts", [None, ONE_HOST], ids=["with cores", "sharing cores"])
def test_no_layer_is_called_in_a_measured_step_of_a_compiled_pipeline(
    hosts, monkeypatch
):
    monkeypatch.setattr(stages, "crowded_hosts", lambda group, xp: hosts)
    memory = 1  # which is measured eagerly, of one microbatch
    assert calls_of(False) == (2 + NUM_STEPS) * NUM_MICROBATCHES + memory
    assert calls_of(True) <= 2 * NUM_MICROBATCHES + memory
