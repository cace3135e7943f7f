"""A program declares a kind of instruction in its own file, and everything that reads
schedules knows it.
"""

import pickle
import subprocess
import sys

import pytest

from minipipe import Costs, Plan, Schedule, nn, simulate, verify
from minipipe.core.values import KINDS, NOUNS
from minipipe.errors import ArgumentError, ScheduleError
from minipipe.render import draw_html, draw_svg, draw_text, perfetto_trace
from minipipe.render.stepper.frame import Frame
from minipipe.render.stepper.walkthrough import Walkthrough
from minipipe.schedules import (
    Action,
    ActionKind,
    Kind,
    Meeting,
    Noun,
    Uses,
    declare,
    declared,
)


def keep(site):
    return Uses(reads=(site.value("weights"),), gives=(site.value("copy"),))


KEEP = Kind("KEEP", keep, "copy of the weights", lane="copies", time="KEEP")
COPY = {"copy": Noun("copied weights", may_stay=lambda setting, stage: True)}
STAY = Kind(
    "STAY",
    lambda site: Uses(reads=keep(site).reads),
    "copy of the weights",
    time="KEEP",
)
TEXT = "rank 0: 0F0 0F1 0B0 0B1 0U1 0KEEP1\nrank 1: 1F0 1B0 1F1 1B1 1U1 1KEEP1\n"


@pytest.fixture
def _declared():
    with declared(KEEP, COPY), declared(STAY):
        yield


pytestmark = pytest.mark.usefixtures("_declared")


# -- the declaration -------------------------------------------------------------------


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
    with pytest.raises(
        ArgumentError, match="capital letters and underscores, such as KEEP"
    ) as caught:
        declare(KEEP._replace(name=name))
    assert caught.value.code == "name" and name not in KINDS


@pytest.mark.parametrize(
    ("kind", "nouns", "words"),
    [(KEEP, {}, "KEEP is"), (KEEP._replace(name="K"), COPY, "'copy'")],
)
def test_what_is_declared_already_is_refused(kind, nouns, words):
    with pytest.raises(ArgumentError, match=f"{words}.* declared already"):
        declare(kind, nouns)


@pytest.mark.parametrize(
    ("uses", "words"),
    [
        (
            lambda site: Uses(gives=(site.value("copies"),)),
            r"'copies', which is not declared; .*Noun\(…\)",
        ),
        (
            lambda site: Uses(reads=(site.value("x", site.stage + 1),)),
            "'x' of stage 3 of 3",
        ),
        (lambda site: Uses(reads=(site.value("x", 1),)), "'x' of stage 1 of 1"),
        (
            lambda site: Uses(reads=(site.value("x").of(1),)),
            "'x' of microbatch 1 for microbatch 0",
        ),
        (
            lambda site: Uses(reads=(site.value("x"), site.value("x"))),
            "name a value twice",
        ),
        (
            lambda site: Uses(temporary="sight"),
            "temporary value 'sight', which is not declared",
        ),
        (
            lambda site: [site.value("x")],
            r"returns .* for stage 0; expected Uses\(…\), or None",
        ),
        (
            lambda site: site.steps,
            (
                "The uses of LOOK fails for stage 0 of 3: AttributeError: .*'steps'; "
                "expected a func"
            ),
        ),
        (lambda: Uses(), "TypeError: .* expected a function of a Site"),
    ],
)
def test_a_declaration_that_no_table_fits_is_refused(uses, words):
    with pytest.raises(ArgumentError, match=words) as caught:
        declare(Kind("LOOK", uses, "look"))
    assert caught.value.code == "value" and "LOOK" not in KINDS


@pytest.mark.parametrize(
    "values",
    [
        lambda site: site.value("x"),
        lambda site: [site.value("x")],
        lambda site: ("x",),
        lambda site: "x",
    ],
)
def test_values_that_are_in_no_tuple_are_refused(values):
    with pytest.raises(
        ArgumentError,
        match=r"reads of LOOK .*; expected a tuple of values, such as \(site",
    ) as caught:
        declare(Kind("LOOK", lambda site: Uses(reads=values(site)), "look"))
    assert caught.value.code == "type"


@pytest.mark.parametrize(
    ("kind", "nouns", "words"),
    [
        ("LOOK", {}, r"The kind is 'LOOK'; expected a Kind, such as Kind\("),
        (KEEP._replace(name=3), {}, "The name of the kind 3 is 3; expected text"),
        (KEEP._replace(time=2), {}, "The time of the kind 'KEEP' is 2; expected text"),
        (
            KEEP._replace(lane=None),
            {},
            "The lane of the kind 'KEEP' is None; expected text",
        ),
        (
            KEEP._replace(uses=Uses()),
            {},
            "The uses of the kind 'KEEP' is Uses.*; expected a function",
        ),
        (
            KEEP._replace(meets=2),
            {},
            "The meets of the kind 'KEEP' is 2; expected a function, or None",
        ),
        (
            KEEP,
            Noun("sight"),
            (
                r"The argument nouns is Noun.*; expected nouns by name, such as "
                r"{'copy': Noun"
            ),
        ),
        (
            KEEP,
            {"sight": "sight"},
            r"The value 'sight' is 'sight'; expected nouns by name",
        ),
        (KEEP, {2: Noun("sight")}, r"The name of a value is 2; expected nouns by name"),
        (
            KEEP,
            {"sight": Noun("sight", may_stay=True)},
            "The may_stay of the value 'sight' is True; expected a func",
        ),
    ],
)
def test_parts_of_another_type_are_refused(kind, nouns, words):
    with pytest.raises(ArgumentError, match=words) as caught:
        declare(kind, nouns)
    assert caught.value.code == "type" and "sight" not in NOUNS


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (
            {"message": "send"},
            (
                "LOOK is declared as a message, 'send'; a value whose Noun has "
                "travels=True"
            ),
        ),
        (
            {"meets": lambda site: (("look",), 2)},
            r"is \(\('look',\), 2\); expected a Meeting\(key, size\)",
        ),
        (
            {"meets": lambda site: site.key},
            "The meets of LOOK fails for stage 0 of 3: AttributeError",
        ),
        (
            {"meets": lambda site: Meeting((), 2), "lane": "look"},
            "meets others on the lane 'look'; expected the lane",
        ),
    ],
)
def test_meetings_that_nothing_can_time_are_refused(parts, words):
    with pytest.raises(ArgumentError, match=words):
        declare(Kind("LOOK", lambda site: Uses(), "look", **parts))


def test_its_actions_are_told_apart_by_identity_as_all_others():
    kind = ActionKind("KEEP")
    assert (
        kind
        is ActionKind("KEEP")
        is Action.parse("1KEEP3").kind
        is pickle.loads(pickle.dumps(kind))
    )
    assert (kind, kind.name, repr(kind)) == (
        "KEEP",
        "KEEP",
        "<ActionKind.KEEP: 'KEEP'>",
    )
    assert not kind.is_communication and not kind.is_backward


def test_a_process_without_the_declaration_says_what_is_missing():
    program = f"import pickle; pickle.loads({pickle.dumps(Schedule.from_text(TEXT))!r})"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.endswith(
        "'KEEP' is not a kind of action; schedules.declare(…) adds kinds.\n"
    )


# -- reading ---------------------------------------------------------------------------


def test_its_cells_are_read_and_written(tmp_path):
    schedule = Schedule.from_text(TEXT)
    assert schedule.actions[1][-1] == Action(1, ActionKind("KEEP"), 1)
    assert str(schedule).endswith(TEXT.rstrip()) and "0U1,0KEEP1\n" in schedule.to_csv()
    (tmp_path / "text.csv").write_text(schedule.to_csv())
    assert (
        Schedule.from_file(tmp_path / "text.csv")
        == Schedule.from_text(str(schedule))
        == schedule
    )


def test_its_cells_may_omit_the_stage():
    assert Schedule.from_text("F0 B0 U0 KEEP0") == Schedule.from_text(
        "0F0 0B0 0U0 0KEEP0"
    )


def test_errors_list_it_and_hint_at_it():
    with pytest.raises(
        ScheduleError, match=r"'0SAVE0' is not an action\. .*, O, L, KEEP, STAY\."
    ):
        Schedule.from_text("0F0 0SAVE0")
    with pytest.raises(
        ScheduleError, match=r"'0keep0' is not an action\. Did you mean upper case\?"
    ):
        Schedule.from_text("0F0 0keep0")


def test_a_kind_with_a_name_of_pytorchs_sharding_is_a_kind():
    with declared(Kind("UNSHARD", lambda site: Uses(), "gather of the weights")):
        assert Schedule.from_text("0UNSHARD0 0F0 0B0").actions[0][0].kind is ActionKind(
            "UNSHARD"
        )
        with pytest.raises(ScheduleError, match="shards parameters"):
            Schedule.from_text("0RESHARD0 0F0 0B0")


# -- verification and times ------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (
            "F0 B0 F1 B1 U1 KEEP0",
            "missing",
            "0KEEP0 needs the weights of stage 0, which nothing gives",
        ),
        ("F0 B0 U0 KEEP0 KEEP0", "duplicate", "0KEEP0 is a duplicate of position 3"),
        (
            "F0 B0 KEEP0 U0",
            "order",
            r"0KEEP0 comes before 0U0 \(position 3\), which it needs",
        ),
        (
            "0F0 0B0 0U0 1KEEP0 \n 1F0 1B0 1U0",
            "placement",
            "1KEEP0 is on the wrong rank; stage 1 is on rank 1",
        ),
    ],
)
def test_it_is_refused_where_it_has_no_value_to_read(text, code, words):
    with pytest.raises(ScheduleError, match=words) as caught:
        verify(Schedule.from_text(text))
    assert caught.value.code == code
    assert "KEEP0<" in caught.value.grid


def test_ranks_that_wait_for_each_others_copies_are_a_deadlock():
    wait = Kind("WAIT", wait_for_copy, "wait for the copy of the stage before")
    travels = {
        "news": Noun(
            "news of a copy", travels=True, may_stay=lambda setting, stage: True
        )
    }
    told = KEEP._replace(
        name="TELL",
        uses=lambda site: Uses((), (site.value("news", site.stage),), keep(site).reads),
    )
    with declared(told, travels), declared(wait):
        verify(Schedule.from_text("0F0 0B0 0U0 0TELL0 \n 1F0 1B0 1WAIT0 1U0"))
        with pytest.raises(
            ScheduleError, match="rank 1 cannot run 1WAIT0 .* before 0TELL0"
        ) as caught:
            verify(Schedule.from_text("0F0 0B0 0U0 0TELL0 \n 1F0 1WAIT0 1B0 1U0"))
    assert caught.value.code == "deadlock"


def wait_for_copy(site):
    return Uses(reads=(site.value("news", site.stage - 1),)) if site.stage else None


def test_it_takes_its_own_time_in_its_own_lane():
    timeline = simulate(
        Schedule.from_text("F0 B0 U0 KEEP0 F1 B1 U1 KEEP1"),
        Costs(update=0.5, other={"KEEP": 4}),
    )
    assert [span[1:] for span in timeline.copies[0]] == [(3.5, 7.5), (7.5, 11.5)]
    assert [span[1:] for span in timeline.spans[0][3:]] == [
        (3.5, 4.5),
        (4.5, 6.5),
        (6.5, 7),
    ]
    assert timeline.makespan == 11.5


def test_without_a_lane_of_its_own_it_delays_what_comes_behind():
    timeline = simulate(
        Schedule.from_text("F0 B0 U0 STAY0 F1 B1 U1"), Costs(other={"KEEP": 4})
    )
    assert [span[1:] for span in timeline.spans[0][3:5]] == [(3, 7), (7, 8)]


def test_it_runs_with_messages_that_block_and_on_shared_cores():
    schedule = Schedule.from_text(TEXT)
    apart = simulate(schedule, Costs(other={"KEEP": 2}))
    for costs in (
        Costs(other={"KEEP": 2}, sends_block=True),
        Costs(other={"KEEP": 2}, cores=2),
    ):
        assert simulate(schedule, costs).copies == apart.copies
    assert simulate(schedule, Costs(other={"KEEP": 2}), num_steps=2).num_steps == 2


def test_it_is_stepped_through():
    walkthrough = Walkthrough(
        Schedule.from_text("F0 B0 U0 KEEP0 F1 B1 U1"), Costs(other={"KEEP": 2})
    )
    assert [str(event.action) for event in walkthrough.events][3:5] == ["0KEEP0", "0F1"]
    screen = "\n".join(Frame(walkthrough).draw(walkthrough[4], 80, 24))
    assert (
        "rank 0 begins 0KEEP0: copy of the weights of microbatch 0 on stage 0" in screen
    )
    stuck = Walkthrough(Schedule.from_text("F0 B0 KEEP0 U0"))
    assert (
        str(stuck.stuck[0].action) == "0KEEP0" and str(stuck.stuck[0].awaited) == "0U0"
    )


def test_costs_give_its_time_by_stage_and_by_default_none(tmp_path):
    costs = Costs(other={"KEEP": [1, 3]})
    assert costs.durations(2)["KEEP"] == [1, 3] and Costs().durations(2)["KEEP"] == [
        0,
        0,
    ]
    assert costs.cut(2).durations(4)["KEEP"] == [0.5, 0.5, 1.5, 1.5]
    assert Costs.load(costs.save(tmp_path / "costs.json")).durations(2)["KEEP"] == [
        1,
        3,
    ]


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
    assert caught.value.code == "value"


@pytest.mark.parametrize(
    "other", ["3", '{"KEEP": "2"}', '{"KEEP": [1, 2], "SAVE": [1]}']
)
def test_a_file_with_other_costs_that_fit_nothing_is_refused(other, tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(f'{{"format": "minipipe costs", "version": 1, "other": {other}}}')
    with pytest.raises(ScheduleError, match="is not a file of costs"):
        Costs.load(path)


# -- drawings --------------------------------------------------------------------------


def timeline(has_lane):
    """Return a timeline with a KEEP beside the actions, or with a STAY among them."""
    kind = "KEEP" if has_lane else "STAY"
    return simulate(
        Schedule.from_text(f"F0 B0 U0 {kind}0 F1 B1 U1", "kept"),
        Costs(update=1, other={"KEEP": 4}),
    )


def test_text_draws_it_with_its_name_its_words_and_a_fill():
    row, legend, *_ = draw_text(timeline(has_lane=False), width=75).splitlines()
    assert row == "rank 0 F0---B0========U0###STAY0***************F1---B1========U1###"
    assert "STAY* copy of the weights," in legend
    row, lane, legend, *_ = draw_text(timeline(has_lane=True), width=75).splitlines()
    assert lane == "  keep                     KEEP0***************"
    assert "KEEP* copy of the weights," in legend


@pytest.mark.parametrize(("has_lane", "kind"), [(False, "STAY"), (True, "KEEP")])
@pytest.mark.parametrize("draw", [draw_svg, draw_html, perfetto_trace])
def test_pictures_draw_it_with_its_name_and_its_words(draw, has_lane, kind):
    drawn = draw(timeline(has_lane))
    assert (
        f"{kind} copy of the weights" in drawn
        or '"kind": "copy of the weights"' in drawn
    )


def test_a_picture_gives_it_a_colour():
    drawn = draw_svg(timeline(has_lane=False))
    assert '<g class="STAY" fill="#c6b38b">' in drawn
    assert (
        "0STAY0: copy of the weights of microbatch 0 on stage 0, 4 to 8 units" in drawn
    )


def test_the_timeline_ends_with_it():
    schedule = Schedule.from_text("F0 B0 U0 KEEP0")
    assert simulate(schedule, Costs(other={"KEEP": 4})).makespan == 7


# -- readers without a handler ---------------------------------------------------------


def test_a_pipeline_refuses_it():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    words = (
        r"has actions of a declared kind \(such as 0KEEP1\), which a Pipeline does "
        r"not support"
    )
    with pytest.raises(ScheduleError, match=words) as caught:
        Plan(model, Schedule.from_text(TEXT))
    assert caught.value.code == "unsupported"
