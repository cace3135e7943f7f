"""The mean that a loss is: over what counts in the whole batch, however that is cut
into microbatches.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Microbatches, Pipeline, Tensor, functional, nn, spawn
from minipipe.errors import ArgumentError, MicrobatchError, TensorError
from minipipe.execution.objective import shares
from minipipe.execution.samples import _view, samples
from minipipe.testing import (
    check_independent_of_microbatches,
    check_same_as_one_process,
    one_process_step,
    same_bits,
)
from tests.launch import mpirun, needs_mpi, slowly
from tests.strategies import NAMES, build, examples

PAD = -100


def classifier(width=3, classes=4):
    layers = (
        nn.Linear(width, 5, dtype=np.float64),
        nn.Tanh(),
        nn.Linear(5, classes, dtype=np.float64),
    )
    return nn.Sequential(*layers, nn.Identity(), nn.Identity(), nn.Identity())


@st.composite
def padded_batches(draw, width=3, classes=4):
    """Draw inputs of shape (samples, length, width), and labels of which any number is
    padding, but not all.
    """
    samples, length = draw(st.integers(2, 9)), draw(st.integers(1, 4))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    labels = generator.integers(0, classes, (samples, length))
    labels[generator.random(labels.shape) < draw(st.sampled_from([0, 0.5, 0.9]))] = PAD
    labels[draw(st.integers(0, samples - 1)), 0] = 1
    return generator.standard_normal((samples, length, width)), labels


def assert_close(gradient, expected):
    """Compare within rounding, relative to the largest element."""
    np.testing.assert_allclose(
        gradient,
        expected,
        rtol=0,
        atol=1e-12 * max(1e-3, float(np.abs(expected).max())),
    )


REDUCTIONS = st.sampled_from(["mean", "mean", "sum"])
LOSSES = st.builds(
    nn.CrossEntropyLoss,
    ignore_index=st.just(PAD),
    class_weights=st.sampled_from([None, [1.0, 0.5, 0.0, 2.0]]),
    reduction=REDUCTIONS,
) | st.builds(
    nn.CrossEntropyLoss,
    ignore_index=st.just(PAD),
    label_smoothing=st.just(0.1),
    class_weights=st.sampled_from([None, [1.0, 0.5, 0.1, 2.0]]),
    reduction=REDUCTIONS,
)


def unsplit(model, loss, inputs, labels):
    """Return loss and gradients of the whole batch, as one microbatch."""
    result = one_process_step(model, loss, inputs, labels, 1)
    return result.loss, result.gradients


@examples(60)
@given(padded_batches(), LOSSES, st.sampled_from(NAMES), st.integers(1, 3), st.data())
def test_the_mean_is_over_what_counts_in_the_whole_batch_for_every_schedule(
    batch, loss, name, num_ranks, data
):
    """The story: a mean of the microbatches' means gave gradients with a cosine of 0.62
    to the right ones.
    """
    inputs, labels = batch
    m = data.draw(st.integers(1, len(inputs)))
    model = classifier().initialise(0)
    expected_loss, expected = unsplit(model, loss, inputs, labels)
    schedule = build(name, num_ranks, m)
    found = one_process_step(model, loss, inputs, labels, m)
    assert found.loss == pytest.approx(expected_loss, rel=1e-12, abs=1e-14)
    for key, gradient in expected.items():
        assert_close(found.gradients[key], gradient)
    # bit for bit
    check_same_as_one_process(classifier(), loss, inputs, labels, schedule)


@examples(40)
@given(padded_batches(), st.sampled_from(NAMES), st.integers(1, 3), st.data())
def test_so_it_is_for_squares_under_a_mask_or_weights(batch, name, num_ranks, data):
    inputs, labels = batch
    targets = np.random.default_rng(0).standard_normal((*labels.shape, 4))
    weights = data.draw(
        st.sampled_from(
            [labels != PAD, (labels != PAD) * 0.5, np.ones((len(labels), 1))]
        )
    )
    # whatever is under the mask
    targets[np.broadcast_to(weights == 0, labels.shape)] = np.nan
    given = (targets, weights[..., None])
    loss = nn.MSELoss(data.draw(REDUCTIONS))
    m, model = data.draw(st.integers(1, len(inputs))), classifier().initialise(0)
    expected_loss, expected = unsplit(model, loss, inputs, given)
    squares = (
        weights[..., None]
        * (model(Tensor(inputs)).numpy() - np.nan_to_num(targets)) ** 2
    )
    count = (
        np.broadcast_to(weights[..., None], targets.shape).sum()
        if loss.reduction == "mean"
        else 1
    )
    assert expected_loss == pytest.approx(squares.sum() / count, rel=1e-12)
    found = one_process_step(model, loss, inputs, given, m)
    assert found.loss == pytest.approx(expected_loss, rel=1e-12, abs=1e-14)
    for key, gradient in expected.items():
        assert_close(found.gradients[key], gradient)
    check_same_as_one_process(
        classifier(), loss, inputs, given, build(name, num_ranks, m)
    )


def test_squares_of_unequal_lengths_have_the_mean_over_all_elements():
    """The story: each microbatch counted by its samples, though the mean is over
    elements.
    """
    x = [
        np.random.default_rng(k).standard_normal((2, length, 3))
        for k, length in enumerate((1, 5, 2))
    ]
    y = [part[..., :1] for part in x]
    model = nn.Sequential(nn.Linear(3, 1, dtype=np.float64)).initialise(0)
    found = one_process_step(model, nn.MSELoss(), Microbatches(x), Microbatches(y), 3)
    squares = np.concatenate(
        [((model(Tensor(a)).numpy() - b) ** 2).ravel() for a, b in zip(x, y)]
    )
    assert found.loss == pytest.approx(squares.mean(), rel=1e-12)


@pytest.mark.parametrize(
    ("weights", "error", "words"),
    [
        (
            np.ones(3),
            TensorError,
            r"Weights of shape \(3,\) do not fit a target of shape \(4, 2\)",
        ),
        (-np.ones((4, 1)), ArgumentError, "Weights of a loss are at least 0"),
        (np.full((4, 1), np.nan), ArgumentError, "Weights of a loss are at least 0"),
    ],
)
def test_weights_that_do_not_fit_are_refused(weights, error, words):
    with pytest.raises(error, match=words):
        functional.mean_squared_error(
            Tensor(np.zeros((4, 2))), np.zeros((4, 2)), weights=weights
        )


def test_the_mean_of_means_is_not_it():
    model, loss = classifier().initialise(0), nn.CrossEntropyLoss(ignore_index=PAD)
    inputs = np.random.default_rng(0).standard_normal((4, 5, 3))
    labels = np.full((4, 5), PAD)
    labels[0], labels[2, 0] = 1, 3
    right, gradients = unsplit(model, loss, inputs, labels)
    by_samples = one_process_step(model, loss, inputs, labels, 2, loss_weight=len)
    assert abs(by_samples.loss - right) > 0.01
    a, b = by_samples.gradients["0.weight"].ravel(), gradients["0.weight"].ravel()
    assert a @ b / np.linalg.norm(a) / np.linalg.norm(b) < 0.99


def test_a_function_of_ones_own_weighs_instead():
    def masked_square(outputs, targets):
        mask = np.isfinite(targets.numpy())
        difference = (outputs - np.nan_to_num(targets.numpy())) * mask.astype(
            np.float64
        )
        return (difference * difference).sum() / max(1, mask.sum())

    def counted(targets):
        return np.isfinite(targets).sum()

    generator = np.random.default_rng(1)
    inputs, targets = (
        generator.standard_normal((6, 3)),
        generator.standard_normal((6, 4)),
    )
    targets[generator.random(targets.shape) < 0.6] = np.nan
    targets[4:] = np.nan  # the last microbatch counts for nothing
    model = classifier().initialise(0)
    expected, gradients = unsplit(model, masked_square, inputs, targets)

    def train(group):
        pipeline = Pipeline(
            classifier(),
            group,
            loss=masked_square,
            loss_weight=counted,
            schedule="zb-h1",
            num_microbatches=3,
        )
        loss = pipeline.step(inputs, targets)
        assert pipeline.evaluate(inputs, targets) == pytest.approx(expected, rel=1e-12)
        return loss, {
            name: parameter.grad for name, parameter in pipeline.named_parameters()
        }

    results = spawn(train, 2)
    found = {name: gradient for _, part in results for name, gradient in part.items()}
    assert results[0][0] == results[1][0] == pytest.approx(expected, rel=1e-12)
    for key, gradient in gradients.items():
        assert_close(found[key], gradient)


def over_tokens(outputs, labels):
    """A mean over what is no padding, of which nobody tells the pipeline."""
    return functional.cross_entropy(outputs, labels, ignore_index=PAD)


class OverTheBatch(nn.Module):
    def forward(self, x):
        return x - x.mean(axis=0)


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_a_check_finds_what_depends_on_the_number_of_microbatches(num_ranks):
    generator = np.random.default_rng(3)
    inputs, labels = (
        generator.standard_normal((8, 4, 3)),
        generator.integers(0, 4, (8, 4)),
    )
    labels[:3, 1:] = PAD

    def check(group):
        def independent(model, loss, **options):
            pipeline = Pipeline(model, group, loss=loss, **options)
            before = pipeline.state_dict()
            try:
                check_independent_of_microbatches(
                    pipeline, inputs, labels, counts=(1, 3, 8)
                )
            except AssertionError as error:
                return str(error)
            finally:
                assert all(
                    same_bits(value, before[name])
                    for name, value in pipeline.state_dict().items()
                )
            return ""

        right = nn.CrossEntropyLoss(ignore_index=PAD)
        dropping = nn.Sequential(*classifier(), nn.Dropout(0.5))
        assert independent(dropping, right) == ""
        assert independent(classifier(), over_tokens, loss_weight=right.weight) == ""
        by_samples = independent(classifier(), over_tokens)
        assert (
            "depends on the number of microbatches: with 3" in by_samples
            and "loss_weight=" in by_samples
        )
        over_batch = nn.Sequential(OverTheBatch(), *classifier())
        assert "depends on the number of microbatches" in independent(over_batch, right)

    spawn(check, num_ranks)


def test_a_sum_is_the_sum_over_the_microbatches():
    generator = np.random.default_rng(2)
    inputs, targets = (
        generator.standard_normal((7, 3)),
        generator.standard_normal((7, 4)),
    )
    model, loss = classifier().initialise(0), nn.MSELoss(reduction="sum")
    expected, gradients = unsplit(model, loss, inputs, targets)
    assert expected == pytest.approx(
        float(((model(Tensor(inputs)).numpy() - targets) ** 2).sum()), rel=1e-12
    )
    found = one_process_step(model, loss, inputs, targets, 3)
    assert found.loss == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(
        found.gradients["0.weight"], gradients["0.weight"], rtol=1e-10
    )


@pytest.mark.parametrize("labels", [np.full((4, 2), PAD)])
def test_a_batch_in_which_nothing_counts_is_an_error_that_says_so(labels):
    def train(group):
        pipeline = Pipeline(
            classifier(),
            group,
            loss=nn.CrossEntropyLoss(ignore_index=PAD),
            num_microbatches=2,
        )
        pipeline.step(np.ones((4, 2, 3)), labels)

    with pytest.raises(
        MicrobatchError,
        match=r"count \[0.0, 0.0\], by microbatch; .* Is everything ignored",
    ):
        spawn(train, 2)


def test_microbatches_without_samples_count_nothing_and_a_batch_of_these_is_an_error():
    def squares(outputs, targets):
        return (outputs * outputs).sum()

    def losses(sizes):
        x = Microbatches([np.ones((size, 2)) for size in sizes])
        return spawn(
            lambda group: Pipeline(
                nn.Sequential(nn.Identity()), group, loss=squares, num_microbatches=2
            ).step(x, x),
            1,
        )

    assert losses([2, 0]) == [4.0]
    with pytest.raises(
        MicrobatchError,
        match=r"count \[0, 0\], by microbatch; expected at least 0, and not 0 for all",
    ):
        losses([0, 0])


@pytest.mark.parametrize(
    "weight",
    [lambda t: -1, lambda t: float("nan"), lambda t: float("inf"), lambda t: 0],
)
def test_weights_that_are_none_are_refused(weight):
    with pytest.raises(MicrobatchError, match="expected at least 0, and not 0 for all"):
        shares(
            (2, 2),
            nn.MSELoss(),
            weight,
            samples(np.ones((4, 1)), "targets").cut((2, 2)),
        )


def test_one_microbatch_of_padding_alone_adds_nothing():
    loss = functional.cross_entropy(
        Tensor(np.ones((2, 3)), requires_grad=True), [PAD, PAD], ignore_index=PAD
    )
    loss.backward()
    assert loss.item() == 0


def test_mistakes_with_cross_entropy_are_told():
    scores = Tensor(np.zeros((2, 3)))
    with pytest.raises(
        TensorError, match="To leave out the label -100: ignore_index=-100"
    ):
        functional.cross_entropy(scores, [0, -100])
    with pytest.raises(TensorError, match="labels run from 0 to 3"):
        functional.cross_entropy(scores, [0, 3], ignore_index=-1)
    with pytest.raises(
        ArgumentError, match="reduction is 'none'; expected 'mean' or 'sum'"
    ):
        functional.cross_entropy(scores, [0, 1], reduction="none")
    with pytest.raises(
        ArgumentError, match="label_smoothing is 2; expected a number in \\[0, 1\\]"
    ):
        functional.cross_entropy(scores, [0, 1], label_smoothing=2)
    with pytest.raises(ArgumentError, match="class_weights has length 2; expected 3"):
        functional.cross_entropy(scores, [0, 1], class_weights=[1, 2])
    with pytest.raises(
        ArgumentError,
        match="one of the class weights is -1.0; expected a finite number, at least 0",
    ):
        functional.cross_entropy(scores, [0, 1], class_weights=[1, 2, -1])
    # The story: a microbatch whose labels all had weight 0 lost the part of its loss
    # that smoothing spreads.
    with pytest.raises(
        ArgumentError,
        match="is 0.0; expected a number above 0, because of label_smoothing",
    ):
        functional.cross_entropy(
            scores, [0, 1], class_weights=[1, 2, 0], label_smoothing=0.1
        )
    with pytest.raises(ArgumentError, match="mean_squared_error: reduction is None"):
        functional.mean_squared_error(scores, scores, None)


@needs_mpi
@pytest.mark.parametrize("num_ranks", [slowly(2), slowly(3), slowly(4)])
def test_so_it_is_through_mpirun(num_ranks):
    done = mpirun(num_ranks, "-m", "tests.pipeline.token_means", limit=60)
    assert done.code == 0, done.err
    assert done.out.count("the same mean") == num_ranks


# -- the checks can fail ---------------------------------------------------------------


def padded_batch():
    labels = np.full((6, 5), PAD)
    labels[0], labels[2, 0], labels[5, :3] = 1, 3, 2
    return np.random.default_rng(0).standard_normal((6, 5, 3)), labels


def check_is_noticed(loss=None):
    with pytest.raises(AssertionError, match="differs from one process|in one process"):
        check_same_as_one_process(
            classifier(),
            loss or nn.CrossEntropyLoss(ignore_index=PAD),
            *padded_batch(),
            build("zb-h1", 2, 3),
        )


def test_a_weight_of_the_wrong_microbatch_is_caught(monkeypatch):
    monkeypatch.setattr(
        "minipipe.execution.objective.shares", lambda *given: shares(*given)[::-1]
    )
    check_is_noticed()


def test_a_mean_of_means_is_caught(monkeypatch):
    monkeypatch.setattr(
        "minipipe.execution.objective.shares",
        lambda sizes, *_: [1 / len(sizes)] * len(sizes),
    )
    check_is_noticed()


def test_a_mask_that_is_not_split_is_caught(monkeypatch):
    """Both sides of the comparison with one process would cut it so; the batch in one
    piece tells.
    """
    inputs, labels = padded_batch()
    masked = {"x": inputs, "mask": (labels != PAD).astype(np.float64)}

    class Mask(nn.Module):
        def forward(self, batch):
            return batch["x"] * functional.reshape(
                batch["mask"][: len(batch["x"])], (-1, 5, 1)
            )

    layers, loss = (
        nn.Sequential(Mask(), *classifier()).initialise(0),
        nn.CrossEntropyLoss(),
    )
    whole, _ = unsplit(layers, loss, masked, labels % 4)
    assert one_process_step(layers, loss, masked, labels % 4, 3).loss == pytest.approx(
        whole, rel=1e-12
    )
    monkeypatch.setattr(
        "minipipe.execution.samples._view",
        lambda part, *where: _view(part._replace(replicated=frozenset({1})), *where),
    )
    assert (
        abs(one_process_step(layers, loss, masked, labels % 4, 3).loss - whole) > 1e-3
    )
