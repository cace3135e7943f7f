"""The frame of a step: what each rank does in it besides its schedule.

====================  ================================================================
HANDSHAKE             all ranks compare the call, and get the size of the batch
FINITE                this rank looks for gradients that are not finite
LOSS                  all ranks get the loss, and what the others found
U                     this rank updates the weights of a stage
====================  ================================================================

The value `call` exists from HANDSHAKE until LOSS and covers the schedule: nothing of a
batch runs before all ranks have agreed on it. FINITE and LOSS read the gradients of all
stages of their rank, which the updates behind them take: so an update cannot come
before them.

Each function here is a pass: it returns a program with more instructions, which is
legal if its argument is. Other passes add further instructions (the `passes` of
:class:`minipipe.core.pipeline.Pipeline`, and the package `passes/`), and say here what
their results are: see :data:`OF_GRADIENTS` and :data:`OF_RESULTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

from minipipe.core.flow import Flow
from minipipe.core.schedules.action import Action, ActionKind, B, U, W
from minipipe.core.schedules.action_table import Program
from minipipe.core.values import (
    GRADIENTS,
    KINDS,
    NOUNS,
    Kind,
    Meeting,
    Noun,
    Site,
    Uses,
    Value,
)

_COVERED = ("F", "B", "I", "W", "R", "O", "L", "SEND_F", "RECV_F", "SEND_B", "RECV_B")

OF_GRADIENTS: list[Callable[[Site], tuple[Value, ...]]] = []
"""Functions of passes: the values of a rank that show that its gradients are complete,
in addition to the gradients of its stages.
"""

OF_RESULTS: list[Callable[[Site], tuple[Value, ...] | None]] = []
"""Functions of passes: the values that the delivery of the loss takes instead of the
results of the last stage; None if the pass is not in the table.
"""


# -- values ----------------------------------------------------------------------------


def stays(setting: Flow, owner: int) -> bool:
    """Whether a value may stay untaken: always."""
    return True


noun_of_rank = partial(Noun, of_rank=True)


def gradients(site: Site, stage: int) -> tuple[Value, ...]:
    """Return the gradients of a stage in the row, after their sums over replicas."""
    own = given(site, stage, "dw", GRADIENTS)
    if not own or site.setting.num_replicas(stage) == 1:
        return own
    sums = given(site, stage, "sum", ("REDUCE_GRAD",))
    return sums or (Value("sum", stage, own[-1].microbatch),)


def given(
    site: Site, stage: int, name: str, givers: tuple[str, ...]
) -> tuple[Value, ...]:
    """Return all values of a name that instructions of some kinds give in the row."""
    ks = site.setting.taken(site.rank, "", stage, givers)[-1]
    return tuple(Value(name, stage, k) for k in ks)


def all_gradients(site: Site) -> tuple[Value, ...]:
    """Return the gradients of all stages of the rank."""
    found: list[Value] = []
    for stage in site.setting.local_stages(site.rank):
        found += gradients(site, stage)
    for values in OF_GRADIENTS:
        found += values(site)
    return tuple(found)


def _results(site: Site) -> tuple[Value, ...]:
    """Return the results of the last stage, as the delivery of the loss takes them."""
    for values in OF_RESULTS:
        found = values(site)
        if found is not None:
            return found
    return given(site, site.setting.num_stages - 1, "result", ("F",))


# -- the kinds -------------------------------------------------------------------------


def _handshake(site: Site) -> Uses:
    return Uses(gives=(site.value("call"),))


def _finite(site: Site) -> Uses:
    return Uses(gives=(site.value("finite"),), reads=all_gradients(site))


def _loss(site: Site) -> Uses:
    takes = [site.value("call"), *_results(site)]
    reads: tuple[Value, ...] = ()
    if "FINITE" in site.setting.kinds:
        takes.append(site.value("finite"))
        reads = all_gradients(site)  # they are removed if any is not finite
    return Uses(tuple(takes), (site.value("loss"),), reads)


def meeting(name: str, ranks: Sequence[int] | range) -> Meeting:
    """Return the meeting of some ranks, in ascending order."""
    return Meeting((name, *ranks[:1]), len(ranks))


def all_ranks(name: str, site: Site) -> Meeting:
    """Return the meeting of all ranks."""
    return meeting(name, range(site.setting.num_ranks))


def _always(setting: Flow) -> bool:
    return True


framing_kind = partial(Kind, of_rank=True, varies=_always)
collective_kind = partial(framing_kind, time="latency")
HANDSHAKE = collective_kind(
    "HANDSHAKE",
    _handshake,
    "agreement on the call",
    meets=partial(all_ranks, "HANDSHAKE"),
)
FINITE = framing_kind("FINITE", _finite, "finite check of the gradients", time="FINITE")
LOSS = collective_kind(
    "LOSS",
    _loss,
    "delivery of the loss, outputs and metrics",
    meets=partial(all_ranks, "LOSS"),
)
KINDS.update({kind.name: kind for kind in (HANDSHAKE, FINITE, LOSS)})
NOUNS.update(
    {
        "call": noun_of_rank(
            "agreement on the call", covers=(*_COVERED, "REDUCE_GRAD")
        ),
        "finite": noun_of_rank("result of the finite check"),
        "loss": noun_of_rank("loss", may_stay=stays),
    }
)


# -- the passes ------------------------------------------------------------------------


def handshake(program: Program) -> Program:
    """Return a program in which all ranks first agree on the call."""
    kind = ActionKind("HANDSHAKE")
    rows = ((_of_rank(program, rank, kind), *row) for rank, row in rows_of(program))
    return program.with_rows(Program, rows)


def check(program: Program) -> Program:
    """Return a program in which each rank checks whether its gradients are finite."""
    return with_rank_kind(program, "FINITE", range(program.num_ranks))


def loss(program: Program) -> Program:
    """Return a program that ends with the delivery of the loss to all ranks."""
    return with_rank_kind(program, "LOSS", range(program.num_ranks))


def updates(program: Program) -> Program:
    """Return a program that then updates the weights of all stages."""
    return with_last(program, U, lambda stage: True)


def rows_of(program: Program) -> Iterator[tuple[int, Sequence[Action]]]:
    """Return each rank with its row."""
    return enumerate(program.actions)


def _of_rank(program: Program, rank: int, kind: ActionKind) -> Action:
    return Action(rank, kind, program.microbatches[0])


def with_rank_kind(
    program: Program, name: str, ranks: Collection[int], before: str = ""
) -> Program:
    """Return a program with an instruction of a rank in some rows: before the first
    instruction of another kind or, without one, at the end.
    """
    if not ranks:
        return program
    kind = ActionKind(name)
    rows = list(program.actions)
    for rank in ranks:
        row = rows[rank]
        kinds = [*(each.kind for each in row), before]
        at = kinds.index(before)
        rows[rank] = (*row[:at], _of_rank(program, rank, kind), *row[at:])
    return program.with_rows(Program, rows)


def with_last(
    program: Program, kind: ActionKind, has: Callable[[int], bool]
) -> Program:
    """Return a program with an instruction of the last gradient of each stage.

    They stand at the ends of rows, in the order of stages.
    """
    rows = []
    for _, row in rows_of(program):
        last: dict[int, object] = {}
        for stage, of, k in row:
            if of is B or of is W:
                last[stage] = max(k, last.get(stage, k))
        ends = (Action(s, kind, k) for s, k in sorted(last.items()) if has(s))
        rows.append((*row, *ends))
    return program.with_rows(Program, rows)
