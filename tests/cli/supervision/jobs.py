"""Supervised jobs for tests: a script, a process that supervises it, and a count of
what is left.
"""

import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.faults.deeds import JOB, processes_of
from tests.launch import ROOT, Finished, environment

SUPERVISOR = ("-m", "minipipe", "run")
_LOOK = 0.01  # seconds


class Supervised:
    """A supervisor that runs, and every process below it."""

    def __init__(self, mark, process):
        self.mark, self.process, self.pid = mark, process, process.pid

    def read(self, line):
        """Wait for a line of the job's output; return it."""
        found = self.process.stdout.readline()
        assert line in found, self.process.communicate()
        return found

    def finish(self, limit=60.0, grace=0.0):
        """Wait for its end. A process that is left of the job ``grace`` seconds later
        fails the test.
        """
        begun = time.perf_counter()
        out, err = self.process.communicate(timeout=limit)
        seconds = time.perf_counter() - begun
        while (
            left := processes_of(self.mark)
        ) and time.perf_counter() < begun + seconds + grace:
            time.sleep(_LOOK)
        assert not left, [
            Path(f"/proc/{number}/cmdline").read_bytes() for number in left
        ]
        return Finished(self.process.returncode, out, err, seconds)


@contextmanager
def supervised(*arguments, python=SUPERVISOR, **changes):
    """Start ``minipipe run *arguments`` as a shell would in the foreground."""
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, *python, *map(str, arguments)],
        cwd=ROOT,
        env=environment(**{JOB: mark}, **changes),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # not deaf to Ctrl-C, whoever runs the tests
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        yield Supervised(mark, process)
    finally:
        for number in processes_of(mark):
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        process.communicate()


def run(*arguments, **changes):
    """Supervise a job to its end."""
    with supervised(*arguments, **changes) as job:
        return job.finish()


def lines_of(done):
    """Return what the supervisor itself said."""
    return [line for line in done.err.splitlines() if line.startswith("minipipe: ")]
