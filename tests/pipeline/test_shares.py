"""A rank of a replica reads only its share of a batch: the same bits, and no share that
is taken for another one.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Microbatches, Pipeline, Share, data, nn, optim, spawn
from minipipe.errors import ArgumentError, MicrobatchError, NotFiniteError, RankError
from minipipe.testing import same_bits
from tests.launch import covering
from tests.strategies import examples

ROWS = np.random.default_rng(1).integers(0, 7, (13, 5))
# 1 to 5 tokens count
TARGETS = np.where(
    np.arange(5) < np.arange(13)[:, None] % 5 + 1, np.roll(ROWS, -1, 1), -1
)


def model():
    return nn.Sequential(
        nn.Embedding(7, 8), nn.Dropout(0.2), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 7)
    )


def trained(group, give, loss=None, schedule="1f1b", **options):
    """Train three steps with what ``give(pipeline)`` returns as the batch; return the
    losses and all values.
    """
    loss = loss or nn.CrossEntropyLoss(ignore_index=-1)
    pipeline = Pipeline(model(), group, loss=loss, schedule=schedule, **options)
    optimiser = optim.Adam(pipeline.parameters(), learning_rate=0.05)
    count = {"count": lambda outputs, targets: float((targets >= 0).sum())}
    losses = []
    for _ in range(3):
        found = pipeline.step(*give(pipeline), metrics=count)
        losses.append((found, found.losses, found.metrics))
        optimiser.step()
    return losses, pipeline.state_dict()


def whole(pipeline):
    return ROWS, TARGETS


def share(pipeline):
    """Return what this rank needs, and nothing else."""
    parts = pipeline.needs.share(len(ROWS))
    return [
        None if part is None else Share(x[part], part, len(x))
        for x, part in zip((ROWS, TARGETS), parts)
    ]


def squares(outputs, targets):
    """Return a mean over samples: a loss that gives no weight to its targets."""
    return (outputs * outputs).mean()


LAYOUTS = [
    ("1f1b", 4, {"replicas": 2, "num_microbatches": 3}),
    ("zb-v", 4, {"replicas": 2, "num_microbatches": 4}),
    ("gpipe", 4, {"replicas": 4, "num_microbatches": 2}),
    ("chimera", 2, {"num_microbatches": 4}),
    ("chimera", 4, {"replicas": 2, "num_microbatches": 4}),
    ("1f1b", 2, {"num_microbatches": 3}),
]
LOSSES = [None, squares]  # by tokens, by samples
WEIGHTS = [None, lambda targets: int((targets >= 2).sum())]  # the loss's own, or given


@pytest.mark.parametrize(
    ("layout", "loss", "weight"), covering(LAYOUTS, LOSSES, WEIGHTS, strength=1)
)
def test_shares_leave_the_bits_of_the_whole_batch(layout, loss, weight):
    schedule, num_ranks, options = layout
    options, runs = {**options, "loss_weight": weight}, []
    for give in (whole, share):
        runs.append(
            spawn(
                lambda g, give=give: trained(g, give, loss, schedule, **options),
                num_ranks,
            )
        )
    for (losses, state), (expected, values) in zip(*runs):
        assert losses == expected and all(
            same_bits(state[name], values[name]) for name in values
        )


@examples(30)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 9))
def test_the_shares_of_all_ranks_are_the_batch_once(replicas, count, more):
    size = replicas * count + more

    def shares(group):
        layers = nn.Sequential(nn.Linear(1, 1))
        needs = Pipeline(
            layers, group, loss=nn.MSELoss(), replicas=replicas, num_microbatches=count
        ).needs
        return needs.share(size)

    for kind in zip(*spawn(shares, replicas)):
        assert [k for part in kind for k in range(size)[part]] == list(range(size))


def test_a_rank_without_a_first_or_last_stage_needs_no_rows():
    found = spawn(
        lambda g: Pipeline(model(), g, loss=nn.MSELoss(), replicas=1).needs.share(16), 3
    )
    assert found == [(slice(0, 16), None), (None, None), (None, slice(0, 16))]


def test_batches_read_only_the_rows_of_a_share():
    """Rows of an array in a file, of which only those that are asked for are read."""
    read = []

    class Counted(np.ndarray):
        def __getitem__(self, rows):
            read.append(np.size(rows))
            return np.asarray(self)[rows]

    def train(group, only_share):
        pipeline = Pipeline(
            model(),
            group,
            loss=nn.CrossEntropyLoss(ignore_index=-1),
            replicas=2,
            num_microbatches=2,
        )
        given = (ROWS.view(Counted) if only_share and not group.rank else ROWS, TARGETS)
        drawn = data.batches(*given, 7, needs=pipeline.needs, only_share=only_share)
        return [pipeline.step(*batch) for batch in drawn]

    runs = [spawn(lambda g, only=only: train(g, only), 4) for only in (False, True)]
    assert runs[0] == runs[1] and len(runs[0][0]) == 2
    assert read == [4, 4]  # of batches of 7 and 6, each in four microbatches


# -- nothing is wrong in silence -------------------------------------------------------


def moved(pipeline):
    """Return the share of the other replica."""
    part = pipeline.needs.share(len(ROWS))
    rows = [
        None if p is None else slice(0, 7) if p.start else slice(7, 13) for p in part
    ]
    return [
        None if p is None else Share(x[p], p, len(x))
        for x, p in zip((ROWS, TARGETS), rows)
    ]


def shorter(pipeline):
    return [
        it and Share(it.value[1:], slice(it.rows.start + 1, it.rows.stop), 13)
        for it in share(pipeline)
    ]


def of_another_batch(pipeline):
    is_first = pipeline.group.rank < 2
    return [
        it if it is None or is_first else Share(it.value, it.rows, 14)
        for it in share(pipeline)
    ]


def partly_whole(pipeline):
    return whole(pipeline) if pipeline.group.rank == 2 else share(pipeline)


def partly_share(pipeline):
    return share(pipeline) if pipeline.group.rank == 2 else whole(pipeline)


def whole_targets(pipeline):
    return share(pipeline)[0], TARGETS


def of_microbatches(pipeline):
    return [
        it and Share(Microbatches([it.value]), it.rows, 13) for it in share(pipeline)
    ]


def too_long(pipeline):
    return [
        it and Share(x, it.rows, 13) for it, x in zip(share(pipeline), (ROWS, TARGETS))
    ]


@pytest.mark.parametrize(
    ("give", "words"),
    [
        (
            moved,
            (
                "has rows 7 to 12 of the inputs, but its microbatches have rows 0 to "
                "6; pipeline.needs.share"
            ),
        ),
        (
            shorter,
            "has rows 1 to 6 of the inputs, but its microbatches have rows 0 to 6",
        ),
        (
            of_another_batch,
            r"There are 13 inputs \(on rank 0\), but 14 inputs \(on rank 2\)",
        ),
        (
            partly_whole,
            (
                "The inputs on rank 2 are not a share of a batch, unlike the inputs "
                "on rank 0"
            ),
        ),
        (
            partly_share,
            "The inputs on rank 2 are a share of a batch, unlike the inputs on rank 0",
        ),
        (
            whole_targets,
            (
                "The targets on rank [13] are not a share of a batch, unlike the "
                "inputs on rank 0"
            ),
        ),
        (of_microbatches, r"given as Share\(.*; expected arrays with [67]"),
        (
            too_long,
            (
                r"given as Share\(rows (0 to 6|7 to 12) of 13\), with 13 samples; "
                r"expected arrays with [67]"
            ),
        ),
    ],
)
def test_a_share_that_is_not_what_its_rank_needs_is_refused(give, words):
    with pytest.raises(MicrobatchError, match=words):
        spawn(lambda g: trained(g, give, replicas=2, num_microbatches=2), 4)


def test_shares_of_batches_that_were_drawn_apart_are_refused():
    def step(group):
        pipeline = Pipeline(
            model(),
            group,
            loss=nn.CrossEntropyLoss(ignore_index=-1),
            replicas=2,
            num_microbatches=2,
        )
        drawn = data.batches(
            ROWS,
            TARGETS,
            13,
            seed=group.rank // 2,
            needs=pipeline.needs,
            only_share=True,
        )
        pipeline.step(*next(drawn))

    with pytest.raises(RankError, match="batch of data"):
        spawn(step, 4)


@pytest.mark.parametrize(
    ("call", "options", "words"),
    [
        (
            lambda p, x, y: p.evaluate(x, y),
            {},
            (
                r"evaluate\(\) does not take a Share, because it divides the whole "
                r"batch among"
            ),
        ),
        (lambda p, x, y: p.predict(x), {}, r"predict\(\) does not take a Share"),
        (
            lambda p, x, y: p.step(x, y),
            {"inputs_require_grad": True},
            "it returns the gradients of all inputs",
        ),
    ],
)
def test_calls_that_need_other_rows_refuse_shares(call, options, words):
    def run(group):
        pipeline = Pipeline(
            nn.Sequential(nn.Linear(2, 2)),
            group,
            loss=nn.MSELoss(),
            replicas=2,
            **options,
        )
        rows, _ = pipeline.needs.share(16)
        x = Share(np.ones((8, 2), np.float32), rows, 16)
        call(pipeline, x, x)

    with pytest.raises(ArgumentError, match=words):
        spawn(run, 2)


def test_a_value_that_is_not_finite_is_named_by_its_place_in_the_whole_batch():
    def step(group):
        pipeline = Pipeline(
            nn.Sequential(nn.Linear(2, 2)),
            group,
            loss=nn.MSELoss(),
            replicas=2,
            num_microbatches=2,
        )
        x, (rows, _) = np.ones((16, 2), np.float32), pipeline.needs.share(16)
        x[13] = np.nan
        with pytest.raises(
            NotFiniteError, match="the inputs have nan, first in sample 13"
        ):
            pipeline.step(Share(x[rows], rows, 16), Share(x[rows], rows, 16))

    spawn(step, 2)


@pytest.mark.parametrize(
    "rows",
    [slice(4), slice(3, 3), slice(0, 9), slice(0, 8, 2), slice(-4, -1), range(4)],
)
def test_rows_that_are_not_within_the_batch_are_refused(rows):
    with pytest.raises(
        ArgumentError,
        match=(
            r"Share: rows is .*; expected slice\(start, stop\) with rows within 0 to "
            r"8"
        ),
    ):
        Share(np.ones((4, 2)), rows, 8)
