"""The comparison of device meshes as a table, and the reasons: each compares two rows
by a figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, zip_longest
from statistics import median
from typing import Any, NamedTuple

from minipipe.errors import counted
from minipipe.io import terminal_width, text_table, wrapped
from minipipe.render.descriptions import format_memory
from minipipe.render.svg.bars import Bar, draw_bars
from minipipe.schedules import ActionKind, IdleCause
from minipipe.schedules.simulation.paper_scale import Link
from minipipe.tuning.grids import CLOSE, GridSizes, Task
from minipipe.tuning.hosts import on_hosts
from minipipe.tuning.traffic import KINDS, OTHER

# the measured kinds, by the plan's names
MEMORY = ("parameters", "gradients", "optimiser_state", "activations")
ETHERNET = Link(5e-5, 1.25e9)  # of 10 Gbit/s
# bytes per second: from links within a host to slow ones
_BANDWIDTHS = [10.0**power for power in range(10, 4, -1)]
_LOOKS: dict[str, ActionKind | IdleCause] = {
    "actions": ActionKind.BACKWARD,
    "idle": IdleCause.WAITING,
    "optimiser": ActionKind.BACKWARD_WEIGHT,
    "activations": ActionKind.FORWARD,
    "tensor sums": ActionKind.BACKWARD_INPUT,
    "gradients": ActionKind.REDUCE_GRAD,
    "shares": ActionKind.RECOMPUTE,
    "parameters": ActionKind.UPDATE,
}  # as in pictures of schedules, if these have such a part
# of bars: parts of one colour have one name
_PARTS = {"gradient sums": "gradients", "optimiser_state": "optimiser"}
_WITHIN_ACTIONS = ("tensor sums", "shares")
_HOW = ("measured", "simulated", "on_hosts")
_WHOSE = ("sent", "promised_sent", "memory", "promised_memory")
_LESS = 0.95  # of the winner's memory: below this, a slower mesh is worth reporting


class Figures(NamedTuple):
    """The time of a step of a device mesh, measured or simulated.

    Attributes
    ----------
    grid : str
    seconds : float
        The time of a step, with the optimiser.
    bubble : float
        The fraction of the step before the optimiser in which its ranks are idle.
    update : float
        The seconds of the optimiser.
    """

    grid: str
    seconds: float
    bubble: float
    update: float

    @property
    def parts(self) -> dict[str, float]:
        """The seconds of a rank in its actions, idle, and in the optimiser."""
        step = self.seconds - self.update
        actions = (1 - self.bubble) * step
        idle = self.bubble * step
        return {"actions": actions, "idle": idle, "optimiser": self.update}


def most(row: Mapping[str, Any], kinds: Sequence[str], whose: str) -> int:
    """Return the bytes of some kinds on the rank with the most: ``"sent"``,
    ``"memory"``, or their predictions.
    """
    return max(_total(rank, kinds, whose) for rank in row["ranks"])


@dataclass(frozen=True)
class GridReport:
    """The device meshes of a task, measured and simulated. It prints as tables and
    sentences.

    Attributes
    ----------
    task : Task
    rows : list of dict
        The result of :func:`minipipe.tuning.grids.compare_on_ranks`.
    left_out : dict of str to str
        The device meshes that do not fit, each with the reason.
    where : str
        The ranks on which they ran.
    hosts : int, optional
        Number of hosts of an additional simulation.
    link : Link
        The link between these hosts.
    shares_cores : bool
        Whether the measured ranks outnumber the cores.
    are_threads : bool
        Whether the ranks were threads, whose times do not show which mesh is the
        fastest.
    """

    task: Task
    rows: Sequence[Mapping[str, Any]]
    left_out: Mapping[str, str]
    where: str
    hosts: int | None = None
    link: Link = ETHERNET
    shares_cores: bool = False
    are_threads: bool = False

    @cached_property
    def _by_name(self) -> dict[str, Mapping[str, Any]]:
        return {row["grid"]: row for row in self.rows}

    @cached_property
    def measured(self) -> list[Figures]:
        """The median time of a step, by device mesh."""
        figures = []
        for row in self.rows:
            figures.append(
                Figures(
                    row["grid"],
                    median(row["seconds"]),
                    row["bubble"],
                    row["update_seconds"],
                )
            )
        return figures

    @cached_property
    def compiled(self) -> list[float]:
        """The median time of a compiled step with its optimiser, in seconds, by device
        mesh.
        """
        return [median(row["compiled_seconds"]) for row in self.rows]

    @cached_property
    def simulated(self) -> list[Figures]:
        """The same, from the measured times of actions and messages."""
        return self._over(1, self.link)

    @cached_property
    def on_hosts(self) -> list[Figures]:
        """The same on several hosts; empty without."""
        if not self.hosts:
            return []
        return self._over(self.hosts, self.link)

    def _over(self, hosts: int, link: Link) -> list[Figures]:
        size = len(self.rows[0]["ranks"]) // hosts
        count = self.task.microbatches
        figures = []
        for row in self.rows:
            timeline = on_hosts(row, count, size, link)
            update = row["update_seconds"]
            step = timeline.makespan + update
            figures.append(Figures(row["grid"], step, timeline.bubble_fraction, update))
        return figures

    @cached_property
    def differing(self) -> list[str]:
        """The meshes whose losses differ from the first one by more than rounding."""
        first, *others = (row["losses"] for row in self.rows)
        close = CLOSE[self.task.dtype]
        names = []
        for row, losses in zip(self.rows[1:], others):
            pairs = zip(losses, first)
            if not all(abs(a - b) <= close * abs(b) for a, b in pairs):
                names.append(row["grid"])
        return names

    @property
    def sentences(self) -> list[str]:
        """Sentences that name the fastest mesh, the reasons, and conditions under which
        another one is better.
        """
        if self.differing:
            names = ", ".join(self.differing)
            first = self.rows[0]["grid"]
            differ = f"the losses of {names} differ from the losses of {first}"
            return [f"Error: {differ} by more than rounding."]
        if self.are_threads:
            why = "Thread ranks share one interpreter, so their times do not show the"
            return [f"{why} fastest mesh; run under MPI."]
        texts = [*self._reasons(self.measured, "measured")]
        texts += [self._compared_with_compiled(), self._spread()]
        if self.on_hosts:
            where = f"simulated on {counted(self.hosts or 1, 'host')}"
            texts += self._reasons(self.on_hosts, where)
        return texts + list(self._changes())

    def _reasons(self, figures: Sequence[Figures], how: str) -> Iterator[str]:
        """Yield the fastest mesh, and for each other one the part of its step with the
        largest difference.
        """
        best, *others = ranked(figures)
        yield f"{best.grid} is the fastest ({how}): {_ms(best.seconds)} per step."
        for other in others:
            parts = best.parts
            more = {name: other.parts[name] - parts[name] for name in parts}
            cause = max(more, key=more.__getitem__)
            of_other = _ms(other.parts[cause])
            of_best = _ms(parts[cause])
            reason = {
                "actions": f"its actions take {of_other} per rank instead of {of_best}",
                "idle": f"its ranks are idle for {of_other} instead of {of_best}",
                "optimiser": f"its optimiser takes {of_other} instead of {of_best}",
            }[cause]
            rows = (self._by_name[each.grid] for each in (other, best))
            sent, least = (most(row, _WITHIN_ACTIONS, "sent") for row in rows)
            if cause == "actions" and sent > least:
                sizes = f"{_size(sent)} instead of {_size(least)}"
                reason += f", which include sending {sizes}"
            times = f"{other.seconds / best.seconds:.2f} times as long"
            yield f"{other.grid} takes {times}: {reason}."

    def _compared_with_compiled(self) -> str:
        """Return the times of steps with compile=True, relative to eager steps."""
        pairs = zip(self.measured, self.compiled)
        ratios = [compiled / eager.seconds for eager, compiled in pairs]
        times = f"{min(ratios):.2f} to {max(ratios):.2f} times"
        return f"With compile=True a step takes {times} as long."

    def _spread(self) -> str:
        """Return how much the steps of one mesh differed: smaller differences between
        two meshes are noise.
        """
        steps = [row["seconds"] for row in self.rows]
        spreads = [(max(times) - min(times)) / median(times) for times in steps]
        differ = f"differ by {median(spreads):.0%} (median)"
        differed = f"The slowest and the fastest step of one mesh {differ}"
        return f"{differed}; smaller differences between meshes are noise."

    def _changes(self) -> Iterator[str]:
        """Yield the conditions that favour another mesh: less memory, and slower links
        between two hosts.
        """
        best, *others = ranked(self.measured)
        rows = (self._by_name[each.grid] for each in (best, *others))
        needs, *less = (most(row, MEMORY, "memory") for row in rows)
        for other, needed in zip(others, less):
            if needed < _LESS * needs:
                times = f"{other.seconds / best.seconds:.2f} times the time"
                more = f"{other.grid} needs {_size(needed)} and {times}"
                yield f"If a rank has less than {_size(needs)}: {more}."
                break
        hosts = max(2, self.hosts or 2)
        if len(self.rows[0]["ranks"]) % hosts or not others:
            return
        first: dict[str, float] = {}  # by winner, the bandwidth from which on it wins
        for bandwidth in _BANDWIDTHS:
            link = self.link._replace(bandwidth=bandwidth)
            winner = ranked(self._over(hosts, link))[0]
            first.setdefault(winner.grid, bandwidth)
        (fastest, _), *later = first.items()
        slower = [f"{grid} from {bandwidth:.0e} down" for grid, bandwidth in later]
        how = "; ".join(slower) or "also with slower links"
        on = f"on {counted(hosts, 'host')} with links of {_BANDWIDTHS[0]:.0e}"
        where = f"Simulated {on} bytes per second"
        yield f"{where}, {fastest} is the fastest; {how}."

    # -- as text, and as data ----------------------------------------------------------

    @property
    def title(self) -> str:
        """The model and the ranks in a line."""
        task = self.task
        blocks = counted(task.layers, "block")
        heads = counted(task.heads, "head")
        model = f"{blocks}, {task.width} wide, {heads}, {task.dtype}"
        count = counted(task.microbatches, "microbatch")
        batch = f"{task.batch} x {task.length} tokens in {count}"
        return f"{model}; {batch}; {self.where}"

    @property
    def notes(self) -> list[str]:
        """Notes about the figures."""
        left_out = self.left_out.items()
        texts = [f"left out: {name}: {reason}." for name, reason in left_out]
        if self.hosts:
            speed = f"{self.link.bandwidth:g} bytes per second"
            link = f"latency {self.link.latency:g} s, {speed}"
            ranks = f"{counted(self.hosts, 'host')}, one core per rank"
            texts.append(f"on hosts: {ranks}, links between hosts: {link}.")
        if self.shares_cores:
            longer = "an action takes longer while other ranks compute"
            texts.append(f"The ranks share cores, so {longer}.")
        return texts

    def __str__(self) -> str:
        sent = self._sizes("sent bytes", KINDS, "sent", {OTHER: ("sent", OTHER)})
        in_flight = {"in flight": ("promised_memory", "messages", "sums")}
        held = self._sizes("held bytes", MEMORY, "memory", in_flight)
        parts = [self.title], self.notes, self.sentences
        title, *texts = (wrapped("\n".join(it), terminal_width()) for it in parts)
        return "\n\n".join(filter(None, [title, self._times(), sent, held, *texts]))

    def _times(self) -> str:
        """Return the table of measured and simulated times, also on hosts."""
        columns = {"": self.measured, "simulated ": self.simulated}
        if self.hosts:
            columns["hosts "] = self.on_hosts
        head = [f"{how}{name}" for how in columns for name in ("ms", "idle")]
        cells = [["mesh", *head[:2], "compiled", *head[2:], "loss"]]
        for row, compiled, *figures in zip(self.rows, self.compiled, *columns.values()):
            measured, *others = map(_cells, figures)
            times = [*measured, f"{1e3 * compiled:.2f}", *chain(*others)]
            cells.append([row["grid"], *times, f"{row['losses'][0]:.6f}"])
        return text_table(cells, range(1, len(cells[0])), terminal_width())

    def _sizes(
        self,
        head: str,
        kinds: Sequence[str],
        whose: str,
        beside: Mapping[str, tuple[str, ...]],
    ) -> str:
        """Return a table of bytes, the most of any rank: measured, predicted, and the
        kinds that are not in both.
        """
        cells = [[head, *kinds, "all", "promised", *beside]]
        for row in self.rows:
            sizes = [most(row, [kind], whose) for kind in kinds]
            sizes += [most(row, kinds, of) for of in (whose, f"promised_{whose}")]
            sizes += (most(row, others, of) for of, *others in beside.values())
            cells.append([row["grid"], *(f"{size:,}" for size in sizes)])
        return text_table(cells, range(1, len(cells[0])), terminal_width())

    def picture(self) -> str:
        """Return times, bytes sent and bytes held as bars, in an SVG document."""
        columns = {"a step, measured": _bars_of_times(self.measured, self.simulated)}
        notes = [self.sentences[0]]
        if self.hosts:
            speed = f"{self.link.bandwidth:.1e} B/s"
            simulated = f"on {counted(self.hosts, 'host')}, {speed}"
            columns[simulated] = _bars_of_times(self.on_hosts)
            notes.append(next(self._reasons(self.on_hosts, simulated)))
        columns["sent in a step"] = self._bars_of_bytes(KINDS, "sent")
        columns["held by the fullest rank"] = self._bars_of_bytes(MEMORY, "memory")
        names = [row["grid"] for row in self.rows]
        marks = "simulated, or predicted by theory"
        return draw_bars(
            names, columns, _LOOKS, marks=marks, title=self.title, notes=notes
        )

    def _bars_of_bytes(self, kinds: Sequence[str], whose: str) -> list[Bar]:
        """Return a bar for the fullest rank of each mesh."""
        bars = []
        for row in self.rows:
            rank = max(row["ranks"], key=lambda each: _total(each, kinds, whose))
            parts = {_PARTS.get(kind, kind): rank[whose][kind] for kind in kinds}
            mark = _total(rank, kinds, f"promised_{whose}")
            bars.append(Bar(parts, _size(_total(rank, kinds, whose)), mark))
        return bars

    @property
    def data(self) -> dict[str, Any]:
        """The whole as plain data: seconds and bytes."""
        content: dict[str, Any] = {"task": asdict(self.task)}
        content["link"] = self.link._asdict()
        for name in ("where", "hosts", "left_out", "differing", "sentences"):
            content[name] = getattr(self, name)
        for name in _HOW:
            content[name] = [each._asdict() for each in getattr(self, name)]
        return {**content, "grids": self.rows}

    def flat(self) -> list[dict[str, Any]]:
        """Return a row of figures for each rank of each mesh, for CSV."""
        rows = []
        for i, row in enumerate(self.rows):
            of_mesh = {name: row[name] for name in ("grid", *GridSizes._fields)}
            of_mesh |= {"loss": row["losses"][0], "compiled_seconds": self.compiled[i]}
            for name in _HOW:
                for figures in getattr(self, name)[i : i + 1]:
                    of_mesh[f"{name}_seconds"] = figures.seconds
                    of_mesh[f"{name}_idle"] = figures.bubble
            for number, rank in enumerate(row["ranks"]):
                rows.append({**of_mesh, "rank": number})
                for whose in _WHOSE:
                    for kind, size in rank[whose].items():
                        rows[-1][f"{whose} {kind}"] = size
        return rows


def _total(rank: Mapping[str, Any], kinds: Sequence[str], whose: str) -> int:
    return sum(rank[whose][kind] for kind in kinds)


def _bars_of_times(
    figures: Sequence[Figures], marks: Sequence[Figures] = ()
) -> list[Bar]:
    ends = (mark.seconds for mark in marks)
    pairs = zip_longest(figures, ends)
    return [Bar(each.parts, _ms(each.seconds), end) for each, end in pairs]


def _cells(figures: Figures) -> list[str]:
    return [f"{1e3 * figures.seconds:.2f}", f"{100 * figures.bubble:.0f} %"]


def ranked(figures: Sequence[Figures]) -> list[Figures]:
    """Return figures, the fastest first."""
    return sorted(figures, key=lambda each: each.seconds)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.4g} ms"


def _size(size: float) -> str:
    return format_memory(size, "bytes")
