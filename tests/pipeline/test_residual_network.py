"""A small residual network of convolutions, cut anywhere: the same bits as one
process.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Schedule, nn
from minipipe.testing import check_same_as_one_process, one_process_step
from tests.strategies import build, examples, split_backward

NAMES = ["gpipe", "1f1b", "zb-h1", "interleaved-1f1b", "zb-v"]


def residual_network() -> nn.Sequential:
    """Return ten layers, from images of shape (n, 1, 8, 8) to scores of shape (n,
    3).
    """

    def block() -> nn.Residual:
        return nn.Residual(
            nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1)
        )

    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        block(),
        nn.ReLU(),
        nn.MaxPool2d(2),
        block(),
        block(),
        nn.MaxPool2d(3, stride=1),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


def images(num_samples: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return images of shape (n, 1, 8, 8) in float32, and labels of shape (n,), 0 to
    2.
    """
    generator = np.random.default_rng(seed)
    return generator.standard_normal((num_samples, 1, 8, 8)).astype(
        np.float32
    ), generator.integers(0, 3, num_samples)


@st.composite
def cut_networks(draw):
    """Draw schedule, partition of the ten layers, and number of samples."""
    num_ranks = draw(st.integers(1, 4))
    schedule = build(
        draw(st.sampled_from(NAMES)), num_ranks, draw(st.integers(1, 5)), chunks=2
    )
    if draw(st.booleans()):
        schedule = split_backward(schedule, draw(st.integers(0, 4)))
    cuts = st.permutations(range(1, 10)).map(
        lambda order: sorted(order[: schedule.num_stages - 1])
    )
    ends = [0, *draw(cuts), 10]
    samples = draw(
        st.integers(schedule.num_microbatches, 3 * schedule.num_microbatches)
    )
    return schedule, [range(a, b) for a, b in zip(ends, ends[1:])], samples


@examples(40)
@given(cut_networks())
def test_a_residual_network_cut_anywhere_has_the_gradients_of_one_process_bit_for_bit(
    case,
):
    schedule, partition, num_samples = case
    inputs, labels = images(num_samples)
    check_same_as_one_process(
        residual_network(),
        nn.CrossEntropyLoss(),
        inputs,
        labels,
        schedule,
        seed=1,
        partition=partition,
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_residual_network_runs_under_every_kind_of_schedule(name):
    inputs, labels = images(9)
    check_same_as_one_process(
        residual_network(),
        nn.CrossEntropyLoss(),
        inputs,
        labels,
        build(name, 3, 4, chunks=2),
    )


def test_gradients_of_a_convolution_added_in_another_order_are_caught():
    schedule = Schedule.from_text("0F0 0F1 0F2 0B2 0B0 0B1")
    inputs, labels = images(9)
    with (
        pytest.warns(UserWarning, match="another order"),
        pytest.raises(AssertionError, match="differs from one proc"),
    ):
        check_same_as_one_process(
            residual_network(), nn.CrossEntropyLoss(), inputs, labels, schedule
        )


class OverTheBatch(nn.Module):
    """What BatchNorm does in training: shift and scale each channel by its mean and
    deviation over the samples.
    """

    def forward(self, x):
        shifted = x - x.mean((0, 2, 3), keepdims=True)
        return (
            shifted / ((shifted * shifted).mean((0, 2, 3), keepdims=True) + 1e-5).sqrt()
        )


def test_the_loss_does_not_depend_on_the_number_of_microbatches_but_with_statistics_over_the_batch_it_would():
    """Why there is no BatchNorm."""
    inputs, labels = images(12)

    def losses(*first):
        model = nn.Sequential(*first, *residual_network()).initialise(0)
        return [
            one_process_step(model, nn.CrossEntropyLoss(), inputs, labels, m).loss
            for m in (1, 4)
        ]

    whole, in_four = losses()
    assert in_four == pytest.approx(whole, rel=1e-5)
    whole, in_four = losses(OverTheBatch())
    assert in_four != pytest.approx(whole, rel=1e-3)
