"""Values that slices, recomputation and offloading add to a pair of stage and microbatch.

A slice of a sequence reads the keys and values of the slices before it, and its
backward gets gradients of its own from the slices behind it. An R recomputes the
activations that its forward dropped; an O offloads them, and an L loads them again::

    F          O          L          R              B
    |-- graph--|-- away --|-- back --|-- rebuilt ---|

====  =====================================================================
turn  remarks (`core/nouns.py`)
====  =====================================================================
4     slices: a forward needs the keys and values of the slices before it, a
      backward gets gradients of its keys and values from those behind it
9     an O with its L, and an R, O or L with a backward
10    R, O and L: F, O, L, R, B or I of a pair come in this order
11    slices whose keys and values are offloaded when a later one needs them
====  =====================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from minipipe.core.flow import Flow
from minipipe.core.nouns import (
    HOME,
    NEEDLESS,
    NOUNS,
    Fault,
    Noun,
    Remark,
    Tell,
    stays,
)
from minipipe.core.values import KINDS, Kind, Site, Sites, Uses, Value

_Declare = Callable[[Site], Uses | None]

# -- recomputed and offloaded graphs ---------------------------------------------------


def _state_of(site: Site) -> Value:
    """Return what a pair has for its backward, unless that recomputes it."""
    return site.value("back" if site.has("L") else "graph")


def _offload(site: Site) -> Uses | None:
    if not site.goes_back:
        return None
    return Uses((site.value("graph"),), (site.value("away"),))


def _load(site: Site) -> Uses | None:
    if not site.goes_back:
        return None
    gives = [site.value("back")]
    if site.setting.num_slices > 1:
        gives.append(site.value("kv back"))
    return Uses((site.value("away"),), tuple(gives))


def _recompute(site: Site) -> Uses | None:
    if not site.goes_back:
        return None
    reads = _keys_and_values(site)
    return Uses((_state_of(site),), (site.value("rebuilt"),), reads)


# -- slices ----------------------------------------------------------------------------


def _keys_and_values(site: Site, of_all: bool = False) -> tuple[Value, ...]:
    """Return the keys and values of earlier slices of the sequence.

    Those of a slice that is offloaded earlier in the row exist again after its L. If
    nothing is offloaded, those of the first slice and of the one before stand for all:
    each slice in between needs the one before it.
    """
    setting = site.setting
    stage = site.stage
    k = site.microbatch
    first = k - k % setting.num_slices
    others = range(first, k)
    if "O" not in setting.kinds and not of_all:
        others = others[:: max(1, len(others) - 1)]
    forwards = setting.positions.get(("F", stage), {})
    offloads = setting.positions.get(("O", stage), {})
    reads = []
    for other in others:
        at = forwards.get(other, -1)
        offloaded_at = offloads.get(other, site.position)
        name = "kv back" if at < offloaded_at < site.position else "kv"
        reads.append(Value(name, stage, other))
    return tuple(reads)


def _forward(declare: _Declare, site: Site) -> Uses | None:
    """Declare the forward of a slice: the last one of a sequence without a backward
    takes what the others read.
    """
    uses = declare(site)
    n = site.setting.num_slices
    if uses is None or n == 1:
        return uses
    if (site.microbatch + 1) % n == 0 and not site.goes_back:
        takes = (*uses.takes, *_keys_and_values(site, of_all=True))
        return uses._replace(takes=takes)
    gives = (*uses.gives, site.value("kv"))
    return uses._replace(gives=gives, reads=_keys_and_values(site))


def _backward(declare: _Declare, site: Site) -> Uses | None:
    """Declare a B or I: it takes what R or L give, and exchanges gradients of keys and
    values with other slices.
    """
    uses = declare(site)
    if uses is None:
        return None
    is_rebuilt = site.has("R")
    takes = [site.value("rebuilt") if is_rebuilt else _state_of(site), *uses.takes[1:]]
    left = [value for value in uses.gives if value.name in ("dw", "rest")]
    gives = [value for value in uses.gives if value not in left]
    k = site.microbatch
    index = k % site.setting.num_slices
    if index < site.setting.num_slices - 1:
        takes.append(site.value("dkv"))
    if index > 0:
        gives.append(Value("dkv", site.stage, k - 1))
    temporary = "" if is_rebuilt else uses.temporary
    return Uses(tuple(takes), (*gives, *left), _keys_and_values(site), temporary)


def _states_of(sites: Sites) -> Iterable[object]:
    """Return the slice, and what R, O and L do with the states that it needs."""
    setting = sites.setting
    ks = sites.microbatches
    n = setting.num_slices
    kinds = setting.kinds
    if kinds.isdisjoint(("R", "O", "L")):
        return [k % n for k in ks]
    again, loaded, away = (
        setting.positions.get((kind, sites.stage), {}) for kind in ("R", "L", "O")
    )
    states = [(k % n, k in again, k in loaded) for k in ks]
    if n == 1 or "O" not in kinds:
        return states
    earlier = []
    for position, k in sites.places:
        before = range(1, k % n + 1)
        earlier.append(tuple([away.get(k - i, position) < position for i in before]))
    return zip(states, earlier)


def _always(setting: Flow) -> bool:
    return True


def _has_slices(setting: Flow) -> bool:
    return setting.num_slices > 1


def _has_states(setting: Flow) -> bool:
    return setting.num_slices > 1 or not setting.kinds.isdisjoint(("R", "L"))


# -- what is said of slices ------------------------------------------------------------


def _before_slice(fault: Fault) -> Iterator[Remark]:
    """Tell of a forward before the forward of an earlier slice."""
    assert fault.value is not None
    _, kind, k = fault.action
    if kind == HOME and fault.value.microbatch == k - 1:
        sentence = f"comes before {fault.other}; forwards of a sequence run from its "
        sentence += "first slice to its last, each of which needs the keys and values "
        yield fault.remark(4, "order", f"{sentence}before it.")


def _before_later_slice(fault: Fault) -> Iterator[Remark]:
    """Tell of a backward before the backward of a later slice."""
    sentence = f"comes before {fault.other}; backwards of a sequence run from its last "
    sentence += "slice to its first, which gets gradients from all later ones."
    yield fault.remark(4, "order", sentence)


def _far_from_slice(fault: Fault) -> Iterator[Remark]:
    """Tell of a slice that is on another rank than the first one of its sequence."""
    assert fault.value is not None and fault.giver is not None
    if fault.value.microbatch % fault.flow.num_slices == 0:
        first = fault.cell(HOME, fault.value.microbatch)
        sentence = f"is on another replica than {first}, on rank {fault.giver[0]}; "
        sentence += "a slice needs the keys and values of those before it."
        yield fault.remark(4, "placement", sentence)


def _after_offload(fault: Fault) -> Iterator[Remark]:
    """Tell which O is the first to keep keys and values away."""
    (stage, _, k), positions = fault.action, fault.flow.positions
    offloads = positions.get(("O", stage), {})
    loads = positions.get(("L", stage), {})
    away = []
    for other in range(k - k % fault.flow.num_slices, k):
        begin = offloads.get(other, fault.position)
        if begin < fault.position < loads.get(other, -1):
            away.append((begin, other))
    at, other = min(away)
    sentence = f"needs keys and values that {fault.cell('O', other)} (position {at})"
    yield fault.remark(11, "order", f"{sentence} offloaded.")


# -- what is said of R, O and L --------------------------------------------------------

_STATES = ("F", "O", "L", "R", "B", "I")  # the order of a pair


def _alone(fault: Fault) -> Iterator[Remark]:
    """Tell of an R, O or L without what belongs to it."""
    stage, kind, k = fault.action
    missing = f"{fault.cell('B')} or {fault.cell('I')}"
    for own, partner in (("O", "L"), ("L", "O")):
        if kind == own and k not in fault.flow.positions.get((partner, stage), ()):
            missing = fault.cell(partner)
    sentence = f"comes without {missing}; expected both, or neither."
    yield fault.remark(9, "missing", sentence)


def _disordered(fault: Fault) -> Iterator[Remark]:
    """Tell of each instruction of a pair with R, O or L before one that it needs."""
    (stage, _, k), positions = fault.action, fault.flow.positions
    of_stage = {kind: positions.get((kind, stage), {}) for kind in _STATES}
    there = {kind: of_kind[k] for kind, of_kind in of_stage.items() if k in of_kind}
    if there.keys().isdisjoint("ROL"):
        return  # `core/order.py` finds it
    before = -1
    latest = -1
    for at, order in sorted((at, _STATES.index(kind)) for kind, at in there.items()):
        if order > latest:
            before = at
            latest = order
            continue
        sentence = f"comes before {fault.cell(_STATES[order])} (position {at}), which "
        blamed = fault._replace(position=before)
        yield blamed.remark(10, "order", f"{sentence}it needs.", fault.rank, at)


# -- the declarations ------------------------------------------------------------------

for _name, _wrap, _varies in (
    ("F", _forward, _has_slices),
    ("B", _backward, _has_states),
    ("I", _backward, _has_states),
):
    _kind = KINDS[_name]
    KINDS[_name] = _kind._replace(
        uses=partial(_wrap, _kind.uses), varies=_varies, cases=_states_of
    )
KINDS["W"] = KINDS["W"]._replace(cases=_states_of)
_state = partial(Kind, varies=_always, cases=_states_of)
_recomputation = _state("R", _recompute, "recomputation of the forward", time="R")
KINDS["R"] = _recomputation._replace(is_of_slice=True)
_copy = partial(_state, time="copy")
KINDS["O"] = _copy("O", _offload, "offload of the activations", lane="copy out")
KINDS["L"] = _copy("L", _load, "load of the offloaded activations", lane="copy in")

_graph = partial(Noun, keeps_weights=True, tells={"late": _disordered})
_AWAY = {"late": _disordered, "never taken": _alone, "never given": _alone}
_FAR: dict[str, Tell] = {"elsewhere": _far_from_slice}
_keys = partial(Noun, may_stay=stays)
NOUNS["graph"] = NOUNS["graph"]._replace(tells={"late": _disordered})
NOUNS.update(
    {
        "away": _graph("offloaded graph", is_away=True, tells=_AWAY),
        "back": _graph("loaded graph", parts=("graph",)),
        "rebuilt": _graph("recomputed graph", parts=("graph", "rebuilt part")),
        "kv": _keys("keys and values", tells={**_FAR, "late": _before_slice}),
        "kv back": _keys(
            "loaded keys and values", tells={**_FAR, "late": _after_offload}
        ),
        "dkv": Noun(
            "gradients of keys and values",
            adds_up=True,
            tells={"late": _before_later_slice},
        ),
    }
)
NEEDLESS.update(dict.fromkeys("ROL", _alone))
