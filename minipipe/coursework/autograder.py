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
from pathlib import Path

from minipipe._lazy import __version__
from minipipe.coursework.assignment import FILE, Assignment
from minipipe.coursework.exercise import Exercise, total
from minipipe.coursework.templating import template
from minipipe.errors import CourseworkError

_PACKAGE = Path(__file__).resolve().parent.parent


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
    content = {each: template(each).encode() for each in ("setup.sh", "Dockerfile")}
    content["run_autograder"] = template("run_autograder", options=options).encode()
    for exercise in exercises:
        content[f"exercises/{exercise.name}.py"] = exercise.solution.encode()
        content[f"exercises/checks/{exercise.name}.py"] = exercise.checks.encode()
    points = {each.name: each.worth for each in exercises if each.worth is not None}
    if points:
        content[f"exercises/{FILE}"] = Assignment("", points).as_json().encode()
    return _zipped({**content, name: wheel})


def as_workflow(exercises: Sequence[Exercise], is_own: bool = False) -> str:
    """Return a workflow for GitHub Classroom, with a step for each task.

    The hidden tests run only for minipipe's exercises; for others a repository has only
    the visible tests.
    """
    command = "minipipe grade . --hide-hidden --only {}"
    if is_own:
        command = "python -m pytest test_{}.py"
    steps = ""
    results = []
    runners = []
    for exercise in exercises:
        name = exercise.name
        number = exercise.name.partition("_")[0]
        tests = [each for each in exercise.tests if not (is_own and each.is_hidden)]
        step = {"name": name, "number": number, "command": command.format(name)}
        points = total(test.weight for test in tests)
        steps += template("classroom_step.yml", **step, points=str(points))
        result = f"${{{{ steps.task-{number}.outputs.result }}}}"
        results.append(f"          TASK-{number}_RESULTS: {result}")
        runners.append(f"task-{number}")
    lists = {"results": "\n".join(results), "runners": ",".join(runners)}
    steps = steps.rstrip("\n")
    return template("classroom.yml", version=__version__, steps=steps, **lists)


def _wheel() -> tuple[str, bytes]:
    """Return the file name of a wheel with the running package, without exercises, and
    its content.
    """
    try:
        installed = distribution("minipipe-mpi")
    except PackageNotFoundError:
        problem = "minipipe is not installed here, so its metadata is missing"
        how = "run pip install -e . in its folder"
        raise CourseworkError("not-found", f"{problem}; {how}.") from None
    stem = f"minipipe_mpi-{installed.version}"
    metadata = installed.read_text("METADATA") or installed.read_text("PKG-INFO") or ""
    content = {}
    for path in sorted(_PACKAGE.rglob("*")):
        is_exercise = _PACKAGE / "coursework" / "exercises" in path.parents
        if path.is_file() and path.suffix != ".pyc" and not is_exercise:
            name = path.relative_to(_PACKAGE).as_posix()
            content[f"minipipe/{name}"] = path.read_bytes()
    about = "Wheel-Version: 1.0\nGenerator: minipipe\nRoot-Is-Purelib: true\n"
    entry_points = installed.read_text("entry_points.txt") or ""
    content[f"{stem}.dist-info/METADATA"] = metadata.encode()
    content[f"{stem}.dist-info/entry_points.txt"] = entry_points.encode()
    content[f"{stem}.dist-info/WHEEL"] = f"{about}Tag: py3-none-any\n".encode()
    record = "".join(
        f"{name},sha256={_digest(each)},{len(each)}\n" for name, each in content.items()
    )
    path_of_record = f"{stem}.dist-info/RECORD"
    content[path_of_record] = f"{record}{path_of_record},,\n".encode()
    return f"{stem}-py3-none-any.whl", _zipped(content)


def _digest(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return digest.decode().rstrip("=")


def _zipped(content: Mapping[str, bytes]) -> bytes:
    """Return a zip archive of files, all executable; the same content gives the same
    bytes.
    """
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, each in content.items():
            member = zipfile.ZipInfo(name)
            member.external_attr = 0o100755 << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, each)
    return stream.getvalue()
