"""README.md and those of the packages are true: commands, programs, output, pictures,
map.
"""

import re
import shlex
import sys
from pathlib import Path
from unittest import mock
from xml.etree import ElementTree

import pytest

from minipipe import Pipeline, schedules, simulate
from minipipe.cli.main import VERBS, main
from minipipe.core.values import KINDS, NOUNS
from minipipe.passes import (
    all_kinds as all_kinds,  # declares them, before a program does
)
from minipipe.render.editor import Editor
from minipipe.render.editor.draft import Draft
from minipipe.search import finding
from tests.launch import ROOT, mpirun, needs_mpi, run

README = (ROOT / "README.md").read_text()
ROOMS = {
    path.parent.relative_to(ROOT): path.read_text()
    for path in sorted((ROOT / "minipipe").rglob("README.md"))
}


def blocks(language, text=README):
    return re.findall(
        rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE
    )


def all_blocks(language):
    return [
        block for text in (README, *ROOMS.values()) for block in blocks(language, text)
    ]


PROSE = re.sub(r"^```.*?^```$", "", README, flags=re.DOTALL | re.MULTILINE)
# The commands that draw the pictures of README.md; the other one is drawn by
# tutorials/site/screenshot.py.
DRAWN = {"tutorials/site/zero-bubble.svg": ("show", "1f1b", "zb-h1", "--animated")}


def test_it_is_short_and_every_link_leads_to_a_file():
    assert README.count("\n") <= 150
    for folder, text in {Path(): README, **ROOMS}.items():
        for link in re.findall(r"\]\((?!http)([^)#]+)", text):
            assert (ROOT / folder / link).exists(), f"{folder}/README.md: {link}"


def test_its_sentences_wrap_at_88_columns():
    assert [
        line
        for line in PROSE.splitlines()
        if len(line) > 88 and not line.startswith("![")
    ] == []


def test_it_opens_with_one_sentence_and_a_moving_picture():
    title, sentence, picture, *_ = README.split("\n\n")
    assert (
        title == "# minipipe" and sentence.count(". ") == 0 and sentence.endswith(".")
    )
    (path,) = re.findall(r"^!\[.+\]\((.+)\)$", picture)
    moving = (ROOT / path).read_text()
    assert len(moving.encode()) < 1_000_000
    # it is XML
    assert ElementTree.fromstring(moving).tag == "{http://www.w3.org/2000/svg}svg"
    moved = re.findall(r"animation:(\S+) [^;}]*infinite", moving)
    assert moved and all(f"@keyframes {name}{{" in moving for name in moved)


def test_its_first_two_commands_have_one_line_each():
    run_line, test_line = blocks("sh")[:2]
    assert README.index("```") == README.index(f"```sh\n{run_line}")
    assert (
        f"Try it in a clone of this repository (about a minute):\n\n```sh\n{run_line}"
        in README
    )
    assert f"Run the tests (about three minutes):\n\n```sh\n{test_line}" in README
    for line in (run_line, test_line):
        assert line.count("\n") == 1
        assert line.startswith(
            "python3 -m venv .venv && . .venv/bin/activate && pip install -e '.[mpi"
        )
    assert run_line.strip().endswith("mpirun -n 4 python tutorials/train.py")
    assert test_line.strip().endswith("pytest -n 2")


def test_it_says_how_long_its_commands_take():
    head, _, rest = README.partition("## The smallest program")
    assert "about a minute" in head and "two cores" in head
    steps = re.findall(r"^\*\*\d\. (?:[^.]|\.(?=\w))*", rest, flags=re.MULTILINE)
    assert len(steps) == 5
    assert [
        step
        for step in steps
        if not re.search(r"\((?:seconds|about a minute[^)]*)\)", step)
    ] == []


def test_it_explains_a_term_where_it_first_says_it():
    below = README.partition("zero-bubble.svg)")[
        2
    ]  # its alternative text is no sentence
    for term in ("rank", "stage", "microbatch", "schedule", "bubble"):
        assert below.partition(term)[0].endswith("**"), term


def test_it_has_one_link_for_a_student_an_instructor_and_a_researcher():
    (paragraph,) = [part for part in PROSE.split("\n\n") if "for researchers" in part]
    links = [link.start() for link in re.finditer(r"\]\(", paragraph)]
    readers = [
        paragraph.index(f"for {reader}")
        for reader in ("students", "instructors", "researchers")
    ]
    assert len(links) == 3 and sorted(links + readers) == [
        place for pair in zip(links, readers) for place in pair
    ]


@pytest.fixture
def smallest(tmp_path):
    program = next(block for block in blocks("python") if "init_process_group" in block)
    assert program.count("\n") <= 25
    path = tmp_path / "smallest.py"
    path.write_text(program)
    return path


def test_the_smallest_program_prints_the_loss_that_is_shown(smallest):
    alone, shown = (
        run([sys.executable, str(smallest)]),
        blocks("text")[0].splitlines()[0],
    )
    assert alone.code == 0, alone.err
    assert alone.out.rpartition(" ")[0] == shown.rpartition(" ")[0]
    assert float(alone.out.split()[-1]) == pytest.approx(
        float(shown.split()[-1]), rel=1e-3
    )


@needs_mpi
@pytest.mark.slow
def test_the_smallest_program_prints_the_same_loss_on_one_rank_and_on_three(smallest):
    alone, three = run([sys.executable, str(smallest)]), mpirun(3, smallest)
    assert alone.code == three.code == 0, alone.err + three.err
    printed, shown = (
        (alone.out + three.out).splitlines(),
        blocks("text")[0].splitlines(),
    )
    assert [line.rpartition(" ")[0] for line in printed] == [
        line.rpartition(" ")[0] for line in shown
    ]
    losses, shown_losses = (
        [line.split()[-1] for line in lines] for lines in (printed, shown)
    )
    assert losses[0] == losses[1] and shown_losses[0] == shown_losses[1]
    # CPUs differ in the last digits
    assert float(losses[0]) == pytest.approx(float(shown_losses[0]), rel=1e-3)


OTHER_PROGRAMS = [
    # which races for seconds
    pytest.param(block, id=str(folder), marks=[pytest.mark.slow] * ("advise(" in block))
    for folder, text in {Path(): README, **ROOMS}.items()
    for block in blocks("python", text)
    if "init_process_group" not in block
]


@pytest.mark.slow
@pytest.mark.parametrize("program", OTHER_PROGRAMS)
def test_the_other_programs_run(program, capsys):
    with mock.patch.dict(KINDS), mock.patch.dict(NOUNS):  # some declare their own
        exec(compile(program, "README.md", "exec"), {})
    assert "from_text" not in program or "text: makespan" in capsys.readouterr().out


@pytest.mark.parametrize("path", DRAWN)
def test_a_picture_is_what_its_command_draws(path, tmp_path):
    assert f"]({path})" in README
    assert main([*DRAWN[path], "-o", str(tmp_path / "drawn.svg")]) == 0
    drawn, kept = (tmp_path / "drawn.svg").read_text(), (ROOT / path).read_text()
    assert drawn == kept, f"minipipe {shlex.join(DRAWN[path])} -o {path}"


def test_every_picture_is_small_and_drawn_by_a_command():
    for path in re.findall(r"!\[.*?\]\((.+?)\)", README):
        assert (ROOT / path).stat().st_size < 200_000
        assert path in DRAWN or path == "tutorials/site/editor.png"


def test_the_map_is_the_tree():
    rows = re.findall(r"^\| ((?:`[\w./]+`(?:, )?)+) \|", README, flags=re.MULTILINE)
    assert len(rows) <= 15
    named = [name for row in rows for name in re.findall(r"`([\w./]+)`", row)]
    package = Path(ROOT / "minipipe")
    files = [
        p.name
        for p in package.glob("*.py")
        if p.name not in ("__init__.py", "__main__.py")
    ]
    folders = [
        f"{p.name}/"
        for p in package.iterdir()
        if p.is_dir() and (p / "__init__.py").exists()
    ]
    assert sorted(named) == sorted(files + folders)


@needs_mpi
@pytest.mark.slow
def test_the_ranks_of_the_language_model_are_drawn_as_it_shows_them():
    done = mpirun(4, ROOT / "tutorials" / "train_lm.py", "--steps", "2")
    assert done.code == 0, done.err
    *shown, legend = blocks("text")[1].splitlines()
    rows = [
        [re.match(r"rank \d ", line)[0], *re.findall(r"[FB]\d", line)] for line in shown
    ]
    drawn = [line for line in done.out.splitlines() if re.match(r"rank \d [F·]", line)]
    assert [[line[:7], *re.findall(r"[FB]\d", line)] for line in drawn] == rows
    assert legend in done.out.splitlines()
    assert "The last step, predicted for 4 ranks with one core each:" in done.out


@pytest.mark.slow
def test_the_proof_that_it_shows_is_found(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    commands = [
        line.split()[1:]
        for block in blocks("sh")
        for line in block.splitlines()
        if "best.json" in line
    ]
    assert [command[0] for command in commands] == ["search", "check"]
    assert [main(command) for command in commands] == [0, 0]
    # With OR-tools, CP-SAT proves the same bound.
    printed = re.sub(
        r"by CP-SAT [\d.]*\d", "by branch and bound", capsys.readouterr().out
    ).splitlines()
    shown = blocks("text")[2].splitlines()
    assert [line for line in printed if line in shown] == shown


def test_the_figures_beside_the_proof_are_those_of_the_schedules():
    timelines = [simulate(schedules.build(name, 4, 8)) for name in ("1f1b", "zb-h1")]
    assert [max(timeline.peak_activations) for timeline in timelines] == [4, 4]
    assert "a step takes {} or {} units".format(
        *(f"{each.makespan:g}" for each in timelines)
    ) in " ".join(PROSE.split())


@pytest.mark.slow
def test_the_error_of_the_predicted_times_is_the_one_that_paper_prints(capsys):
    assert main(["paper", "megatron-table-1"]) == 0
    error = re.search(r"error: (mean \S+ %)", (printed := capsys.readouterr().out))[1]
    most = max(
        int(line.split()[1]) for line in printed.splitlines() if re.match(r"\d", line)
    )
    assert f"up to {most} GPUs ({error.replace('mean', 'mean error')})" in " ".join(
        PROSE.split()
    )


@needs_mpi
@pytest.mark.slow
def test_training_with_a_schedule_of_the_editor_gives_the_loss_of_the_first_command(
    tmp_path,
):
    (command,) = re.findall(r"`minipipe edit (.+?)`", PROSE)
    name, _, count, _, file = command.split()
    answer = Editor(
        Draft.of(schedules.build(name, 4, int(count))), file=tmp_path / file
    ).answer({"do": "save"})
    assert not answer["isRefused"]
    train = [ROOT / "tutorials" / "train.py", "--epochs", "1"]
    done = [mpirun(4, *train), mpirun(4, *train, "--schedule", str(tmp_path / file))]
    losses = [
        re.findall(r"^test loss .*", each.out, flags=re.MULTILINE) for each in done
    ]
    assert len(losses[0]) == 1 and losses[0] == losses[1], done[1].err


@needs_mpi
@pytest.mark.slow
def test_the_exported_lines_that_it_shows_are_those_of_a_rank(tmp_path):
    (command,) = re.findall(r"`minipipe (export [^`]+)`", PROSE)
    words = command.replace(" exported ", f" {tmp_path} ").split()
    assert run([sys.executable, "-m", "minipipe", *words]).code == 0
    shown = re.findall(r"^    \S.*\d\].*$", PROSE, flags=re.MULTILINE)
    assert len(shown) == 2 and "\n".join(shown) in (tmp_path / "rank3.py").read_text()


@needs_mpi
@pytest.mark.slow
def test_the_kinds_of_parallelism_that_it_shows_are_compared():
    done = run(
        [sys.executable, "-m", "minipipe", "compare", "--ranks", "2", "--rounds", "1"],
        limit=300,
    )
    assert done.code == 0, done.err
    head, *rows = blocks("text")[3].splitlines()
    printed = done.out.splitlines()
    start = printed.index(
        next(line for line in printed if line.split() == head.split())
    )
    names = [
        re.split(r"  +", line)[0] for line in printed[start + 1 : start + 1 + len(rows)]
    ]
    assert names == [re.split(r"  +", row)[0] for row in rows]
    # the losses
    assert {row.split()[-1] for row in rows} == {printed[start + 1].split()[-1]}
    held, sent = (
        [bytes_of(printed, table, name) for name in ("data 2", "pipeline 2")]
        for table in ("held", "sent")
    )
    assert "needs {1} instead of {0} MiB".format(
        *(f"{size / 2**20:.1f}" for size in held)
    ) in " ".join(PROSE.split())
    assert round(sent[0] / sent[1]) == 3 and "sends a third of the bytes" in PROSE


def bytes_of(printed, table, name):
    """Return the sum of a row in one of the tables of bytes that ``minipipe compare``
    prints.
    """
    start = next(
        i for i, line in enumerate(printed) if line.startswith(f"{table} bytes")
    )
    head, *rows = ([*re.split(r"  +", line)] for line in printed[start : start + 5])
    (row,) = (row for row in rows if row[0] == name)
    return int(row[head.index("all")].replace(",", ""))


# They run programs, take over signals and children, serve a page, or read files.
TESTED_ELSEWHERE = [
    "run",
    "advise",
    "compare",
    "export",
    "grade",
    "edit",
    "trace",
    "referee",
]


def test_every_command_of_minipipe_that_it_shows_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(finding, "_ACTIONS", 10**4)
    lines = [
        shlex.split(line, comments=True)
        for block in all_blocks("sh")
        for line in block.splitlines()
    ]
    lines += [
        shlex.split(command) for command in re.findall(r"`(minipipe [^`]+)`", PROSE)
    ]
    commands = {tuple(words[1:]): None for words in lines if words[:1] == ["minipipe"]}
    assert {command[0] for command in commands} == set(VERBS)
    for command in commands:
        if "best.json" in command:
            continue  # test_the_proof_that_it_shows_is_found runs these
        if command[0] in TESTED_ELSEWHERE:
            continue
        assert main([*command]) == 0, command
        assert capsys.readouterr().out


@needs_mpi
@pytest.mark.slow
def test_the_job_that_it_starts_under_supervision_runs(smallest):
    (command,) = re.findall(
        r"^minipipe (run [^#\n]*)", "".join(all_blocks("sh")), flags=re.MULTILINE
    )
    done = run(
        [
            sys.executable,
            "-m",
            "minipipe",
            *command.replace(smallest.name, str(smallest)).split(),
        ]
    )
    assert done.code == 0 and re.match(r"rank 0 of \d, loss ", done.out), done.err


def test_every_call_that_it_lists_is_there():
    table = ROOMS[Path("minipipe/pipeline")].split("## Four rules")[0]
    calls = re.findall(r"`(?:Pipeline\.)?(\w+)\(", table)
    assert {"step", "timeline", "from_modules"} <= set(calls)
    assert not [
        call
        for call in calls
        if not hasattr(Pipeline, call) and call not in ("Pipeline", "print")
    ]
