"""Handwritten digits, shipped with the package: 1,797 images of 8 x 8 (source and licence: ``digits.md``)."""

from __future__ import annotations

import zlib
from contextlib import suppress
from importlib.resources import files

import numpy as np

from minipipe.errors import FileError

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
        Code ``damaged``, where the file of the installed package is not the one that was shipped.

    References
    ----------
    Alpaydin and Kaynak 1998, "Optical recognition of handwritten digits", UCI Machine Learning Repository, CC BY 4.0.

    Examples
    --------
    >>> images, labels = load_digits()
    >>> images.shape, int(labels[0])
    ((1797, 8, 8), 0)
    """
    table = _table((files("minipipe.data") / "digits.csv.gz").read_bytes())
    return (table[:, :64] / 16).astype(np.float32).reshape(-1, 8, 8), table[:, 64].copy()


def _table(content: bytes) -> np.ndarray:
    """Return the numbers in the file, at most ``_MOST`` characters of them: compressed, it could hold anything."""
    gzip = zlib.decompressobj(wbits=31)
    with suppress(zlib.error, ValueError):
        text = gzip.decompress(content, _MOST + 1).decode("ascii")
        if text and gzip.eof:  # where zlib has compared the checksum
            table = np.loadtxt(text.splitlines(), delimiter=",", dtype=np.int64, ndmin=2)
            if table.shape == _SHAPE:
                return table
    raise FileError("damaged", "digits.csv.gz of this package is damaged; install minipipe again.")
