"""The values of stages that several ranks hold, and of their gradients.

REDUCE_GRAD adds the gradients of the replicas of a stage, and U applies the sum. Each
gradient is reduced once and applied once, by the first one of its row with a microbatch
that is at least its own.

====  =====================================================================
turn  remarks (`core/nouns.py`)
====  =====================================================================
2, 3  a microbatch on two replicas; a stage boundary that not all cross
6     gradients that are reduced or applied late, twice or never
7     updates of replicas, which come after the sum of their gradients
8     REDUCE_GRAD and U in all stages and replicas, or in none
====  =====================================================================
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from minipipe.core.flow import Flow
from minipipe.core.legality import of_stages
from minipipe.core.nouns import (
    CHECKS,
    FROZEN,
    GRADIENTS,
    HOME,
    NEEDLESS,
    NOUNS,
    ONCE,
    Fault,
    Noun,
    Remark,
    plainly,
)
from minipipe.core.values import (
    KINDS,
    Kind,
    Meeting,
    Site,
    Sites,
    Uses,
    cut_of,
    gradients_of,
    taken,
)

# -- uses ------------------------------------------------------------------------------


def _reduce_gradient(site: Site) -> Uses | None:
    """Declare a sum over replicas. With one replica, the gradients stay as they are."""
    gradients = taken(site, "REDUCE_GRAD", "dw", GRADIENTS)
    if site.is_frozen or not gradients:
        return None
    gives = (site.value("sum"),)
    if site.setting.num_replicas(site.stage) > 1:
        return Uses(gradients, gives)
    return Uses((), gives, gradients)


def _update(site: Site) -> Uses | None:
    """Declare an update, which takes the sum of the gradients of replicas."""
    uses = _UPDATE.uses(site)
    if uses is None or site.setting.num_replicas(site.stage) == 1:
        return uses
    sums = taken(site, "U", "sum", ("REDUCE_GRAD",))
    own = site.value("sum")
    return uses._replace(takes=sums if own in sums else (*sums, own))


def _replicas(site: Site) -> Meeting:
    """The first sums of all replicas of a stage meet, the second ones, and so on."""
    earlier = site.setting.sites(site.rank, "REDUCE_GRAD", site.stage).positions
    number = bisect_left(earlier, site.position)
    return Meeting(("sum", site.stage, number), site.setting.num_replicas(site.stage))


def _gradients_of(sites: Sites) -> Iterator[object]:
    """Yield how far behind its own the microbatches are that each one takes."""
    return zip(gradients_of(sites), gradients_of(sites, ("REDUCE_GRAD",)))


# -- what is said of gradients ---------------------------------------------------------

_VERBS = {"REDUCE_GRAD": "reduces", "U": "applies"}
_Given = Mapping[int, tuple[int, str]]  # by microbatch, who gives its gradient


def _gradients(fault: Fault) -> Iterator[Remark]:
    """Tell of all that is wrong with the gradients of a stage in a row."""
    flow = fault.flow
    rank = fault.rank
    stage = fault.action[0]
    given: dict[int, tuple[int, str]] = {}
    for kind in GRADIENTS:
        places = flow.sites(rank, kind, stage).places
        given.update((k, (at, kind)) for at, k in places)
    for number, kind in enumerate(_VERBS):
        end = -1
        for at, k in flow.sites(rank, kind, stage).places:
            taken = [other for other in sorted(given) if end < other <= k]
            yield from _early(fault._replace(position=at), given, taken, number)
            end = max(end, k)
        if given:
            yield from _skipped(fault, given, number)


def _early(
    fault: Fault, given: _Given, taken: Sequence[int], number: int
) -> Iterator[Remark]:
    """Tell if a REDUCE_GRAD or U takes nothing, or comes before a gradient."""
    stage, kind, k = fault.action
    microbatch = fault.flow.table.microbatches[k]
    place = fault.rank, number, 0, fault.position
    late = [other for other in taken if given[other][0] > fault.position]
    if stage in fault.flow.frozen:
        yield fault.remark(6, "frozen", FROZEN.format(stage), *place)
    elif not taken:
        sentence = f"{_VERBS[kind]} no gradient: the gradients of microbatches up to "
        yield fault.remark(
            6, "order", f"{sentence}{microbatch} are already taken.", *place
        )
    elif late:
        other = k if k in late else late[0]
        at, giver = given[other]
        gradient = f"{fault.cell(giver, other)} (position {at})"
        code = "order"
        sentence = f"comes before {gradient}, whose gradient it {_VERBS[kind]}."
        if other != k and kind == "U":
            code = "missing"
            sentence = f"skips {gradient}: it applies all gradients of microbatches "
            sentence += f"up to {microbatch}."
        yield fault.remark(6, code, sentence, *place)


def _skipped(fault: Fault, given: _Given, number: int) -> Iterator[Remark]:
    """Tell if no REDUCE_GRAD, or no U, takes the last gradient of a stage."""
    flow = fault.flow
    rank = fault.rank
    stage = fault.action[0]
    last = max(given)
    kind = [*_VERBS][number]
    first = min(given.values())[0]
    takers = flow.sites(rank, kind, stage).microbatches
    is_due = kind == "U" or flow.num_replicas(stage) > 1
    if takers and takers[-1] < last:
        at, giver = given[last]
        message = f"Rank {rank}, position {at}: no {kind} {_VERBS[kind]} the gradient "
        message += f"of {fault.cell(giver, last)}; the last is "
        message += f"{fault.cell(kind, takers[-1])}."
        yield Remark("missing", message, rank, at, 6, (rank, number, 1, first))
    elif not takers and is_due and kind in flow.kinds:
        message = f"{fault.cell(kind, last)} is missing on rank {rank}: either all "
        message += f"stages have a {kind}, or none."
        yield Remark("missing", message, rank, None, 8, (number, rank, first))


def _unsummed(fault: Fault) -> Iterator[Remark]:
    """Tell of a use of the gradients of replicas before their sum."""
    if fault.is_of_rank:
        if fault.reason != "late":  # `core/order.py` finds it
            yield from plainly(fault)
        return
    yield from _gradients(fault)
    stage, _, k = fault.action
    if fault.value is not None and fault.value.microbatch == k:
        ranks = " and ".join(map(str, fault.flow.table.ranks_of(stage)))
        sentence = f"comes without {fault.cell('REDUCE_GRAD')} before it; stage "
        sentence += f"{stage} has replicas on ranks {ranks}, which must all-reduce "
        yield fault.remark(7, "missing", f"{sentence}their gradients first.")


# -- what is said of replicas ----------------------------------------------------------


def _other_replicas(flow: Flow) -> Iterator[Remark]:
    """Yield the instructions away from the others of their microbatch."""
    if not flow.table.has_replicas:
        return
    for rank, position, (stage, _, k) in of_stages(flow):
        home = flow.table.rank_of(stage, k)
        if home != rank:
            fault = Fault("elsewhere", flow, rank, position)
            sentence = f"is on another replica than its forward; {fault.cell(HOME)} is "
            yield fault.remark(2, "placement", f"{sentence}on rank {home}.")


def _mixed_cuts(flow: Flow) -> Iterator[Remark]:
    """Yield what stays on a rank at a stage boundary at which others change ranks."""
    if not flow.table.has_replicas:
        return
    rank_of = flow.table.rank_of
    crosses = flow.table.crosses_ranks
    cuts: list[set[int]] = []
    for stage in range(flow.num_stages):
        uses = KINDS[HOME].uses(Site(flow, 0, 0, stage, 0)) or Uses()
        cuts.append({cut_of(value) for value in uses.takes if crosses(cut_of(value))})
    for rank, position, (stage, kind, k) in of_stages(flow):
        for cut in cuts[stage] if kind == HOME else ():
            if rank_of(cut, k) == rank:
                fault = Fault("elsewhere", flow, rank, position)
                sentence = f"stays on the rank of stage {cut}; other microbatches "
                sentence += "change ranks there. At a stage boundary either all "
                sentence += "microbatches change ranks, or none."
                yield fault.remark(3, "placement", sentence)


# -- the declarations ------------------------------------------------------------------


def _gradients_stay(setting: Flow, stage: int) -> bool:
    """Whether nothing in the table takes the gradients of a stage."""
    is_summed = setting.num_replicas(stage) > 1 and "REDUCE_GRAD" in setting.kinds
    return not is_summed and "U" not in setting.kinds


def _sums_stay(setting: Flow, stage: int) -> bool:
    return setting.num_replicas(stage) == 1 or "U" not in setting.kinds


_UPDATE = KINDS["U"]
KINDS["U"] = _UPDATE._replace(uses=_update, cases=_gradients_of)
KINDS["REDUCE_GRAD"] = Kind(
    "REDUCE_GRAD",
    _reduce_gradient,
    "all-reduce of the gradients",
    lane="",
    time="sum",
    meets=_replicas,
    sums_up=True,
    varies=_UPDATE.varies,
    cases=_gradients_of,
)
NOUNS["dw"] = NOUNS["dw"]._replace(
    may_stay=_gradients_stay,
    readers=("REDUCE_GRAD",),
    tells=dict.fromkeys(("late", "never taken", "unread"), _gradients),
)
NOUNS["sum"] = Noun(
    "summed gradients of weights",
    may_stay=_sums_stay,
    tells={"late": _unsummed, "never given": _unsummed, "never taken": _gradients},
)
NEEDLESS.update(dict.fromkeys(_VERBS, _gradients))
ONCE.add(_gradients)
CHECKS.extend([_other_replicas, _mixed_cuts])
