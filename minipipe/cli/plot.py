"""The picture of ``minipipe schedules --plot``: bubble over peak memory, with bounds and with what a search finds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path

from minipipe.cli.options import misuse
from minipipe.errors import ArgumentError, ScheduleCode
from minipipe.io import write_whole
from minipipe.render.files import PICTURES, check_ending, converted
from minipipe.render.svg.tradeoff import draw_tradeoff
from minipipe.schedules.analysis.workload import Workload
from minipipe.schedules.simulation.comparison import PLACEMENTS, Choice, Tradeoff, searched_choice, tradeoff
from minipipe.schedules.simulation.costs import Costs


def check_plot(path: Path) -> None:
    """Refuse a file that no picture can be written to, before anything is computed.

    Raises
    ------
    ScheduleError
        Code ``parameters``.
    """
    try:
        check_ending(path, PICTURES)
    except ArgumentError as error:
        raise misuse(ScheduleCode.PARAMETERS, str(error)) from None


def write_plot(
    path: Path, num_ranks: int, batches: Sequence[int], costs: Costs, notes: Sequence[str], seconds: float | None
) -> None:
    """Draw a panel for each number of microbatches, and search for better schedules if there are seconds for it."""
    drawn = [tradeoff(num_ranks, num_microbatches, costs) for num_microbatches in batches]
    if seconds is not None:
        share = seconds / max(1, sum(len(list(_questions(of_batch, costs))) for of_batch in drawn))
        drawn = [of_batch._replace(choices=(*of_batch.choices, *_found(of_batch, costs, share))) for of_batch in drawn]
    write_whole(path, converted(draw_tradeoff(*drawn, notes=notes), path.suffix.lower()))


def _found(of_batch: Tradeoff, costs: Costs, seconds: float) -> Iterator[Choice]:
    """Yield what a search of so many seconds finds for each placement and limit of memory."""
    from minipipe.tuning.weighing import searched_schedule

    for workload in _questions(of_batch, costs):
        found = searched_schedule(workload, seconds)
        if found is not None:
            yield searched_choice(found, costs)


def _questions(of_batch: Tradeoff, costs: Costs) -> Iterator[Workload]:
    """Yield a workload for memory of one microbatch, two, and so on, as long as more lowers the bound."""
    share = max(costs.memory(of_batch.num_ranks).activation)
    for name, corners in of_batch.bounds.items():
        placement = PLACEMENTS[name](of_batch.num_ranks)
        own = costs.cut(len(placement) // of_batch.num_ranks)
        most = max((memory for memory, _ in corners), default=0.0)
        for count in range(1, 1 + ceil(most / share)):
            yield own.workload(placement, of_batch.num_microbatches, count * share)
