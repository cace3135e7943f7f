"""How good the choice of schedule="auto" is: its time over that of the fastest of all
choices that were run.

    OPENBLAS_NUM_THREADS=1 mpirun -n 4 python tests/benchmarks/advice.py                every model, a few minutes each
    OPENBLAS_NUM_THREADS=1 mpirun -n 2 python tests/benchmarks/advice.py --case pyramid
    --rounds 5 --most 20

The models are those of tutorials/train.py and train_lm.py, and three uneven ones. The
ranks measure, weigh and let the best choices race, as for ``Pipeline(…,
schedule="auto")``. Then all choices that were weighed run, in turns of two steps and in
any order, so a noisy machine disturbs all alike; a time is the median makespan. Those
that run the same count once. The least of a hundred medians is so by luck, too: the
chosen one and the fastest run again, in more rounds, and these times are compared. Even
there, with ten alike, whose medians are uncertain by 3 %, the least is 4 % below the
others: which is the fastest is told by one half of the rounds, and its time by the
other half, both ways. So the ratio may be below 1. Each turn makes a pipeline anew: of
two pipelines alike one was faster by 12 %, by its place in memory.

Aim: the chosen one takes at most 1.05 of the fastest, for each model.
"""

import argparse
import json
import sys
from pathlib import Path
from random import Random
from statistics import geometric_mean, median
from typing import Any, NamedTuple

import numpy as np

from minipipe import Pipeline, data, init_process_group, nn
from minipipe.tuning.race import Race, advice_on_ranks, choices_of_rank_0
from minipipe.tuning.weighing import Question, described

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tutorials"))


# the fastest that run again beside the chosen one, and for how many times the rounds
FINALISTS, MORE = 9, 12


class Case(NamedTuple):
    """A model with its loss and a batch."""

    model: nn.Sequential
    loss: Any
    inputs: np.ndarray
    targets: np.ndarray


def digits():
    """The model and the batch of train.py."""
    import train

    images, labels = data.load_digits()
    return Case(train.mlp(8, 192), nn.CrossEntropyLoss(), images[:64], labels[:64])


def text():
    """The model and the batch of train_lm.py."""
    import train_lm

    options = argparse.Namespace(
        width=96, heads=4, layers=4, context=64, dropout=0.0, tied=False
    )
    written = data.load_text()
    alphabet = data.Alphabet(written)
    batch = data.text_windows(alphabet.encode(written), options.context, 16, (0, 0, 0))
    return Case(
        train_lm.language_model(len(alphabet), options), nn.CrossEntropyLoss(), *batch
    )


def pyramid():
    """Linear layers that get narrower: the first takes half of the time."""
    widths = [1024, 768, 512, 384, 256, 192, 128, 96, 64]
    layers = [
        layer
        for pair in zip(widths, widths[1:])
        for layer in (nn.Linear(*pair), nn.GELU())
    ]
    return regression(nn.Sequential(*layers), 1024, 64)


def one_slow():
    """Equal layers, and among them one that takes as long as eight."""
    narrow = [layer for _ in range(7) for layer in (nn.Linear(192, 192), nn.Tanh())]
    slow = nn.Sequential(nn.Linear(192, 768), nn.ReLU(), nn.Linear(768, 192))
    return regression(nn.Sequential(*narrow[:4], slow, *narrow[4:]), 192, 192)


def large_head():
    """Transformer blocks between an embedding, which takes no time, and the scores of
    many words, which take most.
    """
    words, width = 2000, 64
    blocks = [nn.TransformerBlock(width, 4, is_causal=True) for _ in range(6)]
    model = nn.Sequential(
        nn.Embedding(words, width),
        *blocks,
        nn.LayerNorm(width),
        nn.Linear(width, words),
    )
    ids = np.random.default_rng(0).integers(0, words, (16, 33))
    return Case(model, nn.CrossEntropyLoss(), ids[:, :-1], ids[:, 1:])


def regression(model, width, width_of_targets, batch=256):
    generator = np.random.default_rng(0)
    inputs, targets = (
        generator.standard_normal((batch, w)).astype(np.float32)
        for w in (width, width_of_targets)
    )
    return Case(model, nn.MSELoss(), inputs, targets)


CASES = {
    "train.py": digits,
    "train_lm.py": text,
    "pyramid": pyramid,
    "one slow layer": one_slow,
    "large head": large_head,
}


def choices_of(question, group, most, seconds):
    """Return the choices, the best first, on rank 0, and on all ranks their options, in
    the same order.
    """
    advice, programs = (
        advice_on_ranks(question, group, Pipeline, "the ranks of this job", seconds),
        {},
    )
    for choice in advice.choices if advice else []:
        programs.setdefault(choice.program, choice)
    choices = list(programs.values())[:most]
    return choices, choices_of_rank_0(group, choices if advice else [])


def measure(race, every, rounds):
    """Return for each choice the makespans of its steps, in seconds."""
    makespans, chance = [[] for _ in every], Random(0)
    for _ in range(rounds):
        for number in chance.sample(range(len(every)), len(every)):
            makespans[number] += race.turn(every[number])
    return makespans


def ratio_of(makespans):
    """Return how long the first takes, relative to the fastest; each half of the rounds
    is asked once which that is.
    """
    half = len(makespans[0]) // 2
    first, second = (
        [median(found[:half]) for found in makespans],
        [median(found[half:]) for found in makespans],
    )
    return geometric_mean(
        times[0] / times[judge.index(min(judge))]
        for judge, times in ((first, second), (second, first))
    )


def row_of(name, choices, times, finalists, again):
    """Return the result as plain data. ``again`` has the steps of the finalists, the
    chosen one first.
    """
    medians = list(map(median, again))
    fastest = finalists[medians.index(min(medians))]
    return {
        "case": name,
        "choices": len(choices),
        "chosen": described(choices[0].candidate),
        "predicted_ms": 1e3 * choices[0].time,
        "measured_ms": 1e3 * medians[0],
        "fastest": described(choices[fastest].candidate),
        "fastest_ms": 1e3 * min(medians),
        "ratio": ratio_of(again),
        "median_error": median(
            abs(choice.time / time - 1) for choice, time in zip(choices, times)
        ),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--case",
        action="append",
        help="only cases with this in their name; may be repeated",
    )
    parser.add_argument("--rounds", type=int, default=8, help="default: %(default)s")
    parser.add_argument(
        "--most", type=int, help="only so many choices, those of which most is expected"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        help="of the race by which one is chosen; default: as for users",
    )
    parser.add_argument("--json", action="store_true")
    rows = []
    with init_process_group() as group:
        options = parser.parse_args()
        for name, make in CASES.items():
            if options.case and not any(part in name for part in options.case):
                continue
            case = make()
            question = Question(
                case.model, case.inputs, case.targets, {"loss": case.loss}
            )
            choices, every = choices_of(question, group, options.most, options.seconds)
            race = Race(question, group, Pipeline)
            times = list(map(median, measure(race, every, options.rounds)))
            finalists = [
                0,
                *sorted(range(1, len(times)), key=times.__getitem__)[:FINALISTS],
            ]
            again = measure(
                race, [every[number] for number in finalists], MORE * options.rounds
            )
            if group.rank == 0:
                rows.append(row_of(name, choices, times, finalists, again))
                if not options.json:
                    report(rows[-1])
        if group.rank == 0:
            worst = max(row["ratio"] for row in rows)
            print(
                json.dumps(rows)
                if options.json
                else f"\nchosen over fastest: at most {worst:.3f}; aim 1.05"
            )


def report(row):
    times = (
        f"predicted {row['predicted_ms']:.2f} ms, measured {row['measured_ms']:.2f} ms"
    )
    print(
        f"\n{row['case']}: {row['choices']} choices, median error "
        f"{100 * row['median_error']:.0f} %"
    )
    print(f"  chosen   {row['chosen']}: {times}")
    print(
        f"  fastest  {row['fastest']}: measured {row['fastest_ms']:.2f} ms; the "
        f"ratio is {row['ratio']:.3f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
