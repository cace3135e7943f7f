"""Run a case with real processes, measure what comes of it, and say what falls short of
the table.
"""

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.faults.deeds import JOB, STAMP, processes_of
from tests.faults.table import EARLY
from tests.launch import ROOT, environment, find_mpirun

# seconds until a fault happens, at most: interpreters on busy cores, and the naps of
# slow ranks
START = 20.0
SCREEN = 24  # lines
_LOOK = 0.01  # seconds between looks for processes

_OURS = re.compile(r"^\[rank (\d+)\] ")
# What others write, and nobody can give a rank: MPICH and its launcher at the end of a
# job, and Python as it crashes.
_NOT_OURS = re.compile(
    r"\s*$|=|Abort\(\d+\) on node|YOUR APPLICATION|This typically refers|Please "
    r"see the FAQ|\[(proxy|mpiexec)|Ctrl-C"
    r"|Fatal Python error: |(Current thread|Thread) 0x|Stack \(most recent|  "
    r'File ".*", line \d+ in |  \.\.\.'
    # NumPy's, where values overflow, and the line of it
    r"|Extension modules: |.*: RuntimeWarning: |  \S"
)
_BLAMED = re.compile(
    r"[Rr]ank (\d+) (?:\(process [^)]*\) )?"
    r"(?:does not answer|is busy in its own code|has exited|may have stopped|exited )"
)


class Outcome(NamedTuple):
    """What came of a job: its exit code (None: it had to be killed), seconds from the
    fault until no process was left (None: there was no fault), processes that were left
    then, what was said, and the peer that the fault named."""

    code: int | None
    seconds: float | None
    left: int
    out: str
    err: str
    peer: str

    @property
    def ours(self):
        return [line for line in self.err.splitlines() if _OURS.match(line)]

    @property
    def strays(self):
        """Lines on stderr that are neither ours nor of those who cannot know the
        rank.
        """
        return [
            line
            for line in self.err.splitlines()
            if not (_OURS.match(line) or _NOT_OURS.match(line))
        ]

    @property
    def num_lines(self):
        """Lines printed because of the fault: all but the last words of ranks that
        ended well.
        """
        return len(self.err.splitlines()) + len(
            self.out.replace("ended well\n", "").splitlines()
        )


def run(case, slack=1.0):
    """Run a case. It may take ``slack`` times as long as it should; what is left of it
    then is killed.
    """
    fault, job = case.fault, uuid.uuid4().hex
    longest = START + slack * fault.limit if fault.code != 0 else 6 * START
    with TemporaryDirectory() as folder:
        out, err, stamps = (Path(folder, name) for name in ("out", "err", "stamps"))
        variables = {
            JOB: job,
            STAMP: str(stamps),
            "FAULT_TIMEOUT": str(fault.timeout),
            **dict(fault.variables),
        }
        command = [
            sys.executable,
            "tests/faults/job.py",
            fault.name,
            case.place,
            str(case.rank),
            case.style,
        ]
        with out.open("wb") as to_out, err.open("wb") as to_err:
            launcher = subprocess.Popen(
                [find_mpirun(), "-n", str(fault.num_ranks), *command],
                cwd=ROOT,
                env=environment(**variables),
                stdin=subprocess.DEVNULL,
                stdout=to_out,
                stderr=to_err,
                start_new_session=True,  # Ctrl-C goes to it, not to us
                preexec_fn=_hear_control_c,
            )
        code, ended, left = _wait(launcher, job, longest, slack * fault.limit)
        text = stamps.read_text().split("\n")[0] if stamps.exists() else ""
        begun, _, peer = text.partition(" ")
        seconds = ended - float(begun) if begun else None
        return Outcome(
            code,
            seconds,
            left,
            *(path.read_text(errors="replace") for path in (out, err)),
            peer,
        )


def _hear_control_c():
    """Shells start what runs in the background deaf to it, and ranks would inherit
    that.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _wait(launcher, job, longest, limit):
    """Return the exit code, when the last process had gone, and how many had to be
    killed.
    """
    with suppress(subprocess.TimeoutExpired):
        launcher.wait(longest)
    end = time.monotonic() + min(limit, START)
    while (
        launcher.poll() is not None
        and (left := processes_of(job))
        and time.monotonic() < end
    ):
        time.sleep(_LOOK)
    ended, left = time.monotonic(), processes_of(job)
    for number in left:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    code = launcher.poll()
    launcher.wait()
    return code, ended, len(left)


def is_named(case, outcome):
    """Tell whether the last line of ours names the culprit, and no line blames another
    rank; None if nobody can.
    """
    if not case.fault.last:
        return None
    last = outcome.ours[-1] if outcome.ours else ""
    blamed = {int(rank) for line in outcome.ours for rank in _BLAMED.findall(line)}
    return bool(
        re.search(case.words(case.fault.last, outcome.peer), last)
    ) and blamed <= {case.rank}


def shortfalls(case, outcome, slack=1.0):
    """Return what falls short of the table, in words; nothing if all is as it must be.

    Times may be ``slack`` times the limit.
    """
    fault, found = case.fault, []
    if outcome.seconds is None:
        found.append("the fault did not happen")
    elif outcome.seconds > slack * fault.limit:
        found.append(f"T {outcome.seconds:.1f} s instead of {fault.limit:.1f} s")
    if outcome.left:
        found.append(f"{outcome.left} processes left")
    if outcome.code is None:
        found.append("hangs")
    elif outcome.code == 0 if fault.code is None else outcome.code != fault.code:
        found.append(
            f"exit code {outcome.code} instead of "
            f"{'any but 0' if fault.code is None else fault.code}"
        )
    if is_named(case, outcome) is False:
        found.append(f"says: {outcome.ours[-1][:160] if outcome.ours else 'nothing'}")
    text = "\n".join(outcome.ours)
    found += [
        f"does not say: {words}"
        for words in (case.words(also, outcome.peer) for also in fault.also)
        if not re.search(words, text, re.MULTILINE)
    ]
    return found + _too_much(case, outcome)


def _too_much(case, outcome):
    """Return what is said beside the one message, and what is missing on ranks that
    come to their end.
    """
    found, fault = [], case.fault
    if len(outcome.ours) > SCREEN:
        found.append(f"{len(outcome.ours)} lines of ours, more than a screen")
    if len(speakers := {_OURS.match(line)[1] for line in outcome.ours}) > 1:
        found.append(f"ranks {', '.join(sorted(speakers))} speak")
    # Before there is a group, it is Python that says what happened.
    if outcome.strays and case.place not in EARLY:
        found.append(
            f"{len(outcome.strays)} lines of nobody, such as: {outcome.strays[0][:100]}"
        )
    if fault.code == 0:
        expected = [case.words(also, outcome.peer) for also in fault.also]
        alarms = [
            line
            for line in outcome.ours
            if not any(re.search(words, line) for words in expected)
        ]
        if alarms:
            found.append(f"a false alarm: {alarms[-1][:160]}")
        if (count := outcome.out.count("ended well")) != fault.num_ranks:
            found.append(f"{count} of {fault.num_ranks} ranks ended well")
    return found
