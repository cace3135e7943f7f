"""What an action has to wait for: the rules of :mod:`minipipe.schedules.order`, one action at a time, to be read."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.schedule import Schedule

__all__ = ["Needs"]

F, B, I, W = ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT
SEND_F, RECV_F, SEND_B, RECV_B = ActionKind.SEND_F, ActionKind.RECV_F, ActionKind.SEND_B, ActionKind.RECV_B


class Needs:
    """Tells what an action of a schedule needs, and who uses what it makes.

    The walk of :mod:`minipipe.schedules.order` has the same rules in numbers, for speed; tests hold the two together.

    Parameters
    ----------
    schedule : Schedule
        Legal or not.

    Attributes
    ----------
    rank_of : dict
        By action, the first rank in whose list it stands.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        rows = reversed(list(enumerate(schedule.actions)))
        self.rank_of = dict(chain.from_iterable(((action, rank) for action in row) for rank, row in rows))

    def of(self, action: Action) -> Iterator[Action]:
        """Yield what must have happened, in the order in which it is looked for.

        A SEND and its RECV need each other: they meet.

        Examples
        --------
        >>> from minipipe import schedules
        >>> needs = Needs(schedules.zb_h1(2, 2))
        >>> [str(action) for action in needs.of(Action.parse("0I1"))]
        ['0F1', '1I1']
        """
        stage, kind, k = action
        if kind is F:
            if stage > 0:
                yield Action(stage, RECV_F, k) if self._is_received(stage - 1) else Action(stage - 1, F, k)
        elif kind is W:
            yield Action(stage, I, k)
        elif kind in (B, I):
            yield Action(stage, F, k)
            if stage + 1 < self.schedule.num_stages:
                yield Action(stage, RECV_B, k) if self._is_received(stage) else self.gradient(stage + 1, k)
        else:
            has_partner = 0 <= action.partner.stage < self.schedule.num_stages
            if kind is SEND_F and has_partner:
                yield Action(stage, F, k)
            elif kind is SEND_B and has_partner:
                yield self.gradient(stage, k)
            yield action.partner  # where there is no such stage it waits for ever

    def gradient(self, stage: int, microbatch: int) -> Action:
        """Return the action that makes the gradient of a stage's input: its B, or its I where the schedule has that."""
        split = Action(stage, I, microbatch)
        return split if split in self.rank_of else Action(stage, B, microbatch)

    def user_of(self, action: Action) -> Action | None:
        """Return the action of the neighbouring stage that uses what one makes or sends, if there is such a stage."""
        stage, kind, k = action
        if kind in (F, SEND_F) and stage + 1 < self.schedule.num_stages:
            return Action(stage + 1, F, k)
        if kind in (B, I, SEND_B) and stage > 0:
            return self.gradient(stage - 1, k)
        return None

    def place_of(self, action: Action) -> int | None:
        """Return the rank of an action: where it stands, or else where its stage is."""
        placement = self.schedule.placement
        place = placement[action.stage] if 0 <= action.stage < len(placement) else None
        return self.rank_of.get(action, place)

    def _is_received(self, stage: int) -> bool:
        """Tell whether what passes between a stage and the next comes through a RECV of its own."""
        return self.schedule.has_communication and self.schedule.crosses_ranks(stage)
