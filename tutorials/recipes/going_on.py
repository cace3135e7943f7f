"""Checkpoints: training that is broken off goes on on fewer ranks, with another schedule, and ends with the same bits.

    mpirun -n 4 python tutorials/recipes/going_on.py     (--quick: a few steps)

The digits are learned in 120 steps without a break; then in 60 steps, which save a checkpoint every 20 of them, and
60 more on half of the ranks. What to look at:

- `BackgroundSaver` takes a copy and returns; the files are written while the next steps run.
- `extra=` keeps what only the script knows, here nothing but the epoch. Everything else is in the checkpoint: the
  parameters, what the optimiser keeps for them, and the number of the step, from which dropout draws.
- `restore` takes the newest checkpoint that is whole. The new pipeline has another number of ranks, another schedule
  and another partition: each rank reads the files that hold something of its layers.
- `export` writes the model alone, and `load_weights` reads it into a model that needs no ranks.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from minipipe import Pipeline, Tensor, checkpoint, data, init_process_group, nn, no_grad, optim

NUM_STEPS = 12 if "--quick" in sys.argv else 120
BATCH_SIZE = 64


def network():
    layers = [nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU()]
    return nn.Sequential(*layers, nn.Dropout(0.1), nn.Linear(64, 10))


def make(group, schedule):
    pipeline = Pipeline(network(), group, loss=nn.CrossEntropyLoss(), schedule=schedule, num_microbatches=8)
    return pipeline, optim.Adam(pipeline.parameters(), learning_rate=2e-3)


def train(pipeline, optimiser, examples, steps, saver=None):
    """Train from one step to another, and return the last loss."""
    per_epoch = data.num_batches(len(examples[0]), BATCH_SIZE)
    for step in steps:
        if step % per_epoch == 0 or step == steps[0]:
            batches = data.batches(*examples, BATCH_SIZE, epoch=step // per_epoch, start=step % per_epoch)
        loss = pipeline.step(*next(batches))
        optimiser.step()
        if saver is not None and (step + 1) % (NUM_STEPS // 6) == 0:
            saver.save(step + 1, extra={"epoch": step // per_epoch})
    return float(loss)


def main():
    with init_process_group() as group:
        say = print if group.rank == 0 else lambda *words: None
        examples, test = data.split_examples(*data.load_digits(), test_fraction=0.2)

        whole = train(*make(group, "1f1b"), examples, range(NUM_STEPS))
        say(f"{NUM_STEPS} steps on {group.size} ranks: {whole!r}")

        # Every rank must see the same folder: rank 0 makes it, and tells the others its name.
        with tempfile.TemporaryDirectory() as own:
            name = group.broadcast(np.frombuffer(own.encode(), np.uint8) if group.rank == 0 else None)
            folder = Path(name.tobytes().decode())
            pipeline, optimiser = make(group, "1f1b")
            with checkpoint.BackgroundSaver(folder, pipeline, optimiser) as saver:
                train(pipeline, optimiser, examples, range(NUM_STEPS // 2), saver)
            group.barrier()
            say("kept:", ", ".join(sorted(path.name for path in folder.iterdir())))

            half = group.split(0 if group.rank < (group.size + 1) // 2 else None)  # the other half has nothing to do
            if half is not None:
                with half:
                    pipeline, optimiser = make(half, "zb-h1")
                    restored = checkpoint.restore(folder, pipeline, optimiser)
                    parts = train(pipeline, optimiser, examples, range(restored.step, NUM_STEPS))
                    say(f"{restored.step} steps, and {NUM_STEPS - restored.step} more on {half.size} ranks: {parts!r}")
                    say("the same bits:", parts == whole)
                    checkpoint.export(folder / "model.safetensors", pipeline)

            if group.rank == 0:
                model = network().eval()
                checkpoint.load_weights(folder / "model.safetensors", model)
                with no_grad():
                    found = model(Tensor(test[0])).numpy().argmax(axis=1)
                say(f"accuracy of the exported model, without ranks: {np.mean(found == test[1]):.3f}")
            group.barrier()  # the folder goes with its rank
        say(f"loss {whole:.9f}")


if __name__ == "__main__":
    main()
