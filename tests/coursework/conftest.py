"""A course of one task, to grade."""

import pytest

from minipipe.coursework import grade
from tests.coursework.small_course import CHECKS, SOLUTION


@pytest.fixture
def course(tmp_path):
    """Return a function that grades one text, or its bytes, as 01_double.py."""
    (tmp_path / "source" / "checks").mkdir(parents=True)
    (tmp_path / "source" / "01_double.py").write_text(SOLUTION)
    (tmp_path / "source" / "checks" / "01_double.py").write_text(CHECKS)
    directory = tmp_path / "mine"
    directory.mkdir()

    def graded(text, time_limit=20.0):
        (directory / "01_double.py").write_bytes(text if isinstance(text, bytes) else text.encode())
        (task,) = grade(directory, source=tmp_path / "source", time_limit=time_limit).tasks
        return task

    graded.directory = directory
    return graded
