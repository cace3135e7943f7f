"""The costs of messages: every pair of neighbours is measured, and a pipeline at
work.
"""

import pytest

from minipipe import Costs, spawn
from minipipe.tuning import Messages, stages
from minipipe.tuning.stages import measure_messages


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
@pytest.mark.parametrize("at_work", [1e-4, 1e-2])
def test_all_pairs_of_neighbours_are_measured_and_the_slower_latency_counts(
    monkeypatch, num_ranks, at_work
):
    measured = []

    def pair(group, first):
        measured.append((first, group.rank))
        # A message of 8 bytes takes 1 ms, and each further byte 1 us.
        return [(8.0, 1e-3), (1008.0, 2e-3)] if group.rank == first else []

    monkeypatch.setattr(stages, "_pair", pair)
    monkeypatch.setattr(
        stages,
        "_costs_at_work",
        lambda group: Costs(latency=at_work, overhead=0.5, cores=2.0),
    )
    first, *others = spawn(lambda group: measure_messages(group, "here"), num_ranks)
    assert sorted(measured) == [
        (pair, rank) for pair in range(num_ranks - 1) for rank in range(num_ranks)
    ]
    assert first.bandwidth == pytest.approx(
        1e6, rel=1e-3
    ) and first.latency == pytest.approx(max(at_work, 1e-3), rel=0.02)
    assert (first.overhead, first.cores, first.measured_on) == (0.5, 2.0, "here")
    assert others == [Messages()] * (num_ranks - 1)


def test_a_pair_alone_measures_its_own_messages_on_its_first_rank(monkeypatch):
    monkeypatch.setattr(stages, "_REPEATS", 4)
    for first in (0, 1):
        found = spawn(lambda group, first=first: stages._pair(group, first), 3)
        assert [bool(own) for own in found] == [rank == first for rank in range(3)]
        assert [size for size, _ in found[first]] == [
            float(size) for size in stages._SIZES
        ]
        assert all(seconds > 0 for _, seconds in found[first])
