"""The building block in the editor: one microbatch, placed by hand and repeated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from minipipe.errors import ScheduleError
from minipipe.render.editor.draft import Draft, check_size
from minipipe.render.palette import fill_of, shade
from minipipe.schedules.placements import stages_by_rank
from minipipe.schedules.registry import build
from minipipe.schedules.sequential import one_microbatch
from minipipe.schedules.simulation.building_block import BuildingBlock, cell
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.simulator import simulate

# Named schedules that repeat a block on any number of ranks.
PATTERNS = ("1f1b", "eager-1f1b", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min")


def block_like(draft: Draft, name: str, costs: Costs) -> BuildingBlock:
    """Return the block of a named schedule on the ranks of a draft or, without a name,
    one microbatch that never waits, at the shortest interval.
    """
    ranks = len(draft.rows)
    if name:
        check_size(ranks, 12 * ranks)
        return BuildingBlock.of(build(name, ranks, 12 * ranks), costs)
    timeline = simulate(one_microbatch(draft.placement, ranks), costs)
    starts = {action: start for row in timeline.spans for action, start, _ in row}
    block = BuildingBlock(draft.placement, starts, timeline.makespan, costs)
    return replace(block, interval=block.work)


def block_data(block: BuildingBlock) -> dict[str, Any]:
    """Return what the page shows of a block: text, boxes, predicted memory, and whether
    it can be repeated.
    """
    work = f"In each {block.interval:g} {block.costs.unit}"
    said = f"It can be repeated. {work} the fullest rank works for {block.work:g}."
    problem = ""
    try:
        block.check()
    except ScheduleError as error:
        problem = error.problems[0].message
    rows = []
    memory = []
    by_rank = stages_by_rank(block.placement, len(block.spans))
    for rank, stages in enumerate(by_rank):
        boxes = []
        for action, start, end in block.spans[rank]:
            fill = shade(fill_of(action.kind), stages.index(action.stage))
            boxes.append((cell(action), start, end - start, *fill))
        rows.append(boxes)
        lives = [block.lifespans[stage] for stage in stages]
        parts = " + ".join(f"{life:g} / {block.interval:g}" for life in lives)
        mean = f"{sum(lives) / block.interval:.3g}"
        memory.append((f"rank {rank}", parts, mean, block.peak_activations[rank]))
    return {
        "text": block.to_text(),
        "interval": block.interval,
        "length": block.length,
        "rows": rows,
        "memory": memory,
        "said": said,
        "problem": problem,
    }
