"""The command line, as a student and as a script use it."""

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest

from minipipe import Program, schedules
from minipipe.core.schedules.action_table import Schedule
from minipipe.core.schedules.analysis.lowering import lower
from minipipe.render import draw_html, draw_svg, perfetto_trace
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.simulator import simulate
from tests.launch import ROOT, mpirun, needs_mpi

# -- what it answers -------------------------------------------------------------------


def test_schedules_lists_every_one_with_bubble_memory_and_a_line(ask):
    status, out, _ = ask("schedules")
    assert status == 0
    _, table, _ = out.split("\n\n")
    for name in schedules.REGISTRY:
        (line,) = (line for line in table.splitlines() if line.split()[:1] == [name])
        assert schedules.TRADES[name] in line
    assert re.search(r"^1f1b +1 +33 +27\.3 +22\.2 +4  ", out, re.MULTILINE)
    assert re.search(r"^zb-v +2 +25\.5 +5\.9 +0\.0 +4  ", out, re.MULTILINE)
    assert max(map(len, out.splitlines())) <= 82


def test_schedules_takes_the_costs_of_each_ranks_share_and_cuts_them_where_there_are_chunks(
    ask,
):
    costs = ("--costs", "F=1:2:3:4")
    entries = {
        entry["schedule"]: entry
        for entry in json.loads(ask("schedules", *costs, "--json")[1])
    }
    assert list(entries) == list(schedules.REGISTRY)
    assert entries["gpipe"]["makespan"] == 10 + 7 * 4 + 8 + 7 * 2
    cut = Costs([1, 2, 3, 4]).cut(2)
    assert entries["zb-v"]["makespan"] == simulate(schedules.zb_v(4, 8), cut).makespan


def test_a_message_takes_its_time_in_a_schedule_of_several_chunks_too(ask):
    """The story: times were divided by the number of chunks, and with them the latency:
    35.5 where it is 46.
    """
    entries = {
        row["schedule"]: row
        for row in json.loads(ask("schedules", "--costs", "latency=1", "--json")[1])
    }
    costs = Costs(latency=1).cut(2)
    assert (
        entries["interleaved-1f1b"]["makespan"]
        == simulate(schedules.interleaved_1f1b(4, 8), costs).makespan
        == 46
    )
    assert entries["1f1b"]["makespan"] == 49


@pytest.mark.parametrize(
    ("name", "chunks"), [("1f1b", 1), ("interleaved-1f1b", 2), ("zb-v", 2)]
)
def test_the_unit_of_activations_is_named_where_it_differs(name, chunks, ask, capsys):
    """The story: one key was in microbatches of one verb and in pairs of another, and
    no help said so.
    """
    rows = {row["schedule"]: row for row in json.loads(ask("schedules", "--json")[1])}
    of_rank = json.loads(ask("simulate", name, "--json")[1])["peak_activations"]
    assert [chunks * peak for peak in rows[name]["peak_activations"]] == of_rank
    for verb, words in (
        ("schedules", "each counted for all layers of its rank"),
        ("simulate", "(stage, microbatch) pairs"),
    ):
        with pytest.raises(SystemExit):
            ask(verb, "--help")
        assert words in " ".join(capsys.readouterr().out.split())


def test_the_table_and_its_json_have_the_same_figures(ask):
    out, entries = ask("schedules")[1], json.loads(ask("schedules", "--json")[1])
    for entry in entries:
        line = next(
            line
            for line in out.splitlines()
            if line.startswith(f"{entry['schedule']} ")
        )
        chunks, time, bubble, gap, peak = line.split()[1:6]
        assert (int(chunks), float(time), float(peak)) == (
            entry["chunks_per_rank"],
            entry["makespan"],
            max(entry["peak_activations"]),
        )
        assert float(bubble) == pytest.approx(100 * entry["bubble_fraction"], abs=0.05)
        assert gap == ("-" if entry["gap"] is None else f"{100 * entry['gap']:.1f}")


def test_a_memory_limit_lists_the_schedules_that_keep_it(ask):
    entries = {
        entry["schedule"]: max(entry["peak_activations"])
        for entry in json.loads(ask("schedules", "--json")[1])
    }
    for limit in (1, 3, 4, 8):
        names = [
            entry["schedule"]
            for entry in json.loads(
                ask("schedules", "--json", "--memory-limit", limit)[1]
            )
        ]
        assert names == [name for name, peak in entries.items() if peak <= limit]
    assert "at most 3 held" in ask("schedules", "--memory-limit", 3)[1]


@pytest.mark.parametrize("name", schedules.REGISTRY)
def test_every_schedule_is_shown_checked_and_simulated(name, ask):
    schedule = schedules.build(name, 4, 8)
    status, out, _ = ask("show", name)
    rows = [line[:6] for line in out.splitlines() if not line.startswith("units")]
    assert status == 0 and rows[:4] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    status, out, _ = ask("check", name)
    assert (
        status == 0
        and out.startswith(f"legal: {name}, 4 ranks")
        and out.count("\n") == 1
    )
    status, out, _ = ask("simulate", name)
    assert (
        status == 0
        and out.splitlines()[-1] == f"makespan {simulate(schedule).makespan:g} units"
    )


def test_simulate_prints_for_machines_what_is_known_of_a_timeline(ask):
    costs = "F=1:2:1:1,I=1,W=0.5,latency=0.25,activation=3,weight_activation=1"
    status, out, _ = ask(
        "simulate",
        "zb-h1",
        "--ranks",
        4,
        "--microbatches",
        6,
        "--costs",
        costs,
        "--json",
    )
    assert status == 0 and out.count("\n") == 1
    expected = simulate(
        schedules.zb_h1(4, 6),
        Costs((1, 2, 1, 1), 1, 0.5, latency=0.25, activation=3, weight_activation=1),
    )
    found = json.loads(out)
    assert (
        found.items()
        >= {
            "schedule": "zb-h1",
            "num_ranks": 4,
            "num_stages": 4,
            "num_microbatches": 6,
            "makespan": expected.makespan,
            "bubble_fraction": expected.bubble_fraction,
            "span_bubble_rate": expected.span_bubble_rate,
            "peak_activations": list(expected.peak_activations),
            "peak_memory": list(expected.peak_memory),
        }.items()
    )


def test_simulate_tells_idle_time_by_its_cause(ask):
    _, out, _ = ask("simulate", "1f1b", "--costs", "latency=1")
    rows = [line.split() for line in out.splitlines() if re.match(r" +\d ", line)]
    assert [len(row) for row in rows] == [7] * 4
    for row in rows:
        busy, *idle = map(float, row[1:5])
        assert busy == 24 and busy + sum(idle) == 49  # the makespan
    _, out, _ = ask("simulate", "1f1b", "--costs", "overhead=0.5")
    # what is spent between two actions, so that the row adds up
    assert "  drain  overhead  " in out
    for row in (line.split() for line in out.splitlines() if re.match(r" +\d ", line)):
        assert (
            sum(map(float, row[1:6]))
            == simulate(schedules.one_f_one_b(4, 8), Costs(overhead=0.5)).makespan
        )
    assert (
        ask("simulate", "1f1b", "--costs", "latency=1", "--sends-block")[
            1
        ].splitlines()[-1]
        == "makespan 58 units"
    )


def test_show_writes_what_can_be_read_again(ask, tmp_path):
    schedule = schedules.zb_v(3, 7)
    options = ("zb-v", "--ranks", 3, "--microbatches", 7)
    assert (
        Schedule.from_csv(ask("show", *options, "--format", "csv")[1], name="zb-v")
        == schedule
    )
    assert (
        Schedule.from_text(ask("show", *options, "--format", "rows")[1], name="zb-v")
        == schedule
    )
    with_messages = ask("show", *options, "--format", "csv", "--messages")[1]
    assert Program.from_csv(with_messages, name="zb-v") == lower(schedule)
    as_json = json.loads(ask("show", *options, "--json")[1])
    assert (
        Schedule(
            as_json["schedule"],
            as_json["placement"],
            as_json["num_microbatches"],
            as_json["actions"],
        )
        == schedule
    )
    path = tmp_path / "mine.csv"
    assert ask("show", *options, "--format", "csv", "-o", path) == (
        0,
        f"wrote {path}\n",
        "",
    )
    assert ask("check", path)[:2] == (
        0,
        ask("check", *options)[1].replace("zb-v", "mine"),
    )


DRAWN = {"svg": draw_svg, "html": draw_html, "perfetto": perfetto_trace}


@pytest.mark.parametrize("name", DRAWN)
def test_show_draws_what_was_simulated_with_the_costs(name, ask, tmp_path):
    costs = ("--costs", "F=2,latency=0.5")
    drawn = DRAWN[name](simulate(schedules.zb_v(2, 4), Costs(2, latency=0.5)))
    options = ("zb-v", "--ranks", 2, "--microbatches", 4, *costs, "--format", name)
    assert ask("show", *options) == (0, drawn, "")
    path = tmp_path / "file"
    assert ask("show", *options, "-o", path) == (0, f"wrote {path}\n", "")
    assert path.read_text(encoding="utf-8") == drawn


def test_messages_are_arrows_in_a_picture_and_always_in_a_player_and_a_trace(ask):
    timeline = simulate(schedules.gpipe(2, 2))
    options = ("gpipe", "--ranks", 2, "--microbatches", 2, "--messages", "--format")
    assert (
        ask("show", *options, "svg")[1]
        == draw_svg(timeline, messages=True)
        != draw_svg(timeline)
    )
    assert ask("show", *options, "html")[1] == draw_html(timeline)
    assert ask("show", *options, "perfetto")[1] == perfetto_trace(timeline)


def test_the_numbers_in_a_picture_and_in_a_trace_are_those_that_simulate_prints(ask):
    found = json.loads(ask("simulate", "1f1b", "--costs", "latency=0.5", "--json")[1])
    picture = ask("show", "1f1b", "--costs", "latency=0.5", "--format", "svg")[1]
    assert f"makespan {found['makespan']:g} units" in picture
    assert f"bubble {100 * found['bubble_fraction']:.1f} %" in picture
    (trace,) = json.loads(
        ask("show", "1f1b", "--costs", "latency=0.5", "--format", "perfetto")[1]
    )["otherData"]["timelines"]
    assert (trace["makespan"], trace["bubble_fraction"]) == (
        found["makespan"],
        found["bubble_fraction"],
    )


@pytest.mark.parametrize(
    ("ending", "name"),
    [
        ("svg", "svg"),
        ("HTML", "html"),
        ("json", "perfetto"),
        ("csv", "csv"),
        ("txt", "text"),
    ],
)
def test_without_a_format_the_files_ending_says_which(ending, name, ask, tmp_path):
    """The story: `show 1f1b -o 1f1b.svg` wrote text, and no browser could open it."""
    path = tmp_path / f"mine.{ending}"
    width = ("--width", 300) if name in ("svg", "text") else ()
    assert ask("show", "gpipe", *width, "-o", path)[0] == 0
    assert (
        path.read_text(encoding="utf-8")
        == ask("show", "gpipe", *width, "--format", name)[1]
    )
    assert ask("show", "gpipe", "--format", "rows", "-o", path)[0] == 0
    # as was asked
    assert Schedule.from_text(path.read_text(), name="gpipe") == schedules.gpipe(4, 8)
    assert ask("show", "gpipe", "--json", "-o", path)[0] == 0
    assert json.loads(path.read_text())["num_ranks"] == 4


@pytest.mark.parametrize("name", ["a<b>&\"'$.csv", "--><script>.csv"])
def test_a_files_name_may_hold_any_sign(name, ask, tmp_path):
    path, stem = tmp_path / name, name.removesuffix(".csv")
    path.write_text("0F0,0B0\n")
    picture = ElementTree.fromstring(ask("show", path, "--format", "svg")[1])
    assert any(stem in (element.text or "") for element in picture.iter())
    assert "<script>." not in ask("show", path, "--format", "html")[1]
    trace = json.loads(ask("show", path, "--format", "perfetto")[1])
    assert trace["otherData"]["timelines"][0]["name"] == stem


@pytest.mark.skipif(
    sys.platform != "linux", reason="file names are bytes on Linux only"
)
@pytest.mark.parametrize("form", ["text", *DRAWN])
def test_a_files_name_may_be_no_text(form, ask, tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/mine\xff.csv")
    with open(path, "w") as stream:
        stream.write("0F0,0B0\n")
    assert ask("show", path, "--format", form, "-o", tmp_path / "out")[0] == 0
    (tmp_path / "out").read_text(encoding="utf-8")


def test_info_names_versions_mpi_and_blas(ask):
    facts = json.loads(ask("info", "--json")[1])
    assert set(facts) == {
        "minipipe",
        "python",
        "numpy",
        "blas",
        "cores",
        "mpi4py",
        "mpi",
        "gpu",
        "gpu messages",
    }
    assert facts["gpu messages"].startswith(
        ("through pinned host memory", "device to device", "only within")
    )
    status, out, _ = ask("info")
    assert status == 0 and "threads" in out and facts["numpy"] in out


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("9.8.7", "9.8.7"),
        (
            None,
            (
                "not installed: run pip install -e '.[mpi]' in minipipe's folder, or "
                "use thread ranks"
            ),
        ),
    ],
)
def test_info_gives_the_version_of_mpi4py_or_says_how_to_install_it(
    ask, monkeypatch, version, said
):
    monkeypatch.setattr("minipipe.cli.info._package_version", lambda name: version)
    assert json.loads(ask("info", "--json")[1])["mpi4py"] == said


@needs_mpi
@pytest.mark.slow
def test_info_answers_under_mpirun_too():
    """The story: what it asked of MPI took itself for a rank of the job, and could not
    start.
    """
    done = mpirun(2, "-m", "minipipe", "info")
    answers = [
        line for line in done.out.splitlines() if line.startswith("gpu messages")
    ]
    assert (done.code, done.err, len(answers)) == (0, "", 2)
    assert all("unknown" not in line for line in answers)


# -- files -----------------------------------------------------------------------------


def test_a_legal_file_is_one_line_of_figures(ask, file):
    status, out, err = ask("check", file(schedules.one_f_one_b(4, 8).to_csv()))
    assert (status, err) == (0, "")
    assert out == (
        "legal: mine, 4 ranks, 4 stages, 8 microbatches; "
        "makespan 33 units, bubble 27.3 %, peak activations by rank 4, 3, 2, 1\n"
    )


def test_an_illegal_file_exits_1_with_the_sentence_and_the_grid(ask, file):
    path = file("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n")
    status, out, err = ask("check", path)
    assert (status, out) == (1, "")
    assert (
        "[deadlock] These ranks wait for each other in a cycle: rank 0 cannot "
        "run 0B0 (position 1)"
    ) in err
    assert "rank 0:  0F0  >0B0<  0F1   0B1" in err
    status, out, _ = ask("check", path, "--json")
    verdict = json.loads(out)
    assert status == 1 and verdict["legal"] is False and verdict["error"] == "deadlock"
    assert verdict["problems"][0]["rank"] == 0 and verdict["problems"][0]["step"] == 1


def test_a_file_with_messages_is_checked_as_it_stands(ask, file):
    legal = lower(schedules.one_f_one_b(2, 2)).to_csv()
    assert ask("check", file(legal))[0] == 0
    swapped = legal.replace("1B0,1SEND_B0", "1SEND_B0,1B0")
    status, _, err = ask("check", file(swapped))
    assert status == 1 and "1SEND_B0" in err and "[order]" in err


def test_versions_and_staleness_have_limits_and_updates_a_batch(ask):
    sizes = ("2bw", "--microbatches", "20", "--per-update", "5")
    status, out, _ = ask("check", *sizes, "--max-versions", "2", "--max-staleness", "1")
    assert status == 0 and out.startswith(
        "legal: 2bw, 4 ranks, 4 stages, 20 microbatches; makespan 69 units"
    )
    status, _, err = ask("check", *sizes, "--max-versions", "1")
    assert status == 1 and "[staleness]" in err and ">0U4<" in err
    assert "[staleness]" in ask("check", *sizes, "--max-staleness", "0")[2]
    limit = ("--costs", "weights=10", "--memory-limit")
    assert (
        ask("check", *sizes, *limit, "23")[0] == 0
        and "[memory]" in ask("check", *sizes, *limit, "22")[2]
    )
    assert ask("check", "gpipe", "--per-update", "5")[0] == 2


def test_text_files_pytorchs_cells_and_standard_input_are_read(ask, file, monkeypatch):
    # the commas of its comment do not make it CSV
    text = schedules.gpipe(2, 3).to_text()
    assert ask("check", file(text, "mine.txt"))[0] == 0
    sharded = file("0UNSHARD,0F0,(0F1;0B0)OVERLAP_F_B,0B1,0REDUCE_GRAD\n")
    status, _, err = ask("check", sharded)
    assert status == 1 and "--ignore-sharding" in err
    assert ask("check", sharded, "--ignore-sharding")[0] == 0
    done = subprocess.run(
        [sys.executable, "-m", "minipipe", "check", "-"],
        input=text,
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert done.stdout.startswith("legal: stdin, 2 ranks")


def test_a_memory_limit_is_part_of_the_question(ask):
    assert ask("check", "1f1b", "--memory-limit", 4)[0] == 0
    status, _, err = ask("check", "gpipe", "--memory-limit", 4)
    assert status == 1 and "[memory] Rank 0, position 4: with 0F4 it holds 5" in err


def test_a_memory_limit_counts_what_the_costs_say(ask):
    costs = "--costs", "activation=1,weight_activation=0.366"
    assert ask("check", "zb-h2", *costs, "--memory-limit", "7")[0] == 0
    status, _, err = ask("check", "zb-h2", *costs, "--memory-limit", "6.5")
    assert (
        status == 1
        and "[memory] Rank 0, position 6: with 0F6 it holds 7; the limit is 6.5." in err
    )
    status, out, _ = ask("step", "gpipe", *costs, "--memory-limit", "6.5", "--at", "-1")
    assert status == 1 and "with 0F6 it holds 7; the limit is 6.5." in out


def test_all_problems_are_told_and_none_is_hidden_in_an_attribute(ask, file):
    status, _, err = ask("check", file("0F0,0F0,0F1,0F1,0B0\n"))
    assert status == 1 and ".problems" not in err
    assert (
        "[duplicate] Rank 0, position 1" in err
        and "also: [duplicate] Rank 0, position 3" in err
    )
    assert "also: [missing] 0B1 is missing on rank 0." in err
    many = ",".join(["0F0"] * 12 + ["0B0"])
    assert "and 5 more" in ask("check", file(many))[2]


def test_a_schedule_without_a_backward_is_legal_and_said_not_to_train(ask, file):
    assert (
        "forward only, so it does not train"
        in ask("check", file("0F0,0F1\n1F0,1F1\n"))[1]
    )


def test_a_schedule_that_adds_gradients_in_another_order_is_legal_and_says_so(
    ask, file
):
    status, out, _ = ask("check", file("0F0,0F1,0B1,0B0\n"))
    assert (
        status == 0 and "accumulates gradients in another order than one process" in out
    )


def test_schedules_drawn_above_each_other_share_the_scale_of_a_ranks_work(ask):
    """The story: zb-v, with two stages on each rank, was drawn with 51 units below the
    33 of gpipe.
    """
    _, out, _ = ask("show", "gpipe", "zb-v", "--width", 80)
    assert (
        "gpipe, predicted: makespan 33 units" in out
        and "zb-v, predicted: makespan 25.5 units" in out
    )
    # alone, a stage takes a unit
    assert "makespan 51 units" in ask("show", "zb-v", "--width", 80)[1]


def test_frozen_stages_and_several_steps_are_simulated_drawn_and_read_again(
    ask, tmp_path
):
    _, out, _ = ask("simulate", "zb-h2", "--steps", 3, "--json")
    assert json.loads(out)["makespan"] == 27 + 24 + 24
    _, out, _ = ask("simulate", "1f1b", "--freeze", "0,1", "--json")
    expected = simulate(schedules.freeze_stages(schedules.one_f_one_b(4, 8), [0, 1]))
    assert json.loads(out)["makespan"] == expected.makespan and json.loads(out)[
        "peak_activations"
    ] == [1, 1, 2, 1]
    path = tmp_path / "mine.txt"
    path.write_text(schedules.freeze_stages(schedules.zb_h1(3, 4), [0]).to_text())
    status, out, _ = ask("check", path)
    assert status == 0 and "mine (frozen: 0), 3 ranks" in out


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--freeze", "9"], "There is no stage 9; there are 4"),
        (["--steps", "0"], "--steps is 0; expected a whole number, at least 1"),
    ],
)
def test_stages_that_cannot_be_frozen_and_no_steps_are_refused(ask, words, hint):
    status, _, err = ask("show", "1f1b", *words)
    assert status == 2 and hint in err


def test_what_names_no_stages_is_refused_as_usage(ask, capsys):
    with pytest.raises(SystemExit) as left:
        ask("show", "1f1b", "--freeze", "first")
    assert (
        left.value.code == 2
        and "'first' is not a list of whole numbers; expected a list such as 4"
        in capsys.readouterr().err
    )
