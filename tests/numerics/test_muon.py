"""Muon: which parameters are matrices, and what becomes of their singular values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import nn, optim, spawn
from minipipe.errors import ArgumentError
from tests.strategies import examples


@examples(40)
@given(
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1e-20, 1.0, 1e20]),
)
def test_singular_values_of_any_size_come_near_one_and_the_vectors_stay(
    shape, seed, size
):
    rank = min(shape)
    generator = np.random.default_rng(seed)
    left = np.linalg.qr(generator.standard_normal((shape[0], rank)))[0]
    right = np.linalg.qr(generator.standard_normal((shape[1], rank)))[0]
    values = generator.uniform(0.05, 1.0, rank)
    matrix = size * (left * values) @ right.T
    if size < 1e-7:
        matrix = matrix * 1e20  # below the smallest norm a matrix is not scaled up
    found = left.T @ optim.orthogonalised(matrix) @ right
    assert np.all((np.diag(found) > 0.65) & (np.diag(found) < 1.25))
    assert np.abs(found - np.diag(np.diag(found))).max() < 1e-9


def test_a_matrix_of_zeros_stays_one():
    assert not optim.orthogonalised(np.zeros((3, 2))).any()


def steps_of(optimiser, parameters, num_steps=3):
    generator = np.random.default_rng(1)
    for _ in range(num_steps):
        for one in parameters:
            one.grad = generator.standard_normal(one.shape)
        optimiser.step()
    return [one.data.tobytes() for one in parameters]


SHAPES = [(3, 4), (4,), (2, 3, 2), (5, 2)]


def some():
    generator = np.random.default_rng(0)
    return [nn.Parameter(generator.standard_normal(shape)) for shape in SHAPES]


def test_what_is_no_matrix_has_the_bits_of_adamw():
    ours, theirs, whole = some(), some(), some()
    numbers = {"weight_decay": 0.1, "betas": (0.8, 0.99), "epsilon": 1e-3}
    expected = steps_of(optim.AdamW(theirs, 0.1, **numbers), theirs)
    found = steps_of(optim.Muon(ours, 0.1, **numbers), ours)
    assert [a == b for a, b in zip(found, expected)] == [False, True, True, False]
    none = optim.Muon(whole, 0.1, orthogonal=False, **numbers)
    assert steps_of(none, whole) == expected


def names_of(model, groups):
    names = {id(one): name for name, one in model.named_parameters()}
    return [[names[id(one)] for one in group["parameters"]] for group in groups]


def language_model(is_tied=False):
    embedding = nn.Embedding(9, 4)
    head = nn.Unembedding(embedding) if is_tied else nn.Linear(4, 9)
    block = nn.TransformerBlock(4, 2, is_causal=True)
    layers = [embedding, nn.PositionalEmbedding(5, 4), block, nn.LayerNorm(4), head]
    return nn.Sequential(*layers)


IN_THE_BLOCK = [
    "2.attention.projections.weight",
    "2.attention.output.weight",
    "2.network.0.weight",
    "2.network.2.weight",
]


def test_tables_and_the_output_layer_are_left_to_adamw():
    model = language_model()
    matrices, others = names_of(model, optim.muon_groups(model))
    assert [name for name in matrices if not name.startswith("2.")] == []
    assert len(matrices) == 4
    assert {"0.weight", "1.weight", "4.weight", "4.bias"} <= set(others)
    assert len(matrices) + len(others) == len(list(model.parameters()))


def test_the_kinds_of_layers_and_the_output_layer_can_be_chosen():
    model = language_model()
    matrices, _ = names_of(model, optim.muon_groups(model, with_output=True))
    assert "4.weight" in matrices and "0.weight" not in matrices
    found = optim.muon_groups(model, (nn.Embedding, nn.MultiHeadAttention))
    matrices, _ = names_of(model, found)
    assert "1.weight" in matrices and not any("attention" in one for one in matrices)


def test_a_tied_table_is_no_matrix_in_either_layer():
    model = language_model(is_tied=True)
    matrices, others = names_of(model, optim.muon_groups(model))
    # a block whose output layer is a table has no other output layer
    assert "0.weight" in others and "0.weight" not in matrices and len(matrices) == 4


def test_of_divided_layers_they_are_the_same():
    plain = language_model()
    expected = names_of(plain, optim.muon_groups(plain))

    def divided(group):
        model = nn.fully_shard(nn.parallelise(language_model(), group), group)
        return names_of(model, optim.muon_groups(model))

    assert spawn(divided, 2) == [expected] * 2


# -- mistakes --------------------------------------------------------------------------


def test_what_is_kept_for_a_parameter_cannot_change_meanwhile():
    parameters = some()
    optimiser = optim.Muon(parameters)
    with pytest.raises(AttributeError, match="orthogonal cannot be changed"):
        optimiser.groups[0].orthogonal = False
    optimiser.groups[0].orthogonal = True  # as it is
    steps_of(optimiser, parameters)
    other = optim.Muon(some(), orthogonal=False)
    with pytest.raises(ArgumentError, match="state's orthogonal is True; expected Fal"):
        other.load_state_dict(optimiser.state_dict())
    assert other.state_dict()["states"] == [{}] * len(SHAPES)


def test_a_state_of_adamw_for_a_matrix_is_refused():
    parameters = some()
    optimiser = optim.Muon(parameters)
    steps_of(optimiser, parameters)
    state = optimiser.state_dict()
    state["states"][0] = state["states"][1]
    with pytest.raises(ArgumentError, match="expected velocity"):
        optimiser.load_state_dict(state)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"rate_by_shape": "jordn"}, "Did you mean 'jordan'"),
        ({"num_iterations": 0}, "num_iterations is 0"),
        ({"orthogonal": 1}, "orthogonal is 1; expected True or False"),
        ({"momentum": 1.0}, "momentum is 1.0"),
        ({"ns_steps": 3}, "here it is num_iterations="),
        ({"adjust_lr_fn": "original"}, "here it is rate_by_shape="),
    ],
)
def test_other_numbers_are_refused(numbers, words):
    with pytest.raises((ArgumentError, TypeError), match=words):
        optim.Muon(some(), **numbers)


def test_groups_of_anything_but_a_model_are_refused():
    with pytest.raises(ArgumentError, match="expected a model or a pipeline"):
        optim.muon_groups(some())
