"""A batch is cut once into a list of pytrees, of views, and its results are merged in
the same order.
"""

import array_api_strict as strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Microbatches, Pipeline, Replicated, Share, nn, split_microbatches
from minipipe.comm import OneRankGroup
from minipipe.core.autograd.backend import to_numpy
from minipipe.core.execution.payload import Payload
from minipipe.core.pytree import flattened
from minipipe.errors import MicrobatchError, TensorError
from minipipe.execution import samples as module
from minipipe.execution.batch import Batch
from minipipe.execution.objective import BatchObjective
from minipipe.execution.samples import (
    ABSENT,
    as_given,
    even_sizes,
    into_slices,
    samples,
    samples_of_share,
    sizes_of,
)
from minipipe.testing import same_bits
from tests.strategies import examples

DTYPES = [np.float32, np.float64, np.int64, np.uint8, np.bool_]
MODULES = {"numpy": np, "strict": strict}


@st.composite
def pytrees(draw, num_samples, xp=np, width=0, may_replicate=True):
    """Draw a pytree of arrays of some samples; if ``width`` is given, of so many
    positions.
    """
    generator = np.random.default_rng(draw(st.integers(0, 999)))

    def array():
        shape = (
            (num_samples, width, 2)
            if width
            else (num_samples, *draw(st.sampled_from([(), (3,), (2, 4)])))
        )
        return xp.asarray(
            generator.integers(0, 9, shape).astype(draw(st.sampled_from(DTYPES)))
        )

    def node(depth):
        kind = draw(st.sampled_from([None, tuple, list, dict])) if depth else None
        if kind is None:
            return array()
        parts = [node(depth - 1) for _ in range(draw(st.integers(1, 3)))]
        if may_replicate and draw(st.booleans()):
            parts.append(Replicated(draw(st.sampled_from([2.5, np.arange(3.0)]))))
        return (
            {f"name {i}": part for i, part in enumerate(parts)}
            if kind is dict
            else kind(parts)
        )

    return node(draw(st.integers(0, 2)))


def leaves_of(given):
    return [
        leaf.value if isinstance(leaf, Replicated) else leaf
        for leaf in flattened(given)[0]
    ]


def batch_of(parts, sizes, is_cut=False, num_slices=1):
    """Return a batch whose last stage returned these pytrees."""
    objective = BatchObjective()
    objective.outputs = dict(enumerate(parts))
    return Batch(
        "step", sizes, parts, objective, 0, 0, 0, is_cut=is_cut, num_slices=num_slices
    )


def check_rows(part, given, rows):
    """Check that a microbatch has these rows of a batch, as views, and whole replicated
    arrays.
    """
    leaves, treedef = flattened(given)
    assert part.treedef == treedef
    assert part.replicated == {
        i for i, leaf in enumerate(leaves) if isinstance(leaf, Replicated)
    }
    for i, (array, leaf) in enumerate(zip(part.arrays, leaves_of(given), strict=True)):
        if i in part.replicated:
            assert np.array_equal(to_numpy(array), leaf)
        else:
            whole = to_numpy(leaf)
            assert type(array) is type(leaf) and same_bits(to_numpy(array), whole[rows])
            assert not whole[rows].size or np.shares_memory(to_numpy(array), whole)


# -- the parts of a batch --------------------------------------------------------------


@pytest.mark.parametrize("xp", MODULES.values(), ids=MODULES)
@examples(40)
@given(st.data(), st.integers(1, 9))
def test_microbatches_are_views_of_consecutive_rows(xp, data, n):
    batch, count = data.draw(pytrees(n, xp)), data.draw(st.integers(1, n))
    own = samples(batch, "inputs")
    parts = own.cut(sizes_of(own.num_samples, count, own))
    for part, rows in zip(parts, split_microbatches(n, count), strict=True):
        check_rows(part, batch, rows)


@pytest.mark.parametrize("xp", MODULES.values(), ids=MODULES)
@examples(40)
@given(st.data(), st.integers(1, 9))
def test_a_share_has_its_rows_and_no_others(xp, data, n):
    start = data.draw(st.integers(0, n - 1))
    stop, count = data.draw(st.integers(start + 1, n)), data.draw(st.integers(1, n))
    batch = data.draw(pytrees(stop - start, xp))
    own = samples_of_share(Share(batch, slice(start, stop), n), "inputs")
    assert own.num_samples == n and own.rows == slice(start, stop)
    for part, rows in zip(
        own.cut(even_sizes(n, count)), split_microbatches(n, count), strict=True
    ):
        if start <= rows.start and rows.stop <= stop:
            check_rows(part, batch, slice(rows.start - start, rows.stop - start))
        else:
            assert part is ABSENT


@examples(40)
@given(st.data(), st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_microbatches_that_are_given_stay_as_they_are(data, sizes):
    parts = [data.draw(pytrees(size)) for size in sizes]
    own = samples(Microbatches(parts), "inputs")
    assert (
        own.is_cut and own.cut(sizes_of(own.num_samples, len(sizes), own)) is own.parts
    )
    for part, batch, size in zip(own.parts, parts, sizes, strict=True):
        check_rows(part, batch, slice(0, size))


@examples(40)
@given(st.data(), st.integers(1, 5), st.integers(1, 4), st.integers(0, 3))
def test_slices_of_sequences_are_views_of_rows_and_positions(data, n, num_slices, more):
    width = num_slices + more
    batch, count = data.draw(pytrees(n, width=width)), data.draw(st.integers(1, n))
    own = into_slices(samples(batch, "inputs"), "inputs", count, num_slices)
    assert (
        own.sizes == even_sizes(n * num_slices, count * num_slices) and own.layout == 0
    )
    places = [
        (r, c)
        for r in split_microbatches(n, count)
        for c in split_microbatches(width, num_slices)
    ]
    for part, (rows, columns) in zip(own.cut(own.sizes), places, strict=True):
        check_rows(part, batch, (rows, columns))


@examples(20)
@given(st.data(), st.integers(1, 5))
def test_only_floating_inputs_that_want_gradients_get_them(data, n):
    batch, wants = data.draw(pytrees(n)), data.draw(st.booleans())
    (part,) = samples(batch, "inputs", requires_grad=wants).parts
    assert part.requires_grad == [
        wants and array.dtype.kind == "f" for array in part.arrays
    ]


@examples(20)
@given(
    st.data(),
    st.integers(1, 5),
    st.sampled_from([np.dtype(np.float32), np.dtype(np.float64)]),
)
def test_floating_arrays_get_the_dtype_of_the_model_and_others_keep_theirs(
    data, n, dtype
):
    batch = data.draw(pytrees(n))
    for array, leaf in zip(
        samples(batch, "inputs", dtype, np).parts[0].arrays,
        leaves_of(batch),
        strict=True,
    ):
        kind = np.asarray(leaf).dtype
        assert array.dtype == (dtype if kind.kind == "f" else kind)


@examples(20)
@given(st.data(), st.integers(1, 5))
def test_a_batch_as_it_was_given_is_read_as_the_same_batch(data, n):
    (part,) = samples(data.draw(pytrees(n)), "inputs").parts
    (again,) = samples(as_given(part), "inputs").parts
    assert all(map(same_bits, part.arrays, again.arrays)) and part[1:] == again[1:]


# -- the results of a batch ------------------------------------------------------------


@pytest.mark.parametrize("xp", MODULES.values(), ids=MODULES)
@examples(40)
@given(st.data(), st.integers(1, 9))
def test_outputs_of_microbatches_make_the_outputs_of_their_batch(xp, data, n):
    batch, sizes = (
        data.draw(pytrees(n, xp, may_replicate=False)),
        even_sizes(n, data.draw(st.integers(1, n))),
    )
    own = samples(batch, "inputs")
    found = batch_of(own.cut(sizes), sizes).outputs()
    assert found.treedef == own.parts[0].treedef
    for array, whole in zip(found.arrays, own.parts[0].arrays, strict=True):
        assert type(array) is np.ndarray and same_bits(array, to_numpy(whole))
        assert not np.shares_memory(array, to_numpy(whole))


@examples(20)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 2), st.data())
def test_outputs_of_slices_make_the_outputs_of_whole_sequences(
    n, num_slices, more, data
):
    count = data.draw(st.integers(1, n))
    whole = np.random.default_rng(n).standard_normal((n, num_slices + more, 2))
    own = into_slices(
        samples(whole, "inputs", np.dtype(np.float64)), "inputs", count, num_slices
    )
    found = batch_of(own.parts, own.sizes, num_slices=num_slices)
    assert same_bits(found.returned(found.outputs()), whole)


def test_outputs_of_given_microbatches_stay_apart_in_memory_of_their_own():
    parts = [np.ones((2, 5), np.float32), np.zeros((3, 7), np.float32)]
    own = samples(Microbatches(parts), "inputs")
    batch = batch_of(own.parts, own.sizes, is_cut=True)
    found = batch.returned(batch.outputs())
    assert isinstance(found, Microbatches) and all(map(same_bits, found, parts))
    assert not any(map(np.shares_memory, found, parts))


def test_outputs_that_make_no_array_are_refused():
    parts = [Payload([np.zeros((2, 3))], [True]), Payload([np.zeros((2, 4))], [True])]
    with pytest.raises(
        TensorError,
        match="which do not form one array .* pass the batch as minipipe.Microbatches",
    ):
        batch_of(parts, (2, 2)).outputs()
    assert batch_of([], ()).outputs() is None


def test_gradients_of_inputs_are_their_pytree_and_those_of_replicated_arrays_are_added_in_order():
    inputs = {
        "x": np.ones((3, 2), np.float32),
        "scale": Replicated(np.float32(2)),
        "ids": np.arange(3),
    }
    own, sizes = samples(inputs, "inputs", requires_grad=True), (2, 1)
    given = [[np.ones((2, 2)), np.array(0.1), None], [None, np.array(0.2), None]]
    gradients = {k: Payload(arrays, [True] * 3, ()) for k, arrays in enumerate(given)}
    batch = Batch("step", sizes, own.cut(sizes), BatchObjective(), 0, 0, 0)
    found = batch.input_gradients(gradients)
    assert (
        not gradients and list(found) == ["x", "scale", "ids"] and found["ids"] is None
    )
    assert found["scale"] == 0.1 + 0.2 and np.array_equal(
        found["x"], [[1, 1], [1, 1], [0, 0]]
    )


# -- refused batches -------------------------------------------------------------------

ONE, TWO = np.ones((2, 3)), np.ones((4, 3))


@pytest.mark.parametrize(
    ("batch", "error", "match"),
    [
        (
            1.5,
            TensorError,
            (
                r"The inputs are a single number; expected arrays of shape "
                r"\(samples, \.\.\.\)\.$"
            ),
        ),
        (
            (ONE, 1.5),
            TensorError,
            r"or contain a single number; .* write minipipe.Replicated\(number\)",
        ),
        ((), TensorError, "The inputs are empty"),
        ({"x": Replicated(ONE)}, TensorError, "The inputs are replicated"),
        (
            (ONE, TWO),
            MicrobatchError,
            r"The arrays of the inputs have \[2, 4\] samples; expected the same number",
        ),
        (
            Microbatches([]),
            MicrobatchError,
            "contain no microbatches; expected at least one",
        ),
        (
            Microbatches([ONE, (ONE, TWO)]),
            MicrobatchError,
            r"the inputs, microbatch 1, have \[2, 4\] samples",
        ),
        (
            Microbatches([Microbatches([ONE])]),
            MicrobatchError,
            "microbatch 0, contain Microbatches; expected arrays",
        ),
        (
            {"x": Microbatches([ONE, ONE])},
            MicrobatchError,
            "or one Microbatches of all arrays",
        ),
        (
            (Share(ONE, slice(0, 2), 4),),
            TensorError,
            "holds real or whole numbers; this is object: Share",
        ),
    ],
)
def test_a_wrong_batch_is_refused_with_what_it_is(batch, error, match):
    with pytest.raises(error, match=match):
        samples(batch, "inputs")


@pytest.mark.parametrize(
    "value", [ONE, Microbatches([ONE, ONE])], ids=["fewer rows", "microbatches"]
)
def test_a_share_of_another_size_is_refused(value):
    with pytest.raises(
        MicrobatchError,
        match=r"given as Share\(rows 1 to 3 of 9\), with [24] samples; expected .* 3",
    ):
        samples_of_share(Share(value, slice(1, 4), 9), "inputs")


def test_too_few_samples_positions_or_microbatches_are_refused():
    with pytest.raises(
        MicrobatchError, match="A batch of 2 samples cannot make 3 microbatches"
    ):
        even_sizes(2, 3)
    with pytest.raises(
        MicrobatchError,
        match="num_microbatches is 0; expected a whole number, at least 1",
    ):
        even_sizes(2, 0)
    with pytest.raises(
        MicrobatchError,
        match=r"have \[3\] positions .* at least 4, to divide sequences into 4 slices",
    ):
        into_slices(samples(ONE, "inputs"), "inputs", 1, 4)
    with pytest.raises(
        MicrobatchError,
        match=(
            "given as 2 microbatches, but the schedule has 3. Give num_microbatches=2"
        ),
    ):
        sizes_of(4, 3, samples(Microbatches([ONE, ONE]), "inputs"))


# -- the checks can fail ---------------------------------------------------------------


def copying(part, *where):
    return part._replace(arrays=[array[where].copy() for array in part.arrays])


def shifted(part, rows, *others):
    return part._replace(
        arrays=[
            array[(slice(rows.start + 1, rows.stop + 1), *others)]
            for array in part.arrays
        ]
    )


@pytest.mark.parametrize("mutant", [copying, shifted])
def test_a_copy_and_a_wrong_row_are_caught(monkeypatch, mutant):
    batch = np.arange(8.0, dtype=np.float32).reshape(4, 2)
    monkeypatch.setattr(module, "_view", mutant)
    part = samples(batch, "inputs").cut((2, 2))[0]
    with pytest.raises(AssertionError):
        check_rows(part, batch, slice(0, 2))


def test_outputs_whose_first_axis_is_not_that_of_the_samples_make_no_batch():
    layers = nn.Sequential(nn.Function(lambda x: x.reshape(1, -1)))
    with pytest.raises(TensorError, match="which do not form one array"):
        Pipeline(layers, OneRankGroup(), num_microbatches=2).predict(np.ones((8, 1)))


def test_microbatches_are_a_list_and_not_one_array():
    with pytest.raises(
        MicrobatchError,
        match="Microbatches takes a list of microbatches; this is one ndarray",
    ):
        Microbatches(np.ones((4, 3)))
    parts = Microbatches([np.ones(2), np.zeros(3)])
    assert (
        len(parts) == 2
        and [len(part) for part in parts] == [2, 3]
        and parts[1].tolist() == [0, 0, 0]
    )
