"""A layer of one's own that looks at values is computed as without replaying, and the report says where it looked."""

import numpy as np
import pytest

from minipipe import Pipeline, Tensor, init_process_group, nn, optim, watch_everything

WIDTH = 4
TABLE = np.array([0.5, 2.0], np.float32)


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
    is_replayable = True

    def __init__(self, read):
        self.read = read

    def forward(self, x):
        return x * 2 if self.read(x) > 0 else x * 3


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_layer_that_branches_on_its_input_is_never_replayed(read):
    """The story: x.numpy() and numpy.asarray(x.data) went past the trace, and the first batches' branch stayed."""

    def losses(replay):
        with init_process_group() as group:
            model = nn.Sequential(Branches(read), nn.Linear(WIDTH, WIDTH))
            pipeline, random = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=2, replay=replay), np.random
            batches = np.abs(random.default_rng(0).normal(size=(6, 8, WIDTH))).astype(np.float32)
            found = [pipeline.step(x, x) for x in (*batches, -batches[0])]
            return found, pipeline.replay_report()

    replayed, report = losses(True)
    assert replayed == losses(False)[0]
    assert "layer 0 reads a value" in report or "layer 0 calls numpy." in report, report


class Reads(nn.Module):
    """A loss that branches on what it is given."""

    is_replayable = True

    def forward(self, outputs, targets):
        sign = 1 if np.asarray(targets.data).mean() > 0 else -1
        return ((outputs - targets) * (outputs - targets)).mean() * sign


def test_a_loss_that_branches_on_its_targets_is_never_replayed():
    def losses(replay):
        with init_process_group() as group:
            options = {"loss": Reads(), "loss_weight": len, "num_microbatches": 2, "replay": replay}
            pipeline = Pipeline(nn.Sequential(nn.Linear(WIDTH, WIDTH)), group, **options)
            batches = np.abs(np.random.default_rng(0).normal(size=(6, 8, WIDTH))).astype(np.float32)
            return [pipeline.step(x, x) for x in (*batches, -batches[0])], pipeline.replay_report()

    replayed, report = losses(True)
    assert replayed == losses(False)[0]
    assert "calls numpy.asarray" in report, report


class Looked(nn.Module):
    """Its rows of a plain array, indexed by its inputs, are constants to a capture: right for these inputs alone."""

    is_replayable = True

    def forward(self, x):
        return x * Tensor(TABLE[(x.data > 0).astype(np.int64)])


def test_inputs_that_never_change_get_a_script_that_serves_them_alone():
    """A batch in one microbatch, the same in every step, stayed eager for ever, and paid for being looked at."""
    rng, order = np.random.default_rng(0), [0] * 8 + [1, 0, 1, 2, 0]
    x, y = rng.normal(size=(3, 6, WIDTH)).astype(np.float32), rng.normal(size=(6, 1)).astype(np.float32)

    def losses(replay, *layers):
        with init_process_group() as group:
            model = nn.Sequential(*layers, nn.Linear(WIDTH, 4), nn.ReLU(), nn.Linear(4, 1))
            pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=1, replay=replay)
            optimiser, found = optim.SGD(pipeline.parameters(), learning_rate=0.1), []
            for i in order:
                found.append((pipeline.step(x[i], y), pipeline.replay_report()))
                optimiser.step()
            return zip(*found)

    values, reports = losses(True)
    assert values == next(losses(False))
    assert "waits for a microbatch with other inputs" in reports[3]
    assert reports[7] == reports[-1] == "stage 0: replays 1 kind of microbatch"
    values, reports = losses(True, Looked())
    assert values == next(losses(False, Looked()))
    assert reports[7] == "stage 0: replays 1 kind of microbatch"
    assert reports[-1] == "stage 0: two microbatches left different lines or constants"


def test_large_inputs_that_never_change_stay_eager():
    with init_process_group() as group:
        pipeline = Pipeline(nn.Sequential(nn.Linear(64, 1)), group, loss=nn.MSELoss(), num_microbatches=1)
        x = np.ones((1 << 13, 64), np.float32)
        for _ in range(4):
            pipeline.step(x, x[:, :1])
        assert pipeline.replay_report() == "stage 0: gets the same large inputs in every step"


def test_a_report_without_a_script_says_what_the_stage_waits_for(monkeypatch):
    from minipipe.execution import replaying

    monkeypatch.setattr(replaying, "_PATIENCE", 3)

    def report(num_steps, x):
        with init_process_group() as group:
            pipeline = Pipeline(nn.Sequential(nn.Linear(WIDTH, 1)), group, loss=nn.MSELoss(), num_microbatches=1)
            for _ in range(num_steps):
                pipeline.step(x, x[:, :1])
            return pipeline.replay_report()

    x = np.ones((3, WIDTH), np.float32)
    assert report(0, x) == "stage 0: has not run yet"
    assert report(1, x) == "stage 0: captures in the third step of its kind"
    assert report(4, x) == "stage 0: waits for a microbatch with other inputs"
    with watch_everything():
        assert report(6, x) == "stage 0: is watched, and watched steps are not replayed"
