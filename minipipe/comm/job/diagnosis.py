"""The diagnosis: which rank blocks the others, concluded from the reports of all ranks.

In this order:

1. A rank that does not answer is stopped, or runs compiled code that holds the
   interpreter.
2. A rank that answers and does not wait is busy in its own code.
3. If all ranks wait, a message is missing: its sender is already past the action that
   sends it, or another message lies unread in its place.
4. Otherwise each rank waits for another, so following them ends in a circle. The
   longest wait of the circle is the likely cause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minipipe.comm.job.reports import RankReport
from minipipe.core.comm.watch import titled
from minipipe.io import text_table

_MOST_ROWS = 16
# not a part of a sum, behind the last action
_CALLS = ("its part of ", "a barrier", "the broadcast array")
STOPPED = "stopped by a signal"
_COMPILED = "in compiled code that does not let Python run"
_MORE_TIME = (
    "If a rank only needs more time, raise timeout= or MINIPIPE_TIMEOUT (in seconds)."
)
_STATES = {
    "T": STOPPED,
    "t": "stopped by a debugger",
    "Z": "dead",
    "D": "waiting for a disk",
    "": "",
}


def diagnosis(reports: Sequence[RankReport], roles: Mapping[int, str]) -> str:
    """Return a table of all ranks, followed by a line that names the rank that blocks
    the others.

    Parameters
    ----------
    reports : sequence of RankReport
        The reports of all ranks.
    roles : mapping of int to str
        By rank, the program's name for it, if it has one.

    Examples
    --------
    >>> waits = RankReport(
    ...     0, 70, "here", "0B0, step 5", "a message from rank 1", peer=1, seconds=9.0
    ... )
    >>> silent = RankReport(2, 72, "here", place="stopped by a signal", is_silent=True)
    >>> print(
    ...     diagnosis(
    ...         [waits, RankReport(1, 71, "here", place="train.py, line 3"), silent],
    ...         {2: "replica 1, stage 0"},
    ...     )
    ... )
    rank  process  action       doing
       0  70 here  0B0, step 5  waits 9.0 s for a message from rank 1
       1  71 here               is busy: train.py, line 3
       2  72 here               does not answer
    Rank 2 (replica 1, stage 0) does not answer: stopped by a signal.
    """
    culprits = _culprits(reports)
    rows = [("rank", "process", "action", "doing")]
    others = [r for r in reports if r not in culprits]
    shown = sorted([*culprits, *others][:_MOST_ROWS], key=lambda r: r.rank)
    rows += [(str(r.rank), f"{r.pid} {r.host}", r.action, _doing(r)) for r in shown]
    lines = [text_table(rows, right={0})]
    if len(shown) < len(reports):
        lines.append(f"      and {len(reports) - len(shown)} more ranks")
    if culprits and _works(culprits[0]):
        lines.append(_MORE_TIME)
    return "\n".join([*lines, _sentence(culprits, reports, roles)])


def _works(report: RankReport) -> bool:
    if report.is_silent:
        return report.place == _COMPILED
    return not report.awaited


def is_debugged(reports: Sequence[RankReport]) -> bool:
    """Return whether some rank is held in a debugger."""
    is_held = [r.is_silent and r.place == _STATES["t"] for r in reports]
    return any(report.is_debugged for report in reports) or any(is_held)


def waits_for_a_person(reports: Sequence[RankReport], rank: int) -> str:
    """Return a line about the ranks in a debugger, to be printed by the lowest other
    rank; empty on the rest.
    """
    debugged = [r.rank for r in reports if r.is_debugged]
    others = [r.rank for r in reports if not (r.is_debugged or r.is_silent)]
    first = min(others, default=-1)
    if rank != first or not debugged:
        return ""
    if len(debugged) == 1:
        names = f"Rank {debugged[0]} is"
    else:
        names = f"Ranks {', '.join(map(str, debugged))} are"
    return (
        f"{names} in a debugger, so all ranks wait. (mpirun connects the keyboard to "
        "rank 0 only.)"
    )


def state_of(pid: int) -> str:
    """Describe the state of a process of this host that does not answer; empty if it
    has exited.
    """
    from minipipe.comm.job.watchdog import process_state  # not on Windows

    return _STATES.get(process_state(pid), _COMPILED)


def _culprits(reports: Sequence[RankReport]) -> list[RankReport]:
    silent = [report for report in reports if report.is_silent]
    busy = [report for report in reports if not report.awaited and not report.has_ended]
    blocked = silent or busy or _blocked_for_ever(reports)
    return blocked or _longest_waiter_in_a_circle(reports)


def _blocked_for_ever(reports: Sequence[RankReport]) -> list[RankReport]:
    """Return a rank that waits for a message that its peer must have sent."""
    by_rank = {report.rank: report for report in reports}
    waits = [
        (report, by_rank[report.peer])
        for report in reports
        if report.awaited and report.peer in by_rank
    ]
    passed = [report for report, peer in waits if _has_passed(peer, report)]
    return (passed or [report for report, _ in waits if _unread_from_peer(report)])[:1]


def _has_passed(peer: RankReport, report: RankReport) -> bool:
    """Return whether a peer is past the action that sends the awaited message."""
    if peer.program != report.program:
        return False
    is_here = peer.step == report.step and report.sent_at is not None
    is_behind_it = is_here and peer.position > (report.sent_at or 0)
    return peer.step > report.step or is_behind_it


def _different_calls(reports: Sequence[RankReport]) -> str:
    """List which ranks are blocked in which collective call, if all are and the calls
    differ.
    """
    waits = [report for report in reports if report.awaited]
    are_calls = all(
        report.is_collective and report.awaited.startswith(_CALLS) for report in waits
    )
    if len(waits) < len([r for r in reports if not r.has_ended]) or not are_calls:
        return ""
    ranks: dict[str, list[str]] = {}
    for report in waits:
        call = report.awaited.rpartition(" from rank ")[0]
        call = call.removeprefix("its part of ").partition(",")[0]
        ranks.setdefault(call, []).append(str(report.rank))
    if len(ranks) > 1:
        return "; ".join(
            f"rank {', '.join(who)} in {call}" for call, who in ranks.items()
        )
    return ""


def _unread_from_peer(report: RankReport) -> list[str]:
    end = f"from rank {report.peer}"
    return [words for words in report.unread if words.endswith(end)]


def _longest_waiter_in_a_circle(reports: Sequence[RankReport]) -> list[RankReport]:
    waits = {report.rank: report for report in reports if report.awaited}
    if not waits:
        return []
    rank: int | None = max(waits, key=lambda r: waits[r].seconds)
    path: list[int] = []
    while rank is not None and rank in waits and rank not in path:
        path.append(rank)
        rank = waits[rank].peer
    circle = path[path.index(rank) :] if rank in path else path[-1:]
    # A rank in a later round of a collective operation has already sent the messages of
    # earlier rounds.
    return [waits[min(circle, key=lambda r: (waits[r].round, -waits[r].seconds))]]


def _doing(report: RankReport) -> str:
    if report.is_silent:
        return "does not answer"
    if report.has_ended:
        return "has exited"
    if not report.awaited:
        return f"is busy: {report.place}"
    doing = f"waits {report.seconds:.1f} s for {report.awaited}"
    if report.unread:
        doing += f"; unread: {', '.join(report.unread)}"
    return doing


def _awaited(report: RankReport, roles: Mapping[int, str]) -> str:
    """Describe the message that a rank waits for, with the title of its sender."""
    peer = report.peer
    if peer is None or not report.awaited.endswith(f"from rank {peer}"):
        return report.awaited
    return f"{report.awaited.removesuffix(str(peer))}{titled(peer, roles)}"


def _sentence(
    culprits: Sequence[RankReport],
    reports: Sequence[RankReport],
    roles: Mapping[int, str],
) -> str:
    if not culprits:
        return "No rank is waiting any longer."
    first, several = culprits[0], len(culprits) > 1
    titles = ", ".join(titled(report.rank, roles) for report in culprits)
    who = f"Rank{'s' * several} {titles}"
    if first.is_silent:
        reasons = sorted({report.place for report in culprits} - {""})
        return (
            f"{who} {'do' if several else 'does'} not "
            f"answer{': ' * bool(reasons)}{', '.join(reasons)}."
        )
    if calls := _different_calls(reports):
        return (
            f"The ranks are in different calls: {calls}. Every rank must make the same "
            "calls in the same order."
        )
    if not first.awaited:
        return (
            f"{who} {'are busy in their' if several else 'is busy in its'} own code: "
            f"{first.place}"
        )
    awaited = _awaited(first, roles)
    unread = _unread_from_peer(first)
    instead = ""
    if unread:
        instead = f" Received instead: {', '.join(unread)}."
    if _blocked_for_ever(reports):
        return (
            f"{who} is blocked on {awaited}, which was never sent, or was sent with a "
            f"different tag.{instead}"
        )
    return (
        f"{who} has waited longest, for {awaited}: never sent, or sent with a "
        f"different tag?{instead}"
    )
