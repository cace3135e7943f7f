"""The instructions that passes add to a schedule.

`replicas.py` declares REDUCE_GRAD, and `states.py` R, O and L. Most others frame a
step: what a rank does before and after its schedule. They belong to a rank, and to no
stage and microbatch. A row with all of them::

    HANDSHAKE 0F0 … 0B7 REDUCE_TIED GATHER_INPUT_GRADS GATHER_RESULTS FINITE LOSS NORM …

HANDSHAKE, FINITE and LOSS are of the core (`core/framing.py`).

====================  ================================================================
REDUCE_TIED           ranks that share parameters exchange their gradients
GATHER_INPUT_GRADS    the replicas of the first stage gather the inputs' gradients
GATHER_RESULTS        the replicas of the last stage gather losses, outputs, metrics
NORM                  all ranks get the norm of all gradients, and clip theirs
====================  ================================================================

NORM reads the gradients of all stages of its rank, as the finite check does.

If the weights of a whole stage are divided among its replicas, ``0GATHER0`` makes stage
0 whole for what follows, and ``0FREE0`` leaves this rank its shard again. The value
`whole` exists between them and covers the stage: nothing computes with a shard. The
microbatch tells one such time of a stage from another; it is any number.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from minipipe.core.framing import (
    FINITE,
    HANDSHAKE,
    LOSS,
    OF_GRADIENTS,
    OF_RESULTS,
    all_gradients,
    all_ranks,
    collective_kind,
    given,
    gradients,
    meeting,
    noun_of_rank,
    stays,
)
from minipipe.core.schedules.action import ActionKind
from minipipe.core.values import KINDS as KINDS
from minipipe.core.values import NOUNS, Kind, Meeting, Noun, Site, Uses, Value

# They declare the other kinds, and what slices and replicas change of the core's.
from minipipe.passes import replicas as replicas
from minipipe.passes import states as states

# -- values ----------------------------------------------------------------------------


_NOUNS = {
    "tied": noun_of_rank("gradients of tied weights", may_stay=stays),
    "input gradients": noun_of_rank("gradients of the inputs", may_stay=stays),
    "results": noun_of_rank("results of all replicas"),
    "whole": Noun("whole weights", covers=("F", "R", "B", "I", "W")),
    "norm": noun_of_rank("norm of the gradients", may_stay=stays),
}


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


def _reduce_tied(site: Site) -> Uses | None:
    setting = site.setting
    if not _tied_ranks(site):
        return None
    reads: list[Value] = []
    tied = {stage for stages in setting.tied for stage in stages}
    for stage in setting.local_stages(site.rank):
        if stage in tied:
            reads += gradients(site, stage)
    return Uses(gives=(site.value("tied"),), reads=tuple(reads))


def _gather_input_gradients(site: Site) -> Uses | None:
    ranks = site.setting.ranks_of(0)
    if len(ranks) == 1 or site.rank not in ranks:
        return None
    gives = (site.value("input gradients"),) if site.rank == ranks[0] else ()
    return Uses(gives=gives, reads=gradients(site, 0))


def _gather_results(site: Site) -> Uses | None:
    last = site.setting.num_stages - 1
    ranks = site.setting.ranks_of(last)
    if len(ranks) == 1 or site.rank not in ranks:
        return None
    gives = (site.value("results"),) if site.rank == ranks[0] else ()
    return Uses(given(site, last, "result", ("F",)), gives)


def _norm(site: Site) -> Uses:
    reads = all_gradients(site)
    if "LOSS" in site.setting.kinds:
        reads = (*reads, site.value("loss"))
    return Uses(gives=(site.value("norm"),), reads=reads)


def _gather(site: Site) -> Uses:
    return Uses(gives=(site.value("whole"),))


def _free(site: Site) -> Uses:
    return Uses((site.value("whole"),))


# -- meetings --------------------------------------------------------------------------


def _tied(site: Site) -> Meeting:
    return meeting("REDUCE_TIED", _tied_ranks(site) or (site.rank,))


def _first_stage(site: Site) -> Meeting:
    return meeting("GATHER_INPUT_GRADS", site.setting.ranks_of(0))


def _last_stage(site: Site) -> Meeting:
    last = site.setting.num_stages - 1
    return meeting("GATHER_RESULTS", site.setting.ranks_of(last))


def _sums_of_tied(site: Site) -> tuple[Value, ...]:
    """Return the value that shows that gradients of tied weights are complete."""
    if "REDUCE_TIED" in site.setting.kinds and _tied_ranks(site):
        return (site.value("tied"),)
    return ()


def _gathered_results(site: Site) -> tuple[Value, ...] | None:
    """Return the results of all replicas, on the rank that gathers them."""
    ranks = site.setting.ranks_of(site.setting.num_stages - 1)
    if len(ranks) == 1 or "GATHER_RESULTS" not in site.setting.kinds:
        return None
    return (site.value("results"),) if site.rank == ranks[0] else ()


# -- the kinds -------------------------------------------------------------------------


_KINDS = (
    HANDSHAKE,
    collective_kind(
        "REDUCE_TIED", _reduce_tied, "sum of the gradients of tied weights", meets=_tied
    ),
    collective_kind(
        "GATHER_INPUT_GRADS",
        _gather_input_gradients,
        "gather of the gradients of the inputs",
        meets=_first_stage,
    ),
    collective_kind(
        "GATHER_RESULTS",
        _gather_results,
        "gather of losses, outputs and metrics",
        meets=_last_stage,
    ),
    FINITE,
    LOSS,
    collective_kind(
        "NORM",
        _norm,
        "norm and clipping of the gradients",
        meets=partial(all_ranks, "NORM"),
    ),
)
FRAMING = {kind.name: kind for kind in _KINDS}
"""The kinds that frame a step, by name, in the order of a row."""

_OF_SHARDS = (
    Kind("GATHER", _gather, "gather of the weights", time="gather"),
    Kind("FREE", _free, "release of the gathered weights"),
)

ADDED = {kind.name: kind for kind in (*_KINDS, *_OF_SHARDS)}
"""The kinds that this file declares, by name."""

KINDS.update(ADDED)
for _name in [*(kind.value for kind in ActionKind), *ADDED]:
    KINDS[_name] = KINDS.pop(_name)  # the order of legends and messages
NOUNS.update(_NOUNS)
OF_GRADIENTS.append(_sums_of_tied)
OF_RESULTS.append(_gathered_results)
