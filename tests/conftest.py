"""For all tests: hypothesis repeats itself, and measures no time; every named schedule over a grid of sizes."""

import pytest
from hypothesis import HealthCheck, settings

from minipipe import schedules
from minipipe.errors import ScheduleError
from tests.strategies import ANY_CHUNKS

settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def every_schedule():
    """Every schedule of the registry for p 1..5, some m up to 8 and, where it takes chunks, v 1..3; the smallest first.

    Laws over larger sizes are in tests/analysis/test_every_schedule.py.
    """
    found = []
    for num_ranks in range(1, 6):
        for num_microbatches in (1, 2, 3, 4, 6, 8):
            for name in schedules.REGISTRY:
                for chunks in (1, 2, 3) if name in ANY_CHUNKS else (None,):
                    try:
                        found.append(schedules.build(name, num_ranks, num_microbatches, chunks))
                    except ScheduleError as error:
                        assert error.code == "parameters", (name, num_ranks, num_microbatches, chunks)
    return found
