"""Handwritten digits, shipped with the package: 1,797 images of 8 x 8 (source and licence: ``digits.md``)."""

from __future__ import annotations

import gzip
from importlib.resources import files

import numpy as np


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return the images and the digits that they show.

    Returns
    -------
    images : array of shape (1797, 8, 8), float32
        0 is white, 1 is black.
    labels : array of shape (1797,), int64
        0 to 9.

    References
    ----------
    Alpaydin and Kaynak 1998, "Optical recognition of handwritten digits", UCI Machine Learning Repository, CC BY 4.0.

    Examples
    --------
    >>> images, labels = load_digits()
    >>> images.shape, int(labels[0])
    ((1797, 8, 8), 0)
    """
    text = gzip.decompress((files("minipipe.data") / "digits.csv.gz").read_bytes()).decode("ascii")
    table = np.loadtxt(text.splitlines(), delimiter=",", dtype=np.int64)
    return (table[:, :64] / 16).astype(np.float32).reshape(-1, 8, 8), table[:, 64].copy()
