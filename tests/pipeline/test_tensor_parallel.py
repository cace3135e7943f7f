"""Tensor parallelism: the model whose layers several ranks share is the plain model,
within rounding.

1e-12 is promised, not bits: a product that ranks share is summed in another order.
"""

from collections import Counter
from functools import cache
from itertools import starmap
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Grid, Pipeline, Tensor, functional, nn, optim, spawn
from minipipe.errors import ArgumentError, RankError, TensorError
from minipipe.functional import parallel
from minipipe.functional.parallel import (
    copy_to,
    gather_from,
    parallel_cross_entropy,
    reduce_from,
)
from minipipe.testing import same_bits
from tests.launch import mpirun_together, needs_mpi, sample_of, slowly
from tests.strategies import examples

SYMBOLS, WIDTH, LENGTH, MICROBATCHES = 12, 8, 5, 8
IDS = np.random.default_rng(0).integers(0, SYMBOLS, (8, LENGTH))
NEXT = np.roll(IDS, 1, axis=1)
CLOSE = 1e-12


def language_model(dropout=0.1, num_blocks=2, num_heads=4, is_tied=False, **options):
    sizes = {"dtype": np.float64}
    blocks = [
        nn.TransformerBlock(WIDTH, num_heads, True, dropout=dropout, **options, **sizes)
        for _ in range(num_blocks)
    ]
    embedding = [
        nn.Embedding(SYMBOLS, WIDTH, **sizes),
        nn.PositionalEmbedding(LENGTH, WIDTH, **sizes),
    ]
    head = (
        nn.Unembedding(embedding[0]) if is_tied else nn.Linear(WIDTH, SYMBOLS, **sizes)
    )
    return nn.Sequential(*embedding, *blocks, nn.LayerNorm(WIDTH, **sizes), head)


def train(pipeline, max_norm=0.5, num_steps=3):
    optimiser = optim.SGD(pipeline.parameters(), learning_rate=0.1, momentum=0.9)
    losses = []
    for _ in range(num_steps):
        losses.append(float(pipeline.step(IDS, NEXT)))
        losses.append(pipeline.clip_grad_norm(max_norm))
        optimiser.step()
    return (
        losses,
        pipeline.state_dict(),
        pipeline.evaluate(IDS, NEXT),
        pipeline.predict(IDS),
    )


@cache
def alone(**options):
    make = {"loss": nn.CrossEntropyLoss(), "num_microbatches": MICROBATCHES}
    return spawn(
        lambda group: train(Pipeline(language_model(**options), group, **make)), 1
    )[0]


def on_grid(
    group,
    pipeline=1,
    data=1,
    tensor=1,
    schedule="1f1b",
    is_head_divided=False,
    recompute=False,
    **options,
):
    is_sharded = options.pop("fully_sharded", False)
    grid = Grid(
        group, pipeline=pipeline, data=data, tensor=tensor, fully_sharded=is_sharded
    )
    model, loss = language_model(**options), nn.CrossEntropyLoss()
    if is_head_divided:
        *layers, head = model
        model = nn.Sequential(*layers, nn.ColumnParallelLinear(head, grid.tensor))
        loss = nn.ParallelCrossEntropyLoss(grid.tensor)
    given = {"num_microbatches": MICROBATCHES // data, "recompute": recompute}
    return Pipeline(model, grid, loss=loss, schedule=schedule, **given)


def assert_close(found, expected, is_head_divided=False):
    losses, state, evaluated, outputs = found
    assert np.allclose(losses, expected[0], rtol=CLOSE, atol=CLOSE)
    assert state.keys() == expected[1].keys()
    for name, value in expected[1].items():
        assert np.allclose(state[name], value, rtol=CLOSE, atol=CLOSE), name
    assert abs(evaluated - expected[2]) < CLOSE
    if not is_head_divided:
        assert np.allclose(outputs, expected[3], rtol=CLOSE, atol=10 * CLOSE)


# -- a training is that of the plain model ---------------------------------------------

SIZES = [
    (1, 1, 2),
    (1, 1, 4),
    (2, 1, 2),
    (1, 2, 2),
    (2, 2, 2),
    (2, 1, 4),
    (1, 2, 4),
    (4, 1, 2),
]


QUICK = {(SIZES[0], "1f1b", True)}
OTHERS = {*sample_of(SIZES, ("1f1b", "zb-h1", "gpipe"), (False, True))} - QUICK


@pytest.mark.parametrize(
    ("sizes", "schedule", "is_head_divided"),
    [*sorted(QUICK), *starmap(slowly, sorted(OTHERS))],
    ids=str,
)
def test_a_training_on_a_grid_is_that_of_the_plain_model(
    sizes, schedule, is_head_divided
):
    names = dict(zip(("pipeline", "data", "tensor"), sizes))
    for found in spawn(
        lambda g: train(
            on_grid(g, **names, schedule=schedule, is_head_divided=is_head_divided)
        ),
        int(np.prod(sizes)),
    ):
        assert_close(found, alone(), is_head_divided)


DROPPED = {"attention_dropout": 0.3}


@pytest.mark.parametrize("recompute", [True, slowly(False)])
@pytest.mark.parametrize(
    "options",
    [{"num_key_value_heads": 2, **DROPPED}, slowly({"rotary_base": 100.0})],
    ids=str,
)
def test_so_it_is_with_options_of_attention_and_recomputed(options, recompute):
    make = {"pipeline": 2, "tensor": 2, "recompute": recompute, **options}
    for found in spawn(lambda group: train(on_grid(group, **make)), 4):
        assert_close(found, alone(**options))


@pytest.mark.slow
def test_a_part_of_the_heads_without_its_own_random_numbers_is_noticed():
    """The mutant: the heads of every rank draw the numbers of the first ones."""
    with (
        mock.patch.object(nn.ParallelAttention, "_part", (0, 1)),
        pytest.raises(AssertionError),
    ):
        found = spawn(lambda group: train(on_grid(group, tensor=2, **DROPPED)), 2)[0]
        assert_close(found, alone(**DROPPED))


@pytest.mark.slow
def test_so_it_is_with_chunks():
    for found in spawn(
        lambda group: train(on_grid(group, 2, 1, 2, schedule="interleaved-1f1b")), 4
    ):
        assert_close(found, alone())


@pytest.mark.slow
def test_ranks_of_one_part_have_the_bits_of_one_rank():
    """Cut into stages or not, with the same parts of layers: then no sum is in another
    order.
    """
    one = spawn(lambda group: train(on_grid(group, 1, 1, 2)), 2)[0]
    for found in spawn(lambda group: train(on_grid(group, 2, 1, 2)), 4):
        assert found[0] == one[0] and found[2] == one[2] and same_bits(found[3], one[3])
        assert all(same_bits(found[1][name], value) for name, value in one[1].items())


EIGHT = [
    (2, 2, 2),
    (2, 1, 4),
    (4, 1, 2),
    (1, 2, 4),
    (2, 4, 1),
    (8, 1, 1),
    (1, 8, 1),
    (1, 1, 8),
]


def large_enough(sizes):
    """Return the options of a model that has a layer for each stage, and a head for
    each part.
    """
    return {"num_blocks": 6 if sizes[0] == 8 else 2, "num_heads": max(4, sizes[2])}


@needs_mpi
@pytest.mark.slow  # in short: test_over_mpi.py
@pytest.mark.parametrize("grids", [[(2, 1, 2)], EIGHT], ids=str)
def test_so_it_is_over_mpi(grids):
    programs = {sizes: ("tests.pipeline.grid_over_mpi", *sizes) for sizes in grids}
    printed = mpirun_together(int(np.prod(grids[0])), programs)
    for sizes, text in printed.items():
        expected = alone(**large_enough(sizes))[0]
        losses = list(map(float, text.split()))
        assert np.allclose(losses, expected, rtol=CLOSE, atol=CLOSE), sizes


# -- values ----------------------------------------------------------------------------


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_first_values_are_parts_of_those_of_the_plain_model(num_ranks):
    plain = language_model().initialise(7).state_dict()

    def first(group):
        model = nn.parallelise(language_model(), group).initialise(7)
        return model.state_dict(), model.num_parameters

    for state, size in spawn(first, num_ranks):
        assert state.keys() == plain.keys() and all(
            same_bits(state[name], plain[name]) for name in plain
        )
        assert size < language_model().num_parameters / num_ranks + 500


def test_values_that_a_model_has_are_divided_and_loaded_as_a_whole():
    plain = language_model().initialise(1)
    other = {name: value + 1 for name, value in plain.state_dict().items()}

    def load(group):
        model = nn.parallelise(plain, group)
        own = model.state_dict()
        model.load_state_dict(other)
        return (
            own,
            model.state_dict(),
            model.layers[2].attention.layers[1].projections.weight.data,
        )

    for rank, (own, loaded, part) in enumerate(spawn(load, 2)):
        assert all(
            same_bits(own[name], value) for name, value in plain.state_dict().items()
        )
        assert all(same_bits(loaded[name], value) for name, value in other.items())
        queries, keys, values = np.split(
            other["2.attention.layers.1.projections.weight"], 3, axis=1
        )
        # of two of the four heads
        mine = slice(rank * WIDTH // 2, (rank + 1) * WIDTH // 2)
        assert same_bits(
            part,
            np.concatenate([queries[:, mine], keys[:, mine], values[:, mine]], axis=1),
        )


def test_a_frozen_layer_stays_frozen_and_an_odd_embedding_whole():
    embedding, odd = nn.Embedding(SYMBOLS, WIDTH).freeze(), nn.Embedding(7, 4)
    model = nn.Sequential(
        odd,
        nn.TransformerBlock(WIDTH, 4).freeze(),
        embedding,
        nn.Unembedding(embedding),
    )

    def look(group):
        own = nn.parallelise(model, group)
        frozen = [*own[1].parameters(), own[2].weight, own[3].weight]
        return type(own[0]) is nn.Embedding, [p.requires_grad for p in frozen]

    for is_whole, trained in spawn(look, 2):
        assert is_whole and not any(trained)
    assert (
        nn.parallelise(model, spawn(lambda group: group, 1)[0])[1].num_parameters
        == model[1].num_parameters
    )


# -- messages --------------------------------------------------------------------------


def test_a_block_has_two_sums_forward_and_two_backward():
    calls = [Counter() for _ in range(2)]

    def count(group):
        block = nn.parallelise(
            nn.TransformerBlock(WIDTH, 4, dtype=np.float64), group
        ).initialise(0)
        x, real = (
            Tensor(np.ones((1, 3, WIDTH)), requires_grad=True),
            type(group).all_reduce,
        )

        def counted(own, *given):
            calls[own.rank][phase[own.rank]] += 1
            return real(own, *given)

        with mock.patch.object(group, "all_reduce", counted.__get__(group)):
            phase[group.rank] = "forward"
            y = block(x)
            phase[group.rank] = "backward"
            (y * y).sum().backward()

    phase = ["", ""]
    spawn(count, 2)
    assert calls == [{"forward": 2, "backward": 2}] * 2


def test_embedding_head_and_loss_have_as_many_as_they_say():
    """The embedding one forward, the head one backward, the loss three small ones
    forward.
    """

    def count(group):
        calls, real = Counter(), type(group).all_reduce

        def counted(array, *given):
            calls[phase, array.ndim] += 1
            return real(group, array, *given)

        embedding = nn.ParallelEmbedding(
            nn.Embedding(SYMBOLS, WIDTH, dtype=np.float64), group
        )
        head = nn.ColumnParallelLinear(
            nn.Linear(WIDTH, SYMBOLS, dtype=np.float64), group
        )
        loss = nn.ParallelCrossEntropyLoss(group)
        with mock.patch.object(group, "all_reduce", counted):
            phase = "embedding"
            x = embedding(IDS)
            phase = "loss"
            value = loss(head(x), NEXT)
            phase = "backward"
            value.backward()
        return calls

    expected = {("embedding", 3): 1, ("loss", 2): 2, ("loss", 1): 1, ("backward", 3): 1}
    assert spawn(count, 2) == [expected, expected]


# -- operations ------------------------------------------------------------------------


@examples(60)
@given(st.data())
def test_the_loss_of_divided_scores_is_that_of_whole_ones(data):
    num_ranks, rows = (
        data.draw(st.sampled_from([1, 2, 3])),
        data.draw(st.integers(1, 5)),
    )
    generator = np.random.default_rng(data.draw(st.integers(0, 99)))
    scores = generator.standard_normal((rows, 6)) * data.draw(
        st.sampled_from([1.0, 100.0])
    )
    labels = generator.integers(0, 6, rows)
    ignored, reduction = (
        data.draw(st.sampled_from([None, -1, 2])),
        data.draw(st.sampled_from(["mean", "sum"])),
    )
    whole = Tensor(scores, requires_grad=True)
    expected = functional.cross_entropy(whole, labels, ignored, reduction=reduction)
    expected.backward()

    def compute(group):
        own = Tensor(
            np.split(scores, group.size, axis=1)[group.rank].copy(), requires_grad=True
        )
        loss = parallel_cross_entropy(own, labels, group, ignored, reduction)
        loss.backward()
        return loss.item(), own.grad

    found = spawn(compute, num_ranks)
    assert np.allclose(
        [loss for loss, _ in found], expected.item(), rtol=CLOSE, atol=CLOSE
    )
    assert np.allclose(
        np.concatenate([grad for _, grad in found], axis=1),
        whole.grad,
        rtol=CLOSE,
        atol=CLOSE,
    )


@given(st.integers(0, 99), st.sampled_from([2, 3]))
def test_operations_have_the_gradients_of_one_process(seed, num_ranks):
    generator = np.random.default_rng(seed)
    x, w = generator.standard_normal((2, 6)), generator.standard_normal((6, 6))
    plain, weight = Tensor(x, requires_grad=True), Tensor(w, requires_grad=True)
    (functional.tanh(plain @ weight) @ weight).sum().backward()

    def compute(group):
        parts = [
            np.split(w, group.size, axis=axis)[group.rank].copy() for axis in (1, 0)
        ]
        own, columns, rows = (
            Tensor(value, requires_grad=True) for value in (x, *parts)
        )
        reduce_from(
            functional.tanh(copy_to(own, group=group) @ columns) @ rows, group=group
        ).sum().backward()
        return own.grad, columns.grad, rows.grad

    found = spawn(compute, num_ranks)
    for own, _, _ in found:
        assert np.allclose(own, plain.grad, rtol=CLOSE, atol=CLOSE)
    both = np.concatenate([c for _, c, _ in found], axis=1) + np.concatenate(
        [r for _, _, r in found]
    )
    assert np.allclose(both, weight.grad, rtol=CLOSE, atol=CLOSE)


def test_what_is_gathered_gets_its_own_gradient():
    def compute(group):
        own = Tensor(np.array([[1.0 + group.rank]]), requires_grad=True)
        (gather_from(own, group) * np.array([[10.0, 20.0]])).sum().backward()
        return own.grad.tolist()

    assert spawn(compute, 2) == [[[10.0]], [[20.0]]]


def summed_twice(x, group):
    return parallel.record(
        parallel.combined(x.data, group), (x, lambda g: parallel.combined(g, group))
    )


@pytest.mark.parametrize(
    "name, changed",
    [("copy_to", lambda x, group: x), slowly("reduce_from", summed_twice)],
)
def test_an_operation_without_its_conjugate_is_noticed(name, changed):
    """The mutants: no sum in the backward of copy_to, and a sum too many in that of
    reduce_from.
    """
    with mock.patch.object(nn.parallel, name, changed), pytest.raises(AssertionError):
        assert_close(
            spawn(lambda group: train(on_grid(group, tensor=2)), 2)[0], alone()
        )


# -- gradients as a whole --------------------------------------------------------------


def test_the_norm_of_divided_gradients_needs_no_pipeline():
    plain = nn.Sequential(
        nn.Linear(4, 8, dtype=np.float64), nn.Tanh(), nn.Linear(8, 2, dtype=np.float64)
    ).initialise(0)
    x = np.ones((3, 4))
    plain(Tensor(x)).sum().backward()

    def norm(group):
        model = nn.parallelise(plain, group)
        model(Tensor(x)).sum().backward()
        return optim.clip_grad_norm(model.parameters(), 0.1), optim.gradient_norm(
            model.parameters()
        )

    for before, after in spawn(norm, 2):
        assert before == pytest.approx(
            optim.gradient_norm(plain.parameters()), rel=CLOSE
        )
        assert after == pytest.approx(0.1, rel=CLOSE)


def test_an_overflow_in_one_part_is_left_out_by_all():
    def overflow(group):
        pipeline, scale = on_grid(group, 2, 1, 2), optim.LossScale(8.0)
        pipeline.step(IDS, NEXT)
        for name, parameter in pipeline.named_parameters():
            if name == "2.attention.layers.1.projections.weight" and group.rank in (
                1,
                3,
            ):
                parameter.grad = np.full(parameter.shape, np.inf)
        return pipeline.unscale_gradients(scale), scale.value

    assert spawn(overflow, 4) == [(False, 4.0)] * 4


# -- mistakes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda g: nn.parallelise(nn.TransformerBlock(9, 3), g),
            "The size of the group is 2; expected a divisor of 3 heads",
        ),
        (
            lambda g: nn.parallelise(
                nn.TransformerBlock(8, 4, num_key_value_heads=1), g
            ),
            "4 heads, 1 of keys and values",
        ),
        (
            lambda g: nn.ParallelEmbedding(nn.Embedding(7, 4), g),
            "expected a divisor of the 7 features",
        ),
        (
            lambda g: nn.parallelise(
                nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 2)), g
            ),
            "the 5 features",
        ),
        (
            lambda g: nn.ParallelEmbedding(tied(), g),
            "several layers share cannot be divided",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused(make, words):
    with pytest.raises(ArgumentError, match=words):
        spawn(make, 2)


def tied():
    embedding = nn.Embedding(4, 2)
    nn.Unembedding(embedding)
    return embedding


def test_a_symbol_that_no_rank_has_is_refused_by_all():
    for wrong in (-1, SYMBOLS):
        with pytest.raises(TensorError, match="embedding: ids"):
            spawn(
                lambda g, wrong=wrong: nn.parallelise(nn.Embedding(SYMBOLS, 2), g)(
                    np.array([0, wrong])
                ),
                2,
            )
    with pytest.raises(TensorError, match="labels run from 4 to 4; expected 0 to 3"):
        spawn(lambda g: parallel_cross_entropy(Tensor(np.ones((1, 2))), [4], g), 2)


def test_a_grid_says_which_product_does_not_fit():
    with pytest.raises(
        RankError, match="pipeline 2 x data 1 x tensor 3 are 6 ranks, but there are 4"
    ):
        spawn(lambda group: Grid(group, pipeline=2, tensor=3), 4)
    with pytest.raises(ArgumentError, match="tensor is 0; expected a whole number"):
        spawn(lambda group: Grid(group, tensor=0), 1)


@given(st.permutations([1, 2, 2]), st.sampled_from([1, 2]))
def test_coordinates_name_each_rank_once_and_neighbours_share_layers(sizes, more):
    pipeline, data, tensor = sizes
    tensor *= more

    def look(group):
        grid = Grid(group, pipeline=pipeline, data=data, tensor=tensor)
        return (
            grid.coordinates,
            grid.pipeline.world_ranks,
            grid.tensor.world_ranks,
            repr(grid),
        )

    found = spawn(look, pipeline * data * tensor)
    assert len({coordinates for coordinates, *_ in found}) == len(found)
    for rank, ((stage, replica, part), ranks, sharing, text) in enumerate(found):
        assert rank == (stage * data + replica) * tensor + part
        assert list(sharing) == list(range(rank - part, rank - part + tensor))
        assert (
            ranks[replica * pipeline + stage] == rank
            and f"pipeline rank {stage}, replica {replica}, part {part}" in text
        )
