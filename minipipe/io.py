"""Input and output: files read within a limit and written whole, text safe for a
terminal, and tables.
"""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import inf
from typing import TYPE_CHECKING, Any, TextIO

from minipipe.core.limits import MOST_ACTIONS as MOST_ACTIONS
from minipipe.core.limits import MOST_BYTES as MOST_BYTES
from minipipe.core.limits import MOST_STAGES as MOST_STAGES
from minipipe.core.texts import parse_whole as parse_whole
from minipipe.core.texts import printable as printable
from minipipe.errors import ArgumentError, Code, FileError, MinipipeError, quoted

if TYPE_CHECKING:
    # most programs write no file, and it loads a fifth of what a command does
    from pathlib import Path

# -- limits ----------------------------------------------------------------------------
# Larger input is refused before it takes memory. The limits are far above the sizes of
# real pipelines; what is within them fits into a few gigabytes. To allow more, change
# these numbers, and nothing else.

# Characters of JSON, such as a certificate: about 9 million actions. Once parsed, it
# takes about ten times as many bytes.
MOST_JSON = 2**26
# Characters of a drawing as text: 7 million for 512 ranks and 4096 microbatches. Each
# takes about 10 bytes.
MOST_CHARACTERS = 2**26
# Pixels of a picture's width: viewers and converters fail beyond. An action needs about
# 20 for its label.
MOST_PIXELS = 2**20
# Seconds without a byte from a pipe. Its writer computes a schedule, which takes
# seconds.
PIPE_TIMEOUT = 20.0
_MOST_OF_A_NAME = 200  # characters of a path in a message

MARK = "minipipe: "
"""The beginning of a line that minipipe writes to standard error."""

# -- text ------------------------------------------------------------------------------


def printable_lines(text: str) -> str:
    r"""Return a text of several lines, each :func:`printable`.

    Examples
    --------
    >>> print(printable_lines("two\nlines\x07"))
    two
    lines\x07
    """
    return "\n".join(map(printable, text.split("\n")))


def escaped(text: str) -> str:
    """Return a text escaped for XML and HTML. XML forbids most of the characters that
    are not printable.

    Examples
    --------
    >>> escaped('<a & "b">')
    '&lt;a &amp; &quot;b&quot;&gt;'
    """
    from html import escape  # only some output is HTML or SVG

    return escape(printable(text))


def note_lines(notes: Sequence[str]) -> tuple[str, ...]:
    """Return the notes of a drawing as lines that can be printed.

    Raises
    ------
    ArgumentError
        Code ``type``: if the notes are a single string, whose characters would become
        lines.

    Examples
    --------
    >>> note_lines(["measured in May"])
    ('measured in May',)
    """
    if isinstance(notes, str):
        expected = f"a sequence of lines, such as [{notes!r:.60}]"
        message = f"notes is the text {notes!r:.60}; expected {expected}."
        raise ArgumentError("type", message)
    return tuple(map(printable, notes))


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal. It is None in a process that was started
    with the stream closed.

    Examples
    --------
    >>> is_terminal(None)
    False
    """
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # it was closed meanwhile
        return False


def terminal_width() -> int:
    """Return the columns of the terminal, or of the variable COLUMNS; 100 if the output
    is not a terminal.
    """
    return columns_of_terminal(100)


def columns_of_terminal(otherwise: int) -> int:
    """Return the columns of the terminal, or of the variable COLUMNS: as
    ``shutil.get_terminal_size``, which would load compression modules.

    Examples
    --------
    >>> columns_of_terminal(otherwise=80) >= 1
    True
    """
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdecimal() and columns.strip("0"):
        return int(columns[:4000])  # int() refuses more than 4300 digits
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or otherwise  # type: ignore[union-attr]
    # the stream is None, closed, or no terminal
    except (AttributeError, ValueError, OSError):
        return otherwise


def wrapped(text: str, width: int) -> str:
    """Return a text whose lines are broken at blanks into lines of at most ``width``
    characters.

    Examples
    --------
    >>> print(wrapped("one, two, three", 10))
    one, two,
    three
    """
    import textwrap  # on demand: most lines are short

    options: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    lines = [textwrap.wrap(line, width, **options) for line in text.split("\n")]
    return "\n".join("\n".join(parts) for parts in lines)


def html_table(rows: Sequence[Sequence[str]], right: Collection[int]) -> str:
    """Return rows of cells, the first of which is the head, as an HTML table; the
    columns ``right`` are aligned to the right.

    Examples
    --------
    >>> html_table([("a",), ("<b>",)], right=())[-38:]
    't">&lt;b&gt;</td></tr></tbody></table>'
    """
    body = "".join(_html_row(row, "td", right) for row in rows[1:])
    return f"<table><thead>{_html_row(rows[0], 'th', right)}</thead><tbody>{body}</tbody></table>"


def _html_row(row: Sequence[str], tag: str, right: Collection[int]) -> str:
    cells = ""
    for index, cell in enumerate(row):
        side = "right" if index in right else "left"
        cells += f'<{tag} style="text-align:{side}">{escaped(cell)}</{tag}>'
    return f"<tr>{cells}</tr>"


# -- formats ---------------------------------------------------------------------------
# Readers of JSON, CSV and numbers from untrusted files, requests and variables. Each
# raises an ArgumentError with code "value". The standard library would raise several
# other errors, and accept more.


def parse_json(text: str | bytes) -> Any:
    """Return the value of a text in JSON. Numbers may be NaN and infinite, as from
    :func:`json.loads`.

    Duplicate keys are rejected: of these, :func:`json.loads` keeps the last, and a
    reader sees the first.

    Parameters
    ----------
    text : str or bytes
        Bytes are UTF-8.

    Raises
    ------
    ArgumentError
        Code ``value``; the sentence is about "it".

    Examples
    --------
    >>> parse_json('{"F": 2}')
    {'F': 2}
    >>> parse_json('{"F": 2, "F": 3}')
    Traceback (most recent call last):
        ...
    minipipe.errors.ArgumentError: it is not JSON: the key 'F' occurs twice
    """
    import json  # most programs read none

    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        return json.loads(text, object_pairs_hook=_without_duplicates)
    except ArgumentError as error:
        raise ArgumentError(f"it is not JSON: {error.message}") from None
    except UnicodeDecodeError as error:
        message = f"it is not JSON: byte {error.start} is not UTF-8"
        raise ArgumentError(message) from None
    except ValueError as error:
        # for a long number, advice for programmers follows the semicolon
        reason = printable(str(error).partition(";")[0])
        raise ArgumentError(f"it is not JSON: {reason}") from None
    except RecursionError:
        message = "it is not JSON: it is nested too deeply"
        raise ArgumentError(message) from None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        duplicate = next(name for name in names if names.count(name) > 1)
        raise ArgumentError(f"the key {quoted(duplicate)} occurs twice")
    return result


def parse_csv(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of each line of a CSV text, from 1, and its cells; lines without
    cells are left out.

    Raises
    ------
    ArgumentError
        Code ``value``; the sentence is about "it".

    Examples
    --------
    >>> list(parse_csv("a,b\\r\\n\\r\\n1,2"))
    [(1, ['a', 'b']), (3, ['1', '2'])]
    >>> list(parse_csv("x" * 200_000))
    Traceback (most recent call last):
        ...
    minipipe.errors.ArgumentError: it is not CSV: field larger than field limit (131072)
    """
    import csv
    from io import StringIO

    lines = csv.reader(StringIO(text.removeprefix("\ufeff"), newline=None))
    try:
        yield from ((number, cells) for number, cells in enumerate(lines, 1) if cells)
    except csv.Error as error:
        raise ArgumentError(f"it is not CSV: {error}") from None


def parse_integer(text: str) -> int:
    """Parse a whole number of any size, perhaps with a sign; as strict as
    :func:`parse_real`.

    Raises
    ------
    ArgumentError
        Code ``value``.

    Examples
    --------
    >>> parse_integer("-1")
    -1
    """
    if text.isascii() and "_" not in text:
        with suppress(ValueError):  # also of more than 4300 digits
            return int(text)
    raise ArgumentError(f"{quoted(text)} is not a whole number")


def parse_real(text: str) -> float:
    """Parse a number; unlike :func:`float`, refuse underscores and the digits of other
    alphabets.

    It may be NaN or infinite.

    Raises
    ------
    ArgumentError
        Code ``value``.

    Examples
    --------
    >>> parse_real("1e-3")
    0.001
    """
    if text.isascii() and "_" not in text:
        with suppress(ValueError):
            return float(text)
    raise ArgumentError(f"{quoted(text)} is not a number")


# -- files -----------------------------------------------------------------------------


_WORDS_OF_JSON = {dict: "a mapping", list: "a list", str: "text", int: "a whole number"}


def json_value(value: Any, kind: type, name: str) -> Any:
    """Return a value that was read from JSON; refuse another type than dict, list, str
    or int. A bool is not an int here.

    Raises
    ------
    ArgumentError
        Code ``type``.

    Examples
    --------
    >>> json_value(3, int, "the size")
    3
    """
    if not isinstance(value, kind) or isinstance(value, bool):
        message = f"{name} is {quoted(value)}, expected {_WORDS_OF_JSON[kind]}"
        raise ArgumentError("type", message)
    return value


def read_bytes(
    path: str | Path, most: int = MOST_BYTES, *, pipes: bool = True, links: bool = True
) -> bytes:
    """Return the content of a file.

    It is opened once; its kind and size are checked before a byte is read.

    Parameters
    ----------
    path : str or Path
        A file or a pipe.
    most : int
        The largest size, in bytes.
    pipes : bool
        Whether a pipe is read, until its writers have closed it. Read pipes whose names
        a user types, such as ``<(command)``; refuse them in an untrusted folder.
    links : bool
        Whether the last part of the path may be a symbolic link. A link may lead
        anywhere, and is read with the rights of this process: refuse links in an
        untrusted folder.

    Raises
    ------
    FileError
        Code ``unreadable``, for a directory, a device or a socket, and for a pipe or a
        link that is refused; ``too-large``; ``unreadable``, if the system refuses, or a
        pipe is silent for ``PIPE_TIMEOUT`` seconds.

    Examples
    --------
    >>> read_bytes("/dev/zero")
    Traceback (most recent call last):
        ...
    minipipe.errors.FileError: '/dev/zero' cannot be read: it is a device; expected a file.
    """
    # Without waiting: opening a pipe without a writer would block for ever.
    flags = ["O_NONBLOCK", "O_BINARY"]
    if not links:
        flags.append("O_NOFOLLOW")
    with _named(path, "read", Code.UNREADABLE):
        # the flag refuses a link that is made meanwhile, with another message
        if not links and os.path.islink(path):
            raise FileError.of(path, "it is a link; expected a file")
        flag = sum((getattr(os, name, 0) for name in flags), os.O_RDONLY)
        descriptor = os.open(path, flag)
        try:
            _check_kind(path, os.fstat(descriptor), most, pipes)
            return b"".join(_pieces(path, descriptor, most))
        finally:
            os.close(descriptor)


def read_text(
    path: str | Path, most: int = MOST_BYTES, *, pipes: bool = True, links: bool = True
) -> str:
    """Return the content of a file of text in UTF-8, read as by :func:`read_bytes`.

    Raises
    ------
    FileError
        Codes ``unreadable`` and ``too-large``.

    Examples
    --------
    >>> read_text("/no/such/file")
    Traceback (most recent call last):
        ...
    minipipe.errors.FileError: '/no/such/file' cannot be read: No such file or directory.
    """
    content = read_bytes(path, most, pipes=pipes, links=links)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"byte {error.start} is not UTF-8, so it is not text"
        raise FileError.of(path, message) from None


def package_text(name: str) -> str:
    """Return the text of a file that belongs to this package, by its path in it.

    Examples
    --------
    >>> package_text("render/html/player.html").splitlines()[0]
    '<!doctype html>'
    """
    path = os.path.join(os.path.dirname(__file__), name)
    with open(path, encoding="utf-8") as file:
        return file.read()


def read_stream(stream: TextIO | None, name: str, most: int = MOST_BYTES) -> str:
    """Return the rest of a stream of text, such as standard input.

    Parameters
    ----------
    stream : TextIO or None
        None if the process was started with it closed.
    name : str
        For the message.
    most : int
        The largest number of characters.

    Raises
    ------
    FileError
        Codes ``too-large`` and ``unreadable``.

    Examples
    --------
    >>> import io
    >>> read_stream(io.StringIO("0F0 0B0"), "stdin", most=3)
    Traceback (most recent call last):
        ...
    minipipe.errors.FileError: 'stdin' cannot be read: it has more than 3 characters, the limit.
    """
    if stream is None:
        raise FileError.of(name, "it is closed")
    with _named(name, "read", Code.UNREADABLE):
        try:
            text = stream.read(most + 1)
        except UnicodeDecodeError:
            raise FileError.of(name, "it is not text") from None
    if len(text) > most:
        message = f"it has more than {most:,} characters, the limit"
        raise FileError.of(name, message, Code.TOO_LARGE)
    return text


_KINDS = {
    stat.S_IFDIR: "directory",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
    stat.S_IFIFO: "pipe",
}


def _check_kind(
    path: str | Path, status: os.stat_result, most: int, pipes: bool
) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG and not (pipes and kind == stat.S_IFIFO):
        noun = _KINDS.get(kind, "socket")
        raise FileError.of(path, f"it is a {noun}; expected a file")
    if status.st_size > most:
        message = f"it has {status.st_size:,} bytes; the limit is {most:,}"
        raise FileError.of(path, message, Code.TOO_LARGE)


def _pieces(path: str | Path, descriptor: int, most: int) -> Iterator[bytes]:
    """Yield the content of a file; it may grow while it is read, and files of /proc
    have no size.
    """
    status = os.fstat(descriptor)
    is_pipe = stat.S_ISFIFO(status.st_mode)
    total = 0
    # a file in one piece is not copied by the join
    length = max(1 << 20, min(status.st_size, 1 << 30))
    while True:
        if is_pipe and not select.select([descriptor], [], [], PIPE_TIMEOUT)[0]:
            message = f"no byte came from the pipe for {PIPE_TIMEOUT:g} s"
            raise FileError.of(path, message)
        piece = os.read(descriptor, length)
        if not piece:
            return
        yield piece
        total += len(piece)
        if total > most:
            message = f"it has more than {most:,} bytes, the limit"
            raise FileError.of(path, message, Code.TOO_LARGE)


def write_whole(path: str | Path, content: str | bytes) -> Path:
    """Write a file whole or not at all: under a temporary name in the same folder,
    which is then renamed.

    A failure, such as a full disk, leaves no partial file, and does not change an
    earlier file. Devices and pipes are written to directly.

    Parameters
    ----------
    path : str or Path
        Links are followed; an earlier file keeps its permissions.
    content : str or bytes
        Text is written in UTF-8, and surrogates, which file names may contain, as
        ``?``.

    Returns
    -------
    Path
        The path argument.

    Raises
    ------
    FileError
        Code ``unwritable``, with the reason of the system.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(f"{folder}/a.txt", "whole").read_text()
    'whole'
    """
    if isinstance(content, str):
        content = content.encode("utf-8", "replace")
    with _named(path, "written", Code.UNWRITABLE):
        if _is_stream(path):
            # Without waiting: a pipe without a reader is refused.
            flags = os.O_WRONLY | os.O_TRUNC | getattr(os, "O_NONBLOCK", 0)
            _write(path, content, flags)
        else:
            _write_and_rename(os.path.realpath(path), content)
    from pathlib import Path  # on demand, see above

    return Path(path)


def _is_stream(path: str | Path) -> bool:
    """Return whether a name denotes a device or a pipe, which has no earlier content
    and cannot be replaced.
    """
    is_special = os.path.exists(path) and not os.path.isfile(path)
    # /dev/stdout may be a file, which must not be replaced; /dev/shm is an ordinary
    # folder.
    streams = ("/dev/std", "/dev/fd/", "/proc/self/fd/")
    return is_special or os.path.abspath(path).startswith(streams)


def _write_and_rename(target: str, data: bytes) -> None:
    mode = None
    if os.path.exists(target):
        mode = stat.S_IMODE(os.stat(target).st_mode)
        # a file that may not be written must not be replaced either
        os.close(os.open(target, os.O_WRONLY))
    # The name of the target may be at its limit.
    name = f".minipipe-{os.urandom(8).hex()}.partial"
    partial = os.path.join(os.path.dirname(target), name)
    try:
        _write(partial, data, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        if mode is not None:
            os.chmod(partial, mode)
        os.replace(partial, target)
    except BaseException:  # also an interrupt leaves nothing behind
        with suppress(OSError):
            os.unlink(partial)
        raise


def _write(path: str | Path, data: bytes, flags: int) -> None:
    descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0), 0o666)
    if hasattr(os, "O_NONBLOCK"):
        os.set_blocking(descriptor, True)
    with open(descriptor, "wb") as file:
        file.write(data)


@contextmanager
def _named(path: str | Path, done: str, code: Code) -> Iterator[None]:
    """Turn an error of the system about a file into one that names the file."""
    try:
        yield
    except FileError:
        raise
    # such as a name with a NUL, or no name
    except (OSError, ValueError, TypeError) as error:
        if isinstance(error, OSError) and error.strerror:
            reason = error.strerror
        else:
            reason = str(error)
        raise FileError(code, f"{_name(path)} cannot be {done}: {reason}.") from None


def _name(path: object) -> str:
    if isinstance(path, os.PathLike):
        path = str(path)
    return quoted(path, _MOST_OF_A_NAME)


@contextmanager
def reading(make: Callable[[str], MinipipeError]) -> Iterator[None]:
    """Turn an error about the contents of a file into one that names the file.

    Other errors of minipipe pass.

    Parameters
    ----------
    make : function
        Returns the error for a reason, such as ``"it lacks 'width'"``.

    Examples
    --------
    >>> with reading(lambda reason: FileError.of("sizes.json", reason)):
    ...     parse_json("{}")["width"]
    Traceback (most recent call last):
        ...
    minipipe.errors.FileError: 'sizes.json' cannot be read: it lacks 'width'.
    """
    try:
        yield
    except ArgumentError as error:
        raise make(error.message.rstrip(".")) from None
    except MinipipeError:
        raise
    except KeyError as error:
        raise make(f"it lacks {error}") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise make(str(error).rstrip(".")) from None


def json_object(text: str, head: Mapping[str, object]) -> dict[str, Any]:
    """Return the JSON object of a file's text, after checking the members of its
    head.

    Raises
    ------
    ArgumentError
        Code ``value``; the sentence is about "it".

    Examples
    --------
    >>> json_object('{"format": "costs", "F": 2}', {"format": "costs"})
    {'format': 'costs', 'F': 2}
    >>> json_object("{}", {"format": "costs"})
    Traceback (most recent call last):
        ...
    minipipe.errors.ArgumentError: its format is None, expected 'costs'
    """
    content = parse_json(text)
    if not isinstance(content, dict):
        raise ArgumentError(f"it is {quoted(content)}, expected an object")
    for name, expected in head.items():
        value = content.get(name)
        if type(value) is not type(expected) or value != expected:
            raise ArgumentError(f"its {name} is {quoted(value)}, expected {expected!r}")
    return content


def text_table(
    rows: Sequence[Sequence[str]], right: Collection[int], width: float = inf
) -> str:
    """Return rows with aligned columns, two blanks between them.

    Parameters
    ----------
    rows : sequence of sequence of str
        The head first.
    right : collection of int
        The columns that are aligned on the right.
    width : float
        The most characters of a line. A wider table becomes several, one below the
        other, each with the first column.

    Examples
    --------
    >>> print(text_table([("name", "size"), ("gpipe", "4")], right={1}))
    name   size
    gpipe     4
    >>> print(
    ...     text_table(
    ...         [("name", "size", "bubble"), ("gpipe", "4", "27 %")],
    ...         right={1, 2},
    ...         width=14,
    ...     )
    ... )
    name   size
    gpipe     4
    <BLANKLINE>
    name   bubble
    gpipe    27 %
    """
    widths = [max(map(len, column)) for column in zip(*rows)]
    sides = [">" if i in right else "<" for i in range(len(widths))]
    parts = [[0]]
    for column in range(1, len(widths)):
        taken = sum(widths[i] + 2 for i in parts[-1])
        if len(parts[-1]) > 1 and taken + widths[column] > width:
            parts.append([0])
        parts[-1].append(column)
    blocks = []
    for part in parts:
        cells = [[f"{row[i]:{sides[i]}{widths[i]}}" for i in part] for row in rows]
        blocks.append("\n".join("  ".join(row).rstrip() for row in cells))
    return "\n\n".join(blocks)
