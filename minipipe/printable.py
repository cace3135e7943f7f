"""Text from files and arguments, made safe for a terminal and for messages.

A name may hold escape sequences that clear the screen or retitle the window, line breaks that forge a line of a log,
marks that reverse the direction of writing, and halves of characters that no stream can encode.
"""

from __future__ import annotations

from unicodedata import category


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


def quoted(given: object, most: int = 60) -> str:
    """Return the repr of anything in at most ``most`` characters, for the message of an error.

    It always succeeds: a repr may fail, as that of an integer with more than 4300 digits does.

    Examples
    --------
    >>> quoted("x" * 100, most=10), quoted(10**5000)
    ("'xxxxxxxx…", 'a value of type int')
    """
    try:
        text = printable(repr(given[: most + 1] if isinstance(given, str | bytes) else given))
    except Exception:  # whatever a class does in its __repr__
        text = f"a value of type {type(given).__name__}"
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _shown(character: str) -> str:
    is_blank = category(character) == "Zs"
    return character if is_blank or character.isprintable() else character.encode("unicode_escape").decode()
