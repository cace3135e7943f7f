"""Train compiled and eagerly over MPI: ``SCHEDULE RANKS FEATURE …``."""

import sys

from minipipe import init_process_group
from tests.compile.test_all_schedules import FEATURES, NUM_MICROBATCHES, trained
from tests.strategies import build


def main():
    name, num_ranks, *features = sys.argv[1:]
    with init_process_group() as group:
        schedule = build(name, int(num_ranks), NUM_MICROBATCHES)
        for each in features:
            feature = FEATURES[each]
            eager = trained(group, schedule, feature, how=False)
            compiled = trained(group, schedule, feature, how=True)
            assert compiled[:2] == eager[:2], f"{each}: other bits on {group.rank}"
            assert "eagerly" not in compiled[2], compiled[2]
        if group.rank == 0:
            print(f"the same bits in {len(features)} trainings")


if __name__ == "__main__":
    main()
