"""The registry of builders by name."""

from minipipe.schedules import REGISTRY


def test_the_registry_is_shown_in_one_short_line():
    """A page of the documentation shows it, on a phone as well."""
    assert repr(REGISTRY) == f"<{len(REGISTRY)} builders by name>"
