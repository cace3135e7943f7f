"""Words at a Tab, in a real shell on a terminal; and the list of verbs."""

import os
import pty
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from minipipe.cli.main import VERBS
from minipipe.cli.output import help_text
from minipipe.schedules.registry import REGISTRY
from tests.launch import ROOT, for_each

needs_argcomplete = pytest.mark.skipif(
    find_spec("argcomplete") is None, reason="needs argcomplete"
)
# what bash prints of a line that it was asked to show, and not to run
_END = "<the line>"


def typed_in_bash(keys, folder):
    """Return what the line has become after these keys in an interactive bash, and the
    choices that it listed.
    """
    (folder / "bin").mkdir(exist_ok=True)
    for name, module in (
        ("minipipe", "minipipe"),
        ("register-python-argcomplete", _REGISTER),
    ):
        command = folder / "bin" / name
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        command.chmod(0o755)
    register = re.search(
        r"^ *(eval .*?) +in bash", help_text("minipipe"), re.MULTILINE
    )[1]
    # Control-T shows the line as it stands instead of running it.
    start = (
        f'{register}\nbind -x \'"\\C-t": printf "\\n%s{_END}\\n" '
        "\"$READLINE_LINE\"'\nPS1='ready'\n"
    )
    (folder / "bashrc").write_text(
        f"{start}bind 'set show-all-if-ambiguous on'\nbind 'set page-completions off'\n"
    )
    environment = {
        **os.environ,
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    environment |= {
        "TERM": "dumb",
        "COLUMNS": "200",
        "COVERAGE": "",
        "INPUTRC": "/dev/null",
    }
    ours, theirs = pty.openpty()
    options = {
        "stdin": theirs,
        "stdout": theirs,
        "stderr": theirs,
        "start_new_session": True,
    }
    command = ["bash", "--noprofile", "--rcfile", str(folder / "bashrc"), "-i"]
    with subprocess.Popen(command, cwd=folder, env=environment, **options) as bash:
        os.close(theirs)
        try:
            read_until(ours, "ready")
            os.write(ours, keys.encode())
            os.write(ours, b"\x14")
            shown = read_until(ours, _END)
        finally:
            bash.kill()
            os.close(ours)
    lines = shown.replace("\r", "").split(_END)[0].split("\n")
    return lines[-1], set(" ".join(lines[1:-1]).split())


_REGISTER = "argcomplete.scripts.register_python_argcomplete"


def read_until(terminal, end):
    """Return what a terminal shows until it shows this."""
    shown = ""
    while end not in shown:
        shown += os.read(terminal, 65536).decode(errors="replace")
    return shown


@needs_argcomplete
@for_each(
    case={
        "a verb": ("simu", "simulate "),
        "an option of a verb": ("show zb-h1 --micro", "show zb-h1 --microbatches "),
        "a value": ("show zb-h1 --format perf", "show zb-h1 --format perfetto "),
        "a schedule": ("step dualpipe-", "step dualpipe-v "),
        "a file": ("check min", "check mine.csv "),
        "nothing": ("show --nosuch", "show --nosuch"),
    }
)
@pytest.mark.slow
def test_bash_completes(case, tmp_path):
    typed, completed = case
    (tmp_path / "mine.csv").touch()
    assert typed_in_bash(f"minipipe {typed}\t", tmp_path)[0] == f"minipipe {completed}"


@needs_argcomplete
@for_each(
    case={
        "verbs": ("", VERBS),
        "schedules": ("show ", REGISTRY),
        "of two": ("show 1f1b zb-", ["zb-h1", "zb-h2", "zb-v"]),
    }
)
def test_bash_lists_what_may_follow(case, tmp_path):
    typed, choices = case
    assert typed_in_bash(f"minipipe {typed}\t", tmp_path)[1] >= {*choices}


def test_without_a_verb_there_is_a_list_of_them_a_line_each_and_the_status_of_wrong_usage(
    ask, capsys
):
    with pytest.raises(SystemExit) as refused:
        ask()
    printed = capsys.readouterr()
    assert (refused.value.code, printed.out) == (2, "")
    for verb, purpose in VERBS.items():
        assert f"\n  {verb:12}{purpose}\n" in printed.err
    assert max(map(len, printed.err.splitlines())) <= 80
    with pytest.raises(SystemExit) as helped:
        ask("--help")
    assert (helped.value.code, capsys.readouterr().out) == (0, printed.err)
