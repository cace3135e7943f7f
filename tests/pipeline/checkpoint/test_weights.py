"""The model alone, in one file: names and bits of pipeline.state_dict(), to any model
and from other programs.
"""

import os
import struct

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from minipipe import Pipeline, checkpoint, nn, spawn
from minipipe.errors import CheckpointError, FileError, MessageError, ParameterError
from minipipe.pipeline.checkpoint.storage import unpacked
from tests.half_precision import every_half
from tests.pipeline.checkpoint.recipes import RECIPES
from tests.pipeline.checkpoint.small import model as small_model


def exported(path, model, num_ranks=2):
    """Export from a pipeline; return the state of the whole model."""

    def ranks(group):
        pipeline = Pipeline(model, group, loss=nn.MSELoss(), seed=2)
        checkpoint.export(path, pipeline)
        return pipeline.state_dict()

    return spawn(ranks, num_ranks)[0]


def same(one, other):
    assert list(one) == list(other)
    for name, array in one.items():
        assert (array.dtype, array.shape) == (other[name].dtype, other[name].shape), (
            name
        )
        assert array.tobytes() == other[name].tobytes(), name


@pytest.mark.parametrize("recipe", ["SGD", "tied"])
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_the_file_holds_the_state_of_the_whole_model(tmp_path, recipe, num_ranks):
    state = exported(tmp_path / "a", RECIPES[recipe].model(), num_ranks)
    read = load_file(tmp_path / "a")
    same(state, {name: read[name] for name in state})
    assert read.keys() == state.keys()
    model = RECIPES[recipe].model()
    checkpoint.load_weights(tmp_path / "a", model)
    same(model.state_dict(), state)


@every_half
def test_halves_keep_their_bits(tmp_path, half):
    model = nn.Sequential(nn.Linear(3, 2, dtype=half))
    state = exported(tmp_path / "a", model, 1)
    same(
        dict(sorted(unpacked((tmp_path / "a").read_bytes()).items())),
        dict(sorted(state.items())),
    )
    other = nn.Sequential(nn.Linear(3, 2, dtype=half))
    checkpoint.load_weights(tmp_path / "a", other)
    same(other.state_dict(), state)


def test_a_parameter_without_elements_and_one_without_axes(tmp_path):
    class Odd(nn.Module):
        def __init__(self):
            self.none, self.one = (
                nn.Parameter(np.ones((0, 3))),
                nn.Parameter(np.array(2.5)),
            )

        def forward(self, x):
            return x * self.one

    state = exported(tmp_path / "a", nn.Sequential(Odd()), 1)
    other = nn.Sequential(Odd())
    other[0].one.data[...] = 0
    checkpoint.load_weights(tmp_path / "a", other)
    same(other.state_dict(), state)
    assert other[0].one.shape == () and other[0].none.shape == (0, 3)


def test_an_earlier_file_stays_where_a_new_one_cannot_be_written(tmp_path):
    with pytest.raises(CheckpointError, match="No such file or directory") as caught:
        exported(tmp_path / "none" / "a", small_model())
    assert caught.value.code == "unwritable"
    with pytest.raises(CheckpointError) as caught:
        exported(tmp_path, small_model())
    assert caught.value.code == "unwritable"


WRONG = {
    "missing": lambda state: {name: state[name] for name in list(state)[1:]},
    "unexpected": lambda state: {**state, "9.weight": np.ones(2)},
    "shape": lambda state: {**state, "0.bias": np.ones(7, np.float32)},
}


@pytest.mark.parametrize("code", WRONG)
def test_the_file_of_another_model_changes_nothing(tmp_path, code):
    model = small_model().initialise(1)
    before = {name: array.copy() for name, array in model.state_dict().items()}
    save_file(WRONG[code](before), tmp_path / "a")
    with pytest.raises(ParameterError) as caught:
        checkpoint.load_weights(tmp_path / "a", model)
    assert caught.value.code == code
    same(model.state_dict(), before)


@pytest.mark.parametrize(
    ("dtype", "why"),
    [(d, "not real") for d in ("int64", "bool", "int8")] + [("float64", "round")],
)
def test_numbers_that_a_parameter_cannot_hold_are_refused(tmp_path, dtype, why):
    """The story: whole numbers, truth values and float64 became float32 without a
    word.
    """
    model = small_model().initialise(1)
    before = {name: array.copy() for name, array in model.state_dict().items()}
    save_file(
        {**before, "0.bias": (before["0.bias"] + np.float64(0.1)).astype(dtype)},
        tmp_path / "a",
    )
    words = (
        r"a cannot be loaded: 0\.bias has dtype float32, and the state holds "
        rf"{dtype}, which .*{why}"
    )
    with pytest.raises(ParameterError, match=words) as caught:
        checkpoint.load_weights(tmp_path / "a", model)
    assert caught.value.code == "dtype"
    same(model.state_dict(), before)


@every_half
def test_halves_are_taken_as_the_same_numbers_by_a_wider_model_alone(tmp_path, half):
    state = exported(tmp_path / "a", nn.Sequential(nn.Linear(3, 2, dtype=half)), 1)
    wide = nn.Sequential(nn.Linear(3, 2))
    checkpoint.load_weights(tmp_path / "a", wide)
    assert all(
        (wide.state_dict()[name] == array.astype(np.float32)).all()
        for name, array in state.items()
    )
    other = np.float16 if half != np.float16 else np.float32
    exported(tmp_path / "b", nn.Sequential(nn.Linear(3, 2, dtype=other)), 1)
    with pytest.raises(
        ParameterError,
        match=f"and the state holds {np.dtype(other).name}, which it would round",
    ):
        checkpoint.load_weights(
            tmp_path / "b", nn.Sequential(nn.Linear(3, 2, dtype=half))
        )


def test_what_is_no_regular_file_of_the_models_size_is_refused_before_it_is_read(
    tmp_path,
):
    """The story: 50 GB of holes were read, and a pipe was waited for."""
    with open(tmp_path / "holes", "wb") as file:
        file.truncate(50 * 10**9)
    with pytest.raises(
        FileError,
        match=r"50,000,000,000 bytes; the limit is [0-9,]+\. This model has 31 numbers",
    ) as caught:
        checkpoint.load_weights(tmp_path / "holes", small_model())
    assert caught.value.code == "too-large"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="it is a pipe; expected a file") as caught:
        checkpoint.load_weights(tmp_path / "pipe", small_model())
    assert caught.value.code == "unreadable"


def test_what_is_no_safetensors_file_is_refused(tmp_path):
    path = tmp_path / "a"
    for content, words in (
        (b"PK\3\4" + bytes(99), "invalid header length"),
        (b"", "header too small"),
    ):
        path.write_bytes(content)
        with pytest.raises(
            CheckpointError,
            match=rf"{path} cannot be loaded: it is not a safetensors file: .*{words}",
        ) as caught:
            checkpoint.load_weights(path, small_model())
        assert caught.value.code == "damaged"
    path.write_bytes(struct.pack("<Q", 2**24 + 8) + bytes(2**24 + 8))
    with pytest.raises(
        CheckpointError,
        match="its header has 16,777,224 bytes; the limit is 16,777,216",
    ):
        checkpoint.load_weights(path, small_model())
    for place in (tmp_path, "/dev/zero", tmp_path / "none"):
        with pytest.raises(FileError):
            checkpoint.load_weights(place, small_model())


def test_every_rank_must_export(tmp_path):
    def ranks(group):
        pipeline = Pipeline(small_model(), group, loss=nn.MSELoss())
        if group.rank == 0:
            checkpoint.export(tmp_path / "a", pipeline)

    with pytest.raises(MessageError, match="rank 1 has returned"):
        spawn(ranks, 2)
