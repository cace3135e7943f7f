"""A schedule is data: for each rank, the list of its computations, in order."""

from __future__ import annotations

from dataclasses import dataclass

from minipipe.errors import Problem, ScheduleCode, ScheduleError
from minipipe.printable import quoted
from minipipe.schedules.action_table import ActionTable


@dataclass(frozen=True, repr=False)
class Schedule(ActionTable):
    """The computations of every rank, in order: F, B, I and W. It may be legal or not; :func:`minipipe.verify` tells.

    :func:`minipipe.schedules.lower` adds the sends and receives, which makes a
    :class:`~minipipe.schedules.Program` of it.

    Attributes
    ----------
    name : str
        The name in drawings and reports.
    placement : tuple of int
        ``placement[stage]`` is the rank that holds the stage.
    num_microbatches : int
    actions : tuple of tuple of Action
        ``actions[rank]`` are the actions of a rank. Cells such as ``"0F0"`` are read as actions.
    frozen : frozenset of int
        Stages without trained parameters, which have no W; those before the first other stage have no backward.

    Raises
    ------
    ScheduleError
        Code ``not-a-schedule``, when a SEND or a RECV is among the actions.

    Examples
    --------
    >>> from minipipe import schedules
    >>> print(schedules.one_f_one_b(num_ranks=2, num_microbatches=3))
    # 1f1b: 2 ranks, 2 stages, 3 microbatches
    rank 0: 0F0 0F1 0B0 0F2 0B1 0B2
    rank 1: 1F0 1B0 1F1 1B1 1F2 1B2
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(kind.is_communication for kind in self.kinds):
            message = next(a for row in self.actions for a in row if a.kind.is_communication)
            raise ScheduleError(
                [
                    Problem(
                        ScheduleCode.NOT_A_SCHEDULE,
                        f"{self.title} holds {message}: it is a Program, and a Schedule has computations alone. "
                        "Program.from_file, from_text and from_csv read it; its .schedule has the computations.",
                    )
                ]
            )

    @property
    def schedule(self) -> Schedule:
        """Itself: computations alone."""
        return self

    @property
    def message_cuts(self) -> tuple[bool, ...]:
        """By stage, whether values travel to the next one by a SEND and a RECV: nowhere in a schedule."""
        return (False,) * self.num_stages


def check_schedule(given: object) -> None:
    """Refuse an argument that is no Schedule, and say how to get one.

    Raises
    ------
    ScheduleError
        Code ``not-a-schedule``.
    """
    if isinstance(given, Schedule):
        return
    how = "schedules.build(name, num_ranks) makes one of a name, Schedule.from_file(path) reads one"
    if isinstance(given, ActionTable):
        how = f"the computations of a {type(given).__name__} are its .schedule"
    raise ScheduleError.of(ScheduleCode.NOT_A_SCHEDULE, f"Expected a Schedule, not {quoted(given)}; {how}.")
