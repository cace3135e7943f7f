"""Variables of launchers and of minipipe, which anybody may set: a value is taken,
ignored or refused in words.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from minipipe.cli import main
from minipipe.comm.job import watchdog
from minipipe.comm.job.host import launcher_socket
from minipipe.core.comm import host
from minipipe.core.comm.message import DEFAULT_TIMEOUT, chosen_timeout
from minipipe.errors import ArgumentError
from minipipe.execution.observers import Journal, journal
from minipipe.render.terminal import has_colour

WRONG = [
    *(
        "",
        " ",
        "x",
        "-1",
        "+1",
        "1.5",
        "1e3",
        "0x1",
        "1_0",
        "nan",
        "1 ",
        "9" * 19,
        "9" * 5000,
    ),
    *("²", "\uff11", "\u0663", "\udcff"),
]


@pytest.mark.parametrize("value", WRONG)
def test_what_is_no_number_counts_as_not_set(value):
    for names in (host.SIZE, host.RANK, host.LOCAL_SIZE, host.LOCAL_RANK):
        for name in names:
            assert host.launcher_number({name: value}, names, default=7) == 7
    assert host.num_ranks({"PMI_SIZE": value}) == host.num_ranks({}) == 1
    assert launcher_socket({"PMI_FD": value}) is None


@pytest.mark.parametrize(
    "value", ["0", "9" * 9, "9" * 18]
)  # no descriptor of a socket, and none at all
def test_a_descriptor_that_is_no_socket_is_none(value):
    assert launcher_socket({"PMI_FD": value}) is None


@pytest.mark.parametrize("value", ["5" * 5000, "²"])
def test_the_watchdog_takes_such_a_process_for_no_rank(value):
    child = subprocess.Popen(
        [sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        env={"PMI_RANK": value},
    )
    try:
        assert watchdog.rank_of_process(child.pid) is None
    finally:
        child.communicate()


def test_the_watchdog_reads_the_status_of_a_process_with_any_name():
    rename = (
        "open('/proc/self/comm', 'wb').write(b'\\xff) Z 0'); print(flush=True); input()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", rename], **pipes) as child:
        child.stdout.readline()
        assert b"\xff" in Path(f"/proc/{child.pid}/comm").read_bytes()
        assert watchdog.status_of(child.pid)["PPid"] == str(
            os.getpid()
        ) and not watchdog.is_dead(child.pid)
        child.stdin.close()


@pytest.mark.parametrize(
    "value", ["x", "-1", "0", "nan", "-inf", "²", "1e-999", "x" * 5000, "\udcff", "1 s"]
)
def test_a_wrong_timeout_of_the_environment_is_refused_in_a_line(value, monkeypatch):
    monkeypatch.setenv("MINIPIPE_TIMEOUT", value)
    with pytest.raises(
        ArgumentError, match="MINIPIPE_TIMEOUT is .*; expected seconds, more than 0"
    ) as caught:
        chosen_timeout(None)
    assert len(str(caught.value)) < 200 and str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("", DEFAULT_TIMEOUT),
        ("2.5", 2.5),
        ("inf", float("inf")),
        ("9" * 5000, float("inf")),
    ],
)
def test_a_timeout_of_the_environment_may_be_any_number_above_0(
    value, seconds, monkeypatch
):
    monkeypatch.setenv("MINIPIPE_TIMEOUT", value)
    assert chosen_timeout(None) == seconds


@pytest.mark.parametrize("value", [10**400, "2", 3, 2.5])
def test_a_timeout_of_an_argument_may_be_larger_than_a_float(value):
    assert chosen_timeout(value) == (float("inf") if value == 10**400 else float(value))


@pytest.mark.parametrize(
    "value",
    [
        "",
        "0",
        "1",
        "-1",
        "²",
        "1_0",
        "nan",
        "9" * 20,
        "9" * 300,
        "9" * 4300,
        "9" * 5000,
    ],
)
def test_a_terminal_may_claim_any_size(value, monkeypatch, capsys):
    for name in ("COLUMNS", "LINES"):
        monkeypatch.setenv(name, value)
    assert main(["show", "gpipe", "--ranks", "2", "--microbatches", "2"]) == 0
    with pytest.raises(SystemExit):
        main(["show", "--help"])
    assert "rank 0" in capsys.readouterr().out


@pytest.mark.parametrize("value", [value for value in WRONG if value])
def test_a_journal_is_written_for_any_value_but_0(value, monkeypatch):
    monkeypatch.setenv("MINIPIPE_DEBUG", value)
    assert [type(each) for each in journal()] == [Journal]
    for name in ("FORCE_COLOR", "NO_COLOR", "TERM"):
        assert has_colour(environment={name: value}) in (True, False)
