"""Train replicas compiled and eagerly over MPI, in every layout of the ranks: all
schedules, or ``SCHEDULE …``.
"""

import sys
from itertools import cycle

from minipipe import init_process_group
from tests.compile.test_replicas import CELLS, FROZEN, OPTIMISERS, STEPS, trained


def main():
    ways = zip(cycle(OPTIMISERS), cycle(reversed(FROZEN)))
    with init_process_group() as group:
        count = 0
        for (name, layout), way in zip(CELLS, ways):
            is_meant = name in sys.argv[1:] or len(sys.argv) == 1
            if layout[0] * layout[1] == group.size and is_meant:
                expected, *_ = trained(group, False, name, layout, *way)
                found, ordinary, _ = trained(group, True, name, layout, *way)
                where = f"{name}, {layout}, {way}, rank {group.rank}"
                assert found == expected, where
                assert ordinary < STEPS[way[1]], where
                count += 1
        if group.rank == 0:
            print(f"the same bits in {count} trainings")


if __name__ == "__main__":
    main()
