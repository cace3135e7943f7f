"""The events of a trace, one after another: a file of JSON, plain or gzip, of which only
a small part is in memory.

``json`` parses one value at a time from a window of text that moves through the file::

    {"distributedInfo": {…}, "traceEvents": [ {…}, {…}, {…}, … ], "traceName": "…"}
     header member                            |= window =|
"""

from __future__ import annotations

import re
import zlib
from codecs import getincrementaldecoder
from collections.abc import Iterator
from json import JSONDecodeError, JSONDecoder
from pathlib import Path
from typing import Any, NoReturn

from minipipe.errors import Code, FileError
from minipipe.io import file_pieces

Event = dict[str, Any]

MOST_TRACE = 2**31
"""The largest file, in bytes."""
MOST_EXPANDED = 2**34
"""The largest content of a file of gzip, in bytes."""
_PIECE = 2**18  # bytes; a window has a few of them
_MOST_VALUE = 2**24  # characters of one event, or of one member of the header
_GZIP = b"\x1f\x8b"
_BLANKS = re.compile(r"[ \t\r\n]*")
_SEPARATORS = re.compile(r"[ \t\r\n,]*")
_OF_NUMBERS = re.compile(r"[0-9.eE+-]*")
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
        window.finish()
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
    window.finish()
    if not has_events:
        raise FileError.of(path, "it has no traceEvents; expected a trace", Code.SYNTAX)


class _Window:
    """The part of a text that is being parsed."""

    def __init__(self, path: str | Path) -> None:
        self._path = path
        self._pieces = _texts(path)
        self._text = ""
        self._at = 0
        self._before = 0  # characters that have left the window
        self._is_over = False

    def peek(self, blanks: re.Pattern[str] = _BLANKS) -> str:
        """Return the next character that is not blank; nothing at the end."""
        while True:
            match = blanks.match(self._text, self._at)
            assert match is not None
            self._at = match.end()
            if self._at < len(self._text) or self._is_over:
                return self._text[self._at : self._at + 1]
            self._more()

    def expect(self, character: str, expectation: str) -> None:
        """Pass a character, or refuse what stands in its place."""
        if self.peek() != character:
            self._refuse(expectation)
        self._at += 1

    def finish(self) -> None:
        """Read to the end of the file, which also checks gzip."""
        if self.peek():
            self._refuse("expected the end of the file")

    def value(self) -> Any:
        """Parse the next value."""
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
                # a number at the end of the window may continue: 1 of 1.5e3
                match = _OF_NUMBERS.match(self._text, end)
                assert match is not None
                if match.end() < len(self._text) or self._is_over:
                    self._at = end
                    return value
            except JSONDecodeError as error:
                reason = f"{error.msg[:1].lower()}{error.msg[1:]}"
                if len(self._text) - self._at > _MOST_VALUE:
                    self._refuse(reason)
                if self._is_over:
                    self._refuse(f"{reason}, or the file is cut off", Code.DAMAGED)
            except RecursionError:
                self._refuse("values are nested too deeply")
            self._more()

    def items(self, may_end: bool = False) -> Iterator[Event]:
        """Yield the objects of a list; the end of the file may stand for its bracket."""
        self.expect("[", "expected the list of events")
        while (character := self.peek(_SEPARATORS)) != "]":
            if not character and may_end:
                return
            item = self.value()
            if isinstance(item, dict):
                yield item
        self._at += 1

    def _more(self) -> None:
        """Add a piece, and drop what has been parsed."""
        piece = next(self._pieces, "")
        self._is_over = not piece
        self._before += self._at
        self._text = self._text[self._at :] + piece
        self._at = 0

    def _refuse(self, expectation: str, code: Code = Code.SYNTAX) -> NoReturn:
        where = f"character {self._before + self._at:,}"
        reason = f"it is no JSON of a trace at {where}: {expectation}"
        if not self.peek():
            code = Code.DAMAGED
            reason = f"it ends at {where}, before its JSON does: {expectation}"
        raise FileError.of(self._path, reason, code)


def _texts(path: str | Path) -> Iterator[str]:
    """Yield the content of a file as text, in pieces."""
    decoder = getincrementaldecoder("utf-8-sig")("replace")
    for piece in _contents(path):
        if text := decoder.decode(piece):
            yield text


def _contents(path: str | Path) -> Iterator[bytes]:
    """Yield the content of a file, expanded if it is gzip."""
    pieces = file_pieces(path, MOST_TRACE, length=_PIECE)
    first = next(pieces, b"")
    if not first.startswith(_GZIP):
        yield first
        yield from pieces
        return
    total = 0
    for expanded in _expanded(path, first, pieces):
        total += len(expanded)
        if total > MOST_EXPANDED:
            reason = f"it expands to more than {MOST_EXPANDED:,} bytes, the limit"
            raise FileError.of(path, reason, Code.TOO_LARGE)
        yield expanded


def _expanded(
    path: str | Path, first: bytes, pieces: Iterator[bytes]
) -> Iterator[bytes]:
    """Yield the content of gzip, which may have several members."""
    stream = zlib.decompressobj(wbits=31)
    piece = first
    try:
        while piece:
            yield stream.decompress(piece, _PIECE)
            piece = stream.unconsumed_tail
            if stream.eof:
                piece = stream.unused_data.lstrip(b"\0")
                if piece or (piece := next(pieces, b"")):
                    stream = zlib.decompressobj(wbits=31)
            piece = piece or next(pieces, b"")
    except zlib.error as error:
        raise FileError.of(
            path, f"its gzip is damaged: {error}", Code.DAMAGED
        ) from None
    if not stream.eof:
        reason = "its gzip ends early: the file is truncated; copy it again"
        raise FileError.of(path, reason, Code.DAMAGED)
