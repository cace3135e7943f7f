"""The exit status of a command."""

from __future__ import annotations

from enum import IntEnum

from minipipe.errors import MinipipeError, ScheduleError


class ExitStatus(IntEnum):
    """The answer of a command, for the shell.

    Examples
    --------
    >>> from minipipe.errors import CourseworkError
    >>> ExitStatus.of(CourseworkError("no-source", "There are no exercises here."))
    <ExitStatus.MISUSE: 2>
    """

    YES = 0
    NO = 1
    MISUSE = 2
    INTERRUPTED = 130  # by Ctrl-C, the number that shells use

    @classmethod
    def of(cls, error: MinipipeError) -> ExitStatus:
        """Return ``NO`` where a schedule is at fault, ``MISUSE`` where the command is."""
        is_verdict = isinstance(error, ScheduleError) and not error.problems[0].code.is_misuse
        return cls.NO if is_verdict else cls.MISUSE
