"""When things break, with real processes: every rank ends soon, with one message that
says who, where and why.

A small part of the bench; ``python -m tests.faults --full`` runs every fault of the
table, in every place, on every rank.
"""

import pytest

from tests.faults.bench import run, shortfalls
from tests.faults.table import case_of
from tests.launch import needs_mpi, slowly

pytestmark = needs_mpi

SLACK = 3.0  # times the promised figure


def check(*fault, **options):
    """Run a case of the table; nothing may fall short of it."""
    case = case_of(*fault, **options)
    outcome = run(case, SLACK)
    print(f"{case}: ended after {outcome.seconds} s; promised {case.fault.limit:.1f} s")
    assert not shortfalls(case, outcome, SLACK), f"{case}\n{outcome.out}\n{outcome.err}"


# -- a rank ends -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "place", "rank"),
    [
        ("is_killed", "steady", 1),
        slowly("crashes", "cool-down", 2),
        slowly("leaves_python", "exit", 3),
    ],
)
def test_a_rank_that_is_killed_is_named(name, place, rank):
    """The story: the launcher's banner had a process number, and nobody told whose."""
    check(name, place, rank)


@pytest.mark.parametrize(
    ("name", "place"),
    [("is_killed_with_children", "cool-down"), ("raises_with_children", "steady")],
)
@pytest.mark.slow
def test_no_child_of_a_rank_keeps_its_job_alive(name, place):
    """The story: a data loader's child had all descriptors of its rank, and the
    launcher waited for their end.
    """
    check(name, place, 2)


@pytest.mark.slow
def test_a_child_ends_with_a_rank_that_has_come_to_its_end():
    check("leaves_a_child_behind", "between steps", 2)


@pytest.mark.parametrize(
    "name", [slowly("closes_all_files"), "closes_the_socket_to_the_launcher"]
)
@pytest.mark.slow
def test_a_rank_that_closes_its_descriptors_blames_nobody_else(name):
    """The story: the launcher killed all at once, and the first to be gone was "killed
    by SIGKILL".
    """
    check(name, "between steps", 2)


@pytest.mark.slow
def test_a_signal_that_the_launcher_passes_on_is_no_failure_of_a_rank():
    """The story: one of the ranks "crashed (signal 3: Quit)"."""
    check("sends_the_launcher_sigquit", "steady", 2)


@pytest.mark.parametrize("place", ["warm-up", slowly("between steps"), slowly("exit")])
def test_a_rank_that_raises_ends_all_with_one_traceback(place):
    check("raises", place, 2)


@pytest.mark.parametrize(
    ("name", "place", "rank"),
    [("raises", "first line", 3), slowly("exits", "before the group", 1)],
)
def test_a_rank_that_fails_before_there_is_a_group_hangs_nobody(name, place, rank):
    """The story: the others waited inside of MPI for the timeout, and showed frames of
    importlib.
    """
    check(name, place, rank)


@pytest.mark.parametrize(
    ("name", "place", "style"),
    [
        slowly("exits", "between steps", "with"),
        slowly("exits_in_a_collective", "", "with"),
        slowly("exits", "steady", "without"),
        ("raises_an_exit", "construction", "without"),
    ],
)
def test_a_rank_that_exits_ends_all_with_its_code(name, place, style):
    """The story: without a with-block, ``raise SystemExit(7)`` ended with 1, since no
    hook of Python sees it.
    """
    check(name, place, 2, style)


@pytest.mark.parametrize("style", ["with", slowly("without")])
@pytest.mark.slow
def test_a_rank_that_returns_early_ends_all_and_is_named(style):
    check("returns_early", "between steps", 2, style)


@pytest.mark.slow
def test_abort_ends_all_with_its_code():
    check("aborts", "between steps", 1)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        slowly("catches_an_exit_and_goes_on", ""),
        slowly("exits_with_zero_at_the_end", ""),
        slowly("forks_and_the_child_exits", "between steps"),
        slowly("works_on_alone_after_the_others", ""),
    ],
)
def test_an_exit_that_is_caught_or_zero_or_of_a_child_ends_nobody(name, place):
    """The stories: a forked child announced the shutdown of its rank; a rank that
    worked on was ended in the end.
    """
    check(name, place)


# -- a rank stops answering ------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "place", "rank"),
    [
        ("stops", "steady", 3),
        slowly("sleeps", "between steps", 2),
        slowly("stops", "construction", 0),
        slowly("spins", "cool-down", 1),
        slowly("holds_the_lock", "warm-up", 2),
        slowly("stops", "before the group", 1),
    ],
)
def test_a_rank_that_stops_answering_is_named_after_the_timeout(name, place, rank):
    """The story: 48 of 48 runs blamed rank 1, which only happened to be next to the
    lowest waiting rank.
    """
    check(name, place, rank)


@pytest.mark.slow
@pytest.mark.parametrize("style", ["with", "without"])
def test_a_rank_that_stops_at_its_end_is_named(style):
    """The story: it held the job for ten timeouts, and a rank that worked on alone was
    ended after as many.
    """
    check("stops", "exit", 1, style)


@pytest.mark.parametrize(
    "can_read_other_memory", [slowly("1", id="CMA"), slowly("0", id="no CMA")]
)
def test_a_rank_that_stops_in_the_middle_of_a_large_array_hangs_nobody(
    can_read_other_memory,
):
    """The story: without CMA the one blocking call waited for ever for the rest of the
    bytes.
    """
    check(
        "stops_in_the_middle_of_a_large_array",
        MPIR_CVAR_CH4_CMA_ENABLE=can_read_other_memory,
    )


@pytest.mark.slow
@pytest.mark.parametrize("can_read_other_memory", ["0", "1"], ids=["no CMA", "CMA"])
def test_a_send_that_its_rank_leaves_behind_arrives(can_read_other_memory):
    """The story: without CMA a rank at its end slept between looks, and each look moved
    one chunk.
    """
    check("leaves_a_large_send_behind", MPIR_CVAR_CH4_CMA_ENABLE=can_read_other_memory)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["stops_in_a_subgroup", "sends_another_dtype_in_a_subgroup"]
)
def test_a_rank_of_a_subgroup_is_called_by_its_number_in_the_world(name):
    """The story: rank 3 of the world was called rank 1, its number in the subgroup, and
    rank 1 was blamed.
    """
    check(name, rank=3)


@pytest.mark.slow
def test_a_large_array_that_nobody_takes_is_a_timeout():
    check("sends_a_large_array_that_nobody_takes")


@pytest.mark.slow
def test_no_timeout_is_a_timeout_too():
    """The story: an infinite one overflowed under mpirun only."""
    check("does_nothing", "steady", 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "what", ["is_killed", *map(slowly, ("raises", "stops", "sleeps"))]
)
def test_a_rank_that_fails_in_a_sum_of_gradients_is_named_with_its_replica_and_stage(
    what,
):
    check(f"{what}_in_a_sum", rank=3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "what",
    [
        "is_killed_within",
        *map(slowly, ("stops_within", "sleeps_within", "raises_in", "loses_a_part_of")),
    ],
)
def test_a_rank_that_fails_in_a_sum_of_a_compiled_step_is_named_in_time(what):
    check(f"{what}_a_compiled_sum", rank=3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "rank"),
    [
        *(("is_killed", rank) for rank in (0, 3, 5)),
        *(("raises", 3), ("exits", 5), ("stops", 0), ("sleeps", 3)),
    ],
)
def test_a_rank_that_fails_in_a_layer_that_ranks_share_is_named_with_its_coordinates(
    what, rank
):
    check(f"{what}_in_a_layer", rank=rank)


@pytest.mark.slow
def test_a_part_of_a_sum_that_never_comes_is_no_call_of_its_own():
    """The story: behind the last action of a step, "the ranks are in different
    calls".
    """
    check("loses_a_part_of_a_sum", rank=1)


# -- messages and agreement ------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "place", "rank"),
    [
        slowly("loses_a_message", "steady", 1),
        slowly("loses_a_message", "cool-down", 3),
        slowly("loses_a_message", "construction", 2),
        slowly("mistags_a_message", "warm-up", 2),
        slowly("sends_another_tag", "", 0),
    ],
)
def test_a_message_that_is_missing_or_has_another_tag_is_a_timeout_that_names_both_sides(
    name, place, rank
):
    """The story: the test had two ranks; with four, the pair that was named had nothing
    to do with the message.
    """
    check(name, place, rank)


@pytest.mark.parametrize("name", ["sends_another_dtype", slowly("sends_another_shape")])
@pytest.mark.slow
def test_a_message_of_another_kind_names_both_sides(name):
    check(name)


@pytest.mark.parametrize(
    "what", ["width", *map(slowly, ("seed", "schedule", "mode", "replicas"))]
)
def test_ranks_that_run_different_programs_are_refused(what):
    check(f"differs_in_{what}", rank=3)


@pytest.mark.slow
def test_ranks_that_step_unequally_often_are_told_the_steps():
    check("steps_unequally_often", rank=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "has_a_schedule_that_deadlocks",
        "has_too_few_layers",
        "has_too_few_samples",
        "has_a_schedule_for_other_ranks",
    ],
)
def test_what_cannot_work_is_said_without_a_traceback(name):
    check(name)


# -- the launcher, and time ------------------------------------------------------------


@pytest.mark.parametrize("name", ["kills_the_proxy", slowly("kills_the_launcher")])
def test_no_rank_outlives_its_launcher(name):
    """The story: with the proxy gone, mpirun stayed and all ranks lived on, in 30 of 30
    runs.
    """
    check(name, "steady", 2)


@pytest.mark.parametrize("place", [slowly("steady"), "exit"])
def test_control_c_ends_all_and_the_code_is_not_zero(place):
    """The story: while ranks waited at their end, 8 of 22 runs ended with 0, and
    tracebacks of atexit.
    """
    check("types_control_c", place, 0)


@pytest.mark.slow
def test_a_job_that_is_suspended_goes_on():
    """The story: 6 of 6 runs ended, since the clock ran on while nobody could look."""
    check("suspends_the_job", "between steps", 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stops_for_a_while", "naps", "stands_in_a_debugger"])
def test_a_rank_that_is_slow_for_less_than_the_timeout_or_in_a_debugger_ends_nobody(
    name,
):
    """The story: what came while the ranks asked each other about a debugger was taken
    for a message of no bytes.
    """
    check(name, "steady", 2)


@pytest.mark.parametrize("name", ["raises", slowly("stops")])
@pytest.mark.parametrize(
    "broken",
    [
        "stdout closed",
        *map(
            slowly,
            (
                "stdout None",
                "stdout full",
                "stderr closed",
                "stderr full",
                "stderr unread",
            ),
        ),
    ],
)
@pytest.mark.slow
def test_a_dead_stream_keeps_no_job_alive(name, broken):
    """The story: flushing it raised before the abort, the others waited on, and the job
    ended with 0, or never.
    """
    check(name, "steady", 0, FAULT_STREAM=broken)
