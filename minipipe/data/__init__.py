"""Real data: handwritten digits shipped with the package, a text shipped with Python,
and batches of any data.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from importlib.resources import files
from typing import Any
from zlib import crc32

import numpy as np

from minipipe.core.pytree import flattened, rebuilt
from minipipe.core.specs import COUNT, INDEX, Spec
from minipipe.errors import ArgumentError, FileError
from minipipe.hints import names_of, with_hints

__all__ = [
    "Alphabet",
    "Share",
    "batches",
    "load_digits",
    "load_text",
    "num_batches",
    "split_examples",
    "text_windows",
]
__getattr__ = names_of(__name__, __all__)

# -- batches ---------------------------------------------------------------------------

Examples = tuple[np.ndarray, np.ndarray]


@with_hints
def split_examples(
    inputs: np.ndarray, targets: np.ndarray, test_fraction: float, seed: int = 0
) -> tuple[Examples, Examples]:
    """Shuffle examples and split them into a training set and a test set.

    Parameters
    ----------
    inputs, targets : array of shape (samples, ...)
    test_fraction : float
        The fraction of samples in the test set, 0 to 1.
    seed : int
        The same seed gives the same split on every rank.

    Returns
    -------
    (inputs, targets) to train, (inputs, targets) to test

    Examples
    --------
    >>> inputs, targets = np.arange(20).reshape(10, 2), np.arange(10)
    >>> (x, y), (test_x, test_y) = split_examples(inputs, targets, test_fraction=0.3)
    >>> x.shape, y.shape, test_x.shape, test_y.shape
    ((7, 2), (7,), (3, 2), (3,))
    """
    if len(inputs) != len(targets) or not len(inputs):
        raise ArgumentError(
            f"There are {len(inputs)} inputs and {len(targets)} targets; expected one "
            "for each, at least one."
        )
    Spec(float, minimum=0, maximum=1).check("test_fraction", test_fraction)
    INDEX.check("split_examples: seed", seed)
    order = np.random.Generator(np.random.Philox(seed)).permutation(len(inputs))
    num_test = round(len(inputs) * test_fraction)
    test = order[:num_test]
    train = order[num_test:]
    return (inputs[train], targets[train]), (inputs[test], targets[test])


def num_batches(num_samples: int, batch_size: int) -> int:
    """Return the number of batches of at most ``batch_size`` samples that
    :func:`batches` makes.

    Parameters
    ----------
    num_samples, batch_size : int

    Returns
    -------
    int

    Examples
    --------
    >>> num_batches(10, batch_size=4)
    3
    """
    return -(-num_samples // COUNT.check("batch_size", batch_size))


@with_hints
def batches(
    inputs: Any,
    targets: Any,
    batch_size: int,
    seed: int = 0,
    epoch: int = 0,
    needs: Any = (True, True),
    num_samples: int | None = None,
    start: int = 0,
    only_share: bool = False,
) -> Iterator[tuple[Any, Any]]:
    """Yield the examples in a random order, batch after batch; every example once.

    The sizes of the batches differ by at most one, so there is no small last batch. At
    each call, a pipeline checks that all ranks drew the same batch last.

    Parameters
    ----------
    inputs, targets : array of shape (samples, ...), pytree of such, or None
        They are read when a batch is drawn; the batch has copies of its rows. If an
        array is in a file, ``numpy.load(path, mmap_mode="r")``, only these rows are
        read.
    batch_size : int
        The largest number of samples in a batch.
    seed, epoch : int
        The order depends on both, and is the same on every rank.
    needs : (bool, bool)
        Whether this rank needs inputs, and targets: ``pipeline.needs``. Arrays that it
        does not need are not read; the batch has None for them.
    num_samples : int, optional
        The number of samples, if this rank has neither inputs nor targets.
    start : int
        The number of batches to skip, which were used before the epoch was interrupted.
    only_share : bool
        Whether to read only the rows of each batch that this rank's replica of a
        pipeline takes, according to the pipeline's ``needs``. The rows are a
        :class:`minipipe.Share`, which :meth:`minipipe.Pipeline.step` takes.

    Examples
    --------
    >>> [len(x) for x, y in batches(np.zeros((10, 2)), np.zeros(10), batch_size=4)]
    [4, 3, 3]
    >>> list(batches(None, None, batch_size=4, num_samples=8))
    [(None, None), (None, None)]
    >>> [
    ...     len(x)
    ...     for x, y in batches(np.zeros((10, 2)), np.zeros(10), batch_size=4, start=1)
    ... ]
    [3, 3]
    """
    for name, value in (("seed", seed), ("epoch", epoch), ("start", start)):
        INDEX.check(f"batches: {name}", value)
    given = [flattened(part) for part in (inputs, targets) if part is not None]
    lengths = [len(leaf) for leaves, _ in given for leaf in leaves]
    lengths = lengths or [num_samples or 0]
    if not given and num_samples is None:
        raise ArgumentError(
            "batches: there are neither inputs nor targets here; give num_samples."
        )
    if len(set(lengths)) > 1 or lengths[0] < 1 or num_samples not in (None, lengths[0]):
        raise ArgumentError(
            f"batches: The inputs and targets have {lengths} samples, and num_samples "
            f"is {num_samples}; expected one number, at least 1."
        )
    order = np.random.Generator(np.random.Philox([seed, epoch])).permutation(lengths[0])
    parts = np.array_split(order, num_batches(lengths[0], batch_size))
    for position, part in list(enumerate(parts))[start:]:
        note_draw("batches", lengths[0], len(parts), seed, epoch, position)
        rows = (None, None)
        if only_share:
            rows = needs.share(len(part))
        batch: list[Any] = [None, None]
        for i, samples in enumerate((inputs, targets)):
            if needs[i]:
                batch[i] = _rows(samples, part, rows[i])
        yield batch[0], batch[1]


def _rows(given: Any, part: np.ndarray, rows: slice | None) -> Any:
    if given is None:
        return None
    if rows is None:
        return _selected(given, part)
    return Share(_selected(given, part[rows]), rows, len(part))


def _selected(given: Any, positions: np.ndarray) -> Any:
    """Return samples of a pytree of arrays."""
    leaves, form = flattened(given)
    selected = []
    for leaf in leaves:
        if isinstance(leaf, list):
            leaf = np.asarray(leaf)
        selected.append(leaf[positions])
    return rebuilt(form, selected)


class Share:
    """The rows of the inputs or targets of a batch that one rank reads if a pipeline
    has replicas.

    It records which rows of the batch they are, so that no rank can mistake them for
    others. ``pipeline.needs.share`` tells which rows a rank needs.

    Parameters
    ----------
    value : array of shape (rows, ...), or tuple, list or dict of arrays
    rows : slice
        The places of these rows in the whole batch.
    num_samples : int
        The number of samples in the whole batch.

    Raises
    ------
    ArgumentError
        Code ``value``, for a slice without a start and a stop within the batch.

    Examples
    --------
    >>> Share(np.ones((4, 2)), slice(4, 8), num_samples=8)
    Share(rows 4 to 7 of 8)
    """

    def __init__(self, value: Any, rows: slice, num_samples: int) -> None:
        self.value = value
        self.rows = rows
        self.num_samples = COUNT.check("Share: num_samples", num_samples)
        is_whole = isinstance(rows, slice) and rows.step in (None, 1)
        is_whole = is_whole and type(rows.start) is type(rows.stop) is int
        if not is_whole or not 0 <= rows.start < rows.stop <= num_samples:
            raise ArgumentError(
                f"Share: rows is {rows!r:.60}; expected slice(start, stop) with rows "
                f"within 0 to {num_samples}."
            )

    def __repr__(self) -> str:
        which = f"rows {self.rows.start} to {self.rows.stop - 1}"
        return f"Share({which} of {self.num_samples})"


# -- digits: digits.md names the source and the licence --------------------------------

_SHAPE = (1797, 65)  # images, and their pixels and labels
_MOST = 3 * _SHAPE[0] * _SHAPE[1]  # characters: numbers up to 16, each with its comma


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return the images and the digits that they show.

    Returns
    -------
    images : array of shape (1797, 8, 8), float32
        0 is white, 1 is black.
    labels : array of shape (1797,), int64
        0 to 9.

    Raises
    ------
    FileError
        Code ``damaged``, if the file of the installed package is not the one that was
        shipped.

    References
    ----------
    Alpaydin and Kaynak 1998, "Optical recognition of handwritten digits", UCI Machine
    Learning Repository, CC BY 4.0.

    Examples
    --------
    >>> images, labels = load_digits()
    >>> images.shape, int(labels[0])
    ((1797, 8, 8), 0)
    """
    table = _table((files("minipipe.data") / "digits.csv.gz").read_bytes())
    images = (table[:, :64] / 16).astype(np.float32).reshape(-1, 8, 8)
    return images, table[:, 64].copy()


def _table(content: bytes) -> np.ndarray:
    """Return the numbers in the file, at most ``_MOST`` characters of them: compressed,
    it could hold anything.
    """
    gzip = zlib.decompressobj(wbits=31)
    with suppress(zlib.error, ValueError):
        text = gzip.decompress(content, _MOST + 1).decode("ascii")
        if text and gzip.eof:  # zlib compares the checksum at the end
            lines = text.splitlines()
            table = np.loadtxt(lines, delimiter=",", dtype=np.int64, ndmin=2)
            if table.shape == _SHAPE:
                return table
    message = "digits.csv.gz of this package is damaged; install minipipe again."
    raise FileError("damaged", message)


# -- text ------------------------------------------------------------------------------


def load_text() -> str:
    """Return the reference of the Python language that ``help()`` shows, about half a
    million characters.

    It is read from the Python that runs this (``pydoc_data.topics``), so another
    version of Python has another text.

    Examples
    --------
    >>> load_text()[:22]
    'The "assert" statement'
    """
    from pydoc_data import topics  # large, and needed only here

    return "\n\n".join(topics.topics[name] for name in sorted(topics.topics))


class Alphabet:
    """The characters of a text, numbered from 0 in the order of their codes.

    Parameters
    ----------
    text : str

    Examples
    --------
    >>> alphabet = Alphabet("banana")
    >>> alphabet.encode("nab"), alphabet.decode([1, 0, 2])
    (array([2, 0, 1]), 'ban')
    """

    def __init__(self, text: str) -> None:
        self.characters = "".join(sorted(set(text)))
        self._numbers = dict(zip(self.characters, range(len(self.characters))))

    def __len__(self) -> int:
        return len(self.characters)

    def encode(self, text: str) -> np.ndarray:
        """Return the number of each character, of shape (len(text),), int64.

        Raises
        ------
        ArgumentError
            Code ``value``, for a character that is not in the alphabet.
        """
        unknown = sorted(set(text) - set(self.characters))
        if unknown:
            raise ArgumentError(
                f"{unknown[0]!r} is not in this alphabet of {len(self)}: "
                f"{self.characters!r}."
            )
        return np.array([self._numbers[one] for one in text], dtype=np.int64)

    def decode(self, numbers: Iterable[int]) -> str:
        """Return the text of these numbers."""
        return "".join(self.characters[number] for number in numbers)


def text_windows(
    numbers: np.ndarray, context: int, num_windows: int, key: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return windows of a text from random places, and for each position the character
    that follows.

    Parameters
    ----------
    numbers : array of shape (length,)
        A text, from :meth:`Alphabet.encode`.
    context : int
        The length of a window, in characters.
    num_windows : int
    key : sequence of int
        The seed of the places, such as (seed, step): every rank draws the same windows.

    Returns
    -------
    inputs, targets : array of shape (num_windows, context)

    Examples
    --------
    >>> inputs, targets = text_windows(
    ...     np.arange(100), context=3, num_windows=2, key=(0, 1)
    ... )
    >>> bool((targets == inputs + 1).all()), inputs.shape
    (True, (2, 3))
    """
    advice = "The text must be longer than a window."
    COUNT._replace(maximum=len(numbers) - 1, advice=advice).check("context", context)
    COUNT.check("num_windows", num_windows)
    note_draw("text_windows", len(numbers), context, num_windows, *map(int, key))
    generator = np.random.Generator(np.random.Philox(list(key)))
    starts = generator.integers(0, len(numbers) - context, num_windows)
    places = starts[:, None] + np.arange(context)
    return numbers[places], numbers[places + 1]


# -- draws: if one rank reads the inputs and another the targets, both must draw the
# same batch

_last_draw: ContextVar[int | None] = ContextVar("last_draw", default=None)


def note_draw(*key: Any) -> None:
    """Note which batch was drawn, by numbers that are the same on every rank. Local."""
    _last_draw.set(crc32(repr(key).encode()))


def take_last_draw() -> int | None:
    """Return a number for the batch drawn last in this thread; None if there was none
    since the last call.

    Examples
    --------
    >>> note_draw("batches", 0, 1)
    >>> take_last_draw() is not None, take_last_draw()
    (True, None)
    """
    found = _last_draw.get()
    _last_draw.set(None)
    return found
