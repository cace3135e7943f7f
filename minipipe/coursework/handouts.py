"""Exercises on paper: a page for students, and one with solutions for the instructor;
as HTML, printed as PDF.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from pathlib import Path
from textwrap import indent
from typing import Any

from minipipe.coursework.exercise import Exercise, Test, total
from minipipe.coursework.templating import template
from minipipe.coursework.trial import wrong_answers
from minipipe.errors import CourseworkError, counted
from minipipe.io import escaped, read_bytes

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_DEADLINE = 120.0  # seconds to print


def as_html(exercises: Sequence[Exercise], *, solutions: bool = False) -> str:
    """Return a page with statements, stubs and visible tests, or with solutions, all
    tests, hints and wrong answers.

    Examples
    --------
    >>> from minipipe.coursework.exercise import exercises_in, find_source
    >>> page = as_html(exercises_in(find_source())[4:5])
    >>> "<code>bubble_fraction(num_ranks, num_microbatches)</code> is the idle fraction" in page
    True
    """
    title = "Coursework"
    if solutions:
        title = "Coursework: solutions, for the instructor"
    lines = chain(*(_section(exercise, solutions) for exercise in exercises))
    return template("handout.html", title=escaped(title), body="\n".join(lines))


def _section(exercise: Exercise, solutions: bool) -> Iterator[str]:
    hidden = total(test.weight for test in exercise.tests if test.is_hidden)
    points = f"{counted(exercise.points, 'point')}, {hidden} of them hidden"
    about = f"{exercise.name}.py · lesson {exercise.lesson} · {points}"
    title = f"<h2>{escaped(exercise.title)}</h2>"
    yield f'<section>{title}<p class="about">{escaped(about)}</p>'
    yield from _prose(exercise.statement.partition("\n")[2])
    head = "The file"
    text = exercise.stub
    if solutions:
        head = "Solution"
        text = exercise.answer
    yield f"<h3>{head}</h3>"
    docstring = ast.parse(text).body[0]
    yield _code("\n".join(text.split("\n")[docstring.end_lineno :]))
    yield "<h3>Tests</h3><ul>"
    for test in exercise.tests:
        if solutions or not test.is_hidden:
            yield _test(test, solutions)
    yield "</ul>"
    if solutions:
        yield "<h3>Wrong answers, and why they are tempting</h3>"
        for why, old, new in wrong_answers(exercise):
            change = f"{indent(old.rstrip(), '- ')}\n{indent(new.rstrip(), '+ ')}"
            yield f"<p>{_inline(why)}</p>{_code(change)}"
    yield "</section>"


def _prose(text: str) -> Iterator[str]:
    for paragraph in text.strip("\n").split("\n\n"):
        lines = paragraph.split("\n")
        for is_code, group in groupby(lines, lambda line: line.startswith("    ")):
            if is_code:
                yield _code("\n".join(line[4:] for line in group))
            else:
                yield f"<p>{_inline(' '.join(group))}</p>"


def _inline(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped(text))


def _code(text: str) -> str:
    lines = "\n".join(map(escaped, text.strip("\n").split("\n")))
    return f'<pre tabindex="0">{lines}</pre>'


def _test(test: Test, solutions: bool) -> str:
    entry = f"<code>{escaped(test.name)}</code>{' (hidden)' * test.is_hidden}"
    entry += f": {_inline(test.meaning)}"
    if test.weight != 1:
        entry += f" {counted(total([test.weight]), 'point')}."
    if solutions and test.hint:
        entry += f' <span class="hint">Hint: {_inline(test.hint)}</span>'
    return f"<li>{entry}</li>"


def as_pdf(page: str) -> bytes:
    """Return a page of HTML as PDF, printed by Chromium.

    Raises
    ------
    CourseworkError
        Code ``not-found``, if Chromium is missing or fails.
    """
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        how = "install it, or write a .html file and print that from any browser"
        problem = f"Writing a PDF needs Chromium, and none of {', '.join(_BROWSERS)}"
        raise CourseworkError("not-found", f"{problem} is here; {how}.")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        source = Path(folder, "page.html")
        printed = Path(folder, "page.pdf")
        source.write_text(page, "utf-8")
        command = [browser, "--headless", "--disable-gpu", "--no-pdf-header-footer"]
        command += [f"--user-data-dir={folder}/profile", f"--print-to-pdf={printed}"]
        if hasattr(os, "geteuid") and os.geteuid() == 0:  # root has no other way
            command.append("--no-sandbox")
        command.append(source.as_uri())
        limits: dict[str, Any] = {"timeout": _DEADLINE, "check": False}
        done = subprocess.run(command, capture_output=True, **limits)
        if done.returncode or not printed.exists():
            last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
            problem = f"{browser} printed no PDF"
            raise CourseworkError("not-found", f"{problem}: {last[:500]}")
        return read_bytes(printed)
