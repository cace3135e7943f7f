"""A replayed step has the bits of an eager one, whatever changes between steps; a script that lies is noticed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Pipeline, Tensor, functional, nn, optim, spawn
from minipipe.autograd import Node
from minipipe.autograd.memory import held_bytes
from minipipe.autograd.modes import Key
from minipipe.autograd.replay import Script, Trace
from minipipe.execution.executor import Executor
from minipipe.execution.replayed import Replayed
from minipipe.execution.stage import Held
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
    "function": lambda: nn.Function(functional.tanh),
}


def parts_of(pipeline):
    return [
        part for stage in pipeline._stages.values() for part in stage.module.modules()
    ]


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
    pipeline.load_state_dict(
        {
            name: array * (1 + number / 8)
            for name, array in pipeline.state_dict().items()
        }
    )


CHANGES = {
    "dropout": dropout,
    "mode": lambda pipeline, number: pipeline.train(number != 1),
    "replace": replace,
    "load": load,
    "lengths": None,
    "nothing": lambda pipeline, number: None,
}


def trained(group, replay, layers, schedule, recompute, changes, loss, num_steps):
    model = nn.Sequential(
        nn.Linear(WIDTH, WIDTH),
        *(LAYERS[name]() for name in layers),
        nn.Linear(WIDTH, WIDTH),
    )
    options = {
        "loss": loss,
        "num_microbatches": 4,
        "schedule": schedule,
        "recompute": recompute,
        "replay": replay,
    }
    pipeline = Pipeline(model, group, **options)
    optimiser, random, found, num_samples = (
        optim.Adam(pipeline.parameters(), 0.01),
        np.random.default_rng(0),
        [],
        12,
    )
    for step in range(num_steps):
        for name, number in changes.get(step, ()):
            if name == "lengths":
                num_samples = (12, 8, 13)[number]
            else:
                CHANGES[name](pipeline, number)
        x = random.normal(size=(num_samples, WIDTH)).astype(np.float32)
        y = (
            np.argmax(x, axis=1)
            if isinstance(loss, nn.CrossEntropyLoss)
            else x[:, ::-1].copy()
        )
        found.append(pipeline.step(x, y, accumulate=step % 5 == 4))
        found += [
            None if p.grad is None else p.grad.tobytes() for p in pipeline.parameters()
        ]
        optimiser.step()
    found += [values.tobytes() for values in pipeline.state_dict().values()]
    return found, pipeline.replay_report()


change = st.tuples(st.sampled_from(sorted(CHANGES)), st.integers(0, 2))


@examples(25)
@given(
    st.lists(st.sampled_from(sorted(LAYERS)), min_size=0, max_size=5),
    st.sampled_from(["gpipe", "1f1b", "zb-h1"]),
    st.booleans(),
    st.dictionaries(
        st.integers(3, 11), st.lists(change, min_size=1, max_size=2), max_size=4
    ),
    st.sampled_from(
        [
            nn.MSELoss(),
            nn.MSELoss("sum"),
            nn.CrossEntropyLoss(),
            nn.CrossEntropyLoss(ignore_index=1),
        ]
    ),
    st.integers(1, 2),
)
def test_replayed_and_eager_steps_have_the_same_bits(
    layers, schedule, recompute, changes, loss, num_ranks
):
    def both(group):
        given = layers, schedule, recompute, changes, loss, 12
        eager, _ = trained(group, False, *given)
        replayed, report = trained(group, True, *given)
        return eager == replayed, report

    for is_same, report in spawn(both, num_ranks, take_turns=True):
        assert is_same, report


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize(
    "layers",
    [["relu"], ["gelu", "norm"], ["dropout", "tanh"], ["recompute"], ["residual"]],
)
def test_stages_of_own_layers_replay(layers, schedule):
    reports = spawn(
        lambda g: trained(g, True, layers, schedule, False, {}, nn.MSELoss(), 4)[1],
        num_ranks=2,
    )
    assert all("replays 1 kind" in report for report in reports), reports


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize(
    "layers", [["relu"], ["gelu", "norm"], ["dropout", "tanh"], ["recompute"]]
)
def test_a_script_holds_the_bytes_of_the_graph(layers, schedule):
    class Meter:
        def __init__(self):
            self.found, self.num_tapes = [], 0

        def begin(self, executor: Executor, action):
            pass

        def end(self, executor: Executor, action):
            if not action.kind.is_communication:
                parameters = [
                    p.data for p in executor.stages[action.stage].parameters.values()
                ]
                kept = executor.graphs[action.stage].values()
                self.num_tapes += any(isinstance(each, Replayed) for each in kept)
                nodes = [node for each in kept for node in as_graph(each)]
                held = held_bytes(nodes, [*parameters, *executor.batch.arrays])
                self.found.append((str(action), held))

    def as_graph(held):
        if isinstance(held, Held):
            return [node for node, _ in held.results]
        if not isinstance(held, Replayed):
            return [held]
        arrays = [each for each in held.kept if isinstance(each, np.ndarray)]
        return [Node(None, (), tuple(arrays), 0)]

    def measure(group, replay):
        model = nn.Sequential(
            nn.Linear(WIDTH, WIDTH),
            *(LAYERS[name]() for name in layers),
            nn.Linear(WIDTH, WIDTH),
        )
        pipeline = Pipeline(
            model,
            group,
            loss=nn.MSELoss(),
            num_microbatches=4,
            schedule=schedule,
            replay=replay,
        )
        optimiser, random, trainer = (
            optim.SGD(pipeline.parameters(), 0.1),
            np.random.default_rng(0),
            pipeline._trainer,
        )
        for _ in range(4):
            meter = Meter()
            trainer._observers = (meter,)
            x = random.normal(size=(12, WIDTH)).astype(np.float32)
            pipeline.step(x, x)
            optimiser.step()
        assert bool(meter.num_tapes) == replay, pipeline.replay_report()
        assert meter.found
        return meter.found

    for group_size in (1, 2):
        replayed = spawn(lambda group: measure(group, True), group_size)
        assert replayed == spawn(lambda group: measure(group, False), group_size)


class Reads(nn.Module):
    is_replayable = True

    def forward(self, x):
        return x * 2 if float(x.data.max()) > 0 else x


class Bakes(nn.Module):
    is_replayable = True

    def forward(self, x):
        own = np.empty(x.shape, np.float32)
        own[:] = x.data
        return x * Tensor(own > 0).data.astype(np.float32)


class Counts(nn.Module):
    is_replayable = True

    def __init__(self):
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * float(self.calls % 3)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [(Reads, "reads a value"), (Bakes, "different"), (Counts, "sets an attribute")],
)
def test_what_cannot_be_replayed_stays_eager_with_its_reason(
    layer, reason, monkeypatch
):
    monkeypatch.setitem(LAYERS, "odd", layer)

    def both(group):
        given = ["odd", "relu"], "1f1b", False, {}, nn.MSELoss(), 6
        return trained(group, True, *given), trained(group, False, *given)

    (((replayed, report), (eager, _)),) = spawn(both, num_ranks=1)
    assert replayed == eager
    assert reason in report, report


def tape_of(mask):
    """Return the script of one forward, x * mask + x."""
    trace = Trace(Key(0, 0, 0, 0, 0))
    trace.begin("forward")
    x = trace.given("x0", np.ones(3))
    trace.returned(x * mask + x)
    return Script(trace, "test")


def test_two_captures_are_alike_only_with_equal_lines_and_constants():
    assert tape_of(np.array([1.0, 0.0, 1.0])).is_like(
        tape_of(np.array([1.0, 0.0, 1.0]))
    )
    assert not tape_of(np.array([1.0, 0.0, 1.0])).is_like(
        tape_of(np.array([1.0, 1.0, 1.0]))
    )
    assert not tape_of(np.array([1.0, 0.0, 1.0])).is_like(tape_of(2.0))
