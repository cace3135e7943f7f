"""Weights in PyTorch's layout: its names and axes for the layers that both libraries
have.

======================  ===============================================================================================
here                    in PyTorch
======================  ===============================================================================================
Linear                  the weight transposed: (outputs, inputs) LSTM
``weight_ih_l0`` and ``weight_hh_l0`` transposed; the sum of ``bias_ih_l0`` and
``bias_hh_l0`` MultiHeadAttention      ``in_proj_weight`` transposed, ``in_proj_bias``,
``out_proj`` CrossAttention          the same, whose first rows make the queries;
``q_proj_weight``, ``k_proj_weight`` and
                        ``v_proj_weight`` for a memory of another width
TransformerBlock        ``TransformerEncoderLayer`` with ``norm_first=True``
DecoderBlock            ``TransformerDecoderLayer`` with ``norm_first=True``
norms, embeddings,      the same
convolutions
======================  ===============================================================================================

Attention and blocks may also have minipipe's names, if a module of PyTorch is built
like minipipe's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from minipipe.core.autograd.backend import Array
from minipipe.core.nn.module import Module, check_names
from minipipe.core.nn.parameter import Parameter
from minipipe.errors import ArgumentError, ParameterError
from minipipe.nn import layers, parallel, transformer
from minipipe.nn.spatial import Conv1d, Conv2d

_TRANSPOSED = (layers.Linear, parallel.ColumnParallelLinear, parallel.RowParallelLinear)
_ALIKE = (
    layers.Embedding,
    layers.PositionalEmbedding,
    layers.Unembedding,
    parallel.ParallelEmbedding,
    parallel.ParallelUnembedding,
    layers.LayerNorm,
    layers.GroupNorm,
    layers.RMSNorm,
    Conv1d,
    Conv2d,
)


def _names_of_block(*norms: str) -> dict[str, str]:
    """Return PyTorch's names for the parts of a block, of which these hold norms."""
    attentions = {"attention": "self_attn", "cross_attention": "multihead_attn"}
    names = {"network.layers.1": "linear1", "network.layers.3": "linear2"}
    for number, part in enumerate(norms, 1):
        names[f"{part}.layers.0"] = f"norm{number}"
        if part in attentions:
            names[f"{part}.layers.1"] = attentions[part]
    return names


_BLOCKS: dict[type[Module], dict[str, str]] = {
    transformer.TransformerBlock: _names_of_block("attention", "network"),
    transformer.DecoderBlock: _names_of_block(
        "attention", "cross_attention", "network"
    ),
}
_Attention = transformer.MultiHeadAttention | transformer.CrossAttention


class _Piece(NamedTuple):
    """The names in PyTorch's state that make one parameter, and how."""

    names: tuple[str, ...]
    make: Callable[..., Array]


def from_torch(
    model: Module, state: Mapping[str, Array], is_strict: bool = True
) -> dict[str, Array]:
    """Return a state with PyTorch's names and axes as one for
    :meth:`Module.load_state_dict`.

    Names of tied parameters may be there for one of their places or for all.

    Parameters
    ----------
    model : Module
    state : mapping of str to array
        The result of ``state_dict()`` of the same model in PyTorch, as arrays.
    is_strict : bool
        Whether a matrix in a custom module is refused, because the order of its axes is
        unknown; otherwise it is loaded as it is.

    Raises
    ------
    ParameterError
        Codes ``missing`` and ``unexpected``, and ``shape``, where tied parameters
        differ.
    ArgumentError
        Code ``type``, for such a matrix.

    Examples
    --------
    >>> from minipipe import nn
    >>> theirs = {"0.weight": np.ones((3, 2)), "0.bias": np.zeros(3)}
    >>> from_torch(nn.Sequential(nn.Linear(2, 3)), theirs)["0.weight"].shape
    (2, 3)
    """
    walk = _Walk(state, is_strict)
    walk.visit(model, "", "")
    walk.check_names(state)
    return walk.taken


class _Walk:
    """The parameters of a model, each with its array."""

    def __init__(self, state: Mapping[str, Array], is_strict: bool) -> None:
        self._state = state
        self._is_strict = is_strict
        # by minipipe's path of a module, PyTorch's path if it differs
        self._modules: dict[str, str] = {}
        # by minipipe's name of a parameter, if PyTorch has no such array
        self._pieces: dict[str, _Piece] = {}
        self._first_names: dict[int, str] = {}  # by owner
        # by minipipe's name, the name that is missing in the state
        self._lacking: dict[str, str] = {}
        self._used = set[str]()
        self.taken: dict[str, Array] = {}

    def visit(self, module: Module, ours: str, theirs: str) -> None:
        """Take the parameters of a module, whose names begin with ``ours``, and in the
        state with ``theirs``.
        """
        self._note_names(module, ours, theirs)
        for name, part in module._parts():
            path = f"{ours}{name}"
            place = self._modules.get(path, f"{theirs}{name}")
            if isinstance(part, Module):
                # an inlined module's parts have the names that they would have without
                # it
                end = "." if name else ""
                self.visit(part, f"{path}{end}", f"{place}{end}")
            else:
                piece = self._pieces.get(path)
                self._take(part, path, piece or self._piece(module, part, path, place))

    def _note_names(self, module: Module, ours: str, theirs: str) -> None:
        """Record PyTorch's names for the parts of attention, blocks and LSTM, if the
        state has these names.
        """
        for kind, names_of_parts in _BLOCKS.items():
            if isinstance(module, kind) and f"{theirs}norm1.weight" in self._state:
                for name, place in names_of_parts.items():
                    self._modules[f"{ours}{name}"] = f"{theirs}{place}"
        pieces: dict[str, _Piece] = {}
        if isinstance(module, layers.LSTM):
            pieces = _OF_LSTM
        elif isinstance(module, _Attention) and f"{theirs}in_proj_bias" in self._state:
            self._modules[f"{ours}output"] = f"{theirs}out_proj"
            is_joined = f"{theirs}in_proj_weight" in self._state
            pieces = _of_attention(module, is_joined)
        for name, piece in pieces.items():
            names = tuple(f"{theirs}{each}" for each in piece.names)
            self._pieces[f"{ours}{name}"] = _Piece(names, piece.make)

    def _piece(
        self, module: Module, parameter: Parameter, path: str, place: str
    ) -> _Piece:
        if isinstance(module, _TRANSPOSED) and path.rpartition(".")[2] == "weight":
            return _Piece((place,), np.transpose)
        is_known = isinstance(module, _ALIKE) or len(parameter.whole_shape) < 2
        if self._is_strict and not is_known:
            raise ArgumentError(
                "type",
                f"layout='torch': {path} belongs to {type(module).__name__}, whose "
                "counterpart in PyTorch is not known. Bring its axes into minipipe's "
                "order, and give all arrays to model.load_state_dict.",
            )
        return _Piece((place,), np.asarray)

    def _take(self, parameter: Parameter, path: str, piece: _Piece) -> None:
        first = self._first_names.setdefault(id(parameter.owner), path)
        if lacking := [name for name in piece.names if name not in self._state]:
            self._lacking.setdefault(first, ", ".join(lacking))
            return
        self._used.update(piece.names)
        array = piece.make(*(self._state[name] for name in piece.names))
        known = self.taken.get(first)
        if known is not None and not np.array_equal(known, array, equal_nan=True):
            raise ParameterError(
                "shape",
                f"{first} and {path} are one parameter in this model, but the state "
                f"has two: {', '.join(piece.names)} holds other numbers.",
            )
        self.taken.setdefault(first, array)

    def check_names(self, state: Mapping[str, Array]) -> None:
        """Refuse a state that lacks a parameter, or holds more."""
        lacking = [item for item in self._lacking.items() if item[0] not in self.taken]
        missing = [f"{names} (for {name})" for name, names in lacking]
        check_names(missing, state.keys() - self._used)


_OF_LSTM = {
    "input_weight": _Piece(("weight_ih_l0",), np.transpose),
    "hidden_weight": _Piece(("weight_hh_l0",), np.transpose),
    "bias": _Piece(("bias_ih_l0", "bias_hh_l0"), np.add),
}


def _of_attention(attention: _Attention, is_joined: bool) -> dict[str, _Piece]:
    """Return the arrays of the projections of an attention, from one matrix or from one
    for each of q, k and v.
    """
    weight = ("in_proj_weight",)
    bias = ("in_proj_bias",)
    if isinstance(attention, transformer.MultiHeadAttention):
        return {
            "projections.weight": _Piece(weight, np.transpose),
            "projections.bias": _Piece(bias, np.asarray),
        }
    width = attention.queries.weight.whole_shape[1]
    found = {
        "queries.bias": _Piece(bias, lambda vector: vector[:width]),
        "projections.bias": _Piece(bias, lambda vector: vector[width:]),
    }
    if is_joined:
        found["queries.weight"] = _Piece(weight, lambda matrix: matrix[:width].T)
        found["projections.weight"] = _Piece(weight, lambda matrix: matrix[width:].T)
    else:
        both = "k_proj_weight", "v_proj_weight"
        found["queries.weight"] = _Piece(("q_proj_weight",), np.transpose)
        found["projections.weight"] = _Piece(both, lambda *both: np.concatenate(both).T)
    return found


def undecided(model: Module, state: Mapping[str, Any]) -> list[str]:
    """Return the parameters that would differ if the state, whose names and shapes fit,
    were in PyTorch's layout.

    The list is empty if a shape determines the layout.

    Examples
    --------
    >>> from minipipe import nn
    >>> square, other = np.array([[1.0, 2.0], [3.0, 4.0]]), np.ones((2, 3))
    >>> undecided(nn.Sequential(nn.Linear(2, 2, bias=False)), {"0.weight": square})
    ['0.weight']
    >>> both = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 3, bias=False))
    >>> undecided(both, {"0.weight": square, "1.weight": other})
    []
    """
    try:
        theirs = from_torch(model, state, is_strict=False)
    except ParameterError:
        return []
    if any(array.shape != np.shape(state[name]) for name, array in theirs.items()):
        return []
    return [
        name
        for name, array in theirs.items()
        if not np.array_equal(array, state[name], equal_nan=True)
    ]
