"""In which layout a file of weights is: what its metadata say, what its shapes tell,
and what nobody can tell.
"""

import warnings

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from minipipe import Pipeline, checkpoint, nn, spawn
from minipipe.errors import ArgumentError, ParameterError
from tests.nn.test_torch_layout import in_torch, tied

SQUARE = np.arange(9, dtype=np.float32).reshape(3, 3)


def square(num_layers=1):
    return nn.Sequential(*(nn.Linear(3, 3, bias=False) for _ in range(num_layers)))


def weights(path, model, **options):
    checkpoint.load_weights(path, model, **options)
    return model.state_dict()


@pytest.fixture
def silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_a_file_of_minipipe_says_its_layout_and_is_taken_without_a_word(
    tmp_path, silent
):
    path, model = tmp_path / "a", square(2).initialise(1)

    def export(group):
        checkpoint.export(path, Pipeline(model, group))

    spawn(export, 2)
    with safe_open(path, "numpy") as file:
        assert file.metadata() == {"layout": "minipipe"}
    for options in ({}, {"layout": "minipipe"}):
        found = weights(path, square(2), **options)
        assert all(
            (found[name] == values).all() for name, values in model.state_dict().items()
        )
    with pytest.raises(
        ArgumentError,
        match=r"a was written by minipipe in its own layout; leave out layout='torch'",
    ):
        checkpoint.load_weights(path, square(2), layout="torch")


@pytest.mark.parametrize(
    ("num_layers", "words"),
    [(1, r"0\.weight is square"), (3, r"0\.weight and 2 more are square")],
)
def test_a_square_weight_of_a_file_that_does_not_say_its_layout_is_taken_with_a_warning(
    tmp_path, num_layers, words
):
    save_file({f"{i}.weight": SQUARE for i in range(num_layers)}, tmp_path / "a")
    with pytest.warns(
        UserWarning, match=rf"a does not name its layout, and {words}: .*layout='torch'"
    ):
        found = weights(tmp_path / "a", square(num_layers))
    assert (found["0.weight"] == SQUARE).all()


def test_a_layout_that_is_given_or_in_the_metadata_is_followed(tmp_path, silent):
    save_file({"0.weight": SQUARE}, tmp_path / "a")
    assert (
        weights(tmp_path / "a", square(), layout="torch")["0.weight"] == SQUARE.T
    ).all()
    assert (
        weights(tmp_path / "a", square(), layout="minipipe")["0.weight"] == SQUARE
    ).all()
    save_file({"0.weight": SQUARE}, tmp_path / "b", {"layout": "torch"})
    assert (weights(tmp_path / "b", square())["0.weight"] == SQUARE.T).all()


def test_the_metadata_of_other_programs_are_no_layout(tmp_path):
    save_file({"0.weight": SQUARE}, tmp_path / "a", {"format": "pt"})
    with pytest.warns(UserWarning, match="does not name its layout"):
        checkpoint.load_weights(tmp_path / "a", square())


TOLD = {
    "another weight has the shape of this layout": (
        nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 2, bias=False)),
        {"0.weight": SQUARE, "1.weight": np.ones((3, 2), np.float32)},
    ),
    "the weight is the same either way": (
        square(),
        {"0.weight": np.eye(3, dtype=np.float32)},
    ),
    "there is no linear layer": (
        nn.Sequential(nn.Embedding(3, 3)),
        {"0.weight": SQUARE},
    ),
    "a vector": (nn.Sequential(nn.RMSNorm(3)), {"0.weight": SQUARE[0]}),
}


@pytest.mark.parametrize("case", TOLD)
def test_nothing_is_said_where_the_layout_is_told_or_makes_no_difference(
    tmp_path, silent, case
):
    model, state = TOLD[case]
    save_file(state, tmp_path / "a")
    found = weights(tmp_path / "a", model)
    assert all((found[name] == values).all() for name, values in state.items())


@pytest.mark.parametrize("case", ["Linear", "LSTM", "attention"])
def test_the_refusal_of_a_file_from_pytorch_says_how_it_is_taken(tmp_path, case):
    layer, theirs = in_torch(case)
    save_file(theirs, tmp_path / "a")
    with pytest.raises(
        ParameterError, match=r"It fits in PyTorch's layout: pass layout='torch'\.$"
    ):
        checkpoint.load_weights(tmp_path / "a", layer)
    save_file({**theirs, "more": SQUARE}, tmp_path / "b")
    with pytest.raises(ParameterError) as caught:
        checkpoint.load_weights(tmp_path / "b", layer)
    assert "layout='torch'" not in str(caught.value)


@pytest.mark.parametrize(
    "names", [("0.weight",), ("2.weight",), ("0.weight", "2.weight")]
)
def test_a_tied_parameter_may_be_there_under_any_of_its_names(tmp_path, silent, names):
    save_file({**dict.fromkeys(names, SQUARE), "1.weight": 2 * SQUARE}, tmp_path / "a")
    found = weights(tmp_path / "a", tied(), layout="torch")
    assert (found["0.weight"] == SQUARE).all() and (
        found["1.weight"] == 2 * SQUARE.T
    ).all()


def test_two_arrays_for_one_tied_parameter_are_refused(tmp_path):
    save_file(
        {"0.weight": SQUARE, "1.weight": SQUARE, "2.weight": SQUARE + 1}, tmp_path / "a"
    )
    with pytest.raises(
        ParameterError,
        match=r"0\.weight and 2\.weight are one parameter in this model, but the state",
    ):
        checkpoint.load_weights(tmp_path / "a", tied(), layout="torch")


@pytest.mark.parametrize(
    ("state", "code", "words"),
    [
        ({}, "missing", r"missing: 0\.weight \(for 0\.weight\)"),
        (
            {"0.weight": SQUARE, "0.weight_ih_l1": SQUARE},
            "unexpected",
            r"unexpected: 0\.weight_ih_l1",
        ),
        (
            {"0.weight": SQUARE[:2]},
            "shape",
            r"0\.weight has shape \(3, 3\); the state holds \(3, 2\)",
        ),
    ],
)
def test_a_file_from_pytorch_that_does_not_fit_is_refused_by_its_names(
    tmp_path, state, code, words
):
    save_file(state, tmp_path / "a")
    model = square().initialise(0)
    before = model.state_dict()["0.weight"].copy()
    with pytest.raises(ParameterError, match=words) as caught:
        checkpoint.load_weights(tmp_path / "a", model, layout="torch")
    assert (
        caught.value.code == code and (model.state_dict()["0.weight"] == before).all()
    )


def test_another_layout_is_refused(tmp_path):
    with pytest.raises(
        ArgumentError, match=r"layout is 'jax'; expected 'minipipe', 'torch' or None"
    ):
        checkpoint.load_weights(tmp_path / "a", square(), layout="jax")


class Own(nn.Module):
    """A module of one's own with a vector, and perhaps a matrix."""

    def __init__(self, *shape):
        self.scale, self.table = (
            nn.Parameter(np.ones(3)),
            nn.Parameter(np.ones(shape or 3)),
        )


def test_a_matrix_of_a_module_of_ones_own_is_refused_by_name_and_a_vector_is_taken(
    tmp_path, silent
):
    save_file({"0.scale": SQUARE[0], "0.table": SQUARE}, tmp_path / "a")
    with pytest.raises(
        ArgumentError,
        match=r"0\.table belongs to Own, whose counterpart in PyTorch is not known",
    ):
        checkpoint.load_weights(
            tmp_path / "a", nn.Sequential(Own(3, 3)), layout="torch"
        )
    save_file({"0.scale": SQUARE[0], "0.table": SQUARE[1]}, tmp_path / "b")
    assert (
        weights(tmp_path / "b", nn.Sequential(Own()), layout="torch")["0.table"]
        == SQUARE[1]
    ).all()


def test_ranks_that_share_a_layer_take_their_parts_of_a_file_from_pytorch(
    tmp_path, silent
):
    save_file(
        {"0.weight": SQUARE[:2], "1.weight": SQUARE[:, :2].copy()}, tmp_path / "a"
    )

    def load(group):
        model = nn.parallelise(
            nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 3, bias=False)),
            group,
        )
        checkpoint.load_weights(tmp_path / "a", model, layout="torch")
        return model.state_dict()

    for found in spawn(load, 2):
        assert (found["0.weight"] == SQUARE[:2].T).all() and (
            found["1.weight"] == SQUARE[:, :2].T
        ).all()
