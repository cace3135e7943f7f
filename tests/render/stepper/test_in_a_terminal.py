"""``minipipe step`` in a pseudo-terminal: keys, redrawing, and a terminal left as it
was found.
"""

import codecs
import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest

from tests.launch import ROOT, environment
from tests.render.stepper.screens import NAIVE, plain


def heed_ctrl_c():
    """Take the terminal, which then sends SIGINT on Ctrl-C; a shell that starts tests
    with & has it ignored.
    """
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """A program in a pseudo-terminal: press keys, read the screen, resize."""

    def __init__(self, *arguments, size=(80, 24), **changes):
        self.master, self.slave = pty.openpty()
        self.resize(*size)
        self.before = termios.tcgetattr(self.slave)
        self.output = ""
        # a read may end within a character
        self.decoder = codecs.getincrementaldecoder("utf-8")()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "minipipe", "step", *map(str, arguments)],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            cwd=ROOT,
            env=environment(**{"TERM": "xterm-256color", **changes}),
            start_new_session=True,
            preexec_fn=heed_ctrl_c,
        )

    def resize(self, columns, lines):
        self.size = columns, lines
        fcntl.ioctl(
            self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0)
        )

    def press(self, keys, words, limit=30):
        """Press keys, wait until the screen has the words, and return it."""
        os.write(self.master, keys.encode())
        deadline = time.monotonic() + limit
        while not self.is_drawn() or words not in "\n".join(self.screen()):
            if not select.select(
                [self.master], [], [], max(0, deadline - time.monotonic())
            )[0]:
                raise AssertionError(
                    f"{words!r} never came; the screen:\n{self.screen()}"
                )
            self.output += self.decoder.decode(os.read(self.master, 65536))
        return self.screen()

    def is_drawn(self):
        return (
            "\x1b[J" in self.output.rsplit("\x1b[H", 1)[-1] or "\x1b" not in self.output
        )

    def screen(self):
        return (
            plain(self.output.rsplit("\x1b[H", 1)[-1]).replace("\r\n", "\n").split("\n")
        )

    def end(self, limit=30):
        """Wait until the program has ended; return its status and all that it wrote."""
        status = self.process.wait(limit)
        while select.select([self.master], [], [], 0)[0]:
            self.output += self.decoder.decode(os.read(self.master, 65536))
        return status, self.output


@pytest.fixture
def terminal():
    opened = []

    def start(*arguments, **options):
        opened.append(Terminal(*arguments, **options))
        return opened[-1]

    yield start
    for one in opened:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()
        for descriptor in (one.master, one.slave):
            with contextlib.suppress(OSError):
                os.close(descriptor)


def test_in_a_terminal_keys_walk_back_and_forth_and_it_is_left_as_it_was(terminal):
    window = terminal("1f1b")
    assert window.press("", "n next  p back")[0].endswith(
        "step 0 of 64, time 0 of 33 units"
    )
    assert termios.tcgetattr(window.slave) != window.before
    window.press("n", "step 1 of 64")
    window.press("\x1b[C", "step 2 of 64")  # right
    window.press("\x1bOC", "step 3 of 64")  # the same, as some terminals have it
    window.press("p", "step 2 of 64")
    window.press("\x1b[6~", "step 12 of 64")  # page down
    window.press("g", "go to a step, 0 to 65")
    window.press("2x\x7f0\r", "step 20 of 64")
    window.press("gt9\r", "step 18 of 64, time 9 of 33 units")
    window.press("r2\rn", "only rank 2")
    window.press("?", "press any key to go back")
    window.press(" ", "rank 2 begins")
    screen = window.press("\x1b[F", "end, time 33 units")
    assert (
        "1f1b: makespan 33 units, bubble 27.3 %, peak activations by rank 4, 3, 2, 1"
        in screen
    )
    window.press("\x1b[H", "step 0 of 64")
    os.write(window.master, b"q")
    status, output = window.end()
    assert status == 0 and termios.tcgetattr(window.slave) == window.before
    assert output.count("\x1b[?1049h") == output.count("\x1b[?1049l") == 1
    left = output.split("\x1b[?1049l")[1]
    assert "\x1b[?25h" in output and left.strip().startswith("1f1b: makespan 33 units")


@pytest.mark.slow
def test_it_follows_the_size_of_the_window_at_the_next_key_and_shows_the_rank_in_question(
    terminal,
):
    window = terminal("1f1b", "--ranks", 12, NO_COLOR="1")
    screen = window.press("", "q quit")
    assert len(screen) == 24 and max(map(len, screen)) <= 80
    for columns, lines in ((120, 40), (60, 14), (80, 24)):
        window.resize(columns, lines)
        window.press("\x1b[F", "end, time")
        screen = window.press("g40\r", "step 40 of")
        assert len(screen) == lines and columns - 15 <= max(map(len, screen)) <= columns
        rank = re.match(r"rank (\d+) begins", screen[1])[1]
        assert (
            sum(line.startswith(f"rank {rank}".ljust(7) + ">") for line in screen) == 2
        )
    assert "\x1b[3" not in window.output and "\x1b[48" not in window.output


def test_ctrl_c_restores_the_terminal_and_ends_with_130(terminal):
    window = terminal("1f1b")
    window.press("nn", "step 2 of")  # typed ahead
    os.write(window.master, b"\x03")
    status, output = window.end()
    assert status == 130 and termios.tcgetattr(window.slave) == window.before
    assert (
        output.rstrip().endswith("\x1b[?25h\x1b[?1049l") and "Traceback" not in output
    )


def test_an_illegal_one_is_shown_in_a_terminal_with_its_problem_and_ends_with_1(
    terminal, file
):
    window = terminal(file(NAIVE))
    screen = window.press("", "n next")
    assert screen[2].startswith(
        "[rendezvous-deadlock] These ranks wait for each other in a cycle"
    )
    screen = window.press(
        "\x1b[F", "the cycle: rank 0 waits for rank 1, rank 1 waits for rank 0"
    )
    assert any(line.endswith("0SEND_F1!") for line in screen) and any(
        "stuck: needs 0RECV_B0" in line for line in screen
    )
    assert "\x1b[1;38;5;160m" in window.output
    os.write(window.master, b"\x04")  # the end of the input is a way to quit, too
    status, output = window.end()
    assert status == 1 and "[rendezvous-deadlock]" in output.split("\x1b[?1049l")[1]


def test_a_terminal_that_can_do_nothing_takes_lines(terminal):
    window = terminal("gpipe", "--ranks", 2, "--microbatches", 1, TERM="dumb")
    window.press("", "step 0 of 4")
    window.press("n\n", "step 1 of 4")
    window.press("\n", "step 2 of 4")
    window.press("g\n", "go to a step")
    window.press("4\n", "step 4 of 4")
    os.write(window.master, b"q\n")
    status, output = window.end()
    assert status == 0 and "\x1b" not in output


@pytest.mark.slow
def test_in_a_terminal_all_is_written_when_asked(terminal):
    status, output = terminal("gpipe", "--ranks", 2, "--microbatches", 1, "--all").end()
    assert status == 0 and output.count("step ") == 5 and "\x1b" not in output
