"""Rows of cells as a table: text with aligned columns, or HTML for a notebook."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from minipipe.render.lettering import escaped


def text_table(rows: Sequence[Sequence[str]], right: Collection[int]) -> str:
    """Return rows with aligned columns, two blanks between them.

    Parameters
    ----------
    rows : sequence of sequence of str
        The head first.
    right : collection of int
        The columns that are aligned on the right.

    Examples
    --------
    >>> print(text_table([("name", "size"), ("gpipe", "4")], right={1}))
    name   size
    gpipe     4
    """
    widths = [max(map(len, column)) for column in zip(*rows)]
    sides = [">" if i in right else "<" for i in range(len(widths))]
    return "\n".join(
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths)).rstrip() for row in rows
    )


def html_table(rows: Sequence[Sequence[str]], right: Collection[int]) -> str:
    """Return the same as an HTML table.

    Examples
    --------
    >>> html_table([("a",), ("<b>",)], right=())[-38:]
    't">&lt;b&gt;</td></tr></tbody></table>'
    """
    body = "".join(_html_row(row, "td", right) for row in rows[1:])
    return f"<table><thead>{_html_row(rows[0], 'th', right)}</thead><tbody>{body}</tbody></table>"


def _html_row(row: Sequence[str], tag: str, right: Collection[int]) -> str:
    sides = ("right" if i in right else "left" for i in range(len(row)))
    cells = (f'<{tag} style="text-align:{side}">{escaped(cell)}</{tag}>' for cell, side in zip(row, sides))
    return f"<tr>{''.join(cells)}</tr>"
