"""Who keeps the others waiting? Found out from what all ranks tell of themselves.

A rank that does not answer is stopped, or stuck in compiled code. One that answers and does not wait is busy in its own
code. Where all of them wait, a message is missing. It is that for which a rank waits whose peer has gone on past the
place where it sends it; or in whose place another one lies unread. Otherwise, as each rank waits for another, following
them ends in a circle, and there it probably is the one that is awaited longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from minipipe.comm.job.activity import Report

_MOST_ROWS = 16
STOPPED = "stopped by a signal"
_COMPILED = "in compiled code that does not let Python run"
_MORE_TIME = "Where a rank only needs longer, timeout= or MINIPIPE_TIMEOUT (in seconds) allows for it."
_STATES = {"T": STOPPED, "t": "stopped by a debugger", "Z": "dead", "D": "waiting for a disk"}


def verdict(reports: Sequence[Report]) -> str:
    """Return a table of all ranks, and in its last line who keeps the others waiting.

    Parameters
    ----------
    reports : sequence of Report
        Of all ranks.

    Examples
    --------
    >>> waits = Report(0, 70, "here", "0B0, step 5", "a message from rank 1", peer=1, seconds=9.0)
    >>> silent = Report(2, 72, "here", place="stopped by a signal", is_silent=True)
    >>> print(verdict([waits, Report(1, 71, "here", place="train.py, line 3"), silent]))
    rank  process  action       doing
       0  70 here  0B0, step 5  waits 9.0 s for a message from rank 1
       1  71 here               is busy: train.py, line 3
       2  72 here               does not answer
    Rank 2 does not answer: stopped by a signal.
    """
    culprits = _culprits(reports)
    rows = [("rank", "process", "action", "doing")]
    shown = sorted([*culprits, *(report for report in reports if report not in culprits)][:_MOST_ROWS], key=_rank_of)
    rows += [(f"{r.rank:4}", f"{r.pid} {r.host}", r.action, _doing(r)) for r in shown]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[3]]) for row in rows]
    if len(shown) < len(reports):
        lines.append(f"      and {len(reports) - len(shown)} more ranks")
    works = culprits and (culprits[0].place == _COMPILED if culprits[0].is_silent else not culprits[0].awaited)
    return "\n".join([*lines, *([_MORE_TIME] if works else []), _sentence(culprits, reports)])


def _rank_of(report: Report) -> int:
    return report.rank


def is_debugged(reports: Sequence[Report]) -> bool:
    """Tell whether some rank stands still because a person looks at it."""
    return any(report.is_debugged or (report.is_silent and report.place == _STATES["t"]) for report in reports)


def waits_for_a_person(reports: Sequence[Report], rank: int) -> str:
    """Return what the lowest rank that is not in a debugger says of those that are; other ranks say nothing."""
    others = [r.rank for r in reports if r.is_debugged]
    first = min((r.rank for r in reports if not (r.is_debugged or r.is_silent)), default=-1)
    if rank != first or not others:
        return ""
    names = ", ".join(map(str, others))
    return f"Rank {names} stands in a debugger, so all wait. (mpirun gives the keyboard to rank 0 alone.)"


def state_of(pid: int) -> str:
    """Return what the system says of a process of this host that does not answer, or nothing."""
    try:
        line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("State:"))
    except (OSError, StopIteration):
        return ""
    return _STATES.get(line.split()[1], _COMPILED)


def _culprits(reports: Sequence[Report]) -> list[Report]:
    silent = [report for report in reports if report.is_silent]
    busy = [report for report in reports if not report.awaited and not report.has_ended]
    return silent or busy or _waits_in_vain(reports) or _longest_waiter_in_a_circle(reports)


def _waits_in_vain(reports: Sequence[Report]) -> list[Report]:
    """Return a rank that waits for a message that its peer must have sent."""
    by_rank = {report.rank: report for report in reports}
    waits = [(report, by_rank[report.peer]) for report in reports if report.awaited and report.peer in by_rank]
    passed = [report for report, peer in waits if _has_passed(peer, report)]
    return (passed or [report for report, _ in waits if _unread_from_peer(report)])[:1]


def _has_passed(peer: Report, report: Report) -> bool:
    """Tell whether a peer has gone on past the place where it sends what a rank waits for."""
    if peer.program != report.program:
        return False
    is_here = peer.step == report.step and report.sent_at is not None
    return peer.step > report.step or (is_here and peer.position > (report.sent_at or 0))


def _different_calls(reports: Sequence[Report]) -> str:
    """Return who waits in which collective call, where all wait outside of their actions, and not in the same one."""
    waits = [report for report in reports if report.awaited]
    if len(waits) < len([r for r in reports if not r.has_ended]) or not all(r.is_collective for r in waits):
        return ""
    ranks: dict[str, list[str]] = {}
    for report in waits:
        call = report.awaited.rpartition(" from rank ")[0].removeprefix("its part of ").partition(",")[0]
        ranks.setdefault(call, []).append(str(report.rank))
    return "; ".join(f"rank {', '.join(who)} in {call}" for call, who in ranks.items()) if len(ranks) > 1 else ""


def _unread_from_peer(report: Report) -> list[str]:
    return [words for words in report.unread if words.endswith(f"from rank {report.peer}")]


def _longest_waiter_in_a_circle(reports: Sequence[Report]) -> list[Report]:
    """Return a rank whose message does not come, where everybody waits."""
    waits = {report.rank: report for report in reports if report.awaited}
    if not waits:
        return []
    rank: int | None = max(waits, key=lambda r: waits[r].seconds)
    path: list[int] = []
    while rank is not None and rank in waits and rank not in path:
        path.append(rank)
        rank = waits[rank].peer
    circle = path[path.index(rank) :] if rank in path else path[-1:]
    # Who is in a later round of a collective operation has sent what others await in an earlier one.
    return [waits[min(circle, key=lambda r: (waits[r].round, -waits[r].seconds))]]


def _doing(report: Report) -> str:
    if report.is_silent:
        return "does not answer"
    if report.has_ended:
        return "has come to its end"
    if not report.awaited:
        return f"is busy: {report.place}"
    unread = f"; unread: {', '.join(report.unread)}" if report.unread else ""
    return f"waits {report.seconds:.1f} s for {report.awaited}{unread}"


def _sentence(culprits: Sequence[Report], reports: Sequence[Report]) -> str:
    if not culprits:
        return "Nobody waits any more."
    first, several = culprits[0], len(culprits) > 1
    who = f"Rank{'s' * several} {', '.join(str(report.rank) for report in culprits)}"
    if first.is_silent:
        reasons = sorted({report.place for report in culprits} - {""})
        return f"{who} {'do' if several else 'does'} not answer{': ' * bool(reasons)}{', '.join(reasons)}."
    if calls := _different_calls(reports):
        return f"The ranks are in different calls: {calls}. Every rank must make the same calls in the same order."
    if not first.awaited:
        return f"{who} {'are busy in their' if several else 'is busy in its'} own code: {first.place}"
    unread = _unread_from_peer(first)
    instead = f" What came from there instead: {', '.join(unread)}." if unread else ""
    missing = "That message was not sent, or went with another tag"
    is_known = bool(_waits_in_vain(reports))
    waits = "waits in vain" if is_known else "has waited longest"
    return f"Rank {first.rank} {waits}: for {first.awaited}. {missing}.{instead}"
