"""What is no answer to a workload is refused, each reason by itself."""

import pytest

from minipipe import Costs, Schedule, schedules
from minipipe.errors import ScheduleError
from minipipe.schedules.simulation.evaluation import check_answer

ANSWERS = {(0, 1): "0F0 0I0 0W0\n1F0 1I0 1W0", (1, 0): "1F0 1I0 1W0\n0F0 0I0 0W0"}


@pytest.mark.parametrize("placement", ANSWERS)
def test_a_schedule_on_the_right_ranks_in_another_placement_is_no_answer(placement):
    """A mutant lived: `and` for `or`, by which either as many ranks or the same
    placement was enough.
    """
    schedule = Schedule(
        "mine", placement, 1, Schedule.from_text(ANSWERS[placement]).actions
    )
    workload = Costs().workload(placement, 1)
    check_answer(schedule, workload)
    with pytest.raises(ScheduleError, match="places its stages on ranks") as caught:
        check_answer(schedule, Costs().workload(placement[::-1], 1))
    assert caught.value.problems[0].code == "placement"


def test_whole_backwards_are_no_answer():
    with pytest.raises(ScheduleError, match="has backwards that are not split"):
        check_answer(schedules.one_f_one_b(2, 4), Costs().workload((0, 1), 4))
