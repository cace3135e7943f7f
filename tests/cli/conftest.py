"""What the tests of the command line share: running a command, and writing a file."""

import pytest

from minipipe.cli import main


@pytest.fixture
def ask(capsys):
    """Return a function that runs one command and returns (exit status, what it printed, what it complained)."""

    def asked(*arguments):
        status = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return asked


@pytest.fixture
def file(tmp_path):
    def written(content, name="mine.csv"):
        path = tmp_path / name
        path.write_text(content)
        return path

    return written
