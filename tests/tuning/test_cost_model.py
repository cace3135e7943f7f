"""What is measured: layers with microbatches of several sizes, on a clock that stands
still, and messages.
"""

import json

import numpy as np
import pytest

from minipipe import Microbatches, advise, nn, spawn
from minipipe.errors import (
    ArgumentError,
    LaunchError,
    MicrobatchError,
    ModelError,
    PartitionError,
)
from minipipe.tuning import Messages
from minipipe.tuning.stages import measure_messages, messages_of_this_machine
from tests.launch import needs_mpi, slowly


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    """Give tables and sentences all the room that they want."""
    monkeypatch.setenv("COLUMNS", "1000")


X = np.ones((16, 4), np.float32)


class Takes(nn.Module):
    """Takes a time that is known, in forward: for each call, and for each sample."""

    def __init__(self, clock, call, sample):
        self.clock, self.call, self.sample = clock, call, sample

    def forward(self, x):
        self.clock.now += self.call + self.sample * len(x)
        return x * 1.0


class Clock:
    """Stands in for time.perf_counter: it stands still, but for the layers."""

    now = 0.0

    def __call__(self):
        return self.now

    def __deepcopy__(self, memo):
        return self


@pytest.fixture
def clock(monkeypatch):
    stopped = Clock()
    monkeypatch.setattr("minipipe.tuning.measuring.perf_counter", stopped)
    return stopped


def advised(clock, call, sample, **options):
    model = nn.Sequential(*(Takes(clock, call, sample) for _ in range(4)))
    return advise(
        model, X, num_ranks=2, messages="assumed", seconds=0, repeats=1, **options
    )


def test_the_time_of_each_size_is_measured(clock):
    advice = advised(clock, call=1.0, sample=0.25)
    assert {
        count: layers.times[0] for count, layers in advice.measured.layers.items()
    } == {count: 1 + 0.25 * 16 / count for count in (1, 2, 4, 8, 16)}


@pytest.mark.parametrize(
    ("call", "sample", "best"),
    [slowly(0.0, 1.0, 16), slowly(1.0, 0.0, 1), (1.0, 1.0, 4)],
)
def test_the_best_number_of_microbatches_follows_from_it(clock, call, sample, best):
    """Forward over two ranks of two layers takes (m + 1) 2 (call + 16 sample / m): 54,
    50, 54 for m = 2, 4, 8.
    """
    choices = advised(clock, call, sample, chunks_per_rank=1, replicas=1).choices
    found = next(choice for choice in choices if not choice.schedule.has_replicas)
    assert found.candidate.num_microbatches == best
    assert found.time == pytest.approx((best + 1) * 2 * (call + 16 * sample / best))


def test_given_microbatches_are_taken_as_they_are():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    parts = Microbatches([X[:3], X[3:8], X[8:]])
    advice = advise(model, parts, num_ranks=2, messages="assumed", seconds=0, repeats=1)
    assert {choice.candidate.num_microbatches for choice in advice.choices} == {3}


def test_numbers_of_microbatches_that_do_not_fit_are_left_out_and_refused_where_none_fits():
    model, parts = nn.Sequential(nn.Linear(4, 4)), Microbatches([X[:8], X[8:]])
    options = {"num_ranks": 1, "messages": "assumed", "seconds": 0, "repeats": 1}
    assert [*advise(model, parts, **options).measured.layers] == [2]
    with pytest.raises(
        MicrobatchError, match="given as 2 microbatches, but the schedule has 4"
    ):
        advise(model, parts, num_microbatches=4, **options)


@pytest.mark.parametrize(
    ("model", "options", "error", "words"),
    [
        (nn.Linear(4, 4), {}, ModelError, "partitions an nn.Sequential"),
        (nn.Sequential(nn.Tanh()), {}, PartitionError, "1 layer cannot make 2 stages"),
        (
            None,
            {"targets": X},
            ArgumentError,
            "advise has targets, but no loss; give both, or neither",
        ),
        (
            None,
            {"loss": nn.MSELoss()},
            ArgumentError,
            "advise has a loss, but no targets",
        ),
        (
            None,
            {"messages": "fast"},
            ArgumentError,
            r"messages is 'fast'; expected Messages\(latency, bandwidth\)",
        ),
        (
            None,
            {"num_microbatches": 99},
            MicrobatchError,
            "cannot make 99 microbatches",
        ),
        (
            None,
            {"seconds": -1},
            ArgumentError,
            "seconds is -1; expected a finite time, at least 0",
        ),
        slowly(
            None,
            {"memory_limit": "1"},
            ValueError,
            "No choice needs at most 1 B on every rank",
        ),
    ],
)
def test_what_cannot_be_advised_is_refused(model, options, error, words):
    model = model or nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with pytest.raises(error, match=words):
        advise(
            model,
            X,
            num_ranks=2,
            **{"messages": Messages(), "seconds": 0, "repeats": 1, **options},
        )


@pytest.mark.slow
def test_messages_are_measured_between_the_ranks_at_hand():
    found = spawn(lambda group: measure_messages(group, "threads"), 3)
    assert found[1:] == [Messages()] * 2 and found[0].measured_on == "threads"
    assert found[0].latency >= 0 and found[0].bandwidth > 0 and found[0].overhead > 0


def test_one_rank_has_no_messages():
    assert spawn(lambda group: measure_messages(group, "alone"), 1)[0][:2] == (
        0.0,
        float("inf"),
    )


def test_a_launcher_that_starts_nothing_is_reported(monkeypatch):
    monkeypatch.setattr("minipipe.tuning.stages.launcher_of_ranks", lambda: "false")
    words = "false -n 2 cannot start ranks to measure messages: no error message"
    with pytest.raises(LaunchError, match=words) as caught:
        messages_of_this_machine(2)
    assert caught.value.code == "unavailable"


@needs_mpi
@pytest.mark.slow
def test_messages_are_measured_between_ranks_of_mpirun():
    found = messages_of_this_machine(2)
    assert found.measured_on == "MPI ranks" and json.dumps(found._asdict())
    assert 0 <= found.latency < 1 and found.bandwidth > 0


def test_advice_says_when_other_programs_had_the_core_while_layers_were_measured(
    monkeypatch,
):
    model, x = (
        nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)),
        np.ones((4, 2), np.float32),
    )
    for waited, is_told in ((0.0, False), (3.0, True)):
        clock = iter([(0.0, 0.0), (1.0, waited)])
        monkeypatch.setattr("minipipe.tuning.advising.core_times", clock.__next__)
        said = str(
            advise(
                model,
                x,
                num_ranks=2,
                num_microbatches=2,
                messages="assumed",
                seconds=0,
                repeats=1,
            )
        )
        told = (
            "The machine was busy: during 75 % of the layer measurements, other "
            "programs had the core"
        )
        assert (told in said) is is_told
