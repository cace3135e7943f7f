"""README.md and those of the rooms are true: commands, programs, picture, map."""

import re
import sys
from pathlib import Path

import pytest

from minipipe import Pipeline, schedules
from minipipe.cli.main import VERBS, main
from minipipe.schedules.search import finding
from tests.launch import ROOT, mpirun, needs_mpi, run

README = (ROOT / "README.md").read_text()
ROOMS = {path.parent.relative_to(ROOT): path.read_text() for path in sorted((ROOT / "minipipe").rglob("README.md"))}


def blocks(language, text=README):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def all_blocks(language):
    return [block for text in (README, *ROOMS.values()) for block in blocks(language, text)]


def test_it_is_short_and_every_link_leads_to_a_file():
    assert README.count("\n") <= 167 + len(schedules.REGISTRY)  # its table has a line for each
    for folder, text in {Path(): README, **ROOMS}.items():
        for link in re.findall(r"\]\((?!http)([^)#]+)", text):
            assert (ROOT / folder / link).exists(), f"{folder}/README.md: {link}"


def test_it_opens_with_two_commands_of_one_line():
    assert README.split("```")[0].strip() == "# minipipe"
    run_line, test_line = blocks("sh")[:2]
    for line in (run_line, test_line):
        assert line.count("\n") == 1
        assert line.startswith("python3 -m venv .venv && . .venv/bin/activate && pip install -e '.[mpi")
    assert run_line.strip().endswith("mpirun -n 4 python tutorials/train.py")
    assert test_line.strip().endswith("pytest -n 2")


def test_it_says_how_long_its_commands_take():
    main_job, of_schedules = blocks("sh")[2:4]
    assert all(re.search(r"# .*\bminutes?\b", line) for line in main_job.splitlines())
    assert "all of these take seconds" in of_schedules
    assert "on two cores" in README.split("## What this is")[0]


@pytest.fixture
def smallest(tmp_path):
    program = next(block for block in blocks("python") if "init_process_group" in block)
    assert program.count("\n") <= 25
    path = tmp_path / "smallest.py"
    path.write_text(program)
    return path


@needs_mpi
def test_the_smallest_program_prints_the_same_loss_on_one_rank_and_on_three(smallest):
    alone, three = run([sys.executable, str(smallest)]), mpirun(3, smallest)
    assert alone.code == three.code == 0, alone.err + three.err
    assert alone.out.startswith("rank 0 of 1, loss ") and three.out.startswith("rank 0 of 3, loss ")
    assert alone.out.split()[-1] == three.out.split()[-1]
    assert float(alone.out.split()[-1]) < 0.05


OTHER_PROGRAMS = [
    pytest.param(block, id=str(folder), marks=[pytest.mark.slow] * ("advise(" in block))  # which races for seconds
    for folder, text in {Path(): README, **ROOMS}.items()
    for block in blocks("python", text)
    if "init_process_group" not in block
]


@pytest.mark.parametrize("program", OTHER_PROGRAMS)
def test_the_other_programs_run(program, capsys):
    exec(compile(program, "README.md", "exec"), {})
    assert "from_text" not in program or "text: makespan" in capsys.readouterr().out


def test_the_picture_is_what_its_command_draws(tmp_path):
    (words,) = re.findall(r"The picture is `minipipe (show .+?) -o (.+?)`", README)
    assert f"]({words[1]})" in README
    assert main([*words[0].split(), "-o", str(tmp_path / "drawn.svg")]) == 0
    assert (tmp_path / "drawn.svg").read_text() == (ROOT / words[1]).read_text()


def test_the_map_is_the_tree():
    rows = re.findall(r"^\| ((?:`[\w./]+`(?:, )?)+) \|", README, flags=re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([\w./]+)`", row)}
    package = Path(ROOT / "minipipe")
    files = {p.name for p in package.glob("*.py")} - {"__init__.py", "__main__.py"}
    folders = {f"{p.name}/" for p in package.iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    assert named == files | folders


def test_the_table_of_schedules_is_what_is_printed(capsys):
    assert main(["schedules"]) == 0
    assert capsys.readouterr().out.startswith(blocks("text")[0].rstrip())


def test_every_command_of_minipipe_that_it_shows_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(finding, "_ACTIONS", 10**6)
    lines = [line.split("#")[0].split() for block in all_blocks("sh") for line in block.splitlines()]
    commands = {tuple(words[1:]): None for words in lines if words[:1] == ["minipipe"]}
    assert {command[0] for command in commands} == set(VERBS)
    for command in commands:
        if command[0] in ("run", "advise", "compare", "grade", "edit"):
            continue  # they run programs, take over signals and children, or serve a page: other tests have them
        assert main([*command]) == 0, command
        assert capsys.readouterr().out


@needs_mpi
@pytest.mark.slow
def test_the_job_that_it_starts_under_supervision_runs(smallest):
    (command,) = re.findall(r"^minipipe (run [^#\n]*)", "".join(all_blocks("sh")), flags=re.MULTILINE)
    done = run([sys.executable, "-m", "minipipe", *command.replace(smallest.name, str(smallest)).split()])
    assert done.code == 0 and re.match(r"rank 0 of \d, loss ", done.out), done.err


def test_every_call_that_it_lists_is_there():
    table = ROOMS[Path("minipipe/pipeline")].split("## Four rules")[0]
    calls = re.findall(r"`(?:Pipeline\.)?(\w+)\(", table)
    assert {"step", "timeline", "from_modules"} <= set(calls)
    assert not [call for call in calls if not hasattr(Pipeline, call) and call not in ("Pipeline", "print")]
