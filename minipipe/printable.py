"""Text from files and arguments, made safe for a terminal and for messages.

A name may hold escape sequences that clear the screen or retitle the window, line breaks that forge a line of a log,
marks that reverse the direction of writing, and halves of characters that no stream can encode.
"""

from __future__ import annotations

from unicodedata import category

from minipipe.errors import quoted as quoted


def printable(text: str) -> str:
    r"""Return a text in one line, with each character that is not to be printed as its escape sequence.

    Letters, signs and blanks of all languages stay as they are.

    Examples
    --------
    >>> print(printable("größe \x1b[2J\n"))
    größe \x1b[2J\n
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_shown, text))


def printable_lines(text: str) -> str:
    r"""Return a text of several lines, each :func:`printable`.

    Examples
    --------
    >>> print(printable_lines("two\nlines\x07"))
    two
    lines\x07
    """
    return "\n".join(map(printable, text.split("\n")))


def _shown(character: str) -> str:
    is_blank = category(character) == "Zs"
    return character if is_blank or character.isprintable() else character.encode("unicode_escape").decode()
