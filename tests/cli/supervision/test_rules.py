"""Whether and when a failed job is started again, which hosts a file names, and who
answers: without any job.
"""

import os
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe.cli.supervision import launching
from minipipe.cli.supervision.launching import (
    Host,
    JobSpec,
    is_here,
    parse_hosts,
    read_hosts,
    silent_hosts,
)
from minipipe.cli.supervision.supervisor import pause_before_restart, reason_to_stop
from minipipe.comm.job.guard import Attempts, Ending, shell_code
from minipipe.errors import ArgumentError, LaunchError

QUICK, LONG = 4.9, 5.1  # seconds: before and after the limit that is promised
failures = st.builds(Ending, st.sampled_from([1, 9, 137, -9]), st.floats(0.0, 20.0))


# -- whether ---------------------------------------------------------------------------


@given(st.lists(failures, min_size=1, max_size=8), st.integers(0, 8))
def test_a_failure_is_repeated_while_restarts_are_left_unless_three_quick_ones_were_alike(
    endings, restarts
):
    is_broken = (
        len(endings) >= 3
        and len({e.code for e in endings[-3:]}) == 1
        and all(e.seconds < 5 for e in endings[-3:])
    )
    assert bool(reason_to_stop(endings, restarts)) == (
        is_broken or len(endings) > restarts
    )


@pytest.mark.parametrize("code", [0, 2])
def test_what_ended_well_and_bad_usage_are_never_repeated(code):
    assert reason_to_stop([Ending(code, LONG)], restarts=9)


@pytest.mark.parametrize(
    ("endings", "stops"),
    [
        ([Ending(1, QUICK)] * 3, True),
        ([Ending(1, QUICK)] * 2, False),
        ([Ending(1, LONG)] * 3, False),
        # another reason in between
        ([Ending(1, QUICK), Ending(9, QUICK), Ending(1, QUICK)], False),
        # it came further in between
        (
            [Ending(1, QUICK), Ending(1, QUICK), Ending(1, LONG), Ending(1, QUICK)],
            False,
        ),
        ([Ending(1, LONG), Ending(1, QUICK), Ending(1, QUICK), Ending(1, QUICK)], True),
    ],
)
def test_three_failures_are_alike_if_they_are_quick_follow_each_other_and_have_one_exit_code(
    endings, stops
):
    assert bool(reason_to_stop(endings, restarts=9)) == stops


# -- when ------------------------------------------------------------------------------


def test_pauses_grow_from_nothing_to_a_minute_while_failures_are_quick():
    endings = [Ending(1 + i % 2, QUICK) for i in range(2000)]
    pauses = [pause_before_restart(endings[: i + 1]) for i in range(9)]
    assert (
        pauses == [0, 1, 2, 4, 8, 16, 32, 60, 60]
        and pause_before_restart(endings) == 60
    )
    assert pause_before_restart([*endings, Ending(1, LONG)]) == 0
    assert pause_before_restart([*endings, Ending(1, LONG), Ending(1, QUICK)]) == 0


# -- where -----------------------------------------------------------------------------

names = st.sampled_from(
    ["a", "node0", "node-1.example.org", "10.77.0.1", "max_slots", "_b"]
)
NO_SLOTS = ["", "-2", "+2", "0x10", "1e3", "1.5", "1_0", "2:3", "2,3", "nan", "٢"]
FORMS = [
    "{}:{}",
    "{} : {}",
    "{} slots={}",
    "{}  max_slots=9 slots = {}",
    "\t{}:{} # note",
    "{}:{} binding=user:0",
]
FORMS += ["{} slots={} max-slots=99", "{} max-slots=99 slots={}"]


@given(
    st.lists(
        st.tuples(names, st.integers(1, 99), st.sampled_from(FORMS)),
        min_size=1,
        max_size=5,
    )
)
def test_hosts_are_read_as_every_mpi_writes_them(rows):
    text = "\n# hosts\n".join(form.format(name, slots) for name, slots, form in rows)
    assert [(host.name, host.slots) for host in parse_hosts(text, "f")] == [
        row[:2] for row in rows
    ]


def test_a_host_without_slots_has_one_and_may_be_named_again():
    """PBS writes a line for each rank."""
    assert [host[:2] for host in parse_hosts("a\na\nb", "f")] == [
        ("a", 1),
        ("a", 1),
        ("b", 1),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'hosts' names no host; expected a line for each: HOST:RANKS."),
        ("# a:2\n", "'hosts' names no host"),
        (
            "a:2\n-oProxyCommand=evil:2",
            (
                "Line 2 of 'hosts' is '-oProxyCommand=evil:2'; expected HOST, "
                "HOST:RANKS or"
            ),
        ),
        ("a;4", "Line 1 of 'hosts' is 'a;4'; expected HOST"),
        ("user@a:4", "Line 1 of 'hosts' is 'user@a:4'; expected HOST"),
        *((f"a:{slots}", "Line 1 of 'hosts': ") for slots in NO_SLOTS),
        *(
            (
                f"a slots={slots}",
                f"{slots}' is not a whole number of at most 18 digits; expected",
            )
            for slots in NO_SLOTS
        ),
        ("a:2\n\x1b[2J", r"Line 2 of 'hosts' is '\x1b[2J'; expected HOST"),
    ],
)
def test_what_is_no_host_is_refused_and_so_is_an_option_of_ssh(text, words):
    with pytest.raises(ArgumentError) as caught:
        parse_hosts(text, "hosts")
    assert words in str(caught.value) and caught.value.code == "value"


@given(
    st.lists(
        st.tuples(names, st.integers(1, 9)),
        min_size=1,
        max_size=5,
        unique_by=lambda row: row[0],
    ),
    st.data(),
)
def test_ranks_of_silent_hosts_are_left_out_and_the_command_names_the_others(
    rows, data
):
    hosts = tuple(Host(name, slots, f"{name}:{slots}") for name, slots in rows)
    total = sum(host.slots for host in hosts)
    ranks = data.draw(st.integers(1, total + 3))
    silent = data.draw(
        st.lists(st.sampled_from([host.name for host in hosts]), unique=True)
    )
    job = JobSpec(("a.py", "-n"), ranks, ("mpirun", "-q"), "all hosts", hosts)
    left = [host for host in hosts if host.name not in silent]
    expected = min(ranks, sum(host.slots for host in left)) if silent else ranks
    assert job.ranks_without(silent) == expected
    with job.command(3, silent) as command:
        path = command[5]
        assert [*command[:5], *command[6:]] == [
            *(
                "mpirun",
                "-q",
                "-n",
                str(expected),
                "--hostfile",
                "env",
                "MINIPIPE_RESTART=3",
                sys.executable,
            ),
            *("a.py", "-n"),
        ]
        assert (path == "all hosts") == (not silent)
        assert not silent or tuple(read_hosts(path)) == tuple(left) if left else True
    assert not os.path.exists(path)


def test_hosts_are_asked_at_once_and_one_that_hangs_counts_as_silent(monkeypatch):
    monkeypatch.setattr(launching, "_DEADLINE", 0.5)
    probe = ["sh", "-c", "case $0 in a*) exec sleep 100;; b) exit 3;; esac", "HOST"]
    begun = time.perf_counter()
    silent = silent_hosts(["a1", "a2", "a1", "b", "c", "localhost"], probe)
    assert time.perf_counter() - begun < 30
    assert silent == {
        "a1": "sh: no answer within 0.5 s",
        "a2": "sh: no answer within 0.5 s",
        "b": "sh: exit code 3",
    }


def test_this_host_is_not_asked():
    own = os.uname().nodename
    assert all(
        map(is_here, ["localhost", "127.0.0.1", own, own.partition(".")[0]])
    ) and not is_here("node1")
    assert silent_hosts([own, "localhost"], ["false", "HOST"]) == {}


# -- an attempt ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "shell", "words"),
    [
        (7, 7, "exit code 7"),
        (-9, 137, "SIGKILL of the launcher"),
        (255, 255, "exit code 255"),
    ],
)
def test_an_ending_says_how_and_has_the_exit_code_that_a_shell_shows(
    code, shell, words
):
    assert (
        shell_code(code) == shell and str(Ending(code, 1.0)) == f"{words} after 1.0 s"
    )


def test_a_launcher_that_the_system_refuses_is_an_error(tmp_path):
    launcher = tmp_path / "launcher"
    launcher.write_text("no program")
    launcher.chmod(0o755)
    with pytest.raises(
        LaunchError, match="cannot be started: Exec format error"
    ) as caught:
        Attempts().run([str(launcher)])
    assert caught.value.code == "unavailable"
