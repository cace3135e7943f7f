"""Train a language model, character by character, through a pipeline.

    mpirun -n 4 python tutorials/train_lm.py     four ranks, four stages
    python tutorials/train_lm.py                 one rank: the same loss, bit for bit
    mpirun -n 4 python tutorials/train_lm.py --checkpoint runs --every 100 --resume   resumes after an interruption
    python tutorials/train_lm.py --sample runs   no training: text from the newest checkpoint

The training text is the Python language reference that `help()` shows, which comes with
every Python. The model is a small transformer. Each rank has one stage, a few
consecutive blocks. The first rank also has the embeddings, and the last rank computes
the scores of the next character. At the end the program prints text that the model has
generated.
"""

import argparse
import sys
import time
from pathlib import Path
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

from minipipe import Pipeline, checkpoint, data, init_process_group, nn, optim
from minipipe.errors import counted

TRAINING, VALIDATION, SAMPLING = 0, 1, 2  # each purpose has its own random numbers


def parse_options(is_silent):
    parser = make_parser(
        __doc__.splitlines()[0],
        microbatches=8,
        batch_size=16,
        learning_rate=3e-3,
        layers=4,
        layers_help="transformer blocks",
    )
    add = parser.add_argument
    add(
        "--steps",
        type=int,
        default=800,
        metavar="N",
        help="training steps (default: %(default)s)",
    )
    add(
        "--width",
        type=int,
        default=96,
        metavar="N",
        help="length of the vectors (default: %(default)s)",
    )
    add(
        "--heads",
        type=int,
        default=4,
        metavar="N",
        help="attention heads; must divide --width (default: %(default)s)",
    )
    add(
        "--context",
        type=int,
        default=64,
        metavar="N",
        help="characters of context (default: %(default)s)",
    )
    add(
        "--dropout",
        type=float,
        default=0.0,
        metavar="P",
        help="dropout probability (default: %(default)s)",
    )
    add(
        "--tied",
        action="store_true",
        help="use the same embedding in the first and the last layer",
    )
    add(
        "--recompute",
        action="store_true",
        help="recompute activations in the backward to save memory",
    )
    add(
        "--sample",
        type=Path,
        metavar="DIR",
        help="do not train; generate text with the newest checkpoint in DIR",
    )
    add(
        "--characters",
        type=int,
        default=300,
        metavar="N",
        help="length of the generated text (default: %(default)s)",
    )
    positive = ["steps", "width", "heads", "context", "characters"]
    return read_options(parser, positive, is_silent, mistake)


def mistake(options):
    if options.width % options.heads:
        return (
            f"--width is {options.width}; expected a multiple of --heads, "
            f"{options.heads}"
        )
    if not 0 <= options.dropout < 1:
        return f"--dropout is {options.dropout}; expected at least 0 and less than 1"
    if options.context > 10_000:
        return f"--context is {options.context}; expected at most 10000 characters"
    return None


def language_model(num_characters, options):
    """Return a transformer in the style of GPT-2. A stage boundary may be between any
    two of its layers.
    """
    width = options.width
    embedding = nn.Embedding(num_characters, width)
    blocks = [
        nn.TransformerBlock(
            width, options.heads, is_causal=True, dropout=options.dropout
        )
        for _ in range(options.layers)
    ]
    scores = nn.initialisers.glorot_uniform(width, num_characters)
    head = (
        nn.Unembedding(embedding)
        if options.tied
        else nn.Linear(width, num_characters, initialiser=scores)
    )
    return nn.Sequential(
        embedding,
        nn.PositionalEmbedding(options.context, width),
        *blocks,
        nn.LayerNorm(width),
        head,
    )


def make_pipeline(num_characters, options, group):
    return Pipeline(
        language_model(num_characters, options),
        **ranks_of(options, group),
        loss=nn.CrossEntropyLoss(),
        schedule=options.schedule,
        gradient_blocks=options.blocks,
        num_microbatches=num_microbatches(options, default=8),
        seed=options.seed,
        recompute=options.recompute,
        device=options.device,
        compile=options.compile,
    )


def train(pipeline, training, validation, options, speaks):
    """Train for all steps; return the time of each step in seconds, and the last
    batch.
    """
    optimiser = optim.AdamW(
        pipeline.parameters(),
        options.learning_rate,
        betas=(0.9, 0.99),
        weight_decay=0.1,
    )
    falling = optim.LearningRateSchedule(
        optimiser, optim.cosine(options.steps, warmup_steps=options.steps // 20)
    )
    checkpoints = Checkpoints(options, pipeline, optimiser, options.steps, speaks)
    if checkpoints.step:
        falling.load_state_dict(checkpoints.extra["falling"])
    times, batch, has_bar = [], None, shows_bar(speaks)
    with tqdm(
        range(checkpoints.step, options.steps), unit="step", disable=not has_bar
    ) as steps:
        for step in steps:
            batch = windows(training, options, TRAINING, step)
            start = time.perf_counter()
            pending = pipeline.step(*batch, wait=False)
            # collective: the norm needs the gradients of all ranks
            pipeline.clip_grad_norm(1.0)
            optimiser.step()
            falling.step()
            loss = float(pending)
            times.append(time.perf_counter() - start)
            steps.set_postfix(loss=f"{loss:.3f}")
            if (step + 1) % max(1, options.steps // 8) == 0:
                held_out = evaluate(pipeline, validation, options)
                checkpoints.keep_if_best(held_out)
                if speaks:
                    tqdm.write(
                        f"step {step + 1:4d} of {options.steps}, loss "
                        f"{loss:.3f}, validation {held_out:.3f}"
                    )
                    sys.stdout.flush()
            if checkpoints.is_due(step + 1):
                checkpoints.save(step + 1, falling=falling.state_dict())
    return times, batch


def windows(numbers, options, purpose, step=0, batches=1):
    return data.text_windows(
        numbers,
        options.context,
        batches * options.batch_size,
        (options.seed, purpose, step),
    )


def evaluate(pipeline, numbers, options):
    """Return the validation loss in nats per character. The windows are the same in
    every call.
    """
    return pipeline.evaluate(*windows(numbers, options, VALIDATION, batches=8))


def write_text(pipeline, alphabet, options, start="\n"):
    """Return text that the model generates after ``start``. Collective: every rank
    draws the same characters.
    """
    generator = np.random.Generator(np.random.Philox([options.seed, SAMPLING]))
    numbers = list(alphabet.encode(start))
    for _ in range(options.characters):
        scores = pipeline.predict(np.array([numbers[-options.context :]]))[
            0, -1
        ].astype(np.float64)
        # a temperature below 1 favours likely characters
        likely = np.exp((scores - scores.max()) / 0.8)
        numbers.append(generator.choice(len(alphabet), p=likely / likely.sum()))
    return alphabet.decode(numbers)


def sample(alphabet, options, group, speaks):
    """Generate text with the newest checkpoint and print it. Collective, with any
    number of ranks.
    """
    found = checkpoint.newest(options.sample)
    trained = argparse.Namespace(**{**vars(options), **found.extra["settings"]})
    pipeline = make_pipeline(len(alphabet), trained, group)
    checkpoint.restore(found.path, pipeline)
    written = write_text(pipeline, alphabet, trained)
    if speaks:
        print(f"After {found.step} steps, {found.path}:\n{written}")


def main():
    with init_process_group() as group:
        speaks = group.rank == 0
        options = parse_options(is_silent=not speaks)
        text = data.load_text()
        alphabet = data.Alphabet(text)
        if options.sample is not None:
            sample(alphabet, options, group, speaks)
            return 0
        training, validation = np.split(alphabet.encode(text), [len(text) * 9 // 10])
        pipeline = make_pipeline(len(alphabet), options, group)
        if speaks:
            print(
                f"{len(training):,} training characters, {len(validation):,} for "
                f"validation, {len(alphabet)} different"
            )
            print(f"{counted(group.size, 'rank')}, {pipeline.schedule.name}\n")
            print(pipeline, end="\n\n", flush=True)

        start = time.perf_counter()
        times, batch = train(pipeline, training, validation, options, speaks)
        seconds = time.perf_counter() - start
        if not times:
            report_nothing_left(
                speaks, "validation", evaluate(pipeline, validation, options)
            )
            return 0

        timeline = pipeline.timeline()
        predicted, order = predict(pipeline, timeline), order_of_step(pipeline, batch)
        loss = evaluate(pipeline, validation, options)
        written = write_text(pipeline, alphabet, options)
        is_written = True
        if speaks:
            print(f"\nvalidation loss {loss!r} nats per character")
            print(
                f"{seconds:.1f} s, {1000 * median(times):.2f} ms a "
                f"step\n\nGenerated text:\n{written}\n"
            )
            model = (
                f"{options.layers} transformer blocks, {options.width} wide; batches "
                f"of {options.batch_size}"
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
                    seconds=seconds,
                    text=written,
                )
    return 0 if is_written else 1


if __name__ == "__main__":
    run_as_command(main)
