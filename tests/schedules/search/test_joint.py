"""The search for partition, placement and schedule together."""

from dataclasses import replace
from itertools import combinations, pairwise, product

import pytest

from minipipe import Costs, simulate, verify
from minipipe.core.schedules.action import O
from minipipe.errors import ScheduleError
from minipipe.schedules import find_schedule
from minipipe.schedules.simulation.evaluation import evaluate
from minipipe.search import joint as joint_search
from minipipe.search.brute_force import solve_by_branch_and_bound
from minipipe.search.choices import costs_of_stages
from minipipe.search.joint import _Partitions, find_joint

TIMES = [1, 1, 2, 1, 3]
UNEVEN = Costs(forward=TIMES, backward_input=TIMES, backward_weight=TIMES)
PLACEMENTS = [(0, 1), (0, 1, 1, 0)]


def partitions(num_layers, num_stages):
    for ends in combinations(range(1, num_layers), num_stages - 1):
        yield tuple(b - a for a, b in pairwise((0, *ends, num_layers)))


@pytest.mark.parametrize("objective", ["span", "makespan"])
@pytest.mark.parametrize("limit", [None, 4])
def test_the_best_choice_is_as_good_as_the_best_of_all_searches(objective, limit):
    """Every partition and placement is searched by itself; bound and value agree."""
    alone = []
    for placement in PLACEMENTS:
        for sizes in partitions(5, len(placement)):
            costs = costs_of_stages(replace(UNEVEN, activation=[0.5] * 5), sizes)
            workload = costs.workload(placement, 3, limit)
            alone.append(find_schedule(workload, objective, evaluations=50))
    costs = replace(UNEVEN, activation=[0.5] * 5)
    joint = find_joint(costs, 5, PLACEMENTS, 3, limit, objective, evaluations=1000)
    assert joint.choices == len(alone) and joint.is_complete
    assert joint.best.value <= min(found.value for found in alone)
    assert joint.best.bound >= min(found.bound for found in alone)
    assert joint.best.bound <= joint.best.value
    assert (
        evaluate(joint.best.schedule, joint.best.workload, objective)
        == joint.best.value
    )


def test_no_schedule_of_any_choice_is_below_the_bound():
    """Branch and bound, which shares no bound with the search, on every choice."""
    times = [1, 2, 1]
    costs = Costs(forward=times, backward_input=times, backward_weight=times)
    joint = find_joint(costs, 3, [(0, 1)], 2, objective="makespan", evaluations=400)
    optima = []
    for sizes in partitions(3, 2):
        workload = costs_of_stages(costs, sizes).workload((0, 1), 2)
        optima.append(solve_by_branch_and_bound(workload, "makespan", 20).value)
    assert joint.best.bound <= min(optima) <= joint.best.value


def test_an_offloaded_choice_keeps_the_memory_and_is_faster():
    costs = Costs(copy_bandwidth=4)
    problem = (costs, 4, [(0, 1, 2, 3)], 6)
    without = find_joint(*problem, 2, "makespan", evaluations=300)
    joint = find_joint(*problem, 2, "makespan", offload=True, evaluations=800)
    assert (
        joint.is_offloaded
        and joint.best.value < without.best.value
        and O in joint.best.schedule.kinds
    )
    verify(joint.best.schedule)
    timeline = simulate(joint.best.schedule, joint.costs)
    assert timeline.makespan == joint.best.value and max(timeline.peak_memory) <= 2
    # activations do not bound it, but what is held from I until W does
    unlimited = find_joint(*problem, None, "makespan", evaluations=300)
    assert unlimited.best.bound < joint.best.bound <= joint.best.value


def test_of_too_many_partitions_the_others_are_bounded_by_their_work():
    costs = Costs(forward=[1] * 30 + [6])
    joint = find_joint(costs, 31, [tuple(range(8))], 8, evaluations=300)
    assert not joint.is_complete and joint.best.bound <= joint.best.value
    assert sum(joint.sizes) == 31


def members_of(choice):
    """Return the decided choices that one stands for."""
    cases = [(each,) if each is not None else (0, 1) for each in choice.recomputed]
    return {(choice.problem, *map(bool, case)) for case in product(*cases)}


def test_each_choice_is_counted_once(monkeypatch):
    """Also one that was searched beside the group of undecided ones it is in."""
    weighed = []
    result = joint_search._result
    monkeypatch.setattr(
        joint_search, "_result", lambda *args: weighed.append(args[0]) or result(*args)
    )
    times = [*TIMES, *TIMES[:3]]
    held = {"activation": 2, "message_size": 1, "weights": 1}
    costs = Costs(times, times, times, **held, bandwidth=4)
    problem = (costs, 8, [(0, 1, 2, 3), (0, 1, 1, 0)], 6, 24.0)
    joint = find_joint(*problem, evaluations=1000, recompute="any")
    [weighing] = weighed
    searched = [key for each in weighing.searched for key in members_of(each)]
    assert len(set(searched)) == len(searched) == joint.searched
    below = filter(weighing.is_below, weighing.waiting)
    waiting = set().union(*map(members_of, below)) - set(searched)
    assert joint.waiting == len(waiting) == 55
    assert joint.searched + joint.waiting + joint.impossible <= joint.choices


@pytest.mark.parametrize("most", [3, 4, 8])
def test_partitions_up_to_some_work_are_all_of_them(most):
    found = list(_Partitions(TIMES, (0, 1, 0), most).all())
    expected = []
    for sizes in partitions(5, 3):
        middle = sum(TIMES[sizes[0] : sizes[0] + sizes[1]])
        if max(middle, sum(TIMES) - middle) <= most:
            expected.append(sizes)
    assert found == expected


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"num_layers": 2}, "The placement has 3 stages, and there are 2 layers"),
        ({"offload": True}, "offload needs a memory_limit"),
        ({"memory_limit": 0.5}, "No schedule of any choice"),
        ({"num_layers": 0}, "num_layers is 0"),
        ({"evaluations": 0}, "evaluations is 0"),
    ],
)
def test_a_wrong_question_is_refused(change, reason):
    question = {"num_layers": 4, "placements": [(0, 1, 2)], "num_microbatches": 2}
    with pytest.raises(ScheduleError, match=reason) as caught:
        find_joint(Costs(), **{**question, **change})
    assert caught.value.code == "value"
