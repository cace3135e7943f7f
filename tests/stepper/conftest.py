"""What the tests of the stepper share: writing a file."""

import pytest


@pytest.fixture
def file(tmp_path):
    def written(content, name="mine.txt"):
        path = tmp_path / name
        path.write_text(content)
        return path

    return written
