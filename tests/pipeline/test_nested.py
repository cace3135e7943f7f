"""A sequence inside a sequence: its layers are layers, a cut may fall between them, and
names stay nested.
"""

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Pipeline, Plan, Tensor, nn, random_key, spawn
from minipipe.errors import PartitionError, TensorError
from minipipe.testing import check_same_as_one_process, same_bits
from tests.launch import of_each_kind
from tests.strategies import NAMES, batch, build, examples

WIDTH = 4


def nested():
    block = nn.Sequential(
        nn.Linear(WIDTH, WIDTH),
        nn.Dropout(0.3),
        nn.Sequential(nn.Tanh(), nn.Linear(WIDTH, WIDTH)),
    )
    return nn.Sequential(block, nn.Sequential(nn.Dropout(0.3), nn.Linear(WIDTH, 2)))


def flat():
    return nn.Sequential(*nested().flat_layers)


def test_the_layers_are_those_of_all_and_the_names_are_nested():
    plan = Plan(nested(), num_ranks=3)
    assert [type(layer).__name__ for layer in plan.layers] == [
        "Linear",
        "Dropout",
        "Tanh",
        "Linear",
        "Dropout",
        "Linear",
    ]
    assert list(plan.owners) == [
        "0.0.weight",
        "0.0.bias",
        "0.2.1.weight",
        "0.2.1.bias",
        "1.1.weight",
        "1.1.bias",
    ]
    assert list(plan.owners.values()) == [0, 0, 1, 1, 2, 2]
    assert len(str(plan).splitlines()) == 6 + 2


@pytest.mark.parametrize("name", of_each_kind(NAMES))
def test_a_model_that_is_cut_inside_a_nested_sequence_has_the_bits_of_one_process(name):
    check_same_as_one_process(
        nested(), nn.MSELoss(), *batch(8, WIDTH), build(name, 3, 4)
    )


def test_a_nested_model_computes_and_draws_as_a_flat_one():
    model = nested().initialise(0)
    twin = flat()
    twin.load_state_dict(
        dict(zip(dict(twin.named_parameters()), model.state_dict().values()))
    )
    x = Tensor(batch(8, WIDTH)[0])
    with random_key(0):
        expected = twin(x).numpy()
    with random_key(0):
        assert same_bits(model(x).numpy(), expected)


def test_a_nested_sequence_that_is_recomputed_draws_as_one_that_is_not():
    inner = nested()[0]
    x, results = Tensor(batch(8, WIDTH)[0]), []
    for wrap in (lambda sequence: sequence, nn.Recompute):
        model = nn.Sequential(
            wrap(inner), nn.Dropout(0.3), nn.Linear(WIDTH, 2)
        ).initialise(0)
        with random_key(0):
            model(x).sum().backward()
        results.append([parameter.grad.tobytes() for parameter in model.parameters()])
        model.zero_grad()
    assert results[0] == results[1]


@st.composite
def trees(draw, depth=3):
    """Draw a sequence of layers and sequences; some of these are empty."""
    count = draw(st.integers(1, 3))
    parts = []
    for _ in range(count):
        kinds = (
            ["linear", "tanh", "dropout", "sequence", "recomputed", "empty"]
            if depth
            else ["linear", "tanh"]
        )
        kind = draw(st.sampled_from(kinds))
        made = {
            "linear": lambda: nn.Linear(WIDTH, WIDTH),
            "tanh": nn.Tanh,
            "dropout": lambda: nn.Dropout(0.2),
            "sequence": lambda: draw(trees(depth - 1)),
            "recomputed": lambda: nn.Recompute(draw(trees(depth - 1))),
            "empty": nn.Sequential,
        }[kind]()
        parts.append(made)
    return nn.Sequential(*parts)


@examples(60)
@given(trees(), st.integers(1, 3), st.sampled_from(["gpipe", "1f1b", "zb-h1"]))
def test_any_tree_of_sequences_has_the_bits_of_one_process(tree, num_ranks, name):
    model = nn.Sequential(tree, nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2))
    check_same_as_one_process(
        model, nn.MSELoss(), *batch(6, WIDTH), build(name, num_ranks, 3)
    )


@pytest.mark.parametrize(
    ("partition", "expected"),
    [
        ([range(1), range(1, 2)], [range(4), range(4, 6)]),  # counts the two sequences
        ([range(1), range(1, 6)], [range(1), range(1, 6)]),  # counts the six layers
    ],
)
def test_a_partition_may_count_the_models_own_layers_or_the_flat_ones(
    partition, expected
):
    assert list(Plan(nested(), num_ranks=2, partition=partition).partition) == expected
    costs = [1, 1] if expected[0] == range(4) else [9, 1, 1, 1, 1, 1]
    assert list(Plan(nested(), num_ranks=2, layer_costs=costs).partition) == expected


def test_costs_and_partitions_of_another_length_are_refused():
    with pytest.raises(
        PartitionError,
        match="layer_costs has 3 values; expected one for each of 6 layers",
    ):
        Plan(nested(), num_ranks=2, layer_costs=[1, 2, 3])
    with pytest.raises(PartitionError, match="does not divide layers 0 to 5"):
        Plan(nested(), num_ranks=2, partition=[range(1), range(1, 3)])


def test_modules_that_are_sequences_stay_whole_where_they_are_given_as_stages():
    def stages(group):
        modules = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3)]
        return Pipeline.from_modules(modules, group, loss=nn.MSELoss()).partition

    assert spawn(stages, 3)[0] == [range(2), range(2, 4), range(4, 6)]


def test_a_slice_of_a_nested_model_draws_as_in_the_whole():
    model = nested().initialise(0)
    x = Tensor(batch(8, WIDTH)[0])
    with random_key(0):
        whole = model(x).numpy()
    with random_key(0):
        first = model[:1](x)
    assert (model[1:].first_layer, model[1:].first_place) == (4, 4)
    with random_key(0):
        assert same_bits(model[1:](first).numpy(), whole)


def test_an_error_names_the_layer_by_its_number_among_all():
    model = copy.deepcopy(nested()).initialise(0)
    with pytest.raises(TensorError) as caught, random_key(0):
        nn.Sequential(model, nn.Linear(3, 3).initialise(0))(
            np.ones((2, WIDTH), np.float32)
        )
    assert caught.value.__notes__ == ["in layer 6, Linear(3, 3)"]


def test_a_recomputation_of_ones_own_keeps_its_forward():
    class Doubles(nn.Recompute):
        def forward(self, x):
            return super().forward(x) * 2

    doubles = Doubles(nn.Sequential(nn.Identity()))
    assert nn.Sequential(doubles)(Tensor([1.0])).item() == 2


def test_an_error_names_the_layer_as_the_plan_does_behind_a_recomputed_sequence_too():
    """The story: it counted places for random numbers, of which a recomputed sequence
    has one for each layer.
    """
    recomputed = nn.Recompute(
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3), nn.Linear(WIDTH, WIDTH))
    )
    model = nn.Sequential(
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()),
        recomputed,
        nn.Linear(WIDTH + 1, 2),
    )
    number = [type(layer) for layer in Plan(model, num_ranks=1).layers].index(
        nn.Recompute
    ) + 1
    assert (model[2:].first_layer, model[2:].first_place) == (3, 5)

    def run(group):
        Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=1).step(
            *batch(2, WIDTH)
        )

    for num_ranks in (1, 2):
        with pytest.raises(TensorError) as caught:
            spawn(run, num_ranks)
        assert caught.value.__notes__[0] == f"in layer {number}, Linear(5, 2)"
