"""How fast checkpoints are written and read, next to safetensors alone, and how long a
training stands still for one.

    mpirun -n 2 python tests/benchmarks/checkpoints.py                          100 MB in all
    mpirun -n 2 python tests/benchmarks/checkpoints.py --folder /mnt/disk --linears 32

An MLP of Linear and ReLU by turns, Adam, float32, one BLAS thread. The contenders take
turns in one run, the time of each is that of the slowest rank, and what is shown are
medians. Next to ``save`` stands ``safetensors.numpy.save_file`` of the same arrays, one
file a rank, forced to the disk; next to ``restore``, ``load_file``. Then turns of some
steps: with nothing, with a ``save`` before them, and with one of a ``BackgroundSaver``,
which writes meanwhile.

Aim: save at 0.7 of the speed of safetensors or more, which computes no SHA-256; a
background save stalls for its copy.
"""

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
from floor import mlp
from safetensors.numpy import load_file, save_file

from minipipe import Pipeline, checkpoint, init_process_group, nn, optim
from minipipe.pipeline.checkpoint.state import take


def seconds(group, act):
    """Return the seconds that something takes on the slowest rank."""
    group.barrier()
    start = time.perf_counter()
    act()
    return float(group.all_reduce(np.array(time.perf_counter() - start), "max"))


class Contenders:
    """A trained pipeline, and what is done with it by turns."""

    def __init__(self, group, folder, options):
        self.group, self.folder, self._steps = group, folder, options.steps
        self._inputs, self._targets = np.random.default_rng(0).standard_normal(
            (2, 256, options.width), np.float32
        )
        model = mlp(options.width, options.linears)
        self.pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=4)
        self.optimiser = optim.Adam(self.pipeline.parameters())
        self.step()  # from now on the optimiser has what it keeps
        self.arrays, _ = take(
            self.pipeline,
            {"optimiser": self.optimiser},
            [name for name, _ in self.pipeline.named_parameters()],
        )
        self._file = folder / f"alone-{group.rank}.safetensors"
        own = sum(array.nbytes for array in self.arrays.values())
        self.num_bytes = int(group.all_reduce(np.array(own)))

    def step(self):
        self.pipeline.step(self._inputs, self._targets)
        self.optimiser.step()

    def alone_save(self):
        save_file(self.arrays, self._file)
        with open(self._file, "rb") as file:
            os.fsync(file.fileno())

    def alone_load(self):
        load_file(self._file)

    def save(self):
        checkpoint.save(
            self.folder / "runs", self.pipeline, self.optimiser, step=1, keep=1
        )

    def restore(self):
        checkpoint.restore(self.folder / "runs", self.pipeline, self.optimiser)

    def train(self):
        for _ in range(self._steps):
            self.step()

    def train_after(self, save):
        save()
        self.train()


def measured(group, folder, options):
    """Return the seconds of each contender, by name, and the bytes of a checkpoint."""
    one = Contenders(group, folder, options)
    saver = checkpoint.BackgroundSaver(
        folder / "background", one.pipeline, one.optimiser, keep=1
    )
    turns = {
        "safetensors save": one.alone_save,
        "save": one.save,
        "safetensors load": one.alone_load,
        "restore": one.restore,
        "steps": one.train,
        "save, steps": lambda: one.train_after(one.save),
        "background, steps": lambda: one.train_after(lambda: saver.save(1)),
        "background alone": lambda: saver.save(1),
    }
    times = {name: [] for name in turns}
    for _ in range(options.rounds):
        for name, act in turns.items():
            times[name].append(seconds(group, act))
            saver.wait()
            group.barrier()
    return {name: median(values) for name, values in times.items()}, one.num_bytes


def report(times, num_bytes, steps):
    mega = num_bytes / 1e6
    print(f"{mega:.0f} MB")
    for ours, theirs in (("save", "safetensors save"), ("restore", "safetensors load")):
        rates = {name: mega / times[name] for name in (ours, theirs)}
        told = ", ".join(f"{name} {rate:.0f} MB/s" for name, rate in rates.items())
        print(f"{told}   speed {times[theirs] / times[ours]:.2f}")
    print(f"a step {1e3 * times['steps'] / steps:.1f} ms")
    print(f"stall of save {1e3 * (times['save, steps'] - times['steps']):.0f} ms")
    stall, call = times["background, steps"] - times["steps"], times["background alone"]
    print(
        f"stall of a background save {1e3 * stall:.0f} ms over {steps} steps, of "
        f"which its copy {1e3 * call:.0f} ms"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--linears", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument(
        "--folder", type=Path, help="where to write; by default that of temporary files"
    )
    with init_process_group() as group:
        options = parser.parse_args()
        made = tempfile.mkdtemp(dir=options.folder) if group.rank == 0 else ""
        name = np.frombuffer(made.encode(), np.uint8) if made else None
        folder = Path(group.broadcast(name, 0).tobytes().decode())
        try:
            times, num_bytes = measured(group, folder, options)
        finally:
            if group.rank == 0:
                shutil.rmtree(folder, ignore_errors=True)
        if group.rank == 0:
            report(times, num_bytes, options.steps)


if __name__ == "__main__":
    main()
