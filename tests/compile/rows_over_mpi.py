"""Runs, offloads, slices and grids over MPI, compiled and eagerly: ``KIND …``."""

import sys

from minipipe import init_process_group, schedules
from tests.compile import test_grids, test_offloaded, test_runs_are_eager, test_slices


def trained(group, kind, how):
    if kind == "runs":
        found, compiled = test_runs_are_eager.train(group, how, "pipedream")
        return found, compiled and compiled.report
    if kind == "offloaded":
        schedule = schedules.offloaded(schedules.gpipe(group.size, 8), 2)
        return test_offloaded.train(group, how, schedule)
    if kind == "slices":
        return test_slices.train(group, how, schedules.seq1f1b(group.size, 4))
    mesh = test_grids.MESHES[kind]
    return test_grids.train(group, how, "1f1b", mesh)


def main():
    for kind in sys.argv[1:]:
        with init_process_group() as group:
            eager, _ = trained(group, kind, False)
            found, report = trained(group, kind, True)
            assert found == eager, f"{kind}: other bits on rank {group.rank}"
            assert "is compiled" in report and "eagerly" not in report, report
            if group.rank == 0:
                print(f"{kind}: the same bits")


if __name__ == "__main__":
    main()
