"""Costs measured where ranks share cores: without the sharing, and with the cores that
ranks got.
"""

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Costs, nn, schedules, simulate, spawn
from minipipe.core.schedules.analysis.lowering import lower
from minipipe.core.tensor import record
from minipipe.pipeline import Pipeline
from minipipe.schedules.simulation.costs import Hosts
from minipipe.schedules.transforms import split_backward
from minipipe.tuning import stages
from minipipe.tuning.stages import CoreTimes, costs_on_shared_cores, crowded_hosts
from tests.strategies import examples


def on_one_core(monkeypatch):
    monkeypatch.setattr(stages, "cores", lambda: {0})


def batch(num_samples=8):
    return np.ones((num_samples, 5)), np.zeros((num_samples, 3))


def make_pipeline(group, *layers):
    model = nn.Sequential(nn.Linear(5, 40), nn.Tanh(), *layers, nn.Linear(40, 3))
    return Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=4)


# -- what is measured, given what happened ---------------------------------------------


def seen(schedule, costs):
    """Return a program, its timeline under costs, and the time for which its ranks
    would have had a core.
    """
    program = lower(split_backward(schedule))
    actions = np.array(
        [
            [time] * program.num_stages
            for time in (costs.forward, costs.backward_input, 1.0)
        ]
    )
    return program, simulate(program, costs), CoreTimes(actions, costs.overhead)


@examples(40)
@given(
    st.sampled_from(["1f1b", "gpipe", "zb-h1"]),
    st.floats(0.55, 1.0),
    st.floats(0.5, 3),
    st.floats(0, 0.3),
)
def test_a_run_tells_how_much_of_the_cores_its_ranks_got(name, part, forward, overhead):
    """With half of the cores or less, actions look as if they slept: then their times
    stay as they were measured.
    """
    true = Costs(forward, 1.5, 1.0, latency=0.1, overhead=overhead, cores=2 * part)
    program, timeline, times = seen(schedules.build(name, 4, 8), true)
    found = costs_on_shared_cores(
        Costs.measured(timeline),
        Hosts((0,) * 4, (2.0,)),
        program,
        [timeline] * 3,
        [times] * 3,
    )
    assert (found.forward, found.backward_input) == ([forward] * 4, [1.5] * 4)
    assert found.overhead == overhead and found.hosts is None
    assert simulate(program, found).makespan == pytest.approx(
        timeline.makespan, rel=1e-3
    )


def test_a_run_shorter_than_its_work_got_all_the_cores():
    program, timeline, times = seen(schedules.one_f_one_b(4, 8), Costs(cores=2))
    twice = CoreTimes(2 * times.actions, 0.0)
    hosts = Hosts((0,) * 4, (2.0,))
    assert (
        costs_on_shared_cores(
            Costs.measured(timeline), hosts, program, [timeline], [twice]
        ).cores
        == 2
    )


def test_of_several_hosts_each_gives_the_same_part_of_its_cores():
    true = Costs(cores=(0.5, 1.5), hosts=(0, 0, 1, 1))
    program, timeline, times = seen(schedules.one_f_one_b(4, 8), true)
    hosts = Hosts((0, 0, 1, 1), (1.0, 3.0))
    found = costs_on_shared_cores(
        Costs.measured(timeline), hosts, program, [timeline], [times]
    )
    assert found.hosts == (0, 0, 1, 1)
    assert simulate(program, found).makespan == pytest.approx(
        timeline.makespan, rel=1e-3
    )
    assert found.cores[1] == 3 * found.cores[0] < 3


def test_actions_that_wait_for_something_else_than_a_core_keep_their_times():
    program, timeline, times = seen(schedules.one_f_one_b(4, 8), Costs())
    asleep = CoreTimes(times.actions / 100, 0.0)
    costs = Costs.measured(timeline)
    assert (
        costs_on_shared_cores(
            costs, Hosts((0,) * 4, (2.0,)), program, [timeline], [asleep]
        )
        == costs
    )


def test_without_sharing_the_cores_that_were_got_cannot_be_found(monkeypatch):
    """The mutant: simulations that know of no cores."""
    exact = simulate
    monkeypatch.setattr(
        stages, "simulate", lambda program, costs: exact(program, Costs(costs.forward))
    )
    program, timeline, times = seen(schedules.one_f_one_b(4, 8), Costs(cores=1.0))
    hosts = Hosts((0,) * 4, (2.0,))
    found = costs_on_shared_cores(
        Costs.measured(timeline), hosts, program, [timeline], [times]
    )
    assert exact(program, found).makespan != pytest.approx(timeline.makespan, rel=1e-3)


# -- measured on ranks -----------------------------------------------------------------


def test_where_ranks_share_a_core_their_costs_are_those_of_a_core(monkeypatch):
    on_one_core(monkeypatch)

    def train(group):
        pipeline = make_pipeline(group)
        costs = pipeline.measure_costs(*batch(), num_steps=2)
        return costs, pipeline.step(*batch())

    (costs, loss), (other, _) = spawn(train, num_ranks=2, take_turns=True)
    assert costs == other and 0 < costs.cores <= 1 and costs.hosts is None
    assert all(
        time > 0
        for times in (costs.forward, costs.backward_input, costs.backward_weight)
        for time in times
    )
    assert (
        costs.overhead > 0 and costs.memory_unit == "bytes" and costs.activation[0] > 0
    )
    monkeypatch.undo()
    (alone, without), _ = spawn(train, num_ranks=2, take_turns=True)
    assert loss == without
    assert alone.cores is None or len(stages.cores()) < 2


class Nap(nn.Module):
    """Hands on what it gets, after 5 ms."""

    def forward(self, x):
        time.sleep(0.005)  # what is tested: time of a rank that passes without a core
        return record(x.data, (x, lambda gradient: gradient))


def test_a_sleep_takes_no_core(monkeypatch):
    on_one_core(monkeypatch)
    costs = spawn(
        lambda group: make_pipeline(group, Nap(), Nap()).measure_costs(
            *batch(), num_steps=1
        ),
        2,
    )[0]
    assert costs.cores is None and all(time > 0.005 for time in costs.forward)


@pytest.mark.parametrize(
    ("names", "cores", "expected"),
    [
        ("aaa", [{0}, {1}, {0, 1}], Hosts((0, 0, 0), (2.0,))),
        ("aaa", [{0}, {1}, {2}], None),  # as under `srun --cpu-bind=cores`
        ("aba", [{0}, {0, 1}, {0}], Hosts((0, 1, 0), (1.0, 2.0))),
        ("abc", [{7}, {7}, {7}], None),
    ],
)
def test_a_host_is_crowded_that_has_more_ranks_than_cores(
    monkeypatch, names, cores, expected
):
    here = threading.local()
    monkeypatch.setattr(stages.socket, "gethostname", lambda: names[here.rank])
    monkeypatch.setattr(stages, "cores", lambda: cores[here.rank])

    def ask(group):
        here.rank = group.rank
        return crowded_hosts(group, np), crowded_hosts(
            group, SimpleNamespace(__name__="cupy")
        )

    assert spawn(ask, num_ranks=3) == [(expected, None)] * 3
