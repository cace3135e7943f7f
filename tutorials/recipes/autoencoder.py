"""An autoencoder that fills in missing pixels, learnt from images of which half the pixels are missing.

    mpirun -n 4 python tutorials/recipes/autoencoder.py    (--quick: two epochs, in seconds)

In every training image half of the pixels are NaN. Each step hides half of the others as well, and the network has to
tell them. In test images it then fills in the missing pixels with less than half of the squared error that the mean
image makes. What to look at:

- `nn.MSELoss()` with targets `(images, mask)`: the mean is over the pixels that the mask marks, in the whole batch,
  however many of them are in which microbatch. What the mask leaves out may be anything, NaN too.
- `outputs=True`: `evaluate` returns the outputs, too, on the rank of the last stage. So that rank prints.
"""

import sys

import numpy as np

from minipipe import Pipeline, data, init_process_group, nn, optim

NUM_EPOCHS = 2 if "--quick" in sys.argv else 100
SHADES = " .:-=+*#%@"


def without_half(images, generator):
    """Return images with NaN in the place of half of their pixels."""
    return np.where(generator.random(images.shape) < 0.5, images, np.float32(np.nan))


def shown(images, is_seen):
    """Return what the network sees, of shape (n, 2, 8, 8): pixels, 0 where they are hidden, and where they are seen."""
    return np.stack([np.where(is_seen, images, 0), is_seen], axis=1, dtype=np.float32)


def draw(*images):
    """Return images side by side, as text."""
    rows = np.concatenate([np.clip(image, 0, 1) for image in images], axis=1)
    return "\n".join("".join(2 * SHADES[round(9 * float(pixel))] for pixel in row) for row in rows)


model = nn.Sequential(
    nn.Flatten(),
    nn.Linear(128, 256),
    nn.GELU(),
    nn.Linear(256, 32),  # what is left of an image: 32 numbers
    nn.GELU(),
    nn.Linear(32, 256),
    nn.GELU(),
    nn.Linear(256, 64),
    nn.Function(lambda x: x.reshape(-1, 8, 8)),
)

generator = np.random.default_rng(0)
(images, _), (test, _) = data.split_examples(*data.load_digits(), test_fraction=0.2)
known = without_half(images, generator)
test_known = without_half(test, generator)
is_missing = np.isnan(test_known)

with init_process_group() as group:
    pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=4)
    optimiser = optim.AdamW(pipeline.parameters(), learning_rate=8e-3)
    rate = optim.LearningRateSchedule(optimiser, optim.cosine(NUM_EPOCHS))
    for epoch in range(NUM_EPOCHS):
        for x, _ in data.batches(known, None, batch_size=128, epoch=epoch):
            is_known = ~np.isnan(x)
            is_seen = is_known & (generator.random(x.shape) < 0.5)
            loss = pipeline.step(shown(x, is_seen), (x, is_known))
            optimiser.step()
        rate.step()
        if group.rank == 0 and (epoch + 1) % 25 == 0:
            print(f"epoch {epoch + 1:2d}: loss {loss:.4f}", flush=True)

    result = pipeline.evaluate(shown(test_known, ~is_missing), (test, is_missing), outputs=True)  # over these alone
    if result.outputs is not None:
        of_mean = float(np.mean((np.nanmean(known, axis=0) - test)[is_missing] ** 2))
        print("\nA test image, what is known of it, and what the network makes of that:\n")
        print(draw(test[0], np.nan_to_num(test_known[0]), np.where(is_missing[0], result.outputs[0], test[0])))
        print(f"mean squared error of missing pixels: {result!r}, of the mean image: {of_mean!r}")
