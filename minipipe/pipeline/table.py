"""A pipeline as a table: which layer is where, and how large."""

from __future__ import annotations

from collections.abc import Sequence

from minipipe.nn import Sequential

__all__ = ["layer_table"]


def layer_table(model: Sequential, partition: Sequence[range], placement: Sequence[int]) -> str:
    """Return a table with a line for each layer: stage, rank, parameters and bytes.

    Parameters
    ----------
    model : Sequential
        Its parameters need no values.
    partition : sequence of range
        The layers of each stage.
    placement : sequence of int
        The rank of each stage.
    """
    rows = [("layer", "", "stage", "rank", "parameters", "bytes")]
    total_size = total_bytes = 0
    for stage, layers in enumerate(partition):
        for i in layers:
            size, nbytes = model[i].num_parameters, sum(p.nbytes for p in model[i].parameters())
            rows.append((str(i), model[i].brief(), str(stage), str(placement[stage]), f"{size:,}", f"{nbytes:,}"))
            total_size, total_bytes = total_size + size, total_bytes + nbytes
    rows.append(("", "", "", "all", f"{total_size:,}", f"{total_bytes:,}"))
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    return "\n".join(_line(row, widths) for row in rows)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    number, name, *figures = row
    cells = [number.rjust(widths[0]), name.ljust(widths[1])]
    cells += [cell.rjust(width) for cell, width in zip(figures, widths[2:])]
    return "  ".join(cells).rstrip()
