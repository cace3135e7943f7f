"""What is watched is computed eagerly, so nothing is watched here."""

import pytest


@pytest.fixture(autouse=True)
def watching():
    """Watch nothing, unlike other tests."""
