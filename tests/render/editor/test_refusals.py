"""A refused message changes nothing, and after an accepted one the page can be
drawn.
"""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import minipipe.passes.kinds  # noqa: F401  a text that is refused would declare them
from minipipe import schedules
from minipipe.render.editor import Editor, draw_editor
from minipipe.render.editor.draft import Draft
from minipipe.render.editor.sharing import packed
from tests.launch import covering
from tests.strategies import examples

COSTS = [
    *(
        "",
        "F=2,I=1,W=1",
        "F=1:2,I=1,W=1:1",
        "F=1:2:3:4",
        "hosts=0:1",
        "hosts=2",
        "hosts=1:1",
        "hosts=0:0:1:1,cores=1",
    ),
    *(
        "F=0,I=0,W=0",
        "F=1e-320",
        "F=1e300",
        "F=1e307",
        "F=1e308",
        "latency=1e300,F=1e308",
        "latency=1e308",
        "F=1e999",
    ),
    *(
        "F=nan",
        "F=-1",
        "F=x",
        "F",
        "=",
        "bandwidth=0",
        "bandwidth=1e-320,message_size=1",
        "overlap=2",
        "update=1",
    ),
    *(
        "activation=3",
        "activation=1e308",
        "cores=1",
        "cores=0",
        "overhead=1e308",
        "gradient_size=1",
        "F=1,F=2",
        "\ud800",
        "F=" + "9" * 5000,
    ),
]
TEXTS = [
    *(
        "0F0 0F1\n1F0",
        "0F0 0B0\n1B0 1F0",
        "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1",
        "0F0 0B0",
        "",
        "0F0,\x00",
        "rank 1: 0F0",
    ),
    *(
        '"0F0',
        "0F" + "9" * 5000,
        "0F999999999",
        "7F0",
        "\ud800",
        "x" * 200_000 + ",",
        "0F0 0F1 0I0 0W0 0I1 0W1",
    ),
    *("0F@0 0B@5\n1F@1 1B@2", "0F@0 0B@1e308\n1F@1 1B@2", "0F@0 0B@1"),
    *("0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1\n2F0 2B0 2F1 2B1", "(0F1;0B0)OVERLAP_F_B"),
]
FRAGMENTS = [
    packed(Draft.of(schedules.gpipe(2, 2)), costs, limit, puzzle)
    for costs, limit, puzzle in [
        ("F=2", None, 0),
        ("", 1, 0),
        ("hosts=2", None, 0),
        ("F=1e308", 2, 0),
        ("", None, 1),
    ]
]
NUMBERS = [-1, 0, 1, 2, 3, 4, 10**6, 10**400, 0.5, 1e308, True, None, "1", [], {}]
VALUES = {
    "name": [
        "gpipe",
        "1f1b",
        "GPipe",
        "zb-v",
        "interleaved-1f1b",
        "chimera",
        "nosuch",
        "",
        [],
        None,
        "\ud800",
    ],
    "costs": COSTS,
    "text": TEXTS,
    "fragment": [*FRAGMENTS, FRAGMENTS[0][:-5], "", "é", "\ud800", "AAAA"],
    "action": [
        "0F0",
        "1F0",
        "0B0",
        "0I0",
        "0W0",
        "1B1",
        "x",
        "0F" + "9" * 5000,
        3,
        None,
    ],
    "kind": ["F", "B", "I", "W", "x", [], None],
    "form": ["csv", "txt", "svg", "exe", "", [], "\ud800"],
    "halves": [True, False, "no", None],
    "again": [True, False],
    "seconds": [1e-3, 0, -1, 2, "1", None],
    "said": ["", "anything", 3],
}
ARGUMENTS = {
    "show": ["said"],
    "open": ["name", "ranks", "microbatches", "chunks"],
    "puzzle": ["number"],
    "shared": ["fragment"],
    "place": ["rank", "action", "kind"],
    "back": ["rank"],
    "cut": ["time"],
    "empty": [],
    "text": ["text"],
    "undo": [],
    "redo": [],
    "halves": ["halves"],
    "costs": ["costs"],
    "limit": ["limit"],
    "search": ["seconds", "again"],
    "par": ["seconds", "again"],
    "pattern": ["name"],
    "block": ["text", "interval"],
    "repeat": ["text", "interval", "microbatches"],
    "take": [],
    "share": [],
    "export": ["form"],
    "save": [],
}


def test_the_messages_below_are_all_that_there_are():
    assert {
        name.removeprefix("do_") for name in vars(Editor) if name.startswith("do_")
    } == set(ARGUMENTS)


@st.composite
def messages(draw):
    """A message of the protocol: mostly with all its arguments, each valid or not."""
    verb = draw(st.sampled_from(list(ARGUMENTS)))
    names = ARGUMENTS[verb]
    if draw(st.integers(0, 9)) == 0:
        names = draw(st.lists(st.sampled_from([*VALUES, "rank", "nosuch"]), max_size=3))
    sizes = [2, 2, 2, 4, *NUMBERS]  # or most would be refused at once
    return {
        "do": verb,
        **{name: draw(st.sampled_from(VALUES.get(name, sizes))) for name in names},
    }


def state(editor):
    """All that is kept, and all that is shown, but for how far a search is."""
    kept = {
        name: value
        for name, value in vars(editor).items()
        if name not in ("_sight", "_par", "search")
    }
    return kept, editor.ask('{"do":"show"}'), draw_editor(editor, "http")


def start(file=None):
    return Editor(Draft.of(schedules.one_f_one_b(2, 2)), file=file)


@examples(400)
@given(st.lists(messages(), max_size=12))
def test_a_refused_message_changes_nothing_and_an_accepted_one_leaves_a_page(sent):
    editor, before = start(), state(start())
    for message in sent:
        answer = json.loads(editor.ask(json.dumps(message)))
        after = state(editor)
        assert not answer["isRefused"] or (answer["said"] and after == before), message
        before = after


@pytest.mark.parametrize(
    ("costs", "opened"), covering(COSTS, ["gpipe", "1f1b"], strength=1)
)
def test_costs_are_taken_whole_or_not_at_all(costs, opened):
    """The story: ``hosts=2`` was refused and kept; from then on the page was an empty
    reply.
    """
    editor = Editor(Draft.of(schedules.build(opened, 4, 4)))
    before = state(editor)
    answer = json.loads(editor.ask(json.dumps({"do": "costs", "costs": costs})))
    if answer["isRefused"]:
        assert state(editor) == before
    else:
        assert editor.costs_text == costs and "player" in answer and state(editor)


@pytest.mark.parametrize(
    "message",
    [
        {"do": "open", "name": "gpipe", "ranks": 3, "microbatches": 2},
        {"do": "text", "text": "0F0 0B0\n1F0 1B0\n2F0 2B0"},
        {"do": "undo"},
        {"do": "redo"},
        {
            "do": "shared",
            "fragment": packed(Draft.of(schedules.gpipe(3, 2)), "hosts=0:1", None, 0),
        },
    ],
)
def test_a_draft_of_a_size_that_the_costs_do_not_fit_is_refused_and_not_kept(message):
    editor = start()
    for ranks in (3, 2, 3):  # so that drafts of another size can be undone and redone
        text = schedules.gpipe(ranks, 2).to_text()
        assert not editor.answer({"do": "text", "text": text})["isRefused"]
    editor.answer({"do": "undo"})
    assert not editor.answer({"do": "costs", "costs": "hosts=0:1"})["isRefused"]
    before = state(editor)
    answer = editor.answer(message)
    assert (
        answer["isRefused"] and "3 ranks" in answer["said"] and state(editor) == before
    )


def test_an_error_that_nobody_expected_changes_nothing_either(monkeypatch):
    editor = start()
    before = state(editor)
    monkeypatch.setattr(Editor, "_named_like", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        editor.answer({"do": "text", "text": TEXTS[2]})
    monkeypatch.undo()
    assert state(editor) == before


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "Expecting property name"),
        ("[]", "expected a mapping"),
        ('{"do":"show","do":"empty"}', "'do' occurs twice"),
        ('{"do":"cut","time":NaN}', "The time is nan; expected a number"),
        ('{"do":"search","seconds":NaN}', "seconds is nan"),
        ('{"do":"limit","limit":Infinity}', "limit is inf; expected a whole number"),
        ('{"do":"cut","time":' + "9" * 5000 + "}", "Exceeds the limit"),
        ("[" * 100_000, "nested too deeply"),
        ("\ufeff{}", "BOM"),
    ],
)
def test_a_message_that_is_no_strict_json_is_refused(text, reason):
    editor = start()
    before = state(editor)
    answer = json.loads(editor.ask(text))
    assert answer["isRefused"] and reason in answer["said"] and state(editor) == before


def test_no_figure_of_a_page_is_infinite():
    for costs in COSTS:
        editor = start()
        if not editor.answer({"do": "costs", "costs": costs})["isRefused"]:
            assert math.isfinite(editor.sight.end) and math.isfinite(
                editor.sight.bound.value
            )
