"""Train a classifier of handwritten digits through a pipeline.

    mpirun -n 4 python tutorials/train.py        four ranks, four stages
    python tutorials/train.py                    the same on one rank: the same loss, bit for bit

Each rank holds one stage of the network (or several: --schedule interleaved-1f1b). A batch is cut into microbatches,
which flow through the stages as the schedule says. At the end stands what every rank did in the last step.
"""

import argparse
import contextlib
import json
import math
import os
import sys
import time
from statistics import median

import numpy as np
from tqdm import tqdm

from minipipe import Costs, Pipeline, data, init_process_group, nn, optim, schedules, simulate
from minipipe.errors import MinipipeError
from minipipe.render import draw_text


def parse_options(is_silent):
    """Read the command line. Every rank does, but only rank 0 speaks."""
    names = ", ".join(schedules.REGISTRY)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--schedule", default="1f1b", metavar="NAME|FILE.csv", help=f"{names}, or a file (default: 1f1b)"
    )
    parser.add_argument("--microbatches", type=int, metavar="N", help="of each batch (default: 16, or the file's)")
    parser.add_argument(
        "--epochs", type=int, default=40, metavar="N", help="passes over the data (default: %(default)s)"
    )
    parser.add_argument("--batch-size", type=int, default=64, metavar="N", help="at most (default: %(default)s)")
    parser.add_argument(
        "--learning-rate", type=float, default=0.03, metavar="X", help="falls to 0 (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of first values and order (default: %(default)s)"
    )
    parser.add_argument(
        "--hidden", type=int, default=192, metavar="N", help="width of the layers (default: %(default)s)"
    )
    parser.add_argument("--layers", type=int, default=8, metavar="N", help="linear layers (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one line of JSON last")
    with contextlib.ExitStack() as stack:
        if is_silent:
            nowhere = stack.enter_context(open(os.devnull, "w"))
            stack.enter_context(contextlib.redirect_stdout(nowhere))
            stack.enter_context(contextlib.redirect_stderr(nowhere))
        options = parser.parse_args()
        for name in ("epochs", "batch_size", "hidden", "layers"):
            if getattr(options, name) < 1:
                parser.error(f"--{name.replace('_', '-')} is {getattr(options, name)}; expected at least 1")
        if not 0 < options.learning_rate < float("inf"):
            parser.error(f"--learning-rate is {options.learning_rate}; expected a finite number, more than 0")
        if options.seed < 0:
            parser.error(f"--seed is {options.seed}; expected at least 0")
        return options


def mlp(num_layers, hidden):
    """Return a plain network: 64 pixels, `num_layers` linear layers with ReLUs between them, 10 classes."""
    widths = [64, *[hidden] * (num_layers - 1), 10]
    layers = [nn.Flatten()]
    for width, next_width in zip(widths, widths[1:]):
        layers += [nn.Linear(width, next_width), nn.ReLU()]
    return nn.Sequential(*layers[:-1])  # no ReLU after the last one


def make_pipeline(options, group):
    num_microbatches = options.microbatches
    if num_microbatches is None and options.schedule in schedules.REGISTRY:
        num_microbatches = 16  # whatever the number of ranks: gradients of equal microbatches have equal bits
    return Pipeline(
        mlp(options.layers, options.hidden),
        group,
        loss=nn.CrossEntropyLoss(),
        schedule=options.schedule,
        num_microbatches=num_microbatches,
        seed=options.seed,
    )


def train(pipeline, examples, options, speaks):
    """Train for all epochs; return the time of every step, in seconds."""
    optimiser = optim.SGD(pipeline.parameters(), options.learning_rate, momentum=0.9, weight_decay=1e-3)
    times = []
    generator = np.random.default_rng(options.seed)
    has_bar = speaks and sys.stderr.isatty()
    with tqdm(range(options.epochs), unit="epoch", disable=not has_bar) as epochs:
        for epoch in epochs:
            optimiser.learning_rate = options.learning_rate * (1 - epoch / options.epochs)
            losses = []
            for inputs, targets in data.batches(*examples, options.batch_size, options.seed, epoch):
                # A little noise keeps a small data set from being learnt by heart. Every rank draws the same.
                inputs += 0.25 * generator.standard_normal(inputs.shape, dtype=np.float32)
                start = time.perf_counter()
                losses.append(pipeline.step(inputs, targets))
                optimiser.step()
                times.append(time.perf_counter() - start)
            loss = sum(losses) / len(losses)
            if not math.isfinite(loss):
                sys.exit(f"epoch {epoch + 1}: the loss is {loss}. Try a smaller --learning-rate.")
            epochs.set_postfix(loss=f"{loss:.4f}")
            if speaks and not has_bar and (epoch + 1) % max(1, options.epochs // 8) == 0:
                print(f"epoch {epoch + 1:3d} of {options.epochs}, loss {loss:.4f}", flush=True)
    return times


def main():
    with init_process_group() as group:
        speaks = group.rank == 0
        options = parse_options(is_silent=not speaks)
        images, labels = data.load_digits()
        training, test = data.split_examples(images, labels, test_fraction=0.2)
        pipeline = make_pipeline(options, group)
        if speaks:
            print(f"{len(training[0])} images to train, {len(test[0])} to test")
            print(f"{group.size} ranks, {pipeline.schedule.name}\n")
            print(pipeline, end="\n\n", flush=True)

        start = time.perf_counter()
        times = train(pipeline, training, options, speaks)
        seconds = time.perf_counter() - start

        loss = pipeline.evaluate(*test)
        accuracy = float(np.mean(pipeline.predict(test[0]).argmax(axis=1) == test[1]))
        timeline = pipeline.timeline()
        predicted = simulate(pipeline.schedule, Costs.measured(timeline))
        if speaks:
            report(options, group, loss, accuracy, seconds, times, timeline, predicted)


def report(options, group, loss, accuracy, seconds, times, timeline, predicted):
    print(f"\ntest loss {loss!r}\ntest accuracy {100 * accuracy:.2f} %")
    print(f"{seconds:.1f} s, {1000 * median(times):.2f} ms a step\n\nThe last step, as measured:\n")
    print(draw_text(timeline))
    print("\nThe same step, predicted from each stage's mean times, with messages that take no time:\n")
    print(draw_text(predicted))
    print(
        f"\nbubble: measured {100 * timeline.bubble_fraction:.1f} %, predicted {100 * predicted.bubble_fraction:.1f} %"
    )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if group.size > cores:
        print(f"{group.size} ranks share {cores} cores: much of the measured bubble is waiting for a core.")
    if options.json:
        result = {
            "loss": loss,
            "accuracy": accuracy,
            "seconds": seconds,
            "step_ms": 1000 * median(times),
            "bubble_fraction": timeline.bubble_fraction,
            "predicted_bubble_fraction": predicted.bubble_fraction,
            "schedule": timeline.name,
            "ranks": group.size,
        }
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    try:
        main()
    except MinipipeError as error:
        sys.exit(f"train.py: {error}")
