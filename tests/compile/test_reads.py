"""A custom layer or loss that reads values is refused, or its stage runs eagerly."""

import re

import numpy as np
import pytest

from minipipe import Pipeline, init_process_group, nn, watch_everything
from minipipe.errors import ModelError

WIDTH = 4

READS = {
    "numpy": lambda x: x.numpy().max(),
    "item": lambda x: x.mean().item(),
    "list": lambda x: x.numpy().tolist()[0][0],
    "float": lambda x: float(x.mean()),
    "array": lambda x: x.data.max(),
    "asarray": lambda x: np.asarray(x.data).mean(),
    "copy": lambda x: np.array(x.data).mean(),
}


class Branches(nn.Module):
    is_compilable = True

    def __init__(self, read):
        self.read = read

    def forward(self, x):
        return x * 2 if self.read(x) > 0 else x * 3


class Reads(nn.Module):
    """A loss that branches on what it is given."""

    is_compilable = True

    def forward(self, outputs, targets):
        sign = 1 if np.asarray(targets.data).mean() > 0 else -1
        return ((outputs - targets) * (outputs - targets)).mean() * sign


def losses(how, layers, loss=None):
    """Return the losses of steps, of which the last takes the other branch."""
    with init_process_group() as group:
        model = nn.Sequential(*layers, nn.Linear(WIDTH, WIDTH))
        options = {"loss": loss or nn.MSELoss(), "loss_weight": len}
        pipeline = Pipeline(model, group, num_microbatches=2, compile=how, **options)
        random = np.random.default_rng(0)
        batches = np.abs(random.normal(size=(6, 8, WIDTH))).astype(np.float32)
        found = [pipeline.step(x, x) for x in (*batches, -batches[0])]
        return found, pipeline.compile_report()


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_layer_that_branches_on_its_input_is_never_compiled(read):
    """The story: x.numpy() and numpy.asarray(x.data) bypassed the trace."""
    found, report = losses("where-possible", [Branches(read)])
    assert found == losses(False, [Branches(read)])[0]
    where = r"\(test_reads.py, line \d+\)"
    place = rf"layer 0, Branches, (reads a value|calls numpy\.).*{where}"
    assert re.fullmatch(f"step: stage 0 runs eagerly: {place}", report), report
    with pytest.raises(ModelError, match=f"Stage 0 cannot be compiled: {place}"):
        losses(True, [Branches(read)])


def test_a_loss_that_branches_on_its_targets_is_never_compiled():
    found, report = losses("where-possible", [], Reads())
    assert found == losses(False, [], Reads())[0]
    assert "calls numpy.asarray" in report, report
    with pytest.raises(ModelError, match=r"calls numpy\.asarray \(test_reads.py, line"):
        losses(True, [], Reads())


def test_a_report_says_what_the_last_step_did_and_why():
    def report(num_steps, how=True, **asked):
        with init_process_group() as group:
            model = nn.Sequential(nn.Linear(WIDTH, 1))
            options = {"loss": nn.MSELoss(), "num_microbatches": 1, "compile": how}
            pipeline = Pipeline(model, group, **options)
            for _ in range(num_steps):
                pipeline.step(x, x[:, :1], **asked)
            return pipeline.compile_report()

    x = np.ones((3, WIDTH), np.float32)
    assert report(0) == "step: has not run yet"
    assert report(1) == "step: runs eagerly in the first step of a kind"
    assert report(2) == "step: is recorded"
    assert report(3) == "step: stage 0 is compiled"
    assert report(3, False) == "all stages run eagerly: compile=False"
    asks = "step: runs eagerly: the call asks for more than the loss"
    assert report(3, outputs=True) == asks
    assert report(3, metrics={"mean": lambda outputs, targets: 0.0}) == asks
    assert report(3, accumulate=True) == "step: runs eagerly: gradients are accumulated"
    with watch_everything():
        watched = "step: runs eagerly: changes in place are watched"
        assert report(3) == watched
