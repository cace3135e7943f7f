"""How long a training step takes, as a ratio to a hand-written NumPy step in the same run.

    python tests/benchmarks/step_time.py              one rank: plain autograd, Pipeline, and the floor
    mpirun -n 2 python tests/benchmarks/step_time.py  two ranks against one

An MLP of 8 layers, d = 128, batch 256 in 8 microbatches, float32, one BLAS thread. The floor is written by hand with
every array allocated beforehand. Contenders take turns, step by step, and medians are compared, so a noisy machine
disturbs all of them alike.
"""

import argparse
import sys
import time
from statistics import median

import numpy as np

from minipipe import Pipeline, init_process_group, nn, optim
from minipipe.comm import OneRankGroup
from minipipe.testing import one_process_step


def mlp(width, linears):
    layers = [layer for _ in range(linears) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class Floor:
    """The same network, loss and update by hand, every array allocated once."""

    def __init__(self, model, batch_size, num_microbatches, learning_rate):
        self.weights = [layer.weight.data.copy() for layer in model if isinstance(layer, nn.Linear)]
        self.biases = [layer.bias.data.copy() for layer in model if isinstance(layer, nn.Linear)]
        width, size = len(self.weights[0]), batch_size // num_microbatches
        self.m, self.size, self.learning_rate = num_microbatches, size, learning_rate
        self.outputs = [np.empty((size, width), np.float32) for _ in self.weights]
        self.gradient, self.next_gradient = (np.empty((size, width), np.float32) for _ in range(2))
        self.mask = np.empty((size, width), bool)
        self.weight_gradients = [np.empty_like(w) for w in self.weights]
        self.bias_gradients = [np.empty_like(b) for b in self.biases]
        self.weight_scratch, self.bias_scratch = np.empty_like(self.weights[0]), np.empty_like(self.biases[0])

    def step(self, inputs, targets):
        total = 0.0
        for k in range(self.m):
            part = slice(k * self.size, (k + 1) * self.size)
            total += self.microbatch(inputs[part], targets[part], is_first=k == 0)
        for value, gradient in zip(self.weights + self.biases, self.weight_gradients + self.bias_gradients):
            np.multiply(gradient, self.learning_rate, out=gradient)
            np.subtract(value, gradient, out=value)
        return total / self.m

    def microbatch(self, x, y, is_first):
        last = len(self.weights) - 1
        values = [x]
        for i, (weight, bias, out) in enumerate(zip(self.weights, self.biases, self.outputs)):
            np.matmul(values[-1], weight, out=out)
            np.add(out, bias, out=out)
            if i < last:
                np.maximum(out, 0, out=out)
            values.append(out)
        g, other = self.gradient, self.next_gradient
        np.subtract(values[-1], y, out=g)
        loss = float(np.vdot(g, g)) / g.size
        np.multiply(g, np.float32(2 / g.size / self.m), out=g)
        for i in range(last, -1, -1):
            if i < last:
                np.greater(values[i + 1], 0, out=self.mask)
                np.multiply(g, self.mask, out=g)
            if is_first:
                np.matmul(values[i].T, g, out=self.weight_gradients[i])
                np.add.reduce(g, axis=0, out=self.bias_gradients[i])
            else:
                np.add(
                    self.weight_gradients[i],
                    np.matmul(values[i].T, g, out=self.weight_scratch),
                    out=self.weight_gradients[i],
                )
                np.add(
                    self.bias_gradients[i], np.add.reduce(g, axis=0, out=self.bias_scratch), out=self.bias_gradients[i]
                )
            if i:
                np.matmul(g, self.weights[i].T, out=other)
                g, other = other, g
        return loss


def contenders(options, group):
    """Return {name: step function}; with several ranks, the pipeline over all of them against that on one."""
    width, batch, m, rate = options.width, options.batch_size, options.microbatches, 1e-3
    generator = np.random.default_rng(0)
    inputs, targets = (generator.standard_normal((batch, width)).astype(np.float32) for _ in range(2))
    model = mlp(width, options.layers).initialise(0)

    def pipelined(pipeline):
        optimiser = optim.SGD(pipeline.parameters(), rate)

        def step():
            loss = pipeline.step(inputs, targets)
            optimiser.step()
            return loss

        return step

    def plain():
        loss = one_process_step(model, nn.MSELoss(), inputs, targets, m).loss
        plain_optimiser.step()
        return loss

    plain_optimiser = optim.SGD(model.parameters(), rate)
    floor = Floor(model, batch, m, rate)
    arguments = {"loss": nn.MSELoss(), "num_microbatches": m, "schedule": options.schedule}
    found = {
        "floor": lambda: floor.step(inputs, targets),
        "autograd": plain,
        "pipeline, 1 rank": pipelined(Pipeline(model, OneRankGroup(), **arguments)),
    }
    if group.size > 1:
        found[f"pipeline, {group.size} ranks"] = pipelined(Pipeline(model, group, **arguments))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--steps", type=int, default=200)
    with init_process_group() as group:
        options = parser.parse_args()
        found = contenders(options, group)
        times = {name: [] for name in found}
        losses = {}
        for _ in range(options.steps + 20):
            for name, step in found.items():
                is_alone = not name.endswith("ranks")
                group.barrier()
                if is_alone and group.rank:  # rank 0 measures what runs alone while the others wait
                    continue
                start = time.perf_counter()
                losses[name] = step()
                times[name].append(time.perf_counter() - start)
        if group.rank == 0:
            report(times, losses, options)


def report(times, losses, options):
    medians = {name: median(values[20:]) for name, values in times.items()}
    print(
        f"width {options.width}, {options.layers} layers, batch {options.batch_size} in {options.microbatches}, "
        f"{options.schedule}, {sys.platform}, NumPy {np.__version__}"
    )
    for name, value in medians.items():
        print(
            f"{name:20} {1000 * value:8.3f} ms   {value / medians['floor']:6.3f} of the floor   loss {losses[name]:.6f}"
        )
    one, many = medians["pipeline, 1 rank"], [v for n, v in medians.items() if n.endswith("ranks")]
    if many:
        print(f"speed-up over one rank: {one / many[0]:.2f}")


if __name__ == "__main__":
    main()
