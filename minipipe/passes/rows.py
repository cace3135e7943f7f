"""The rows of a framed program, for people: each in as many lines as it needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import fill
from typing import Any

from minipipe.io import columns_of_terminal
from minipipe.passes.framing import frame
from minipipe.schedules.action import Action
from minipipe.schedules.action_table import Program, check_table


class Rows(Sequence[tuple[Action, ...]]):
    """Everything that the ranks do in a step; ``rows[rank]`` is the row of a rank.

    Parameters
    ----------
    program : Program
        A framed one: :func:`minipipe.passes.framing.frame`.

    Attributes
    ----------
    program : Program

    Examples
    --------
    >>> from minipipe import schedules
    >>> rows = Rows(frame(schedules.lower(schedules.gpipe(2, 1))))
    >>> print(rows.wrapped(40))
    # gpipe: 2 ranks, 2 stages, 1 microbatch
    rank 0: HANDSHAKE 0F0 0SEND_F0 0RECV_B0
            0B0 FINITE LOSS 0U0
    rank 1: HANDSHAKE 1RECV_F0 1F0 1B0
            1SEND_B0 FINITE LOSS 1U0
    >>> " ".join(map(str, rows[1][-3:]))
    'FINITE LOSS 1U0'
    """

    def __init__(self, program: Program) -> None:
        check_table(program, Program)
        self.program = program

    def __len__(self) -> int:
        return self.program.num_ranks

    def __getitem__(self, rank: Any) -> Any:
        return self.program.actions[rank]

    def __str__(self) -> str:
        return self.wrapped(columns_of_terminal(80))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.program.describe()}>"

    def wrapped(self, width: int) -> str:
        """Return the rows in lines of at most a width, in columns."""
        return "\n".join(self._lines(width))

    def _lines(self, width: int) -> Iterator[str]:
        first, *rows = str(self.program).splitlines()
        yield first
        indent = " " * len(f"rank {len(rows) - 1}: ")
        for row in rows:
            name, _, cells = row.partition(":")
            begin = f"{name}:".ljust(len(indent))
            if not cells.strip():
                yield begin.rstrip()
                continue
            yield fill(
                cells.strip(),
                width,
                initial_indent=begin,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )


def rows_of(
    plan: Any, *, check_finite: bool = True, clip: bool = False, update: bool = True
) -> Rows:
    """Return the rows of a training step of a plan. Local; no messages.

    Parameters
    ----------
    plan : Plan
        A :class:`minipipe.Plan`: its program, and which stages share parameters.
    check_finite, clip, update : bool
        As for :func:`minipipe.passes.framing.frame`.
    """
    framed = frame(
        plan.program,
        tied=tied_stages(plan),
        check_finite=check_finite,
        clip=clip,
        update=update,
        input_gradients=plan.inputs_require_grad,
    )
    return Rows(framed)


def tied_stages(plan: Any) -> list[tuple[int, ...]]:
    """Return the stages of a plan that share a parameter, together."""
    groups = {tuple(sorted(set(uses.values()))) for uses in plan.uses.values()}
    return sorted(stages for stages in groups if len(stages) > 1)
