"""Whatever is typed, given as a file or done to the output: an exit status, and one
sentence that can be printed.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from minipipe.cli import main
from tests.launch import ROOT, environment, run, slowly

MINIPIPE = f"{sys.executable} -m minipipe"
needs_full = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="no /dev/full here"
)


def answer(capsys, arguments):
    """Run a command, and return (exit status, output, complaint), whether it returns or
    exits.
    """
    try:
        status = main([str(argument) for argument in arguments])
    except SystemExit as exit_:
        status = exit_.code
    return status, *capsys.readouterr()


def is_printable(text):
    return all(c.isprintable() or c == "\n" for c in text)


# -- what is typed ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["show", "1f1b", "--ranks", "99999999999999999999"],
            "the limits are 4096 stages and 16777216 actions",
        ),
        (
            ["show", "1f1b", "--ranks", "1000000", "--microbatches", "1000000"],
            "take 2000000000000 actions, F and B",
        ),
        (
            ["check", "gpipe", "--microbatches", "9" * 5000],
            "argument --microbatches: cannot read",
        ),
        (["check", "gpipe", "--steps", "9" * 19], "--steps: 4 stages and"),
        (["check", "zb-v", "--chunks", "9" * 30], "the limits are"),
        (["check", "interleaved-1f1b", "--group", "1" + "0" * 30, "--ranks", "3"], ""),
        (["check", "gpipe", "--freeze", "9" * 30], "--freeze: There is no stage"),
        (["check", "gpipe", "--freeze", "9" * 5000], "is not a list of whole numbers"),
        (
            ["check", "gpipe", "--memory-limit", "-" + "9" * 400],
            "memory_limit is -9999",
        ),
        (["schedules", "--ranks", "100000"], "take 1600000 actions, F and B"),
        (["schedules", "--memory-limit", "-inf"], "expected one argument"),
        (["show", "1f1b", "--width", "9" * 30], ""),
        (
            ["show", "1f1b", "--format", "svg", "--width", "9" * 30],
            "expected 240 to 1048576 pixels",
        ),
        (["show", "1f1b", "--format", "svg", "--font-size", "nan"], "font_size is nan"),
        (
            ["show", "1f1b", "--format", "svg", "--font-size", "1e308"],
            "font_size is 1e+308",
        ),
        (["show", "a" * 300], "There is neither a schedule nor a file 'aaaa"),
        (["show", "a\0b"], r"neither a schedule nor a file 'a\x00b'"),
        (["show", "\x1b[2J\x1b]0;title\x07"], r"'\x1b[2J\x1b]0;title\x07'"),
        (["show", "\udcff\u202e"], r"'\udcff\u202e'"),
        (
            ["check", "/dev/zero"],
            "'/dev/zero' cannot be read: it is a device; expected a file",
        ),
        (
            ["simulate", "gpipe", "--costs", "F=1e400"],
            "forward is inf; expected finite numbers",
        ),
        (
            ["simulate", "gpipe", "--costs", "latency=nan"],
            "latency is nan; expected a finite time",
        ),
        (["simulate", "gpipe", "--costs", "F=\x1b[2J"], r"'F=\x1b[2J' has no number"),
        (["simulate", "gpipe", "--costs", "<script>=1"], "'<script>=1' is not a cost"),
        (["step", "gpipe", "--at", "9" * 30], "--at is 9999"),
        (["frobnicate\x1b[2J"], r"frobnicate\x1b[2J"),
        (["show", "gpipe", "--no-\x1b[2J"], r"unrecognized arguments: --no-\x1b[2J"),
        (["show", "gpipe", "-o", "\0.svg"], "embedded null"),
        (
            ["show", "gpipe", "-o", "a" * 300 + ".svg"],
            "cannot be written: File name too long",
        ),
        (
            ["show", "gpipe", "-o", "no/such/\x1b[2J.svg"],
            r"'no/such/\x1b[2J.svg' cannot be written: No such file",
        ),
        (
            ["show", "gpipe", "-o", "/dev/full", "--format", "csv"],
            "'/dev/full' cannot be written: No space left",
        ),
    ],
    ids=lambda given: f"{given}"[:40],
)
def test_a_hostile_command_exits_2_with_a_sentence_that_can_be_printed(
    arguments, words, capsys
):
    status, out, err = answer(capsys, arguments)
    assert is_printable(out + err) and len(err) < 3000
    if words:
        assert (status, out) == (2, "") and words in err
    assert not list(Path().glob(".minipipe-*"))


def test_a_large_file_is_refused_by_its_size(capsys, tmp_path):
    path = tmp_path / "large.csv"
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    status, _, err = answer(capsys, ["check", path, "--json"])
    assert (
        status == 2
        and "it has 1,099,511,627,776 bytes; the limit is 268,435,456" in err
    )


def test_a_name_of_a_file_is_printed_without_its_control_characters(capsys, tmp_path):
    """The story: its escape sequences reached the terminal, from legal files and from
    illegal ones.
    """
    path = tmp_path / "\x1b]0;mine\x07\udcff\n.csv"
    for content, expected in (
        ("0F0,0B0\n", 0),
        ("0F0,0F1,0B0\n", 1),
        ("0F0,0B0,0SEND_F0\n", 1),
        ("nonsense", 1),
    ):
        path.write_text(content)
        for words in (
            ["check"],
            ["simulate"],
            ["show"],
            ["step", "--all"],
            ["show", "--format", "rows"],
        ):
            status, out, err = answer(capsys, [words[0], path, *words[1:]])
            assert is_printable(out + err), (words, out, err)
            assert status == expected or words[0] in ("show", "step", "simulate")
    path.write_text("0F0,0B0\n")
    status, out, err = answer(capsys, ["show", path, "-o", tmp_path / "\x1b[2J.svg"])
    assert (
        status == 0 and is_printable(out + err) and (tmp_path / "\x1b[2J.svg").exists()
    )


def test_a_cell_is_quoted_without_its_control_characters(capsys, file):
    for content in (
        "0F0,\x1b[2J0B0\n",
        "0F0 0B0 \x9b31m\n",
        "rank\x1b: 0F0\n",
        "(0F0;\x1c0B0)OVERLAP_F_B,",
    ):
        _, out, err = answer(capsys, ["check", file(content)])
        assert is_printable(out + err)


# -- what happens to the output --------------------------------------------------------


@needs_full
@pytest.mark.parametrize(
    "command",
    [
        "show 1f1b > /dev/full",
        slowly("show gpipe --microbatches 5000 --format csv > /dev/full"),
        slowly("simulate 1f1b --json > /dev/full"),
        slowly("step 1f1b --all > /dev/full"),
        slowly("--help > /dev/full"),
        slowly("show --help > /dev/full"),
        "show 1f1b >&-",
    ],
)
def test_output_that_cannot_be_written_is_one_sentence_and_a_failure(command):
    """The story: a traceback, or nothing and exit status 0."""
    done = run(["bash", "-c", f"{MINIPIPE} {command}"])
    assert done.code == 2 and done.err.count("\n") == 1, done.err
    assert done.err.startswith("minipipe: 'stdout' cannot be written: ")


@needs_full
@pytest.mark.parametrize(
    "command",
    [
        "check nowhere 2> /dev/full",
        slowly("check nowhere 2>&-"),
        slowly("x 2>/dev/full"),
    ],
)
def test_a_complaint_that_cannot_be_written_is_still_a_failure(command):
    done = run(["bash", "-c", f"{MINIPIPE} {command}"])
    assert done.code != 0 and done.out == ""


@pytest.mark.parametrize(
    "form", ["svg", slowly("html"), slowly("json"), slowly("csv"), slowly("txt")]
)
def test_a_disk_that_fills_up_leaves_no_half_of_a_file(form, tmp_path):
    limited = (
        f"ulimit -f 1; trap '' XFSZ; exec {MINIPIPE} show 1f1b --microbatches 300 -o "
        f"{tmp_path}/a.{form}"
    )
    done = run(["bash", "-c", limited], PYTHONDONTWRITEBYTECODE="1")
    assert (
        done.code == 2
        and "cannot be written: File too large." in done.err
        and done.err.count("\n") == 1
    )
    assert os.listdir(tmp_path) == []


def test_an_error_of_the_disk_is_also_data(ask):
    status, out, _ = ask("show", "1f1b", "--json", "-o", "/no/such/folder/a.json")
    assert status == 2 and json.loads(out)["error"] == "unwritable"


def test_standard_input_may_be_closed_or_no_text():
    for stdin, words in (
        ("<&-", "it is closed"),
        ("< /dev/null", "The text has no action"),
    ):
        done = run(["bash", "-c", f"{MINIPIPE} check - {stdin}"])
        assert done.code in (1, 2) and words in done.err and done.err.count("\n") == 1
    done = subprocess.run(
        [sys.executable, "-m", "minipipe", "check", "-"],
        input=b"\xff\xfe0\0", capture_output=True, cwd=ROOT, env=environment(PYTHONUTF8="1"), check=False,
    )  # fmt: skip
    assert done.returncode in (1, 2) and b"Traceback" not in done.stderr
