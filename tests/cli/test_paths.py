"""Every option that names a file, with paths of every kind: a sentence, never a
traceback.
"""

import os
from pathlib import Path

import numpy as np
import pytest

from minipipe import io as files
from minipipe.cli import edit, main, run
from minipipe.cli.main import VERBS
from tests.trace.written import recorded

SIZES = ["--ranks=2", "--microbatches=2"]
TRACES = " ".join(map(str, recorded("gpipe")))
TRACES += r" --label ^(?P<kind>Forward|Backward).(?P<microbatch>\d+)$"
# Words of a command, in which PATH is replaced; behind it may stand the ending that the
# option expects.
COMMANDS = [
    *(
        f"{verb} PATH"
        for verb in (
            "show",
            "check",
            "simulate",
            "step",
            "edit",
            "paper",
            "trace",
            "advise",
            "run -n 1",
        )
    ),
    *(f"show gpipe -o PATH{ending}" for ending in ("", ".svg", ".csv", ".html")),
    "simulate gpipe --costs PATH.json",
    "check --certificate PATH",
    "paper PATH.csv",
    "paper megatron-table-1 --model 1.7B -o PATH.json",
    *(f"trace {TRACES} -o PATH{ending}" for ending in (".svg", ".txt")),
    f"trace {TRACES} --write-costs PATH.json",
    f"trace {TRACES} --write-schedule PATH.csv",
    "sweep --schedules gpipe -o PATH.csv",
    "search --evaluations 2 -o PATH.json",
    "schedules --plot PATH.svg",
    "edit gpipe -o PATH.csv",
    "run --hostfile PATH program.py",
    *(f"referee PATH{ending} b.npz" for ending in ("", ".npz", ".safetensors")),
    "referee b.npz PATH.npz",
    "export PATH -o exported --ranks 1",
    "export program.py -o PATH --ranks 1",
    "coursework PATH/new",
    "coursework PATH.html --as handout --only 05_bubble",
    "coursework copy --source PATH",
    "assignment quiz --task 05_bubble -o PATH/new",
    "assignment quiz --task 05_bubble --source PATH",
    "assignment PATH --task 05_bubble",
    "grade PATH --only 05_bubble",
    "grade PATH/05_bubble.py",
    "grade PATH.zip --only 05_bubble",
    "grade mine --only 05_bubble --merge PATH.csv",
    "grade mine --only 05_bubble --merge mine/book.csv --roster PATH.csv",
    "grade mine --only 05_bubble --similarity similar.txt --against PATH",
    "grade --check --only 05_bubble --source PATH",
    "grade --leaderboard PATH --only 14_puzzle",
    "grade mine --only 05_bubble --late-factor 0.9 --times PATH",
    "grade mine --only 05_bubble --late-factor 0.9 --times PATH.json",
]
WRITING = ("-o", "--write", "--plot", "coursework", "assignment")
PATHS = [
    "folder",
    "pipe",
    "binary",
    "loop",
    "zero",
    "nowhere",
    "",
    "no/such/folder",
    "\udcff",
    "x" * 5000,
    "x" * 300,
]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Work in a folder with a thing of each kind, and start no job."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files, "PIPE_TIMEOUT", 0.01)
    monkeypatch.setattr(edit.Page, "serve_forever", lambda page: None)
    monkeypatch.setattr(run, "become_supervisor", lambda: 0)
    np.savez("b.npz", loss=np.ones(3))
    for ending in ("", ".csv", ".json", ".svg", ".html", ".zip", ".npz"):
        Path(f"folder{ending}").mkdir()
        os.mkfifo(f"pipe{ending}")
        Path(f"binary{ending}").write_bytes(bytes(range(256)))
        Path(f"loop{ending}").symlink_to(f"loop{ending}")
        Path(f"zero{ending}").symlink_to("/dev/zero")
    Path("program.py").write_text("raise SystemExit(0)\n")
    assert main(["coursework", "mine"]) == 0
    Path("mine/book.csv").write_text("student\nmine\n")


def test_every_verb_that_reads_or_writes_files_is_here():
    assert {words.split()[0] for words in COMMANDS} | {"compare", "info"} == set(VERBS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", COMMANDS, ids=lambda command: command.replace(TRACES, "TRACES")
)
def test_a_path_of_any_kind_is_taken_or_refused_in_a_sentence(here, command, capsys):
    for path in PATHS:
        words = [word.replace("PATH", path) for word in command.split()]
        if words[0] in ("search", "sweep", "schedules") or "gpipe" in words:
            words += SIZES
        try:
            status = main(words)
        except SystemExit as end:
            status = end.code
        said = capsys.readouterr()
        shown = command, path[:20]
        assert status in (0, 1, 2), shown
        # which prints the traceback of the program that it runs
        if "advise" not in command:
            assert "Traceback" not in said.err and all(
                c.isprintable() or c == "\n" for c in said.err
            ), shown
        assert status == 0 or said.err or said.out, shown
        is_written = any(word in command for word in WRITING)
        assert "cannot be written" not in said.err or is_written, shown
