"""A pipeline as a table: which layer is where, and how large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from minipipe.nn import Sequential

__all__ = ["layer_table", "layer_table_html"]

_HEAD = ("layer", "", "stage", "rank", "parameters", "bytes")


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
    rows = [_HEAD, *_rows(model, partition, placement)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    return "\n".join(_line(row, widths) for row in rows)


def layer_table_html(model: Sequential, partition: Sequence[range], placement: Sequence[int]) -> str:
    """Return the same table for a notebook."""
    body = "".join(_html_row(row, "td") for row in _rows(model, partition, placement))
    return f"<table><thead>{_html_row(_HEAD, 'th')}</thead><tbody>{body}</tbody></table>"


def _rows(model: Sequential, partition: Sequence[range], placement: Sequence[int]) -> Iterator[tuple[str, ...]]:
    """Yield what stands in the columns, by layer, and then for all."""
    total_size = total_bytes = 0
    for stage, layers in enumerate(partition):
        for i in layers:
            size, nbytes = model[i].num_parameters, sum(p.nbytes for p in model[i].parameters())
            yield str(i), model[i].brief(), str(stage), str(placement[stage]), f"{size:,}", f"{nbytes:,}"
            total_size, total_bytes = total_size + size, total_bytes + nbytes
    yield "", "", "", "all", f"{total_size:,}", f"{total_bytes:,}"


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    number, name, *figures = row
    cells = [number.rjust(widths[0]), name.ljust(widths[1])]
    cells += [cell.rjust(width) for cell, width in zip(figures, widths[2:])]
    return "  ".join(cells).rstrip()


def _html_row(row: Sequence[str], tag: str) -> str:
    sides = ("right", "left", *["right"] * (len(row) - 2))
    cells = (f'<{tag} style="text-align:{side}">{escape(cell)}</{tag}>' for cell, side in zip(row, sides))
    return f"<tr>{''.join(cells)}</tr>"
