"""Run the language model with every schedule on 4 ranks, both training programs with
some on others: one loss each, bit for bit.

Takes minutes, so `.ci/run` runs it after the suite: ``python -m
tests.slow.same_loss_everywhere``. The programs on the same number of ranks share a
launch.
"""

import json

from minipipe import schedules
from minipipe.schedules.features import rank_of_each_stage
from tests.launch import mpirun_together

RANKS = (1, 2, 3, 4)  # eight ranks train in tests/tutorials
# on all of them; the others on 4 ranks, and with the language model alone
EVERYWHERE = ("sequential", "1f1b", "interleaved-1f1b", "zb-v")
SHORT = ("--epochs", "1", "--batch-size", "512")
SHORT_LM = (
    "--steps",
    "4",
    "--width",
    "32",
    "--context",
    "32",
    "--characters",
    "100",
    "--dropout",
    "0.1",
    "--tied",
)


def train(cells, *common, program="train.py"):
    """Return the results of trainings, in the order of the cells: pairs of a number of
    ranks, and options.
    """
    found = {}
    for num_ranks in sorted({num_ranks for num_ranks, _ in cells}):
        jobs = [options for count, options in cells if count == num_ranks]
        programs = {
            options: (f"tutorials/{program}", "--json", *options, *common)
            for options in jobs
        }
        printed = mpirun_together(num_ranks, programs, limit=900)
        for options, text in printed.items():
            found[num_ranks, options] = result = json.loads(text.splitlines()[-1])
            name = result["schedule"].partition(",")[0]  # perhaps with replicas
            assert result["ranks"] == num_ranks and (
                "--schedule" not in options or name in options
            )
            loss = found[num_ranks, options]["loss"]
            print(
                f"{program} {' '.join(options):35} {num_ranks} ranks: loss {loss!r}",
                flush=True,
            )
    return [found[cell] for cell in cells]


def trains(schedule):
    """Tell whether a pipeline trains with a schedule as one process does that adds all
    microbatches in order.
    """
    try:
        rank_of_each_stage(schedule, "Pipeline")
    except ValueError:
        return False
    return not schedule.is_forward_only


TRAINED = [name for name in schedules.REGISTRY if trains(schedules.build(name, 4))]


def digits():
    cells = [
        (num_ranks, ("--schedule", schedule))
        for schedule in EVERYWHERE
        for num_ranks in RANKS
    ]
    assert len({found["loss"] for found in train(cells, *SHORT)}) == 1, (
        "the losses differ"
    )


def replicas():
    """Two blocks of microbatches, in one process, in two replicas of any schedule, and
    in those that have two.
    """
    both = ("--replicas", "2")
    cells = [
        (1, ("--blocks", "2")),
        (2, both),
        (4, both),
        (4, ("--schedule", "zb-h1", *both)),
    ]
    cells += [(4, ("--schedule", name)) for name in ("chimera", "dualpipe", "bitpipe")]
    assert len({found["loss"] for found in train(cells, *SHORT)}) == 1, (
        "the losses differ"
    )


def language_model():
    cells = [
        (num_ranks, ("--schedule", schedule))
        for schedule in TRAINED
        for num_ranks in ((1, 2, 4) if schedule in EVERYWHERE else (4,))
    ]
    results = {
        (found["loss"], found["text"])
        for found in train(cells, *SHORT_LM, program="train_lm.py")
    }
    assert len(results) == 1, "the losses or the texts differ"

    # which learns the same on any number of ranks, as the others have shown
    (whole,) = train([(1, ("--steps", "200"))], program="train_lm.py")
    print(
        "train_lm, a quarter of its steps:",
        {key: whole[key] for key in ("loss", "seconds", "step_ms")},
    )
    print(whole["text"])
    assert whole["loss"] < 2.25


if __name__ == "__main__":
    digits()
    replicas()
    language_model()
