"""The kinds of all passes, for readers of tables that may have any of them."""

from __future__ import annotations

from minipipe.passes.kinds import ADDED as OF_FRAMES
from minipipe.passes.vocabulary import OF_VOCABULARY

ADDED = {**OF_FRAMES, **OF_VOCABULARY}
"""All kinds that passes add, by name."""
