"""Costs are measured with any schedule: each time belongs to its action, and nothing is
updated.
"""

from unittest import mock

import numpy as np
import pytest

from minipipe import Pipeline, nn, optim, schedules, simulate, spawn
from minipipe.execution.timeline import gather_timeline
from minipipe.testing import same_bits
from minipipe.tuning import stages
from tests.launch import slowly

X = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
SCHEDULES = {
    "recomputed": schedules.recomputed(schedules.one_f_one_b(2, 4)),
    "recomputed in halves": schedules.recomputed(schedules.zb_h1(2, 4)),
    "recomputed on one rank": schedules.recomputed(schedules.gpipe(1, 4)),
    "offloaded": schedules.offloaded(schedules.gpipe(2, 4), 1),
    "both": schedules.offloaded(schedules.recomputed(schedules.gpipe(2, 4)), 1),
    "pipedream": schedules.pipedream(2, 4),
    "two-buffered": schedules.two_buffered(2, 4, 2),
    "paci": schedules.paci(2, 4),
    "paci on one rank": schedules.paci(1, 4),
}
UNTIMED = {"O", "L", "REDUCE_GRAD"}


def measured(group, schedule, num_replicas):
    """Return the costs, and the values before and after."""
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    pipeline = Pipeline(
        model, group, loss=nn.MSELoss(), schedule=schedule, replicas=num_replicas
    )
    before = pipeline.state_dict()
    costs = pipeline.measure_costs(X, X, num_steps=1)
    optimiser = optim.SGD(pipeline.parameters(), learning_rate=0.1)
    losses = list(map(float, pipeline.run([(X, X)], optimiser)))
    return costs, before, pipeline.state_dict(), losses


def gather_if_complete(group, records, program):
    """Gather a timeline after a look whether each action of this rank has its time."""
    row = [
        action
        for action in program.actions[group.rank]
        if not action.kind.is_communication
    ]
    timed = [action for action in row if action.kind.value not in UNTIMED]
    assert all(len(record.ran) == len(timed) for record in records), list(
        map(str, timed)
    )
    return gather_timeline(group, records, program)


@pytest.mark.parametrize("num_replicas", [1, slowly(2)])
@pytest.mark.parametrize("name", SCHEDULES)
def test_each_action_has_its_own_time_and_training_goes_on(name, num_replicas):
    schedule = SCHEDULES[name]
    num_ranks = schedule.num_ranks * num_replicas
    with mock.patch.object(stages, "gather_timeline", gather_if_complete):
        found = spawn(lambda group: measured(group, schedule, num_replicas), num_ranks)
    for costs, before, after, losses in found:
        assert (
            min(costs.forward) > 0
            and min(costs.backward_input) > 0
            and min(costs.backward_weight) > 0
        )
        assert simulate(schedules.zb_h1(schedule.num_stages, 4), costs).makespan > 0
        assert losses == found[0][3] and not all(
            same_bits(before[key], after[key]) for key in before
        )


@pytest.mark.parametrize("name", ["pipedream", "paci", "recomputed"])
def test_measuring_updates_no_parameter(name):
    def states(group):
        model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
        pipeline = Pipeline(model, group, loss=nn.MSELoss(), schedule=SCHEDULES[name])
        before = {key: np.array(value) for key, value in pipeline.state_dict().items()}
        pipeline.measure_costs(X, X, num_steps=1)
        after = pipeline.state_dict()
        return all(same_bits(before[key], after[key]) for key in before)

    assert spawn(states, 2) == [True, True]
