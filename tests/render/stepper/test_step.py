"""``minipipe step``: into a pipe it writes, in a terminal it listens, and what it says
is what the walk says.
"""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import schedules
from minipipe.cli import main
from minipipe.render.stepper.description import snapshot_as_data
from minipipe.render.stepper.loop import Screen, Stepper
from minipipe.render.stepper.walkthrough import Walkthrough
from minipipe.schedules import schedule_of_text
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.simulator import simulate
from tests.render.stepper.screens import NAIVE
from tests.strategies import examples, named_schedules

ILLEGAL = [
    ("missing", "0F0 0B0\n1F0"),
    ("duplicate", "0F0 0F0 0B0"),
    ("placement", "0F0 0F1 1F0 0B0\n1B0 1F1 1B1 0B1"),
    ("unexpected", "0F0 0B0 0I0 0W0"),
    ("duplicate", NAIVE.replace("0F1 0SEND_F1", "0SEND_F0 0F1 0SEND_F1")),
    ("missing", "0F0 0SEND_F0 0B0"),
    ("order", "0B0 0F0"),
    ("deadlock", "0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0"),
    ("rendezvous-deadlock", NAIVE),
]


@pytest.fixture
def ask(capsys):
    """Return a function that runs one ``minipipe step`` and returns (exit status, what
    it printed, its complaint).
    """

    def asked(*arguments):
        status = main(["step", *map(str, arguments)])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return asked


# -- into a pipe -----------------------------------------------------------------------


def test_every_step_of_a_small_schedule_as_on_paper(ask):
    status, out, err = ask(
        "gpipe", "--ranks", 2, "--microbatches", 1, "--costs", "latency=0.5"
    )
    assert (status, err) == (0, "")
    assert out == (
        "step 0 of 4, time 0 of 7 units: nothing has begun\n"
        "  rank 0: begins 0F0 now; holds nothing\n"
        "  rank 1: waits for 0F0 on rank 0 until 1.5; holds nothing; next 1F0\n"
        "step 1 of 4, time 0 of 7 units: rank 0 begins 0F0: forward of "
        "microbatch 0 on stage 0\n"
        "  rank 0: 0F0 until 1; holds 1 (0)\n"
        "  rank 1: waits for 0F0 on rank 0 until 1.5; holds nothing; next 1F0\n"
        "step 2 of 4, time 1.5 of 7 units: rank 1 begins 1F0: forward of "
        "microbatch 0 on stage 1\n"
        "  rank 0: waits for 1B0 on rank 1 until 5; holds 1 (0); next 0B0\n"
        "  rank 1: 1F0 until 2.5; holds 1 (0)\n"
        "step 3 of 4, time 2.5 of 7 units: rank 1 begins 1B0: backward of "
        "microbatch 0 on stage 1\n"
        "  rank 0: waits for 1B0 on rank 1 until 5; holds 1 (0); next 0B0\n"
        "  rank 1: 1B0 until 4.5; holds 1 (0)\n"
        "step 4 of 4, time 5 of 7 units: rank 0 begins 0B0: backward of "
        "microbatch 0 on stage 0\n"
        "  rank 0: 0B0 until 7; holds 1 (0)\n"
        "  rank 1: done; holds nothing\n"
        "end, time 7 units: every rank has ended\n"
        "  rank 0: done; holds nothing\n"
        "  rank 1: done; holds nothing\n"
        "gpipe: makespan 7 units, bubble 57.1 %, peak activations by rank 1, 1\n"
    )


def test_messages_in_flight_messages_delivered_and_memory_are_told(ask):
    _, out, _ = ask(
        "1f1b",
        "--ranks",
        2,
        "--microbatches",
        2,
        "--costs",
        "latency=1.5,activation=2.5",
        "--at",
        2,
    )
    assert (
        "  rank 1: waits for 0F0 on rank 0 until 2.5; holds nothing; next 1F0\n"
        not in out
    )
    assert "waits for the message of 0F0 on rank 0 until 2.5" in out
    assert "  message: result of 0F0, rank 0 to rank 1: arrives at 2.5 for 1F0\n" in out
    assert "holds 2 (0,1) 5 units" in out
    _, out, _ = ask("1f1b", "--ranks", 2, "--microbatches", 2, "--at", 4)
    assert (
        "  message: result of 0F1, rank 0 to rank 1: delivered, not yet consumed "
        "by 1F1\n"
    ) in out


@pytest.mark.parametrize("name", schedules.REGISTRY)
def test_every_schedule_is_walked_to_its_figures(name, ask):
    status, out, _ = ask(name, "--ranks", 2, "--microbatches", 3)
    assert status == 0 and out.splitlines()[-1] == str(
        simulate(schedules.build(name, 2, 3))
    )


def test_the_options_are_those_of_simulate(ask):
    _, out, _ = ask(
        "interleaved-1f1b",
        "--ranks",
        2,
        "--microbatches",
        2,
        "--chunks",
        3,
        "--costs",
        "F=2",
        "--at",
        -1,
    )
    assert out.splitlines()[-1] == str(
        simulate(schedules.interleaved_1f1b(2, 2, 3), Costs(2))
    )
    status, out, _ = ask(
        "gpipe",
        "--ranks",
        2,
        "--microbatches",
        1,
        "--sends-block",
        "--costs",
        "latency=1",
    )
    assert "rank 0 begins 0SEND_F0: send of the activation" in out and status == 0
    status, out, _ = ask("gpipe", "--memory-limit", 4, "--at", -1)
    assert (
        status == 1
        and "[memory] Rank 0, position 4" in out
        and "makespan 33 units" in out
    )


def test_the_steps_that_are_asked_for_are_written(ask):
    def numbers(*options):
        status, out, _ = ask("gpipe", "--ranks", 2, "--microbatches", 1, *options)
        assert status == 0
        return re.findall(r"^(?:step (\d)|(end))", out, flags=re.MULTILINE)

    assert len(numbers("--all")) == len(numbers()) == 6
    assert numbers("--at", 3) == [("3", "")] and numbers("--at", -1) == [("", "end")]
    assert numbers("--from", 3, "--to", 4) == [("3", ""), ("4", "")]
    assert numbers("--from", 4) == [("4", ""), ("", "end")] and numbers("--to", -5) == [
        ("0", ""),
        ("1", ""),
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--at", 6], "--at is 6; expected a step from 0 to 5"),
        (["--from", -7], "--from is -7"),
        (["--to", 99], "--to is 99"),
        (
            ["--from", 3, "--to", 2],
            "--from is 3 and --to is 2; expected --from to be before --to",
        ),
        (["--at", 1, "--from", 1], "--at prints one step"),
        (["--memory-limit", 0], "memory_limit is 0"),
        (["--costs", "F=1:2:3"], "forward has 3 values for 2 stages"),
    ],
)
def test_steps_that_are_not_there_are_a_wrong_question(options, words, ask):
    status, out, err = ask("gpipe", "--ranks", 2, "--microbatches", 1, *options)
    assert (status, out) == (2, "") and words in err


def test_json_is_one_line_for_each_step_with_what_the_walk_says_and_the_verdict_last(
    ask,
):
    options = ("zb-h1", "--ranks", 2, "--microbatches", 3, "--costs", "latency=0.5")
    status, out, _ = ask(*options, "--json")
    lines = list(map(json.loads, out.splitlines()))
    walkthrough = Walkthrough(schedules.zb_h1(2, 3), Costs(latency=0.5))
    assert status == 0 and lines == [
        snapshot_as_data(walkthrough, snapshot) for snapshot in walkthrough
    ]
    timeline = walkthrough.timeline
    for rank, row in enumerate(timeline.spans):
        events = [
            line["event"] for line in lines[1:-1] if line["event"]["rank"] == rank
        ]
        assert [(e["action"], e["start"], e["end"]) for e in events] == [
            (str(a), s, e) for a, s, e in row
        ]
    assert ["verdict" in line for line in lines] == [False] * (len(lines) - 1) + [True]
    assert (
        lines[-1]["verdict"].items()
        >= {"legal": True, "makespan": timeline.makespan, "stuck": []}.items()
    )
    arrived = {
        (m["value"], m["used_by"]): m["arrived"]
        for line in lines
        for m in line["messages"]
    }
    expected = {(str(m.value), str(m.used_by)): m.arrived for m in timeline.messages}
    assert arrived and arrived.items() <= expected.items()


# -- illegal ones ----------------------------------------------------------------------


@pytest.mark.parametrize(("code", "text"), ILLEGAL)
def test_of_each_kind_of_mistake_the_problem_is_told_and_the_walk_goes_up_to_where_it_sticks(
    code, text, ask, file
):
    status, out, err = ask(file(text))
    assert (status, err) == (1, "")
    ending = out[out.rindex("\nend, time") :]
    assert f"[{code}] " in ending
    walkthrough = Walkthrough(schedule_of_text(text))
    for rank, state in walkthrough.stuck.items():
        assert (
            f"  rank {rank}: stuck at {state.action}: needs {state.awaited}" in ending
        )
        assert (
            f"rank {rank} is stuck at {state.action} (position {state.position} "
            "of its list)"
        ) in ending
    if not walkthrough.stuck:
        assert "it still ran to completion" in ending
    status, out, _ = ask(file(text), "--json", "--at", -1)
    verdict = json.loads(out)["verdict"]
    assert (
        status == 1
        and verdict["legal"] is False
        and verdict["problems"][0]["code"] == code
    )
    assert verdict["stuck"] == list(walkthrough.stuck) and verdict["cycle"] == list(
        walkthrough.cycle
    )


def test_the_naive_order_of_messages_ends_with_the_cycle_named(ask, file):
    _, out, _ = ask(file(NAIVE), "--at", -1)
    assert out.startswith(
        "end, time 4 rounds: ranks 0, 1 are stuck\n  rank 0: stuck at 0SEND_F1: "
        "needs 1RECV_F1 on rank 1"
    )
    assert "\nthe cycle: rank 0 waits for rank 1, rank 1 waits for rank 0\n" in out
    assert (
        "rank 1 is stuck at 1SEND_B0 (position 3 of its list): it needs "
        "0RECV_B0, position 4 of rank 0\n"
    ) in out


def test_what_is_missing_or_later_in_the_own_list_or_of_no_stage_is_said_so(ask, file):
    out = ask(file("0F0 0B0\n1F0"), "--at", -1)[1]
    assert (
        "needs 1B0, which is missing" in out
        and "itself" not in out
        and "cycle" not in out
    )
    # rank 1 lacks an action of its own, and waits for nobody
    out = ask(file("0F0 0B0\n1B0"), "--at", -1)[1]
    assert (
        "needs 1F0, which is missing" in out
        and "itself" not in out
        and "cycle" not in out
    )
    out = ask(file("0B0 0F0"), "--at", -1)[1]
    assert (
        "needs 0F0, later in its own list" in out and "rank 0 waits for itself" in out
    )
    assert (
        "of a stage that does not exist" in ask(file("0F0 0SEND_F0 0B0"), "--at", -1)[1]
    )


def test_where_not_even_the_first_step_is_there_the_problem_is_the_answer(ask, file):
    status, out, err = ask(file("0F0 0B0\nhello"))
    assert (status, out) == (1, "") and "'hello' is not an action" in err
    status, out, err = ask(file("0F0 0B0 0F999999"))
    assert (status, out) == (1, "") and "[missing]" in err


# -- the screen ------------------------------------------------------------------------


class Keys(Screen):
    """A screen of any size that presses keys by itself, and answers what is asked."""

    def __init__(self, keys, answers=(), size=(79, 24)):
        self.keys, self.answers, self.columns_and_lines = (
            list(keys),
            list(answers),
            size,
        )
        self.shown = []

    def size(self):
        return self.columns_and_lines

    def show(self, lines):
        self.shown.append(list(lines))

    def read_key(self):
        return self.keys.pop(0) if self.keys else "eof"

    def ask(self, question):
        return self.answers.pop(0) if self.answers else ""


def pressed(walkthrough, *keys, answers=()):
    screen = Keys(keys, answers)
    stepper = Stepper(walkthrough, screen, colour=False)
    stepper.run()
    return stepper, screen


def test_each_key_goes_where_it_says():
    walkthrough = Walkthrough(schedules.one_f_one_b(4, 8))
    for keys, answers, number in (
        (["n", "space", "right", "enter", "down"], [], 5),
        (["n", "n", "n", "p"], [], 2),
        (["end"], [], 65),
        (["end", "left"], [], 64),
        (["end", "n", "n"], [], 65),
        (["p"], [], 0),
        (["pagedown", "pagedown", "pageup"], [], 10),
        (["end", "home"], [], 0),
        (["g"], ["17"], 17),
        (["g"], ["1000"], 65),
        (["g"], ["t9"], walkthrough.at_time(9)),
        (["n", "g"], [""], 1),
        (["n", "?", "x", "n"], [], 2),  # a key ends the help, and no more
    ):
        assert pressed(walkthrough, *keys, answers=answers)[0].number == number, keys


def test_one_rank_may_be_followed():
    walkthrough = Walkthrough(schedules.one_f_one_b(4, 2))
    own = [
        number for number, event in enumerate(walkthrough.events, 1) if event.rank == 2
    ]
    for count, number in enumerate(own, 1):
        assert (
            pressed(walkthrough, "r", *["n"] * count, answers=["2"])[0].number == number
        )
    stepper, screen = pressed(walkthrough, "r", *["n"] * 9, answers=["2"])
    assert stepper.number == len(walkthrough) - 1 and screen.shown[-1][-1].startswith(
        "only rank 2 | "
    )
    assert (
        pressed(walkthrough, "r", "n", "r", "n", answers=["2", ""])[0].number
        == own[0] + 1
    )
    assert (
        pressed(walkthrough, "r", "end", "p", "p", answers=["2"])[0].number == own[-2]
    )
    assert pressed(walkthrough, "n", "n", "r", "p", "p", answers=["2"])[0].number == 0


@pytest.mark.parametrize(
    ("key", "answer", "words"),
    [
        ("z", "", "'z' has no function"),
        *(
            ("g", answer, "neither a step")
            for answer in ("soon", "9" * 5000, "tnan", "t", "²", "\0")
        ),
        *(
            ("r", answer, "is not a rank")
            for answer in ("9", "9" * 5000, "-1", "²", "\uff11", "1_0", "\0")
        ),
    ],
)
def test_a_wrong_key_and_a_wrong_answer_are_told_and_change_nothing(key, answer, words):
    stepper, screen = pressed(
        Walkthrough(schedules.gpipe(2, 2)), "n", key, answers=[answer]
    )
    assert stepper.number == 1 and words in screen.shown[-1][-1]
    _, screen = pressed(
        Walkthrough(schedules.gpipe(2, 2)), "n", key, "n", answers=[answer]
    )
    assert words not in screen.shown[-1][-1]


def test_times_in_seconds_are_shown_and_asked_for_in_milliseconds():
    walkthrough = Walkthrough(
        schedules.gpipe(2, 2), Costs(0.010, 0.010, 0.010, unit="s")
    )
    stepper, screen = pressed(walkthrough, "g", answers=["t25"])
    assert (
        stepper.number == walkthrough.at_time(0.025)
        and "time 20 of 90 ms" in screen.shown[-1][0]
    )


NAMES = st.sampled_from(
    [
        "n",
        "p",
        "end",
        "home",
        "pagedown",
        "pageup",
        "g",
        "r",
        "?",
        "x",
        "space",
        "escape",
    ]
)
ANSWERS = st.sampled_from(
    [
        "",
        "0",
        "3",
        "t2.5",
        "t",
        "-1",
        "99",
        "nan",
        "tnan",
        "tinf",
        "²",
        "9" * 5000,
        "t1e999",
    ]
)


@examples(60)
@given(
    st.lists(NAMES, max_size=12),
    st.lists(ANSWERS, max_size=6),
    st.tuples(st.integers(1, 130), st.integers(1, 45)),
    named_schedules(max_ranks=6, max_microbatches=4, max_chunks=2),
)
def test_no_keys_and_no_size_of_the_window_do_any_harm(keys, answers, size, named):
    screen = Keys(keys, answers, size)
    stepper = Stepper(Walkthrough(named[1]), screen, colour=False)
    stepper.run()
    assert 0 <= stepper.number < len(stepper.walkthrough)
    for lines in screen.shown:
        assert len(lines) <= size[1] and all(len(line) <= size[0] for line in lines)
