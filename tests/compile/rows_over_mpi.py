"""Runs, offloads, slices and grids over MPI, compiled and eagerly: ``KIND …``.

``failed`` takes steps like the last one, after a step that has left receives behind.
"""

import sys

import numpy as np

from minipipe import Pipeline, init_process_group, nn, schedules
from tests.compile import test_grids, test_offloaded, test_runs_are_eager, test_slices


def after_a_failure(group, how):
    """Every third step, the receives of the next one have been started already."""
    options = {"loss": nn.MSELoss(), "num_microbatches": 3, "compile": how}
    layers = [nn.Linear(4, 4) for _ in range(2 * group.size)]
    model = nn.Sequential(*layers).initialise(0)
    pipeline, found, reports = Pipeline(model, group, **options), [], []
    x, y = np.random.default_rng(0).standard_normal((2, 12, 4)).astype(np.float32)
    for step in range(12):
        if step % 3 == 0:
            for route in pipeline._trainer.routes.values():
                if route.peer != group.rank and step % 2 == route.tag % 2:
                    group.irecv(route.peer, route.tag)
        found.append((pipeline.step(x + step, y), pipeline.compile_report()))
        found.append([p.grad.tobytes() for p in pipeline.parameters()])
    reports = [report for _, report in found[::2]]
    losses = [loss for loss, _ in found[::2]]
    if how:
        assert any("after one that failed" in report for report in reports[3:])
    return (losses, found[1::2]), reports[-1]


def trained(group, kind, how):
    if kind == "failed":
        return after_a_failure(group, how)
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
