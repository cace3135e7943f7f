"""The instructions that passes add to a schedule.

Most of them frame a step: what a rank does before and after its schedule. They belong
to a rank, and to no stage and microbatch. A row with all of them::

    HANDSHAKE 0F0 … 0B7 REDUCE_TIED GATHER_INPUT_GRADS GATHER_RESULTS FINITE LOSS NORM …

====================  ================================================================
HANDSHAKE             all ranks compare the call, and get the size of the batch
REDUCE_TIED           ranks that share parameters exchange their gradients
GATHER_INPUT_GRADS    the replicas of the first stage gather the inputs' gradients
GATHER_RESULTS        the replicas of the last stage gather losses, outputs, metrics
FINITE                this rank looks for gradients that are not finite
LOSS                  all ranks get the loss, and what the others found; some get more
NORM                  all ranks get the norm of all gradients, and clip theirs
====================  ================================================================

The value `call` exists from HANDSHAKE until LOSS and covers the schedule: nothing of a
batch runs before all ranks have agreed on it. FINITE, LOSS and NORM read the gradients
of all stages of their rank, which the updates behind them take: so an update cannot
come before them.

If the weights of a whole stage are divided among its replicas, ``0GATHER0`` makes stage
0 whole for what follows, and ``0FREE0`` leaves this rank its shard again. The value
`whole` exists between them and covers the stage: nothing computes with a shard. The
microbatch tells one such time of a stage from another; it is any number.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from minipipe.core.flow import Flow
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


# -- values ----------------------------------------------------------------------------


def _stays(setting: Flow, owner: int) -> bool:
    return True


_of_rank = partial(Noun, of_rank=True)
_NOUNS = {
    "HANDSHAKE": {
        "call": _of_rank("agreement on the call", covers=(*_COVERED, "REDUCE_GRAD"))
    },
    "REDUCE_TIED": {"tied": _of_rank("gradients of tied weights", may_stay=_stays)},
    "GATHER_INPUT_GRADS": {
        "input gradients": _of_rank("gradients of the inputs", may_stay=_stays)
    },
    "GATHER_RESULTS": {"results": _of_rank("results of all replicas")},
    "FINITE": {"finite": _of_rank("result of the finite check")},
    "LOSS": {"loss": _of_rank("loss", may_stay=_stays)},
    "GATHER": {"whole": Noun("whole weights", covers=("F", "R", "B", "I", "W"))},
    "NORM": {"norm": _of_rank("norm of the gradients", may_stay=_stays)},
}


def _gradients(site: Site, stage: int) -> tuple[Value, ...]:
    """Return the gradients of a stage in the row, after their sums over replicas."""
    own = _given(site, stage, "dw", GRADIENTS)
    if not own or site.setting.num_replicas(stage) == 1:
        return own
    sums = _given(site, stage, "sum", ("REDUCE_GRAD",))
    return sums or (Value("sum", stage, own[-1].microbatch),)


def _given(
    site: Site, stage: int, name: str, givers: tuple[str, ...]
) -> tuple[Value, ...]:
    """Return all values of a name that instructions of some kinds give in the row."""
    ks = site.setting.taken(site.rank, "", stage, givers)[-1]
    return tuple(Value(name, stage, k) for k in ks)


def _all_gradients(site: Site) -> tuple[Value, ...]:
    """Return the gradients of all stages of the rank."""
    found: list[Value] = []
    for stage in site.setting.local_stages(site.rank):
        found += _gradients(site, stage)
    if "REDUCE_TIED" in site.setting.kinds and _tied_ranks(site):
        found.append(site.value("tied"))
    return tuple(found)


class _Homes(Protocol):
    @property
    def tied(self) -> Sequence[tuple[int, ...]]: ...

    def ranks_of(self, stage: int) -> Sequence[int]: ...


def tied_groups(table: _Homes) -> list[tuple[int, ...]]:
    """Return the groups of ranks that share parameters, each of several ranks.

    Replicas of a pipeline share them each among their own ranks.
    """
    groups: list[set[int]] = []
    for stages in table.tied:
        for ranks in map(set, zip(*map(table.ranks_of, stages))):
            near = [group for group in groups if not group.isdisjoint(ranks)]
            groups = [group for group in groups if group.isdisjoint(ranks)]
            groups.append(ranks.union(*near))
    return [tuple(sorted(group)) for group in groups if len(group) > 1]


def _tied_ranks(site: Site) -> tuple[int, ...]:
    """Return the ranks with which a rank shares parameters, and itself; or none."""
    groups = tied_groups(site.setting)
    return next((group for group in groups if site.rank in group), ())


# -- uses ------------------------------------------------------------------------------


def _handshake(site: Site) -> Uses:
    return Uses(gives=(site.value("call"),))


def _reduce_tied(site: Site) -> Uses | None:
    setting = site.setting
    if not _tied_ranks(site):
        return None
    reads: list[Value] = []
    tied = {stage for stages in setting.tied for stage in stages}
    for stage in setting.local_stages(site.rank):
        if stage in tied:
            reads += _gradients(site, stage)
    return Uses(gives=(site.value("tied"),), reads=tuple(reads))


def _gather_input_gradients(site: Site) -> Uses | None:
    ranks = site.setting.ranks_of(0)
    if len(ranks) == 1 or site.rank not in ranks:
        return None
    gives = (site.value("input gradients"),) if site.rank == ranks[0] else ()
    return Uses(gives=gives, reads=_gradients(site, 0))


def _gather_results(site: Site) -> Uses | None:
    last = site.setting.num_stages - 1
    ranks = site.setting.ranks_of(last)
    if len(ranks) == 1 or site.rank not in ranks:
        return None
    gives = (site.value("results"),) if site.rank == ranks[0] else ()
    return Uses(_given(site, last, "result", ("F",)), gives)


def _finite(site: Site) -> Uses:
    return Uses(gives=(site.value("finite"),), reads=_all_gradients(site))


def _loss(site: Site) -> Uses:
    setting = site.setting
    takes = [site.value("call")]
    reads: tuple[Value, ...] = ()
    last = setting.num_stages - 1
    ranks = setting.ranks_of(last)
    if len(ranks) == 1 or "GATHER_RESULTS" not in setting.kinds:
        takes += _given(site, last, "result", ("F",))
    elif site.rank == ranks[0]:
        takes.append(site.value("results"))
    if "FINITE" in setting.kinds:
        takes.append(site.value("finite"))
        reads = _all_gradients(site)  # they are removed if any is not finite
    return Uses(tuple(takes), (site.value("loss"),), reads)


def _norm(site: Site) -> Uses:
    reads = _all_gradients(site)
    if "LOSS" in site.setting.kinds:
        reads = (*reads, site.value("loss"))
    return Uses(gives=(site.value("norm"),), reads=reads)


def _gather(site: Site) -> Uses:
    return Uses(gives=(site.value("whole"),))


def _free(site: Site) -> Uses:
    return Uses((site.value("whole"),))


# -- meetings --------------------------------------------------------------------------


def _meeting(name: str, ranks: Sequence[int] | range) -> Meeting:
    return Meeting((name, *ranks[:1]), len(ranks))


def _all_ranks(name: str, site: Site) -> Meeting:
    return _meeting(name, range(site.setting.num_ranks))


def _tied(site: Site) -> Meeting:
    return _meeting("REDUCE_TIED", _tied_ranks(site) or (site.rank,))


def _first_stage(site: Site) -> Meeting:
    return _meeting("GATHER_INPUT_GRADS", site.setting.ranks_of(0))


def _last_stage(site: Site) -> Meeting:
    last = site.setting.num_stages - 1
    return _meeting("GATHER_RESULTS", site.setting.ranks_of(last))


# -- the kinds -------------------------------------------------------------------------


def _always(setting: Flow) -> bool:
    return True


_framing = partial(Kind, of_rank=True, varies=_always)
_collective = partial(_framing, time="latency")
_KINDS = (
    _collective(
        "HANDSHAKE",
        _handshake,
        "agreement on the call",
        meets=partial(_all_ranks, "HANDSHAKE"),
    ),
    _collective(
        "REDUCE_TIED", _reduce_tied, "sum of the gradients of tied weights", meets=_tied
    ),
    _collective(
        "GATHER_INPUT_GRADS",
        _gather_input_gradients,
        "gather of the gradients of the inputs",
        meets=_first_stage,
    ),
    _collective(
        "GATHER_RESULTS",
        _gather_results,
        "gather of losses, outputs and metrics",
        meets=_last_stage,
    ),
    _framing("FINITE", _finite, "finite check of the gradients", time="FINITE"),
    _collective(
        "LOSS",
        _loss,
        "delivery of the loss, outputs and metrics",
        meets=partial(_all_ranks, "LOSS"),
    ),
    _collective(
        "NORM",
        _norm,
        "norm and clipping of the gradients",
        meets=partial(_all_ranks, "NORM"),
    ),
)
FRAMING = {kind.name: kind for kind in _KINDS}
"""The kinds that frame a step, by name, in the order of a row."""

_OF_SHARDS = (
    Kind("GATHER", _gather, "gather of the weights", time="gather"),
    Kind("FREE", _free, "release of the gathered weights"),
)

ADDED = {kind.name: kind for kind in (*_KINDS, *_OF_SHARDS)}
"""All kinds that passes add, by name."""

KINDS.update(ADDED)
NOUNS.update({name: noun for nouns in _NOUNS.values() for name, noun in nouns.items()})
