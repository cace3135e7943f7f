"""The comparison of device meshes as a table, and the reasons: each compares two rows
by a figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, islice
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
        return {
            "actions": (1 - self.bubble) * step,
            "idle": self.bubble * step,
            "optimiser": self.update,
        }


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
        return [
            Figures(
                row["grid"],
                median(row["seconds"]),
                row["bubble"],
                row["update_seconds"],
            )
            for row in self.rows
        ]

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
        return self._over(self.hosts, self.link) if self.hosts else []

    def _over(self, hosts: int, link: Link) -> list[Figures]:
        size, count = len(self.rows[0]["ranks"]) // hosts, self.task.microbatches
        found = []
        for row in self.rows:
            timeline, update = on_hosts(row, count, size, link), row["update_seconds"]
            found.append(
                Figures(
                    row["grid"],
                    timeline.makespan + update,
                    timeline.bubble_fraction,
                    update,
                )
            )
        return found

    @cached_property
    def differing(self) -> list[str]:
        """The meshes whose losses differ from the first one by more than rounding."""
        first, close = self.rows[0]["losses"], CLOSE[self.task.dtype]
        return [
            row["grid"]
            for row in self.rows
            if not all(
                abs(own - other) <= close * abs(other)
                for own, other in zip(row["losses"], first)
            )
        ]

    @property
    def sentences(self) -> list[str]:
        """Sentences that name the fastest mesh, the reasons, and conditions under which
        another one is better.
        """
        if self.differing:
            names = ", ".join(self.differing)
            return [
                (
                    f"Error: the losses of {names} differ from the losses of "
                    f"{self.rows[0]['grid']} by more than rounding."
                )
            ]
        if self.are_threads:
            return [
                (
                    "Thread ranks share one interpreter, so their times do not "
                    "show the "
                    "fastest mesh; run under MPI."
                )
            ]
        found = [
            *self._reasons(self.measured, "measured"),
            self._compared_with_compiled(),
            self._spread(),
        ]
        found += (
            self._reasons(
                self.on_hosts, f"simulated on {counted(self.hosts or 1, 'host')}"
            )
            if self.on_hosts
            else ()
        )
        return found + list(self._changes())

    def _reasons(self, figures: Sequence[Figures], how: str) -> Iterator[str]:
        """Yield the fastest mesh, and for each other one the part of its step with the
        largest difference.
        """
        best, *others = ranked(figures)
        yield (
            f"{best.grid} is the fastest ({how}): {1e3 * best.seconds:.4g} ms per step."
        )
        for other in others:
            cause = max(
                best.parts, key=lambda name: other.parts[name] - best.parts[name]
            )
            of_other, of_best = (
                f"{1e3 * each.parts[cause]:.4g} ms" for each in (other, best)
            )
            words = {
                "actions": f"its actions take {of_other} per rank instead of {of_best}",
                "idle": f"its ranks are idle for {of_other} instead of {of_best}",
                "optimiser": f"its optimiser takes {of_other} instead of {of_best}",
            }[cause]
            within = [
                most(self._by_name[each.grid], _WITHIN_ACTIONS, "sent")
                for each in (other, best)
            ]
            if cause == "actions" and within[0] > within[1]:
                words += (
                    f", which include sending {_size(within[0])} instead of "
                    f"{_size(within[1])}"
                )
            yield (
                f"{other.grid} takes {other.seconds / best.seconds:.2f} times as long: "
                f"{words}."
            )

    def _compared_with_compiled(self) -> str:
        """Return what compile=True saves."""
        ratios = [
            compiled / own.seconds
            for own, compiled in zip(self.measured, self.compiled)
        ]
        return (
            f"With compile=True a step takes {min(ratios):.2f} to {max(ratios):.2f} "
            "times as long."
        )

    def _spread(self) -> str:
        """Return how much the steps of one mesh differed: smaller differences between
        two meshes are noise.
        """
        spreads = [
            (max(row["seconds"]) - min(row["seconds"])) / median(row["seconds"])
            for row in self.rows
        ]
        differed = (
            "The slowest and the fastest step of one mesh differ by "
            f"{median(spreads):.0%} (median)"
        )
        return f"{differed}; smaller differences between meshes are noise."

    def _changes(self) -> Iterator[str]:
        """Yield the conditions that favour another mesh: less memory, and slower links
        between two hosts.
        """
        best, *others = ranked(self.measured)
        needs, *less = (
            most(self._by_name[each.grid], MEMORY, "memory") for each in (best, *others)
        )
        for other, needed in zip(others, less):
            if needed < _LESS * needs:
                times = f"{other.seconds / best.seconds:.2f} times the time"
                yield (
                    f"If a rank has less than {_size(needs)}: {other.grid} needs "
                    f"{_size(needed)} and {times}."
                )
                break
        hosts = max(2, self.hosts or 2)
        if len(self.rows[0]["ranks"]) % hosts or not others:
            return
        first: dict[str, float] = {}  # by winner, the bandwidth from which on it wins
        for bandwidth in _BANDWIDTHS:
            first.setdefault(
                ranked(self._over(hosts, self.link._replace(bandwidth=bandwidth)))[
                    0
                ].grid,
                bandwidth,
            )
        (fastest, _), *later = first.items()
        slower = [f"{grid} from {bandwidth:.0e} down" for grid, bandwidth in later] or [
            "also with slower links"
        ]
        where = (
            f"Simulated on {counted(hosts, 'host')} with links of {_BANDWIDTHS[0]:.0e} "
            "bytes per second"
        )
        yield f"{where}, {fastest} is the fastest; {'; '.join(slower)}."

    # -- as text, and as data ----------------------------------------------------------

    @property
    def title(self) -> str:
        """The model and the ranks in a line."""
        task = self.task
        model = (
            f"{counted(task.layers, 'block')}, {task.width} wide, "
            f"{counted(task.heads, 'head')}, {task.dtype}"
        )
        return (
            f"{model}; {task.batch} x {task.length} tokens in "
            f"{counted(task.microbatches, 'microbatch')}; {self.where}"
        )

    @property
    def notes(self) -> list[str]:
        """Notes about the figures."""
        found = [
            f"left out: {name}: {reason}." for name, reason in self.left_out.items()
        ]
        if self.hosts:
            link = (
                f"latency {self.link.latency:g} s, {self.link.bandwidth:g} bytes per "
                "second"
            )
            found.append(
                f"on hosts: {counted(self.hosts, 'host')}, one core per rank, links "
                f"between hosts: {link}."
            )
        if self.shares_cores:
            found.append(
                "The ranks share cores, so an action takes longer while other ranks "
                "compute."
            )
        return found

    def __str__(self) -> str:
        tables = [
            self._times(),
            self._sizes("sent bytes", KINDS, "sent", {OTHER: ("sent", OTHER)}),
        ]
        in_flight = {"in flight": ("promised_memory", "messages", "sums")}
        tables.append(self._sizes("held bytes", MEMORY, "memory", in_flight))
        texts = [
            wrapped("\n".join(lines), terminal_width())
            for lines in ([self.title], self.notes, self.sentences)
        ]
        return "\n\n".join(filter(None, [texts[0], *tables, *texts[1:]]))

    def _times(self) -> str:
        """Return the table of measured and simulated times, also on hosts."""
        columns = {"": self.measured, "simulated ": self.simulated}
        columns |= {"hosts ": self.on_hosts} if self.hosts else {}
        head = [f"{how}{name}" for how in columns for name in ("ms", "idle")]
        cells = [["mesh", *head[:2], "compiled", *head[2:], "loss"]]
        for row, compiled, *found in zip(self.rows, self.compiled, *columns.values()):
            times = [
                [f"{1e3 * each.seconds:.2f}", f"{100 * each.bubble:.0f} %"]
                for each in found
            ]
            measured, *others = times
            own = [*measured, f"{1e3 * compiled:.2f}", *chain(*others)]
            cells.append([row["grid"], *own, f"{row['losses'][0]:.6f}"])
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
            sizes = [
                *(most(row, [kind], whose) for kind in kinds),
                most(row, kinds, whose),
            ]
            sizes += [
                most(row, kinds, f"promised_{whose}"),
                *(most(row, own, of) for of, *own in beside.values()),
            ]
            cells.append([row["grid"], *(f"{size:,}" for size in sizes)])
        return text_table(cells, range(1, len(cells[0])), terminal_width())

    def picture(self) -> str:
        """Return times, bytes sent and bytes held as bars, in an SVG document."""
        bytes_of = {
            "sent in a step": (KINDS, "sent"),
            "held by the fullest rank": (MEMORY, "memory"),
        }
        columns = {"a step, measured": _bars_of_times(self.measured, self.simulated)}
        simulated = (
            f"on {counted(self.hosts or 1, 'host')}, {self.link.bandwidth:.1e} B/s"
        )
        columns |= {simulated: _bars_of_times(self.on_hosts)} if self.hosts else {}
        for head, (kinds, whose) in bytes_of.items():
            fullest = [
                max(row["ranks"], key=lambda rank: _total(rank, kinds, whose))
                for row in self.rows
            ]
            columns[head] = [
                Bar(
                    {_PARTS.get(kind, kind): rank[whose][kind] for kind in kinds},
                    _size(_total(rank, kinds, whose)),
                    _total(rank, kinds, f"promised_{whose}"),
                )
                for rank in fullest
            ]
        notes = [
            self.sentences[0],
            *islice(self._reasons(self.on_hosts, simulated), 1 if self.hosts else 0),
        ]
        names, marks = (
            [row["grid"] for row in self.rows],
            "simulated, or predicted by theory",
        )
        return draw_bars(
            names, columns, _LOOKS, marks=marks, title=self.title, notes=notes
        )

    @property
    def data(self) -> dict[str, Any]:
        """The whole as plain data: seconds and bytes."""
        found = {
            name: getattr(self, name)
            for name in ("where", "hosts", "left_out", "differing", "sentences")
        }
        times = {
            name: [each._asdict() for each in getattr(self, name)] for name in _HOW
        }
        return {
            "task": asdict(self.task),
            "link": self.link._asdict(),
            **found,
            **times,
            "grids": self.rows,
        }

    def flat(self) -> list[dict[str, Any]]:
        """Return a row of figures for each rank of each mesh, for CSV."""
        found = []
        for i, row in enumerate(self.rows):
            own = {name: row[name] for name in ("grid", *GridSizes._fields)} | {
                "loss": row["losses"][0]
            }
            own["compiled_seconds"] = self.compiled[i]
            for name in _HOW:
                for figures in getattr(self, name)[i : i + 1]:
                    own |= {
                        f"{name}_seconds": figures.seconds,
                        f"{name}_idle": figures.bubble,
                    }
            for number, rank in enumerate(row["ranks"]):
                sizes = {
                    f"{whose} {kind}": rank[whose][kind]
                    for whose in _WHOSE
                    for kind in rank[whose]
                }
                found.append({**own, "rank": number, **sizes})
        return found


def _total(rank: Mapping[str, Any], kinds: Sequence[str], whose: str) -> int:
    return sum(rank[whose][kind] for kind in kinds)


def _bars_of_times(
    figures: Sequence[Figures], marks: Sequence[Figures] | None = None
) -> list[Bar]:
    ends = [None] * len(figures) if marks is None else [each.seconds for each in marks]
    return [
        Bar(each.parts, f"{1e3 * each.seconds:.4g} ms", end)
        for each, end in zip(figures, ends)
    ]


def ranked(figures: Sequence[Figures]) -> list[Figures]:
    """Return figures, the fastest first."""
    return sorted(figures, key=lambda each: each.seconds)


def _size(size: float) -> str:
    return format_memory(size, "bytes")
