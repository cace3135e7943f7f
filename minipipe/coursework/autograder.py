"""Files for other graders: an archive for Gradescope and Docker, a workflow for GitHub
Classroom.

The archive has a wheel of the running minipipe, so that its grades agree with this
machine: it needs no clone, no build tools and no release.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path

from minipipe._lazy import __version__
from minipipe.coursework.exercise import Exercise, total
from minipipe.errors import CourseworkError

_PACKAGE = Path(__file__).resolve().parent.parent
_STEP = """      - name: {name}
        id: task-{number}
        uses: classroom-resources/autograding-command-grader@v1
        with:
          test-name: {name}
          command: {command}
          timeout: 2
          max-score: {points}"""


def as_archive(exercises: Sequence[Exercise], options: str = "") -> bytes:
    """Return a zip archive for Gradescope, and for Docker.

    Parameters
    ----------
    exercises : sequence of Exercise
        The exercises; the archive has them and their tests.
    options : str
        Further options of ``minipipe grade``, each after a blank.

    Raises
    ------
    CourseworkError
        Code ``not-found``, if minipipe runs without being installed.
    """
    name, wheel = _wheel()
    content = {each: _template(each).encode() for each in ("setup.sh", "Dockerfile")}
    content["run_autograder"] = (
        _template("run_autograder").replace("@options@", options).encode()
    )
    for exercise in exercises:
        content[f"exercises/{exercise.name}.py"] = exercise.solution.encode()
        content[f"exercises/checks/{exercise.name}.py"] = exercise.checks.encode()
    return _zipped({**content, name: wheel})


def as_workflow(exercises: Sequence[Exercise], is_own: bool = False) -> str:
    """Return a workflow for GitHub Classroom, with a step for each task.

    The hidden tests run only for minipipe's exercises; for others a repository has only
    the visible tests.
    """
    numbers = {exercise.name: exercise.name.partition("_")[0] for exercise in exercises}
    command = (
        "python -m pytest test_{}.py"
        if is_own
        else "minipipe grade . --hide-hidden --only {}"
    )
    points = {
        each.name: total(
            test.weight for test in each.tests if not (is_own and test.is_hidden)
        )
        for each in exercises
    }
    steps = (
        _STEP.format(
            name=name, number=number, command=command.format(name), points=points[name]
        )
        for name, number in numbers.items()
    )
    results = (
        f"          TASK-{n}_RESULTS: ${{{{ steps.task-{n}.outputs.result }}}}"
        for n in numbers.values()
    )
    text = (
        _template("classroom.yml")
        .replace("@version@", __version__)
        .replace("@steps@", "\n".join(steps))
    )
    runners = ",".join(f"task-{number}" for number in numbers.values())
    return text.replace("@results@", "\n".join(results)).replace("@runners@", runners)


def _template(name: str) -> str:
    return (files("minipipe.coursework") / "templates" / name).read_text("utf-8")


def _wheel() -> tuple[str, bytes]:
    """Return the file name of a wheel with the running package, without exercises, and
    its content.
    """
    try:
        installed = distribution("minipipe-mpi")
    except PackageNotFoundError:
        raise CourseworkError(
            "not-found",
            (
                "minipipe is not installed here, so its metadata is missing; run pip "
                "install -e . in its folder."
            ),
        ) from None
    stem = f"minipipe_mpi-{installed.version}"
    metadata = installed.read_text("METADATA") or installed.read_text("PKG-INFO") or ""
    content = {
        f"minipipe/{path.relative_to(_PACKAGE).as_posix()}": path.read_bytes()
        for path in sorted(_PACKAGE.rglob("*"))
        if path.is_file()
        and path.suffix != ".pyc"
        and _PACKAGE / "coursework" / "exercises" not in path.parents
    }
    content[f"{stem}.dist-info/METADATA"] = metadata.encode()
    content[f"{stem}.dist-info/entry_points.txt"] = (
        installed.read_text("entry_points.txt") or ""
    ).encode()
    about = (
        "Wheel-Version: 1.0\nGenerator: minipipe\nRoot-Is-Purelib: true\nTag: "
        "py3-none-any\n"
    )
    content[f"{stem}.dist-info/WHEEL"] = about.encode()
    record = [
        f"{name},sha256={_digest(each)},{len(each)}" for name, each in content.items()
    ]
    content[f"{stem}.dist-info/RECORD"] = "\n".join(
        [*record, f"{stem}.dist-info/RECORD,,", ""]
    ).encode()
    return f"{stem}-py3-none-any.whl", _zipped(content)


def _digest(content: bytes) -> str:
    return (
        base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    )


def _zipped(content: Mapping[str, bytes]) -> bytes:
    """Return a zip archive of files, all executable; the same content gives the same
    bytes.
    """
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, each in content.items():
            member = zipfile.ZipInfo(name)
            member.external_attr, member.compress_type = (
                0o100755 << 16,
                zipfile.ZIP_DEFLATED,
            )
            archive.writestr(member, each)
    return stream.getvalue()
