"""A course of one task, to grade, by processes or, where they are not the subject,
without.
"""

import os

import pytest

from minipipe.coursework import grade, grading, process, several
from tests.coursework.in_process import InProcess, graded_here
from tests.coursework.small_course import CHECKS, SOLUTION


@pytest.fixture(autouse=True)
def bytecode_for_students(monkeypatch):
    """Let a student's process find the bytecode of minipipe where tests/conftest.py
    keeps it.

    It gets next to nothing of the environment, and compiling minipipe takes longer than
    grading.
    """
    if "PYTHONPYCACHEPREFIX" in os.environ:
        monkeypatch.setattr(process, "_KEPT", f"{process._KEPT} PYTHONPYCACHEPREFIX")


@pytest.fixture
def in_process(monkeypatch):
    """Grade without further processes."""
    monkeypatch.setattr(grading, "StudentProcess", InProcess)
    monkeypatch.setattr(several, "_graded", graded_here)


@pytest.fixture
def course(tmp_path):
    """Return a function that grades one text, or its bytes, as 01_double.py; its
    ``write`` only writes the file.
    """
    (tmp_path / "source" / "checks").mkdir(parents=True)
    (tmp_path / "source" / "01_double.py").write_text(SOLUTION)
    (tmp_path / "source" / "checks" / "01_double.py").write_text(CHECKS)
    directory = tmp_path / "mine"
    directory.mkdir()

    def write(text):
        (directory / "01_double.py").write_bytes(
            text if isinstance(text, bytes) else text.encode()
        )

    def graded(text, time_limit=20.0):
        write(text)
        (task,) = grade(
            directory, source=tmp_path / "source", time_limit=time_limit
        ).tasks
        return task

    graded.directory, graded.write = directory, write
    return graded
