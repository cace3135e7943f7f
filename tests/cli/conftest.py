"""What the tests of the command line share: running a command."""

import pytest

from minipipe.cli import main


@pytest.fixture
def ask(capsys):
    """Return a function that runs one command and returns (exit status, what it
    printed, what it complained).
    """

    def asked(*arguments):
        status = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return asked
