"""When things break, with real processes: every rank ends soon, with one message that says who, where and why."""

import re
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.comm.faults import TIMEOUT
from tests.launch import mpirun, needs_mpi, slowly

# A group that a with-block ends, and one that ends with the program.
pytestmark = [needs_mpi, pytest.mark.parametrize("style", ["with", slowly("without")])]

START = 5.0  # generous: four interpreters on two busy cores
PROMISED = 3.0  # seconds from the fault to the end


def break_down(fault, style, limit, num_ranks=4, **changes):
    """Run a fault; return exit code and what our ranks said. The time limit is three times what was promised."""
    done = mpirun(num_ranks, "-m", "tests.comm.faults", fault, style, limit=START + 3 * limit, **changes)
    end = time.perf_counter() + limit
    while left := processes_of(f"tests.comm.faults {fault} {style}"):  # killed, but not yet gone
        assert time.perf_counter() < end, f"processes {left} are still there"
    print(f"{fault} {style}: ended after {done.seconds:.2f} s, start included; promised {limit:.1f} s")
    assert done.code != 0
    return done.code, [line for line in done.err.splitlines() if line.startswith("[rank")]


def processes_of(words):
    """Return the numbers of the processes in whose command line the words stand."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # gone meanwhile
            if words in path.read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                found.append(path.parent.name)
    return found


def test_a_rank_that_raises_ends_all_with_one_traceback(style):
    code, said = break_down("raises", style, PROMISED)
    assert code == 1
    assert {line[:8] for line in said} == {"[rank 2]"}
    assert said[0].endswith("Traceback (most recent call last):") and said[-1] == "[rank 2] ValueError: boom"


@pytest.mark.parametrize("fault", ["exits", "exits_in_a_collective"])
def test_a_rank_that_exits_ends_all_with_its_code(fault, style):
    code, _ = break_down(fault, style, PROMISED)
    assert code == 7


def test_a_rank_that_returns_early_ends_all_and_is_named(style):
    code, said = break_down("returns_early", style, PROMISED)
    assert code == 1
    assert re.fullmatch(
        r"\[rank 2\] This rank came to its end early\. Rank [013] has waited .* for a message with tag 0 from rank 2; "
        r"but rank 2 has come to its end\.",
        said[0],
    )


@pytest.mark.parametrize("can_read_other_memory", [slowly("1", id="CMA"), pytest.param("0", id="no CMA")])
def test_a_rank_that_stops_in_the_middle_of_a_large_array_hangs_nobody(style, can_read_other_memory):
    """The story: without CMA the one blocking call waited for ever for the rest of the bytes."""
    changes = {"MPIR_CVAR_CH4_CMA_ENABLE": can_read_other_memory}
    _, said = break_down("stops_in_the_middle_of_a_large_array", style, TIMEOUT + PROMISED, **changes)
    assert re.search(r"has waited [12]\.\d s", "\n".join(said))


def test_a_send_that_its_rank_leaves_behind_arrives_without_cma(style):
    """The story: a rank at its end slept between looks, and each look moved one chunk."""
    done = mpirun(2, "-m", "tests.comm.faults", "leaves_a_large_send_behind", style, MPIR_CVAR_CH4_CMA_ENABLE="0")
    assert (done.code, done.err) == (0, "")


def test_a_rank_that_dies_before_there_is_a_group_hangs_nobody(style):
    """The story: the others waited inside of MPI for the timeout, and showed frames of importlib."""
    code, said = break_down("raises_before_there_is_a_group", style, PROMISED)
    assert code == 1 and len(said) == 1 and "Rank 1 ended before it came to init_process_group()" in said[0]


@pytest.mark.parametrize(
    "fault",
    [
        "catches_an_exit_and_goes_on",
        "exits_with_zero_at_the_end",
        slowly("works_on_alone_after_the_others"),
        slowly("leaves_a_large_send_behind"),  # where ranks read each other's memory; above where they do not
    ],
)
def test_an_exit_that_is_caught_or_zero_ends_nobody(fault, style):
    done = mpirun(3, "-m", "tests.comm.faults", fault, style)
    assert (done.code, done.err) == (0, "")
    if fault == "catches_an_exit_and_goes_on":
        assert done.out.count("ended well") == 3


def test_a_rank_that_stops_answering_is_named_after_the_timeout(style):
    code, said = break_down("stops", style, TIMEOUT + PROMISED)
    assert code == 1
    assert re.search(
        r"Rank \d has waited 1\.\d s, since \d\d:\d\d:\d\d, for a message with tag 11 from rank 2", said[0]
    )
    assert said[-1].endswith("Rank 2 does not answer: stopped by a signal.")


def test_a_rank_that_stops_at_its_end_is_named(style):
    """The story: it held the job for ten timeouts, and a rank that worked on alone was ended after as many."""
    _, said = break_down("stops_at_the_end", style, TIMEOUT + PROMISED)
    assert said[-1].endswith("Rank 2 does not answer: stopped by a signal.")


def test_a_rank_that_stops_in_a_step_is_named_with_what_was_awaited(style):
    _, said = break_down("stops_in_a_step", style, TIMEOUT + PROMISED)
    assert "MessageError" in "\n".join(said) and said[-1].endswith("Rank 2 does not answer: stopped by a signal.")


def test_a_message_with_another_tag_is_a_timeout_that_names_both_sides(style):
    _, said = break_down("sends_another_tag", style, TIMEOUT + PROMISED, num_ranks=2)
    assert re.search(r"Rank 1 has waited longest: for a message with tag 6 from rank 0\..*with tag 5", said[-1]), said


@pytest.mark.slow
def test_a_large_array_that_nobody_takes_is_a_timeout(style):
    _, said = break_down("sends_a_large_array_that_nobody_takes", style, TIMEOUT + PROMISED, num_ranks=2)
    assert "for rank 1 to take float64 (1048576,) with tag 0" in said[0]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("disagrees_about_the_width", "The model of rank 1 differs from that of rank 0"),
        slowly("disagrees_about_the_seed", "The seed of rank 3 differs from that of rank 0"),
        slowly("disagrees_about_the_schedule", "The schedule of rank 0 differs from that of rank 1"),
        ("sends_another_dtype", "sent float64 (3,) to rank 1, which expects float32 (3,)"),
        ("has_a_schedule_that_deadlocks", "These ranks wait for each other in a cycle"),
        slowly("too_few_layers", "1 layers cannot make 4 stages"),
        slowly("too_few_samples", "A batch of 3 samples cannot make 4 microbatches"),
        slowly("wrong_number_of_ranks", "gpipe is made for 2 ranks, but there are 4"),
    ],
)
def test_what_cannot_work_is_one_line_without_a_traceback(fault, words, style):
    _, said = break_down(fault, style, PROMISED)
    lines = [
        line for line in said if not re.match(r"\[rank \d\] (rank \d: |$)", line)
    ]  # without the grid of a schedule
    assert len(lines) == 1 and words in lines[0], said


def test_ranks_that_step_unequally_often_are_told_the_steps(style):
    _, said = break_down("steps_unequally_often", style, PROMISED)
    assert re.search(r"Rank \d is in step\(\), call 2 of pipeline 1, but rank 0 in step\(\), call 1", "\n".join(said))


def test_a_layer_that_raises_names_rank_stage_microbatch_and_action(style):
    _, said = break_down("a_layer_raises", style, PROMISED)
    assert "[rank 2] RuntimeError: broken layer" in said
    assert said[-1] == "[rank 2] on rank 2, stage 2, microbatch 0, action 2F0 of 1f1b, step 1"


def test_abort_ends_all_with_its_code(style):
    code, _ = break_down("aborts", style, PROMISED)
    assert code == 9
