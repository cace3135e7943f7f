"""Numbers and their nouns: one rank is no `1 ranks`, whatever prints it."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe.errors import counted
from tests.launch import ROOT, needs_mpi
from tests.trace.written import recorded

ONE = ("--ranks", 1, "--microbatches", 1)
TINY = [f"--{name}=1" for name in ("layers", "heads", "batch", "rounds")] + [
    "--width=4",
    "--length=2",
    "--symbols=2",
]
COMMANDS = {
    "schedules": [*ONE],
    "sweep": [*ONE, "--schedules", "gpipe", "-o", "sweep.csv"],
    "show": ["1f1b", *ONE],
    "check": ["gpipe", *ONE],
    "simulate": ["1f1b", *ONE],
    "search": [*ONE],
    "step": ["1f1b", *ONE],
    "compare": [*ONE, *TINY],
    "compare, refused": ["--ranks", 1, "--microbatches", 1, "--rounds", 10**9],
    "paper": ["megatron-table-2"],
    "trace": [*recorded("zb-v")],
    "info": [],
    "coursework": ["copy"],
    "check, refused": ["gpipe", *ONE, "--costs", "F=1:2"],
    "simulate, refused": ["gpipe", *ONE, "--costs", "hosts=0:1"],
    "step, refused": ["gpipe", *ONE, "--at", 99],
    "run": ["-n", 1, "--hostfile", "none"],
}
NOUNS = re.findall(
    r"\w+",
    "rank stage microbatch schedule grid choice step round layer block head "
    "sample core host replica action message "
    "row point task file turn thread value chunk slice pair unit restart "
    "submission parameter sequence second",
)
WRONG = re.compile(rf"(?<![\d.,:-])\b1 ([a-z]+ )?({'|'.join(NOUNS)})(es|s)\b")


@pytest.mark.slow
@needs_mpi
@pytest.mark.parametrize("name", COMMANDS)
def test_one_thing_is_never_followed_by_a_plural(name, ask, tmp_path, monkeypatch):
    """The story: `1 schedules`, `1 ranks`."""
    monkeypatch.chdir(tmp_path)
    _, out, err = ask(name.partition(",")[0], *COMMANDS[name])
    assert out + err and not WRONG.search(out + err), WRONG.search(out + err)


@pytest.mark.parametrize(
    "text",
    ["on 1 ranks", "1 microbatches;", "of 1 MPI ranks".lower(), "holds 1 points"],
)
def test_a_plural_after_one_is_found(text):
    assert WRONG.search(text)


@given(
    st.one_of(st.integers(-3, 10**6), st.floats(0, 1e6)),
    st.sampled_from([*NOUNS, "copy", "batch", "axis", "box"]),
)
def test_a_number_and_its_noun_agree(count, noun):
    number, _, said = counted(count, noun).partition(" ")
    assert float(number) == pytest.approx(count, rel=1e-5)
    assert (said == noun) == (number == "1") and said.startswith(noun[:-2])


def test_only_one_function_makes_plurals():
    plurals = re.compile(r"""\} \w+\{['"](e?s)?['"] (\* \(\w+ (>|!=)|if)""")
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in ("minipipe", "tutorials")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in Path(path).read_text().splitlines()
        if plurals.search(line)
    ]
    assert found == []
