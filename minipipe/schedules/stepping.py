"""A walk through a schedule, action by action: at each moment what every rank does, holds and waits for, and why.

A legal schedule is walked through in the time that :func:`minipipe.simulate` predicts. An illegal one goes as far as
it can: there each action takes one round, as in :func:`minipipe.schedules.order.walk`, and a SEND meets its RECV.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from math import inf

from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.costs import Costs
from minipipe.schedules.holding import Held, Holding, holdings
from minipipe.schedules.lowering import lower
from minipipe.schedules.message import Message
from minipipe.schedules.moment import Doing, Moment, RankState, Step
from minipipe.schedules.needs import Needs
from minipipe.schedules.schedule import Schedule, check_schedule
from minipipe.schedules.simulator import simulate
from minipipe.schedules.span import IdleCause
from minipipe.schedules.steps import by_rank, problems_of, steps_in_rounds, timed_steps, timeline_in_rounds

__all__ = ["Walkthrough"]

_SENDS = (ActionKind.SEND_F, ActionKind.SEND_B)
_RECEIVES = (ActionKind.RECV_F, ActionKind.RECV_B)


class Walkthrough:
    """The moments of a schedule, one for each action that begins, in order of time; a sequence.

    Parameters
    ----------
    schedule : Schedule
        Legal or not.
    costs : Costs, optional
        By default F, I and W take one unit each, and messages nothing.
    memory_limit : int or sequence of int, optional
        As for :func:`minipipe.verify`.

    Attributes
    ----------
    program : Schedule
        What is walked through: the schedule, and where sends block, with its SEND and RECV.
    timeline : Timeline
        When what has run did so: predicted, or, for an illegal schedule, in rounds.
    steps : tuple of Step
        What runs, in the order in which it begins.
    problems : tuple of Problem
        What the verifier found, the cause first.
    grid : str
        The verifier's drawing of the first.

    Raises
    ------
    ScheduleError
        When the walk cannot begin, because stages or microbatches are named that are not there, or nearly everything
        is missing; code ``costs``, when the costs do not fit.

    Examples
    --------
    >>> from minipipe import schedules
    >>> walkthrough = Walkthrough(schedules.gpipe(2, 1))
    >>> moment = walkthrough[1]
    >>> str(moment.step.action), moment.ranks[0].doing, moment.ranks[1].doing, str(moment.ranks[1].awaited)
    ('0F0', <Doing.RUNS: 'runs'>, <Doing.WAITS: 'waits'>, '0F0')
    >>> [str(state.action) for state in Walkthrough(Schedule.from_text("0B0 0F0"))[-1].ranks]
    ['0B0']
    """

    def __init__(
        self, schedule: Schedule, costs: Costs | None = None, memory_limit: int | Sequence[int] | None = None
    ) -> None:
        check_schedule(schedule)
        self.schedule, self.costs = schedule, costs or Costs()
        self.problems, self.grid = problems_of(schedule, memory_limit)
        self.is_timed = all(problem.code == "memory" for problem in self.problems)
        self._check_costs()
        if self.is_timed:
            self.program = lower(schedule) if self.costs.sends_block else schedule
            self.timeline = simulate(schedule, self.costs)
            self.steps = timed_steps(self.program, self.timeline, self.costs.sends_block)
        else:
            self.program = schedule
            self.steps = steps_in_rounds(schedule)
            self.timeline = timeline_in_rounds(schedule, self.steps)
        self.needs = Needs(self.program)
        self._own = by_rank(self.steps, self.program.num_ranks)
        self._first = {step.action: at for at, step in reversed(list(enumerate(self.steps)))}
        self._times = [*(step.start for step in self.steps), max((step.end for step in self.steps), default=0.0)]

    @property
    def is_legal(self) -> bool:
        """Whether the verifier found nothing."""
        return not self.problems

    @cached_property
    def stuck(self) -> dict[int, RankState]:
        """By rank, where those that never end stick, and what they wait for."""
        return {rank: state for rank, state in enumerate(self[-1].ranks) if state.doing is Doing.STUCK}

    @cached_property
    def circle(self) -> tuple[int, ...]:
        """The ranks that wait for each other in a circle, the lowest first; none where nobody does."""
        for rank in self.stuck:
            path: list[int] = []
            following: int | None = rank
            while following in self.stuck and following not in path:
                path.append(following)
                waits = self.stuck[following]
                following = waits.source if waits.awaited in self.needs.rank_of else None  # None: it is nowhere
            if following in path:
                circle = path[path.index(following) :]
                lowest = circle.index(min(circle))
                return (*circle[lowest:], *circle[:lowest])
        return ()

    def __len__(self) -> int:
        return len(self.steps) + 2

    def __getitem__(self, index: int) -> Moment:
        number = range(len(self))[index]
        step = self.steps[number - 1] if 0 < number <= len(self.steps) else None
        time = self._times[max(0, number - 1)]
        states = tuple(self._state(rank, number, time) for rank in range(self.program.num_ranks))
        return Moment(number, time, step, states, self._messages_at(number))

    def __iter__(self) -> Iterator[Moment]:
        return map(self.__getitem__, range(len(self)))

    def at_time(self, time: float) -> int:
        """Return the number of the last moment that is not later than a time."""
        return min(bisect_right(self._times, time), len(self) - 1)

    # -- one rank ------------------------------------------------------------------------------------------

    def _state(self, rank: int, number: int, time: float) -> RankState:
        own, row = self._own[rank], self.program.actions[rank]
        begun = bisect_left(own, number)
        last = self.steps[own[begun - 1]] if begun else None
        if last and (last.end > time or own[begun - 1] == number - 1):
            source, awaited = self._receiver(last, time)
            cause = IdleCause.SENDING if last.action.kind in _SENDS and last.end > last.start else None
            held = self._holdings[rank][begun - 1].during
            return RankState(Doing.RUNS, last.action, last.position, last.end, cause, source, awaited, *held)
        held = self._holdings[rank][begun - 1].after if begun else Held((), 0.0)
        if begun == len(row):
            return RankState(Doing.DONE, None, begun, None, IdleCause.DRAIN, None, None, *held)
        coming = self.steps[own[begun]].start if begun < len(own) else None
        if coming is not None and coming <= time:
            return RankState(Doing.BEGINS, row[begun], begun, coming, None, None, None, *held)
        has_begun = any(not action.kind.is_communication for action in row[:begun])
        cause = IdleCause.WAITING if has_begun else IdleCause.WARM_UP
        doing = Doing.STUCK if coming is None and number == len(self) - 1 else Doing.WAITS
        source, awaited = self._reason(rank, row[begun], time)
        if awaited is None:
            cause = IdleCause.OVERHEAD
        return RankState(doing, row[begun], begun, coming, cause, source, awaited, *held)

    @cached_property
    def _holdings(self) -> list[list[Holding]]:
        return holdings(self.program, self.costs)

    def _reason(self, rank: int, action: Action, time: float) -> tuple[int | None, Action | None]:
        """Return which rank an action that waits is waiting for, and what there; nothing, where all is there."""
        need = None
        for need in self.needs.of(action):
            if need.kind in _RECEIVES and not action.kind.is_communication and self._start(need) <= time:
                need = need.partner  # the RECV is noted; the value comes when its SEND does
            if not self._is_there(need, rank, time):
                return self.needs.place_of(need), need
        if need is None or self.is_timed:  # the overhead between two actions
            return None, None
        return self.needs.place_of(need), need  # it is made twice, and the walk waits for the second one

    def _is_there(self, need: Action, rank: int, time: float) -> bool:
        if need not in self._first:
            return False
        step = self.steps[self._first[need]]
        return (step.end if step.rank == rank else self._arrival(step)) <= time

    def _start(self, action: Action) -> float:
        return self.steps[self._first[action]].start if action in self._first else inf

    def _receiver(self, step: Step, time: float) -> tuple[int | None, Action | None]:
        """Return who has not yet come to the RECV of a SEND that runs, and that RECV."""
        blocks = self.is_timed and step.action.kind in _SENDS and step.end > step.start
        if not blocks or self._start(step.action.partner) <= time:
            return None, None
        return self.needs.place_of(step.action.partner), step.action.partner

    # -- messages ------------------------------------------------------------------------------------------

    def _messages_at(self, number: int) -> tuple[Message, ...]:
        return tuple(message for first, last, message in self._messages if first <= number < last)

    @cached_property
    def _messages(self) -> list[tuple[int, float, Message]]:
        """Every value that goes to another rank, with the moment at which it leaves and the one that uses it."""
        found = []
        for at, step in enumerate(self.steps):
            user = self._user_elsewhere(step)
            if user is None:
                continue
            is_sent = step.action.kind in _SENDS
            sent = step.start if is_sent else step.end
            first = at + 1 if is_sent else max(at + 2, bisect_left(self._times, sent) + 1)
            last = self._first[user] + 1 if user in self._first else inf
            destination = self.needs.place_of(user)
            assert destination is not None
            message = Message(self._value(step.action), user, step.rank, destination, sent, self._arrival(step))
            found.append((first, last, message))
        return sorted(found, key=lambda entry: (entry[2].sent, entry[2].arrived))

    def _user_elsewhere(self, step: Step) -> Action | None:
        """Return the action of another rank that uses what a step makes or sends."""
        user = self.needs.user_of(step.action)
        if user is None or self.needs.place_of(user) == step.rank:
            return None
        is_sent = step.action.kind in _SENDS
        return user if is_sent == self.program.has_communication else None

    def _value(self, action: Action) -> Action:
        if action.kind is ActionKind.SEND_F:
            return Action(action.stage, ActionKind.FORWARD, action.microbatch)
        return self.needs.gradient(action.stage, action.microbatch) if action.kind in _SENDS else action

    def _arrival(self, step: Step) -> float:
        """Return when what a step makes or sends can be used on another rank."""
        is_sent = step.action.kind in _SENDS
        if not self.is_timed or (is_sent and self.costs.sends_block):
            return step.end
        is_forward = step.action.kind in (ActionKind.FORWARD, ActionKind.SEND_F)
        boundary = step.action.stage if is_forward else step.action.stage - 1
        times = self.timeline.message_times
        return step.end + (times[boundary] if 0 <= boundary < len(times) else 0.0)

    def _check_costs(self) -> None:
        self.costs.durations(self.schedule.num_stages)
        self.costs.message_times(self.schedule)
        self.costs.memory(self.schedule.num_stages)
