"""A language model over lines of unequal lengths, with and without padding.

    mpirun -n 4 python tutorials/recipes/padded_lm.py      (--quick: four updates, in seconds)

The lines come from the Python reference and are read character by character. Training
uses no padding, which saves at least a third of the tokens, and reaches less than 2.4
nats per character. At the end, new lines have the same loss to six digits in a padded
batch and without padding.

What to look at:

- `CrossEntropyLoss(ignore_index=…)`: the mean is over the characters of the whole
  batch. A mean of the means of microbatches would give a character of a short line more
  weight.
- `minipipe.Microbatches`: a batch that is already split. Each microbatch has lines of
  one length and needs no padding.
- `accumulate=True` and `scale=`: two batches make one update, each weighted by its
  number of characters.
"""

import sys
from collections import defaultdict

import numpy as np

from minipipe import Microbatches, Pipeline, data, init_process_group, nn, optim

NUM_UPDATES = 4 if "--quick" in sys.argv else 150
COMPILE = "where-possible" if "--compile" in sys.argv else False
NUM_MICROBATCHES, LINES = 8, 4  # in a batch, and in each microbatch
SHORTEST, LONGEST, WIDTH = 8, 64, 64
IGNORED = -100


def lines_by_length(text, alphabet):
    """Return one array of shape (lines, length) for each length, with the line ends
    included.
    """
    lines_of = defaultdict(list)
    for line in text.splitlines():
        if SHORTEST < len(line) <= LONGEST:
            lines_of[len(line)].append(alphabet.encode(f"\n{line}\n"))
    return [np.stack(lines) for lines in lines_of.values() if len(lines) >= LINES]


def microbatches(groups, key):
    """Return random lines: a list of (inputs, targets), each with lines of one
    length.
    """
    generator = np.random.default_rng(key)
    probabilities = np.array([len(lines) for lines in groups]) / sum(map(len, groups))
    chosen = generator.choice(len(groups), NUM_MICROBATCHES, p=probabilities)
    drawn = [
        generator.choice(groups[number], LINES, replace=False) for number in chosen
    ]
    return [(lines[:, :-1], lines[:, 1:]) for lines in drawn]


def unpadded(parts):
    return [Microbatches(arrays) for arrays in zip(*parts)]


def padded(parts):
    """Return one array of inputs and one of targets. The model sees no later
    characters, so any value pads inputs.
    """
    longest = max(inputs.shape[1] for inputs, _ in parts)

    def filled(arrays, number):
        return [
            np.pad(a, ((0, 0), (0, longest - a.shape[1])), constant_values=number)
            for a in arrays
        ]

    inputs, targets = zip(*parts)
    return np.concatenate(filled(inputs, 0)), np.concatenate(filled(targets, IGNORED))


def count(parts):
    return sum(targets.size for _, targets in parts)


text = data.load_text()
alphabet = data.Alphabet(text)
groups = lines_by_length(text, alphabet)
model = nn.Sequential(
    nn.Embedding(len(alphabet), WIDTH),
    nn.PositionalEmbedding(LONGEST + 1, WIDTH),
    *(nn.TransformerBlock(WIDTH, num_heads=4, is_causal=True) for _ in range(2)),
    nn.LayerNorm(WIDTH),
    nn.Linear(WIDTH, len(alphabet)),
)

with init_process_group() as group:
    loss = nn.CrossEntropyLoss(ignore_index=IGNORED)
    pipeline = Pipeline(
        model, group, loss=loss, num_microbatches=NUM_MICROBATCHES, compile=COMPILE
    )
    optimiser = optim.AdamW(
        pipeline.parameters(), learning_rate=3e-3, betas=(0.9, 0.99), weight_decay=0.1
    )
    rate = optim.LearningRateSchedule(
        optimiser, optim.cosine(NUM_UPDATES, warmup_steps=NUM_UPDATES // 10)
    )
    tokens = tokens_with_padding = 0
    for update in range(NUM_UPDATES):
        batches = [microbatches(groups, (update, number)) for number in range(2)]
        total = sum(map(count, batches))
        mean = 0.0
        for number, parts in enumerate(batches):
            weight = count(parts) / total
            mean += weight * pipeline.step(
                *unpadded(parts), accumulate=number > 0, scale=weight
            )
            tokens += count(parts)
            tokens_with_padding += padded(parts)[1].size
        pipeline.clip_grad_norm(1.0)
        optimiser.step()
        rate.step()
        if group.rank == 0 and (update + 1) % 25 == 0:
            print(
                f"update {update + 1:3d}: loss {mean:.3f} nats per character",
                flush=True,
            )

    parts = microbatches(groups, (NUM_UPDATES, 0))
    whole, cut = pipeline.evaluate(*padded(parts)), pipeline.evaluate(*unpadded(parts))
    if group.rank == 0:
        saved = 1 - tokens / tokens_with_padding
        print(
            f"tokens in training: {tokens}, with padding {tokens_with_padding}; "
            f"{100 * saved:.0f} % saved"
        )
        print(f"new lines: loss {cut!r}, padded {whole!r}")
        print(f"loss {cut!r}, relative difference {abs(whole / cut - 1):.0e}")
