"""An encoder and a decoder with masks that learn to reverse sequences of digits.

    mpirun -n 4 python tutorials/recipes/encoder_decoder.py         (--quick: five steps, in seconds)

The sequences have unequal lengths. The encoder reads a padded sequence. The decoder
generates it backwards, digit by digit, followed by an end symbol. It reverses more than
95 % of new sequences without an error.

What to look at:

- The batch is a dict. `nn.On` calls a layer with some of its entries and replaces the
  first of them by the result. The other entries pass through unchanged, also across
  stage boundaries.
- Masks: neither the encoder nor the decoder attends to padding of the source.
- `ignore_index=`: the loss is the mean over the symbols of the whole batch, without
  padding.
- `predict` returns the scores on every rank, so all ranks generate the same next
  symbol.
"""

import sys

import numpy as np

from minipipe import Pipeline, init_process_group, nn, optim

NUM_STEPS = 5 if "--quick" in sys.argv else 250
COMPILE = "where-possible" if "--compile" in sys.argv else False
LONGEST, WIDTH = 8, 48
START, END, PADDING = 10, 11, 12  # after the digits 0 to 9
NUM_SYMBOLS = 13


def examples(count, seed):
    """Return sequences of 1 to 8 digits, and their reverses between START and END."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, LONGEST + 1, (count, 1))
    places = np.arange(LONGEST)
    source = np.where(
        places < lengths, generator.integers(0, 10, (count, LONGEST)), PADDING
    )
    backwards = np.take_along_axis(source, (lengths - 1 - places) % LONGEST, axis=1)
    target = np.full((count, LONGEST + 2), PADDING)
    target[:, 0], target[:, 1:-1] = START, backwards
    np.put_along_axis(target, lengths + 1, END, axis=1)
    return source, target


def inputs(source, target):
    return {"source": source, "is_digit": source != PADDING, "target": target}


def embeddings(entry):
    return [
        nn.On(entry, nn.Embedding(NUM_SYMBOLS, WIDTH)),
        nn.On(entry, nn.PositionalEmbedding(LONGEST + 2, WIDTH)),
    ]


def model():
    encoder = [
        nn.On(("source", "is_digit"), nn.TransformerBlock(WIDTH, num_heads=4))
        for _ in range(2)
    ]
    entries = {"x": "target", "memory": "source", "memory_mask": "is_digit"}
    decoder = [nn.On(entries, nn.DecoderBlock(WIDTH, num_heads=4)) for _ in range(2)]
    head = [nn.Take("target"), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, NUM_SYMBOLS)]
    return nn.Sequential(
        *embeddings("source"), *encoder, *embeddings("target"), *decoder, *head
    )


def write(pipeline, source):
    """Return the generated symbols, of shape (n, LONGEST + 2). Each symbol is the one
    with the highest score.
    """
    written = np.full((len(source), LONGEST + 2), PADDING)
    written[:, 0] = START
    has_ended = np.zeros(len(source), bool)
    for place in range(LONGEST + 1):
        scores = pipeline.predict(inputs(source, written[:, : place + 1]))[:, -1]
        written[:, place + 1] = np.where(has_ended, PADDING, scores.argmax(axis=-1))
        has_ended |= written[:, place + 1] == END
    return written


def text(symbols):
    return "".join(str(symbol) for symbol in symbols if symbol < 10)


with init_process_group() as group:
    pipeline = Pipeline(
        model(),
        group,
        loss=nn.CrossEntropyLoss(ignore_index=PADDING),
        num_microbatches=8,
        compile=COMPILE,
    )
    optimiser = optim.AdamW(
        pipeline.parameters(), learning_rate=3e-3, betas=(0.9, 0.98)
    )
    rate = optim.LearningRateSchedule(
        optimiser, optim.cosine(NUM_STEPS, warmup_steps=NUM_STEPS // 10)
    )
    for step in range(NUM_STEPS):
        source, target = examples(64, seed=(0, step))
        loss = pipeline.step(inputs(source, target[:, :-1]), target[:, 1:])
        pipeline.clip_grad_norm(1.0)
        optimiser.step()
        rate.step()
        if group.rank == 0 and (step + 1) % 50 == 0:
            print(f"step {step + 1:3d}: loss {loss:.4f}", flush=True)

    source, target = examples(200, seed=1)
    written = write(pipeline, source)
    right = np.mean((written == target).all(axis=1))
    if group.rank == 0:
        print(
            *(
                f"{text(one):>8} -> {text(other)}"
                for one, other in zip(source[:4], written)
            ),
            sep="\n",
        )
        print(f"loss {loss!r}, fraction of sequences right {float(right)!r}")
