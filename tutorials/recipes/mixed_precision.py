"""Train the digits in float16, with float32 master values and a loss scale, and once more in float32.

    mpirun -n 4 python tutorials/recipes/mixed_precision.py
    python tutorials/recipes/mixed_precision.py --small          in seconds

Both end with the same accuracy, give or take an image or two of 360. In float16 parameters, what layers hand on, and
messages take half the memory. Time it does not save here: NumPy has no arithmetic in float16, but converts to float32
and back. A step takes almost five times as long (measured: 4.3 to 5.1 times on one rank, 2.2 to 3.8 on two).
"""

import argparse
import time
from statistics import median

import numpy as np

from minipipe import Pipeline, data, init_process_group, nn, optim


def model(dtype, hidden):
    """Return a multilayer perceptron, all of whose numbers are of one dtype."""
    widths = [64, hidden, hidden, hidden, 10]
    layers = [nn.Flatten()]
    for width, next_width in zip(widths, widths[1:]):
        layers += [nn.Linear(width, next_width, dtype=dtype), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def train(group, dtype, options):
    """Print how long a step took, and return the accuracy and the loss on the test images, as a line of text."""
    training, test = data.split_examples(*data.load_digits(), test_fraction=0.2)
    pipeline = Pipeline(model(dtype, options.hidden), group, loss=nn.CrossEntropyLoss(), num_microbatches=4)
    optimiser = optim.SGD(pipeline.parameters(), learning_rate=0.05, momentum=0.9)  # keeps the master values
    scale = optim.LossScale(2.0**24, growth_interval=100)  # in float32 it changes no bit
    times, num_left_out = [], 0
    for epoch in range(options.epochs):
        for images, labels in data.batches(*training, 64, epoch=epoch):
            start = time.perf_counter()
            pipeline.step(images, labels, scale=scale.value)
            if pipeline.unscale_gradients(scale):  # on every rank, or on none
                optimiser.step()
            else:
                num_left_out += 1
            times.append(time.perf_counter() - start)
    name, milliseconds = np.dtype(dtype), 1000 * median(times)
    if group.rank == 0:
        print(f"{name}: {milliseconds:.1f} ms a step, {num_left_out} of {len(times)} updates left out", flush=True)
    accuracy = np.mean(pipeline.predict(test[0]).argmax(axis=1) == test[1])
    return f"{name}: accuracy {100 * accuracy:.2f} %, loss {pipeline.evaluate(*test)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="few epochs of a small model")
    options = parser.parse_args()
    options.hidden, options.epochs = (32, 4) if options.small else (192, 20)
    with init_process_group() as group:
        results = [train(group, dtype, options) for dtype in (np.float32, np.float16)]
        if group.rank == 0:
            print(*results, sep="; ")


if __name__ == "__main__":
    main()
