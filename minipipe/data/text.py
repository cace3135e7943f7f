"""English text that every Python carries, as whole numbers: one for each character."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from minipipe.data.draws import note_draw
from minipipe.errors import ArgumentError


def load_text() -> str:
    """Return the reference of the Python language that ``help()`` shows, about half a million characters.

    It is read from the Python that runs this (``pydoc_data.topics``), so another version of Python has another text.

    Examples
    --------
    >>> load_text()[:22]
    'The "assert" statement'
    """
    from pydoc_data import topics  # large, and only of use here

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
        self._numbers = {character: number for number, character in enumerate(self.characters)}

    def __len__(self) -> int:
        return len(self.characters)

    def encode(self, text: str) -> np.ndarray:
        """Return the number of each character, of shape (len(text),), int64.

        Raises
        ------
        ArgumentError
            Code ``value``: for a character that is not in the alphabet.
        """
        unknown = sorted(set(text) - set(self.characters))
        if unknown:
            raise ArgumentError("value", f"{unknown[0]!r} is not in this alphabet of {len(self)}: {self.characters!r}.")
        return np.array([self._numbers[character] for character in text], dtype=np.int64)

    def decode(self, numbers: Iterable[int]) -> str:
        """Return the text of these numbers."""
        return "".join(self.characters[number] for number in numbers)


def text_windows(
    numbers: np.ndarray, context: int, num_windows: int, key: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return windows of a text from random places, and for each position of them the character that follows.

    Parameters
    ----------
    numbers : array of shape (length,)
        A text, from :meth:`Alphabet.encode`.
    context : int
        The length of a window, in characters.
    num_windows : int
    key : sequence of int
        The places depend on it alone, such as (seed, step), so every rank draws the same.

    Returns
    -------
    inputs, targets : array of shape (num_windows, context)

    Examples
    --------
    >>> inputs, targets = text_windows(np.arange(100), context=3, num_windows=2, key=(0, 1))
    >>> bool((targets == inputs + 1).all()), inputs.shape
    (True, (2, 3))
    """
    if not 1 <= context < len(numbers):
        raise ArgumentError(
            "value", f"context is {context}; expected 1 to {len(numbers) - 1}, less than the text is long."
        )
    if num_windows < 1:
        raise ArgumentError("value", f"num_windows is {num_windows}; expected at least 1.")
    note_draw("text_windows", len(numbers), context, num_windows, *map(int, key))
    generator = np.random.Generator(np.random.Philox(list(key)))
    starts = generator.integers(0, len(numbers) - context, num_windows)
    places = starts[:, None] + np.arange(context)
    return numbers[places], numbers[places + 1]
