"""Choices that run: whose turn it is, who wins, and the batch that all ranks have in
common.
"""

import gc
import weakref
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Microbatches, Pipeline, Replicated, nn, schedules, spawn
from minipipe.comm import OneRankGroup
from minipipe.errors import ArgumentError
from minipipe.execution.samples import samples
from minipipe.testing import same_bits
from minipipe.tuning import Advice, race
from minipipe.tuning.advising import weigh
from minipipe.tuning.race import (
    Race,
    advice_on_ranks,
    choices_of_rank_0,
    field_of,
    turns,
)
from minipipe.tuning.weighing import Question
from tests.tuning import invented


def asked(inputs, targets=None):
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(2)))
    return Question(model, inputs, targets, {"loss": nn.MSELoss()})


def raced(seconds_of_turns, seconds, kept=()):
    """Return what ran, and in which order: every choice takes always as long as it
    says, on a clock of its own.
    """
    times, order, now = {}, [], 0.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(race, "perf_counter", lambda: now)
        for choice in turns(len(seconds_of_turns), seconds, times, kept):
            order.append(choice)
            times.setdefault(choice, []).append(seconds_of_turns[choice])
            now += seconds_of_turns[choice]
    return times, order


TIMES = st.lists(st.floats(0.1, 10), min_size=1, max_size=40, unique=True)


@given(TIMES)
def test_the_fastest_wins_and_has_the_most_turns(seconds_of_turns):
    times, _ = raced(seconds_of_turns, 10 * sum(seconds_of_turns))
    winner = min(times, key=lambda choice: (-len(times[choice]), median(times[choice])))
    assert set(times) == set(range(len(seconds_of_turns)))
    assert seconds_of_turns[winner] == min(seconds_of_turns)


@given(TIMES, st.data())
def test_choices_that_are_kept_run_in_every_turn(seconds_of_turns, data):
    kept = data.draw(st.sets(st.integers(0, len(seconds_of_turns) - 1), max_size=2))
    times, _ = raced(seconds_of_turns, 10 * sum(seconds_of_turns), kept)
    assert all(len(times[choice]) == max(map(len, times.values())) for choice in kept)


@given(TIMES, st.floats(0.1, 1000))
def test_the_first_turns_take_a_fifth_of_the_time_and_the_last_ones_are_left_out(
    seconds_of_turns, seconds
):
    times, order = raced(seconds_of_turns, seconds)
    assert order[: len(times)] == list(range(len(times)))
    assert len(times) == 1 or sum(seconds_of_turns[: len(times) - 1]) <= seconds / 5
    assert sum(seconds_of_turns[choice] for choice in order) <= seconds + sum(
        seconds_of_turns
    )


@pytest.mark.parametrize("root", [0, 2])
def test_the_batch_of_one_rank_is_that_of_all(root):
    x, y = np.arange(12.0).reshape(6, 2), np.arange(6)

    def share(group):
        inputs = {"x": x, "scale": Replicated(2.0)} if group.rank == root else None
        question = Race(
            asked(inputs, y if group.rank == 1 else None), group, Pipeline
        ).question
        return question.inputs, question.targets

    for inputs, targets in spawn(share, 3):
        assert (
            set(inputs) == {"x", "scale"}
            and isinstance(inputs["scale"], Replicated)
            and inputs["scale"].value == 2
        )
        assert same_bits(inputs["x"], x) and same_bits(targets, y)


def test_microbatches_stay_microbatches():
    parts = Microbatches([np.ones((2, 5)), np.zeros((3, 7))])
    found = spawn(
        lambda group: (
            Race(asked(parts if group.rank else None), group, Pipeline).question.inputs
        ),
        2,
    )
    assert [part.shape for part in found[0]] == [(2, 5), (3, 7)]
    assert samples(found[0], "inputs").layout == samples(parts, "inputs").layout


def test_a_batch_of_another_dtype_is_taken_as_a_pipeline_takes_it():
    """The story: what came from another rank was not converted, and float64 met the
    float32 of the model.
    """
    x = np.random.default_rng(0).standard_normal((4, 4))
    found = spawn(
        lambda group: len(
            Race(asked(x, x), group, Pipeline).turn(
                {"schedule": "gpipe", "num_microbatches": 2}
            )
        ),
        2,
    )
    assert found == [2, 2]


@pytest.mark.slow
def test_a_choice_with_frozen_stages_reaches_other_ranks_and_runs():
    """The story: its text said nothing of them, and their backward was missing."""
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    model[0].freeze()
    x, cut = np.ones((8, 4), np.float32), [range(i, i + 1) for i in range(4)]
    own = {"schedule": "1f1b", "num_microbatches": 4, "partition": cut}
    question = Question(
        model, x, x, {"loss": nn.MSELoss()}, num_microbatches=4, own=own
    )
    found = spawn(
        lambda group: advice_on_ranks(question, group, Pipeline, "threads", 0.1), 4
    )[0]
    assert found.own.schedule.frozen == {0} and found.own.measured > 0


def test_without_a_batch_every_rank_says_so():
    def refuse(group):
        with pytest.raises(ArgumentError, match="on at least one rank") as caught:
            Race(asked(None), group, Pipeline)
        return str(caught.value.code)

    assert spawn(refuse, 2) == ["value"] * 2


def test_choices_run_on_the_ranks_at_hand():
    """All of them give every rank the same times, though the clocks of thread ranks say
    nothing about schedules.
    """
    x = np.ones((4, 4), np.float32)
    cut = [range(0, 1), range(1, 2)]
    choices = [
        {"schedule": build(2, 4), "partition": cut}
        for build in (schedules.gpipe, schedules.one_f_one_b)
    ]

    def run(group):
        return Race(asked(x, x), group, Pipeline).run(choices, seconds=0.5)

    found, other = spawn(run, 2)
    assert other == found
    assert 0 in found and set(found) <= {0, 1}  # a slow machine has no time for both
    assert all(min(times) > 0 and len(times) >= 2 for times in found.values())


class KnowsItself(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.again = [lambda: self]


@pytest.mark.parametrize("layer", [nn.Linear, KnowsItself])
def test_one_pipeline_at_a_time_has_memory(layer):
    """Whatever the layers are: where they know themselves, they stay until Python looks
    for such.
    """
    x, before, alive = np.ones((4, 4), np.float32), [], []

    class Watched(Pipeline):
        def __init__(self, *given, **options):
            alive.append([parameter for parameter in before if parameter() is not None])
            super().__init__(*given, **options)
            before.extend(map(weakref.ref, self.parameters()))

    question = Question(
        nn.Sequential(layer(4, 4), nn.Linear(4, 4)), x, x, {"loss": nn.MSELoss()}
    )
    tried = Race(question, OneRankGroup(), Watched)
    gc.disable()
    try:
        for _ in range(6):
            tried.turn({"schedule": "gpipe", "num_microbatches": 2})
    finally:
        gc.enable()
    assert alive == [[]] * 6 and len(before) == 24


def test_the_best_choice_of_each_number_of_microbatches_and_replicas_races_first_and_the_own_one_to_the_end():
    """All ranks at work slow small microbatches down more, or less: only the race tells
    how many are best.
    """
    found = weigh(invented.asked(), 2, invented.measured(4, [2, 4, 8]), 0)
    own = found.choices[-1]
    field, num_kept = field_of(Advice(found.choices, found.measured, own=own))
    counts = [choice.candidate.num_microbatches for choice in field]
    assert num_kept == 1 and field[0] is own and set(counts[1:6]) == {2, 4, 8}
    assert {choice.candidate.replicas for choice in field[1:6]} == {1, 2}
    assert len({choice.program for choice in field}) == len(field) <= 33
    assert field[1] is next(
        choice for choice in found.choices if choice.program != own.program
    )


def test_choices_reach_other_ranks_as_options_of_a_pipeline():
    choices = weigh(invented.asked(), 2, invented.measured(4, [4]), 0).choices[:5]
    first, second = spawn(
        lambda group: choices_of_rank_0(group, [] if group.rank else choices), 2
    )
    assert first == second == [dict(choice.options) for choice in choices]
