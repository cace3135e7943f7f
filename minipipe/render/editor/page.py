"""The page of the editor: the player, with controls for editing around it."""

from __future__ import annotations

from string import Template

from minipipe.io import escaped
from minipipe.render.editor.answering import Editor
from minipipe.render.editor.puzzles import PUZZLES
from minipipe.render.html import More, as_json, page_of, resource
from minipipe.schedules.registry import REGISTRY, TRADES

_ROOM = "minipipe.render.editor"
# What replicas, slices, updates or forwards alone are for cannot be placed by hand.
_OTHERS = ("chimera", "bitpipe", "dualpipe", "pipedream", "vertical-sync", "2bw", "paci", "seq1f1b", "forward-only")

_STARTING = {
    "http": "Starting…",
    "worker": "Python starts in this page: in a few seconds you can edit. The player works already.",
}


def draw_editor(editor: Editor, transport: str, home: str = "") -> str:
    """Return a page that shows the draft of an editor at once, and then asks for changes.

    Parameters
    ----------
    editor : Editor
        The one that answers, or another in the same state.
    transport : str
        ``"http"``: messages are posted to ``ask``, beside the page. ``"worker"``: to the worker ``worker.js``.
    home : str
        The address of the site that the page belongs to, for a link.

    Examples
    --------
    >>> page = draw_editor(Editor(), "http")
    >>> "Rank 3 gets its first input" in page, "Save" in page
    (True, True)
    """
    first = editor.do_show()
    above, beside, below = (
        Template(resource(_ROOM, "editor.html"))
        .substitute(
            names="".join(map(_option, (name for name in REGISTRY if name not in _OTHERS))),
            puzzles="".join(
                f'<option value="{n}">{n}: {it.num_ranks} ranks, {it.num_microbatches} microbatches</option>'
                for n, it in enumerate(PUZZLES, 1)
            ),
            home=f'<p class="home"><a href="{escaped(home)}">minipipe</a></p>' if home else "",
            starting=_STARTING[transport],
            first=as_json({**first, "player": None, "transport": transport}),
        )
        .split("<!-- cut -->")
    )
    more = More(
        above,
        beside,
        below,
        style=resource(_ROOM, "editor.css"),
        scripts=(resource(_ROOM, "desk.js"), resource(_ROOM, "editor.js")),
        policy="; connect-src 'self'; worker-src 'self'",
    )
    return page_of((editor.sight.panel,), first["player"], "Build a schedule", (), more)


def _option(name: str) -> str:
    selected = " selected" if name == "1f1b" else ""
    return f'<option title="{escaped(TRADES[name])}"{selected}>{name}</option>'
