"""A batch: an array or a pytree of arrays, each with all samples, or microbatches; its division, and merged results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, cast
from zlib import crc32

import numpy as np

from minipipe.autograd import backend
from minipipe.autograd.backend import Array, is_array
from minipipe.data import Share
from minipipe.errors import MicrobatchError, TensorError, counted
from minipipe.execution.partition import partition_evenly
from minipipe.execution.payload import Payload
from minipipe.pytree import flattened, rebuilt
from minipipe.specs import COUNT
from minipipe.tensor import Tensor, record


class Replicated:
    """An array or a number in a batch that is not divided: every microbatch gets all of it.

    Parameters
    ----------
    value : array or number

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Replicated
    >>> batch = {"x": np.ones((8, 4)), "scale": Replicated(2.0)}
    >>> samples(batch, "inputs").cut(slice(0, 2)).rebuilt()["scale"]
    array(2., dtype=float32)
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Replicated({self.value!r})"


class Samples(NamedTuple):
    """Inputs or targets, of a batch or of a microbatch.

    Attributes
    ----------
    arrays : list of array
        Each of shape (samples, ...), except replicated ones.
    form : tuple, list, dict or None
        The structure of their pytree, nested or not, with None for each array; None for a single one.
    replicated : frozenset of int
        The positions of arrays that are not divided.
    """

    arrays: list[Array]
    form: Any = None
    replicated: frozenset[int] = frozenset()

    @property
    def num_samples(self) -> int:
        """The length of the first axis."""
        if not self.replicated:
            return self.arrays[0].shape[0]
        return next(array.shape[0] for i, array in enumerate(self.arrays) if i not in self.replicated)

    @property
    def layout(self) -> int:
        """A number for the sizes of its microbatches; 0, for they are equal."""
        return 0

    def cut(self, part: slice) -> Samples:
        """Return some of the samples."""
        if self.form is None:
            return Samples([self.arrays[0][part, ...]])
        arrays = [array if i in self.replicated else array[part, ...] for i, array in enumerate(self.arrays)]
        return Samples(arrays, self.form, self.replicated)

    def rebuilt(self, items: list[Any] | None = None) -> Any:
        """Return the arrays, or other items instead of them, in their form."""
        return rebuilt(self.form, self.arrays if items is None else items)


class Microbatches:
    """A batch as microbatches: each is an array or a pytree, of any length and number of samples.

    Both inputs and targets of a step must be in this form, with as many parts as the schedule has microbatches.

    Parameters
    ----------
    parts : iterable of array, or of tuple, list or dict of arrays
        The arrays of a list or tuple are used as they are. Those of any other iterable are copied, because a generator
        may fill one array again and again.

    Raises
    ------
    MicrobatchError
        Code ``wrong-number``, for a single array or pytree.

    Examples
    --------
    Sequences of three lengths, and no padding.

    >>> import numpy as np
    >>> from minipipe import Microbatches, Pipeline, init_process_group, nn
    >>> x = Microbatches([np.ones((2, 5, 4)), np.ones((3, 7, 4)), np.ones((1, 9, 4))])
    >>> with init_process_group() as group:
    ...     pipeline = Pipeline(nn.Sequential(nn.Identity()), group, loss=nn.MSELoss(), num_microbatches=3)
    ...     pipeline.step(x, x)
    0.0
    """

    def __init__(self, parts: Iterable[Any]) -> None:
        if is_array(parts) or isinstance(parts, str | dict | Tensor):
            kind = type(parts).__name__
            raise MicrobatchError("wrong-number", f"Microbatches takes a list of microbatches; this is one {kind}.")
        self.parts = read_ahead(parts, copied)

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.parts)

    def __getitem__(self, microbatch: int) -> Any:
        return self.parts[microbatch]

    def __repr__(self) -> str:
        return f"<Microbatches: {len(self.parts)}>"


def read_ahead(items: Iterable[Any], copy: Callable[[Any], Any]) -> list[Any]:
    """Return all items of an iterable; copies of them, unless it is a list or tuple, which has them all already.

    A generator may return one array each time, with other values, so each item is copied before the next is read. So
    may the iterator of a subclass of list.

    Examples
    --------
    >>> buffer = np.zeros(2)
    >>> def refilled():
    ...     for k in range(2):
    ...         buffer[:] = k
    ...         yield buffer
    >>> read_ahead(refilled(), copied)
    [array([0., 0.]), array([1., 1.])]
    """
    return list(items) if type(items) in (list, tuple) else list(map(copy, items))


def copied(given: Any) -> Any:
    """Return inputs or targets, of a batch or of a microbatch, with copies of their arrays."""
    if isinstance(given, Microbatches):
        return Microbatches([copied(part) for part in given.parts])
    if isinstance(given, Share):
        return Share(copied(given.value), given.rows, given.num_samples)
    if isinstance(given, Replicated):
        return Replicated(copied(given.value))
    if isinstance(given, Tensor):
        return record(backend.copy(given.data))
    if isinstance(given, tuple | list | dict):
        leaves, form = flattened(given)
        return deepcopy(given) if form is None else rebuilt(form, list(map(copied, leaves)))
    return backend.copy(given) if is_array(given) else given


@dataclass
class Pieces:
    """Inputs or targets that came as microbatches, with the interface of a whole batch."""

    parts: list[Samples]

    @property
    def num_samples(self) -> int:
        """The number of samples of all parts."""
        return self.slices[-1].stop

    @cached_property
    def slices(self) -> list[slice]:
        """Where each part would lie in a whole batch."""
        ends = [0, *accumulate(part.num_samples for part in self.parts)]
        return list(map(slice, ends, ends[1:]))

    @property
    def arrays(self) -> list[Array]:
        """Those of all parts."""
        return [array for part in self.parts for array in part.arrays]

    @property
    def layout(self) -> int:
        """A number for the sizes of its microbatches, the same for the same sizes."""
        return crc32(repr([part.num_samples for part in self.parts]).encode()) | 1

    def cut(self, part: slice) -> Samples:
        """Return one of the parts."""
        return self.parts[self.slices.index(part)]


@dataclass
class Portion:
    """Inputs or targets of which this rank has some samples, with the interface of a whole batch.

    Attributes
    ----------
    own : Samples
    rows : slice
        Their rows in the batch.
    num_samples : int
        The number of samples of the batch.
    """

    own: Samples
    rows: slice
    num_samples: int
    layout: ClassVar[int] = 2  # the layout of no microbatches

    @classmethod
    def of(cls, given: Share, name: str, dtype: Any, xp: ModuleType) -> Portion:
        """Return the argument as samples; parameters and errors are as in :func:`samples`."""
        own, n = samples(given.value, name, dtype, xp), given.rows.stop - given.rows.start
        if not isinstance(own, Samples) or own.num_samples != n:
            message = f"The {name} are given as {given}, with {counted(own.num_samples, 'sample')}"
            raise MicrobatchError("wrong-number", f"{message}; expected arrays with {n}.")
        return cls(own, given.rows, given.num_samples)

    @property
    def arrays(self) -> list[Array]:
        """Those that are here."""
        return self.own.arrays

    def has(self, part: slice) -> bool:
        """Whether some samples are here."""
        return self.rows.start <= part.start and part.stop <= self.rows.stop

    def cut(self, part: slice) -> Samples | None:
        """Return some of the samples; None if not all of them are here."""
        first = self.rows.start
        return self.own.cut(slice(part.start - first, part.stop - first)) if self.has(part) else None


def samples(given: Any, name: str, dtype: Any = None, xp: ModuleType | None = None) -> Samples | Pieces:
    """Return inputs or targets: an array, a pytree of arrays with equally many samples, or microbatches of these.

    Parameters
    ----------
    given : array, or tuple, list or dict of arrays, nested or not; or Microbatches
        In a pytree an array may be :class:`Replicated`.
    name : str
        "inputs" or "targets", for errors.
    dtype : dtype, optional
        That floating arrays get.
    xp : module, optional
        That they get into.

    Raises
    ------
    TensorError
        Code ``shape``.
    MicrobatchError
        Code ``wrong-number``.
    """
    if type(given) is np.ndarray and xp is np and given.ndim and (given.dtype is dtype or given.dtype.kind in "iu"):
        return Samples([given])  # as it is, like most batches
    if isinstance(given, Samples | Pieces):
        return given
    if isinstance(given, Microbatches):
        parts = [
            cast(Samples, samples(part, f"{name}, microbatch {k},", dtype, xp)) for k, part in enumerate(given.parts)
        ]
        if not parts:
            raise MicrobatchError("wrong-number", f"The {name} contain no microbatches; expected at least one.")
        return Pieces(parts)
    leaves, form = flattened(given)
    replicated = frozenset(i for i, leaf in enumerate(leaves) if isinstance(leaf, Replicated))
    arrays = [Tensor(leaf.value if isinstance(leaf, Replicated) else leaf).data for leaf in leaves]
    divided = [array for i, array in enumerate(arrays) if i not in replicated]
    if not divided or any(array.ndim == 0 for array in divided):
        problem = "or contain a single number" if divided and form is not None else "a single number"
        problem = problem if divided else "replicated" if replicated else "empty"
        hint = "; write minipipe.Replicated(number) for one that all microbatches get" if form is not None else ""
        raise TensorError("shape", f"The {name} are {problem}; expected arrays of shape (samples, ...){hint}.")
    lengths = [array.shape[0] for array in divided]
    if len(set(lengths)) > 1:
        message = f"The arrays of the {name} have {lengths} samples; expected the same number in each."
        raise MicrobatchError("wrong-number", message)
    for i, array in enumerate(arrays):
        own_dtype = dtype if backend.is_floating(array.dtype) else None
        arrays[i] = backend.moved(array, xp or backend.array_module(array), own_dtype)
    return Samples(arrays, form, replicated)


# -- into microbatches ------------------------------------------------------------------------------------------------


def divided(num_samples: int, count: int, *given: Samples | Pieces | Portion | None) -> list[slice]:
    """Return the microbatches: the parts of the batch if it is divided already, or else parts of equal sizes.

    Raises
    ------
    MicrobatchError
        Codes ``wrong-number``, and the codes of :func:`split_microbatches`.
    """
    pieces = [own for own in given if isinstance(own, Pieces)]
    if not pieces:
        return _split_before(num_samples, count)
    if len(pieces[0].parts) != count:
        message = f"The batch is given as {counted(len(pieces[0].parts), 'microbatch')}, but the schedule has {count}."
        raise MicrobatchError(
            "wrong-number", f"{message} Give num_microbatches={len(pieces[0].parts)} to the pipeline."
        )
    return pieces[0].slices


def split_microbatches(num_samples: int, num_microbatches: int) -> list[slice]:
    """Divide samples among microbatches: sizes differ by at most one, none is empty, nothing is dropped.

    Parameters
    ----------
    num_samples : int
        In the batch.
    num_microbatches : int

    Returns
    -------
    list of slice
        Of the first axis; the first ones are longer if the division leaves a remainder.

    Raises
    ------
    MicrobatchError
        Codes ``out-of-range`` and ``too-few``.

    Examples
    --------
    >>> split_microbatches(4, 2)
    [slice(0, 2, None), slice(2, 4, None)]
    """
    COUNT._replace(error=MicrobatchError, code="out-of-range").check("num_microbatches", num_microbatches)
    if num_samples < num_microbatches:
        raise MicrobatchError(
            "too-few",
            f"A batch of {counted(num_samples, 'sample')} cannot make {counted(num_microbatches, 'microbatch')}, "
            "each of at least one. Use larger batches or fewer microbatches.",
        )
    return [slice(part.start, part.stop) for part in partition_evenly(num_samples, num_microbatches)]


_split_before = lru_cache(maxsize=64)(split_microbatches)  # batches are often alike


# -- and back ---------------------------------------------------------------------------------------------------------


def joined(parts: Sequence[Payload], slices: Sequence[slice], is_cut: bool) -> Payload:
    """Return the outputs of microbatches as the outputs of their batch, in NumPy's memory.

    Parameters
    ----------
    parts : sequence of Payload
    slices : sequence of slice
        Where they lie in the batch.
    is_cut : bool
        Whether the batch came as microbatches: then the result is a list of them.

    Raises
    ------
    TensorError
        Code ``shape``, if they make no array.

    Examples
    --------
    >>> parts = [Payload([np.zeros(2)], [True]), Payload([np.ones(1)], [True])]
    >>> joined(parts, [slice(0, 2), slice(2, 3)], is_cut=False).arrays
    [array([0., 0., 1.])]
    """
    if is_cut:
        arrays = [np.array(backend.to_numpy(array)) for part in parts for array in part.arrays]
        return Payload(arrays, [True] * len(arrays), [part.form for part in parts])
    shapes = [[array.shape for array in part.arrays] for part in parts]
    lengths = [part.stop - part.start for part in slices]
    if any((n, *first[1:]) != shape for n, row in zip(lengths, shapes) for shape, first in zip(row, shapes[0])):
        message = f"The outputs of the microbatches have shapes {shapes}, which do not form one array (samples, ...)"
        raise TensorError("shape", f"{message}; pass the batch as minipipe.Microbatches to get microbatches.")
    rows = zip(*(map(backend.to_numpy, part.arrays) for part in parts))
    return parts[0]._replace(arrays=[np.concatenate(row) for row in rows])


def returned(found: Payload, is_cut: bool) -> Any:
    """Return merged outputs as the pytree that a user gets."""
    outputs = found.rebuilt(found.arrays)
    return Microbatches(outputs) if is_cut else outputs


def joined_gradients(inputs: Samples | Pieces, slices: Sequence[slice], gradients: Sequence[list[Any]]) -> Any:
    """Return the gradients of a batch of inputs, in NumPy's memory and as the same pytree as the inputs.

    They are None for whole numbers. Gradients of a replicated array are added up in ascending order of microbatches.

    Parameters
    ----------
    inputs : Samples or Pieces
    slices : sequence of slice
        The microbatches.
    gradients : sequence of list of array
        By microbatch, the gradients of the arrays; None for an array that was not used.
    """
    parts = [inputs.cut(part) for part in slices]
    rows = [list(map(_gradient, part.arrays, own)) for part, own in zip(parts, gradients)]
    if isinstance(inputs, Pieces):  # copies, since two inputs that were added have one gradient
        return Microbatches([copied(part.rebuilt(row)) for part, row in zip(parts, rows)])
    columns: list[Any] = list(zip(*rows))
    for i, column in enumerate(columns):
        if column[0] is None:
            columns[i] = None
        elif i in inputs.replicated:
            columns[i] = sum(column[1:], column[0].copy())
        else:
            columns[i] = np.concatenate(column)
    return inputs.rebuilt(columns)


def _gradient(array: Array, gradient: Array | None) -> np.ndarray | None:
    if not backend.is_floating(array.dtype):
        return None
    return np.zeros_like(backend.to_numpy(array)) if gradient is None else backend.to_numpy(gradient)
