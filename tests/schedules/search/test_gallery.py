"""The gallery of proved optima: what it shows agrees with itself, with formulas, and
with proofs done again.
"""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Costs, schedules
from minipipe.errors import FileError, ScheduleError
from minipipe.schedules.analysis.bounds import lower_bound
from minipipe.schedules.analysis.workload import Objective
from minipipe.schedules.placements import v_placement
from minipipe.schedules.simulation.evaluation import evaluate
from minipipe.search.brute_force import solve_by_branch_and_bound
from minipipe.search.gallery import _gallery, gallery_from, proved_optimum
from tests.launch import slowly
from tests.slow.gallery import as_text
from tests.strategies import examples

GALLERY = _gallery()
SHOWN = [
    (exhibit, limit)
    for exhibit, row in GALLERY.items()
    for limit, best in enumerate(row, 1)
    if best is not None
]


def workload_of(exhibit, limit):
    return Costs(*exhibit.times).workload(
        exhibit.placement, exhibit.num_microbatches, limit
    )


def test_straight_pipelines_are_complete_and_what_is_proved_of_a_v_only_grows():
    straight = {
        exhibit: row
        for exhibit, row in GALLERY.items()
        if len(set(exhibit.placement)) == len(exhibit.placement)
    }
    assert len(straight) == 4 * 16 * 3 * 2 and not any(
        None in row for row in straight.values()
    )
    assert len(SHOWN) >= 2387


@pytest.mark.parametrize(
    ("placement", "microbatches", "limits", "objective", "optima"),
    [
        (range(4), 8, range(1, 6), Objective.MAKESPAN, (72, 41, 31, 27, 27)),
        (range(4), 8, range(4, 8), Objective.SPAN, (27, 26, 25, 24)),
        (v_placement(4), 8, (4, 6, 8), Objective.MAKESPAN, (59, 53, 51)),
    ],
)
def test_known_optima_are_shown(placement, microbatches, limits, objective, optima):
    found = [
        proved_optimum(Costs().workload(placement, microbatches, limit), objective)
        for limit in limits
    ]
    assert found == list(optima)


def test_more_memory_never_takes_longer_and_more_microbatches_never_less():
    for exhibit, row in GALLERY.items():
        proved = [best for best in row if best is not None]
        assert all(more <= less for less, more in pairwise(proved))
        next_row = GALLERY.get(
            exhibit._replace(num_microbatches=exhibit.num_microbatches + 1), ()
        )
        for less, more in zip(row, next_row):
            assert None in (less, more) or more >= less
        spans = GALLERY.get(exhibit._replace(objective=Objective.SPAN), ())
        assert all(
            None in (span, best) or span <= best for span, best in zip(spans, row)
        )


@given(st.sampled_from(SHOWN))
@examples(200)
def test_no_formula_is_above_an_optimum_and_no_named_schedule_below(shown):
    exhibit, limit = shown
    workload = workload_of(exhibit, limit)
    best = proved_optimum(workload, exhibit.objective)
    assert lower_bound(workload, exhibit.objective).value <= best
    for name in schedules.REGISTRY:
        try:
            schedule = schedules.build(
                name, workload.num_ranks, workload.num_microbatches
            )
            value = evaluate(
                schedules.split_backward(schedule), workload, exhibit.objective
            )
        except ScheduleError:
            continue
        assert value >= best, name


@pytest.mark.parametrize("most", [9, slowly(24)])
def test_branch_and_bound_proves_again_what_is_shown(most):
    small = [
        (exhibit, limit)
        for exhibit, limit in SHOWN
        if len(exhibit.placement) * exhibit.num_microbatches <= most
    ]
    for exhibit, limit in random.Random(0).sample(small, 40):
        found = solve_by_branch_and_bound(
            workload_of(exhibit, limit), exhibit.objective, seconds=20
        )
        if found.bound == found.value:
            assert proved_optimum(found.workload, exhibit.objective) == found.value


@pytest.mark.slow
def test_the_solver_proves_again_what_is_shown():
    pytest.importorskip("ortools", reason="needs OR-tools: pip install '.[search]'")
    from minipipe.search.exact import solve

    straight = [
        shown
        for shown in SHOWN
        if len(set(shown[0].placement)) == len(shown[0].placement)
    ]
    for exhibit, limit in random.Random(1).sample(straight, 60):
        found = solve(workload_of(exhibit, limit), exhibit.objective, seconds=60)
        assert (
            found.value
            == found.bound
            == proved_optimum(found.workload, exhibit.objective)
        )


@given(
    scale=st.floats(1e-6, 1e6), unit=st.floats(1e-6, 1e6), shown=st.sampled_from(SHOWN)
)
@examples(100)
def test_an_optimum_is_in_the_unit_of_the_times(scale, unit, shown):
    exhibit, limit = shown
    forward, inputs, weights = (scale * time for time in exhibit.times)
    costs = Costs(forward, inputs, weights, activation=unit)
    workload = costs.workload(exhibit.placement, exhibit.num_microbatches, limit * unit)
    assert proved_optimum(workload, exhibit.objective) == pytest.approx(
        scale * GALLERY[exhibit][limit - 1], rel=1e-9
    )


@pytest.mark.parametrize(
    "workload",
    [
        Costs(latency=0.5).workload(range(4), 8),
        Costs(overhead=0.5).workload(range(4), 8),
        Costs(forward=3).workload(range(4), 8),
        Costs(forward=[1, 1, 1, 2]).workload(range(4), 8),
        Costs(0, 0, 0).workload(range(4), 8),
        Costs(weight_activation=0.5).workload(range(4), 8, 4),
        Costs(transient_activation=0.5).workload(range(4), 8, 4),
        Costs().workload(range(4), 8, [4, 4, 4, 3]),
        Costs().workload(range(4), 8, 0.5),
        Costs().workload(v_placement(4), 8, 1),
        Costs().workload((1, 0), 8),
        Costs().workload(range(5), 8),
        Costs().workload(range(4), 17),
    ],
)
def test_nothing_is_said_of_what_is_not_shown(workload):
    assert proved_optimum(workload, Objective.MAKESPAN) is None


def test_memory_without_a_limit_is_as_good_as_the_most():
    assert (
        proved_optimum(
            Costs(activation=3, weight_activation=1).workload(range(4), 8),
            Objective.SPAN,
        )
        == 24
    )
    assert proved_optimum(Costs().workload(range(4), 8, 100.0), Objective.SPAN) == 24


def test_its_text_comes_back_and_a_damaged_one_is_refused():
    assert gallery_from(as_text(GALLERY)) == GALLERY
    for text in (
        "straight",
        "zigzag,2,1:1:1,span,3,9",
        "straight,2,1:1,span,3,9",
        "straight,2,1:1:1,span,3,x",
    ):
        with pytest.raises(FileError, match="install minipipe again"):
            gallery_from(text)
