"""The events of a trace, one after another: a file of JSON, plain or gzip, of which only
a small part is in memory.

``json`` parses one value at a time from a window of text that moves through the file::

    {"distributedInfo": {…}, "traceEvents": [ {…}, {…}, {…}, … ], "traceName": "…"}
     header member                            |= window =|
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from json import JSONDecodeError, JSONDecoder
from pathlib import Path
from typing import Any, NoReturn, TextIO

from minipipe.errors import Code, FileError
from minipipe.io import file_pieces

Event = dict[str, Any]

MOST_TRACE = 2**31
"""The largest file, in bytes."""
MOST_EXPANDED = 2**34
"""The longest text of a file of gzip, in characters."""
_PIECE = 2**18  # characters; a window has a few of them
_MOST_VALUE = 2**24  # characters of one event, or of one member of the header
_GZIP = b"\x1f\x8b"
_BLANKS = " \t\r\n"
# The most characters behind a number that may belong to it: 1e+ of 1e+3.
_OF_NUMBER = 2
# Names of kernels may hold control characters.
_DECODER = JSONDecoder(strict=False)


def events_of(path: str | Path, header: dict[str, Any]) -> Iterator[Event]:
    """Yield the events of a trace in their order, and collect the other members.

    Parameters
    ----------
    path : str or Path
        JSON, or gzip of JSON: an object with the member ``traceEvents``, or the list of
        events alone.
    header : dict
        Receives the other members of the object. It is complete after the last event.

    Raises
    ------
    FileError
        Codes ``unreadable`` and ``too-large``; ``syntax``, if the file is no trace;
        ``damaged``, if gzip or JSON end early.

    References
    ----------
    The Chromium authors, "Trace Event Format", 2016: the array form may lack its last
    bracket.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
    ...     _ = file.write('{"host_name": "a", "traceEvents": [{"ph": "X"}]}')
    ...     file.flush()
    ...     header = {}
    ...     list(events_of(file.name, header)), header
    ([{'ph': 'X'}], {'host_name': 'a'})
    """
    window = _Window(path)
    if window.peek() == "[":
        yield from window.items(may_end=True)
        window.expect("", "expected the end of the file")
        return
    window.expect("{", "expected a trace: an object with traceEvents, or a list")
    has_events = False
    while window.peek() != "}":
        name = window.value()
        window.expect(":", "expected a colon behind the name of a member")
        if name == "traceEvents":
            has_events = True
            yield from window.items()
        else:
            header[str(name)] = window.value()
        if window.peek() != "}":
            window.expect(",", "expected a comma or } behind a member")
    window.expect("}", "expected a member or }")
    window.expect("", "expected the end of the file")
    if not has_events:
        raise FileError.of(path, "it has no traceEvents; expected a trace", Code.SYNTAX)


class _Window:
    """The part of a text that is being parsed."""

    def __init__(self, path: str | Path) -> None:
        self._path = path
        self._stream = _opened(path)
        self._text = ""
        self._at = 0
        self._before = 0  # characters that have left the window
        self._is_over = False

    def peek(self, passed: str = _BLANKS) -> str:
        """Return the next character that is not passed over; nothing at the end."""
        while True:
            character = self._text[self._at : self._at + 1]
            if not character and not self._is_over:
                self._more()
            elif character and character in passed:
                self._at += 1
            else:
                return character

    def expect(self, character: str, expectation: str) -> None:
        """Pass a character, or the end of the file if it is empty; refuse anything else
        in its place.
        """
        if self.peek() != character:
            self._refuse(expectation)
        self._at += len(character)

    def value(self) -> Any:
        """Parse the next value."""
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except JSONDecodeError as error:
                reason = f"{error.msg[:1].lower()}{error.msg[1:]}"
                if len(self._text) - self._at > _MOST_VALUE:
                    self._refuse(reason)
                if self._is_over:
                    self._refuse(f"{reason}, or the file is cut off", Code.DAMAGED)
            except RecursionError:
                self._refuse("values are nested too deeply")
            else:
                if self._is_over or end + _OF_NUMBER < len(self._text):
                    self._at = end
                    return value
            self._more()

    def items(self, may_end: bool = False) -> Iterator[Event]:
        """Yield the objects of a list; the end of the file may stand for its bracket."""
        self.expect("[", "expected the list of events")
        while (character := self.peek(_BLANKS + ",")) != "]":
            if not character and may_end:
                return
            item = self.value()
            if isinstance(item, dict):
                yield item
        self._at += 1

    def _more(self) -> None:
        """Add a piece, and drop what has been parsed."""
        try:
            piece = self._stream.read(_PIECE)
        except EOFError:
            reason = "its gzip ends early: the file is truncated; copy it again"
            raise FileError.of(self._path, reason, Code.DAMAGED) from None
        except (zlib.error, gzip.BadGzipFile) as error:
            reason = f"its gzip is damaged: {error}"
            raise FileError.of(self._path, reason, Code.DAMAGED) from None
        self._is_over = not piece
        self._before += self._at
        self._text = self._text[self._at :] + piece
        self._at = 0
        if self._before + len(self._text) > MOST_EXPANDED:
            reason = f"it expands to more than {MOST_EXPANDED:,} characters, the limit"
            raise FileError.of(self._path, reason, Code.TOO_LARGE)

    def _refuse(self, expectation: str, code: Code = Code.SYNTAX) -> NoReturn:
        where = f"character {self._before + self._at:,}"
        reason = f"it is no JSON of a trace at {where}: {expectation}"
        if not self.peek():
            code = Code.DAMAGED
            reason = f"it ends at {where}, before its JSON does: {expectation}"
        raise FileError.of(self._path, reason, code)


class _Pieces(io.RawIOBase):
    """The pieces of a file as a stream."""

    def __init__(self, path: str | Path) -> None:
        self._pieces = file_pieces(path, MOST_TRACE, length=_PIECE)
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._rest = self._rest or next(self._pieces, b"")
        part = self._rest[: len(buffer)]
        self._rest = self._rest[len(part) :]
        buffer[: len(part)] = part
        return len(part)


def _opened(path: str | Path) -> TextIO:
    """Return the content of a file as a stream of text, expanded if it is gzip."""
    content: Any = io.BufferedReader(_Pieces(path))
    if content.peek(len(_GZIP)).startswith(_GZIP):
        content = gzip.GzipFile(fileobj=content)
    return io.TextIOWrapper(content, "utf-8-sig", "replace", newline="")
