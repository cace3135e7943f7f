"""A terminal to draw on and to read keys from: single keys where termios exists, otherwise a line and Enter."""

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

__all__ = ["KeyScreen", "LineScreen", "Screen", "screen_of_this_terminal"]

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # another screen, no cursor; and back
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
    """What the loop draws on and reads from; a context in which the terminal is set up for it."""

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return None

    def size(self) -> tuple[int, int]:
        """Return columns and lines that may be drawn on, as they are now."""
        try:
            size = os.get_terminal_size(sys.stdout.fileno())
        except OSError:
            return 79, 24
        # One column less than there is: after the last one, terminals differ in where they stand.
        return max(1, size.columns - 1) if size.columns else 79, size.lines or 24

    @abstractmethod
    def show(self, lines: Sequence[str]) -> None:
        """Draw lines, in place of what was there."""

    @abstractmethod
    def read_key(self) -> str:
        """Wait for a key and return its name: ``"n"``, ``"right"``, ``"enter"``; ``"eof"`` when nothing will come."""

    @abstractmethod
    def ask(self, question: str) -> str:
        """Ask for a line of text under the drawing."""


class KeyScreen(Screen):
    """A terminal that redraws in place and gives each key as it is pressed. It is left as it was found."""

    def __enter__(self) -> Screen:
        self._input = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._input)
        tty.setcbreak(self._input, termios.TCSADRAIN)  # what was typed ahead is not lost
        settings: list[Any] = termios.tcgetattr(self._input)
        settings[6][termios.VSUSP] = b"\0"  # else Ctrl-Z would leave the shell on this screen, without a cursor
        termios.tcsetattr(self._input, termios.TCSANOW, settings)
        self._write(_ENTER)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._write(_LEAVE)
        termios.tcsetattr(self._input, termios.TCSANOW, self._before)

    def show(self, lines: Sequence[str]) -> None:
        """Draw over what was there, line by line, so that nothing flickers."""
        self._write("\x1b[H" + "\n".join(f"{line}\x1b[K" for line in lines) + "\x1b[J")

    def read_key(self) -> str:
        """Return the next key; a sequence such as that of an arrow counts as one."""
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
        """Read a line key by key, shown on the last line of the screen; Escape takes it back."""
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
    """A terminal that can only write on, or that gives its input by the line: a letter and Enter."""

    def show(self, lines: Sequence[str]) -> None:
        """Write below what was there."""
        print("\n".join(lines), flush=True)

    def read_key(self) -> str:
        """Return the first letter of a line; Enter alone is a key, too."""
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
    """Return the screen that standard input and output make, or None where they are no terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return None
    return LineScreen() if termios is None or os.environ.get("TERM") == "dumb" else KeyScreen()
