"""A compiled step of the language model of tutorials/train_lm.py, over an eager one.

    OPENBLAS_NUM_THREADS=1 mpirun -n 2 python tests/benchmarks/compiled_text.py
    OPENBLAS_NUM_THREADS=1 python tests/benchmarks/compiled_text.py --width 32 --rounds 9

Both train from the same weights on the same batch, AdamW with clipping included, and
take turns; their weights must have the same bits. Shown are the median times of a step
over the rounds, the longest of all ranks, and the median of their ratios.

Aims: at most 0.75 at width 32, and 0.95 at width 96.
"""

import argparse
import sys
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from compiled import check_bits
from pipelining import measure

from minipipe import Pipeline, data, init_process_group, nn, optim

CONTEXT = 64
SAMPLES = 16
MICROBATCHES = 8


class Job(NamedTuple):
    """A model, the batch that it learns, and the steps of a round."""

    width: int
    layers: int
    steps: int


def batch_of_text():
    """Return the size of the alphabet, and the inputs and targets of a batch."""
    written = data.load_text()
    alphabet = data.Alphabet(written)
    encoded = alphabet.encode(written)
    batch = data.text_windows(encoded, CONTEXT, SAMPLES, (0, 0, 0))
    return len(alphabet), *batch


def pipelined(job, group, compiles):
    """Return the step of a pipeline, and its state_dict."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "tutorials"))
    from train_lm import language_model

    num_characters, inputs, targets = batch_of_text()
    shape = {"width": job.width, "layers": job.layers, "context": CONTEXT}
    options = argparse.Namespace(**shape, heads=4, dropout=0.0, tied=False)
    pipeline = Pipeline(
        language_model(num_characters, options).initialise(0),
        group,
        loss=nn.CrossEntropyLoss(),
        num_microbatches=MICROBATCHES,
        compile=compiles,
    )
    optimiser = optim.AdamW(pipeline.parameters(), 3e-3)

    def step():
        pipeline.step(inputs, targets)
        pipeline.clip_grad_norm(1.0)
        optimiser.step()

    return step, pipeline.state_dict


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, action="append", help="by default 32, 96")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=4, help="in each round")
    options = parser.parse_args()
    with init_process_group() as group:
        for width in options.width or [32, 96]:
            job = Job(width, options.layers, options.steps)
            found = {
                "1f1b, eager": pipelined(job, group, False),
                "1f1b, compiled": pipelined(job, group, True),
            }
            for step, _ in found.values():
                for _ in range(4):
                    step()
            check_bits(found, ["1f1b"])
            eager, compiled = measure(found, group, job, options.rounds).values()
            ratio = median(map(np.divide, compiled, eager))
            if group.rank == 0:
                print(
                    f"width {width}, {group.size} ranks: eager "
                    f"{1e3 * median(eager):.1f} ms, compiled "
                    f"{1e3 * median(compiled):.1f} ms, compiled / eager {ratio:.2f}"
                )


if __name__ == "__main__":
    main()
