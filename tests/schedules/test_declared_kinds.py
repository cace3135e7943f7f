"""A program declares a kind of instruction in its own file, and everything that reads schedules knows it."""

import pickle
import subprocess
import sys
from dataclasses import replace

import pytest

from minipipe import Costs, Schedule
from minipipe.core.flow import Flow
from minipipe.core.legality import faults
from minipipe.core.order import order
from minipipe.core.times import Rates, times
from minipipe.core.values import KINDS, NOUNS, Value
from minipipe.errors import ArgumentError, ScheduleError
from minipipe.render import draw_html, draw_svg, draw_text, perfetto_trace
from minipipe.schedules import Action, ActionKind, Kind, Noun, Span, Timeline, Uses, declare, declared


def keep(site):
    return Uses(reads=(site.value("weights"),), gives=(site.value("copy"),))


KEEP = Kind("KEEP", keep, "copy of the weights", lane="copies", time="KEEP")
COPY = {"copy": Noun("copied weights", may_stay=lambda setting, stage: True)}
TEXT = "rank 0: 0F0 0F1 0B0 0B1 0U1 0KEEP1\nrank 1: 1F0 1B0 1F1 1B1 1U1 1KEEP1\n"


@pytest.fixture
def _declared():
    with declared(KEEP, COPY):
        yield


pytestmark = pytest.mark.usefixtures("_declared")


# -- the declaration --------------------------------------------------------------------------------------------------


def test_a_declaration_lasts_until_the_end_of_its_block():
    look = Kind("LOOK", lambda site: Uses(), "look")
    with declared(look, {"sight": Noun("sight")}):
        assert Action.parse("0LOOK3").kind is ActionKind("LOOK")
        assert KINDS["LOOK"] is look and "sight" in NOUNS
    assert "LOOK" not in KINDS and "sight" not in NOUNS
    with pytest.raises(ScheduleError, match="not an action"):
        Action.parse("0LOOK3")


@pytest.mark.parametrize("name", ["keep", "KEEP2", "", "_", "KEEP IT", "ÄRA", "K-P"])
def test_a_name_that_cannot_stand_in_a_cell_is_refused(name):
    with pytest.raises(ArgumentError, match="capital letters and underscores, such as KEEP") as caught:
        declare(KEEP._replace(name=name))
    assert caught.value.code == "name" and name not in KINDS


@pytest.mark.parametrize(("kind", "nouns", "words"), [(KEEP, {}, "KEEP is"), (KEEP._replace(name="K"), COPY, "'copy'")])
def test_what_is_declared_already_is_refused(kind, nouns, words):
    with pytest.raises(ArgumentError, match=f"{words}.* declared already"):
        declare(kind, nouns)


@pytest.mark.parametrize(
    ("uses", "words"),
    [
        (lambda site: Uses(gives=(site.value("copies"),)), r"'copies', which is not declared; .*Noun\(…\)"),
        (lambda site: Uses(reads=(site.value("x", site.stage + 1),)), "'x' of stage 3 of 3"),
        (lambda site: [site.value("x")], r"returns .* for stage 0; expected Uses\(…\), or None"),
    ],
)
def test_a_declaration_that_no_table_fits_is_refused(uses, words):
    with pytest.raises(ArgumentError, match=words) as caught:
        declare(Kind("LOOK", uses, "look"))
    assert caught.value.code == "value" and "LOOK" not in KINDS


def test_its_actions_are_told_apart_by_identity_as_all_others():
    kind = ActionKind("KEEP")
    assert kind is ActionKind("KEEP") is Action.parse("1KEEP3").kind is pickle.loads(pickle.dumps(kind))
    assert (kind, kind.name, repr(kind)) == ("KEEP", "KEEP", "<ActionKind.KEEP: 'KEEP'>")
    assert not kind.is_communication and not kind.is_backward


def test_a_process_without_the_declaration_says_what_is_missing():
    program = f"import pickle; pickle.loads({pickle.dumps(Schedule.from_text(TEXT))!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("'KEEP' is not a kind of action; schedules.declare(…) adds kinds.\n")


# -- reading ----------------------------------------------------------------------------------------------------------


def test_its_cells_are_read_and_written(tmp_path):
    schedule = Schedule.from_text(TEXT)
    assert schedule.actions[1][-1] == Action(1, ActionKind("KEEP"), 1)
    assert str(schedule).endswith(TEXT.rstrip()) and "0U1,0KEEP1\n" in schedule.to_csv()
    (tmp_path / "text.csv").write_text(schedule.to_csv())
    assert Schedule.from_file(tmp_path / "text.csv") == Schedule.from_text(str(schedule)) == schedule


def test_its_cells_may_omit_the_stage():
    assert Schedule.from_text("F0 B0 U0 KEEP0") == Schedule.from_text("0F0 0B0 0U0 0KEEP0")


def test_errors_list_it_and_hint_at_it():
    with pytest.raises(ScheduleError, match=r"'0SAVE0' is not an action\. .*, O, L, KEEP\."):
        Schedule.from_text("0F0 0SAVE0")
    with pytest.raises(ScheduleError, match=r"'0keep0' is not an action\. Did you mean upper case\?"):
        Schedule.from_text("0F0 0keep0")


def test_a_kind_with_a_name_of_pytorchs_sharding_is_a_kind():
    with declared(Kind("UNSHARD", lambda site: Uses(), "gather of the weights")):
        assert Schedule.from_text("0UNSHARD0 0F0 0B0").actions[0][0].kind is ActionKind("UNSHARD")
        with pytest.raises(ScheduleError, match="shards parameters"):
            Schedule.from_text("0RESHARD0 0F0 0B0")


# -- verification and times -------------------------------------------------------------------------------------------


def reasons(text):
    """Return the faults of a table, and the cells that wait for ever."""
    flow = Flow(Schedule.from_text(text))
    blocked = order(flow).blocked.items()
    waiting = [str(flow.table.actions[rank][wait.position]) for rank, wait in blocked]
    return [fault.reason for fault in faults(flow)], waiting


def test_it_is_legal_once_behind_the_value_that_it_reads():
    assert reasons(TEXT) == ([], [])
    assert reasons("F0 B0 F1 B1 U1 KEEP0") == (["never given"], ["0KEEP0"])
    assert reasons("F0 B0 U0 KEEP0 KEEP0") == (["given twice"], [])
    assert reasons("F0 B0 KEEP0 U0") == ([], ["0KEEP0"])


def test_it_takes_its_own_time_in_its_own_lane():
    flow = Flow(Schedule.from_text("F0 B0 U0 KEEP0 F1 B1 U1 KEEP1"))
    durations = Costs(update=0.5, other={"KEEP": 4}).durations(1)
    (row,) = times(flow, Rates(durations, message_times=[0])).tasks
    assert [task[1:] for task in row] == [
        (0, 1),
        (1, 3),
        (3, 3.5),
        (3.5, 7.5),
        (3.5, 4.5),
        (4.5, 6.5),
        (6.5, 7),
        (7.5, 11.5),
    ]


def test_costs_give_its_time_by_stage_and_by_default_none(tmp_path):
    costs = Costs(other={"KEEP": [1, 3]})
    assert costs.durations(2)["KEEP"] == [1, 3] and Costs().durations(2)["KEEP"] == [0, 0]
    assert costs.cut(2).durations(4)["KEEP"] == [0.5, 0.5, 1.5, 1.5]
    assert Costs.load(costs.save(tmp_path / "costs.json")).durations(2)["KEEP"] == [1, 3]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"forward": 2}, "the times of declared kinds by name"),
        (2, "the times of declared kinds by name"),
        ({"SAVE": 2}, "No kind has the time 'SAVE'"),
        ({"KEEP": -1}, "KEEP is -1; expected finite numbers, at least 0"),
        ({"KEEP": 10**400}, "KEEP is 1000.*; expected finite numbers, at least 0"),
        ({"KEEP": True}, "KEEP is True; expected numbers"),
        ({"KEEP": [1, 2, 3]}, "KEEP has 3 values for 2 stages"),
        ({"KEEP": "2"}, "KEEP is '2'; expected numbers"),
    ],
)
def test_other_costs_that_fit_nothing_are_refused(other, words):
    with pytest.raises(ScheduleError, match=words) as caught:
        Costs(other=other).durations(2)
    assert caught.value.code == "costs"


@pytest.mark.parametrize("other", ["3", '{"KEEP": "2"}', '{"KEEP": [1, 2], "SAVE": [1]}'])
def test_a_file_with_other_costs_that_fit_nothing_is_refused(other, tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(f'{{"format": "minipipe costs", "version": 1, "other": {other}}}')
    with pytest.raises(ScheduleError, match="is not a file of costs"):
        Costs.load(path)


# -- waits ------------------------------------------------------------------------------------------------------------


def use(site):
    return Uses(reads=(site.value("copy"),))


def send_copy(site):
    return Uses(gives=(Value("there", site.stage + 1, site.microbatch),) if site.stage == 0 else ())


def spans_of(*cells):
    return tuple(Span(Action.parse(cell), start, end) for cell, start, end in cells)


def test_what_waits_for_its_copy_says_so():
    with declared(Kind("USE", use, "use of the copy"), {}):
        spans = spans_of(("0F0", 0, 1), ("0B0", 1, 3), ("0U0", 3, 4), ("0USE0", 6, 7))
        kept = Timeline("kept", (spans,), (1,), copies=(spans_of(("0KEEP0", 4, 6)),))
        (wait,) = kept.idle[0]
        assert (wait.start, wait.end, wait.cause, str(wait.awaited)) == (4, 6, "waiting", "0KEEP0")
        assert [str(span.action) for _, span in kept.critical_path] == ["0F0", "0B0", "0U0", "0USE0"]


def test_what_waits_for_its_message_says_so():
    away = Kind("AWAY", send_copy, "copy to the next rank")
    taker = Kind("TAKER", lambda site: Uses(takes=(site.value("there"),)), "use of the copy")
    with declared(away, {"there": Noun("copied weights", travels=True)}), declared(taker, {}):
        rows = spans_of(("0F0", 0, 1), ("0AWAY0", 1, 2)), spans_of(("1F0", 1, 2), ("1TAKER0", 4, 5))
        sent = Timeline("sent", rows, (1, 1), message_times=(0.0, 2.0))
        wait = sent.idle[1][1]
        assert (wait.start, wait.end, wait.cause, wait.source, str(wait.awaited)) == (2, 4, "waiting", 0, "0AWAY0")
        assert [str(message.used_by) for message in sent.messages] == ["1F0", "1TAKER0"]


# -- drawings ---------------------------------------------------------------------------------------------------------


def timeline(has_lane):
    """Return a timeline in which KEEP is one of the actions, or beside them."""
    ends = {"0F0": 2.0, "0B0": 4.0, "0U0": 6.0}
    spans = tuple(Span(Action.parse(cell), end - 2, end) for cell, end in ends.items())
    kept = Span(Action.parse("0KEEP0"), 6.0, 10.0)
    following = Span(Action.parse("0F1"), 6.0 if has_lane else 10.0, 12.0)
    if has_lane:
        return Timeline("kept", ((*spans, following),), (1,), copies=((kept,),))
    return Timeline("kept", ((*spans, kept, following),), (1,))


def test_text_draws_it_with_its_name_its_words_and_a_fill():
    row, legend, *_ = draw_text(timeline(has_lane=False), width=60).splitlines()
    assert row == "rank 0 F0------B0======U0######KEEP0***********F1------"
    assert "KEEP* copy of the weights," in legend
    one_lane, other, *_ = draw_text(timeline(has_lane=True), width=60).splitlines()
    assert one_lane == "rank 0 F0------B0======U0######F1----------------------"
    assert other == "  keep                         KEEP0***********"


@pytest.mark.parametrize("has_lane", [False, True])
@pytest.mark.parametrize("draw", [draw_svg, draw_html, perfetto_trace])
def test_pictures_draw_it_with_its_name_and_its_words(draw, has_lane):
    drawn = draw(timeline(has_lane))
    assert "KEEP copy of the weights" in drawn or '"kind": "copy of the weights"' in drawn


def test_the_timeline_ends_with_it():
    late = Span(Action.parse("0KEEP0"), 6.0, 14.0)
    assert replace(timeline(has_lane=True), copies=((late,),)).end == 14


def test_a_picture_gives_it_a_colour():
    drawn = draw_svg(timeline(has_lane=False))
    assert '<g class="KEEP" fill="#c6b38b">' in drawn
    assert "0KEEP0: copy of the weights of microbatch 0 on stage 0, 6 to 10 units" in drawn
