"""A head that ranks share, and its loss: a pair gives the numbers of the plain model,
or an error of a known kind.
"""

import numpy as np
import pytest

from minipipe import Grid, Pipeline, Plan, Tensor, functional, nn, optim, spawn
from minipipe.errors import MinipipeError, ModelError, RankError, TensorError
from minipipe.functional.parallel import gather_from, parallel_cross_entropy
from tests.launch import for_each, slowly

SYMBOLS, WIDTH, LENGTH = 12, 8, 4
F8 = {"dtype": np.float64}
IDS = np.random.default_rng(0).integers(0, SYMBOLS, (8, LENGTH))
NEXT = np.roll(IDS, 1, axis=1)
REAL = np.random.default_rng(1).standard_normal((8, LENGTH, SYMBOLS))


def linear(**options):
    return nn.Linear(WIDTH, SYMBOLS, **F8, **options)


def column(group, gather=False, **options):
    """Return a layer that the ranks of a group share; without a group, the plain
    one.
    """
    return (
        nn.ColumnParallelLinear(linear(**options), group, gather=gather)
        if group
        else linear(**options)
    )


class Own(nn.Module):
    """A layer of one's own, of which a pipeline does not know what it returns."""

    def __init__(self, layer, change=lambda x: x):
        self.layer, self.change = layer, change

    def forward(self, x):
        return self.change(self.layer(x))


def doubled(x):
    return x * 2.0


ZERO = {"initialiser": nn.initialisers.constant(0.0)}
HEADS = {  # of layers behind the embedding; those with a group have it divided
    "whole": lambda group: [linear()],
    "whole in a layer of one's own": lambda group: [Own(linear(), doubled)],
    "whole before a function": lambda group: [linear(), nn.Function(doubled)],
    "gathered": lambda group: [column(group, gather=True)],
    "gathered in a layer of one's own": lambda group: [Own(column(group, gather=True))],
    "divided": lambda group: [column(group)],
    "divided before an activation": lambda group: [column(group), nn.Tanh()],
    "divided and recomputed": lambda group: [
        nn.Recompute(nn.Sequential(column(group), nn.Identity()))
    ],
    "divided in a layer of one's own": lambda group: [Own(column(group))],
    "divided and scaled in a layer of one's own": lambda group: [
        Own(column(group), doubled)
    ],
    "divided before a function": lambda group: [column(group), nn.Function(doubled)],
}
WHOLE, DIVIDED = list(HEADS)[:5], list(HEADS)[5:]
LOSSES = {  # from the group, or None for the plain loss
    "CrossEntropyLoss": lambda group: nn.CrossEntropyLoss(),
    "ParallelCrossEntropyLoss": lambda group: (
        nn.ParallelCrossEntropyLoss(group) if group else nn.CrossEntropyLoss()
    ),
    "MSELoss": lambda group: nn.MSELoss(),
    "a function": lambda group: (
        lambda scores, labels: functional.cross_entropy(scores, labels)
    ),
    "a function for parts": lambda group: (
        lambda scores, labels: (
            parallel_cross_entropy(scores, labels, group)
            if group
            else functional.cross_entropy(scores, labels)
        )
    ),
    "a function that gathers": lambda group: (
        lambda scores, labels: functional.cross_entropy(
            gather_from(scores, group) if group else scores, labels
        )
    ),
    "a function of the scores alone": lambda group: (
        lambda scores, labels: functional.mean(scores * scores)
    ),
}
FOR_WHOLE = [
    "CrossEntropyLoss",
    "MSELoss",
    "a function",
    "a function of the scores alone",
]
FOR_PARTS = [
    "ParallelCrossEntropyLoss",
    "a function for parts",
    "a function that gathers",
]
RIGHT = {(head, loss) for head in WHOLE for loss in FOR_WHOLE} | {
    (head, loss) for head in DIVIDED for loss in FOR_PARTS
}


# Of a function of one's own and a layer of one's own, metrics and outputs cannot know
# what to gather: they are refused.
ALONE = {
    (head, loss)
    for head in (
        "divided and scaled in a layer of one's own",
        "divided before a function",
    )
    for loss in ("a function for parts", "a function that gathers")
}


def accuracy(outputs, targets):
    return (
        float((outputs.argmax(axis=-1) == targets).mean())
        if targets.ndim == 2
        else float(outputs[..., -1].mean())
    )


def everything(where, make_head, make_loss, is_alone=False):
    group = where.tensor if isinstance(where, Grid) else None
    model = nn.Sequential(
        nn.Embedding(SYMBOLS, WIDTH, **F8), nn.LayerNorm(WIDTH, **F8), *make_head(group)
    )
    loss = make_loss(group)
    targets = REAL if isinstance(loss, nn.MSELoss) else NEXT
    pipeline = Pipeline(model, where, loss=loss, num_microbatches=2)
    optimiser = optim.SGD(pipeline.parameters(), 0.5)
    if is_alone:
        return [
            float(pipeline.step(IDS, targets)),
            pipeline.clip_grad_norm(1.0),
            pipeline.evaluate(IDS, targets),
        ]
    asked = {"outputs": "everywhere", "metrics": {"accuracy": accuracy}}
    numbers = []
    for found in (
        pipeline.step(IDS, targets, **asked),
        pipeline.evaluate(IDS, targets, **asked),
    ):
        numbers += [float(found), found.metrics["accuracy"], found.outputs]
    numbers += [pipeline.clip_grad_norm(float("inf")), pipeline.predict(IDS)]
    optimiser.step()
    return [*numbers, float(pipeline.step(IDS, targets))]


def plain(*made):
    return spawn(lambda group: everything(group, *made), 1)[0]


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert np.shape(one) == np.shape(other) and np.allclose(
            one, other, rtol=1e-12, atol=1e-12
        )


PAIRS = {f"{head}, {loss}": (head, loss) for head in HEADS for loss in LOSSES}
# in 3 of 5 columns of each row
SOME_PAIRS = {name: PAIRS[name] for name in [*PAIRS][::3]}


@for_each(pair=SOME_PAIRS)
def test_some_heads_and_losses_belong_together_or_are_refused(pair):
    check_pair(pair, {"tensor": 2})


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes", [{"tensor": 2}, {"pipeline": 2, "tensor": 2}, {"tensor": 3}], ids=str
)
@for_each(pair=PAIRS)
def test_a_head_and_a_loss_belong_together_or_are_refused(pair, sizes):
    check_pair(pair, sizes)


def check_pair(pair, sizes):
    head, loss = HEADS[pair[0]], LOSSES[pair[1]]
    num_ranks = int(np.prod(list(sizes.values())))
    is_alone = pair in ALONE
    if pair not in RIGHT or is_alone:
        with pytest.raises((ModelError, TensorError)) as caught:
            spawn(lambda group: everything(Grid(group, **sizes), head, loss), num_ranks)
        assert caught.value.code in ("loss", "divided")
    if pair not in RIGHT:
        return
    expected = plain(head, loss, is_alone)
    for found in spawn(
        lambda group: everything(Grid(group, **sizes), head, loss, is_alone), num_ranks
    ):
        assert_same(found, expected)


@pytest.mark.parametrize("head", ["divided", slowly("divided in a layer of one's own")])
@pytest.mark.parametrize(
    "grid", [{"data": 2}, {"data": 2, "fully_sharded": True}], ids=str
)
def test_so_it_is_with_replicas(grid, head):
    def run(where, count):
        group = where.tensor if isinstance(where, Grid) else None
        model = nn.Sequential(nn.Embedding(SYMBOLS, WIDTH, **F8), *HEADS[head](group))
        loss = LOSSES["ParallelCrossEntropyLoss"](group)
        pipeline = Pipeline(model, where, loss=loss, num_microbatches=count, seed=2)
        found = pipeline.step(
            IDS, NEXT, outputs="everywhere", metrics={"accuracy": accuracy}
        )
        return [
            float(found),
            found.metrics["accuracy"],
            found.outputs,
            pipeline.predict(IDS),
        ]

    (expected,) = spawn(lambda group: run(group, 4), 1)
    for found in spawn(lambda group: run(Grid(group, tensor=2, **grid), 2), 4):
        assert_same(found, expected)


def test_a_tied_head_gathers_and_takes_a_whole_loss():
    def model():
        embedding = nn.Embedding(SYMBOLS, WIDTH, **F8)
        return nn.Sequential(
            embedding, nn.LayerNorm(WIDTH, **F8), nn.Unembedding(embedding)
        )

    def run(where, make_loss):
        loss = make_loss(where.tensor if isinstance(where, Grid) else None)
        pipeline = Pipeline(model(), where, loss=loss, num_microbatches=2)
        found = pipeline.step(
            IDS, NEXT, outputs="everywhere", metrics={"accuracy": accuracy}
        )
        return [
            float(found),
            found.metrics["accuracy"],
            found.outputs,
            pipeline.predict(IDS),
        ]

    expected = spawn(lambda group: run(group, LOSSES["CrossEntropyLoss"]), 1)[0]
    for name in ("CrossEntropyLoss", "a function"):
        for found in spawn(
            lambda group, name=name: run(Grid(group, tensor=2), LOSSES[name]), 2
        ):
            assert_same(found, expected)
    for name in ("ParallelCrossEntropyLoss", "a function for parts"):
        with pytest.raises(MinipipeError) as caught:
            spawn(lambda group, name=name: run(Grid(group, tensor=2), LOSSES[name]), 2)
        assert caught.value.code in ("loss", "divided")


def test_first_scores_of_zero_are_no_reason_to_refuse():
    def loss(where):
        group = where.tensor if isinstance(where, Grid) else None
        model = nn.Sequential(
            nn.Embedding(SYMBOLS, WIDTH, **F8), Own(column(group, **ZERO), doubled)
        )
        return float(
            Pipeline(model, where, loss=LOSSES["ParallelCrossEntropyLoss"](group)).step(
                IDS, NEXT
            )
        )

    assert spawn(lambda group: loss(Grid(group, tensor=2)), 2) == pytest.approx(
        [np.log(SYMBOLS)] * 2
    )


@for_each(
    case={
        "a whole head": (
            lambda g: HEADS["whole"](g),
            LOSSES["ParallelCrossEntropyLoss"],
            "every rank of the group has all",
        ),
        "a gathered head": (
            lambda g: HEADS["gathered"](g),
            LOSSES["ParallelCrossEntropyLoss"],
            "Take CrossEntropyLoss",
        ),
        "a divided head": (
            lambda g: HEADS["divided"](g),
            LOSSES["CrossEntropyLoss"],
            "has a part of them",
        ),
        "other ranks": (
            lambda g: HEADS["divided"](g),
            lambda g: nn.ParallelCrossEntropyLoss(Elsewhere()),
            "give it the group of the layers",
        ),
    }
)
def test_a_pair_is_refused_when_the_pipeline_is_made(case):
    head, loss, words = case

    def make(group):
        grid = Grid(group, tensor=2)
        Pipeline(
            nn.Sequential(nn.Embedding(SYMBOLS, WIDTH), *head(grid.tensor)),
            grid,
            loss=loss(grid.tensor),
        )

    with pytest.raises(ModelError, match=words) as caught:
        spawn(make, 2)
    assert caught.value.code == "loss"


class Elsewhere:
    """Stands for a group of other ranks."""

    size, rank, world_ranks = 2, 0, (4, 5)


def test_a_plan_is_looked_at_too_and_a_pipeline_that_only_predicts_gathers():
    def run(group):
        grid = Grid(group, tensor=2)
        model = nn.parallelise(
            nn.Sequential(
                nn.Embedding(SYMBOLS, WIDTH, **F8), *HEADS["divided"](grid.tensor)
            ),
            grid.tensor,
        )
        plan = Plan(model, num_ranks=1)
        with pytest.raises(ModelError, match="has a part of them"):
            Pipeline(plan, grid, loss=nn.CrossEntropyLoss())
        pipeline = Pipeline(plan, grid)
        with pytest.raises(ModelError, match="takes the gradient of whole outputs"):
            pipeline.forward_backward(IDS, np.ones((8, LENGTH, SYMBOLS)))
        return pipeline.predict(IDS).shape

    assert spawn(run, 2) == [(8, LENGTH, SYMBOLS)] * 2


@pytest.mark.parametrize("change", [lambda x: x, doubled], ids=["marked", "not marked"])
def test_scores_that_a_layer_of_ones_own_gathered_are_not_joined_once_more(change):
    """The pipeline cannot know before a call, and a prediction would have each class
    twice.
    """

    def predict(group):
        grid = Grid(group, tensor=2)
        model = nn.Sequential(
            nn.Embedding(SYMBOLS, WIDTH, **F8),
            Own(column(grid.tensor, gather=True), change),
        )
        Pipeline(model, grid, loss=nn.ParallelCrossEntropyLoss(grid.tensor)).predict(
            IDS
        )

    with pytest.raises(TensorError, match="every rank has all scores") as caught:
        spawn(predict, 2)
    assert caught.value.code == "divided"


def test_a_gradient_of_whole_outputs_is_taken():
    def run(where):
        group = where.tensor if isinstance(where, Grid) else None
        model = nn.Sequential(
            nn.Embedding(SYMBOLS, WIDTH, **F8), *HEADS["gathered"](group)
        )
        pipeline = Pipeline(model, where, num_microbatches=2)
        return [
            pipeline.forward_backward(IDS, REAL, outputs="everywhere"),
            pipeline.clip_grad_norm(float("inf")),
        ]

    (expected,) = spawn(run, 1)
    for found in spawn(lambda group: run(Grid(group, tensor=2)), 2):
        assert_same(found, expected)


def test_outputs_asked_for_by_some_ranks_alone_are_refused_where_ranks_exchange_them():
    def run(group):
        grid = Grid(group, tensor=2)
        model = nn.Sequential(
            nn.Embedding(SYMBOLS, WIDTH), *HEADS["divided"](grid.tensor)
        )
        pipeline = Pipeline(model, grid, loss=nn.ParallelCrossEntropyLoss(grid.tensor))
        pipeline.step(IDS, NEXT, outputs=group.rank == 0)

    with pytest.raises(RankError, match="request for outputs"):
        spawn(run, 2)


def test_outputs_that_differ_by_rank_and_are_no_single_tensor_are_refused():
    def run(group):
        grid = Grid(group, tensor=2)
        model = nn.Sequential(
            nn.Embedding(SYMBOLS, WIDTH, **F8),
            Own(column(grid.tensor), lambda x: (x, x * 2.0)),
        )
        pipeline = Pipeline(
            model,
            grid,
            loss=lambda pair, labels: parallel_cross_entropy(
                pair[0], labels, grid.tensor
            ),
        )
        pipeline.step(IDS, NEXT)
        pipeline.predict(IDS)

    with pytest.raises(TensorError, match="have different outputs"):
        spawn(run, 2)


@pytest.mark.parametrize("schedule", ["2bw"])
def test_a_run_without_flushes_compares_too(schedule):
    def run(group, head, loss):
        grid = Grid(group, pipeline=2, tensor=2)
        model = nn.Sequential(
            nn.Embedding(SYMBOLS, WIDTH, **F8), *HEADS[head](grid.tensor)
        )
        pipeline = Pipeline(
            model,
            grid,
            loss=LOSSES[loss](grid.tensor),
            schedule=schedule,
            num_microbatches=2,
        )
        return pipeline.run([(IDS, NEXT)] * 2, optim.SGD(pipeline.parameters(), 0.1))

    assert (
        spawn(lambda group: run(group, "divided", "ParallelCrossEntropyLoss"), 4)[0][0]
        > 0
    )
    with pytest.raises(TensorError, match="The outputs differ"):
        spawn(
            lambda group: run(
                group, "divided and scaled in a layer of one's own", "CrossEntropyLoss"
            ),
            4,
        )


# -- without a pipeline ----------------------------------------------------------------


@for_each(
    case={
        "cross-entropy of a part": (
            False,
            lambda group, scores: nn.CrossEntropyLoss()(scores, NEXT),
        ),
        "its function": (
            False,
            lambda group, scores: functional.cross_entropy(scores, NEXT),
        ),
        "squared error of a part": (
            False,
            lambda group, scores: nn.MSELoss()(scores, scores.numpy()),
        ),
        "loss for parts of a whole": (
            True,
            lambda group, scores: nn.ParallelCrossEntropyLoss(group)(scores, NEXT),
        ),
        "loss for parts of a plain layer's result": (
            None,
            lambda group, scores: nn.ParallelCrossEntropyLoss(group)(scores, NEXT),
        ),
        "its function, too": (
            True,
            lambda group, scores: parallel_cross_entropy(scores, NEXT, group),
        ),
        "parts of other ranks": (
            False,
            lambda group, scores: nn.ParallelCrossEntropyLoss(Elsewhere())(
                scores, NEXT
            ),
        ),
    }
)
def test_a_loss_refuses_what_is_not_for_it(case):
    gather, call = case

    def run(group):
        x = Tensor(np.random.default_rng(0).standard_normal((8, LENGTH, WIDTH)))
        layer = linear() if gather is None else column(group, gather)
        call(group, layer(x))

    with pytest.raises(TensorError) as caught:
        spawn(run, 2)
    assert caught.value.code == "divided"


def test_parts_that_do_not_depend_on_the_class_are_taken():
    """A head that begins with equal columns: its parts are the same on all ranks."""

    def run(group):
        x = np.arange(8.0)[:, None] + np.zeros((8, SYMBOLS // 2))
        return round(
            nn.ParallelCrossEntropyLoss(group)(Tensor(x), IDS[:, 0]).item(), 12
        )

    assert spawn(run, 2) == [round(np.log(SYMBOLS), 12)] * 2


def test_one_rank_has_all_and_everything_fits():
    def run(group):
        scores = column(group)(Tensor(np.ones((8, LENGTH, WIDTH))))
        losses = [nn.CrossEntropyLoss(), nn.ParallelCrossEntropyLoss(group)]
        return [round(loss(scores, NEXT).item(), 6) for loss in losses]

    ((one, other),) = spawn(run, 1)
    assert one == other


def test_a_stage_with_all_outputs_is_compiled_with_the_same_bits():
    """The marks of its outputs are no part of a program."""

    def run(group, how):
        grid = Grid(group, pipeline=2, tensor=2)
        layers = [
            nn.Embedding(SYMBOLS, WIDTH, **F8),
            nn.LayerNorm(WIDTH, **F8),
            nn.Linear(WIDTH, SYMBOLS, **F8),
        ]
        options = {"loss": nn.CrossEntropyLoss(), "num_microbatches": 2, "compile": how}
        pipeline = Pipeline(nn.Sequential(*layers), grid, **options)
        optimiser = optim.SGD(pipeline.parameters(), 0.1)
        losses = []
        for _ in range(6):
            losses.append(float(pipeline.step(IDS, NEXT)))
            optimiser.step()
        return losses, pipeline.compile_report()

    found, expected = (
        spawn(lambda group, on=on: run(group, on), 4)
        for on in ("where-possible", False)
    )
    assert [losses for losses, _ in found] == [losses for losses, _ in expected]
    assert found[2][1] == "step: stage 1 is compiled"
