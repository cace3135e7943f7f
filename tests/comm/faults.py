"""Programs that go wrong, for test_faults.py: ``mpirun -n N python -m tests.comm.faults FAULT with|without``."""

import os
import signal
import sys
import time

import numpy as np

from minipipe import Pipeline, Schedule, init_process_group, nn

TIMEOUT = 1.5


def raises(group):
    if group.rank == 2:
        raise ValueError("boom")
    group.recv(2)


def exits(group):
    if group.rank == 2:
        sys.exit(7)
    group.recv(2)


def exits_in_a_collective(group):
    if group.rank == 2:
        sys.exit(7)
    group.all_reduce(np.zeros(3))


def returns_early(group):
    if group.rank != 2:
        group.recv(2)


def catches_an_exit_and_goes_on(group):
    try:
        sys.exit(7)
    except SystemExit:
        group.barrier()


def exits_with_zero_at_the_end(group):
    group.barrier()
    sys.exit(0)


def stops(group):
    if group.rank == 2:
        print("stopping", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    group.recv(2, tag=11)


def stops_at_the_end(group):
    if group.rank == 2:
        os.kill(os.getpid(), signal.SIGSTOP)


def stops_in_the_middle_of_a_large_array(group):
    """Where ranks cannot read each other's memory, the bytes move only while the sender helps."""
    array = np.zeros(64 << 20, np.uint8)
    if group.rank == 2:
        group.isend(array, 0, tag=1)
        os.kill(os.getpid(), signal.SIGSTOP)
    if group.rank == 0:
        time.sleep(0.3)
        group.recv(2, tag=1)
    group.barrier()


def sends_another_tag(group):
    if group.rank == 0:
        group.isend(np.zeros(3), 1, tag=5)
        group.recv(1, tag=9)
    elif group.rank == 1:
        group.recv(0, tag=6)
        group.isend(np.zeros(3), 0, tag=9)


def sends_a_large_array_that_nobody_takes(group):
    if group.rank == 0:
        group.send(np.zeros(1 << 20), 1)
    else:
        time.sleep(20)


def pipeline_with(group, **options):
    model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(4, 4), nn.Tanh())])
    return Pipeline(model, group, loss=nn.MSELoss(), **{"num_microbatches": 4, **options})


def batch(size=8):
    return np.ones((size, 4), np.float32), np.zeros((size, 4), np.float32)


def stops_in_a_step(group):
    pipeline = pipeline_with(group)
    pipeline.step(*batch())
    if group.rank == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    pipeline.step(*batch())


def disagrees_about_the_width(group):
    width = 5 if group.rank == 1 else 4
    model = nn.Sequential(nn.Linear(4, width), nn.Linear(width, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    Pipeline(model, group, loss=nn.MSELoss()).step(*batch(16))


def disagrees_about_the_seed(group):
    pipeline_with(group, seed=group.rank // 3)


def disagrees_about_the_schedule(group):
    pipeline_with(group, schedule="gpipe" if group.rank == 0 else "1f1b")


def steps_unequally_often(group):
    pipeline = pipeline_with(group)
    if group.rank == 1:
        pipeline._intake.calls.count += 1  # as if this rank had skipped a step of the others
    pipeline.step(*batch())


def sends_another_dtype(group):
    if group.rank == 0:
        group.isend(np.zeros(3), 1)
    if group.rank == 1:
        group.recv(0, out=np.zeros(3, np.float32))
    group.barrier()


def has_a_schedule_that_deadlocks(group):
    text = "0F0 0F1 0B0 0B1\n 1F1 1B1 1F0 1B0\n 2F0 2B0 2F1 2B1\n 3F0 3B0 3F1 3B1"
    pipeline_with(group, schedule=Schedule.from_text(text), num_microbatches=2)


def aborts(group):
    if group.rank == 2:
        group.abort(9)
    group.barrier()


def too_few_layers(group):
    Pipeline(nn.Sequential(nn.Linear(4, 4)), group, loss=nn.MSELoss())


def too_few_samples(group):
    pipeline_with(group).step(*batch(3))


def wrong_number_of_ranks(group):
    from minipipe import schedules

    pipeline_with(group, schedule=schedules.gpipe(2, 4))


def a_layer_raises(group):
    class Broken(nn.Module):
        def forward(self, x):
            raise RuntimeError("broken layer")

    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), Broken(), nn.Linear(4, 4))
    partition = [range(i, i + 1) for i in range(4)]
    Pipeline(model, group, loss=nn.MSELoss(), partition=partition).step(*batch(16))


def raises_before_there_is_a_group():
    if os.environ["PMI_RANK"] == "1":
        raise ValueError("boom")
    init_process_group(timeout=TIMEOUT)


def leaves_a_large_send_behind(group):
    """The last send of a group that nobody keeps: its bytes must stay until they are taken."""
    if group.rank == 0:
        group.isend(np.full(1 << 20, 7.0), 1)
    if group.rank == 1:
        time.sleep(0.5)
        assert (group.recv(0) == 7.0).all()


def works_on_alone_after_the_others(group):
    if group.rank == 0:
        time.sleep(2 * TIMEOUT)


if __name__ == "__main__":
    fault = globals()[sys.argv[1]]
    if fault is raises_before_there_is_a_group:
        fault()
    if sys.argv[2] == "with":
        with init_process_group(timeout=TIMEOUT) as group:
            fault(group)
        del group
    else:
        fault(init_process_group(timeout=TIMEOUT))
    print("ended well", flush=True)
