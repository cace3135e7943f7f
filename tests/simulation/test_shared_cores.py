"""Ranks that share cores, and messages that share links: laws, drawn examples, and
wrong input.
"""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import schedules
from minipipe.cli.main import main
from minipipe.core.schedules.analysis.lowering import lower
from minipipe.errors import ScheduleError
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.simulator import simulate, timeline_of
from minipipe.schedules.simulation.span import IdleCause
from minipipe.simulation import hosts
from minipipe.simulation.hosts import Hosts, fair_rates
from tests.strategies import examples, legally_overlapped, runnable_schedules

TIMES = st.one_of(st.integers(0, 5), st.floats(0.01, 5))
CORES = st.one_of(st.integers(1, 3), st.floats(0.5, 3))


@st.composite
def costs(draw, **fixed):
    """Draw costs of any stages, in which everything takes time that may."""
    names = (
        "forward",
        "backward_input",
        "backward_weight",
        "latency",
        "overhead",
        "update",
        "message_size",
    )
    parts = {
        "bandwidth": draw(st.floats(0.5, 4)),
        "overlap": draw(st.sampled_from([0, 0.3, 1])),
    }
    return Costs(**{name: draw(TIMES) for name in names}, **parts, **fixed)


runnable = runnable_schedules() | legally_overlapped(runnable_schedules())


def flow(schedule, costs, num_steps=1, wait=False):
    """Return the timeline of the simulation with hosts, where nothing is shared."""
    step = lower(schedule) if costs.sends_block else schedule
    return timeline_of(
        step, costs, num_steps, wait, Hosts((0,) * schedule.num_ranks, (inf,))
    )


def numbers(spans):
    return [
        pytest.approx([time for _, *times in row for time in times], abs=1e-9)
        for row in spans
    ]


# -- nothing is shared -----------------------------------------------------------------


@examples(150)
@given(runnable, st.data())
def test_where_nothing_is_shared_the_fluid_is_the_exact_simulation(schedule, data):
    given_costs = data.draw(costs(sends_block=data.draw(st.booleans())))
    schedule = (
        lower(schedule)
        if data.draw(st.booleans()) and not given_costs.sends_block
        else schedule
    )
    num_steps, wait = data.draw(st.integers(1, 3)), data.draw(st.booleans())
    exact = simulate(schedule, given_costs, num_steps, wait)
    found = flow(schedule, given_costs, num_steps, wait)
    assert [[s.action for s in row] for row in found.spans] == [
        [s.action for s in row] for row in exact.spans
    ]
    assert numbers(found.spans) == [
        [time for _, *times in row for time in times] for row in exact.spans
    ]
    if num_steps > 1:
        changes = [
            [time for left, begun, _ in row for time in (left, begun)]
            for row in found.step_changes
        ]
        expected = [
            [time for left, begun, _ in row for time in (left, begun)]
            for row in exact.step_changes
        ]
        assert changes == [pytest.approx(row, abs=1e-9) for row in expected]


@examples(40)
@given(runnable, costs(), st.integers(0, 3))
def test_as_many_cores_as_ranks_change_nothing_to_the_last_bit(
    schedule, given_costs, more
):
    alone = simulate(schedule, given_costs)
    crowd = Costs(**{**vars(given_costs), "cores": schedule.num_ranks + more})
    assert simulate(schedule, crowd) == alone
    on_one_host = Costs(**{**vars(crowd), "hosts": (0,) * schedule.num_ranks})
    assert simulate(schedule, on_one_host) == alone


# -- cores -----------------------------------------------------------------------------


def test_two_ranks_on_one_core_each_go_at_half_the_rate():
    #           0     1           3     4           6                   10          12
    # rank 0    |-0F0-|----0F1----|     .           |--------0B0--------|----0B1----|
    # rank 1    .     |----1F0----|-1F1-|----1B0----|--------1B1--------|
    timeline = simulate(schedules.gpipe(2, 2), Costs(cores=1))
    assert [
        [(str(a), start, end) for a, start, end in row] for row in timeline.spans
    ] == [
        [("0F0", 0, 1), ("0F1", 1, 3), ("0B0", 6, 10), ("0B1", 10, 12)],
        [("1F0", 1, 3), ("1F1", 3, 4), ("1B0", 4, 6), ("1B1", 6, 10)],
    ]


def test_three_ranks_on_two_cores_go_at_two_thirds_of_the_rate():
    # All three forwards of the last column are at work from 2 on; each needs 4, at 2/3.
    schedule = schedules.forward_only(3, 3)
    timeline = simulate(schedule, Costs(forward=[1, 1, 4], cores=2))
    assert timeline.spans[0][2].end == pytest.approx(2 + 1 / (2 / 3))
    assert timeline.spans[1][1].end == pytest.approx(2 + 1 / (2 / 3))


@examples(60)
@given(runnable_schedules(), costs(), CORES)
def test_no_step_is_shorter_than_its_work_over_the_cores_nor_than_with_a_core_for_each_rank(
    schedule, given, cores
):
    shared = simulate(schedule, Costs(**{**vars(given), "cores": cores}))
    alone = simulate(schedule, given)
    work = sum(map(alone.busy, range(schedule.num_ranks)))
    assert shared.makespan >= work / cores * (1 - 1e-9)
    assert shared.makespan >= alone.makespan * (1 - 1e-9)
    for row, before in zip(shared.spans, alone.spans):
        for span, own in zip(row, before):
            assert span.end - span.start >= own.end - own.start - 1e-9


@examples(40)
@given(runnable_schedules(), TIMES, TIMES, TIMES)
def test_one_core_is_never_idle_while_messages_take_no_time(
    schedule, forward, backward_input, backward_weight
):
    shared = Costs(forward, backward_input, backward_weight, cores=1)
    alone = simulate(schedule, Costs(forward, backward_input, backward_weight))
    work = sum(map(alone.busy, range(schedule.num_ranks)))
    assert simulate(schedule, shared).end == pytest.approx(work)


def test_hosts_have_their_own_cores():
    # Ranks 0 and 1 share a core; rank 2 has one. Each rank's forwards take 1.
    timeline = simulate(
        schedules.forward_only(3, 2), Costs(cores=[1, 1], hosts=[0, 0, 1])
    )
    times = [[(start, end) for _, start, end in row] for row in timeline.spans]
    assert times == [[(0, 1), (1, 3)], [(1, 3), (3, 4)], [(3, 4), (4, 5)]]


def test_overhead_and_updates_need_a_core_and_a_message_does_not():
    one = schedules.forward_only(2, 2)
    # rank 0 F0 [0, 1], then its overhead of 1 and 1F0 share until 3; then F1 and the
    # overhead of rank 1.
    timeline = simulate(one, Costs(overhead=1, cores=1))
    assert [(s.start, s.end) for row in timeline.spans for s in row] == [
        (0, 1),
        (3, 5),
        (1, 3),
        (5, 6),
    ]
    assert [idle.cause for idle in timeline.idle[0]][:1] == [IdleCause.OVERHEAD]
    # Both ranks update from 4 on, after the end of the last stage: 1 each, at half the
    # rate.
    steps = simulate(one, Costs(update=1, cores=1), num_steps=2, wait=True)
    assert [(c.left, c.begun, c.after) for row in steps.step_changes for c in row] == [
        (4, 6, 1),
        (4, 6, 1),
    ]
    alone = schedules.forward_only(2, 1)
    assert simulate(alone, Costs(latency=10, cores=1)).makespan == 12


def test_a_rank_without_stages_takes_no_core():
    schedule = schedules.forward_only_over((0, 1), 3, num_ranks=4)
    assert simulate(schedule, Costs(cores=2)).spans == simulate(schedule).spans


# -- links -----------------------------------------------------------------------------


def test_two_messages_on_one_link_take_half_of_it_each():
    #            1       2       3       4       5
    # message 0  |== 1 ==|===== 1/2 =====|             each takes 2 alone
    # message 1          |===== 1/2 =====|== 1 ==|
    link = Costs(bandwidth=0.5, message_size=1, latency=0.25, hosts=[0, 1])
    shared = simulate(schedules.forward_only(2, 2), link)
    assert [span.start for span in shared.spans[1]] == [4.25, 5.25]
    assert [(m.sent, m.arrived) for m in shared.messages] == [(1, 4.25), (2, 5.25)]
    assert [(idle.cause, idle.start, idle.end) for idle in shared.idle[1]] == [
        (IdleCause.WARM_UP, 0, 4.25)
    ]
    one_host = Costs(bandwidth=0.5, message_size=1, latency=0.25, hosts=[0, 0])
    assert [
        span.start for span in simulate(schedules.forward_only(2, 2), one_host).spans[1]
    ] == [3.25, 4.25]


def test_a_message_that_waits_for_its_send_begins_its_way_there():
    late = schedules.schedule_of_text(
        "0F0 0F1 0SEND_F0 0SEND_F1\n1RECV_F0 1F0 1RECV_F1 1F1"
    )
    link = Costs(bandwidth=1, message_size=1, hosts=[0, 1])
    timeline = simulate(late, link)
    # both leave at 2, and have half of the link each
    assert [span.start for span in timeline.spans[1]] == [4, 5]
    sent = {str(value.send): sent for value, sent in timeline.sent.items()}
    assert sent == {"0SEND_F0": (4, 0, 1), "0SEND_F1": (4, 0, 1)}


LINKS = st.tuples(st.integers(0, 3), st.integers(0, 3)).map(
    lambda pair: (("out", pair[0]), ("into", pair[1]))
)


@examples(100)
@given(st.lists(LINKS, min_size=1, max_size=8))
def test_rates_are_max_min_fair(routes):
    links_of = dict(enumerate(routes))
    rates = fair_rates(links_of)
    used = {
        link: sum(rates[m] for m in links_of if link in links_of[m])
        for links in routes
        for link in links
    }
    assert all(part <= 1 + 1e-9 for part in used.values())
    # each has a link that is full, where nobody has more
    for message, links in links_of.items():
        assert any(
            used[link] > 1 - 1e-9
            and rates[message]
            >= max(rates[m] for m in links_of if link in links_of[m]) * (1 - 1e-9)
            for link in links
        )


# -- explained, and refused ------------------------------------------------------------


@examples(40)
@given(runnable_schedules(), st.data())
def test_all_time_on_shared_cores_is_explained(schedule, data):
    hosts = data.draw(
        st.lists(
            st.integers(0, 1), min_size=schedule.num_ranks, max_size=schedule.num_ranks
        )
    )
    hosts = hosts if 0 in hosts and max(hosts) < schedule.num_ranks else None
    given_costs = data.draw(
        costs(cores=data.draw(CORES), hosts=hosts, sends_block=data.draw(st.booleans()))
    )
    timeline = simulate(
        schedule, given_costs, data.draw(st.integers(1, 2)), data.draw(st.booleans())
    )
    for rank in range(timeline.num_ranks):
        idle = timeline.idle[rank]
        explained = sum(slot.end - slot.start for slot in idle) + timeline.busy(rank)
        assert explained == pytest.approx(timeline.makespan, abs=1e-6)
        assert all(a.end <= b.start for a, b in zip(idle, idle[1:]))
    path = timeline.critical_path
    assert path[-1][1].end == timeline.end and path[0][1].start == pytest.approx(
        timeline.start, abs=1e-6
    )


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            {"cores": 0},
            "cores is 0; expected a number above 0, such as 2, or one for each host",
        ),
        ({"cores": -1}, "expected a number above 0"),
        ({"cores": float("nan")}, "expected a number above 0"),
        ({"cores": "2"}, "cores is '2'; expected numbers"),
        ({"cores": [2, 2]}, "cores has 2 values for 1 host; expected one for each"),
        ({"cores": [2], "hosts": [0, 0, 1]}, "cores has 1 value for 2 hosts"),
        ({"hosts": [0, 1]}, "hosts has 2 values for 3 ranks; expected one for each"),
        ({"hosts": 0}, "hosts has 1 value for 3 ranks"),
        ({"hosts": []}, "hosts has 0 values for 3 ranks"),
        (
            {"hosts": [0, 1, 3]},
            "hosts is .0, 1, 3.; expected the host of each rank, counted from 0",
        ),
        ({"hosts": [0, -1, 1]}, "expected the host of each rank"),
        ({"hosts": [0, 0.5, 1]}, "expected the host of each rank"),
        ({"hosts": "012"}, "hosts is '012'; expected numbers"),
    ],
)
def test_cores_and_hosts_that_there_cannot_be_are_refused(wrong, words):
    with pytest.raises(ScheduleError, match=words) as caught:
        simulate(schedules.gpipe(3, 2), Costs(**wrong))
    assert caught.value.code == "value"


def test_times_that_no_number_can_hold_are_refused_on_shared_cores_too():
    with pytest.raises(ScheduleError, match="too large for a number"):
        simulate(schedules.gpipe(2, 8), Costs(forward=1e308, cores=1))


def test_the_command_line_knows_cores_and_hosts(capsys):
    assert Costs.parse("cores=2,hosts=0:0:1:1") == Costs(
        cores=2.0, hosts=(0.0, 0.0, 1.0, 1.0)
    )
    assert main(["simulate", "1f1b", "--costs", "cores=2"]) == 0
    assert capsys.readouterr().out.endswith("makespan 51 units\n")
    assert (
        main(["simulate", "1f1b", "--costs", "cores=1:1,hosts=0:0:1:1,latency=0.5"])
        == 0
    )
    assert "makespan" in capsys.readouterr().out
    assert main(["simulate", "1f1b", "--costs", "cores=0"]) == 2
    assert "cores is 0.0; expected a number above 0" in capsys.readouterr().err


# -- mutants ---------------------------------------------------------------------------


def test_cores_that_are_not_shared_are_noticed(monkeypatch):
    monkeypatch.setattr(hosts.Cores, "rate", 1.0)
    with pytest.raises(AssertionError):
        test_two_ranks_on_one_core_each_go_at_half_the_rate()


def test_links_that_are_not_shared_are_noticed(monkeypatch):
    monkeypatch.setattr(
        hosts, "fair_rates", lambda links_of: dict.fromkeys(links_of, 1.0)
    )
    with pytest.raises(AssertionError):
        test_two_messages_on_one_link_take_half_of_it_each()
