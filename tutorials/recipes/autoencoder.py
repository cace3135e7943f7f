"""An autoencoder that fills in missing pixels, trained on incomplete images.

    mpirun -n 4 python tutorials/recipes/autoencoder.py    (--quick: two epochs, in seconds)

Half of the pixels of every training image are NaN. Each step hides half of the other
pixels as well, and the network has to predict these. It then fills in the missing
pixels of test images. Its squared error is less than half of the error of the mean
image.

What to look at:

- `nn.MSELoss()` with targets `(images, mask)`: the loss is the mean over the pixels in
  the mask, over the whole batch, whatever their numbers per microbatch. Pixels outside
  the mask may have any value, even NaN.
- `outputs=True`: `evaluate` also returns the outputs, on the rank of the last stage. So
  that rank prints the result.
"""

import sys

import numpy as np

from minipipe import Pipeline, data, init_process_group, nn, optim

NUM_EPOCHS = 2 if "--quick" in sys.argv else 100
COMPILE = "where-possible" if "--compile" in sys.argv else False
SHADES = " .:-=+*#%@"


def without_half(images, generator):
    """Return images with half of their pixels replaced by NaN."""
    return np.where(generator.random(images.shape) < 0.5, images, np.float32(np.nan))


def shown(images, is_seen):
    """Return the inputs of the network, of shape (n, 2, 8, 8): pixels with hidden ones
    set to 0, and the mask.
    """
    return np.stack([np.where(is_seen, images, 0), is_seen], axis=1, dtype=np.float32)


def draw(*images):
    """Return a text with the images side by side."""
    rows = np.concatenate([np.clip(image, 0, 1) for image in images], axis=1)
    return "\n".join(
        "".join(2 * SHADES[round(9 * float(pixel))] for pixel in row) for row in rows
    )


model = nn.Sequential(
    nn.Flatten(),
    nn.Linear(128, 256),
    nn.GELU(),
    nn.Linear(256, 32),  # the code of an image: 32 numbers
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
    pipeline = Pipeline(
        model, group, loss=nn.MSELoss(), num_microbatches=4, compile=COMPILE
    )
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

    result = pipeline.evaluate(
        shown(test_known, ~is_missing), (test, is_missing), outputs=True
    )  # the error of the missing pixels only
    if result.outputs is not None:
        of_mean = float(np.mean((np.nanmean(known, axis=0) - test)[is_missing] ** 2))
        print(
            "\nA test image, its known pixels, and the image filled in by the "
            "network:\n"
        )
        print(
            draw(
                test[0],
                np.nan_to_num(test_known[0]),
                np.where(is_missing[0], result.outputs[0], test[0]),
            )
        )
        print(
            f"mean squared error of missing pixels: {result!r}, of the mean "
            f"image: {of_mean!r}"
        )
