"""Why a table is illegal: in words that its kinds and values declare."""

import pytest
from minipipe import Schedule
from minipipe.core.flow import Flow
from minipipe.core.legality import misplaced, remarks
from minipipe.core.nouns import NOUNS, REGULAR, Noun
from minipipe.core.schedules.action import Action, ActionKind
from minipipe.core.values import KINDS, Uses


class Letter(str):
    """A kind that is not among those of `core/schedules/action.py`."""

    is_backward = is_communication = is_of_rank = False


@pytest.fixture
def keep(monkeypatch):
    """Declare KEEP, which copies weights to the next stage, and USE, which takes it."""

    def keep(site):
        is_last = site.stage == site.setting.num_stages - 1
        return None if is_last else Uses(gives=(site.value("copy", site.stage + 1),))

    def use(site):
        return Uses((site.value("copy"),))

    monkeypatch.setitem(KINDS, "KEEP", KINDS["W"]._replace(name="KEEP", uses=keep))
    monkeypatch.setitem(KINDS, "USE", KINDS["W"]._replace(name="USE", uses=use))
    monkeypatch.setitem(NOUNS, "copy", Noun("copy of weights", travels=True))


def action(cell):
    return Action(int(cell[0]), Letter(cell[1:-1]), int(cell[-1]))


def said(*rows):
    """Return the remarks about rows after 0F0 0B0 and 1F0 1B0."""
    plain = Schedule.from_text("0F0 0B0\n1F0 1B0")
    added = [
        [
            Action(int(cell[0]), Letter(cell[1:-1]), int(cell[-1]))
            for cell in row.split()
        ]
        for row in rows
    ]
    both = [(*row, *more) for row, more in zip(plain.actions, added)]
    table = plain.with_rows(Schedule, both)
    assert not misplaced(table)
    return [(one.code, one.message, one.rank) for one in remarks(Flow(table))]


def test_a_kind_that_fits_is_legal_and_nothing_misses_it(keep):
    assert said("0KEEP0", "1USE0") == said("", "") == []


def test_a_new_kind_has_words_for_what_does_not_fit(keep):
    assert said("", "1USE0") == [
        (
            "missing",
            "Rank 1, position 2: 1USE0 needs the copy of weights of stage 1, which "
            "nothing gives.",
            1,
        )
    ]
    assert said("0KEEP0", "") == [
        (
            "missing",
            "Rank 0, position 2: 0KEEP0 gives the copy of weights of stage 1, which "
            "nothing takes.",
            0,
        )
    ]
    assert said("", "1KEEP0") == [
        (
            "missing",
            "Rank 1, position 2: 1KEEP0 has nothing to take and to give here.",
            1,
        )
    ]
    assert [code for code, _, _ in said("0KEEP0", "1USE0 1USE0")] == ["duplicate"]


def test_a_value_stays_on_its_rank_unless_it_travels(keep, monkeypatch):
    monkeypatch.setitem(NOUNS, "copy", Noun("copy of weights"))
    assert said("0KEEP0", "1USE0") == [
        (
            "placement",
            "Rank 1, position 2: 1USE0 needs the copy of weights of stage 1 from "
            "another rank, where 0KEEP0 (position 2) gives it.",
            1,
        )
    ]


def test_regular_kinds_are_those_whose_declarations_need_not_vary():
    class Plain:
        num_slices = 1
        kinds = frozenset()

    own = [kind.value for kind in ActionKind]  # passes may have declared others
    assert [name for name in own if not KINDS[name].varies(Plain)] == [*REGULAR]


def test_the_earliest_cause_is_told_alone():
    table = Schedule.from_text("0F0 0O0 0L0 0R0 0U0 0B0")
    assert [one.code for one in remarks(Flow(table))] == ["order"]
    moved = Schedule.from_text("0F0 0L0 0O0 0B0 0R0")
    assert [one.message[18:] for one in remarks(Flow(moved))] == [
        ": 0L0 comes before 0O0 (position 2), which it needs.",
        ": 0B0 comes before 0R0 (position 4), which it needs.",
    ]
