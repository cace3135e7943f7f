"""Fully sharded replicas: each keeps a share of the parameters, and trains as replicas
with whole ones do.

With one microbatch for each replica the gradients have the bits of whole replicas. With
several, their sums are taken for each microbatch, so results agree within 1e-12.
"""

from collections import Counter
from itertools import starmap
from unittest import mock

import array_api_strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Grid, Pipeline, Plan, Tensor, functional, nn, optim, spawn
from minipipe.errors import ArgumentError
from minipipe.nn import fully_sharded
from minipipe.testing import same_bits
from tests.launch import mpirun_together, needs_mpi, sample_of, slowly
from tests.pipeline.test_tensor_parallel import (
    CLOSE,
    IDS,
    MICROBATCHES,
    NEXT,
    alone,
    assert_close,
    language_model,
    on_grid,
    train,
)
from tests.strategies import examples


def trained(
    group,
    fully_sharded,
    make_model=language_model,
    rule=optim.SGD,
    steps=3,
    device="cpu",
    **sizes,
):
    """Return the losses and the last values of a training without clipping, with a
    microbatch for each replica.
    """
    grid = Grid(group, fully_sharded=fully_sharded, **sizes)
    pipeline = Pipeline(
        make_model(),
        grid,
        loss=nn.CrossEntropyLoss(),
        num_microbatches=1,
        device=device,
    )
    optimiser, losses = rule(pipeline.parameters(), learning_rate=0.05), []
    for _ in range(steps):
        losses.append(float(pipeline.step(IDS, NEXT)))
        optimiser.step()
    return losses, pipeline.state_dict()


def same(found, expected):
    return found[0] == expected[0] and all(
        same_bits(found[1][name], value) for name, value in expected[1].items()
    )


# -- a training is that of whole replicas ----------------------------------------------


@pytest.mark.parametrize("num_ranks", [2, slowly(3), slowly(4)])
@pytest.mark.parametrize("rule", [optim.Adam, optim.Muon, slowly(optim.SGD)])
def test_with_a_microbatch_each_it_has_the_bits_of_whole_replicas(num_ranks, rule):
    whole, shares = (
        spawn(
            lambda g, is_sharded=is_sharded: trained(
                g, is_sharded, rule=rule, data=num_ranks
            ),
            num_ranks,
        )
        for is_sharded in (False, True)
    )
    assert all(same(found, whole[0]) for found in shares)


@pytest.mark.slow
def test_so_it_has_with_another_array_module():
    found = spawn(
        lambda group: trained(group, True, data=2, device=array_api_strict), 2
    )
    assert all(
        same(each, spawn(lambda group: trained(group, False, data=2), 2)[0])
        for each in found
    )


SIZES = [(1, 2, 1), (2, 2, 1), (1, 4, 1), (2, 2, 2), (1, 2, 2), (2, 4, 1)]


SCHEDULES = ("zb-h1", "1f1b", "gpipe", "interleaved-1f1b", "zb-v")
QUICK = {((2, 2, 1), "zb-h1", False)}
OTHERS = {*sample_of(SIZES, SCHEDULES, (False, True))} - QUICK


@pytest.mark.parametrize(
    ("sizes", "schedule", "recompute"),
    [*sorted(QUICK), *starmap(slowly, sorted(OTHERS))],
    ids=str,
)
def test_a_training_on_a_grid_is_that_of_the_plain_model(sizes, schedule, recompute):
    make = {"schedule": schedule, "fully_sharded": True, "recompute": recompute}
    for found in spawn(
        lambda group: train(on_grid(group, *sizes, **make)), int(np.prod(sizes))
    ):
        assert_close(found, alone())


@needs_mpi
@pytest.mark.slow  # in short: test_over_mpi.py
@pytest.mark.parametrize(
    "grids", [[(1, 2, 1)], [(1, 4, 1), (2, 2, 1)], [(2, 2, 2), (1, 8, 1)]], ids=str
)
def test_so_it_is_over_mpi(grids):
    programs = {sizes: ("tests.pipeline.grid_over_mpi", *sizes, 1) for sizes in grids}
    printed = mpirun_together(int(np.prod(grids[0])), programs)
    for sizes, text in printed.items():
        losses = list(map(float, text.split()))
        assert np.allclose(losses, alone()[0], rtol=CLOSE, atol=CLOSE), sizes


class Odd(nn.Module):
    """Parameters in a list and a dict, one of no elements, one returned as it is, and
    one that a product needs in W.
    """

    def __init__(self):
        ones, some = nn.initialisers.constant(1.0), nn.initialisers.normal(0.3)
        self.factors = [
            nn.Parameter((5,), some, np.float64),
            nn.Parameter((1,), ones, np.float64),
        ]
        self.more = {
            "empty": nn.Parameter((0, 3), ones, np.float64),
            "square": nn.Parameter((5, 5), some, np.float64),
        }

    def forward(self, x):
        square = functional.tanh(self.more["square"] * self.more["square"])
        return (
            x @ square * self.factors[0]
            + self.factors[1]
            + self.more["empty"].sum()
            + x
        )


class Returned(nn.Module):
    def __init__(self):
        self.rows = nn.Parameter((3, 5), nn.initialisers.normal(1.0), np.float64)

    def forward(self, x):
        return self.rows


def odd_model():
    return nn.Sequential(
        nn.Linear(4, 5, dtype=np.float64),
        Odd(),
        nn.Tanh(),
        Odd(),
        nn.Linear(5, 2, dtype=np.float64),
    )


def gradients_of(model):
    return {
        name: p.joined(p.grad)
        for name, p in model.named_parameters()
        if p.grad is not None
    }


def squares(model, group, x):
    """Return the result of a model for one rank's samples, and the whole gradients by
    name.
    """
    own = model(Tensor(np.array_split(x, group.size)[group.rank]))
    (own * own).sum().backward()
    return own.numpy(), gradients_of(model)


@examples(20)
@given(st.integers(2, 4), st.integers(0, 9))
def test_any_model_has_the_gradients_of_the_plain_one(num_ranks, seed):
    x = np.random.default_rng(seed).standard_normal((2 * num_ranks, 4))
    plain = odd_model().initialise(seed)
    whole = squares(plain, spawn(lambda group: group, 1)[0], x)
    found = spawn(
        lambda group: squares(nn.fully_shard(plain, group), group, x), num_ranks
    )
    assert np.allclose(np.concatenate([own for own, _ in found]), whole[0], rtol=CLOSE)
    for _, gradients in found:
        assert all(
            np.allclose(gradients[name], value, rtol=CLOSE, atol=CLOSE)
            for name, value in whole[1].items()
        )


def weight_side(group, schedule="zb-h2", **options):
    """Train a model of which W needs values of parameters, after those of other layers
    have been in their place.
    """
    grid = Grid(group, pipeline=2, data=2, **options)
    pipeline = Pipeline(
        odd_model(),
        grid,
        loss=nn.MSELoss(),
        schedule=schedule,
        num_microbatches=4,
        partition=[range(2), range(2, 5)],
    )
    x = np.random.default_rng(0).standard_normal((16, 4))
    loss = pipeline.step(x, x[:, :2])
    return float(loss), gradients_of(pipeline)


def test_values_that_w_needs_are_in_their_place():
    def differences():
        plain, shares = (
            spawn(weight_side, 4),
            spawn(lambda g: weight_side(g, fully_sharded=True), 4),
        )
        pairs = [
            (mine[1][name], value)
            for mine, other in zip(shares, plain)
            for name, value in other[1].items()
        ]
        return max(np.abs(mine - other).max(initial=0.0) for mine, other in pairs)

    assert differences() < CLOSE
    # the mutant
    with mock.patch.object(fully_sharded._Call, "_look_after", lambda *_: None):
        assert differences() > 1e-3


@pytest.mark.parametrize("schedule", ["1f1b", slowly("zb-h1")])
def test_nothing_reads_the_workspace_after_its_layer(schedule):
    """Emptied after each F and each gradient of a layer, it gives the same; the mutant
    does not fill it again.
    """
    real_passed_on, real_filled = (
        fully_sharded._Call.passed_on,
        fully_sharded._Call._filled,
    )

    def emptied(call, *given):
        result = real_passed_on(call, *given)
        for array in call._layer.workspace.arrays.values():
            array[:] = np.nan
        call._layer.workspace.holder = None
        return result

    make = {"pipeline": 2, "data": 2, "schedule": schedule, "fully_sharded": True}
    with mock.patch.object(fully_sharded._Call, "passed_on", emptied):
        for found in spawn(lambda group: train(on_grid(group, **make)), 4):
            assert_close(found, alone())
    with mock.patch.multiple(
        fully_sharded._Call,
        _filled=lambda call, gradient: gradient,
        fill=lambda call: None,
    ):
        assert real_filled is not fully_sharded._Call._filled
        with pytest.raises(AssertionError):
            assert_close(
                spawn(lambda group: train(on_grid(group, **make)), 4)[0], alone()
            )


def test_a_returned_parameter_keeps_its_values():
    model = nn.Sequential(Returned(), nn.Linear(5, 5, dtype=np.float64)).initialise(3)
    x = Tensor(np.ones((1, 1)))

    def compute(group):
        first = nn.fully_shard(model, group)
        rows = first[0](x)
        first[1](rows)
        return rows.numpy()

    assert all(same_bits(rows, model[0].rows.data) for rows in spawn(compute, 2))


# -- what it sends and keeps -----------------------------------------------------------


def test_a_layer_is_gathered_twice_and_scattered_once_for_each_microbatch():
    def count(group):
        calls, layer = Counter(), fully_sharded.FullySharded
        gather, scatter = layer.gather, layer.scatter
        pipeline = on_grid(group, data=2, fully_sharded=True)
        layers = sum(
            isinstance(part, layer) for part in pipeline._stages[0].module.modules()
        )

        def counted(name, real):
            return lambda *given: (calls.update([name]), real(*given))[1]

        for part in pipeline._stages[0].module.modules():
            if isinstance(part, layer):
                vars(part)["gather"] = counted("gather", gather.__get__(part))
                vars(part)["scatter"] = counted("scatter", scatter.__get__(part))
        pipeline.step(IDS, NEXT)
        return calls, layers

    for calls, layers in spawn(count, 2):
        assert calls == {
            "gather": 2 * layers * MICROBATCHES // 2,
            "scatter": layers * MICROBATCHES // 2,
        }


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_a_rank_sends_its_share_of_the_parameters_three_times(num_ranks):
    def sent(group):
        model, num_bytes, real = (
            nn.fully_shard(odd_model().initialise(0), group),
            [],
            group.isend,
        )
        with mock.patch.object(
            group,
            "isend",
            lambda array, *at, **by: (
                num_bytes.append(array.nbytes) or real(array, *at, **by)
            ),
        ):
            squares(model, group, np.ones((6, 4)))
            return sum(num_bytes), model.num_parameters * 8

    whole = odd_model().num_parameters * 8
    joined = spawn(sent, num_ranks)
    for num_bytes, own in joined:
        # `squares` joins each parameter's gradient once more.
        assert num_bytes == 3 * (num_ranks - 1) * own + (whole - own)


def test_a_rank_keeps_its_share_of_parameters_gradients_and_state_and_one_layer():
    def kept(group):
        pipeline = on_grid(group, data=4, fully_sharded=True)
        optimiser = optim.Adam(pipeline.parameters(), learning_rate=0.1)
        pipeline.step(IDS, NEXT)
        optimiser.step()
        (space,) = {
            id(part.workspace): part.workspace for part in sharded_in(pipeline)
        }.values()
        sizes = [
            sum(array.nbytes for array in arrays)
            for arrays in (
                [p.data for p in pipeline.parameters()],
                [p.grad for p in pipeline.parameters()],
                space.arrays.values(),
            )
        ]
        return (
            *sizes,
            optimiser.nbytes,
            max(
                sum(p.nbytes for p in layer.parameters()) for layer in language_model()
            ),
        )

    whole = sum(p.nbytes for p in language_model().parameters())
    found = spawn(kept, 4)
    assert sum(own for own, *_ in found) == whole
    for own, gradients, space, state, largest in found:
        assert (
            own == gradients
            and state == 2 * own
            and abs(own - whole / 4) < 200
            and largest <= space < 1.1 * largest
        )


def sharded_in(pipeline):
    modules = (
        part for stage in pipeline._stages.values() for part in stage.module.modules()
    )
    return [part for part in modules if isinstance(part, fully_sharded.FullySharded)]


@pytest.mark.slow
def test_a_microbatch_holds_the_bytes_of_whole_replicas():
    def measured(group, is_sharded):
        pipeline = on_grid(group, 2, 2, 1, fully_sharded=is_sharded)
        alone = pipeline.measure_memory(IDS, NEXT)
        pipeline.measures_memory = True
        pipeline.step(IDS, NEXT)
        return alone, pipeline.timeline().peak_memory

    whole, shares = (
        spawn(lambda group, one=one: measured(group, one), 4)[0]
        for one in (False, True)
    )
    assert whole == shares


# -- everything else holds -------------------------------------------------------------


def test_values_are_loaded_and_returned_as_a_whole_and_frozen_ones_stay():
    plain = language_model().initialise(5)
    plain[2].freeze()

    def load(group):
        pipeline = Pipeline(
            plain,
            Grid(group, data=2, fully_sharded=True),
            loss=nn.CrossEntropyLoss(),
            num_microbatches=2,
        )
        before = pipeline.state_dict()
        pipeline.load_state_dict({name: value + 1 for name, value in before.items()})
        after = pipeline.state_dict()
        optimiser = optim.SGD(pipeline.parameters(), learning_rate=0.1)
        pipeline.step(IDS, NEXT)
        optimiser.step()
        changed = {
            name.split(".")[0]
            for name, value in pipeline.state_dict().items()
            if not same_bits(value, after[name])
        }
        return before, after, changed

    for before, after, changed in spawn(load, 2):
        assert all(
            same_bits(before[name], value) for name, value in plain.state_dict().items()
        )
        assert all(same_bits(after[name], value + 1) for name, value in before.items())
        assert "2" not in changed and {"0", "1", "3"} <= changed


def test_a_shared_embedding_stays_whole_and_trains_as_ever():
    def tied():
        embedding = nn.Embedding(12, 8, dtype=np.float64)
        return nn.Sequential(
            embedding, nn.Linear(8, 8, dtype=np.float64), nn.Unembedding(embedding)
        )

    whole, shares = (
        spawn(lambda g, is_sharded=is_sharded: trained(g, is_sharded, tied, data=2), 2)
        for is_sharded in (False, True)
    )
    assert all(same(found, whole[0]) for found in shares)


def test_half_precision_adds_up_in_float32():
    def half():
        return nn.Sequential(
            nn.Embedding(12, 8, dtype=np.float16),
            nn.LayerNorm(8, dtype=np.float16),
            nn.Linear(8, 12, dtype=np.float16),
        )

    whole, shares = (
        spawn(lambda g, is_sharded=is_sharded: trained(g, is_sharded, half, data=2), 2)
        for is_sharded in (False, True)
    )
    assert all(np.allclose(found[0], whole[0][0], rtol=1e-3) for found in shares)


def test_a_recomputed_layer_is_gathered_when_it_is_computed_again():
    def recomputed():
        blocks = [
            nn.Recompute(nn.TransformerBlock(8, 2, dtype=np.float64)) for _ in range(2)
        ]
        return nn.Sequential(
            nn.Embedding(12, 8, dtype=np.float64),
            *blocks,
            nn.Linear(8, 12, dtype=np.float64),
        )

    whole, shares = (
        spawn(
            lambda g, is_sharded=is_sharded: trained(g, is_sharded, recomputed, data=2),
            2,
        )
        for is_sharded in (False, True)
    )
    assert all(same(found, whole[0]) for found in shares)


# -- mistakes --------------------------------------------------------------------------


class Inside(nn.Module):
    def __init__(self):
        self.layer = nn.Recompute(nn.Linear(2, 2))


class Normed(optim.Optimiser):
    """Looks at a parameter as a whole."""

    def _update(self, data, gradient, state, group):
        data -= gradient / np.linalg.norm(gradient)


def on_shares(make):
    def attempt(group):
        make(Grid(group, data=2, fully_sharded=True))

    return attempt


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda grid: nn.fully_shard(Inside(), grid.data),
            "put nn.Recompute around the layer",
        ),
        (
            lambda grid: Pipeline(language_model(), grid, schedule="pipedream"),
            "choose a schedule with a flush",
        ),
        (
            lambda grid: Pipeline(language_model(), grid, schedule="auto"),
            "pass the name of a schedule",
        ),
        (
            lambda grid: Pipeline(
                Plan(language_model(), num_ranks=2, replicas=2), grid
            ),
            "make the plan from nn.fully_shard",
        ),
        (
            lambda grid: Pipeline(language_model(), grid).sharded(optim.Adam),
            "without sharded",
        ),
        (
            lambda grid: nn.fully_shard(language_model(), grid),
            "such as grid.data; this is of type Grid",
        ),
        (
            lambda grid: nn.FullySharded(nn.Linear(2, 2), grid.data),
            "nn.fully_shard makes both",
        ),
        (
            lambda grid: nn.parallelise(language_model(), 2),
            "such as grid.tensor; this is of type int",
        ),
        (
            lambda grid: Grid(2, data=2),
            "Grid takes the group of all ranks; this is of type int",
        ),
        (
            lambda grid: Grid(grid.group, data=2, fully_sharded="yes"),
            "expected True, False or .stages.",
        ),
        (
            lambda grid: Normed(Pipeline(language_model(), grid).parameters()),
            "Normed may read a parameter",
        ),
    ],
)
def test_what_shares_cannot_do_is_refused(make, words):
    with pytest.raises(ArgumentError, match=words):
        spawn(on_shares(make), 2)


def test_replicas_of_a_schedules_own_are_refused():
    words = (
        "chimera, 2 replicas is on 4 ranks, but .* 2 shards: .* do not work with a "
        "schedule that has replicas itself"
    )
    with pytest.raises(ArgumentError, match=words):
        grid = {"pipeline": 2, "data": 2, "fully_sharded": True}
        spawn(
            lambda group: Pipeline(
                language_model(), Grid(group, **grid), schedule="chimera"
            ),
            4,
        )
