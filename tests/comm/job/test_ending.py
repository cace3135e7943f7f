"""Exit codes and last words."""

import builtins
import sys
import threading

import pytest

from minipipe.comm.job.meeting import Line
from minipipe.comm.job.process import RankProcess
from minipipe.comm.job.reports import last_words
from minipipe.core.comm.watch import exit_code_of
from minipipe.errors import MessageError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SystemExit(), 0),
        (SystemExit(0), 0),
        (SystemExit(7), 7),
        (SystemExit(256 + 7), 7),
        (SystemExit("no data"), 1),
        (KeyboardInterrupt(), 130),
        (ValueError(), 1),
    ],
)
def test_exit_codes_are_those_that_the_shell_would_see(error, code):
    assert exit_code_of(error) == code


def deep(error, levels):
    """Raise from below many frames; their lines differ by turns, as Python folds equal
    ones.
    """
    if levels:
        _ = deep(error, levels - 1) if levels % 2 else [deep(error, levels - 1)]
    raise error


@pytest.mark.parametrize("levels", [0, 3, 300])
def test_last_words_fit_a_screen_and_end_with_the_cause(levels):
    try:
        deep(ValueError("the cause"), levels)
    except ValueError as error:
        words = last_words(error).splitlines()
    assert len(words) <= 22
    assert (
        words[0] == "Traceback (most recent call last):"
        and words[-1] == "ValueError: the cause"
    )


def test_an_interruption_says_where_and_notes_come_before_the_sentence():
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt as error:
        error.add_note("on rank 1, stage 1, microbatch 0, action 1F0 of gpipe, step 3")
        first, second = last_words(error).splitlines()
    assert first.startswith("on rank 1, stage 1")
    assert second.startswith("Interrupted at test_ending.py, line") and second.endswith(
        "raise KeyboardInterrupt."
    )
    late = MessageError("timeout", "Rank 0 has waited.\nRank 2 does not answer.")
    late.add_note("on rank 0")
    assert (
        last_words(late)
        == "on rank 0\nMessageError: Rank 0 has waited.\nRank 2 does not answer."
    )


def test_notes_come_before_a_traceback_too_so_that_the_cause_is_last():
    """The story: Python prints notes behind the cause, and the last line was "on rank
    1, stage 1, …".
    """
    try:
        deep(ValueError("the cause"), 300)
    except ValueError as error:
        error.add_note("in layer 3, Mine()")
        error.add_note("on rank 1, stage 1")
        words = last_words(error).splitlines()
    assert words[:3] == [
        "in layer 3, Mine()",
        "on rank 1, stage 1",
        "Traceback (most recent call last):",
    ]
    assert words[-1] == "ValueError: the cause" and len(words) <= 22


def test_without_memory_for_a_traceback_the_name_of_the_error_is_said(monkeypatch):
    monkeypatch.setattr(
        "traceback.TracebackException.format", lambda told: [" "] * (1 << 60)
    )
    assert (
        last_words(MemoryError()) == "MemoryError: no memory is left for a traceback."
    )


class Broken:
    """A stream on a full disk."""

    def write(self, text):
        raise OSError(28, "No space left on device")

    def flush(self):
        raise OSError(28, "No space left on device")


@pytest.fixture
def process(monkeypatch):
    """A rank whose end is noted instead of carried out."""
    for module, name in ((sys, "exit"), (builtins, "exit"), (builtins, "quit")):
        monkeypatch.setattr(module, name, getattr(module, name, None), raising=False)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setattr("os.register_at_fork", lambda **hooks: None)
    return RankProcess(3, Line())


@pytest.mark.parametrize("stream", [None, Broken()], ids=["None", "full"])
def test_a_dead_stream_loses_no_message_and_stops_no_abort(
    process, stream, monkeypatch, capfd
):
    """The story: flush() of a closed stdout raised before Abort; the job ended with 0,
    or hung.
    """
    ended = []
    process.end_all = ended.append
    monkeypatch.setattr("os._exit", lambda code: ended.append(("exit", code)))
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    process.end_by(ValueError("boom"))
    assert ended == [1, ("exit", 1)]
    assert "[rank 3] ValueError: boom" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("error", "is_told"),
    [
        (ValueError("boom"), True),
        (KeyboardInterrupt(), True),
        (SystemExit(3), False),
        (BrokenPipeError("mpi"), False),
    ],
)
@pytest.mark.parametrize("raises", [None, OSError("no server"), SystemExit(0)])
def test_an_excepthook_of_the_user_s_own_is_called_and_cannot_keep_the_others_waiting(
    error, is_told, raises, monkeypatch, capfd
):
    """The story: a hook that logs to a server was replaced. One that sets its own later
    still has it.
    """
    told, ended = [], []

    def hook(*given):
        told.append(given)
        if raises is not None:
            raise raises

    for module, name in ((sys, "exit"), (builtins, "exit"), (builtins, "quit")):
        monkeypatch.setattr(module, name, getattr(module, name, None), raising=False)
    monkeypatch.setattr(sys, "excepthook", hook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    for name in ("os.register_at_fork", "os._exit", "signal.signal", "time.sleep"):
        monkeypatch.setattr(name, lambda *given, **named: None)
    process = RankProcess(3, Line())
    process.end_all, process.is_consequence = (
        ended.append,
        lambda error: isinstance(error, BrokenPipeError),
    )
    sys.excepthook(type(error), error, None)
    assert told == ([(type(error), error, None)] if is_told else [])
    assert len(ended) == 1 and "[rank 3] " in capfd.readouterr().err


@pytest.mark.parametrize(
    ("module", "name"), [(sys, "exit"), (builtins, "exit"), (builtins, "quit")]
)
def test_the_code_of_an_exit_is_remembered(process, module, name):
    with pytest.raises(SystemExit):
        getattr(module, name)(7)
    assert process.exit_code == 7 and "test_ending.py" in process.exit_place
