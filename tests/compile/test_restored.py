"""A step after a restore runs the program, and launches the graphs, that were made before
it: nothing is recorded, compiled or captured again.
"""

import numpy as np
import pytest

from minipipe import Pipeline, checkpoint, nn, optim, spawn
from minipipe.compile import program
from minipipe.core.nn import parameter
from minipipe.errors import CheckpointError, ParameterError
from tests.compile import device, device_streams
from tests.launch import covering

WIDTH = 6
X, Y = np.random.default_rng(0).normal(size=(2, 12, 8, WIDTH)).astype("f4")


def made(group, xp, how, rule=optim.AdamW):
    blocks = [layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    layers = nn.Sequential(*blocks, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH))
    options = {"loss": nn.MSELoss(), "num_microbatches": 4, "device": xp}
    pipeline = Pipeline(layers, group, compile=how, **options)
    return pipeline, rule(list(pipeline.parameters()), learning_rate=0.01)


def steps(pair, begin, end):
    """Return the losses of some steps."""
    pipeline, optimiser = pair
    losses = []
    for i in range(begin, end):
        losses.append(float(pipeline.step(X[i], Y[i])))
        optimiser.step()
    return losses


def by_state(group, pair, folder):
    pipeline, optimiser = pair
    return pipeline.state_dict(), optimiser.state_dict()


def put_state(group, pair, folder, kept):
    pipeline, optimiser = pair
    pipeline.load_state_dict(kept[0])
    optimiser.load_state_dict(kept[1])


def by_checkpoint(group, pair, folder):
    checkpoint.save(folder, *pair, step=1)


def put_checkpoint(group, pair, folder, kept):
    checkpoint.restore(folder, *pair)


WAYS = {"state": (by_state, put_state), "checkpoint": (by_checkpoint, put_checkpoint)}


@pytest.fixture
def counted(monkeypatch):
    """Count the recorded steps, and the captures."""
    counts = {"recorded": 0, "captured": 0}

    def counting(owner, name, what):
        function = getattr(owner, name)

        def call(*given, **options):
            counts[what] += 1
            return function(*given, **options)

        monkeypatch.setattr(owner, name, call)

    counting(program.Compiler, "_record", "recorded")
    counting(program.CompiledRow, "bind", "recorded")
    counting(device_streams.Stream, "begin_capture", "captured")
    return counts


def restored(group, xp, way, folder, counts, how=True):
    """Train, restore and train again; return the bits, and what was compiled anew."""
    pair = made(group, xp, how)
    found = steps(pair, 0, 4)
    keep, put = WAYS[way]
    kept = keep(group, pair, folder)
    found += steps(pair, 4, 7)
    group.barrier()
    before = dict(counts)
    for _ in range(2):
        put(group, pair, folder, kept)
        found += steps(pair, 7, 10)
    group.barrier()
    found += [values.tobytes() for values in pair[0].state_dict().values()]
    return found, before == counts, pair[0].compile_report()


@pytest.mark.parametrize(
    ("xp", "way", "num_ranks"), covering([np, device], [*WAYS], [1, 2])
)
def test_a_step_after_a_restore_compiles_nothing(xp, way, num_ranks, counted, tmp_path):
    def run(how):
        return spawn(
            lambda group: restored(group, xp, way, tmp_path / str(how), counted, how),
            num_ranks,
            take_turns=True,
        )

    compiled, eager = run(True), run(False)
    for (found, is_same, report), (expected, _, _) in zip(compiled, eager):
        assert found == expected
        assert is_same
        is_graph = xp is device
        assert all(
            line.endswith("as graphs") == is_graph for line in report.split("\n")
        )
    assert counted["recorded"] and bool(counted["captured"]) == (xp is device)


def replacing(values, earlier):
    return parameter.backend.copy(values)


def test_a_restore_that_replaces_arrays_would_be_noticed(
    counted, tmp_path, monkeypatch
):
    monkeypatch.setattr(parameter, "stored", replacing)
    for xp in (np, device):
        ((_, is_same, _),) = spawn(
            lambda group, xp=xp: restored(group, xp, "state", tmp_path, counted), 1
        )
        assert not is_same


@pytest.mark.parametrize("xp", [np, device], ids=["NumPy", "device"])
def test_a_compiled_pipeline_takes_the_checkpoint_of_another_number_of_ranks(
    xp, counted, tmp_path
):
    def train_on(group, saves, how):
        pair = made(group, xp, how)
        steps(pair, 0, 4)
        if saves:
            by_checkpoint(group, pair, tmp_path)
        else:
            group.barrier()
            before = dict(counted)
            checkpoint.restore(tmp_path, *pair)
        losses = steps(pair, 4, 7)
        return losses, saves or before == counted

    ((expected, _), *_) = spawn(lambda group: train_on(group, True, True), 2)
    for num_ranks, how in [(1, True), (4, True), (1, False)]:
        found = spawn(
            lambda group, how=how: train_on(group, False, how),
            num_ranks,
            take_turns=True,
        )
        assert all(losses == expected for losses, _ in found)
        assert all(is_same for _, is_same in found)


def fail(group, pair, folder):
    """Restore what is damaged, and a state without its last parameter."""
    for file in folder.rglob("*"):
        if file.is_file() and file.suffix != ".json":
            file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.restore(folder, *pair)
    state = {name: 2 * values for name, values in pair[0].state_dict().items()}
    state.popitem()
    with pytest.raises(ParameterError, match="missing"):
        pair[0].load_state_dict(state)


@pytest.mark.parametrize("xp", [np, device], ids=["NumPy", "device"])
def test_a_restore_that_fails_leaves_the_values_and_the_program(xp, counted, tmp_path):
    def run(group, fails):
        pair, folder = made(group, xp, True), tmp_path / str(fails)
        found = steps(pair, 0, 4)
        by_checkpoint(group, pair, folder)
        found += steps(pair, 4, 6)
        before = dict(counted)
        if fails:
            fail(group, pair, folder)
        return found + steps(pair, 6, 9), before == counted

    (failed,), (whole,) = (
        spawn(lambda group, fails=fails: run(group, fails), 1)
        for fails in (True, False)
    )
    assert failed == whole and failed[1]
