"""Values of declared kinds: from another lane, from another rank; and declared kinds
that meet.
"""

import pytest

from minipipe import Costs, Schedule, simulate, verify
from minipipe.errors import ScheduleError
from minipipe.render import draw_html, draw_svg, draw_text
from minipipe.render.stepper.walkthrough import Walkthrough
from minipipe.schedules import Kind, Meeting, Noun, Uses, declared, explain


def tell(site):
    return (
        Uses(gives=(site.value("news", site.stage + 1),))
        if site.stage < site.setting.num_stages - 1
        else None
    )


def hear(site):
    return Uses(takes=(site.value("news"),)) if site.stage else None


def barrier(site):
    return Meeting(("barrier", site.microbatch), site.setting.num_stages)


@pytest.fixture(autouse=True)
def _declared():
    save = Kind(
        "SAVE",
        lambda site: Uses(gives=(site.value("copy"),)),
        "copy",
        lane="disk",
        time="SAVE",
    )
    with (
        declared(save, {"copy": Noun("copy")}),
        declared(
            Kind(
                "USE", lambda site: Uses(takes=(site.value("copy"),)), "use of the copy"
            )
        ),
        declared(
            Kind("TELL", tell, "news", time="TELL"),
            {"news": Noun("news", travels=True)},
        ),
        declared(Kind("HEAR", hear, "end of the news", time="HEAR")),
        declared(Kind("GET", hear, "copy of the news", lane="disk", time="HEAR")),
        declared(
            Kind("MEET", lambda site: Uses(), "barrier", time="MEET", meets=barrier)
        ),
    ):
        yield


COSTS = {"SAVE": 4, "TELL": 2, "HEAR": 1, "MEET": 2}
ALONE = (Costs(other=COSTS, latency=1), Costs(other=COSTS, latency=1, cores=2))


def ends(text, costs):
    timeline = simulate(Schedule.from_text(text), costs)
    assert draw_text(timeline) and draw_svg(timeline) and draw_html(timeline)
    assert explain(timeline).idle is not None and explain(timeline).critical_path
    found = {}
    for row in (*timeline.spans, *timeline.copies):
        found.update((str(span.action), (span.start, span.end)) for span in row)
    return found


@pytest.mark.parametrize("costs", ALONE)
def test_what_takes_a_value_of_another_lane_waits_for_it(costs):
    found = ends("0F0 0SAVE0 0USE0 0B0", costs)
    assert (found["0SAVE0"], found["0USE0"], found["0B0"]) == ((1, 5), (5, 5), (5, 7))


@pytest.mark.parametrize("costs", ALONE)
def test_a_value_travels_to_the_next_rank(costs):
    found = ends("0F0 0TELL0 0B0 \n 1F0 1HEAR0 1TELL0 1B0 \n 2F0 2HEAR0 2B0", costs)
    assert (found["0TELL0"], found["1HEAR0"], found["1TELL0"], found["2HEAR0"]) == (
        (1, 3),
        (4, 5),
        (5, 7),
        (8, 9),
    )


@pytest.mark.parametrize("costs", ALONE)
def test_a_lane_waits_for_a_value_of_another_rank_and_its_rank_does_not(costs):
    found = ends("0F0 0TELL0 0B0 \n 1F0 1GET0 1B0", costs)
    assert (found["1F0"], found["1GET0"], found["1B0"]) == ((2, 3), (4, 5), (3, 5))


@pytest.mark.parametrize("costs", ALONE)
def test_what_meets_starts_and_ends_together(costs):
    text = "0F0 0F1 0MEET0 0B0 0B1 \n 1F0 1MEET0 1B0 1F1 1B1"
    found = ends(text, costs)
    assert found["0MEET0"] == found["1MEET0"] == (3, 5) and found["1B0"] == (5, 7)
    assert len(Walkthrough(Schedule.from_text(text), costs).events) == 10


def test_on_one_core_what_meets_starts_together():
    found = ends("0F0 0B0 0MEET0 \n 1F0 1B0 1MEET0", Costs(other=COSTS, cores=1))
    assert found["0MEET0"] == found["1MEET0"] == (6, 10)


def test_ranks_that_come_to_two_meetings_in_another_order_are_a_deadlock():
    with pytest.raises(
        ScheduleError, match="rank 0 cannot run 0MEET0 .* before 1MEET0"
    ) as caught:
        verify(
            Schedule.from_text(
                "0F0 0MEET0 0F1 0MEET1 0B0 0B1 \n 1F0 1MEET1 1F1 1MEET0 1B0 1B1"
            )
        )
    assert caught.value.code == "deadlock"


def give(site):
    return Uses(gives=(site.value("word"),))


def heard_before(site):
    return Uses(takes=(site.value("word", site.stage - 1),)) if site.stage else None


def heard_behind(site):
    return (
        Uses(takes=(site.value("word", site.stage + 1),))
        if site.stage < site.setting.num_stages - 1
        else None
    )


@pytest.mark.parametrize("costs", ALONE)
@pytest.mark.parametrize("listen", [heard_before, heard_behind])
def test_a_value_travels_as_long_whichever_stage_it_is_named_after(costs, listen):
    word = {"word": Noun("word", travels=True, may_stay=lambda setting, stage: True)}
    with (
        declared(Kind("SAY", give, "word"), word),
        declared(Kind("LISTEN", listen, "end of a word")),
    ):
        if listen is heard_before:
            found = ends(
                "0F0 0SAY0 0B0 \n 1F0 1LISTEN0 1SAY0 1B0 \n 2F0 2LISTEN0 2B0", costs
            )
            assert (found["1LISTEN0"], found["2LISTEN0"]) == ((3, 3), (5, 5))
        else:
            found = ends("0F0 0LISTEN0 0B0 \n 1F0 1SAY0 1B0", costs)
            assert found["0LISTEN0"] == (4, 4)


def test_a_rank_that_waits_at_a_meeting_waits_for_the_last_to_come():
    timeline = simulate(
        Schedule.from_text("0F0 0B0 0MEET0 \n 1F0 1B0 1MEET0"), Costs(other=COSTS)
    )
    _, idle = explain(timeline).idle[1]
    assert (idle.start, idle.end, idle.cause, str(idle.awaited)) == (
        4,
        6,
        "waiting",
        "0MEET0",
    )
    assert explain(timeline).critical_path
