"""The frame of a step: everything that a rank does in it besides its schedule.

Each function here is a pass: it returns a program with more instructions, which is
legal if its argument is. :func:`frame` applies them in the order of a row::

    handshake | schedule | reduce, reduce_tied | gather | check | loss | clip | update

The schedule has its messages already, so that no pass can deadlock ranks that did not
wait for each other before: instructions that meet stand in the same order in all rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from minipipe.core.framing import (
    check,
    handshake,
    loss,
    updates,
    with_last,
    with_rank_kind,
)
from minipipe.core.schedules.action import (
    REDUCE_GRAD,
    U,
)
from minipipe.core.schedules.action_table import Program, check_table
from minipipe.errors import misuse
from minipipe.passes.kinds import tied_groups
from minipipe.passes.shards import shard

Tied = Iterable[Sequence[int]]


def frame(
    program: Program,
    *,
    tied: Tied = (),
    check_finite: bool = True,
    clip: bool = False,
    update: bool = True,
    input_gradients: bool = False,
    sharded: Collection[int] = (),
) -> Program:
    """Return a program with everything that its ranks do in a step.

    Local; no messages.

    Parameters
    ----------
    program : Program
        A lowered schedule. One without a backward gets no check, norm and update; one
        with updates of its own gets no further ones, and no check before them.
    tied : iterable of sequence of int
        Stages that share a parameter, together.
    check_finite : bool
        Whether gradients are checked.
    clip : bool
        Whether their norm is limited.
    update : bool
        Whether the step updates the weights.
    input_gradients : bool
        Whether the step returns the gradients of the inputs.
    sharded : collection of int
        Stages whose weights are divided among their replicas.

    Raises
    ------
    ScheduleError
        Code ``value``, if the program is framed already.

    Examples
    --------
    >>> from minipipe import schedules
    >>> print(frame(schedules.lower(schedules.gpipe(2, 1))))
    # gpipe: 2 ranks, 2 stages, 1 microbatch
    rank 0: HANDSHAKE 0F0 0SEND_F0 0RECV_B0 0B0 FINITE LOSS 0U0
    rank 1: HANDSHAKE 1RECV_F0 1F0 1B0 1SEND_B0 FINITE LOSS 1U0
    """
    check_table(program, Program)
    if program.rank_kinds:
        there = min(program.rank_kinds)
        message = f"{program.title} has instructions of a rank already, such as {there}"
        raise misuse(f"{message}; frame a program that `schedules.lower` returned.")
    trains = not program.is_forward_only and U not in program.kinds
    is_checked = trains or (bool(program.frozen) and U not in program.kinds)
    framed = handshake(shard(program, sharded, ahead=1) if sharded else program)
    if trains:
        framed = reduce_tied(reduce(framed), tied)
        framed = gather_input_gradients(framed) if input_gradients else framed
    framed = gather_results(framed)
    framed = check(framed) if is_checked and check_finite else framed
    framed = loss(framed)
    framed = norm(framed) if trains and clip else framed
    return updates(framed) if trains and update else framed


def reduce(program: Program) -> Program:
    """Return a program in which replicas sum up their gradients, also if it had none.

    :func:`minipipe.schedules.data_parallel` lets them begin earlier.
    """
    if not program.has_replicas or REDUCE_GRAD in program.kinds:
        return program
    return with_last(program, REDUCE_GRAD, lambda s: len(program.ranks_of(s)) > 1)


def reduce_tied(program: Program, tied: Tied) -> Program:
    """Return a program in which stages that share parameters sum up their gradients."""
    groups = tuple(map(tuple, tied))
    if not groups:
        return program
    noted = replace(program, tied=groups)
    ranks = {rank for group in tied_groups(noted) for rank in group}
    return with_rank_kind(noted, "REDUCE_TIED", ranks)


def gather_input_gradients(program: Program) -> Program:
    """Return a program in which one replica gets the gradients of all inputs."""
    return with_rank_kind(program, "GATHER_INPUT_GRADS", _replicas(program, 0))


def gather_results(program: Program) -> Program:
    """Return a program in which one replica gets the results of all."""
    last = program.num_stages - 1
    return with_rank_kind(program, "GATHER_RESULTS", _replicas(program, last))


def norm(program: Program) -> Program:
    """Return a program that limits the norm of all gradients before its updates."""
    return with_rank_kind(program, "NORM", range(program.num_ranks), before="U")


# -- rows ------------------------------------------------------------------------------


def _replicas(program: Program, stage: int) -> Sequence[int]:
    """Return the ranks of a stage, if there are several."""
    ranks = program.ranks_of(stage)
    return ranks if len(ranks) > 1 else ()
