"""Weighing by invented measurements: nothing is timed, so every answer is known."""

import json
from functools import cache
from itertools import count
from math import inf

import pytest

from minipipe import Costs, Plan, simulate
from minipipe.errors import ScheduleError
from minipipe.search import heuristic
from minipipe.tuning import Advice, Candidate, Messages
from minipipe.tuning.advising import weigh
from minipipe.tuning.weighing import Weighing, candidates, searched_schedule
from tests.tuning.invented import asked, measured, model


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    """Give tables and sentences all the room that they want."""
    monkeypatch.setenv("COLUMNS", "1000")


COUNTS = (2, 4)


@cache
def advice(limit=inf, seconds=0, num_ranks=2, replicas=1, **rules):
    question = asked(memory_limit=limit, replicas=replicas)
    return weigh(question, num_ranks, measured(4, COUNTS, **rules), seconds)


def test_chunks_are_weighed_for_the_schedules_that_begin_with_several():
    """Where a rank has several neighbouring stages of 1F1B, they are one stage with
    more messages.
    """
    found = {}
    for candidate in candidates(2, num_layers=8, counts=[4]):
        found.setdefault(candidate.schedule, []).append(candidate.chunks_per_rank)
    assert found["1f1b"] == found["gpipe"] == [1]
    assert found["interleaved-1f1b"] == [2, 3, 4] and found["zb-v"] == [2]


def test_the_best_is_the_fastest_of_all():
    found = advice()
    assert found.best.time == min(choice.time for choice in found.choices)
    assert [choice.time for choice in found.choices] == sorted(
        choice.time for choice in found.choices
    )
    assert {choice.candidate.schedule for choice in found.choices} >= {
        "1f1b",
        "zb-v",
        "interleaved-1f1b",
    }


def test_a_choice_takes_what_the_simulator_says_of_its_plan():
    for choice in advice().choices[::7]:
        plan = Plan(model(4), choice.schedule, partition=choice.partition)
        costs = measured(4, COUNTS).costs(plan, choice.candidate.recompute)
        assert choice.time == simulate(plan.schedule, costs).makespan
        assert sum(choice.idle.values()) == pytest.approx(choice.bubble_fraction)
        assert choice.time >= choice.bound * (1 - 1e-12) and choice.gap >= -1e-12


def test_no_choice_is_below_its_bound_where_actions_have_an_overhead():
    """The story: 1F1B was 0.5 % below, for its whole backward is one action, and the
    bound counted I and W.
    """
    for choice in advice(messages=Messages(overhead=1e-2)).choices:
        assert choice.time >= choice.bound * (1 - 1e-12), choice.candidate


@pytest.mark.slow
def test_with_replicas_a_choice_takes_what_the_simulator_says_of_its_plan_with_sums():
    slow = Messages(latency=1e-3, bandwidth=1e5)
    found = advice(num_ranks=4, replicas=None, messages=slow)
    assert {choice.candidate.replicas for choice in found.choices} == {1, 2, 4}
    for choice in found.choices:
        copies = choice.candidate.replicas
        plan = Plan(
            model(4),
            num_ranks=4,
            **{k: v for k, v in choice.options.items() if k != "recompute"},
        )
        assert (
            plan.schedule.num_microbatches == choice.candidate.num_microbatches
            and plan.schedule.num_ranks == 4
        )
        costs = measured(4, COUNTS, messages=slow).costs(plan, recompute=False)
        timeline = simulate(plan.schedule, costs)
        has_sums = copies > 1 or plan.schedule.has_replicas
        assert (
            choice.time == timeline.makespan
            and len(timeline.sums) == has_sums * plan.schedule.num_stages
        )
        assert sum(choice.idle.values()) == pytest.approx(choice.bubble_fraction)
        assert choice.time >= choice.bound * (1 - 1e-12), choice.candidate
        layers = measured(4, COUNTS).layers[choice.candidate.num_microbatches]
        assert choice.memory == tuple(rank.total for rank in plan.memory(layers))


@pytest.mark.slow
def test_where_messages_are_free_replicas_without_a_pipeline_are_best_and_where_they_are_slow_others_are():
    assert advice(num_ranks=4, replicas=None).best.candidate.replicas == 4
    assert (
        advice(
            num_ranks=4, replicas=None, messages=Messages(bandwidth=1e3)
        ).best.candidate.replicas
        < 4
    )


@pytest.mark.slow
def test_a_choice_is_within_the_limit_if_its_fullest_rank_is():
    uneven = max(
        advice().choices, key=lambda choice: max(choice.memory) - min(choice.memory)
    )
    assert min(uneven.memory) < max(uneven.memory)
    for limit in (max(uneven.memory), max(uneven.memory) - 1):
        for choice in advice(limit).choices:
            assert choice.is_within_limit == (max(choice.memory) <= limit)
        same = [
            choice
            for choice in advice(limit).choices
            if choice.candidate == uneven.candidate
        ]
        assert [choice.is_within_limit for choice in same] == [
            limit >= max(uneven.memory)
        ] * len(same)


@pytest.mark.slow
def test_a_memory_limit_counts_the_parameters_of_each_replica():
    """One rank has all layers, 4 x 80 bytes, and as much again as gradients; on two
    ranks each has half.
    """
    found = advice(num_ranks=2, replicas=None, limit=700, held=0)
    assert (
        found.best.candidate.replicas == 1
        and "2 replicas" in found.reason
        and "above the limit" in found.reason
    )


@pytest.mark.slow
def test_with_replicas_asked_for_all_schedules_have_as_many():
    found = advice(num_ranks=4, replicas=2)
    assert {choice.candidate.replicas for choice in found.choices} == {2}
    assert {choice.candidate.schedule for choice in found.choices} >= {
        "gpipe",
        "1f1b",
        "zb-v",
        "chimera",
    }


def test_the_own_choice_of_a_program_with_replicas_is_weighed_as_it_runs():
    own = {"schedule": "gpipe", "num_microbatches": 2, "replicas": 2}
    found = weigh(asked(own=own), 4, measured(4, COUNTS), 0)
    plan = Plan(model(4), num_ranks=4, **own)
    assert found.own.candidate == Candidate("gpipe", 4, cut="parameters", replicas=2)
    assert (
        found.own.time
        == simulate(plan.schedule, measured(4, COUNTS).costs(plan, False)).makespan
    )
    assert "yours: gpipe" in str(found)


def test_where_time_is_in_proportion_to_samples_many_microbatches_are_best():
    assert advice().best.candidate.num_microbatches == max(COUNTS)


def test_where_small_microbatches_take_as_long_as_large_ones_few_are_best():
    """The dependence on the size is what was measured: here, there is none."""
    found = advice(time=lambda layer, samples: 1e-3)
    assert found.best.candidate.num_microbatches == min(COUNTS)
    assert (
        "with 4 microbatches: measured alone, 8 samples take 1.00 of the time of 16."
        in found.reason
    )


def test_a_slow_layer_gets_a_rank_to_itself():
    found = advice(time=lambda layer, samples: samples * (3e-3 if layer == 0 else 1e-3))
    straight = next(
        choice for choice in found.choices if choice.candidate.schedule == "1f1b"
    )
    assert straight.partition == (range(0, 1), range(1, 4))


def test_slow_messages_favour_schedules_with_few_of_them():
    slow = Messages(latency=0.2)
    assert len(advice().best.schedule.stages_of(0)) > 1
    assert len(advice(messages=slow).best.schedule.stages_of(0)) == 1


@pytest.mark.slow
def test_a_tighter_limit_chooses_less_memory_and_takes_longer():
    limits = [
        inf,
        *(share * max(advice(held=1000).best.memory) for share in (0.9, 0.5)),
    ]
    found = [advice(held=1000, limit=limit) for limit in limits]
    assert all(max(each.best.memory) <= limit for each, limit in zip(found, limits))
    times = [each.best.time for each in found]
    assert times == sorted(times) and times[0] < times[-1]
    assert (
        "above the limit" in found[-1].reason
        and "above the limit" not in found[0].reason
    )


@pytest.mark.slow
def test_activations_are_computed_again_only_where_nothing_else_fits():
    plain = [c for c in advice(held=1000, limit=1e9).choices if c.candidate.recompute]
    least = min(max(choice.memory) for choice in advice(held=1000).choices)
    tight = advice(held=1000, limit=0.8 * least)
    assert plain == [] and tight.best.candidate.recompute


def test_where_nothing_fits_the_error_says_what_the_least_is():
    with pytest.raises(
        ScheduleError, match=r"at most 1 KiB on every rank\. The least is .* on rank \d"
    ) as caught:
        advice(held=1000, limit=1024)
    assert caught.value.problems[0].code == "memory"


def test_a_given_partition_leaves_only_schedules_with_as_many_stages():
    found = weigh(
        asked(partition=[range(0, 3), range(3, 4)]), 2, measured(4, [4]), seconds=0.1
    )
    assert {choice.partition for choice in found.choices} == {
        (range(0, 3), range(3, 4))
    }
    assert {choice.candidate.chunks_per_rank for choice in found.choices} == {1}


@pytest.mark.parametrize("tick", [1e-5, 3e-5])
def test_a_search_tries_as_many_schedules_on_a_slower_machine_until_that_is_very_slow(
    tick, monkeypatch
):
    """The story: advice and pictures searched until the clock said so, and half of a
    core found worse schedules.
    """
    clock, tried = count(0, tick), []
    monkeypatch.setattr(heuristic, "perf_counter", clock.__next__)
    monkeypatch.setattr(
        heuristic.Search,
        "note",
        lambda self, found, note=heuristic.Search.note: (
            tried.append(found),
            note(self, found),
        ),
    )
    workload = Costs([1, 2, 1], latency=0.3).workload(
        (0, 1, 2), num_microbatches=6, memory_limit=2.5
    )
    schedule = searched_schedule(workload, seconds=0.05)
    assert len(tried) == 1 + 0.05 * 200_000 // (3 * 3 * 6) and schedule is not None
    tried.clear()
    clock = count(0, 0.05)
    monkeypatch.setattr(heuristic, "perf_counter", clock.__next__)
    assert searched_schedule(workload, seconds=0.05) is not None and len(tried) == 4


@pytest.mark.slow
@pytest.mark.parametrize("limit", [inf, 2000])
def test_searched_schedules_keep_the_bits_of_one_process_and_the_best_the_limit(limit):
    found = advice(limit, seconds=0.4, held=40)
    searched = [
        choice for choice in found.choices if choice.candidate.schedule == "searched"
    ]
    assert searched and all(choice.schedule.is_reproducible for choice in searched)
    assert found.best.is_within_limit
    named = min(
        choice.time
        for choice in advice(limit, held=40).choices
        if choice.is_within_limit
    )
    assert found.best.time <= named * (1 + 1e-12)


@pytest.mark.slow
def test_ranks_that_share_cores_are_not_below_all_their_work():
    alone, shared = (advice(cores=cores).best for cores in (None, 1))
    assert (
        shared.bound > alone.bound
        and shared.time >= shared.bound * (1 - 1e-9)
        and shared.time > alone.time
    )
    # layers; F, I and W; a millisecond for each sample
    assert shared.bound == pytest.approx(4 * 3 * 32e-3)
    assert "on cores that they share" in shared.bound_by


def test_the_table_has_a_row_for_each_schedule_and_marks_ones_own():
    found = advice()
    own = Weighing(asked(), 2, measured(4, COUNTS))
    (mine,) = own.named([Candidate("gpipe", 4)])
    text = str(Advice(found.choices, measured(4, COUNTS), own=mine))
    head, *rows = text.split("\n\n")[1].splitlines()
    assert head.split()[:3] == ["schedule", "v", "microbatches"]
    alike = [
        line.partition(": ")[2]
        for line in text.splitlines()
        if "the same figures." in line
    ]
    names = {row.split()[0] for row in rows[:-1]} | {
        name for line in alike for name in line.split(" ha")[0].split(", ")
    }
    # ten, and that of the reason
    assert len(names) == 11 and "1f1b" in names and rows[-1].startswith("yours: gpipe")
    assert found.reason in text and "<table>" in found._repr_html_()


def test_rows_are_plain_data():
    rows = advice().rows()
    assert json.loads(json.dumps(rows)) == rows


def test_of_choices_that_ran_the_one_that_stayed_in_the_race_is_the_best():
    """A choice that ran three steps in a quiet moment, or that was only predicted, may
    seem faster.
    """
    slow, middle, fast, *rest = advice().choices
    ran = [
        slow._replace(measured=2.0, num_steps=3),
        middle._replace(measured=3.0, num_steps=9),
        fast._replace(measured=2.5, num_steps=9),
    ]
    found = Advice(
        [*rest, *ran], measured(4, COUNTS), own=slow._replace(measured=9.0, num_steps=9)
    )
    assert found.choices[:3] == (ran[2], ran[1], ran[0]) and found.best == ran[2]
    verdict, table, said = str(found).split("\n\n")
    assert verdict.startswith(
        "Recommended: "
    ) and "Your own choice: measured 9000.000 ms." in " ".join(verdict.split())
    assert "Your own choice" not in str(advice())
    kept = Advice([*rest, *ran], measured(4, COUNTS), own=ran[2])
    assert (
        kept.verdict
        == "Recommended: keep your own choice, measured 2500.000 ms per step."
    )
    assert (
        "measured ms" in table
        and "measured ms" not in str(advice())
        and "3 of " in said
    )
    assert "Your own choice is as fast" not in said
    assert (
        "Your own choice is as fast"
        in Advice([*rest, *ran], measured(4, COUNTS), own=ran[2]).reason
    )
