"""The model alone, in one safetensors file that other programs read."""

from __future__ import annotations

from pathlib import Path

from minipipe.errors import CheckpointError, FileCode, FileError, ParameterError
from minipipe.io import read_bytes, write_whole
from minipipe.nn import Module
from minipipe.pipeline import Pipeline
from minipipe.pipeline.checkpoint.exchange import raise_first, tell
from minipipe.pipeline.checkpoint.tensors import MOST_OF_A_HEADER, pieces, unpacked

_MOST_OF_A_NUMBER = 8  # bytes: float64


def export(path: str | Path, pipeline: Pipeline) -> None:
    """Write the parameters of the whole model to one safetensors file, named as in ``pipeline.state_dict()``.

    Collective; rank 0 writes it, whole or not at all.

    Parameters
    ----------
    path : str or Path
    pipeline : Pipeline

    Raises
    ------
    CheckpointError
        Codes ``unwritable`` and ``value``, on every rank.

    Notes
    -----
    A ``Linear`` has its weight as (inputs, outputs), and PyTorch's as (outputs, inputs): transpose it on the way, as
    ``tests/numerics/test_weights_against_torch.py`` does. An ``LSTM`` has other arrays there; other layers of the same
    name have the same.

    Examples
    --------
    From two ranks to a model without any.

    >>> import tempfile
    >>> import numpy as np
    >>> from minipipe import Pipeline, Tensor, checkpoint, nn, spawn
    >>> model, x = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)), np.ones((3, 2), np.float32)
    >>> def predict(group, path):
    ...     pipeline = Pipeline(model, group, seed=7)
    ...     checkpoint.export(path, pipeline)
    ...     return pipeline.predict(x)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = f"{folder}/model.safetensors"
    ...     outputs = spawn(lambda group: predict(group, path), num_ranks=2)[0]
    ...     checkpoint.load_weights(path, model)
    >>> bool((model(Tensor(x)).numpy() == outputs).all())
    True
    """
    state = pipeline.state_dict()
    told = None
    if pipeline.group.rank == 0:
        try:
            write_whole(path, b"".join(pieces(state)))
        except CheckpointError as error:
            told = [str(error.code), error.message]
        except FileError as error:
            told = ["unwritable", error.message]
    raise_first([tell(pipeline.group, 0, told, "checkpoint.export()")])


def load_weights(path: str | Path, model: Module) -> None:
    """Take the parameters of a model from a safetensors file. Local.

    Parameters
    ----------
    path : str or Path
        A regular file, written by :func:`export`, or by another program with the same names and shapes. Its numbers are
        those of the model then, or refused: see :meth:`minipipe.nn.Module.load_state_dict`.
    model : Module

    Raises
    ------
    FileError
        When it cannot be read, is no regular file, or is larger than any file of this model's parameters.
    CheckpointError
        Codes ``damaged``, when it is no safetensors file; ``value``.
    ParameterError
        Codes ``missing``, ``unexpected``, ``shape`` and ``dtype``; then nothing has changed.

    Examples
    --------
    See :func:`export`. A file that is not there:

    >>> from minipipe import checkpoint, nn
    >>> checkpoint.load_weights("/no/such/file", nn.Linear(2, 1))
    Traceback (most recent call last):
        ...
    minipipe.errors.FileError: '/no/such/file' cannot be read: No such file or directory.
    """
    try:
        most = MOST_OF_A_HEADER + _MOST_OF_A_NUMBER * model.num_parameters
        state = unpacked(read_bytes(path, most, pipes=False))
    except FileError as error:
        why = f" This model has {model.num_parameters:,} numbers." if error.code == FileCode.TOO_LARGE else ""
        raise FileError(error.code, error.message + why) from None
    except CheckpointError as error:
        raise CheckpointError(error.code, f"{path} cannot be taken: {error.message}") from None
    try:
        model.load_state_dict(state)
    except ParameterError as error:
        raise ParameterError(error.code, f"{path} cannot be taken: {error.message}") from None
