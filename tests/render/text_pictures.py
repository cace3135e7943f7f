"""Drawings as rows and captions."""

import re

from minipipe.render import draw_text


def picture(drawn, width=80):
    """Return the rows without their labels, what goes on below put behind, and the
    caption behind the legend.
    """
    lines = draw_text(drawn, width=width).splitlines()
    last = max(i for i, line in enumerate(lines) if line.startswith("rank"))
    assert all(len(line) <= width for line in lines[: last + 1])
    assert all(
        len(line) <= max(80, width) or " " not in line.strip()
        for line in lines[last + 1 :]
    )
    end_of_legend = next(i for i, line in enumerate(lines) if "microbatch 3" in line)
    caption = re.split(r"\n(?=\()", "\n".join(lines[end_of_legend + 1 :]))[0]
    caption = caption.replace("\n  ", " ")
    rows = {}
    for line in lines:
        if line.startswith("rank"):
            _, rank, cells = line.split(" ", 2)
            rows.setdefault(int(rank), []).append(cells)
    assert list(rows) == list(range(len(rows)))
    return ["".join(cells) for cells in rows.values()], caption
