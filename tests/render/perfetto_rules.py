"""The rules of Chrome's Trace Event Format, as far as a trace can break them."""

import json
from collections import defaultdict
from operator import itemgetter

from minipipe.render import perfetto_trace


def read(*drawn):
    return json.loads(perfetto_trace(*drawn))


def nanoseconds(microseconds):
    """Return what Perfetto counts in: it multiplies in floating point, and cuts off the
    rest.
    """
    return int(microseconds * 1000.0)


def slices_by_thread(trace):
    threads = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append(event)
    return threads


def enclosing(trace, event):
    """Return the slices of the event's thread within which it lies, not at their
    edges.
    """
    row = slices_by_thread(trace)[event["pid"], event["tid"]]
    return [
        piece for piece in row if piece["ts"] < event["ts"] < piece["ts"] + piece["dur"]
    ]


def problems(trace):
    """Return the kinds of rules that a trace breaks."""
    return {
        *problems_of_names(trace),
        *problems_of_times(trace),
        *problems_of_slices(trace),
        *problems_of_flows(trace),
    }


def problems_of_names(trace):
    events = trace["traceEvents"]
    named = [(e["name"], e["pid"], e["tid"]) for e in events if e["ph"] == "M"]
    if len(set(named)) < len(named):
        yield "named twice"
    processes, threads = (
        {pid for _, pid, _ in named},
        {tid for name, _, tid in named if name == "thread_name"},
    )
    for event in events:
        if ("process_name", event["pid"], event["pid"]) not in named:
            yield "a process without a name"
        if (
            event["ph"] != "M"
            and ("thread_name", event["pid"], event["tid"]) not in named
        ):
            yield "a thread without a name"
    if processes & threads:
        yield "a thread with the number of a process"


def problems_of_times(trace):
    latest = {}
    for event in trace["traceEvents"]:
        for time in (event.get("ts", 0), event.get("dur", 0)):
            if not 0 <= time < 2**63 / 1000:
                yield "a time that no viewer can hold"
        if event["ph"] == "C":
            counter = event["pid"], event["name"]
            if event["ts"] <= latest.get(counter, -1):
                yield "a counter that goes back in time"
            latest[counter] = event["ts"]


def problems_of_slices(trace):
    for row in slices_by_thread(trace).values():
        enclosed_until = []
        # Readers sort by time; of those that start together the one that stands first
        # encloses the others.
        for piece in sorted(row, key=itemgetter("ts")):
            start, end = (
                nanoseconds(piece["ts"]),
                nanoseconds(piece["ts"]) + nanoseconds(piece["dur"]),
            )
            while enclosed_until and enclosed_until[-1] <= start:
                enclosed_until.pop()
            if enclosed_until and end > enclosed_until[-1]:
                yield "slices that overlap"
            enclosed_until.append(end)


def problems_of_flows(trace):
    flows = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] in "sf":
            flows[event["id"]].append(event)
    for ends in flows.values():
        if [event["ph"] for event in ends] != ["s", "f"]:
            yield "a flow without one of its ends"
            continue
        start, end = ends
        if (start["name"], start["cat"]) != (end["name"], end["cat"]) or end[
            "bp"
        ] != "e":
            yield "a flow whose ends do not meet"
        if start["ts"] >= end["ts"]:
            yield "a flow back in time"
        if any(len(enclosing(trace, event)) != 1 for event in ends):
            yield "a flow that binds to no slice"
