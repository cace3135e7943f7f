"""The page of the editor: the player, with controls for editing around it."""

from __future__ import annotations

from string import Template

from minipipe.io import escaped
from minipipe.render.editor.answering import Editor
from minipipe.render.editor.block import PATTERNS
from minipipe.render.editor.puzzles import PUZZLES
from minipipe.render.html import More, as_json, file_text, page_of
from minipipe.schedules.registry import REGISTRY, TRADES

# Schedules with replicas, slices, updates or forwards alone cannot be edited by hand.
_OTHERS = (
    "chimera",
    "bitpipe",
    "dualpipe",
    "pipedream",
    "vertical-sync",
    "2bw",
    "paci",
    "seq1f1b",
    "forward-only",
)

_SCRIPTS = ("editor/desk.js", "editor/block.js", "editor/editor.js")
_STARTING = {
    "http": "Starting…",
    "worker": (
        "Python is starting in this page. The player works now, and you can edit in a "
        "few seconds."
    ),
}


def draw_editor(editor: Editor, transport: str, home: str = "") -> str:
    """Return a page that first shows the draft of an editor, and then sends it each
    change.

    Parameters
    ----------
    editor : Editor
        The editor that answers, or another one in the same state.
    transport : str
        ``"http"``: the page posts messages to the address ``ask``. ``"worker"``: it
        sends them to ``worker.js``.
    home : str
        The address of the site that the page links to, and whose theme it has.

    Examples
    --------
    >>> page = draw_editor(Editor(), "http")
    >>> "Rank 3 gets its first input" in page, "Save" in page
    (True, True)
    """
    first = editor.do_show()
    puzzles = []
    for n, it in enumerate(PUZZLES, 1):
        text = f"{n}: {it.num_ranks} ranks, {it.num_microbatches} microbatches"
        puzzles.append(f'<option value="{n}">{text}</option>')
    link = ""
    if home:
        link = f'<p class="home"><a href="{escaped(home)}">minipipe</a></p>'
        link += f"<script>\n{file_text('editor/theme.js')}\n</script>"
    whole = Template(file_text("editor/editor.html")).substitute(
        names=_options(editor.draft.name),
        puzzles="".join(puzzles),
        patterns="".join(f"<option>{name}</option>" for name in PATTERNS),
        home=link,
        starting=_STARTING[transport],
        first=as_json({**first, "player": None, "transport": transport}),
    )
    above, beside, below = whole.split("<!-- cut -->")
    more = More(
        above,
        beside,
        below,
        style=file_text("editor/editor.css"),
        scripts=tuple(map(file_text, _SCRIPTS)),
        policy="; connect-src 'self'; worker-src 'self'",
    )
    return page_of((editor.sight.panel,), first["player"], "Build a schedule", (), more)


def _options(shown: str) -> str:
    """Return the schedules to choose from; the one that is shown is selected, or 1F1B
    if it has no name.
    """
    names = [name for name in REGISTRY if name not in _OTHERS]
    chosen = shown if shown in names else "1f1b"
    options = []
    for name in names:
        selected = " selected" * (name == chosen)
        title = f'title="{escaped(TRADES[name])}"{selected}'
        options.append(f"<option {title}>{name}</option>")
    return "".join(options)
