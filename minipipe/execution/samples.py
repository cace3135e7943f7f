"""A batch as a user passes it, and as one list of pytrees: one pytree for each
microbatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from types import ModuleType
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, is_array
from minipipe.core.autograd.host import known, note_source
from minipipe.core.dividing import even_sizes as even_sizes
from minipipe.core.dividing import rows_of as rows_of
from minipipe.core.dividing import split_microbatches as split_microbatches
from minipipe.core.execution.payload import Payload
from minipipe.core.pytree import flattened, rebuilt
from minipipe.core.tensor import Tensor, record
from minipipe.data import Share
from minipipe.errors import MicrobatchError, TensorError, counted

# -- what a user passes ----------------------------------------------------------------


class Replicated:
    """An array or a number in a batch that is not divided: every microbatch gets all of
    it.

    Parameters
    ----------
    value : array or number

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Replicated
    >>> batch = {"x": np.ones((8, 4)), "scale": Replicated(2.0)}
    >>> [part.rebuilt() for part in samples(batch, "inputs").cut((6, 2))][1]["scale"]
    array(2., dtype=float32)
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Replicated({self.value!r})"


class Microbatches:
    """A batch as microbatches: each is an array or a pytree, of any length and number
    of samples.

    Both inputs and targets of a step must be given so, with as many parts as the
    schedule has microbatches.

    Parameters
    ----------
    parts : iterable of array, or of tuple, list or dict of arrays
        The arrays of a list or tuple are used as they are. Those of any other iterable
        are copied, because a generator may fill one array again and again.

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
    ...     pipeline = Pipeline(
    ...         nn.Sequential(nn.Identity()),
    ...         group,
    ...         loss=nn.MSELoss(),
    ...         num_microbatches=3,
    ...     )
    ...     pipeline.step(x, x)
    0.0
    """

    def __init__(self, parts: Iterable[Any]) -> None:
        if is_array(parts) or isinstance(parts, str | dict | Tensor):
            kind = type(parts).__name__
            raise MicrobatchError(
                "wrong-number",
                f"Microbatches takes a list of microbatches; this is one {kind}.",
            )
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
    """Return all items of an iterable; copies of them, unless it is a list or tuple,
    which has them all already.

    A generator may return one array each time, with other values, so each item is
    copied before the next is read. So may the iterator of a subclass of list.

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
    if type(items) in (list, tuple):
        return list(items)
    return list(map(copy, items))


def copied(given: Any) -> Any:
    """Return inputs or targets, of a batch or of a microbatch, with copies of their
    arrays.
    """
    if isinstance(given, Microbatches):
        return Microbatches([copied(part) for part in given.parts])
    if isinstance(given, Share):
        return Share(copied(given.value), given.rows, given.num_samples)
    if isinstance(given, Replicated):
        return Replicated(copied(given.value))
    if isinstance(given, Tensor):
        return record(backend.copy(given.data))
    if isinstance(given, tuple | list | dict):
        leaves, treedef = flattened(given)
        if treedef is None:  # a list of numbers
            return deepcopy(given)
        return rebuilt(treedef, list(map(copied, leaves)))
    if is_array(given):
        return backend.copy(given)
    return given


# -- what it becomes -------------------------------------------------------------------


class Samples(NamedTuple):
    """Inputs or targets of a batch, as far as this rank has them: a list of pytrees,
    with consecutive samples.

    A whole batch is one pytree. A :class:`Share` is one between two that are
    ``ABSENT``.

    Attributes
    ----------
    parts : list of Payload
    sizes : tuple of int
        The numbers of samples of the parts.
    layout : int
        A number that inputs and targets have in common on all ranks: 0 for a whole
        batch, ``OF_SHARES``, or an odd one for microbatches of these sizes.

    Examples
    --------
    >>> whole = samples(np.arange(5.0), "inputs")
    >>> [part.rebuilt() for part in whole.cut((2, 3))]
    [array([0., 1.]), array([2., 3., 4.])]
    """

    parts: list[Payload]
    sizes: tuple[int, ...]
    layout: int = 0

    @property
    def is_cut(self) -> bool:
        """Whether the batch came as microbatches."""
        return bool(self.layout & 1)

    @property
    def num_samples(self) -> int:
        """The number of samples of the batch, on all ranks."""
        return sum(self.sizes)

    @property
    def form(self) -> int:
        """A number for the shapes and dtypes of all arrays."""
        return crc32(
            repr(
                [[(a.shape, str(a.dtype)) for a in part.arrays] for part in self.parts]
            ).encode()
        )

    @property
    def rows(self) -> slice:
        """The samples that are here, as rows of the batch."""
        if self.layout == OF_SHARES:
            return slice(self.sizes[0], self.sizes[0] + self.sizes[1])
        return slice(0, self.num_samples)

    def cut(self, sizes: tuple[int, ...]) -> Sequence[Payload]:
        """Return the microbatches of these sizes, as views; ``ABSENT`` for one that is
        not here as a whole.
        """
        if sizes == self.sizes:
            return self.parts
        rows = rows_of(sizes)
        if self.layout != OF_SHARES:
            return Cut(self.parts[0], rows)
        (_, own, _), here, cut = self.parts, self.rows, list[Payload]()
        for part in rows:
            is_here = here.start <= part.start and part.stop <= here.stop
            own_rows = slice(part.start - here.start, part.stop - here.start)
            cut.append(_view(own, own_rows, ...) if is_here else ABSENT)
        return cut


class Cut(Sequence[Payload]):
    """The microbatches of one pytree: views, each made when it is read.

    Parameters
    ----------
    whole : Payload
        Arrays of shape (samples, ...).
    rows : list of slice
        By microbatch.
    """

    __slots__ = ("rows", "whole")

    def __init__(self, whole: Payload, rows: list[slice]) -> None:
        self.whole = whole
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, microbatch: Any) -> Any:
        if isinstance(microbatch, slice):
            return [self[k] for k in range(len(self))[microbatch]]
        return _view(self.whole, self.rows[microbatch], ...)


def _divided(part: Payload) -> list[Array]:
    """Return the arrays that have samples."""
    return [a for i, a in enumerate(part.arrays) if i not in part.replicated]


def _view(part: Payload, *where: Any) -> Payload:
    """Return some of the samples, or of their positions; replicated arrays stay as they
    are.
    """
    arrays = part.arrays
    replicated = part.replicated
    if replicated:
        views = [a if i in replicated else a[where] for i, a in enumerate(arrays)]
    else:
        views = [array[where] for array in arrays]
    for view, array in zip(views, arrays):
        if type(view) is np.ndarray or view is array:
            continue
        if (source := known(array)) is not array:
            note_source(view, source[where])
    return Payload(views, part.requires_grad, part.treedef, replicated)


ABSENT = Payload([], [])  # a pytree that this rank does not have, but other ranks
OF_SHARES = 2  # a layout; the layout of microbatches is odd


def samples(
    given: Any,
    name: str,
    dtype: Any = None,
    xp: ModuleType | None = None,
    requires_grad: bool = False,
) -> Samples:
    """Return inputs or targets: an array, a pytree of arrays with equally many samples,
    or microbatches of these.

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
    requires_grad : bool
        Whether gradients of floating arrays are to be computed.

    Raises
    ------
    TensorError
        Code ``shape``.
    MicrobatchError
        Code ``wrong-number``.
    """
    if isinstance(given, Samples):
        return given
    how = dtype, xp, requires_grad
    if not isinstance(given, Microbatches):
        whole = _pytree(given, name, *how)
        return Samples([whole], (_divided(whole)[0].shape[0],))
    parts = []
    for k, part in enumerate(given.parts):
        parts.append(_pytree(part, f"{name}, microbatch {k},", *how))
    if not parts:
        message = f"The {name} contain no microbatches; expected at least one."
        raise MicrobatchError("wrong-number", message)
    sizes = tuple(_divided(part)[0].shape[0] for part in parts)
    return Samples(parts, sizes, crc32(repr(sizes).encode()) | 1)


def samples_of_share(given: Share, name: str, *how: Any) -> Samples:
    """Return the rows of the inputs or targets that this rank has; parameters and
    errors are as in :func:`samples`.

    Examples
    --------
    >>> samples_of_share(
    ...     Share(np.ones((4, 2)), slice(4, 8), num_samples=9), "inputs"
    ... ).sizes
    (4, 4, 1)
    """
    own = samples(given.value, name, *how)
    rows = given.rows
    size = rows.stop - rows.start
    if own.is_cut or own.num_samples != size:
        raise MicrobatchError(
            "wrong-number",
            f"The {name} are given as {given}, with "
            f"{counted(own.num_samples, 'sample')}; expected arrays with {size}.",
        )
    sizes = rows.start, size, given.num_samples - rows.stop
    return Samples([ABSENT, *own.parts, ABSENT], sizes, OF_SHARES)


def _pytree(
    given: Any, name: str, dtype: Any, xp: ModuleType | None, requires_grad: bool
) -> Payload:
    """Return an array, or a pytree of arrays with equally many samples, in a dtype and
    a module.
    """
    if type(given) is np.ndarray and xp is np and given.ndim:
        kind = given.dtype.kind
        if given.dtype is dtype or kind in "iu":  # as it is, like most batches
            return Payload([given], [requires_grad and kind not in "iu"])
    leaves, treedef = flattened(given)
    arrays = list[Array]()
    replicated = set[int]()
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, Microbatches):
            message = (
                f"The {name} contain Microbatches; expected arrays, or one "
                "Microbatches of all arrays."
            )
            raise MicrobatchError("wrong-number", message)
        if isinstance(leaf, Replicated):
            replicated.add(i)
            leaf = leaf.value
        arrays.append(Tensor(leaf).data)
    part = Payload(arrays, [], treedef, frozenset(replicated))
    _check_lengths(part, name)
    for i, array in enumerate(arrays):
        is_floating = backend.is_floating(array.dtype)
        part.requires_grad.append(requires_grad and is_floating)
        own_dtype = dtype if is_floating else None
        arrays[i] = backend.moved(array, xp or backend.array_module(array), own_dtype)
        is_copied = isinstance(array, np.ndarray) and arrays[i] is not array
        if is_copied and array.dtype == backend.numpy_dtype(arrays[i].dtype):
            note_source(arrays[i], array)
    return part


def _check_lengths(part: Payload, name: str) -> None:
    """Refuse arrays without samples, or with unequal numbers of them."""
    divided = _divided(part)
    problem = ""
    if not divided:
        problem = "replicated" if part.replicated else "empty"
    elif any(array.ndim == 0 for array in divided):
        is_single = part.treedef is None
        problem = "a single number" if is_single else "or contain a single number"
    if problem:
        message = f"The {name} are {problem}; expected arrays of shape (samples, ...)"
        if part.treedef is not None:
            message += (
                "; write minipipe.Replicated(number) for one that all microbatches get"
            )
        raise TensorError("shape", f"{message}.")
    lengths = [array.shape[0] for array in divided]
    if len(set(lengths)) > 1:
        message = (
            f"The arrays of the {name} have {lengths} samples; expected the same "
            "number in each."
        )
        raise MicrobatchError("wrong-number", message)


def as_given(part: Payload) -> Any:
    """Return an array or a pytree as a user would pass it: replicated arrays are
    marked.

    Examples
    --------
    >>> as_given(samples((np.ones(2), Replicated(3.0)), "inputs").parts[0])
    (array([1., 1.]), Replicated(array(3., dtype=float32)))
    """
    arrays = list(part.arrays)
    for i in part.replicated:
        arrays[i] = Replicated(arrays[i])
    return part.rebuilt(arrays)


# -- into microbatches -----------------------------------------------------------------


def into_slices(
    given: Samples, name: str, num_sequences: int, num_slices: int
) -> Samples:
    """Cut a batch into microbatches of sequences, and each of those along its second
    axis into slices.

    Parameters
    ----------
    given : Samples
        Arrays of shape (samples, positions, ...); or microbatches, which are already
        slices.
    name : str
        For errors.
    num_sequences, num_slices : int
        Microbatches of sequences, and slices of each.

    Raises
    ------
    MicrobatchError
        Codes ``too-few`` and ``wrong-number``.
    """
    if given.is_cut:
        return given
    (whole,) = given.parts
    lengths = {a.shape[1] if a.ndim > 1 else 0 for a in _divided(whole)}
    if len(lengths) > 1 or min(lengths) < num_slices:
        message = (
            f"The {name} have {sorted(lengths)} positions on their second axis; "
            f"expected one number, at least {num_slices}, to divide sequences into "
            f"{counted(num_slices, 'slice')}."
        )
        raise MicrobatchError("wrong-number", message)
    columns = split_microbatches(lengths.pop(), num_slices)
    sizes = even_sizes(given.num_samples, num_sequences)
    parts = list[Payload]()
    for part in given.cut(sizes):
        parts += [_view(part, slice(None), column, ...) for column in columns]
    return Samples(parts, tuple(size for size in sizes for _ in columns))


def sizes_of(num_samples: int, count: int, *given: Samples) -> tuple[int, ...]:
    """Return the sizes of the microbatches: as the batch came if it is cut already, or
    else equal ones.

    Raises
    ------
    MicrobatchError
        Codes ``wrong-number``, and the codes of :func:`split_microbatches`.
    """
    for own in given:
        if own.is_cut and len(own.sizes) != count:
            n = len(own.sizes)
            raise MicrobatchError(
                "wrong-number",
                f"The batch is given as {counted(n, 'microbatch')}, but the schedule "
                f"has {count}. Give num_microbatches={n} to the pipeline.",
            )
        if own.is_cut:
            return own.sizes
    return even_sizes(num_samples, count)
