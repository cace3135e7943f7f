"""``minipipe step`` in a terminal: each key selects the next snapshot to draw."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Sequence
from math import isnan
from typing import Any

from minipipe.io import is_terminal, package_text
from minipipe.render.stepper.description import describe_diagnosis
from minipipe.render.stepper.frame import LEAST_SIZE, Frame
from minipipe.render.stepper.walkthrough import Walkthrough
from minipipe.render.units import scale_of

try:
    import termios
    import tty
except ImportError:  # Windows
    termios = None  # type: ignore[assignment]

# Switch to the alternate screen and hide the cursor; and back.
_ENTER = "\x1b[?1049h\x1b[?25l"
_LEAVE = "\x1b[?25h\x1b[?1049l"
# Keys by the last part of their escape sequence: of ``ESC [ A``, and of ``ESC [ 5 ~``.
_SEQUENCES = dict(zip("ABCDHF", ("up", "down", "right", "left", "home", "end")))
_SEQUENCES |= dict(zip("174856", ("home", "home", "end", "end", "pageup", "pagedown")))
_NAMES = {
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\b": "backspace",
    " ": "space",
    "\x04": "eof",
    "": "eof",
}
_ESCAPE = "\x1b"


class Screen:
    """A terminal without cursor movement or single keys: it appends lines, and a key is
    a letter followed by Enter.

    A context manager that sets the terminal up and restores it.
    """

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def size(self) -> tuple[int, int]:
        """Return the current size in columns and lines."""
        try:
            size = os.get_terminal_size(sys.stdout.fileno())
        except OSError:
            return 79, 24
        # One column less than the width: terminals differ in the position of the cursor
        # after the last column.
        return max(1, (size.columns or 80) - 1), size.lines or 24

    def show(self, lines: Sequence[str]) -> None:
        """Draw lines: here below the previous ones."""
        print("\n".join(lines), flush=True)

    def read_key(self) -> str:
        """Wait for a key and return its name: ``"n"``, ``"right"``, ``"enter"``;
        ``"eof"`` at the end of the input.

        Here it is the first letter of a line; Enter alone is also a key.
        """
        try:
            line = input("> ").strip()
        except EOFError:
            return "eof"
        return line[:1] or "enter"

    def ask(self, question: str) -> str:
        """Ask for a line of text under the drawing."""
        try:
            return input(question)
        except EOFError:
            return ""


class KeyScreen(Screen):
    """A terminal that redraws in place and delivers each key when it is pressed. It is
    restored on exit.
    """

    def __enter__(self) -> Screen:
        self._input = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._input)
        # TCSADRAIN keeps the keys that were typed ahead.
        tty.setcbreak(self._input, termios.TCSADRAIN)
        settings: list[Any] = termios.tcgetattr(self._input)
        # Disable Ctrl-Z, which would leave the shell on this screen without a cursor.
        settings[6][termios.VSUSP] = b"\0"
        termios.tcsetattr(self._input, termios.TCSANOW, settings)
        self._write(_ENTER)
        return self

    def __exit__(self, *_: object) -> None:
        self._write(_LEAVE)
        termios.tcsetattr(self._input, termios.TCSANOW, self._before)

    def show(self, lines: Sequence[str]) -> None:
        """Overwrite the previous lines one by one, which avoids flicker."""
        self._write("\x1b[H" + "\n".join(f"{line}\x1b[K" for line in lines) + "\x1b[J")

    def read_key(self) -> str:
        """Return the next key. An escape sequence, such as an arrow key sends, is one
        key.
        """
        character = self._read()
        if character != _ESCAPE:
            return _NAMES.get(character, character)
        sequence = ""
        # A sequence ends with a letter or ~.
        while sequence[1:2] == "" or sequence[-1] in "0123456789;":
            if not select.select([self._input], [], [], 0.05)[0]:
                return "escape"  # nothing follows
            sequence += self._read()
        # Some terminals send O instead of [.
        return _SEQUENCES.get(sequence.strip("[O~"), "escape")

    def ask(self, question: str) -> str:
        """Read a line of text on the last line of the screen, key by key; Escape
        cancels it.
        """
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

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def screen_of_this_terminal() -> Screen | None:
    """Return the screen of standard input and output, or None if they are not a
    terminal.
    """
    if not (is_terminal(sys.stdin) and is_terminal(sys.stdout)):
        return None
    if termios is None or os.environ.get("TERM") == "dumb":
        return Screen()
    return KeyScreen()


_KEYS = "n next  p back  home end  g go to  r one rank  ? help  q quit"


def step_with_keys(walkthrough: Walkthrough, screen: Screen, colour: bool) -> bool:
    """Walk through a schedule by keys; at the end, restore the terminal and print the
    diagnosis.

    Returns
    -------
    bool
        True after a key to quit, False after Ctrl-C.
    """
    try:
        with screen:
            Stepper(walkthrough, screen, colour).run()
    except KeyboardInterrupt:
        return False
    print("\n".join(describe_diagnosis(walkthrough)))
    return True


class Stepper:
    """Shows the snapshots of a walk, one for each key.

    Parameters
    ----------
    walkthrough : Walkthrough
    screen : Screen
    colour : bool

    Attributes
    ----------
    number : int
        The number of the current snapshot.
    rank : int or None
        The rank whose actions it stops at; None for all ranks.
    """

    def __init__(self, walkthrough: Walkthrough, screen: Screen, colour: bool) -> None:
        self.walkthrough = walkthrough
        self.screen = screen
        self.frame = Frame(walkthrough, colour)
        self.last = len(walkthrough) - 1
        self.number = 0
        self.notice = ""
        self.rank: int | None = None

    def run(self) -> None:
        """Draw snapshots and handle keys until one of them quits."""
        while True:
            self.show()
            key = self.screen.read_key()
            self.notice = ""
            if key in ("q", "Q", "eof"):
                return
            self.press(key)

    def show(self) -> None:
        """Draw the snapshot and, below it, a notice or the keys."""
        width, height = self.screen.size()
        if width < LEAST_SIZE[0] or height <= LEAST_SIZE[1]:
            self.screen.show(["too small; q quits"[:width]])
            return
        snapshot = self.walkthrough[self.number]
        lines = self.frame.draw(snapshot, width, height - 1, self.rank)
        keys = _KEYS
        if self.rank is not None:
            keys = f"only rank {self.rank} | {_KEYS}"
        self._fill(lines, self.notice or keys)

    def _fill(self, lines: Sequence[str], last: str) -> None:
        """Show lines, and one more on the last line of the screen."""
        width, height = self.screen.size()
        blanks = [""] * (height - 1 - len(lines))
        self.screen.show([*lines, *blanks, last[:width]])

    def press(self, key: str) -> None:
        """Handle a key."""
        if key in ("n", "space", "right", "enter", "down"):
            self.advance(1)
        elif key in ("p", "b", "left", "backspace", "up"):
            self.advance(-1)
        elif key == "pagedown":
            self.go_to(self.number + 10)
        elif key == "pageup":
            self.go_to(self.number - 10)
        elif key in ("home", "0"):
            self.number = 0
        elif key in ("end", "$", "G"):
            self.number = self.last
        elif key == "g":
            question = f"go to a step, 0 to {self.last}, or to a time such as t12.5: "
            self.go(self.screen.ask(question).strip())
        elif key == "r":
            ranks = f"0 to {self.frame.num_ranks - 1}; Enter: all"
            question = f"stop only at actions of rank ({ranks}): "
            self.choose(self.screen.ask(question).strip())
        elif key in ("?", "h"):
            self.help()
        else:
            self.notice = f"{key!r:.20} has no function; ? lists the keys"

    def go_to(self, number: int) -> None:
        """Go to a snapshot, or to the end that is nearer."""
        self.number = max(0, min(self.last, number))

    def advance(self, direction: int) -> None:
        """Go to the next snapshot in a direction: of the chosen rank's actions, or of
        any.
        """
        events = self.walkthrough.events
        number = self.number + direction
        while self.rank is not None and 0 < number < self.last:
            if events[number - 1].rank == self.rank:
                break
            number += direction
        self.go_to(number)

    def go(self, answer: str) -> None:
        """Go to a step, ``17``, or to a time, ``t12.5``, in the unit of the screen."""
        scale, _ = scale_of(self.walkthrough.timeline.unit)
        try:
            if answer.startswith("t"):
                time = float(answer[1:])
                if isnan(time):  # it is neither before nor after any step
                    raise ValueError
                self.number = self.walkthrough.at_time(time / scale)
            elif answer:
                self.go_to(int(answer))
        except ValueError:
            such = "a step, such as 17, nor a time, such as t12.5"
            self.notice = f"{answer!r:.20} is neither {such}"

    def choose(self, answer: str) -> None:
        """Stop only at the actions of one rank; an empty answer selects all ranks."""
        if not answer:
            self.rank = None
        elif answer in map(str, range(self.frame.num_ranks)):
            self.rank = int(answer)
        else:
            ranks = f"there are {self.frame.num_ranks}, counted from 0"
            self.notice = f"{answer!r:.20} is not a rank; {ranks}"

    def help(self) -> None:
        """Show the keys and the notation until a key is pressed."""
        width, height = self.screen.size()
        keys = package_text("render/stepper/keys.txt").splitlines()
        lines = [line[:width] for line in keys[: height - 1]]
        self._fill(lines, "press any key to go back")
        self.screen.read_key()
