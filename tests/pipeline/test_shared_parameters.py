"""Parameters that layers on several ranks share, such as a tied embedding: the same
bits as in one process.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Pipeline, Tensor, nn, optim, spawn
from minipipe.core.comm.host import limit_blas_threads
from minipipe.errors import ParameterError
from minipipe.pipeline import tied
from minipipe.pipeline.tied import SharedParameters
from minipipe.testing import check_same_as_one_process, one_process_step, same_bits
from tests.launch import mpirun, needs_mpi, slowly
from tests.pipeline.tied_models import (
    SYMBOLS,
    language_model,
    text,
    train_alone,
    train_on,
)
from tests.strategies import NAMES, batch, build, examples, split_backward, v_shaped

MICROBATCHES = 4


class Alone:
    """What one process computes, once for each number of microbatches and each way."""

    def __init__(self) -> None:
        self._found: dict[Any, Any] = {}

    def __call__(
        self, num_microbatches: int, **options: Any
    ) -> tuple[list[float], dict[str, np.ndarray]]:
        key = num_microbatches, tuple(options.items())
        if key not in self._found:
            self._found[key] = train_alone(num_microbatches, **options)
        return self._found[key]


alone = Alone()


def schedule_of(name: str, num_ranks: int) -> Any:
    return (
        v_shaped(num_ranks, MICROBATCHES)
        if name == "v-shaped"
        else build(name, num_ranks, MICROBATCHES)
    )


def check_trained(
    by_rank: list[Any], expected: tuple[list[float], dict[str, np.ndarray]]
) -> None:
    """Compare losses, and the values on every rank and of the whole, with one
    process.
    """
    losses, state = expected
    for rank, (rank_losses, own, whole) in enumerate(by_rank):
        assert rank_losses == losses, (
            f"the losses on rank {rank} differ from one process"
        )
        assert whole.keys() == state.keys()
        for values in (own, whole):
            for name, value in values.items():
                assert same_bits(value, state[name]), (
                    f"{name} on rank {rank} differs from one process"
                )


# -- a tied language model -------------------------------------------------------------


@pytest.mark.parametrize("num_ranks", [slowly(1), slowly(2), 3, slowly(4)])
@pytest.mark.parametrize("name", [*map(slowly, NAMES), "v-shaped"])
def test_a_tied_model_trains_as_in_one_process_and_all_copies_stay_equal(
    name, num_ranks
):
    schedule = schedule_of(name, num_ranks)
    by_rank = spawn(lambda group: train_on(group, schedule), num_ranks)
    check_trained(by_rank, alone(schedule.num_microbatches))
    holders = {schedule.placement[0], schedule.placement[-1]}
    assert [
        rank for rank, (_, own, _) in enumerate(by_rank) if "0.weight" in own
    ] == sorted(holders)


@pytest.mark.parametrize("num_ranks", [slowly(1), 2, slowly(3)])
@pytest.mark.parametrize("name", [*map(slowly, ("1f1b", "zb-h1")), "zb-v"])
def test_so_it_does_where_it_is_recomputed_stage_by_stage(name, num_ranks):
    schedule = schedule_of(name, num_ranks)
    by_rank = spawn(lambda group: train_on(group, schedule, recompute=True), num_ranks)
    check_trained(by_rank, alone(schedule.num_microbatches))


@pytest.mark.parametrize("name", [slowly("1f1b"), "interleaved-zb"])
def test_so_it_does_where_layers_that_share_are_recomputed_one_by_one(name):
    schedule = schedule_of(name, 2)
    by_rank = spawn(lambda group: train_on(group, schedule, wrap=nn.Recompute), 2)
    check_trained(by_rank, alone(schedule.num_microbatches, wrap=nn.Recompute))


@pytest.mark.parametrize("name", ["1f1b", *map(slowly, ("zb-h2", "zb-v"))])
def test_so_it_does_with_each_backward_in_halves(name):
    schedule = split_backward(schedule_of(name, 3), delay=3)
    check_trained(
        spawn(lambda group: train_on(group, schedule), 3),
        alone(schedule.num_microbatches),
    )


@pytest.mark.slow
@needs_mpi
def test_so_it_does_over_mpirun():
    done = mpirun(3, "-m", "tests.pipeline.tied_models", limit=120)
    assert done.code == 0, done.err
    losses, state = alone(MICROBATCHES)
    assert (
        done.out.splitlines()
        == [repr((losses, float(np.abs(state["0.weight"]).sum())))] * 3
    )


def test_the_gradient_has_a_part_from_both_ends_and_neither_is_small():
    # Guards the tests above: were one of them nothing, no exchange would be needed.
    model = language_model().initialise(0)
    one_process_step(model, nn.CrossEntropyLoss(), *text(0), 4)
    tied = model[0].weight
    parts = [np.abs(tied.grad_of_use(use)).max() for use in (0, 1)]
    assert min(parts) > 1e-3 and same_bits(
        tied.grad, tied.grad_of_use(0) + tied.grad_of_use(1)
    )


# -- any model, any cut ----------------------------------------------------------------


class Half(nn.Module):
    """Uses only a row of its weight, or nothing at all."""

    def __init__(self, weight: nn.Parameter, is_used: bool) -> None:
        self.weight, self.is_used = weight, is_used

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight[1] if self.is_used else x


@st.composite
def models_that_share(draw):
    """Draw a model of six layers among which a matrix goes about: as it is, transposed,
    twice in one, or unused.
    """
    weight = nn.Parameter((4, 4), nn.initialisers.normal(0.5))
    choices = {
        "embedding-like": lambda: nn.Residual(_linear_with(weight)),
        "transposed": lambda: nn.Unembedding(_embedding_with(weight)),
        "used twice": lambda: nn.Sequential(
            _linear_with(weight), nn.Tanh(), _linear_with(weight)
        ),
        "a row": lambda: Half(weight, is_used=True),
        "unused": lambda: Half(weight, is_used=False),
        "its own": lambda: nn.Linear(4, 4),
        "none": nn.Tanh,
        "recomputed": lambda: nn.Recompute(
            nn.Sequential(_linear_with(weight), nn.Dropout(0.2))
        ),
    }
    layers = [
        choices[name]()
        for name in draw(
            st.lists(st.sampled_from(list(choices)), min_size=6, max_size=6)
        )
    ]
    return nn.Sequential(*layers, nn.Linear(4, 2))


def _linear_with(weight: nn.Parameter) -> nn.Linear:
    layer = nn.Linear(4, 4)
    layer.weight = weight
    return layer


def _embedding_with(weight: nn.Parameter) -> nn.Embedding:
    embedding = nn.Embedding(4, 4)
    embedding.weight = weight
    return embedding


@examples(60)
@given(
    models_that_share(),
    st.sampled_from([*NAMES, "v-shaped"]),
    st.integers(1, 3),
    st.permutations(range(1, 7)),
    st.booleans(),
)
def test_whatever_layers_share_a_parameter_its_gradient_is_that_of_one_process(
    model, name, num_ranks, cuts, recompute
):
    schedule = schedule_of(name, num_ranks)
    ends = [0, *sorted(cuts[: schedule.num_stages - 1]), 7]
    partition = [range(a, b) for a, b in zip(ends, ends[1:])]
    arguments = model, nn.MSELoss(), *batch(9, 4), schedule, 2, partition, recompute
    check_same_as_one_process(*arguments)


def three_times() -> tuple[nn.Sequential, list[range]]:
    """Return a model whose layers 0, 2 and 4 share, and a partition that puts them on
    three ranks.
    """
    tied = nn.Linear(4, 4)
    return nn.Sequential(tied, nn.Tanh(), tied, nn.Tanh(), tied, nn.Linear(4, 2)), [
        range(2),
        range(2, 4),
        range(4, 6),
    ]


def test_three_layers_on_three_ranks_add_up_in_the_order_of_layers_on_every_rank():
    model, partition = three_times()
    check_same_as_one_process(
        model, nn.MSELoss(), *batch(40, 4), build("1f1b", 3, 4), 0, partition
    )


def test_a_parameter_that_one_rank_does_not_use_gets_the_gradient_of_the_others_as_its_own():
    weight = nn.Parameter((4, 4), nn.initialisers.normal(0.5))
    layers = Half(weight, is_used=False), Half(weight, is_used=True), nn.Linear(4, 2)
    model, (inputs, targets) = nn.Sequential(*layers).initialise(0), batch(8, 4)

    def gradients(group: Any) -> tuple[np.ndarray, np.ndarray]:
        pipeline = Pipeline(
            model,
            group,
            loss=nn.MSELoss(),
            num_microbatches=2,
            partition=[range(1), range(1, 3)],
        )
        pipeline.step(inputs, targets)
        gradient = dict(pipeline.named_parameters())["0.weight"].grad
        before = gradient.copy()
        # in place, as clipping does: each rank has an array that it may write to, and
        # no other has
        gradient *= 2
        return before, gradient

    with limit_blas_threads(1):
        expected = one_process_step(
            copy.deepcopy(model), nn.MSELoss(), inputs, targets, 2
        ).gradients["0.weight"]
    for before, doubled in spawn(gradients, 2):
        assert same_bits(before, expected) and same_bits(doubled, 2 * expected)


@pytest.mark.filterwarnings("ignore:The first step left no gradient")
def test_a_parameter_that_nobody_uses_has_no_gradient_anywhere():
    weight = nn.Parameter((4, 4), nn.initialisers.normal(0.5))
    model = nn.Sequential(
        Half(weight, is_used=False), Half(weight, is_used=False), nn.Linear(4, 2)
    )
    check_same_as_one_process(
        model,
        nn.MSELoss(),
        *batch(8, 4),
        build("gpipe", 2, 2),
        0,
        partition=[range(1), range(1, 3)],
    )


# -- one parameter, not several --------------------------------------------------------


def test_a_shared_parameter_counts_once():
    tied, untied = language_model(), language_model(is_tied=False)
    assert untied.num_parameters - tied.num_parameters == SYMBOLS * 8
    assert [name for name, p in tied.named_parameters() if p is tied[0].weight] == [
        "0.weight"
    ]


@pytest.mark.parametrize("name", ["1f1b", "zb-v"])
def test_a_rank_counts_it_once_also_where_both_its_layers_are(name):
    def names(group: Any) -> list[str]:
        pipeline = Pipeline(
            language_model(),
            group,
            loss=nn.CrossEntropyLoss(),
            schedule=name,
            num_microbatches=4,
        )
        assert len({id(p) for p in pipeline.parameters()}) == len(
            list(pipeline.parameters())
        )
        # which refuses a parameter that stands twice
        optim.AdamW(pipeline.parameters(), 0.1)
        return [name for name, _ in pipeline.named_parameters()]

    by_rank = spawn(names, 2)
    assert [("0.weight" in own) for own in by_rank] == (
        [True, True] if name == "1f1b" else [True, False]
    )
    assert set().union(*by_rank) == {
        name for name, _ in language_model().named_parameters()
    }


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "interleaved-1f1b"])
def test_a_state_goes_out_with_one_copy_and_in_to_all_of_them(name):
    state = {
        key: value + 1
        for key, value in language_model().initialise(7).state_dict().items()
    }

    def load_and_read(
        group: Any,
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        pipeline = Pipeline(
            language_model(),
            group,
            loss=nn.CrossEntropyLoss(),
            schedule=name,
            num_microbatches=4,
        )
        pipeline.load_state_dict(state)
        return {
            key: p.numpy() for key, p in pipeline.named_parameters()
        }, pipeline.state_dict()

    for own, whole in spawn(load_and_read, 2):
        assert whole.keys() == state.keys()
        assert all(
            same_bits(value, state[key]) for key, value in {**whole, **own}.items()
        )


def test_a_state_of_an_untied_model_does_not_fit():
    state = language_model(is_tied=False).initialise(0).state_dict()

    def load(group: Any) -> None:
        pipeline = Pipeline(
            language_model(), group, loss=nn.CrossEntropyLoss(), num_microbatches=4
        )
        pipeline.load_state_dict(state)

    with pytest.raises(ParameterError) as caught:
        spawn(load, 2)
    assert caught.value.code == "unexpected"


def test_a_trained_state_goes_on_in_one_process_as_it_would_have_gone_on():
    schedule = build("1f1b", 2, MICROBATCHES)
    trained = spawn(lambda group: train_on(group, schedule), 2)[0][2]
    model = language_model().initialise(0)
    model.load_state_dict(trained)

    def next_loss(group: Any) -> float:
        pipeline = Pipeline(
            language_model(), group, loss=nn.CrossEntropyLoss(), num_microbatches=4
        )
        pipeline.load_state_dict(trained)
        return pipeline.step(*text(9))

    with limit_blas_threads(1):
        expected = one_process_step(model, nn.CrossEntropyLoss(), *text(9), 4).loss
    assert spawn(next_loss, 2) == [expected] * 2


def test_a_step_overwrites_shared_gradients_and_an_evaluation_leaves_them_alone():
    def gradients(group: Any) -> list[bytes]:
        pipeline = Pipeline(
            language_model(), group, loss=nn.CrossEntropyLoss(), num_microbatches=4
        ).eval()
        tied, found = dict(pipeline.named_parameters())["0.weight"], []
        for call in (pipeline.step, pipeline.evaluate, pipeline.step):
            call(*text(0))
            found.append(tied.grad.tobytes())
        return found

    by_rank = spawn(gradients, 2)
    assert len({gradient for found in by_rank for gradient in found}) == 1


# -- mutants ---------------------------------------------------------------------------


def check_is_noticed() -> None:
    model, partition = three_times()
    with pytest.raises(
        AssertionError, match="the gradient of 0.weight differs from one process"
    ):
        check_same_as_one_process(
            model, nn.MSELoss(), *batch(40, 4), build("1f1b", 3, 4), 0, partition
        )


def test_a_sum_in_another_order_is_noticed(monkeypatch):
    once = SharedParameters.__init__

    def backwards(self: SharedParameters, *arguments: Any) -> None:
        once(self, *arguments)
        self._users = {
            name: dict(reversed(ranks.items())) for name, ranks in self._users.items()
        }

    monkeypatch.setattr(SharedParameters, "__init__", backwards)
    check_is_noticed()


def test_a_gradient_that_counts_twice_is_noticed(monkeypatch):
    once = tied._message
    monkeypatch.setattr(tied, "_message", lambda gradient: 2 * once(gradient))
    check_is_noticed()


def test_no_exchange_at_all_is_noticed(monkeypatch):
    monkeypatch.setattr(
        SharedParameters, "exchange_gradients", lambda self, *arguments: None
    )
    check_is_noticed()


def test_a_sum_over_microbatches_and_not_over_uses_first_is_noticed(monkeypatch):
    """One process adds up use by use for the sake of the ranks; as it comes would be
    another order.
    """
    model, (inputs, targets) = three_times()[0], batch(40, 4)
    with limit_blas_threads(1):
        right = one_process_step(
            copy.deepcopy(model).initialise(0), nn.MSELoss(), inputs, targets, 4
        ).gradients
        monkeypatch.setattr("minipipe.core.nn.sequential._tied", list)
        untied = three_times()[0].initialise(0)
        wrong = one_process_step(untied, nn.MSELoss(), inputs, targets, 4).gradients
    assert not same_bits(right["0.weight"], wrong["0.weight"])
    np.testing.assert_allclose(
        right["0.weight"], wrong["0.weight"], rtol=1e-4, atol=1e-6
    )
    assert same_bits(right["5.weight"], wrong["5.weight"])


X = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)


Y = np.random.default_rng(1).standard_normal((8, 3)).astype(np.float32)


def test_a_weight_that_is_shared_after_the_first_call_adds_up_as_in_a_pipeline():
    """What layers share was looked up at the first call, once for all."""
    first, last = nn.Linear(6, 6), nn.Linear(6, 6)
    model = nn.Sequential(first, nn.Tanh(), last, nn.Linear(6, 3)).initialise(0)
    model(X)
    last.weight = first.weight
    check_same_as_one_process(model, nn.MSELoss(), X, Y, build("1f1b", 2, 4))


def test_copies_of_a_shared_parameter_begin_with_the_values_of_the_first_rank():
    """Values that each rank had computed for itself were kept, and the copies went
    apart without a word.
    """

    def weights(group):
        shared = nn.Linear(6, 6).initialise(group.rank)
        model = nn.Sequential(shared, nn.Tanh(), shared, nn.Linear(6, 3).initialise(7))
        options = {
            "num_microbatches": 2,
            "partition": [range(2), range(2, 4)],
            "check_agreement": False,
        }
        # which refuses such values otherwise
        pipeline = Pipeline(model, group, loss=nn.MSELoss(), **options)
        optimiser = optim.AdamW(pipeline.parameters())
        for _ in range(3):
            pipeline.step(X, Y)
            optimiser.step()
        return dict(pipeline.named_parameters())["0.weight"].data

    first, second = spawn(weights, 2)
    assert same_bits(first, second)


def test_one_process_and_a_copy_agree_about_what_is_shared():
    shared = nn.Linear(6, 6)
    model = nn.Sequential(shared, nn.Tanh(), shared, nn.Linear(6, 3)).initialise(0)
    one = one_process_step(model, nn.MSELoss(), X, Y, 4)
    other = one_process_step(copy.deepcopy(model), nn.MSELoss(), X, Y, 4)
    assert all(
        same_bits(one.gradients[name], other.gradients[name]) for name in one.gradients
    )
