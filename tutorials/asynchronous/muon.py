"""One update late: 2BW with AdamW and with Muon, and with a correction of the error.

    python tutorials/asynchronous/muon.py -o DIR    the table, and muon.json
    python tutorials/asynchronous/muon.py --quick   a few batches, to see that it runs
    python tutorials/asynchronous/muon.py --draw muon.json    the table again

The task is the text of ``experiment.py``; every training sees as many characters. For
each rule and schedule the learning rate is the one of four with the lowest training
loss at the end, of the first seed; more seeds repeat the training with it. 2BW also
repeats the rate of the synchronous training.
"""

import argparse
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import numpy as np
from experiment import LAST, METHODS, MICROBATCHES, TASKS, in_one_row, rounded

from minipipe import Pipeline, nn, optim, spawn

NUM_STAGES = 2  # 2BW has the same bits on any number
NUM_BATCHES = 128
RATES = (0.002, 0.004, 0.008, 0.016)
SEEDS = (0, 1, 2, 3, 4)


class Corrected:
    """Adds to each change the error of the change before: ``p += u + (u - u_before)``.

    The gradient of an update is of the weights before the last update. So ``u`` is the
    change that the last update should have made, and this one has to guess: it takes
    ``u`` again, and adds the error of the last guess, as error feedback does. All
    changes together are then the right ones, and one guess.

    References
    ----------
    Stich & Karimireddy 2020, "The error-feedback framework: better rates for SGD with
    delayed gradients and compressed updates".
    """

    def _rule_of(self, one, group):
        return partial(self._corrected, super()._rule_of(one, group))

    @staticmethod
    def _corrected(rule, data, gradient, state, group):
        before = state.pop("change", None)
        start = data.copy()
        rule(data, gradient, state, group)
        change = data - start
        if before is not None:
            data += change - before
        state["change"] = change


class CorrectedAdamW(Corrected, optim.AdamW):
    """AdamW with the correction."""


class CorrectedMuon(Corrected, optim.Muon):
    """Muon with the correction."""


def adamw(kind, pipeline, rate):
    return kind(pipeline.parameters(), rate, (0.9, 0.99), weight_decay=0.1)


def muon(kind, pipeline, rate):
    return kind(optim.muon_groups(pipeline), rate, betas=(0.9, 0.99))


RULES = {  # by name: the optimiser without and with the correction
    "AdamW": (partial(adamw, optim.AdamW), partial(adamw, CorrectedAdamW)),
    "Muon": (partial(muon, optim.Muon), partial(muon, CorrectedMuon)),
}
WAYS = {  # by name: the schedule, and whether the error is corrected
    "1F1B": ("1f1b", False),
    "2BW": ("2bw", False),
    "2BW, corrected": ("2bw", True),
}


class Job(NamedTuple):
    """A training."""

    rule: str
    way: str
    rate: float
    seed: int
    num_batches: int

    def run(self):
        """Train on one rank; return the loss at the end, and on held-out text."""
        return spawn(self._on, 1)[0]

    def _on(self, group):
        method, is_corrected = WAYS[self.way]
        task = TASKS["text"]
        table = METHODS[method].table(NUM_STAGES, MICROBATCHES * self.num_batches)
        pipeline = Pipeline(
            task.model(),
            group,
            loss=nn.CrossEntropyLoss(),
            schedule=in_one_row(table),
            partition=task.partition(NUM_STAGES),
            seed=self.seed,
            check_finite="off",
        )
        optimiser = RULES[self.rule][is_corrected](pipeline, self.rate)
        with np.errstate(all="ignore"):  # a learning rate may be too high
            batches = task.batches(self.seed, self.num_batches)
            losses = list(map(float, pipeline.run(batches, optimiser)))
            held_out = float(pipeline.evaluate(*task.held_out()))
        last = losses[-max(1, round(LAST * len(losses))) :]
        loss = float(np.mean(last)) if np.isfinite(losses).all() else float("inf")
        return {"loss": loss, "held_out": held_out}


def search(of_each, num_batches=NUM_BATCHES, rates=RATES, seeds=SEEDS):
    """Return a row for each rule and way; ``of_each`` is as in ``experiment.search``."""
    cases = [(rule, way) for rule in RULES for way in WAYS]
    tried = [
        Job(*case, rate, seeds[0], num_batches) for case in cases for rate in rates
    ]
    results = dict(zip(tried, of_each(Job.run, tried)))
    best = {
        case: min(
            (job for job in tried if job[:2] == case),
            key=lambda job: results[job]["loss"],
        )
        for case in cases
    }
    flushed = {case: best[case[0], "1F1B"]._replace(way=case[1]) for case in cases}
    jobs = [
        job._replace(seed=seed)
        for job in {*best.values(), *flushed.values()}
        for seed in seeds[1:]
    ]
    results.update(zip(jobs, of_each(Job.run, jobs)))
    return [
        row(case, best[case], flushed[case], seeds, results, tried) for case in cases
    ]


def row(case, best, flushed, seeds, results, tried):
    """Return the recorded results of a rule and a way."""
    own = [results[best._replace(seed=seed)] for seed in seeds]
    same = [results[flushed._replace(seed=seed)] for seed in seeds]
    by_rate = {
        f"{job.rate:g}": rounded(results[job]["loss"])
        for job in tried
        if job[:2] == case
    }
    return {
        "rule": case[0],
        "way": case[1],
        "rate": best.rate,
        "by_rate": by_rate,
        "loss": [rounded(one["loss"]) for one in own],
        "held_out": [rounded(one["held_out"]) for one in own],
        "rate_of_1f1b": flushed.rate,
        "loss_at_rate_of_1f1b": [rounded(one["loss"]) for one in same],
    }


def tables(rows):
    """Yield the lines of the tables in README.md."""
    yield "| rule | schedule | loss | above 1F1B | at the rate of 1F1B, above 1F1B |"
    yield "|---|---|---|---|---|"
    found = {(one["rule"], one["way"]): one for one in rows}
    for (rule, way), one in found.items():
        flushed = found[rule, "1F1B"]["loss"]
        above = [gap(one[name], flushed) for name in ("loss", "loss_at_rate_of_1f1b")]
        loss = f"{mean(one['loss']):.3f} ({one['rate']:g})"
        if way == "1F1B":
            above = ["", ""]
        yield f"| {rule} | {way} | {loss} | {above[0]} | {above[1]} |"
    yield ""
    rates = list(rows[0]["by_rate"])
    yield f"| above 1F1B at the same rate | {' | '.join(rates)} |"
    yield "|---|" + "---|" * len(rates)
    for (rule, way), one in found.items():
        flushed = found[rule, "1F1B"]["by_rate"]
        pairs = [([one["by_rate"][rate]], [flushed[rate]]) for rate in rates]
        if way != "1F1B":
            cells = [gap(*pair).partition(" ")[0] for pair in pairs]
            yield f"| {rule}, {way} | {' | '.join(cells)} |"


def gap(losses, flushed):
    """Return the mean over the seeds of the difference, and half of its range."""
    if None in [*losses, *flushed]:
        return "diverges"
    differences = [own - other for own, other in zip(losses, flushed)]
    spread = (max(differences) - min(differences)) / 2
    return f"{mean(differences):+.3f} ± {spread:.3f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="where to write muon.json"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a few batches, to see that it runs"
    )
    parser.add_argument(
        "--draw", type=Path, metavar="FILE", help="take the results from this file"
    )
    options = parser.parse_args()
    if options.draw:
        rows = json.loads(options.draw.read_text())
    else:
        with ProcessPoolExecutor(os.cpu_count()) as pool:
            few = {"num_batches": 4, "rates": RATES[:2], "seeds": SEEDS[:2]}
            rows = search(pool.map, **(few if options.quick else {}))
    print(*tables(rows), sep="\n")
    if options.output:
        lines = ",\n".join(map(json.dumps, rows))
        (options.output / "muon.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    sys.exit(main())
