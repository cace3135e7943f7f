"""What is said while an answer is not ready: at once, then at least every 10 s, on
standard error alone.
"""

import io
import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe.cli import progress as module
from minipipe.cli.progress import Progress, duration
from tests.launch import needs_mpi, slowly
from tests.strategies import examples

PROMISED = 10.0  # seconds between two lines


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture(autouse=True)
def no_thread(monkeypatch):
    """Let the test alone beat."""
    monkeypatch.setattr(module, "_REFRESH", threading.TIMEOUT_MAX)


def lines_at(times, is_long=True, **options):
    """Return the lines said by beats at some times, each with its time."""
    clock, stream, said = Clock(), io.StringIO(), []
    with Progress(
        "working", stream=stream, clock=clock, is_long=is_long, **options
    ) as progress:
        said += [(0.0, line) for line in stream.getvalue().splitlines()]
        for number, clock.now in enumerate(times):
            before = stream.getvalue()
            progress.tell(f"part {number}")
            progress.beat()
            said += [
                (clock.now, line)
                for line in stream.getvalue().removeprefix(before).splitlines()
            ]
    return said


@examples(25)
@given(st.lists(st.floats(0.1, 0.9), min_size=200, max_size=400))
def test_something_is_said_at_once_and_then_at_least_every_10_seconds(pauses):
    times = [sum(pauses[: i + 1]) for i in range(len(pauses))]
    said = lines_at(times, seconds=30.0)
    assert said[0] == (0.0, "minipipe: working; about 30 s")
    moments = [moment for moment, _ in said] + [times[-1]]
    assert max(after - before for before, after in zip(moments, moments[1:])) < PROMISED
    assert len(said) <= 2 + times[-1] / 5, "not a flood"


def test_a_line_says_how_long_it_has_taken_of_how_much_and_what_happens_now():
    said = [line for _, line in lines_at([1.0, 8.0, 16.0, 24.5], seconds=20.0)]
    assert said[1:] == [
        "minipipe: 8 s of about 20 s: part 1",
        "minipipe: 16 s of about 20 s: part 2",
        "minipipe: 24 s, longer than expected: part 3",
    ]
    limited = lines_at([9.0], seconds=60.0, is_at_most=True)
    assert [line for _, line in limited] == [
        "minipipe: working; at most 60 s",
        "minipipe: 9 s of at most 60 s: part 0",
    ]


def test_what_is_usually_quick_says_nothing_unless_it_lasts():
    assert lines_at([0.5, 1.9], is_long=False) == []
    assert [line for _, line in lines_at([0.5, 2.5, 11.0], is_long=False)] == [
        "minipipe: working …",
        "minipipe: 11 s: part 2",
    ]


def test_on_a_terminal_a_bar_is_drawn_and_taken_away():
    clock, stream = Clock(), Terminal()
    with Progress("working", 40.0, stream=stream, clock=clock) as progress:
        progress.tell("round 2 of 5")
        clock.now = 20.0
        progress.beat()
        assert "round 2 of 5  50%|" in stream.getvalue()
    assert stream.getvalue().startswith("minipipe: working; about 40 s\n")
    assert stream.getvalue().rpartition("\r")[2].strip() == ""


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_a_stream_that_fails_disturbs_nothing(kind):
    class Full(kind):
        def write(self, text):
            raise OSError(28, "No space left on device")

    clock = Clock()
    with Progress("working", 40.0, stream=Full(), clock=clock) as progress:
        for clock.now in (1.0, 9.0, 20.0):
            progress.beat()


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.1, "1 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (1e9, "277,778 h")],
)
def test_times_are_said_in_the_unit_that_is_read_easily(seconds, words):
    assert duration(seconds) == words


# -- the verbs -------------------------------------------------------------------------


@needs_mpi
@pytest.mark.parametrize(
    ("words", "work"),
    [
        (
            ["search", "--ranks", 2, "--microbatches", 4],
            "searching schedules of 2 ranks and 4 microbatches",
        ),
        slowly(  # in short: test_compare.py
            [
                "compare",
                "--ranks",
                2,
                "--width",
                8,
                "--heads",
                2,
                "--layers",
                2,
                "--length",
                4,
                "--rounds",
                1,
            ],
            "comparing 4 meshes on 2 ranks under mpirun, 1 round of steps in "
            "turns; about ",
        ),
    ],
    ids=["search", "compare"],
)
def test_a_verb_says_at_once_what_it_does_and_its_answer_is_unchanged(words, work, ask):
    status, out, err = ask(*words, "--json")
    assert status == 0 and json.loads(out) and out.count("\n") == 1
    said = [line for line in err.splitlines() if "busy" not in line]
    assert said[0].startswith(f"minipipe: {work}")
