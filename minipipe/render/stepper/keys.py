"""Terminal input and output: single keys where termios exists, otherwise lines."""

from __future__ import annotations

import os
import select
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Any

try:
    import termios
    import tty
except ImportError:  # Windows
    termios = None  # type: ignore[assignment]

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # to the alternate screen without a cursor, and back
_SEQUENCES = {
    "[A": "up",
    "[B": "down",
    "[C": "right",
    "[D": "left",
    "[H": "home",
    "[F": "end",
    "[1~": "home",
    "[7~": "home",
    "[4~": "end",
    "[8~": "end",
    "[5~": "pageup",
    "[6~": "pagedown",
}
_NAMES = {
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    " ": "space",
    "\x04": "eof",
    "": "eof",
}
_ESCAPE = "\x1b"


class Screen(ABC):
    """The terminal of the loop: a context manager that sets it up and restores it."""

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return None

    def size(self) -> tuple[int, int]:
        """Return the current size in columns and lines."""
        try:
            size = os.get_terminal_size(sys.stdout.fileno())
        except OSError:
            return 79, 24
        # One column less than there is: terminals differ in the position of the cursor after the last one.
        return max(1, size.columns - 1) if size.columns else 79, size.lines or 24

    @abstractmethod
    def show(self, lines: Sequence[str]) -> None:
        """Draw lines in place of the previous ones."""

    @abstractmethod
    def read_key(self) -> str:
        """Wait for a key and return its name: ``"n"``, ``"right"``, ``"enter"``; ``"eof"`` at the end of the input."""

    @abstractmethod
    def ask(self, question: str) -> str:
        """Ask for a line of text under the drawing."""


class KeyScreen(Screen):
    """A terminal that redraws in place and delivers each key as it is pressed. It is restored on exit."""

    def __enter__(self) -> Screen:
        self._input = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._input)
        tty.setcbreak(self._input, termios.TCSADRAIN)  # keep the keys that were typed ahead
        settings: list[Any] = termios.tcgetattr(self._input)
        settings[6][termios.VSUSP] = b"\0"  # else Ctrl-Z would leave the shell on this screen, without a cursor
        termios.tcsetattr(self._input, termios.TCSANOW, settings)
        self._write(_ENTER)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._write(_LEAVE)
        termios.tcsetattr(self._input, termios.TCSANOW, self._before)

    def show(self, lines: Sequence[str]) -> None:
        """Overwrite the previous lines one by one, which avoids flicker."""
        self._write("\x1b[H" + "\n".join(f"{line}\x1b[K" for line in lines) + "\x1b[J")

    def read_key(self) -> str:
        """Return the next key. An escape sequence, such as that of an arrow, is one key."""
        character = self._read()
        if character != _ESCAPE:
            return _NAMES.get(character, character)
        sequence = ""
        while sequence[1:2] == "" or sequence[-1] in "0123456789;":  # it ends with a letter or ~
            if not self._is_more():
                return "escape"
            sequence += self._read()
        return _SEQUENCES.get(sequence.replace("O", "["), "escape")  # some terminals write O for [

    def ask(self, question: str) -> str:
        """Read a line of text on the last line of the screen, key by key; Escape cancels it."""
        typed = ""
        while True:
            _, height = self.size()
            self._write(f"\x1b[{height};1H{question}{typed}\x1b[K\x1b[?25h")
            key = self.read_key()
            if key in ("enter", "escape", "eof"):
                self._write("\x1b[?25l")
                return typed if key == "enter" else ""
            if key == "backspace":
                typed = typed[:-1]
            elif len(key) == 1:
                typed += key

    def _read(self) -> str:
        return os.read(self._input, 1).decode("ascii", "replace")

    def _is_more(self) -> bool:
        return bool(select.select([self._input], [], [], 0.05)[0])

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


class LineScreen(Screen):
    """A terminal without a cursor to move or without single keys: it appends lines, and a key is a letter and Enter."""

    def show(self, lines: Sequence[str]) -> None:
        """Append lines to the output."""
        print("\n".join(lines), flush=True)

    def read_key(self) -> str:
        """Return the first letter of a line. Enter alone is a key, too."""
        try:
            line = input("> ").strip()
        except EOFError:
            return "eof"
        return line[:1] or "enter"

    def ask(self, question: str) -> str:
        """Ask for a line."""
        try:
            return input(question)
        except EOFError:
            return ""


def screen_of_this_terminal() -> Screen | None:
    """Return the screen of standard input and output, or None if they are not a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return None
    return LineScreen() if termios is None or os.environ.get("TERM") == "dumb" else KeyScreen()
