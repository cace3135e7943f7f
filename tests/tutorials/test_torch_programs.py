"""The PyTorch programs in lessons run as printed, with the commands beside them, and
PyTorch's schedules are ours.
"""

import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec

import pytest

from minipipe import Schedule, schedules, simulate
from tests.launch import ROOT
from tutorials.notebooks import read_cells

LESSONS = sorted((ROOT / "tutorials").glob("[0-9][0-9]_*.py"))
# what a reader of lesson 11 has saved
MINE = schedules.zb_h1(num_ranks=3, num_microbatches=6)
# their schedule classes can save CSV; Schedule1F1B cannot
WITH_TABLES = ("08", "09", "11")
DUMP = 'if rank == 0:\n    schedule._dump_csv("theirs.csv", format="compute_only")\n'


def text_of(path):
    """Return the Markdown of a lesson."""
    return "\n".join(
        cell.content for cell in read_cells(path.read_text()) if cell.is_markdown
    )


def programs_of(path):
    """Return by file name the programs of a lesson that import PyTorch; the text says
    under which name to save each.
    """
    found = re.findall(
        r"as `(\w+\.py)`[^`]*(?:`[^`]*`[^`]*)?```python\n(.+?)^```$",
        text_of(path),
        re.M | re.S,
    )
    return {name: program for name, program in found if "import torch" in program}


def commands_of(path):
    """Return the commands of a lesson that start such a program."""
    found = re.findall(r"^torchrun .+$", text_of(path).replace("\\\n", " "), re.M)
    return [command for command in found if command.split()[3] in programs_of(path)]


def run_torch(folder, command):
    """Run a command of ``torchrun`` in a folder."""
    words = [sys.executable, "-m", "torch.distributed.run", *shlex.split(command)[1:]]
    quiet = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        words,
        cwd=folder,
        env=quiet,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_each_torch_program_of_a_lesson_has_a_command():
    started = {
        path.stem[:2]: {command.split()[3] for command in commands_of(path)}
        for path in LESSONS
    }
    assert {number: names for number, names in started.items() if names} == {
        "03": {"messages.py"},
        "06": {"train_torch.py"},
        "08": {"interleaved.py"},
        "09": {"zero_bubble.py"},
        "11": {"from_csv.py"},
    }
    assert all(started[path.stem[:2]] == programs_of(path).keys() for path in LESSONS)


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("torch") is None, reason="needs PyTorch: pip install '.[oracle]'"
)
@pytest.mark.parametrize(
    ("path", "command"),
    [
        pytest.param(path, command, id=f"{path.stem[:2]} {command}")
        for path in LESSONS
        for command in commands_of(path)
    ],
)
def test_a_torch_program_of_a_lesson_runs_the_schedule_of_that_name(
    path, command, tmp_path
):
    has_table = path.stem[:2] in WITH_TABLES
    (tmp_path / "mine.csv").write_text(MINE.to_csv())
    for name, program in programs_of(path).items():
        (tmp_path / name).write_text(
            program.replace("dist.destroy", f"{DUMP}dist.destroy")
            if has_table
            else program
        )
    done = run_torch(tmp_path, command)
    assert done.returncode == 0, done.stderr
    printed = (
        r"rank 1: the sum is \[2\.0, 2\.0\]\n"
        if "messages.py" in command
        else r"mean loss \d\.\d{4}\n"
    )
    assert re.search(printed, done.stdout)
    if has_table:
        expected = {
            "interleaved.py": schedules.interleaved_1f1b(4, 8, chunks_per_rank=2),
            "zero_bubble.py": schedules.zb_v(4, 8)
            if command.endswith(" v")
            else schedules.interleaved_zb(4, 8, 2),
            "from_csv.py": MINE,
        }[command.split()[3]]
        theirs = Schedule.from_file(tmp_path / "theirs.csv")
        assert theirs.placement == expected.placement
        assert simulate(theirs).makespan == simulate(expected).makespan
