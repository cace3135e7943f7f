"""Random numbers depend on where the computation stands, (seed, layer, step,
microbatch, draw), and on nothing else.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Tensor, functional, nn, no_grad, random_key
from minipipe import functional as F
from minipipe.core.autograd.modes import RandomKey, at, current_place, next_key
from minipipe.errors import TensorError
from minipipe.testing import check_same_as_one_process
from tests.strategies import build, examples


def mask(size: int = 64) -> bytes:
    """Return which of some elements a dropout keeps here."""
    return (F.dropout(Tensor(np.ones(size, np.float32)), 0.5).numpy() > 0).tobytes()


class Draws(nn.Module):
    """Notes the masks that are drawn where it stands, and hands its input on."""

    def __init__(self, masks: list[bytes], num_draws: int = 1) -> None:
        self.masks, self.num_draws = masks, num_draws

    def forward(self, x: Tensor) -> Tensor:
        self.masks += [mask() for _ in range(self.num_draws)]
        return x


class Fails(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        mask()
        raise TensorError("shape", "on purpose")


X = Tensor(np.ones(1, np.float32))


# -- the key ---------------------------------------------------------------------------

numbers = st.integers(0, 5) | st.integers(0, 2**40)
places = st.tuples(
    numbers, st.none() | st.integers(0, 6), numbers, numbers, st.integers(1, 4)
)


def mask_at(place: tuple[int, int | None, int, int, int]) -> bytes:
    """Return the mask of (seed, layer, step, microbatch, number of the draw)."""
    seed, layer, step, microbatch, draw = place
    with at(RandomKey(seed, step, microbatch, layer)):
        return [mask() for _ in range(draw)][-1]


@examples(100)
@given(places, places)
def test_two_masks_are_equal_if_and_only_if_all_five_numbers_are(one, other):
    assert mask_at(one) == mask_at(one)
    assert (mask_at(one) == mask_at(other)) == (one == other)


each_number = pytest.mark.parametrize(
    "number", range(5), ids=["seed", "layer", "step", "microbatch", "draw"]
)


def num_masks(number: int) -> int:
    """Return how many masks there are where one of the five numbers is 1 to 8."""
    place = [3, 2, 7, 1, 1]
    masks = set()
    for value in range(1, 9):
        place[number] = value
        masks.add(mask_at(tuple(place)))
    return len(masks)


@each_number
def test_each_of_the_five_numbers_alone_changes_the_mask(number):
    assert num_masks(number) == 8


@each_number
def test_a_key_without_one_of_the_numbers_would_be_noticed(number, monkeypatch):
    def without() -> tuple[int, ...]:
        return tuple(0 if i == number else part for i, part in enumerate(next_key()))

    monkeypatch.setattr(
        sys.modules["minipipe.functional.dropping"], "next_key", without
    )
    assert num_masks(number) == 1


def test_the_key_is_the_five_numbers_and_a_layer_counts_from_one():
    with random_key(3, step=7, microbatch=2):
        assert [next_key(), next_key()] == [(3, 0, 7, 2, 1), (3, 0, 7, 2, 2)]
    with at(RandomKey(3, 7, 2, layer=0)):
        assert next_key() == (3, 1, 7, 2, 1)


def test_seeds_of_any_size_will_do():
    # the generator takes 64 bits
    assert mask_at((2**64 + 5, None, 0, 0, 1)) == mask_at((5, None, 0, 0, 1))
    large = [0, 2**63, 2**63 + 1, 2**64 - 1]
    assert len({mask_at((seed, None, 0, 0, 1)) for seed in large}) == 4


@pytest.mark.parametrize("name", ["seed", "step", "microbatch"])
def test_a_negative_number_is_refused_by_its_name(name):
    with pytest.raises(ValueError, match=f"{name} is -1"):
        random_key(**{"seed": 0, name: -1})


# -- layers ----------------------------------------------------------------------------


def test_each_layer_of_a_sequence_draws_its_own_and_a_layer_twice_draws_twice():
    masks: list[bytes] = []
    with random_key(0):
        nn.Sequential(Draws(masks), Draws(masks, 2), Draws(masks))(X)
    assert len(set(masks)) == 4
    assert masks == [
        mask_at(place)
        for place in [
            (0, 0, 0, 0, 1),
            (0, 1, 0, 0, 1),
            (0, 1, 0, 0, 2),
            (0, 2, 0, 0, 1),
        ]
    ]


def test_the_same_dropout_used_twice_in_a_layer_drops_other_elements_the_second_time():
    class Twice(nn.Module):
        def __init__(self) -> None:
            self.dropout = nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            return F.stack([self.dropout(x), self.dropout(x)])

    with random_key(0):
        first, second = nn.Sequential(Twice())(Tensor(np.ones(64, np.float32)))
    assert first.numpy().tobytes() != second.numpy().tobytes()


def test_the_same_layer_in_two_places_of_a_sequence_draws_two_masks():
    masks: list[bytes] = []
    layer = Draws(masks)
    with random_key(0):
        nn.Sequential(layer, nn.Identity(), layer)(X)
    assert masks == [mask_at((0, 0, 0, 0, 1)), mask_at((0, 2, 0, 0, 1))]


@pytest.mark.parametrize(
    "wrap", [lambda sequence: sequence, nn.Recompute], ids=["", "recompute"]
)
def test_the_layers_of_a_nested_sequence_have_numbers_of_their_own_recomputed_or_not(
    wrap,
):
    """A pipeline may cut between them."""
    masks: list[bytes] = []
    inner = wrap(
        nn.Sequential(
            Draws(masks), nn.Sequential(Draws(masks)), nn.Residual(Draws(masks))
        )
    )
    with random_key(0):
        nn.Sequential(nn.Identity(), inner, Draws(masks))(X)
    assert masks == [mask_at((0, layer, 0, 0, 1)) for layer in (1, 2, 3, 4)]


def test_a_sequence_inside_a_layer_counts_on_in_that_layer():
    """No cut divides it, so its layers have no numbers."""
    masks: list[bytes] = []
    inner = nn.Residual(
        nn.Sequential(
            Draws(masks), nn.Sequential(Draws(masks)), nn.Residual(Draws(masks))
        )
    )
    with random_key(0):
        nn.Sequential(nn.Identity(), inner, Draws(masks))(X)
    assert masks == [mask_at((0, 1, 0, 0, draw)) for draw in (1, 2, 3)] + [
        mask_at((0, 2, 0, 0, 1))
    ]


@pytest.mark.parametrize("cut", range(4))
def test_a_sequence_that_was_cut_draws_what_the_whole_would(cut):
    def drawn(stages: Callable[[list[bytes]], list[nn.Sequential]]) -> list[bytes]:
        masks: list[bytes] = []
        for stage in stages(masks):
            with random_key(4, 2):
                stage(X)
        return masks

    def parts(masks: list[bytes]) -> list[nn.Sequential]:
        layers = [Draws(masks) for _ in range(3)]
        first, second = nn.Sequential(*layers[:cut]), nn.Sequential(*layers[cut:])
        second.first_place = cut
        return [first, second]

    assert drawn(parts) == drawn(
        lambda masks: [nn.Sequential(*(Draws(masks) for _ in range(3)))]
    )


# -- within one key everything draws its own -------------------------------------------


def test_two_sequences_under_one_key_draw_different_masks():
    """The story: each entered its layer 0 and began to count there anew, so an encoder
    and a decoder, or the same model called for two halves of a batch, dropped the very
    same elements."""
    masks: list[bytes] = []
    with random_key(0):
        nn.Sequential(Draws(masks))(X)
        nn.Sequential(Draws(masks))(X)
    assert len(set(masks)) == 2


def test_what_is_drawn_before_and_after_a_sequence_differs():
    masks: list[bytes] = []
    draws = Draws(masks)
    with random_key(0):
        draws(X)
        nn.Sequential(draws)(X)
        draws(X)
    assert len(set(masks)) == 3


def test_an_inner_key_holds_inside_its_block_only():
    with random_key(1):
        first = mask()
        with random_key(2):
            assert mask() == mask_at((2, None, 0, 0, 1))
        second = mask()
    assert [first, second] == [mask_at((1, None, 0, 0, 1)), mask_at((1, None, 0, 0, 2))]


# -- without a key ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "module",
    [nn.Dropout(0.5), nn.Sequential(nn.Identity(), nn.Dropout(0.5))],
    ids=["", "layers"],
)
def test_dropout_without_a_key_raises_no_random_key_and_says_what_to_do(module):
    with pytest.raises(TensorError, match=r"random_key\(seed, step\)") as caught:
        module(X)
    assert caught.value.code == "missing"
    assert (current_place().seed, current_place().layer) == (None, None)


def test_in_evaluation_nothing_is_drawn_and_no_key_is_needed():
    masks: list[bytes] = []
    dropout = nn.Dropout(0.5).eval()
    assert dropout(X) is X
    with random_key(0):
        nn.Sequential(dropout, nn.Residual(dropout)).eval()(X)
        masks.append(mask())
    # outside of layers, after one sequence
    assert masks == [mask_at((0, 2**32 - 1, 0, 0, 1))]


def test_probability_zero_draws_nothing():
    with random_key(0):
        nn.Dropout(0)(X)
        assert mask() == mask_at((0, None, 0, 0, 1))
    nn.Dropout(0)(X)


def test_no_grad_draws_the_same_masks():
    with random_key(0), no_grad():
        assert mask() == mask_at((0, None, 0, 0, 1))


# -- the place is left as it was found -------------------------------------------------


@pytest.mark.parametrize("has_key", [False, True])
def test_a_layer_that_raises_leaves_the_place_clean(has_key):
    shared = nn.Linear(1, 1)
    model = nn.Sequential(
        nn.Identity(), shared, nn.Sequential(Fails()), shared
    ).initialise(0)
    with at(RandomKey(seed=0) if has_key else RandomKey()):
        with pytest.raises(TensorError):
            model(Tensor(np.ones((1, 1), np.float32)))
        place = current_place()
        assert place.layer is None
        shared.weight.note_change()
        F.total(shared(Tensor(np.ones((1, 1), np.float32)))).backward()
        assert (
            shared.weight.grad_of_use(0) is not None
            and shared.weight.grad_of_use(1) is None
        )
    assert (current_place().seed, current_place().layer) == (None, None)


def test_a_key_ends_with_its_block_also_by_an_exception():
    with pytest.raises(ZeroDivisionError), random_key(0):
        raise ZeroDivisionError
    assert (current_place().seed, current_place().layer) == (None, None)


def test_threads_that_draw_at_the_same_time_do_not_disturb_each_other():
    num_threads, num_draws = 4, 20
    drawn: list[list[bytes]] = [[] for _ in range(num_threads)]
    barrier = threading.Barrier(num_threads)

    def draw(seed: int) -> None:
        model = nn.Sequential(nn.Identity(), Draws(drawn[seed]))
        with random_key(seed, step=1):
            for _ in range(num_draws):
                barrier.wait()
                model(X)

    threads = [
        threading.Thread(target=draw, args=[seed]) for seed in range(num_threads)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, masks in enumerate(drawn):
        assert masks == [
            mask_at((seed, (call << 32) + 1, 1, 0, 1)) for call in range(num_draws)
        ]


def test_a_thread_starts_outside_the_key_of_the_one_that_started_it():
    found: list[RandomKey | None] = [RandomKey()]
    with random_key(0):
        thread = threading.Thread(target=lambda: found.append(current_place().seed))
        thread.start()
        thread.join()
    assert found[-1] is None


# -- what a mask looks like ------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_a_mask_drops_its_share_and_keeps_the_mean_and_the_dtype(probability, dtype):
    n = 100_000
    x = Tensor(np.ones(n, dtype), requires_grad=True)
    with random_key(0):
        y = F.dropout(x, probability)
    y.sum().backward()
    assert y.dtype == x.grad.dtype == dtype
    # the gradient of 1 goes through the same mask
    np.testing.assert_array_equal(x.grad, y.numpy())
    assert set(np.unique(y.numpy())) == {dtype(0), dtype(1 / (1 - probability))}
    deviation = np.sqrt(n * probability * (1 - probability))
    assert abs((y.numpy() == 0).sum() - n * probability) < 5 * deviation
    assert y.numpy().mean() == pytest.approx(
        1, abs=5 * deviation / n / (1 - probability)
    )


def test_masks_of_neighbouring_places_agree_in_half_of_the_elements():
    # Were the counter of one the start of the other, one mask would be the other,
    # shifted.
    n = 20_000
    around = [
        (5, 1, 3, 1, 1),
        (6, 1, 3, 1, 1),
        (5, 2, 3, 1, 1),
        (5, 1, 4, 1, 1),
        (5, 1, 3, 2, 1),
        (5, 1, 3, 1, 2),
    ]
    masks = []
    for seed, layer, step, microbatch, draw in around:
        with at(RandomKey(seed, step, microbatch, layer)):
            masks.append([np.frombuffer(mask(n), bool) for _ in range(draw)][-1])
    for i, one in enumerate(masks):
        for other in masks[:i]:
            for shift in (0, 1, 4):
                assert abs(
                    (one == np.roll(other, shift)).mean() - 0.5
                ) < 5 * 0.5 / np.sqrt(n)
    assert abs(np.mean(masks[0][1:] == masks[0][:-1]) - 0.5) < 5 * 0.5 / np.sqrt(n)


INPUTS = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
TARGETS = np.random.default_rng(1).standard_normal((8, 3)).astype(np.float32)


class NoisyLoss:
    """A loss with dropout in a sequence of its own."""

    def __init__(self):
        self.noise = nn.Sequential(nn.Dropout(0.5))

    def __call__(self, outputs, targets):
        return functional.mean_squared_error(self.noise(outputs), targets)


@pytest.mark.parametrize("name", ["1f1b", "zb-v"])
def test_dropout_in_a_loss_draws_the_same_wherever_the_model_is_cut(name):
    """It went on counting where the model's layers had stopped, and those were on other
    ranks.
    """
    model = nn.Sequential(
        nn.Dropout(0.5),
        nn.Linear(6, 5),
        nn.Dropout(0.5),
        nn.Linear(5, 4),
        nn.Linear(4, 3),
    )
    for ranks in (1, 2):
        check_same_as_one_process(
            model, NoisyLoss(), INPUTS, TARGETS, build(name, ranks, 4)
        )


def test_a_part_of_a_model_draws_as_that_part_does_in_one_process():
    """The pipeline counted the layers of a slice from 0."""
    whole = nn.Sequential(
        nn.Linear(6, 6),
        nn.Linear(6, 6),
        nn.Dropout(0.5),
        nn.Linear(6, 6),
        nn.Linear(6, 3),
    )
    check_same_as_one_process(
        whole[1:], nn.MSELoss(), INPUTS, TARGETS, build("1f1b", 2, 4)
    )
    assert [
        whole[1:][1:].first_layer,
        whole[::-1].first_layer,
        whole[2:4].first_layer,
    ] == [2, 0, 2]
    with random_key(0):
        parts = whole[3:](whole[:3].initialise(0)(INPUTS)).numpy()
    assert parts.shape == (8, 3)
