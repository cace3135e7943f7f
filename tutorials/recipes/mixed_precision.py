"""Half precision: training in float16 with float32 master values and a loss scale.

    mpirun -n 4 python tutorials/recipes/mixed_precision.py (--quick: a small network,
    in seconds)

It trains the digits in float32 and in float16. Both reach more than 95 %, and differ by
one or two of 360 images.

What to look at:

- `dtype=numpy.float16` of the layers: activations and messages have half the bytes.
  Gradients are added in float32. The optimiser keeps float32 values, and the parameters
  are these values rounded to float16.
- `optim.LossScale`: small gradients would be 0 in float16. Each step multiplies them by
  the scale; `unscale_gradients` divides them. If a gradient of any rank is too large
  for float16, no rank updates, and the scale is halved.
- The time: NumPy has no float16 arithmetic and converts to float32 and back. A step
  takes almost five times as long (measured: 4.3 to 5.1 times on one rank, 2.2 to 3.8
  times on two). On a CPU float16 saves memory, not time.
"""

import sys
import time
from statistics import median

import numpy as np

from minipipe import Pipeline, data, init_process_group, nn, optim

NUM_EPOCHS, WIDTH = (4, 32) if "--quick" in sys.argv else (20, 192)
COMPILE = "where-possible" if "--compile" in sys.argv else False


def accuracy(scores, labels):
    return np.mean(scores.argmax(axis=1) == labels)


def model(dtype):
    """Return a multilayer perceptron with parameters and activations of one dtype."""
    widths = [64, WIDTH, WIDTH, WIDTH, 10]
    layers = [nn.Flatten()]
    for width, next_width in zip(widths, widths[1:]):
        layers += [nn.Linear(width, next_width, dtype=dtype), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def train(group, dtype):
    """Return the loss and the accuracy on the test images."""
    pipeline = Pipeline(
        model(dtype),
        group,
        loss=nn.CrossEntropyLoss(),
        num_microbatches=4,
        compile=COMPILE,
    )
    # with float32 master values
    optimiser = optim.SGD(pipeline.parameters(), learning_rate=0.05, momentum=0.9)
    # too large at first; in float32 the scale changes no bit
    scale = optim.LossScale(2.0**24, growth_interval=100)
    times, num_skipped = [], 0
    for epoch in range(NUM_EPOCHS):
        for images, labels in data.batches(
            *training, batch_size=64, epoch=epoch, needs=pipeline.needs
        ):
            start = time.perf_counter()
            pipeline.step(images, labels, scale=scale.value)
            if pipeline.unscale_gradients(scale):  # on every rank, or on none
                optimiser.step()
            else:
                num_skipped += 1
            times.append(time.perf_counter() - start)
    if group.rank == 0:
        step = f"{1000 * median(times):.1f} ms a step"
        print(
            f"{np.dtype(dtype)}: {step}, {num_skipped} of {len(times)} updates skipped",
            flush=True,
        )
    return pipeline.evaluate(*test, metrics={"accuracy": accuracy})


training, test = data.split_examples(*data.load_digits(), test_fraction=0.2)

with init_process_group() as group:
    whole, half = (train(group, dtype) for dtype in (np.float32, np.float16))
    if group.rank == 0:
        print(
            f"float32: loss {whole!r}, accuracy {whole.metrics['accuracy']:.4f}; ",
            end="",
        )
        print(f"float16: loss {half!r}, accuracy {half.metrics['accuracy']:.4f}")
