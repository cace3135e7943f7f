"""Published efficiencies with large vocabularies, predicted from shapes alone."""

import pytest

from minipipe import schedules, simulate
from minipipe.schedules.simulation.vocabulary_scale import (
    NUM_MICROBATCHES,
    vocabulary_runs,
)


def errors(efficiency):
    """Return the errors of the ratios to the smallest vocabulary."""
    runs = vocabulary_runs()
    found = []
    for first in range(0, len(runs), 4):
        base, *others = runs[first : first + 4]
        for run in others:
            ratio = run.published / base.published
            found.append(abs(efficiency(run) / efficiency(base) / ratio - 1))
    return found


def test_the_loss_of_efficiency_follows_from_operations():
    found = errors(lambda run: run.efficiency)
    assert len(found) == 18
    assert sum(found) / 18 == pytest.approx(0.0072, abs=0.0001)
    assert max(found) == pytest.approx(0.0192, abs=0.0001)


def test_without_the_output_layer_nothing_is_explained():
    assert max(errors(lambda run: 1.0)) > 0.9


@pytest.mark.parametrize("run", vocabulary_runs()[:8:3], ids=str)
def test_the_closed_form_is_the_simulated_1f1b(run):
    timeline = simulate(schedules.one_f_one_b(run.ranks, NUM_MICROBATCHES), run.costs())
    busy = sum(map(timeline.busy, range(run.ranks)))
    assert busy / run.ranks / timeline.makespan == pytest.approx(run.efficiency)
