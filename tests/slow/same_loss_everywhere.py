"""Run the training programs with every schedule on 4 ranks, and some on others: one loss each, bit for bit; 97 %.

Takes minutes, so `.ci/run` runs it after the suite.
"""

import json
import subprocess
import sys
from pathlib import Path

from minipipe import schedules

ROOT = Path(__file__).resolve().parent.parent.parent
RANKS = (1, 2, 3, 4)  # eight ranks train in tests/tutorials
EVERYWHERE = ("sequential", "1f1b", "interleaved-1f1b", "zb-v")  # on all of them; the others on 4 ranks
SHORT = ("--epochs", "1")
SHORT_LM = ("--steps", "8", "--width", "32", "--context", "32", "--dropout", "0.1", "--tied")


def train(num_ranks, *options, program="train.py"):
    launcher = ["mpirun", "-n", str(num_ranks)] if num_ranks > 1 else []
    command = [*launcher, sys.executable, f"tutorials/{program}", "--json", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def trains(schedule):
    """Tell whether a pipeline trains with a schedule as one process does that adds all microbatches in order."""
    try:
        return bool(schedule.one_rank_each("Pipeline")) and not schedule.is_forward_only
    except ValueError:
        return False


TRAINED = [name for name in schedules.REGISTRY if trains(schedules.build(name, 4))]


def fits(schedule, num_ranks, num_microbatches=16):
    """Tell whether a schedule can be built: interleaved ones take rounds of equal size."""
    try:
        schedules.REGISTRY[schedule](num_ranks, num_microbatches)
    except ValueError:
        return False
    return True


def digits():
    losses = {}
    for schedule in TRAINED:
        for num_ranks in RANKS if schedule in EVERYWHERE else (4,):
            if fits(schedule, num_ranks):
                losses[schedule, num_ranks] = train(num_ranks, "--schedule", schedule, *SHORT)["loss"]
                print(f"{schedule:20} {num_ranks} ranks: loss {losses[schedule, num_ranks]!r}", flush=True)
    assert len(losses) >= len(RANKS) * (len(EVERYWHERE) - 1) + len(TRAINED) - len(EVERYWHERE)
    assert len(set(losses.values())) == 1, "the losses differ"

    whole = train(4)
    print("defaults, 4 ranks:", {key: whole[key] for key in ("accuracy", "seconds", "step_ms", "bubble_fraction")})
    assert whole["loss"] == train(1)["loss"], "the loss of four ranks differs from that of one"
    assert whole["accuracy"] >= 0.97


def replicas():
    """Two blocks of microbatches, in one process, in two replicas of any schedule, and in those that have two."""
    one = train(1, "--blocks", "2", *SHORT)["loss"]
    for num_ranks, *options in (
        *((2, "--replicas", "2"), (4, "--replicas", "2"), (4, "--schedule", "chimera")),
        *((4, "--schedule", "zb-h1", "--replicas", "2"), (4, "--schedule", "dualpipe"), (4, "--schedule", "bitpipe")),
    ):
        found = train(num_ranks, *options, *SHORT)["loss"]
        print(f"{' '.join(options):35} {num_ranks} ranks: loss {found!r}", flush=True)
        assert found == one, f"the loss of one process with two blocks is {one!r}"


def language_model():
    losses = {}
    for schedule in TRAINED:
        for num_ranks in (1, 2, 4) if schedule in EVERYWHERE else (4,):
            options = ("--schedule", schedule, *SHORT_LM)
            losses[schedule, num_ranks] = train(num_ranks, *options, program="train_lm.py")["loss"]
            print(f"train_lm {schedule:20} {num_ranks} ranks: loss {losses[schedule, num_ranks]!r}", flush=True)
    assert len(set(losses.values())) == 1, "the losses differ"

    whole = train(4, "--steps", "200", program="train_lm.py")
    print("train_lm, a quarter of its steps, 4 ranks:", {key: whole[key] for key in ("loss", "seconds", "step_ms")})
    print(whole["text"])
    assert whole["loss"] < 2.25


if __name__ == "__main__":
    digits()
    replicas()
    language_model()
