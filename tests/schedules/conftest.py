"""What the tests of the schedule tower share: every named schedule over a grid of sizes."""

import inspect

import pytest

from minipipe import schedules
from minipipe.errors import ScheduleError


@pytest.fixture(scope="session")
def every_schedule():
    """Every schedule of the registry for p 1..6, m 1..8 and, where it takes chunks, v 1..3; the smallest first."""
    found = []
    for num_ranks in range(1, 7):
        for num_microbatches in range(1, 9):
            for builder in schedules.REGISTRY.values():
                takes_chunks = "chunks_per_rank" in inspect.signature(builder).parameters
                for chunks in [{"chunks_per_rank": v} for v in (1, 2, 3)] if takes_chunks else [{}]:
                    try:
                        found.append(builder(num_ranks, num_microbatches, **chunks))
                    except ScheduleError as error:
                        assert error.code == "parameters", (builder, num_ranks, num_microbatches, chunks)
    return found
