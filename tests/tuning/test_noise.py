"""How noisy a machine was while costs were measured: told by processor and wall time,
and by waits for a core.
"""

import threading
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Pipeline, nn, spawn
from minipipe.comm.job import host
from minipipe.schedules.simulation.costs import Hosts
from minipipe.tuning import stages
from minipipe.tuning.stages import CoreWatch
from tests.strategies import examples


class Clocks:
    """Clocks of ranks that had a core, and waited for one, as invented."""

    def __init__(self, *elapsed):
        self.elapsed, self.here = elapsed, threading.local()

    def watch(self, group):
        self.here.times = (0.0, 0.0, 0.0)
        found = CoreWatch()
        self.here.times = self.elapsed[group.rank]
        return found

    def install(self, patch):
        patch.setattr(stages, "core_times", lambda: self.here.times[:2])
        patch.setattr(stages, "perf_counter", lambda: self.here.times[2])


def warned(elapsed, hosts=None):
    """Return what is said of ranks with such (seconds with a core, waiting for one, of
    all).
    """
    clocks = Clocks(*elapsed)
    with (
        pytest.MonkeyPatch.context() as patch,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        clocks.install(patch)
        spawn(lambda group: clocks.watch(group).warn(group, hosts), len(elapsed))
    return [str(each.message) for each in caught]


def test_a_busy_machine_is_told_once_with_processor_and_wall_time():
    """The story: on a busy machine costs predicted 33 ms for steps of 97, without a
    word.
    """
    (said,) = warned([(1.0, 2.0, 4.0), (1.0, 1.0, 4.0)])
    assert (
        "of 8.000 s on all ranks, the ranks had a core for 2.000 s of processor time"
        in said
    )
    assert "waited for one for 3.000 s." in said


def test_ranks_that_wait_for_messages_alone_are_not_called_busy():
    assert warned([(0.1, 0.0, 4.0), (0.1, 0.1, 4.0)]) == []


def test_what_sharing_cores_explains_is_not_noise():
    """Four ranks on two cores: while one waits, two run."""
    two = Hosts((0,) * 4, (2.0,))
    assert warned([(2.0, 2.0, 4.0)] * 4, two) == []
    (said,) = warned([(1.0, 2.0, 4.0)] * 4, two)
    assert (
        "waited for one for 8.000 s; sharing cores explains at most 4.000 s of it."
        in said
    )
    # with a core for each, none would have to wait
    assert warned([(2.0, 2.0, 4.0)] * 4) != []


@examples(50)
@given(
    st.integers(1, 3),
    st.integers(2, 6),
    st.lists(st.floats(0.01, 5), min_size=6, max_size=6),
)
def test_ranks_that_share_cores_fairly_with_nobody_else_are_never_called_busy(
    cores, ranks, work
):
    """However much each has to do: whoever waits sees all cores at work, so waits are
    at most those explained.
    """
    left, times = (
        dict(enumerate(work[:ranks])),
        {rank: [0.0, 0.0, 0.0] for rank in range(ranks)},
    )
    while left:
        rate = min(1.0, cores / len(left))
        passed = min(left.values()) / rate
        for rank in left:
            times[rank][0] += rate * passed
            times[rank][1] += (1 - rate) * passed
        for each in times.values():
            each[2] += passed
        left = {
            rank: rest - rate * passed
            for rank, rest in left.items()
            if rest - rate * passed > 1e-12
        }
    hosts = Hosts((0,) * ranks, (float(cores),)) if ranks > cores else None
    assert warned([tuple(times[rank]) for rank in range(ranks)], hosts) == []


def test_measuring_costs_on_a_busy_machine_warns(monkeypatch):
    waits = iter(float(n) for n in range(10**6))
    monkeypatch.setattr(stages, "core_times", lambda: (0.0, 1e3 * next(waits)))

    def measure(group):
        pipeline = Pipeline(
            nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), group, loss=nn.MSELoss()
        )
        return pipeline.measure_costs(np.ones((8, 2)), np.ones((8, 2)), num_steps=1)

    with pytest.warns(UserWarning, match="measured on a busy machine"):
        spawn(measure, 2)


def test_the_time_with_a_core_is_that_of_this_thread_and_without_linux_it_is_known_too(
    monkeypatch,
):
    before = host.core_times()
    sum(range(10**6))
    after = host.core_times()
    assert after[0] >= before[0] and after[1] >= before[1] >= 0
    monkeypatch.setattr(
        "builtins.open",
        lambda *given, **options: (_ for _ in ()).throw(FileNotFoundError()),
    )
    assert host.core_times()[0] > 0 and host.core_times()[1] == 0.0
