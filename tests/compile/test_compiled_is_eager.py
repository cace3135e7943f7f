"""Compiled steps have eager bits: random layers, schedules, changes between steps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Pipeline, Tensor, nn, optim, spawn
from minipipe.errors import ModelError
from tests.launch import covering
from tests.strategies import examples

WIDTH = 6
LAYERS = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "norm": lambda: nn.LayerNorm(WIDTH),
    "rms": lambda: nn.RMSNorm(WIDTH),
    "dropout": lambda: nn.Dropout(0.4),
    "residual": lambda: nn.Residual(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2)),
    "recompute": lambda: nn.Recompute(
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3), nn.Tanh())
    ),
}


def parts_of(pipeline):
    stages = pipeline._stages.values()
    return [part for stage in stages for part in stage.module.modules()]


def dropout(pipeline, number):
    for part in parts_of(pipeline):
        if isinstance(part, nn.Dropout):
            part.probability = (0.0, 0.25, 0.5)[number]


def freeze(pipeline, number):
    for i, parameter in enumerate(pipeline.parameters()):
        parameter.requires_grad = number == 0 or i % 3 != number


def replace(pipeline, number):
    for parameter in pipeline.parameters():
        if parameter.ndim == 2:
            parameter.data = np.array(parameter.data, order="CF"[number % 2])


def load(pipeline, number):
    state = pipeline.state_dict()
    pipeline.load_state_dict({name: a * (1 + number / 8) for name, a in state.items()})


CHANGES = {
    "dropout": dropout,
    "freeze": freeze,
    "mode": lambda pipeline, number: pipeline.train(number != 1),
    "replace": replace,
    "load": load,
    "lengths": None,
    "nothing": lambda pipeline, number: None,
}


def trained(group, how, layers, schedule, recompute, changes, loss, num_steps):
    """Return losses, gradients and values, and the report."""
    middle = (LAYERS[name]() for name in layers)
    ends = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    model = nn.Sequential(ends[0], *middle, ends[1])
    options = {"loss": loss, "num_microbatches": 4, "schedule": schedule}
    options |= {"recompute": recompute, "compile": how}
    pipeline, found, num_samples = Pipeline(model, group, **options), [], 12
    optimiser = optim.Adam(pipeline.parameters(), 0.01)
    random = np.random.default_rng(0)
    for step in range(num_steps):
        for name, number in changes.get(step, ()):
            if name == "lengths":
                num_samples = (12, 8, 13)[number]
            else:
                CHANGES[name](pipeline, number)
        x = random.normal(size=(num_samples, WIDTH)).astype(np.float32)
        is_for_classes = isinstance(loss, nn.CrossEntropyLoss)
        y = np.argmax(x, axis=1) if is_for_classes else x[:, ::-1].copy()
        found.append(pipeline.step(x, y, accumulate=step % 5 == 4))
        for parameter in pipeline.parameters():
            gradient = parameter.grad
            found.append(None if gradient is None else gradient.tobytes())
        optimiser.step()
    found += [values.tobytes() for values in pipeline.state_dict().values()]
    return found, pipeline.compile_report()


change = st.tuples(st.sampled_from(sorted(CHANGES)), st.integers(0, 2))
losses = st.sampled_from(
    [
        *(nn.MSELoss(), nn.MSELoss("sum"), nn.CrossEntropyLoss()),
        nn.CrossEntropyLoss(ignore_index=1),
    ]
)


@examples(25)
@given(
    st.lists(st.sampled_from(sorted(LAYERS)), min_size=0, max_size=5),
    st.sampled_from(["gpipe", "1f1b", "zb-h1"]),
    st.booleans(),
    st.dictionaries(
        st.integers(3, 11), st.lists(change, min_size=1, max_size=2), max_size=4
    ),
    losses,
    st.integers(1, 2),
)
def test_compiled_and_eager_steps_have_the_same_bits(
    layers, schedule, recompute, changes, loss, num_ranks
):
    def both(group):
        training = layers, schedule, recompute, changes, loss, 12
        eager, _ = trained(group, False, *training)
        compiled, report = trained(group, True, *training)
        return eager == compiled, report

    for is_same, report in spawn(both, num_ranks, take_turns=True):
        assert is_same, report


SOME = [["relu"], ["gelu", "norm"], ["dropout", "tanh"], ["recompute"], ["residual"]]


@pytest.mark.parametrize(
    ("layers", "schedule", "recompute"),
    covering(SOME, ["1f1b", "zb-h1"], [False, True], strength=1),
)
def test_stages_of_minipipes_layers_are_compiled(layers, schedule, recompute):
    training = layers, schedule, recompute, {}, nn.MSELoss(), 4
    found = spawn(lambda group: trained(group, True, *training), num_ranks=2)
    expected = spawn(lambda group: trained(group, False, *training), num_ranks=2)
    for stage, ((compiled, report), (eager, _)) in enumerate(zip(found, expected)):
        assert compiled == eager
        assert report == f"step: stage {stage} is compiled"


class Bakes(nn.Module):
    """Writes values into a plain array, which the trace takes for a constant."""

    is_compilable = True

    def forward(self, x):
        own = np.empty(x.shape, np.float32)
        own[:] = x.data
        return x * Tensor((own > 0).astype(np.float32))


class Looks(nn.Module):
    """Gets rows of a plain array by its inputs."""

    is_compilable = True
    table = np.array([0.5, 2.0], np.float32)

    def forward(self, x):
        return x * Tensor(self.table[(x.data > 0).astype(np.int64)])


@pytest.mark.parametrize("layer", [Bakes, Looks])
def test_a_broken_promise_is_noticed_if_two_microbatches_show_it(layer, monkeypatch):
    """Code of a user's is recorded twice: lines and constants must be the same."""
    monkeypatch.setitem(LAYERS, "odd", layer)

    def train(how):
        training = ["odd", "relu"], "1f1b", False, {}, nn.MSELoss(), 6
        return spawn(lambda group: trained(group, how, *training), num_ranks=1)[0]

    compiled, report = train("where-possible")
    assert compiled == train(False)[0]
    assert report == (
        "step: stage 0 runs eagerly: two microbatches of a kind compute differently"
    )
    with pytest.raises(ModelError, match="two microbatches of a kind"):
        train(True)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_large_arrays_have_the_bits_of_eager_steps(schedule):
    """The story: a product that was added to a gradient was freed afterwards."""

    def run(group, how):
        layers = nn.Linear(160, 160), nn.ReLU(), nn.Dropout(0.1), nn.Linear(160, 160)
        options = {"loss": nn.MSELoss(), "num_microbatches": 2, "schedule": schedule}
        pipeline = Pipeline(nn.Sequential(*layers), group, compile=how, **options)
        random, found = np.random.default_rng(0), []
        for _ in range(4):
            x = random.normal(size=(400, 160)).astype(np.float32)
            found.append(pipeline.step(x, x))
            found += [parameter.grad.tobytes() for parameter in pipeline.parameters()]
        return found

    for num_ranks in (1, 2):
        found = spawn(lambda group: run(group, True), num_ranks)
        assert found == spawn(lambda group: run(group, False), num_ranks)
