"""Checkpoints: training that resumes on fewer ranks and ends with the same bits.

    mpirun -n 4 python tutorials/recipes/going_on.py     (--quick: a few steps)

The digits are learned twice: in 120 steps without interruption, and in 60 steps with a
checkpoint every 20 steps, followed by 60 steps on half of the ranks.

What to look at:

- `BackgroundSaver` copies the values and returns; the files are written during the next
  steps.
- `extra=` saves values that only the program knows, here the epoch. A checkpoint
  already contains the parameters, the state of the optimiser, and the step number, from
  which dropout draws.
- `restore` loads the newest complete checkpoint. The new pipeline has another number of
  ranks, another schedule and another partition: each rank reads the files that contain
  its layers.
- `export` writes only the model, and `load_weights` reads it into a model without
  ranks.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from minipipe import (
    Pipeline,
    Tensor,
    checkpoint,
    data,
    init_process_group,
    nn,
    no_grad,
    optim,
)

NUM_STEPS = 12 if "--quick" in sys.argv else 120
COMPILE = "where-possible" if "--compile" in sys.argv else False
BATCH_SIZE = 64


def network():
    layers = [
        nn.Flatten(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(64, 64),
        nn.ReLU(),
    ]
    return nn.Sequential(*layers, nn.Dropout(0.1), nn.Linear(64, 10))


def make(group, schedule):
    pipeline = Pipeline(
        network(),
        group,
        loss=nn.CrossEntropyLoss(),
        schedule=schedule,
        num_microbatches=8,
        compile=COMPILE,
    )
    return pipeline, optim.Adam(pipeline.parameters(), learning_rate=2e-3)


def train(pipeline, optimiser, examples, steps, saver=None):
    """Train from one step to another, and return the last loss."""
    per_epoch = data.num_batches(len(examples[0]), BATCH_SIZE)
    for step in steps:
        if step % per_epoch == 0 or step == steps[0]:
            batches = data.batches(
                *examples, BATCH_SIZE, epoch=step // per_epoch, start=step % per_epoch
            )
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

        # All ranks need the same folder: rank 0 creates it and broadcasts its name.
        with tempfile.TemporaryDirectory() as local:
            name = group.broadcast(
                np.frombuffer(local.encode(), np.uint8) if group.rank == 0 else None
            )
            folder = Path(name.tobytes().decode())
            pipeline, optimiser = make(group, "1f1b")
            with checkpoint.BackgroundSaver(folder, pipeline, optimiser) as saver:
                train(pipeline, optimiser, examples, range(NUM_STEPS // 2), saver)
            group.barrier()
            say("kept:", ", ".join(sorted(path.name for path in folder.iterdir())))

            half = group.split(
                0 if group.rank < (group.size + 1) // 2 else None
            )  # the other ranks wait at the barrier below
            if half is not None:
                with half:
                    pipeline, optimiser = make(half, "zb-h1")
                    restored = checkpoint.restore(folder, pipeline, optimiser)
                    parts = train(
                        pipeline, optimiser, examples, range(restored.step, NUM_STEPS)
                    )
                    say(
                        f"{restored.step} steps, and {NUM_STEPS - restored.step} "
                        f"more on {half.size} ranks: {parts!r}"
                    )
                    say("the same bits:", parts == whole)
                    checkpoint.export(folder / "model.safetensors", pipeline)

            if group.rank == 0:
                model = network().eval()
                checkpoint.load_weights(folder / "model.safetensors", model)
                with no_grad():
                    answers = model(Tensor(test[0])).numpy().argmax(axis=1)
                say(
                    "accuracy of the exported model, without ranks: "
                    f"{np.mean(answers == test[1]):.3f}"
                )
            # rank 0 removes the folder, so all ranks must have finished
            group.barrier()
        say(f"loss {whole:.9f}")


if __name__ == "__main__":
    main()
