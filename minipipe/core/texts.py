"""Texts that are read and printed: whole numbers, tables, and names of any kind."""

from __future__ import annotations

from unicodedata import category

from minipipe.core.errors import ArgumentError, quoted

MOST_DIGITS = 18

# Names in files and arguments may hold escape sequences that clear the screen or
# retitle the window, line breaks that forge a line of a log, control characters that
# reverse the direction of writing, and surrogates that no stream encodes.


def printable(text: str) -> str:
    r"""Return a text in one line, with each character that is not to be printed as its
    escape sequence.

    Letters, signs and blanks of all languages stay as they are.

    Examples
    --------
    >>> print(printable("größe \x1b[2J\n"))
    größe \x1b[2J\n
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(shown, text))


def shown(character: str) -> str:
    """Return a character, or its escape sequence if it is not to be printed."""
    is_blank = category(character) == "Zs"
    if is_blank or character.isprintable():
        return character
    return character.encode("unicode_escape").decode()


def parse_whole(text: str) -> int:
    """Return the whole number, at least 0, of a text with at most 18 digits.

    :func:`int` also takes signs, blanks, underscores and the digits of other alphabets;
    ``str.isdigit`` also takes a superscript, which ``int`` does not.

    Raises
    ------
    ArgumentError
        Code ``value``.

    Examples
    --------
    >>> parse_whole("042")
    42
    >>> parse_whole("²")
    Traceback (most recent call last):
        ...
    minipipe.errors.ArgumentError: '²' is not a whole number of at most 18 digits
    """
    if text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS:
        return int(text)
    message = f"{quoted(text)} is not a whole number of at most {MOST_DIGITS} digits"
    raise ArgumentError(message)
