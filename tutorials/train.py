"""Train a classifier of handwritten digits through a pipeline.

    mpirun -n 4 python tutorials/train.py        four ranks, four stages
    python tutorials/train.py                    one rank: the same loss, bit for bit
    mpirun -n 4 python tutorials/train.py --checkpoint runs --every 100 --resume      resumes after an interruption

Each rank has one stage of the network, or several with --schedule interleaved-1f1b. A
batch is split into microbatches, which pass through the stages in the order of the
schedule. The report at the end shows what every rank did in the last step.
"""

import time
from statistics import median

import numpy as np
from tqdm import tqdm
from training_program import (
    Checkpoints,
    make_parser,
    num_microbatches,
    order_of_step,
    predict,
    print_json,
    ranks_of,
    read_options,
    report_last_step,
    report_nothing_left,
    run_as_command,
    shows_bar,
)

from minipipe import Pipeline, data, init_process_group, nn, optim
from minipipe.errors import counted


def parse_options(is_silent):
    parser = make_parser(
        __doc__.splitlines()[0],
        microbatches=16,
        batch_size=64,
        learning_rate=0.03,
        layers=8,
        layers_help="linear layers",
    )
    add = parser.add_argument
    add(
        "--epochs",
        type=int,
        default=40,
        metavar="N",
        help="passes over the training data (default: %(default)s)",
    )
    add(
        "--hidden",
        type=int,
        default=192,
        metavar="N",
        help="width of the layers (default: %(default)s)",
    )
    return read_options(parser, ["epochs", "hidden"], is_silent)


def mlp(num_layers, hidden):
    """Return a multilayer perceptron: 64 pixels, linear layers with ReLUs between them,
    10 classes.
    """
    widths = [64, *[hidden] * (num_layers - 1), 10]
    layers = [nn.Flatten()]
    for width, next_width in zip(widths, widths[1:]):
        layers += [nn.Linear(width, next_width), nn.ReLU()]
    return nn.Sequential(*layers[:-1])  # no ReLU after the last one


def make_pipeline(options, group):
    return Pipeline(
        mlp(options.layers, options.hidden),
        **ranks_of(options, group),
        loss=nn.CrossEntropyLoss(),
        schedule=options.schedule,
        gradient_blocks=options.blocks,
        num_microbatches=num_microbatches(options, default=16),
        seed=options.seed,
        device=options.device,
        compile=options.compile,
    )


def train(pipeline, examples, test, options, speaks):
    """Train for all epochs; return the time of each step in seconds, and the last
    batch.
    """
    optimiser = optim.SGD(
        pipeline.parameters(), options.learning_rate, momentum=0.9, weight_decay=1e-3
    )
    per_epoch = data.num_batches(len(examples[0]), options.batch_size)
    checkpoints = Checkpoints(
        options, pipeline, optimiser, options.epochs * per_epoch, speaks
    )
    times, batch, step = [], None, checkpoints.step
    # of an interrupted epoch
    losses = checkpoints.extra["losses"] if step % per_epoch else []
    generator = np.random.default_rng(options.seed)
    generator.bit_generator.state = checkpoints.extra.get(
        "noise", generator.bit_generator.state
    )
    has_bar = shows_bar(speaks)
    with tqdm(
        range(step // per_epoch, options.epochs), unit="epoch", disable=not has_bar
    ) as epochs:
        for epoch in epochs:
            optimiser.learning_rate = options.learning_rate * (
                1 - epoch / options.epochs
            )
            order = {"seed": options.seed, "epoch": epoch, "start": step % per_epoch}
            for batch in data.batches(
                *examples, options.batch_size, **order, needs=pipeline.needs
            ):
                inputs, targets = batch
                # noise keeps the network from memorising a small data set
                if inputs is not None:
                    inputs += 0.25 * generator.standard_normal(
                        inputs.shape, dtype=np.float32
                    )
                start = time.perf_counter()
                losses.append(
                    pipeline.step(inputs, targets, wait=False)
                )  # read after the epoch, so that no step waits for it
                optimiser.step()
                times.append(time.perf_counter() - start)
                step += 1
                if checkpoints.is_due(step):
                    losses = list(map(float, losses))
                    checkpoints.save(
                        step, losses=losses, noise=generator.bit_generator.state
                    )
            loss, losses = sum(map(float, losses)) / len(losses), []
            epochs.set_postfix(loss=f"{loss:.4f}")
            if (epoch + 1) % max(1, options.epochs // 8) == 0:
                if options.checkpoint is not None:
                    checkpoints.keep_if_best(pipeline.evaluate(*test))
                if speaks and not has_bar:
                    print(
                        f"epoch {epoch + 1:3d} of {options.epochs}, loss {loss:.4f}",
                        flush=True,
                    )
    return times, batch


def main():
    with init_process_group() as group:
        speaks = group.rank == 0
        options = parse_options(is_silent=not speaks)
        images, labels = data.load_digits()
        training, test = data.split_examples(images, labels, test_fraction=0.2)
        pipeline = make_pipeline(options, group)
        if speaks:
            print(f"{len(training[0])} training images, {len(test[0])} test images")
            print(f"{counted(group.size, 'rank')}, {pipeline.schedule.name}\n")
            print(pipeline, end="\n\n", flush=True)

        start = time.perf_counter()
        times, batch = train(pipeline, training, test, options, speaks)
        seconds = time.perf_counter() - start

        loss = pipeline.evaluate(*test, metrics={"accuracy": accuracy})
        if not times:
            report_nothing_left(speaks, "test", loss)
            return 0
        timeline = pipeline.timeline()
        predicted, order = predict(pipeline, timeline), order_of_step(pipeline, batch)
        is_written = not speaks or report(
            options, group, loss, seconds, times, timeline, predicted, order
        )
    return 0 if is_written else 1


def accuracy(scores, labels):
    """Return the fraction of samples whose highest score belongs to the right label."""
    return np.mean(scores.argmax(axis=1) == labels)


def report(options, group, loss, seconds, times, timeline, predicted, order):
    print(f"\ntest loss {loss!r}\ntest accuracy {100 * loss.metrics['accuracy']:.2f} %")
    print(f"{seconds:.1f} s, {1000 * median(times):.2f} ms a step\n")
    model = (
        f"{options.layers} linear layers, {options.hidden} wide; batches of "
        f"{options.batch_size}"
    )
    is_written = report_last_step(
        timeline, predicted, order, group.size, options.trace, model
    )
    if options.json:
        print_json(
            times,
            timeline,
            predicted,
            group.size,
            loss=loss,
            **loss.metrics,
            seconds=seconds,
        )
    return is_written


if __name__ == "__main__":
    run_as_command(main)
