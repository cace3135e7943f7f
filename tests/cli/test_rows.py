"""Everything that ranks do in a step, from the command line: --rows."""

import json

import pytest

from minipipe import Costs, schedules, simulate
from minipipe.cli.show import wrapped
from minipipe.passes.framing import frame
from minipipe.schedules import Program, data_parallel, lower
from tests.launch import of_each_kind

_SMALL = ("--ranks", 2, "--microbatches", 2)


def test_show_prints_the_default_rows_of_a_schedule(ask):
    status, out, _ = ask("show", "1f1b", *_SMALL, "--rows")
    assert status == 0
    assert out.splitlines() == [
        "# 1f1b: 2 ranks, 2 stages, 2 microbatches",
        (
            "rank 0: HANDSHAKE 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 "
            "FINITE LOSS 0U1"
        ),
        (
            "rank 1: HANDSHAKE 1RECV_F0 1RECV_F1 1F0 1B0 1SEND_B0 1F1 1B1 1SEND_B1 "
            "FINITE LOSS 1U1"
        ),
    ]


def test_replicas_all_reduce_gradients_and_gather_results(ask):
    _, out, _ = ask(
        "show", "gpipe", "--ranks", 1, "--microbatches", 1, "--replicas", 2, "--rows"
    )
    assert out.splitlines()[1:] == [
        "rank 0: HANDSHAKE 0F0 0B0 0REDUCE_GRAD0 GATHER_RESULTS FINITE LOSS 0U0",
        "rank 1: HANDSHAKE 0F1 0B1 0REDUCE_GRAD1 GATHER_RESULTS FINITE LOSS 0U1",
    ]


@pytest.mark.parametrize("name", of_each_kind(sorted(schedules.REGISTRY)))
def test_every_named_schedule_has_rows_that_are_legal_and_as_long_as_itself(
    name, ask, tmp_path
):
    sizes = ("--ranks", 4, "--microbatches", 8)
    path = tmp_path / "rows.txt"
    assert ask("show", name, *sizes, "--rows", "--format", "rows", "-o", path)[0] == 0
    assert ask("check", path)[0] == 0
    own, framed = (ask("simulate", given, "--json")[1] for given in (name, path))
    assert json.loads(framed)["makespan"] == json.loads(own)["makespan"]


def test_rows_are_also_drawn_timed_and_stepped_through(ask, tmp_path):
    costs = ("--costs", "latency=0.5")
    status, out, _ = ask("show", "1f1b", *_SMALL, "--rows", "--format", "text", *costs)
    assert status == 0 and "* frame of the step: HANDSHAKE, FINITE, LOSS" in out
    assert "makespan 11 units" in out  # 10 without the handshake and the loss
    assert ask("simulate", "1f1b", *_SMALL, *costs)[1].endswith("makespan 10 units\n")
    assert ask("simulate", "1f1b", *_SMALL, *costs, "--rows")[1].endswith(
        "makespan 11 units\n"
    )
    assert (
        "rank 1 begins LOSS: delivery of the loss"
        in ask("step", "1f1b", *_SMALL, "--rows", "--all")[1]
    )
    assert ask("show", "1f1b", "--rows", *costs, "-o", tmp_path / "rows.svg")[0] == 0
    assert (
        "HANDSHAKE: agreement on the call, 0 to 0.5 units"
        in (tmp_path / "rows.svg").read_text()
    )
    found = json.loads(ask("show", "1f1b", *_SMALL, "--rows", "--json")[1])
    assert found["actions"][1][0] == "HANDSHAKE"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["1f1b", "--steps", 2], "--rows are of one step, and --steps is 2"),
        (["{path}"], "has the instructions of --rows already; leave --rows out"),
        (["1f1b", "gpipe"], "--format rows writes one schedule; 2 were given"),
    ],
)
def test_what_has_no_rows_is_refused(arguments, words, ask, tmp_path):
    path = tmp_path / "rows.txt"
    path.write_text(ask("show", "1f1b", *_SMALL, "--rows")[1])
    status, _, err = ask(
        "show", *[str(argument).format(path=path) for argument in arguments], "--rows"
    )
    assert status == 2 and words in err


def test_the_frame_is_not_repeated():
    """A plain schedule of several steps has updates between them; framed rows have them
    inside.
    """
    program = frame(lower(schedules.gpipe(2, 1)))
    one, two = (simulate(program, Costs(latency=1), num_steps=n) for n in (1, 2))
    assert two.makespan == 2 * one.makespan


def test_rows_fit_the_width_that_is_given():
    program = frame(lower(data_parallel(schedules.one_f_one_b(6, 12), 2)))
    head, *lines = wrapped(program.to_text(), 60).splitlines()
    assert max(map(len, lines)) <= 60
    assert [head, *" ".join(lines).split()] == [
        head,
        *program.to_text().partition("\n")[2].split(),
    ]
    begins = {line[: len("rank 10: ")].rstrip() for line in lines}
    assert begins == {"", *(f"rank {rank}:" for rank in range(12))}


def test_only_a_terminal_gets_lines_of_its_width(ask, monkeypatch):
    arguments = ("show", "1f1b", "--rows")
    _, plain, _ = ask(*arguments)
    monkeypatch.setattr("minipipe.cli.show.is_terminal", lambda stream: True)
    monkeypatch.setenv("COLUMNS", "60")
    _, shown, _ = ask(*arguments)
    assert shown == wrapped(plain, 60) != plain
    assert (
        Program.from_text(plain).actions
        == frame(lower(schedules.one_f_one_b(4, 8))).actions
    )
