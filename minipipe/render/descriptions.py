"""The texts of drawings: actions, idle times, messages, times and captions, the same in
every format.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from types import MappingProxyType

from minipipe.passes.kinds import KINDS
from minipipe.render.panel import Panel
from minipipe.schedules import Action, ActionKind, Idle, IdleCause, Message, Timeline
from minipipe.schedules.simulation.timeline import ONE_UNIT

# A note on the arrows of measured messages: the end of the receive is measured, the
# arrival is not.
LATE_RECEIPTS = (
    "measured arrows end when the rank receives the value, which may have arrived long "
    "before"
)

# Overlapped pairs, and the two ways of messages, in a legend.
OVERLAPPED = "overlapped forward and backward, each drawn in half of their time"
WAYS = ("forward", "backward")
SENT = MappingProxyType({"forward": "activation sent", "backward": "gradient sent"})

# Their messages are drawn instead.
_RECEIVES = (ActionKind.RECV_F, ActionKind.RECV_B)

# The value that another rank gets from an action.
_CARRIES = {
    **dict.fromkeys(
        (ActionKind.FORWARD, ActionKind.SEND_F, ActionKind.RECV_F), "activation"
    ),
    **dict.fromkeys((ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT), "gradient"),
    **dict.fromkeys((ActionKind.SEND_B, ActionKind.RECV_B), "gradient"),
}

# The description of an idle time whose cause is known without an awaited action.
_WITHOUT_ACTION = {
    IdleCause.DRAIN: "has nothing left to do in this step",
    IdleCause.UPDATE: "between two steps (the optimiser and other work of the program)",
    IdleCause.OVERHEAD: (
        "between two actions (overhead: bookkeeping or, if measured, another program "
        "on its core)"
    ),
}


def darker_label(panels: Sequence[Panel]) -> str:
    """Return the meaning of the shades of a kind of action.

    Examples
    --------
    >>> from minipipe import schedules
    >>> from minipipe.render.panel import panels_of
    >>> (
    ...     darker_label(panels_of([schedules.zb_v(4, 8)])),
    ...     darker_label(panels_of([schedules.chimera(4, 8)])),
    ... )
    ('darker: a later stage of the same rank', 'darker: a replica of later microbatches, or a later stage')
    """
    if any(panel.has_replicas for panel in panels):
        return "darker: a replica of later microbatches, or a later stage"
    return "darker: a later stage of the same rank"


def held_label(is_memory: bool, panels: Sequence[Panel]) -> str:
    """Return the name of a strip or bar that shows the memory or activations of a rank.

    Examples
    --------
    >>> from minipipe import schedules
    >>> from minipipe.render.panel import panels_of
    >>> held_label(is_memory=False, panels=panels_of([schedules.gpipe(2, 2)]))
    'activations held'
    """
    if not is_memory:
        if any(panel.pairs for panel in panels):
            return f"activations held, in {ONE_UNIT}"
        return "activations held"
    has_recomputation = any(panel.recomputes for panel in panels)
    if has_recomputation:
        return "memory held, with recomputed activations during a backward"
    return "memory held"


def describe_action(action: Action) -> str:
    """Describe an action.

    Examples
    --------
    >>> describe_action(Action.parse("2F0"))
    '2F0: forward of microbatch 0 on stage 2'
    >>> describe_action(Action.parse("2LOSS0"))
    'LOSS: delivery of the loss, outputs and metrics'
    """
    kind = action.kind.declaration
    if kind.of_rank:
        return f"{action}: {kind.words}"
    of = "up to" if kind.sums_up else "of"
    where = f"microbatch {action.microbatch} on stage {action.stage}"
    return f"{action}: {kind.words} {of} {where}"


def describe_idle(idle: Idle) -> str:
    """Describe the cause of an idle time.

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> describe_idle(simulate(schedules.gpipe(2, 2)).idle[1][0])
    'idle, warm-up: waits for 0F0 on rank 0 (activation of microbatch 0)'
    """
    if idle.cause is IdleCause.OVERHEAD:
        return f"idle: {describe_wait(idle)}"
    return f"idle, {idle.cause}: {describe_wait(idle)}"


def describe_wait(idle: Idle) -> str:
    """Describe the wait of an idle rank, as the end of a sentence about the rank.

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> describe_wait(simulate(schedules.gpipe(2, 2)).idle[0][0])
    'waits for 1B0 on rank 1 (gradient of microbatch 0)'
    """
    awaited = idle.awaited
    if idle.cause in _WITHOUT_ACTION:
        return _WITHOUT_ACTION[idle.cause]
    if awaited is None:
        return "has not begun" if idle.cause is IdleCause.WARM_UP else "waits"
    if idle.cause is IdleCause.SENDING:
        return f"waits until rank {idle.source} reaches {awaited}"
    kind = awaited.kind
    if kind is ActionKind.REDUCE_GRAD:
        progress = "it is in progress"
        if idle.running:
            progress = f"rank {idle.source} is still in {idle.running}"
        return f"waits for the gradient all-reduce of stage {awaited.stage}: {progress}"
    if kind is ActionKind.LOAD:
        return f"waits for {awaited}: the activations are on their way"
    payload = kind.declaration.words
    if not kind.is_of_rank:
        value = _CARRIES.get(kind, payload)
        payload = f"{value} of microbatch {awaited.microbatch}"
    return f"waits for {awaited} on rank {idle.source} ({payload})"


def way_of(message: Message) -> str:
    """Return ``"forward"`` for an activation, ``"backward"`` for a gradient."""
    return WAYS[message.value.kind is not ActionKind.FORWARD]


def message_entries(panels: Sequence[Panel]) -> Iterator[tuple[str, str]]:
    """Yield the entries of a legend for messages, each with its way; a note on the
    arrows has none.

    Examples
    --------
    >>> from minipipe import schedules
    >>> from minipipe.render.panel import panels_of
    >>> list(message_entries(panels_of([schedules.gpipe(2, 2)])))
    [('forward', 'activation sent'), ('backward', 'gradient sent')]
    """
    messages = (message for panel in panels for message in panel.timeline.messages)
    used = set(map(way_of, messages))
    yield from ((way, SENT[way]) for way in WAYS if way in used)
    if any(panel.has_late_receipts for panel in panels):
        yield "", LATE_RECEIPTS


def describe_message(message: Message) -> str:
    """Describe a message: its payload, its ranks and its consumer.

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> describe_message(simulate(schedules.gpipe(2, 2)).messages[0])
    'the result of 0F0, from rank 0 to rank 1, for 1F0'
    """
    route = f"from rank {message.source} to rank {message.destination}"
    return f"the result of {message.value}, {route}, for {message.used_by}"


def short_label(action: Action, names_stage: bool) -> str:
    """Return the label of an action's box: ``F3``, or ``2F3`` if its rank has several
    stages.

    Examples
    --------
    >>> short_label(Action.parse("2F3"), names_stage=False)
    'F3'
    """
    if names_stage or action.kind.is_of_rank:
        return str(action)
    return f"{action.kind}{action.microbatch}"


def entries_of(kinds: Collection[ActionKind]) -> list[tuple[list[ActionKind], str]]:
    """Return the entries of a legend: kinds, in the order of their declarations, with
    their descriptions.

    Kinds that belong to a rank have one entry.

    Examples
    --------
    >>> entries_of([ActionKind("LOSS"), ActionKind.FORWARD, ActionKind("FINITE")])[1]
    ([<ActionKind.FINITE: 'FINITE'>, <ActionKind.LOSS: 'LOSS'>], 'frame of the step')
    """
    ordered = [kind for kind in map(ActionKind, KINDS) if kind in kinds]
    of_stages = (kind for kind in ordered if not kind.is_of_rank)
    entries = [([kind], kind.declaration.words) for kind in of_stages]
    of_ranks = [kind for kind in ordered if kind.is_of_rank]
    if of_ranks:
        entries.append((of_ranks, "frame of the step"))
    return entries


def box_entries(
    boxes: Iterable[tuple[ActionKind, int]], panels: Sequence[Panel]
) -> Iterator[tuple[list[tuple[ActionKind, int]], str]]:
    """Yield the entries of a legend for boxes of kinds and chunks: the boxes of one
    kind, by chunk, with their description; at the end, the meaning of darker boxes.

    Examples
    --------
    >>> from minipipe import schedules
    >>> from minipipe.render.panel import panels_of
    >>> panels = panels_of([schedules.zb_v(2, 4)])
    >>> for boxes, text in box_entries([(ActionKind.FORWARD, 1)], panels):
    ...     print([(str(kind), chunk) for kind, chunk in boxes], text)
    [('F', 1)] F forward
    [] darker: a later stage of the same rank
    """
    chunks: dict[ActionKind, set[int]] = {}
    for kind, chunk in boxes:
        if kind not in _RECEIVES:
            chunks.setdefault(kind, set()).add(chunk)
    for kinds, words in entries_of(chunks):
        shades = [(kinds[0], chunk) for chunk in sorted(chunks[kinds[0]])]
        yield shades, f"{', '.join(kinds)} {words}"
    if any(map(any, chunks.values())):
        yield [], darker_label(panels)


def title(timeline: Timeline) -> str:
    """Return the name and the origin of a timeline.

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> title(simulate(schedules.gpipe(2, 2)))
    'gpipe, predicted'
    """
    return f"{timeline.name}, {origin(timeline)}"


def caption(panel: Panel) -> str:
    """Return the caption of a drawing as one line: name, origin and figures.

    Examples
    --------
    >>> from minipipe import schedules
    >>> from minipipe.render.panel import panels_of
    >>> caption(*panels_of([schedules.gpipe(2, 2)]))
    'gpipe, predicted: makespan 9 units, bubble 33.3 %, peak activations by rank 2, 2'
    """
    return f"{title(panel.timeline)}: {figures(panel)}"


def figures(panel: Panel) -> str:
    """Return the figures of a caption, in the unit that all panels of the drawing
    share.

    Examples
    --------
    >>> from minipipe import schedules
    >>> from minipipe.render.panel import panels_of
    >>> for panel in panels_of([schedules.one_f_one_b(4, 8), schedules.zb_v(4, 8)]):
    ...     print(figures(panel))
    makespan 33 units, bubble 27.3 %, peak activations by rank 4, 3, 2, 1 microbatches over all stages of a rank
    makespan 25.5 units, bubble 5.9 %, peak activations by rank 4, 4, 4, 4 microbatches over all stages of a rank
    """
    return ", ".join(f"{name} {value}" for name, value in panel.figures)


def origin(timeline: Timeline) -> str:
    """Return the origin of a timeline: predicted or measured.

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> origin(simulate(schedules.gpipe(2, 2)))
    'predicted'
    """
    return "measured" if timeline.is_measured else "predicted"


def format_memory(size: float, unit: str) -> str:
    """Write an amount of memory in the unit of a timeline; bytes get binary prefixes.

    Examples
    --------
    >>> format_memory(1536, "bytes"), format_memory(4.0, "units")
    ('1.5 KiB', '4')
    """
    if unit != "bytes":
        return f"{size:.6g}"
    power = min(4, max(0, int(size).bit_length() - 1) // 10)
    scaled = size / 1024**power
    digits = f"{scaled:.3g}" if scaled < 1000 else f"{scaled:.0f}"
    return f"{digits} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
