"""All tests of replaying capture at once, and watch nothing."""

import pytest

from minipipe.execution import replaying


@pytest.fixture(autouse=True)
def without_patience(monkeypatch):
    """Capture the second microbatch of its kind, as if it had come in many steps."""
    monkeypatch.setattr(replaying, "_PATIENCE", 0)


@pytest.fixture(autouse=True)
def watching():
    """Watch nothing, unlike other tests: what is watched is computed without scripts."""
