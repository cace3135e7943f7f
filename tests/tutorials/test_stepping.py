"""Stepping through a training: the page's program stops in Python's debugger where the
page says, turn by turn.
"""

import re
import subprocess
import sys

from tests.launch import ROOT, environment

PAGE = (ROOT / "tutorials" / "stepping.md").read_text()
(PROGRAM,) = re.findall(r"```python\n(.+?)```", PAGE, flags=re.DOTALL)
(SESSION,) = re.findall(r"```text\n(.+?)```", PAGE, flags=re.DOTALL)
TYPED = re.findall(r"^\(Pdb\) (.+)$", SESSION, flags=re.MULTILINE)


def what_was_said(text):
    """Return the lines of a session that stand in the page: without places, prompts,
    and calls in between.
    """
    shown = [line.removeprefix("(Pdb) ") for line in text.splitlines()]
    wanted = {line for line in SESSION.splitlines() if not line.startswith("(Pdb)")}
    return [line for line in shown if line in wanted]


def test_in_a_terminal_it_stops_as_the_page_shows(tmp_path):
    path = tmp_path / "stepping.py"
    path.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, path],
        input="\n".join([*TYPED, ""]),
        env=environment(),
        text=True,
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert what_was_said(done.stdout) == [
        line for line in SESSION.splitlines() if not line.startswith("(Pdb)")
    ]
    first, second = re.search(r"\[([\d.]+), ([\d.]+)\]", done.stdout).groups()
    assert first == second


def test_the_line_at_which_the_page_stops_runs_an_action():
    (number,) = re.findall(
        r"minipipe/core/execution/executor\.py:(\d+)", " ".join(PAGE.split())
    )
    lines = (
        (ROOT / "minipipe" / "core" / "execution" / "executor.py")
        .read_text()
        .splitlines()
    )
    assert lines[int(number) - 1].strip() == "step(self)"
