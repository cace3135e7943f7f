"""The model alone, for other programs: its parameters in one safetensors file."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, Literal

from minipipe.core.nn.module import check_state
from minipipe.core.specs import Spec
from minipipe.errors import ArgumentError, CheckpointError, FileError, ParameterError
from minipipe.io import read_bytes, write_whole
from minipipe.nn import Module
from minipipe.nn.torch_layout import from_torch, undecided
from minipipe.pipeline import Pipeline
from minipipe.pipeline.checkpoint.manifest import from_rank_0
from minipipe.pipeline.checkpoint.state import everyone
from minipipe.pipeline.checkpoint.storage import (
    MOST_OF_A_HEADER,
    metadata_of,
    pieces,
    unpacked,
)

_MOST_OF_A_NUMBER = 8  # bytes: float64
_LAYOUTS = ("minipipe", "torch")


def export(path: str | Path, pipeline: Pipeline) -> None:
    """Write the parameters of the whole model to one safetensors file, named as in
    ``pipeline.state_dict()``.

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
    A ``Linear`` has its weight as (inputs, outputs), and PyTorch's as (outputs,
    inputs): transpose it on the way, as
    ``tests/numerics/test_weights_against_torch.py`` does. An ``LSTM`` and attention
    have other arrays in PyTorch (``minipipe/nn/torch_layout.py`` lists them); other
    layers of the same name have the same. The file's metadata are ``{"layout":
    "minipipe"}``.

    Examples
    --------
    From two ranks to a model without any.

    >>> import tempfile
    >>> import numpy as np
    >>> from minipipe import Pipeline, Tensor, checkpoint, nn, spawn
    >>> model, x = (
    ...     nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)),
    ...     np.ones((3, 2), np.float32),
    ... )
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

    def write() -> None:
        try:
            write_whole(path, b"".join(pieces(state)))
        except FileError as error:
            raise CheckpointError("unwritable", error.message) from None

    from_rank_0(everyone(pipeline), "checkpoint.export()", write)


def load_weights(
    path: str | Path, model: Module, layout: Literal["minipipe", "torch"] | None = None
) -> None:
    """Take the parameters of a model from a safetensors file. Local.

    Give ``layout="torch"`` for a file from PyTorch. There the weight of a linear layer
    is transposed. Names and shapes usually tell; but a square weight fits either way,
    and the model would compute something else. If nothing in the file decides, it is
    taken as minipipe's, with a warning.

    Parameters
    ----------
    path : str or Path
        A regular file, written by :func:`export`, or by another program with the same
        names and shapes. Its numbers become the model's values, or are refused: see
        :meth:`minipipe.nn.Module.load_state_dict`.
    model : Module
    layout : {"minipipe", "torch"}, optional
        ``"torch"``: names and axes of the same layers in PyTorch, which
        ``minipipe/nn/torch_layout.py`` lists: Linear, LSTM, attention, transformer
        blocks, convolutions, norms, embeddings. ``"minipipe"``: names and axes of
        :meth:`minipipe.nn.Module.state_dict`. By default the layout in the file's
        metadata, or else ``"minipipe"``.

    Raises
    ------
    FileError
        When it cannot be read, is not a regular file, or is larger than any file of
        this model's parameters.
    CheckpointError
        Codes ``damaged``, when it is not a safetensors file; ``value``.
    ParameterError
        Codes ``missing``, ``unexpected``, ``shape`` and ``dtype``; then nothing has
        changed.
    ArgumentError
        Code ``value``, for another layout, or ``"torch"`` for a file that minipipe
        wrote; ``type``, with ``"torch"`` for a model in which a custom module has a
        matrix.

    Examples
    --------
    See :func:`export`. A file that is not there:

    >>> from minipipe import checkpoint, nn
    >>> checkpoint.load_weights("/no/such/file", nn.Linear(2, 1))
    Traceback (most recent call last):
        ...
    minipipe.errors.FileError: '/no/such/file' cannot be read: No such file or directory.
    """
    Spec(choices=(*_LAYOUTS, None)).check("layout", layout)
    state, written_in = _weights_in(path, model)
    if layout == "torch" and written_in == "minipipe":
        raise ArgumentError(
            f"{path} was written by minipipe in its own layout; leave out "
            "layout='torch'."
        )
    known: str | None = layout
    if known is None and written_in in _LAYOUTS:
        known = written_in
    try:
        values = state
        if known == "torch":
            values = from_torch(model, state)
        model.load_state_dict(values)
    except ParameterError as error:
        hint = ""
        if known is None and _fits(model, state):
            hint = " It fits in PyTorch's layout: pass layout='torch'."
        raise ParameterError(
            error.code, f"{path} cannot be loaded: {error.message}{hint}"
        ) from None
    if known is None and (names := undecided(model, state)):
        square = f"{names[0]} is square"
        if len(names) > 1:
            square = f"{names[0]} and {len(names) - 1} more are square"
        warnings.warn(
            f"{path} does not name its layout, and {square}: loaded in minipipe's "
            "layout, (inputs, outputs). "
            "For a file from PyTorch pass layout='torch', otherwise layout='minipipe'.",
            stacklevel=2,
        )


def _weights_in(
    path: str | Path, model: Module
) -> tuple[Mapping[str, Any], str | None]:
    """Return the arrays of a file that may belong to a model, and the layout in its
    metadata.
    """
    try:
        size = sum(prod(parameter.whole_shape) for parameter in model.parameters())
        content = read_bytes(
            path, MOST_OF_A_HEADER + _MOST_OF_A_NUMBER * size, pipes=False
        )
        return unpacked(content), metadata_of(content).get("layout")
    except FileError as error:
        message = error.message
        if error.code == "too-large":
            message += f" This model has {size:,} numbers."
        raise FileError(error.code, message) from None
    except CheckpointError as error:
        raise CheckpointError(
            error.code, f"{path} cannot be loaded: {error.message}"
        ) from None


def _fits(model: Module, state: Mapping[str, Any]) -> bool:
    """Return whether a state would be taken in PyTorch's layout."""
    try:
        check_state(dict(model.named_parameters()), from_torch(model, state))
    except (ParameterError, ArgumentError):
        return False
    return True
