"""The launch scripts of tutorials/cluster: read by a shell, and run as far as one
machine can.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch import ROOT, find_mpirun, needs_mpi, run

CLUSTER = ROOT / "tutorials" / "cluster"
SCRIPTS = sorted(CLUSTER.glob("*.sh"))
needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")


@needs_bash
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_shell_can_read_the_script_and_its_programs_exist(script):
    checked = subprocess.run(
        ["bash", "-n", script], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")
    named = re.findall(r"tutorials/[\w/.]+", script.read_text())
    assert named and all((ROOT / name).exists() for name in named)
    assert (
        "MINIPIPE_TIMEOUT" in script.read_text()
        and f"({script.name})" in (CLUSTER / "README.md").read_text()
    )


def with_launcher(folder, name, text):
    """Return a PATH on which a launcher stands before all others, and this Python."""
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
    return os.pathsep.join(
        [str(folder), str(Path(sys.executable).parent), os.environ["PATH"]]
    )


@needs_mpi
@needs_bash
@pytest.mark.slow
@pytest.mark.parametrize(("script", "tensor"), [("mpich.sh", 2), ("slurm.sh", 1)])
def test_the_script_trains_on_this_machine(script, tensor, tmp_path):
    """mpirun as it is; srun as a launcher that takes no notice of its options."""
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:2\n")
    text = (
        f'while [ "${{1#-}}" != "$1" ]; do shift; done; exec {find_mpirun()} -n 2 "$@"'
    )
    changes = {
        "PATH": with_launcher(tmp_path, "srun", text),
        "HOSTS": str(hosts),
        "RANKS": "2",
    }
    source = (CLUSTER / script).read_text().replace("source .venv", ": .venv")
    copy = tmp_path / script
    copy.write_text(source.replace("module load", ": module load"))
    done = run(["bash", copy, "--epochs", "1", "--tensor", str(tensor)], **changes)
    assert done.code == 0, done.err
    assert "2 ranks on 1 host\n" in done.out and "test accuracy" in done.out
    assert ("replica 0, part 1" in done.out) == (tensor == 2)


@needs_mpi
@pytest.mark.slow
def test_where_shows_the_coordinates_on_a_grid():
    done = run(
        [
            find_mpirun(),
            "-n",
            "4",
            sys.executable,
            CLUSTER / "where.py",
            "--tensor",
            "2",
            "--epochs",
            "1",
        ]
    )
    assert (done.code, done.err) == (0, "")
    roles = [line.partition("pipeline")[2] for line in done.out.splitlines()[1:5]]
    assert roles == [
        f" rank {place}, replica 0, part {part}"
        for place in range(2)
        for part in range(2)
    ]


@needs_mpi
def test_where_shows_every_rank_with_its_host(tmp_path):
    done = run([find_mpirun(), "-n", "2", sys.executable, CLUSTER / "where.py"])
    rows = [line.split() for line in done.out.splitlines()]
    host = os.uname().nodename
    assert (done.code, done.err) == (0, "")
    assert [row[:3] for row in rows[1:3]] == [["0", host, "0"], ["1", host, "1"]]
    assert done.out.splitlines()[3] == "2 ranks on 1 host"
