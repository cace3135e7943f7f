"""What cross-entropy can be told: labels that do not count, weights of classes,
smoothing, a sum.
"""

import array_api_strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Tensor, functional
from minipipe.core.functional.loss import label_weight
from minipipe.testing import check_gradients
from tests.strategies import examples


@st.composite
def cases(draw):
    """Draw scores of shape (..., k), labels, and options."""
    shape, k = draw(st.sampled_from([(1,), (5,), (2, 3)])), draw(st.integers(1, 4))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    options = {
        "ignore_index": draw(st.sampled_from([None, -100, 0, k + 3])),
        "label_smoothing": draw(st.sampled_from([0.0, 0.1, 1.0])),
        "class_weights": draw(
            st.sampled_from([None, generator.uniform(0.1, 2, k).tolist()])
        ),
        "reduction": draw(st.sampled_from(["mean", "sum"])),
    }
    labels = generator.integers(0, k, shape)
    if options["ignore_index"] is not None:
        labels[generator.random(shape) < 0.4] = options["ignore_index"]
    return generator.standard_normal((*shape, k)), labels, options


def by_hand(scores, labels, ignore_index, label_smoothing, class_weights, reduction):
    """One row after another, in plain Python."""
    k = scores.shape[-1]
    weights, total, norm = class_weights or [1.0] * k, 0.0, 0.0
    for row, label in zip(scores.reshape(-1, k), labels.reshape(-1)):
        if label == ignore_index:
            continue
        logs = row - np.log(np.exp(row).sum())
        total -= (1 - label_smoothing) * weights[label] * logs[label]
        total -= label_smoothing / k * sum(w * x for w, x in zip(weights, logs))
        norm += weights[label]
    return total if reduction == "sum" else total / (norm or 1.0)


@examples(100)
@given(cases())
def test_it_is_the_sum_over_the_rows_that_count(case):
    scores, labels, options = case
    expected = by_hand(scores, labels, **options)
    found = functional.cross_entropy(Tensor(scores), labels, **options)
    assert found.shape == () and found.item() == pytest.approx(
        expected, rel=1e-12, abs=1e-14
    )
    weight = label_weight(labels, options["ignore_index"], options["class_weights"])
    counted = (
        labels[labels != options["ignore_index"]]
        if options["ignore_index"] is not None
        else labels.ravel()
    )
    assert weight == pytest.approx(
        sum((options["class_weights"] or [1.0] * 9)[label] for label in counted)
    )
    strict = array_api_strict.asarray(scores)
    again = functional.cross_entropy(
        Tensor(strict), array_api_strict.asarray(labels), **options
    )
    assert float(again.data) == pytest.approx(expected, rel=1e-12, abs=1e-14)


@examples(40)
@given(cases())
def test_its_gradient_is_that_of_central_differences(case):
    scores, labels, options = case
    check_gradients(
        lambda x: functional.cross_entropy(x, labels, **options), scores, tolerance=1e-7
    )


@examples(100)
@given(cases())
def test_it_is_pytorchs(case):
    torch = pytest.importorskip(
        "torch", reason="needs PyTorch: pip install '.[oracle]'"
    )
    scores, labels, options = case
    if (
        options["reduction"] == "mean"
        and label_weight(labels, options["ignore_index"], options["class_weights"]) == 0
    ):
        return  # PyTorch returns NaN, for 0 / 0
    x = torch.tensor(scores.reshape(-1, scores.shape[-1]), requires_grad=True)
    weights = options["class_weights"]
    expected = torch.nn.functional.cross_entropy(
        x,
        torch.tensor(labels.reshape(-1)),
        weight=None if weights is None else torch.tensor(weights, dtype=torch.float64),
        ignore_index=-12345
        if options["ignore_index"] is None
        else options["ignore_index"],
        label_smoothing=options["label_smoothing"],
        reduction=options["reduction"],
    )
    expected.backward()
    mine = Tensor(scores, requires_grad=True)
    found = functional.cross_entropy(mine, labels, **options)
    found.backward()
    assert found.item() == pytest.approx(expected.item(), rel=1e-12, abs=1e-14)
    np.testing.assert_allclose(
        mine.grad.reshape(x.shape), x.grad.numpy(), rtol=1e-10, atol=1e-14
    )
