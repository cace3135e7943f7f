"""A batch may be a bundle: a tuple, list or dict of arrays, nested or not, which is cut
leaf by leaf.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Microbatches, Pipeline, Tensor, functional, nn, spawn
from minipipe.comm import OneRankGroup
from minipipe.core.execution.payload import Payload
from minipipe.core.pytree import flattened, rebuilt, tensors_in
from minipipe.errors import MicrobatchError, TensorError
from minipipe.testing import check_same_as_one_process, one_process_step, same_bits
from tests.launch import mpirun, needs_mpi, slowly
from tests.strategies import NAMES, build, examples

FORMS = st.recursive(
    st.none(),
    lambda part: (
        st.lists(part, min_size=1, max_size=3)
        | st.lists(part, min_size=1, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from(["ids", "mask", "x"]), part, min_size=1)
    ),
    max_leaves=5,
)


def num_leaves(form):
    if form is None:
        return 1
    return sum(map(num_leaves, form.values() if isinstance(form, dict) else form))


@st.composite
def bundles(draw, samples):
    """Draw (form, arrays): real numbers of shape (samples, 2), which add up, whatever
    the form.
    """
    form = draw(FORMS)
    generator = np.random.default_rng(draw(st.integers(0, 1000)))
    return form, [
        generator.standard_normal((samples, 2)).astype(np.float32)
        for _ in range(num_leaves(form))
    ]


class Add(nn.Module):
    """Adds all that it is given, weighed by position; hands on the sum and, nested, the
    first and the last array.
    """

    def __init__(self):
        self.inner = nn.Linear(2, 2)

    def forward(self, x):
        tensors = tensors_in(x)
        total = tensors[0]
        for i, tensor in enumerate(tensors[1:]):
            total = total + (i + 2) * tensor
        return {"sum": self.inner(total), "rest": (tensors[0], [tensors[-1]])}


class Finish(nn.Module):
    def __init__(self):
        self.inner = nn.Linear(2, 2)

    def forward(self, x):
        first, (last,) = x["rest"]
        return self.inner(x["sum"]) * last + first


def model():
    return nn.Sequential(
        Add(), Add(), Add(), nn.Identity(), Finish(), nn.Tanh(), nn.Linear(2, 2)
    )


def square_of_all(outputs, targets):
    total = 0.0
    for i, target in enumerate(tensors_in(targets)):
        total = total + (i + 1) * functional.mean_squared_error(outputs, target)
    return total


@examples(60)
@given(st.data(), st.sampled_from(NAMES), st.integers(1, 3), st.integers(2, 7))
def test_any_bundle_has_the_bits_of_one_process(data, name, num_ranks, samples):
    (x_form, xs), (y_form, ys) = (
        data.draw(bundles(samples)),
        data.draw(bundles(samples)),
    )
    schedule = build(name, num_ranks, data.draw(st.integers(1, samples)))
    while schedule.num_stages > 7:
        schedule = build("zb-h1", num_ranks, schedule.num_microbatches)
    inputs, targets = rebuilt(x_form, xs), rebuilt(y_form, ys)
    check_same_as_one_process(model(), square_of_all, inputs, targets, schedule)


@examples(100)
@given(bundles(3))
def test_a_bundle_arrives_as_it_was_sent(bundle):
    form, arrays = bundle
    value = rebuilt(form, list(map(Tensor, arrays)))
    received = Payload.from_message(Payload.of(value).to_message())
    assert received.treedef == form
    assert all(same_bits(mine, sent) for mine, sent in zip(received.arrays, arrays))
    leaves, found = flattened(rebuilt(form, arrays))
    assert found == form and all(a is b for a, b in zip(leaves, arrays))


@examples(60)
@given(
    bundles(3),
    st.lists(
        st.sampled_from([bool, np.int64, np.int32, np.uint8, np.float64]),
        min_size=5,
        max_size=5,
    ),
)
def test_truth_values_and_whole_numbers_arrive_as_such_and_want_no_gradient(
    bundle, dtypes
):
    form, arrays = bundle
    arrays = [(array > 0).astype(dtype) for array, dtype in zip(arrays, dtypes)]
    received = Payload.from_message(
        Payload.of(rebuilt(form, list(map(Tensor, arrays)))).to_message()
    )
    assert received.treedef == form and len(received.arrays) == len(arrays)
    assert all(same_bits(mine, sent) for mine, sent in zip(received.arrays, arrays))
    assert not any(
        want
        for want, array in zip(received.requires_grad, arrays)
        if array.dtype.kind != "f"
    )


class Masked(nn.Module):
    """A classifier of padded sequences: the mean over the tokens of each, by its
    mask.
    """

    def __init__(self):
        self.embedding = nn.Embedding(9, 6)

    def forward(self, batch):
        return {"x": self.embedding(batch["input_ids"]), "mask": batch["mask"]}


class Pool(nn.Module):
    def __init__(self):
        self.head = nn.Linear(6, 3)

    def forward(self, batch):
        mask = batch["mask"]
        mean = (batch["x"] * functional.reshape(mask, (*mask.shape, 1))).sum(
            axis=1
        ) / mask.sum(axis=1, keepdims=True)
        return self.head(mean), mean


class Scores(nn.Module):
    def forward(self, pair):
        return pair[0]


def padded(samples=10, length=5):
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, length + 1, samples)
    mask = (np.arange(length) < lengths[:, None]).astype(np.float32)
    return {
        "input_ids": generator.integers(0, 9, (samples, length)),
        "mask": mask,
    }, generator.integers(0, 3, samples)


def weighted(outputs, targets):
    labels, weights = targets
    rows = functional.log_softmax(outputs)
    picked = rows * (np.arange(3) == labels.numpy()[:, None]).astype(np.float32)
    return -(picked.sum(axis=1) * weights).sum() / float(weights.numpy().sum())


@pytest.mark.parametrize("num_ranks", [1, 2, slowly(3)])
def test_masks_and_weights_of_samples_are_split_with_the_microbatches(num_ranks):
    inputs, labels = padded()
    weights = np.random.default_rng(1).uniform(0.1, 3, 10).astype(np.float32)

    def layers():
        return nn.Sequential(Masked(), Pool(), Scores())

    def train(group):
        pipeline = Pipeline(
            layers(),
            group,
            loss=weighted,
            loss_weight=lambda targets: targets[1].sum(),
            num_microbatches=4,
        )
        loss = pipeline.step(inputs, (labels, weights))
        assert pipeline.evaluate(inputs, (labels, weights)) == pytest.approx(
            loss, rel=1e-6
        )
        pipeline.measure_memory(inputs, (labels, weights))
        pipeline.measure_costs(inputs, (labels, weights), num_steps=1)
        return loss, pipeline.predict(inputs)

    whole = one_process_step(
        layers().initialise(0), weighted, inputs, (labels, weights), 1
    )
    for loss, outputs in spawn(train, num_ranks):
        assert loss == pytest.approx(whole.loss, rel=1e-6)
        assert outputs.shape == (10, 3)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_predict_returns_the_bundle_that_the_model_returns(num_ranks):
    inputs, _ = padded()
    plain = nn.Sequential(Masked(), Pool()).initialise(0)(
        {name: Tensor(array) for name, array in inputs.items()}
    )

    def predict(group):
        pipeline = Pipeline(
            nn.Sequential(Masked(), Pool()),
            group,
            loss=nn.MSELoss(),
            num_microbatches=3,
        )
        return pipeline.predict(inputs)

    for found in spawn(predict, num_ranks):
        assert type(found) is tuple
        for mine, tensor in zip(found, plain):
            np.testing.assert_allclose(mine, tensor.numpy(), rtol=1e-5, atol=1e-6)


def test_a_list_of_numbers_is_an_array_and_a_tuple_never_is():
    assert flattened([[1, 2], [3, 4]]) == ([[[1, 2], [3, 4]]], None)
    assert flattened(([1, 2], [3, 4])) == ([[1, 2], [3, 4]], (None, None))
    assert flattened([np.ones(2), [3, 4]])[1] == [None, None]


@pytest.mark.parametrize(
    "given, code, words",
    [
        (
            (np.ones((4, 2)), np.ones((3, 2))),
            "wrong-number",
            r"arrays of the inputs have \[4, 3\] samples",
        ),
        ((), "shape", "The inputs are empty"),
        ({}, "shape", "The inputs are empty"),
        (3.0, "shape", "The inputs are a single number"),
        ({"x": np.ones((4, 2)), "scale": 2.0}, "shape", "contain a single number"),
    ],
)
def test_what_is_no_batch_is_refused(given, code, words):
    def train(group):
        Pipeline(model(), group, loss=nn.MSELoss(), num_microbatches=2).step(
            given, np.ones((4, 2))
        )

    with pytest.raises((TensorError, MicrobatchError), match=words) as caught:
        spawn(train, 1)
    assert caught.value.code == code


# -- microbatches that are cut already -------------------------------------------------


def sequences(generator, num_microbatches):
    """Return token ids and labels in microbatches of unequal lengths and sizes; some
    labels are padding.
    """
    ids, labels = [], []
    for _ in range(num_microbatches):
        shape = tuple(generator.integers(1, 5, 2))
        ids.append({"ids": generator.integers(0, 9, shape)})
        labels.append(
            np.where(
                generator.random(shape) < 0.3, -100, generator.integers(0, 9, shape)
            )
        )
    labels[0][0, 0] = 1
    return ids, labels


class Tokens(nn.Module):
    def __init__(self):
        self.embedding = nn.Embedding(9, 4)

    def forward(self, batch):
        return self.embedding(batch["ids"])


def language_model():
    return nn.Sequential(
        Tokens(), *(nn.Linear(4, 4) for _ in range(5)), nn.Linear(4, 9)
    )


@examples(40)
@given(
    st.sampled_from(NAMES), st.integers(1, 3), st.integers(1, 6), st.integers(0, 1000)
)
def test_microbatches_of_any_lengths_have_the_bits_of_one_process(
    name, num_ranks, m, seed
):
    ids, labels = sequences(np.random.default_rng(seed), m)
    loss = nn.CrossEntropyLoss(ignore_index=-100)
    check_same_as_one_process(
        language_model(),
        loss,
        Microbatches(ids),
        Microbatches(labels),
        build(name, num_ranks, m),
    )


def test_their_mean_is_over_all_tokens():
    ids, labels = sequences(np.random.default_rng(1), 5)
    loss, model = nn.CrossEntropyLoss(ignore_index=-100), language_model().initialise(0)
    added = nn.CrossEntropyLoss(-100, reduction="sum")
    sums = [
        added(model({"ids": Tensor(x["ids"])}), y).item() for x, y in zip(ids, labels)
    ]
    expected = sum(sums) / sum((y != -100).sum() for y in labels)

    def train(group):
        pipeline = Pipeline(language_model(), group, loss=loss, num_microbatches=5)
        batch = Microbatches(ids), Microbatches(labels)
        assert pipeline.step(*batch) == pytest.approx(
            pipeline.evaluate(*batch), rel=1e-6
        )
        found = pipeline.predict(Microbatches(ids))
        assert [part.shape[:2] for part in found.parts] == [
            part["ids"].shape for part in ids
        ]
        return pipeline.evaluate(*batch)

    assert spawn(train, 1) == [pytest.approx(expected, rel=1e-5)]


@pytest.mark.parametrize(
    "inputs, targets, words",
    [
        (
            Microbatches([np.ones((1, 2))] * 3),
            Microbatches([np.ones((1, 2))] * 3),
            "given as 3 microbatches, but the schedule has 2. Give num_microbatches=3",
        ),
        (
            Microbatches([np.ones((2, 2))] * 2),
            np.ones((4, 2)),
            "split into different microbatches; pass both as Microbatches",
        ),
        (
            Microbatches([np.ones((1, 2)), np.ones((3, 2))]),
            Microbatches([np.ones((2, 2))] * 2),
            "split into different microbatches",
        ),
        (
            Microbatches([]),
            Microbatches([]),
            "The inputs contain no microbatches; expected at least one",
        ),
        (
            Microbatches([np.ones((2, 2)), 3.0]),
            Microbatches([np.ones((2, 2))] * 2),
            "The inputs, microbatch 1, are a single number",
        ),
    ],
)
def test_what_does_not_fit_together_is_told(inputs, targets, words):
    def train(group):
        Pipeline(
            nn.Sequential(nn.Linear(2, 2)), group, loss=nn.MSELoss(), num_microbatches=2
        ).step(inputs, targets)

    with pytest.raises((TensorError, MicrobatchError), match=words):
        spawn(train, 1)


@pytest.mark.parametrize(
    "targets", [np.ones((6, 2)), Microbatches([np.ones((k, 2)) for k in (3, 2, 1)])]
)
def test_so_it_is_where_inputs_and_targets_are_on_different_ranks(targets):
    """The story: only shapes told, and a loss that broadcasts would have been wrong in
    silence.
    """

    def train(group):
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        inputs = Microbatches([np.ones((k, 2)) for k in (2, 3, 1)])
        Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=3).step(
            inputs, targets
        )

    with pytest.raises(MicrobatchError, match="split into different microbatches"):
        spawn(train, 2)


@pytest.mark.slow
@needs_mpi
def test_nested_bundles_travel_through_mpirun():
    done = mpirun(3, "-m", "tests.pipeline.bundles_over_mpi", limit=60)
    assert done.code == 0, done.err
    assert done.out.count("the same bits") == 3


class Two(nn.Module):
    def forward(self, x):
        return {"a": 10 * x, "b": x}


@pytest.mark.parametrize("is_function", [False, True])
def test_a_gradient_from_outside_finds_its_output_by_name(is_function):
    pipeline = Pipeline(
        nn.Sequential(Two()),
        OneRankGroup(),
        num_microbatches=2,
        inputs_require_grad=True,
    )
    ones, zeros = np.ones((4, 1)), np.zeros((4, 1))
    for gradient in ({"a": ones, "b": zeros}, {"b": zeros, "a": ones}):
        cut = {name: array[:2] for name, array in gradient.items()}
        pipeline.forward_backward(
            ones, (lambda outputs, cut=cut: cut) if is_function else gradient
        )
        assert pipeline.input_gradients.tolist() == [[10.0]] * 4
    for wrong in ({"x": ones, "b": zeros}, {"a": ones}, (ones, zeros), ones):
        with pytest.raises(
            TensorError,
            match=r"The model returns a dict of \['a', 'b'\]; the matching argument is",
        ):
            pipeline.forward_backward(ones, wrong)


def test_an_input_that_is_not_used_has_the_gradient_zero_whatever_it_holds():
    layers = nn.Sequential(nn.Take("x"))
    pipeline = Pipeline(
        layers,
        OneRankGroup(),
        loss=nn.MSELoss(),
        num_microbatches=2,
        inputs_require_grad=True,
    )
    pipeline.step(
        {"x": np.ones((4, 1)), "y": np.full((4, 1), np.nan)}, np.zeros((4, 1))
    )
    assert pipeline.input_gradients["y"].tolist() == [[0.0]] * 4


def test_outputs_are_arrays_of_their_own():
    part = np.ones((2, 1), np.float32)
    model = nn.Sequential(nn.Identity(), nn.Identity())
    pipeline = Pipeline(model, OneRankGroup(), num_microbatches=2, loss=nn.MSELoss())
    loss = pipeline.step(
        Microbatches([part, part]), Microbatches([part, part]), outputs=True
    )
    loss.outputs.parts[0][...] = 5
    assert part.tolist() == [[1.0], [1.0]]

    def predict(group):
        pipeline = Pipeline(nn.Sequential(Two()), group, num_microbatches=2)
        found = pipeline.predict(np.ones((4, 1)))
        found["a"][...] = 0
        return True

    assert spawn(predict, 1) == [True]
