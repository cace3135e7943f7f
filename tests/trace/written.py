"""Traces that tests write themselves, as PyTorch would record a simulated timeline."""

import gzip
import json
from pathlib import Path

RECORDED = Path(__file__).parent / "recorded"
FORWARD_OR_BACKWARD = r"(?P<kind>Forward|Backward) (?P<microbatch>\d+)"
_LATE = 1e-6  # seconds between a range and the operation inside


def recorded(name, ranks=2):
    """Return the files of a run that PyTorch recorded, by rank."""
    return [RECORDED / f"{name}.{rank}.json.gz" for rank in range(ranks)]


def event(name, start, end, category="user_annotation", process=7, thread=7):
    """Return an event of a range in seconds."""
    times = {"ts": start * 1e6, "dur": (end - start) * 1e6}
    place = {"pid": process, "tid": thread}
    return {"ph": "X", "cat": category, "name": name, **place, **times}


def events_of(timeline, rank, category="user_annotation"):
    """Return the events of a rank: each action with the wait for its message, and its
    messages.
    """
    free = 0.0
    arrived = {message.used_by: message for message in timeline.messages}
    sent = {message.value: message for message in timeline.messages}
    events = []
    for action, start, end in timeline.spans[rank]:
        begin = start
        if action in arrived:
            begin = min(start, free)
            letter = "F" if action.kind == "F" else "B"
            posted = f"PP:{action.stage}RECV_{letter}{action.microbatch}"
            events.append(event(posted, begin, begin + _LATE, category))
            events.append(event("gloo:recv", begin, max(begin, start), category))
            begin += 2 * _LATE
        events.append(event(f"PP:{action}", begin, end, category))
        if action in sent:
            letter = "F" if action.kind == "F" else "B"
            name = f"PP:{action.stage}SEND_{letter}{action.microbatch}"
            events.append(event(name, end, end + _LATE, category))
        free = end + _LATE * (action in sent)
    return events


def write_trace(path, events, rank=None, ranks=None, **members):
    """Write a trace, as gzip if the path says so."""
    head = {"schemaVersion": 1, **members}
    if rank is not None:
        head["distributedInfo"] = {"rank": rank, "world_size": ranks}
    text = json.dumps({**head, "traceEvents": list(events), "traceName": "x"})
    content = text.encode()
    if path.suffix == ".gz":
        content = gzip.compress(content)
    path.write_bytes(content)
    return path


def write_timeline(folder, timeline, shift=(), **options):
    """Write a trace for each rank, whose clocks are ahead by ``shift``; return the
    paths.
    """
    paths = []
    for rank in range(timeline.num_ranks):
        by = dict(enumerate(shift)).get(rank, 0.0)
        events = events_of(timeline, rank, **options)
        moved = [{**it, "ts": it["ts"] + by * 1e6} for it in events]
        path = folder / f"rank{rank}.json"
        paths.append(write_trace(path, moved, rank, timeline.num_ranks))
    return paths
