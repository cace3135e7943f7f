"""The pages for users of PyTorch and of Megatron-LM: their commands run, and their
figures are measured.
"""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from minipipe import Grid, Pipeline, nn, schedules, spawn
from minipipe.cli import main
from minipipe.tuning.traffic import Traffic
from tests.commands import in_markdown
from tests.launch import ROOT, environment, find_mpirun, needs_mpi, slowly

SITE = ROOT / "tutorials" / "site"
PAGES = {
    name: (SITE / f"coming-from-{name}.md").read_text(encoding="utf-8")
    for name in ("pytorch", "megatron")
}


# -- commands --------------------------------------------------------------------------


def jobs():
    """Return the commands that start ranks, each once; one that resumes stands behind
    the one that saves.
    """
    found = []
    for text in PAGES.values():
        for command in in_markdown(text):
            if "--resume" in command:
                found[-1] = (*found[-1], command)
            elif (
                command.startswith(("mpirun ", "minipipe run "))
                and len(command.split()) > 3
            ):
                found.append((command,))
    return list(dict.fromkeys(found))


@pytest.fixture
def folder(tmp_path):
    """A folder with the training programs and the schedules of a page; PyTorch writes
    sharding into one of them.
    """
    (tmp_path / "tutorials").symlink_to(ROOT / "tutorials")
    text = schedules.zb_v(2, 8).to_csv()
    sharded = [
        f"{rank}UNSHARD,{row},{rank}REDUCE_GRAD,{rank}RESHARD"
        for rank, row in enumerate(text.splitlines())
    ]
    for name, content in {
        "mine": text,
        "theirs": text,
        "fsdp": "\n".join(sharded),
    }.items():
        (tmp_path / f"{name}.csv").write_text(content)
    return tmp_path


def test_every_page_has_commands_here_beside_commands_there():
    for text in PAGES.values():
        assert (
            min(
                len(re.findall(rf"\b{launcher} ", text))
                for launcher in ("torchrun", "mpirun")
            )
            >= 3
        )
    assert len(jobs()) >= 10


def test_commands_without_ranks_do_what_the_page_for_pytorch_says(
    folder, monkeypatch, capsys
):
    monkeypatch.chdir(folder)
    commands = [
        command
        for command in in_markdown(PAGES["pytorch"])
        if command.startswith(("minipipe show", "minipipe check"))
    ]
    assert len(commands) == 3
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0, command
    assert "legal: " in capsys.readouterr().out


# Options behind those of a command: it runs as on the page, with a smaller model.
SMALL = {
    "tutorials/train.py": "--hidden 32",
    "tutorials/train_lm.py": "--width 16 --heads 2 --context 12 --layers 6 --characters 20",
}


def with_small_model(command):
    words = shlex.split(command)
    for program, options in SMALL.items():
        if program in words:
            words += options.split()
    return words


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize("commands", jobs(), ids=" ; ".join)
def test_the_commands_of_a_job_run(commands, folder):
    programs = os.pathsep.join(
        [
            str(Path(sys.executable).parent),
            str(Path(find_mpirun()).parent),
            os.environ["PATH"],
        ]
    )
    options = {
        "cwd": folder,
        "env": environment(PATH=programs),
        "timeout": 150,
        "check": False,
    }
    for command in commands:
        done = subprocess.run(
            with_small_model(command), capture_output=True, text=True, **options
        )
        assert done.returncode == 0, (command, done.stderr)


# -- commands of Megatron-LM -----------------------------------------------------------

SPEC = importlib.util.spec_from_file_location("megatron", SITE / "megatron.py")
megatron = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(megatron)


def test_options_in_commands_of_megatron_are_compared_and_those_of_the_launcher_are_not(
    tmp_path,
):
    """``tutorials/site/megatron.py`` compares them with a checkout."""
    path = tmp_path / "megatron" / "training" / "arguments.py"
    path.parent.mkdir(parents=True)
    path.write_text("g.add_argument('--one-size', type=int)\n")
    page = (
        "```text\ntorchrun --nproc-per-node 2 pretrain_gpt.py --one-size 2 \\\n    "
        "--other-size 1\n```\n"
    )
    assert megatron.problems(page, tmp_path) == [
        "--other-size is in a command and is no option of Megatron-LM"
    ]
    assert megatron.problems(page.replace("other", "one"), tmp_path) == []
    assert len(megatron.used(PAGES["megatron"])) > 20


# -- figures ---------------------------------------------------------------------------


def bytes_sent(group, fully_sharded, num_microbatches):
    """Return what this replica sends in a step of two layers with 1 MiB of parameters
    each.
    """
    grid = Grid(group, data=group.size, fully_sharded=fully_sharded)
    model = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(2)))
    pipeline = Pipeline(
        model, grid, loss=nn.MSELoss(), num_microbatches=num_microbatches
    )
    inputs = np.ones((32, 512), np.float32)
    traffic = Traffic(grid, pipeline.plan)
    with traffic.counting():
        pipeline.step(inputs, inputs)
    return traffic.sent["shares"] + traffic.sent["gradient sums"]


@pytest.mark.parametrize(
    ("words", "fully_sharded"),
    [("replicas", False), slowly("fully sharded", True)],
)
def test_fully_sharded_replicas_cost_for_each_microbatch_what_the_page_says(
    words, fully_sharded
):
    cells = []
    for num_microbatches in (1, 4, 8):
        sent = spawn(
            lambda group: bytes_sent(group, fully_sharded, num_microbatches),
            num_ranks=4,
        )
        assert len(set(sent)) == 1
        cells.append(f"{sent[0] / 2**20:g}")
    assert f"\n| {words} | {' | '.join(cells)} |\n" in PAGES["pytorch"]


# -- what is not here ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("pytorch", ["`SequenceParallel`", "`context_parallel`", "expert parallelism"]),
        (
            "megatron",
            [
                "`--sequence-parallel`",
                "`--context-parallel-size`",
                "`--expert-model-parallel-size`",
            ],
        ),
    ],
)
def test_parallelism_that_does_not_exist_here_has_a_row_with_the_reason(page, names):
    for name in names:
        (row,) = [
            line for line in PAGES[page].splitlines() if line.startswith(f"| {name} |")
        ]
        assert "| not here, because " in row
