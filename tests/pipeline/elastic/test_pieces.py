"""What is kept: packed and unpacked without a change, and filled into stages that are
cut elsewhere.
"""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Pipeline, functional, nn, optim, spawn
from minipipe.comm.objects import pack, unpack
from minipipe.errors import ArgumentError
from minipipe.pipeline.checkpoint.state import OptimiserState
from minipipe.pipeline.elastic.vault import Made

numbers = (
    st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none() | st.text()
)
dtypes = st.sampled_from(
    ["float32", "float64", "float16", "int64", "uint8", "bool", "bfloat16"]
)
arrays = st.builds(
    lambda shape, dtype: (shape, dtype), st.lists(st.integers(0, 3), max_size=3), dtypes
)
trees = st.recursive(
    numbers | arrays,
    lambda parts: (
        st.lists(parts, max_size=3) | st.dictionaries(st.text(), parts, max_size=3)
    ),
    max_leaves=8,
)


def with_arrays(tree, generator):
    """Return the tree with an array in the place of each (shape, dtype)."""
    if isinstance(tree, tuple):
        shape, name = tree
        dtype = np.dtype(getattr(ml_dtypes, name, name))
        return (
            np.frombuffer(
                generator.bytes(dtype.itemsize * int(np.prod(shape))), np.uint8
            )
            .view(dtype)
            .reshape(shape)
        )
    if isinstance(tree, dict):
        return {name: with_arrays(part, generator) for name, part in tree.items()}
    return (
        [with_arrays(part, generator) for part in tree]
        if isinstance(tree, list)
        else tree
    )


def are_same(one, other):
    if isinstance(one, np.ndarray):
        return (
            one.dtype == other.dtype
            and one.shape == other.shape
            and one.tobytes() == other.tobytes()
        )
    if isinstance(one, dict):
        return list(one) == list(other) and all(
            are_same(one[name], other[name]) for name in one
        )
    if isinstance(one, list):
        return len(one) == len(other) and all(map(are_same, one, other))
    return type(one) is type(other) and one == other


@given(trees)
def test_what_is_unpacked_is_what_was_packed(tree):
    tree = with_arrays(tree, np.random.default_rng(0))
    assert are_same(unpack(pack(tree)), tree)


def test_a_transposed_array_is_packed_in_its_own_order_of_axes():
    array = np.arange(6.0).reshape(2, 3).T
    assert np.array_equal(unpack(pack([array]))[0], array)


def test_what_is_packed_is_a_copy():
    """An optimiser changes values in place."""
    array = np.zeros(3)
    message = pack({"value": array})
    array += 1
    assert not unpack(message)["value"].any()


# -- what make() returns ---------------------------------------------------------------


def make(
    group, rule=lambda pipeline: optim.Adam(pipeline.parameters(), 0.1), **options
):
    embedding = nn.Embedding(5, 4)
    layers = [layer for _ in range(3) for layer in (nn.Linear(4, 4), nn.Tanh())]
    model = nn.Sequential(embedding, *layers, nn.Unembedding(embedding))
    pipeline = Pipeline(
        model, group, loss=nn.CrossEntropyLoss(), num_microbatches=2, **options
    )
    return pipeline, rule(pipeline)


def test_a_state_goes_into_another_partition_of_the_same_model():
    """From two ranks with three stages each cut elsewhere, to the bit, with the groups
    of an optimiser. The story: it counted its steps from 0 again, and forgot its
    numbers before the first."""

    def two_groups(pipeline):
        named = list(pipeline.named_parameters())
        return optim.AdamW(
            [
                {"parameters": [p for name, p in named if not name.endswith("bias")]},
                {
                    "parameters": [p for name, p in named if name.endswith("bias")],
                    "weight_decay": 0.0,
                },
            ],
            learning_rate=0.1,
        )

    def train(group):
        made = Made.checked(make(group, two_groups))
        for _ in range(3):
            made.pipeline.step(np.ones((4, 3), int), np.ones((4, 3), int))
            made.optimiser.step()
        made.optimiser.learning_rate = 0.025
        return unpack(pack(made.state()))

    states = spawn(train, num_ranks=3)
    values = {
        name: value for state in states for name, value in state["values"].items()
    }
    merged = OptimiserState.merged(
        OptimiserState.from_dict(state["optimiser"]) for state in states
    )

    def load(group):
        made = Made.checked(make(group, two_groups))
        made.optimiser.learning_rate = 0.7
        made.load({**states[0], "values": values, "optimiser": merged.to_dict()})
        return unpack(pack(made.state())), made.optimiser.state_dict()

    for state, its in spawn(load, num_ranks=2):
        assert state["num_steps"] == 3
        assert its["num_steps"] == 3 and its["first"][0]["learning_rate"] == 0.1
        assert all(
            are_same(value, values[name]) for name, value in state["values"].items()
        )
        assert state["optimiser"]["kept"].keys() == state["values"].keys()
        assert all(
            are_same(kept, merged.kept[name])
            for name, kept in state["optimiser"]["kept"].items()
        )
        for group in state["optimiser"]["groups"]:
            assert group["numbers"]["learning_rate"] == 0.025
            for name in group["parameters"]:
                assert group["numbers"]["weight_decay"] == (
                    0.0 if name.endswith("bias") else 0.01
                )


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda pipeline, optimiser: pipeline, "expected a pipeline and its optimiser"),
        (
            lambda pipeline, optimiser: (optimiser, pipeline),
            "expected a pipeline and its optimiser",
        ),
        (
            lambda pipeline, optimiser: (pipeline, optimiser, {}),
            "also returned dict, which has no state_dict",
        ),
        (
            lambda pipeline, optimiser: (
                pipeline,
                optim.SGD([nn.Parameter(np.ones(3))], 0.1),
            ),
            r"of shape \(3,\)",
        ),
    ],
)
def test_what_make_returns_is_checked(made, words):
    with pytest.raises(ArgumentError, match=words):
        spawn(lambda group: Made.checked(made(*make(group))), num_ranks=1)


def test_a_parameter_that_nobody_trains_is_kept_as_well():
    def frozen(group):
        model = nn.Sequential(
            nn.Linear(2, 2), nn.Function(functional.tanh), nn.Linear(2, 2)
        )
        model[0].freeze()
        pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=1)
        return pipeline, optim.SGD(
            [p for p in pipeline.parameters() if p.requires_grad], 0.1
        )

    (state,) = spawn(lambda group: Made.checked(frozen(group)).state(), num_ranks=1)
    assert "0.weight" not in state["optimiser"]["kept"]
    (again,) = spawn(
        lambda group: (made := Made.checked(frozen(group))).load(state) or made.state(),
        num_ranks=1,
    )
    assert np.array_equal(again["values"]["0.weight"], state["values"]["0.weight"])
