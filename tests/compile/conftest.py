"""Nothing is watched here, unlike in other tests: watched steps run eagerly."""

import pytest


@pytest.fixture(autouse=True)
def watching():
    """Watch nothing."""
