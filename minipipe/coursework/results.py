"""Reports as tables and files for other programs: CSV, JUnit XML, Gradescope's
results.json.

All take reports as plain data (:meth:`Report.as_json
<minipipe.coursework.Report.as_json>`). Names of folders and output of students' code
are untrusted text: a spreadsheet must not run it, and it must not break the XML.

References
----------
Gradescope, Autograder Specifications, section Output format. The JUnit format of Apache
Ant's ``junitreport``.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from minipipe.coursework.grading import OF_ANOTHER
from minipipe.coursework.sandbox import Containment, weakest
from minipipe.errors import counted
from minipipe.io import escaped, printable, printable_lines, text_table

Data = dict[str, Any]
_LONGEST_REMARK = 120  # characters, in a table for a terminal
# A spreadsheet computes a cell that begins with one of these.
_FORMULAS = ("=", "+", "-", "@")


def as_table(reports: Sequence[Data]) -> str:
    """Return a line for each submission.

    Examples
    --------
    >>> report = {
    ...     "points": 3,
    ...     "possible": 4,
    ...     "score": 3,
    ...     "containment": None,
    ...     "tasks": [],
    ... }
    >>> print(as_table([{"submission": "ada", **report}]))
    submission  points  of  score  done  remarks
    ada              3   4      3     0
    """
    rows: list[tuple[str, ...]] = [
        ("submission", "points", "of", "score", "done", "remarks")
    ]
    is_long = False
    for report in reports:
        tasks = report["tasks"]
        figures = (report[key] for key in ("points", "possible", "score"))
        done = sum(task["passed"] for task in tasks)
        remarks = _remarks(tasks)
        if len(remarks) > _LONGEST_REMARK:
            is_long = True
            remarks = f"{remarks[: _LONGEST_REMARK - 2]} …"
        name = printable(report["submission"])
        rows.append((name, *map(str, figures), str(done), remarks))
    lines = [text_table(rows, right={1, 2, 3, 4})]
    if is_long:
        lines.append("… is in full in the report of --csv")
    contained = [report["containment"] for report in reports if report["containment"]]
    if contained:
        each = (Containment(*map(tuple, one.values())) for one in contained)
        lines.append(f"\n{weakest(each)}")
    return "\n".join(lines)


def _remarks(tasks: Sequence[Data]) -> str:
    """Return the problem that all tasks share, or the tasks with a problem or a
    flag.
    """
    remarks = {task["task"]: "; ".join(_remarks_of(task)) for task in tasks}
    if len(set(remarks.values())) == 1:
        return printable(next(iter(remarks.values())))
    parts = [f"{task}: {remark}" for task, remark in remarks.items() if remark]
    return printable("; ".join(parts))


def _remarks_of(task: Data) -> Iterator[str]:
    if task["problem"]:
        yield task["problem"]
    if task["is_of_another"]:
        yield OF_ANOTHER
    if task["flags"]:
        yield f"uses names that are not allowed: {', '.join(task['flags'])}"


def as_csv(reports: Sequence[Data]) -> str:
    r"""Return a row for each submission, with the points of each task.

    Examples
    --------
    >>> task = {
    ...     "task": "05_bubble",
    ...     "points": 2,
    ...     "flags": ["line 3: gc"],
    ...     "problem": "",
    ...     "is_of_another": False,
    ... }
    >>> report = {
    ...     "points": 2,
    ...     "possible": 7,
    ...     "days_late": 0,
    ...     "score": 2,
    ...     "tasks": [task],
    ... }
    >>> print(as_csv([{"submission": "=cmd", **report}]), end="")
    submission,05_bubble,points,possible,days late,score,remarks
    '=cmd,2,2,7,0,2,uses names that are not allowed: line 3: gc
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    tasks = [task["task"] for report in reports[:1] for task in report["tasks"]]
    keys = ("points", "possible", "days_late", "score")
    heads = [key.replace("_", " ") for key in keys]
    writer.writerow(["submission", *tasks, *heads, "remarks"])
    for report in reports:
        points = [task["points"] for task in report["tasks"]]
        figures = [report[key] for key in keys]
        name = _cell(report["submission"])
        remarks = _cell(_remarks(report["tasks"]))
        writer.writerow([name, *points, *figures, remarks])
    return stream.getvalue()


def _cell(text: str) -> str:
    cell = printable(text)
    if cell.startswith(_FORMULAS):
        return f"'{cell}"
    return cell


def as_junit(reports: Sequence[Data]) -> str:
    """Return JUnit XML: a suite for each submission, a case for each test, without
    times, which would differ.

    Examples
    --------
    >>> print(as_junit([]), end="")
    <?xml version="1.0" encoding="UTF-8"?>
    <testsuites>
    </testsuites>
    """
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', "<testsuites>"]
    for report in reports:
        tests = [(task, test) for task in report["tasks"] for test in task["tests"]]
        failed = sum(not test["passed"] for _, test in tests)
        name = escaped(report["submission"])
        counts = f'tests="{len(tests)}" failures="{failed}" errors="0" skipped="0"'
        lines.append(f'  <testsuite name="{name}" {counts}>')
        for task, test in tests:
            name = f'name="{escaped(test["test"])}"'
            case = f'    <testcase classname="{escaped(task["task"])}" {name}'
            if test["passed"]:
                lines.append(f"{case}/>")
                continue
            reason = escaped(test["reason"])
            text = "\n".join(map(escaped, _text_of(test).split("\n")))
            failure = f'<failure message="{reason}">{text}</failure>'
            lines.append(f"{case}>{failure}</testcase>")
        lines.append("  </testsuite>")
    return "\n".join([*lines, "</testsuites>", ""])


def _text_of(test: Data) -> str:
    """Return the text of a failed test for the student."""
    lines = [test["meaning"], test["reason"], test["where"]]
    if test["hint"]:
        lines.append(f"Hint: {test['hint']}")
    return printable_lines("\n".join(filter(None, lines)))


def as_gradescope(report: Data) -> str:
    """Return Gradescope's ``results.json``: hidden tests, prints and flags are visible
    to instructors alone.

    The gaps of a puzzle, in percent, are for the assignment's leaderboard, if it has
    one.

    Examples
    --------
    >>> json.loads(
    ...     as_gradescope(
    ...         {
    ...             "score": 0,
    ...             "points": 0,
    ...             "possible": 1,
    ...             "days_late": 0,
    ...             "tasks": [],
    ...             "next": None,
    ...         }
    ...     )
    ... )
    {'score': 0, 'output': '0 of 1 point', 'stdout_visibility': 'hidden', 'tests': []}
    """
    output = f"{report['points']} of {counted(report['possible'], 'point')}"
    if report["days_late"]:
        output += f"; days late: {report['days_late']}, so {report['score']} count"
    if report["next"]:
        output += f"\nnext: {report['next']}"
    data = {"score": report["score"], "output": output, "stdout_visibility": "hidden"}
    data["tests"] = [*chain(*map(_entries, report["tasks"]))]
    gaps = []
    for entry in chain(*(task["leaderboard"] for task in report["tasks"])):
        name = f"{entry['level']}: % above the bound"
        value = round(100 * entry["gap"], 1)
        gaps.append({"name": name, "value": value, "order": "asc"})
    if gaps:
        data["leaderboard"] = gaps
    return json.dumps(data, indent=1) + "\n"


def _entries(task: Data) -> Iterator[Data]:
    for test in task["tests"]:
        status = "passed"
        output = ""
        if not test["passed"]:
            status = "failed"
            output = _text_of(test)
        yield {
            "name": f"{task['task']} {test['test']}",
            "score": test["points"],
            "max_score": test["possible"],
            "status": status,
            "output": output,
            "output_format": "text",
            "visibility": "hidden" if test["hidden"] else "visible",
        }
    # Only instructors may see these, because both can reveal hidden tests.
    observations = {
        "uses names that are not allowed": "\n".join(task["flags"]),
        "printed": task["output"],
    }
    for what, text in observations.items():
        if text:
            yield {
                "name": f"{task['task']} {what}",
                "output": printable_lines(text),
                "output_format": "text",
                "score": 0,
                "max_score": 0,
                "visibility": "hidden",
            }
