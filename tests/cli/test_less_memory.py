"""Recomputation and offload from the command line."""

import pytest

from minipipe import Schedule, schedules

EIGHTH = "activation=0.125,transient_activation=0.875"


@pytest.mark.parametrize(
    ("options", "costs", "makespan", "peak"),
    [
        (["--recompute"], EIGHTH, 41, "1.375"),
        (["--offload", 2], "copy_bandwidth=1", 33, "3"),
        (
            ["--offload", 1, "--recompute"],
            f"copy_bandwidth=0.0625,{EIGHTH}",
            55,
            "1.25",
        ),
    ],
)
def test_a_schedule_takes_less_memory(options, costs, makespan, peak, ask):
    status, out, _ = ask("simulate", "1f1b", *options, "--costs", costs)
    assert status == 0 and out.endswith(f"makespan {makespan} units\n")
    assert out.splitlines()[3].split()[-1] == peak
    assert "best possible" not in out  # no bound is proved for them


def test_a_shown_schedule_is_that_of_the_transforms(ask):
    _, out, _ = ask("show", "1f1b", "--recompute", "--offload", 2, "--format", "rows")
    both = schedules.offloaded(schedules.recomputed(schedules.one_f_one_b(4, 8)), 2)
    assert Schedule.from_text(out).actions == both.actions
    status, _, err = ask("show", "1f1b", "--recompute", "--format", "csv")
    assert status == 1 and "PyTorch's CSV has no such action; write it as text" in err


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["forward-only", "--recompute"], "--recompute: forward-only has no backward"),
        (["gpipe", "--offload", 0], "--offload is 0; expected a whole number"),
    ],
)
def test_what_cannot_be_done_is_wrong_usage(given, words, ask):
    status, _, err = ask("show", *given)
    assert status == 2 and words in err


def test_a_step_says_what_a_rank_waits_for(ask):
    _, out, _ = ask("step", "1f1b", "--offload", 1, "--costs", "copy_bandwidth=0.5")
    assert "waits for the activations that 0L7 loads until 45" in out
