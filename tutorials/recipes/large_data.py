"""Data that does not fit into memory: each rank reads the rows that it needs from
files.

    mpirun -n 4 python tutorials/recipes/large_data.py     (--quick: small files, in seconds)

Two data sets of 100 MB alternate, each with its inputs in one file and its targets in
another. The targets are a function of the inputs plus noise of variance 0.01, so no
model can have a smaller loss. After one pass the loss is less than 0.02.

What to look at:

- `numpy.load(path, mmap_mode="r")` opens a file without reading it, and `data.batches`
  reads the rows of one batch.
- `needs=pipeline.needs`: the rank of the first stage reads inputs, the rank of the last
  stage reads targets, and the others read nothing.
- The table at the end shows how much each rank read, and the peak memory of its arrays:
  about 6 MB, most of which is the random order of 400,000 samples.
"""

import os
import sys
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np

from minipipe import Pipeline, data, init_process_group, nn, optim

NUM_SAMPLES = 10_000 if "--quick" in sys.argv else 200_000  # of each data set
COMPILE = "where-possible" if "--compile" in sys.argv else False
WIDTH, ROWS_AT_ONCE = 128, 10_000
MB = 1e6


def write(folder, seed):
    """Write a data set into two files, some rows at a time."""
    generator = np.random.default_rng(seed)
    new = np.lib.format.open_memmap
    inputs = new(folder / f"inputs{seed}.npy", "w+", np.float32, (NUM_SAMPLES, WIDTH))
    targets = new(folder / f"targets{seed}.npy", "w+", np.float32, (NUM_SAMPLES, 1))
    for start in range(0, NUM_SAMPLES, ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        x = inputs[rows] = generator.standard_normal(
            (ROWS_AT_ONCE, WIDTH), dtype=np.float32
        )
        noise = generator.standard_normal((ROWS_AT_ONCE, 1), dtype=np.float32)
        targets[rows] = np.tanh(x[:, :1] + x[:, 1:2] - x[:, 2:3]) + 0.1 * noise


def opened(folder, seed):
    """Open the inputs and targets of a data set without reading them."""
    return [
        np.load(folder / f"{name}{seed}.npy", mmap_mode="r")
        for name in ("inputs", "targets")
    ]


def shared_folder(group):
    """Return the path of a new folder, and on rank 0 the object that removes it at the
    end.

    Here all ranks are on one machine. Ranks on several machines need a shared folder.
    """
    made = tempfile.TemporaryDirectory() if group.rank == 0 else None
    name = np.frombuffer(os.fsencode(made.name), np.uint8) if made else None
    return Path(os.fsdecode(group.broadcast(name, 0).tobytes())), made


model = nn.Sequential(
    nn.Linear(WIDTH, 64),
    nn.Tanh(),
    nn.Linear(64, 64),
    nn.Tanh(),
    nn.Linear(64, 64),
    nn.Tanh(),
    nn.Linear(64, 1),
)

with init_process_group() as group:
    folder, made = shared_folder(group)
    for seed in (1, 2):
        if group.rank == 0:
            write(folder, seed)
    group.barrier()  # the files are complete

    tracemalloc.start()  # counts the arrays in memory, not the files
    pipeline = Pipeline(
        model, group, loss=nn.MSELoss(), num_microbatches=8, compile=COMPILE
    )
    optimiser = optim.AdamW(pipeline.parameters(), learning_rate=5e-3)
    sources = [
        data.batches(*opened(folder, seed), batch_size=1000, needs=pipeline.needs)
        for seed in (1, 2)
    ]
    rate = optim.LearningRateSchedule(
        optimiser, optim.cosine(2 * data.num_batches(NUM_SAMPLES, 1000))
    )
    losses, read = [], np.zeros(2)  # bytes of inputs and targets
    for turns in zip(*sources):
        for x, y in turns:
            losses.append(float(pipeline.step(x, y)))
            optimiser.step()
            rate.step()
            read += [0 if part is None else part.nbytes for part in (x, y)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    table = group.all_gather(np.array([*read, peak]) / MB)
    if group.rank == 0:
        made.cleanup()
        print("rank   inputs read   targets read   memory")
        for rank, row in enumerate(table):
            print(f"{rank:4d} {row[0]:10.1f} MB {row[1]:11.1f} MB {row[2]:5.1f} MB")
        print(
            f"loss of the last tenth {float(np.mean(losses[-len(losses) // 10 :]))!r}"
        )
