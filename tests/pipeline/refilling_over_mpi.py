"""Each rank trains twice, undisturbed and overwriting its batches at once:
test_arrays_of_the_caller.py runs it.
"""

import numpy as np

from minipipe import Microbatches, Pipeline, init_process_group, nn, optim

WIDTH = 128  # microbatches of 64 KiB, which MPI sends from the memory in which they are
DATA = np.random.default_rng(44).normal(size=(4, 512, WIDTH)).astype(np.float32)


def refilled(disturbs):
    buffer = np.empty_like(DATA[0])
    for batch in DATA:
        buffer[...] = batch
        given = buffer if disturbs else batch.copy()
        yield given, given


def made(group, schedule):
    # The first stage hands its inputs on as they are.
    model = nn.Sequential(nn.Identity(), nn.Linear(WIDTH, WIDTH))
    pipeline = Pipeline(
        model, group, loss=nn.MSELoss(), seed=1, num_microbatches=4, schedule=schedule
    )
    return pipeline, optim.SGD(pipeline.parameters(), learning_rate=0.1)


def stepped(group, disturbs):
    pipeline, optimiser = made(group, "1f1b")
    losses = []
    for x, y in refilled(disturbs):
        losses.append(pipeline.step(x, y, wait=False))
        optimiser.step()
    return [
        *map(float, losses),
        pipeline.predict(Microbatches(np.split(DATA[0], 4)))[0].sum(),
    ]


def run(group, disturbs):
    pipeline, optimiser = made(group, "pipedream")
    return list(pipeline.run(refilled(disturbs), optimiser))


def exchanged(group, disturbs):
    array = DATA[0].copy()
    request = group.isend(array, (group.rank + 1) % group.size)
    received = group.recv((group.rank - 1) % group.size)
    request.wait()  # until then the array is borrowed
    if disturbs:
        array[...] = np.nan
    return [
        float(received.sum()),
        *(float(part.sum()) for part in group.all_gather(DATA[1])),
    ]


with init_process_group() as group:
    is_alike = all(
        act(group, False) == act(group, True) for act in (stepped, run, exchanged)
    )
    print(f"rank {group.rank}: {'alike' if is_alike else 'different'}")
