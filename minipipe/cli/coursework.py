"""``minipipe coursework``: the exercises, for students, for the instructor, and for
other graders.
"""

from __future__ import annotations

import argparse

from minipipe.cli.declaring import adder, file_path
from minipipe.cli.numbers import FACTOR
from minipipe.cli.output import ExitStatus, answer, ending_of, write_file
from minipipe.coursework.autograder import as_archive, as_workflow
from minipipe.coursework.exercise import chosen_of, exercises_in, find_source
from minipipe.coursework.handouts import as_html, as_pdf
from minipipe.coursework.student_copy import write_coursework
from minipipe.errors import counted, misuse

_FORMS = ("copy", "handout", "solutions", "autograder", "classroom")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = adder(parser, "coursework")
    add("target", type=file_path)
    add("--as", dest="form", choices=_FORMS, default="copy")
    add("--only", action="append")
    add("--source", type=file_path)
    add("--student")
    add("--variants")
    add("--late-factor", spec=FACTOR)


def run(options: argparse.Namespace) -> ExitStatus:
    """Write the student's copy of the exercises, or a file about them."""
    form = options.form
    target = options.target
    if form != "autograder" and (options.variants or options.late_factor is not None):
        problem = "--variants and --late-factor need --as autograder"
        raise misuse(f"{problem}; --as {form} has neither.")
    if form == "copy":
        return _copy(options)
    exercises = exercises_in(find_source(options.source), options.student)
    chosen = chosen_of(exercises, options.only)
    if form == "autograder":
        ending_of(target, (".zip",))
        more = " --variants" * options.variants
        if options.late_factor is not None:
            more = f" --late-factor {options.late_factor}{more}"
        return write_file(target, as_archive(chosen, more), options)
    if form == "classroom":
        ending_of(target, (".yml", ".yaml"))
        workflow = as_workflow(chosen, is_own=options.source is not None)
        return write_file(target, workflow, options)
    ending = ending_of(target, (".html", ".pdf"))
    page = as_html(chosen, solutions=form == "solutions")
    if ending == ".pdf":
        return write_file(target, as_pdf(page), options)
    return write_file(target, page, options)


def _copy(options: argparse.Namespace) -> ExitStatus:
    """Write a student's copy of all exercises."""
    target = options.target
    if options.only:
        forms = "handout, solutions, autograder or classroom"
        raise misuse(f"A copy has all tasks; --only needs --as {forms}.")
    if target.suffix.lower() in (".html", ".pdf", ".zip", ".yml"):
        problem = f"A copy is a directory, and {target.name} is the name of a file"
        raise misuse(f"{problem}; choose what to write with --as.")
    written = write_coursework(target, source=options.source, student=options.student)
    tasks = sum(path.name.startswith("test_") for path in written)
    first = target / "README.md"
    text = f"wrote {counted(tasks, 'task')} to {target}; begin with {first}"
    data = {"directory": str(target), "files": [path.name for path in written]}
    return answer(options, data, text)
