"""Stale weights: what they cost, and what a pipeline without flushes gains. Six
methods, 1 to 8 stages.

    python tutorials/asynchronous/experiment.py -o DIR    tables, results.json, loss.svg
    python tutorials/asynchronous/experiment.py --quick   a few batches, to see that it runs
    mpirun -n 2 python tutorials/asynchronous/experiment.py --measure    time on real ranks
    python tutorials/asynchronous/experiment.py --draw results.json -o DIR    draw again

The first command takes about five minutes on two cores. There are two tasks: the digits
of ``train.py`` with SGD, and the text of ``train_lm.py`` with AdamW. A batch has 8
microbatches, and all methods see the same ones in the same order. For each number of
stages, every method tries the same learning rates and keeps the one with the lowest
training loss at the end; two more seeds repeat the training with this rate.

Losses do not depend on the placement of stages. So all stages run on one rank, in the
order of their simulated times, with the bits of p ranks. Times are simulated, with
stages of equal cost.
"""

import argparse
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from statistics import mean, median
from time import perf_counter
from typing import NamedTuple

import numpy as np
from chart import Line, Panel, draw_panels

from minipipe import (
    Pipeline,
    Schedule,
    data,
    init_process_group,
    nn,
    optim,
    schedules,
    simulate,
    spawn,
)

MICROBATCHES = 8  # in a batch
STAGES = (1, 2, 4, 8)
SEEDS = (0, 1, 2)
POINTS = 40  # on a curve, at most
LAST = 0.1  # the part of the batches whose mean is the loss at the end


class Method(NamedTuple):
    """A schedule for a whole training, with its options."""

    words: str
    table: object  # (stages, microbatches of the run) -> Schedule
    looks_ahead: bool = False
    stash: bool = True


METHODS = {
    "1f1b": Method(
        "1F1B, with flushes", lambda p, count: schedules.one_f_one_b(p, MICROBATCHES)
    ),
    "pipedream": Method("PipeDream", schedules.pipedream),
    "vertical-sync": Method("vertical sync", schedules.vertical_sync),
    "nesterov": Method("delayed Nesterov", schedules.pipedream, looks_ahead=True),
    "2bw": Method(
        "2BW", partial(schedules.two_buffered, microbatches_per_update=MICROBATCHES)
    ),
    "paci": Method(
        "PACI",
        partial(schedules.paci, microbatches_per_update=MICROBATCHES),
        stash=False,
    ),
}


# -- the tasks -------------------------------------------------------------------------


class Digits:
    """A multilayer perceptron of 8 linear layers on noisy images, trained with SGD.

    A rate is the total effect of a gradient on the weights. With a momentum of 0.9 this
    is ten times the learning rate of SGD.
    """

    name, num_batches, rates = "digits", 184, (0.003, 0.01, 0.03, 0.1, 0.3)

    @staticmethod
    def model():
        layers = [nn.Flatten(), nn.Linear(64, 64)]
        for width in [64] * 6 + [10]:
            layers += [nn.ReLU(), nn.Linear(64, width)]
        return nn.Sequential(*layers)

    @staticmethod
    def partition(num_stages):
        return None  # balance the numbers of parameters

    @staticmethod
    @cache
    def examples():
        return data.split_examples(*data.load_digits(), test_fraction=0.2)

    def batches(self, seed, count):
        generator, examples, found, epoch = (
            np.random.default_rng(seed),
            self.examples()[0],
            [],
            0,
        )
        while len(found) < count:
            for x, y in data.batches(
                *examples, 8 * MICROBATCHES, seed=seed, epoch=epoch
            ):
                found.append(
                    (x + 0.25 * generator.standard_normal(x.shape, dtype=np.float32), y)
                )
            epoch += 1
        return found[:count]

    def held_out(self):
        return self.examples()[1]

    @staticmethod
    def optimiser(parameters, rate, looks_ahead):
        return optim.SGD(parameters, rate * (1 - 0.9), 0.9, nesterov=looks_ahead)


class Text:
    """A small transformer. Attention and feed-forward are separate layers, one for each
    of 8 stages.
    """

    name, num_batches, rates = "text", 64, (0.0005, 0.001, 0.002, 0.004, 0.008)
    width, context = 32, 32

    def model(self):
        layers = [
            nn.Embedding(len(self.text()[0]), self.width),
            nn.PositionalEmbedding(self.context, self.width),
        ]
        for _ in range(4):
            layers.append(
                nn.Residual(
                    nn.LayerNorm(self.width),
                    nn.MultiHeadAttention(self.width, 2, is_causal=True),
                )
            )
            network = (
                nn.Linear(self.width, 4 * self.width),
                nn.GELU(),
                nn.Linear(4 * self.width, self.width),
            )
            layers.append(nn.Residual(nn.LayerNorm(self.width), *network))
        scores = nn.initialisers.glorot_uniform(self.width, len(self.text()[0]))
        head = nn.Linear(self.width, len(self.text()[0]), initialiser=scores)
        return nn.Sequential(*layers, nn.LayerNorm(self.width), head)

    @staticmethod
    def partition(num_stages):
        cuts = [0, *(2 + 8 // num_stages * stage for stage in range(1, num_stages)), 12]
        return [range(start, stop) for start, stop in zip(cuts, cuts[1:])]

    @staticmethod
    @cache
    def text():
        text = data.load_text()
        alphabet = data.Alphabet(text)
        return alphabet, *np.split(alphabet.encode(text), [len(text) * 9 // 10])

    def batches(self, seed, count):
        windows = partial(
            data.text_windows, self.text()[1], self.context, 2 * MICROBATCHES
        )
        return [windows((seed, 0, step)) for step in range(count)]

    def held_out(self):
        return data.text_windows(self.text()[2], self.context, 128, (0, 1, 0))

    @staticmethod
    def optimiser(parameters, rate, looks_ahead):
        return optim.AdamW(
            parameters, rate, (0.9, 0.99), weight_decay=0.1, nesterov=looks_ahead
        )


TASKS = {task.name: task for task in (Digits(), Text())}


# -- a training ------------------------------------------------------------------------


def in_one_row(schedule):
    """Return the same actions on one rank, in the order of their simulated start.

    Every stage keeps its own order of actions.
    """
    rows = enumerate(simulate(schedule).spans)
    spans = [
        (span.start, place, rank, span.action)
        for rank, row in rows
        for place, span in enumerate(row)
    ]
    actions = [action for *_, action in sorted(spans, key=lambda span: span[:3])]
    return Schedule(
        schedule.name, (0,) * schedule.num_stages, schedule.num_microbatches, [actions]
    )


def train(group, task, method, schedule, rate, seed, num_batches):
    """Train.

    Return the losses of the batches, the loss on held-out data, the weight versions of
    each stage of this rank, and the bytes of the largest one.
    """
    how, options = (
        METHODS[method],
        {"partition": task.partition(schedule.num_stages), "seed": seed},
    )
    pipeline = Pipeline(
        task.model(),
        group,
        loss=nn.CrossEntropyLoss(),
        schedule=schedule,
        check_finite="off",
        **options,
    )
    optimiser = task.optimiser(pipeline.parameters(), rate, how.looks_ahead)
    with np.errstate(all="ignore"):  # a learning rate may be too high
        losses = pipeline.run(
            task.batches(seed, num_batches), optimiser, stash=how.stash
        )
        held_out = pipeline.evaluate(*task.held_out())
    layers, sizes = task.model().flat_layers, {}
    for stage in pipeline.local_stages:
        sizes[stage] = sum(
            p.nbytes for i in pipeline.partition[stage] for p in layers[i].parameters()
        )
    # no copies with flushes
    held = {
        stage: losses.copies.get(stage, (1, 0, size)) for stage, size in sizes.items()
    }
    most = max(
        sizes[stage] + stashed + sums for stage, (_, stashed, sums) in held.items()
    )
    return (
        list(map(float, losses)),
        float(held_out),
        [versions for versions, *_ in held.values()],
        most,
    )


class Job(NamedTuple):
    """A training on one number of stages, with one learning rate and one seed."""

    task: str
    method: str
    stages: int
    rate: float
    seed: int
    num_batches: int

    def table(self):
        return METHODS[self.method].table(self.stages, MICROBATCHES * self.num_batches)

    def run(self):
        """Train on one rank. Return the part of the results that is recorded."""
        losses, held_out, versions, most = spawn(self._on, 1)[0]
        last = losses[-max(1, round(LAST * len(losses))) :]
        loss = float(np.mean(last)) if np.isfinite(losses).all() else float("inf")
        return {
            "loss": loss,
            "held_out": held_out,
            "curve": curve(losses),
            "versions": versions,
            "bytes": most,
        }

    def _on(self, group):
        return train(
            group, TASKS[self.task], self.method, in_one_row(self.table()), *self[3:]
        )


def curve(losses):
    """Return rounded means over equally many batches each; None instead of a mean that
    is not finite.
    """
    each = -(-len(losses) // POINTS)
    return [
        rounded(np.mean(losses[i : i + each]))
        for i in range(0, len(losses) - each + 1, each)
    ]


def rounded(loss):
    return float(f"{loss:.5g}") if np.isfinite(loss) else None


# -- all trainings ---------------------------------------------------------------------


def search(of_each, num_batches=None, num_rates=None, stages=STAGES, seeds=SEEDS):
    """Return a row for each task, method and number of stages, with its best learning
    rate.

    ``of_each`` is ``map``, or the ``map`` of a pool that uses all cores.
    """
    cases = [(task, method, p) for task in TASKS for method in METHODS for p in stages]
    count = {name: num_batches or task.num_batches for name, task in TASKS.items()}
    tried = [
        Job(*case, rate, seeds[0], count[case[0]])
        for case in cases
        for rate in TASKS[case[0]].rates[:num_rates]
    ]
    results = dict(zip(tried, of_each(Job.run, tried)))
    best = [
        min(
            (job for job in tried if job[:3] == case),
            key=lambda job: results[job]["loss"],
        )
        for case in cases
    ]
    again = [job._replace(seed=seed) for job in best for seed in seeds[1:]]
    results.update(zip(again, of_each(Job.run, again)))
    return [
        row(job, [results[job._replace(seed=seed)] for seed in seeds], results)
        for job in best
    ]


def row(job, own, results):
    """Return the recorded results of a method for a task, on a number of stages."""
    tried = (other for other in results if other._replace(rate=job.rate) == job)
    rates = {f"{other.rate:g}": rounded(results[other]["loss"]) for other in tried}
    of_seeds = {
        name: [rounded(result[name]) for result in own] for name in ("loss", "held_out")
    }
    stale = [max(of_stage) for of_stage in schedules.staleness(job.table())]
    said = {
        "task": job.task,
        "method": job.method,
        "stages": job.stages,
        "rate": job.rate,
        "by_rate": rates,
    }
    said["batches_of_a_point"] = -(-job.num_batches // POINTS)
    held = {name: own[0][name] for name in ("versions", "bytes")}
    return {
        **said,
        **of_seeds,
        "staleness": stale,
        **held,
        "curve": own[0]["curve"],
        "ends": ends(job),
    }


def ends(job):
    """Return the simulated time of each point of a curve, in units of the forward of a
    stage.
    """
    last = dict.fromkeys(range(job.num_batches), 0.0)
    table = job.table()
    for span in (
        span for row in simulate(table).spans for span in row if span.action.kind == "B"
    ):
        batch = span.action.microbatch // MICROBATCHES
        last[batch] = max(last[batch], span.end)
    # with flushes: the same step for each batch
    if table.num_microbatches == MICROBATCHES:
        last = {batch: (batch + 1) * last[0] for batch in last}
    each = -(-job.num_batches // POINTS)
    return [last[batch] for batch in range(each - 1, job.num_batches, each)]


# -- tables, picture -------------------------------------------------------------------


def tables(rows):
    """Yield the lines of the tables in README.md."""
    stages, found = (
        sorted({row["stages"] for row in rows}),
        {(r["task"], r["method"], r["stages"]): r for r in rows},
    )
    most = stages[-1]
    for task in TASKS:
        yield (
            f"| {task} | "
            f"{' | '.join(f'{p} stages' if p > 1 else '1 stage' for p in stages)} |"
        )
        yield "|---|" + "---|" * len(stages)
        for method, how in METHODS.items():
            yield (
                f"| {how.words} | "
                f"{' | '.join(cell(found[task, method, p]) for p in stages)} |"
            )
        yield ""
    yield (
        f"| {most} stages | staleness | versions | bytes | units a batch | loss at "
        "the same time |"
    )
    yield "|---|---|---|---|---|---|"
    for method, how in METHODS.items():
        own, first = (
            [found[task, each, most] for task in TASKS]
            for each in (method, "pipedream")
        )
        stale, versions = (spread(own[0][name]) for name in ("staleness", "versions"))
        size = ", ".join(f"{each['bytes']:,}" for each in own)
        losses = ", ".join(
            f"{loss_at(each, other['ends'][-1]):.2f}" for each, other in zip(own, first)
        )
        yield (
            f"| {how.words} | {stale} | {versions} | {size} | "
            f"{units_of_a_batch(own[0]):g} | {losses} |"
        )


def cell(row):
    """Return the loss at the end: mean over the seeds, half of their range, and the
    learning rate.
    """
    if None in row["loss"]:
        return "diverges"
    return (
        f"{mean(row['loss']):.3f} ± {(max(row['loss']) - min(row['loss'])) / 2:.3f} "
        f"({row['rate']:g})"
    )


def spread(of_stages):
    """Return the numbers of the first and the last stage, or one number if all are
    equal.
    """
    return (
        str(of_stages[0])
        if len(set(of_stages)) == 1
        else f"{of_stages[0]} to {of_stages[-1]}"
    )


def batches_of(row):
    """Return the number of batches at each point of a curve."""
    return [row["batches_of_a_point"] * (i + 1) for i in range(len(row["curve"]))]


def units_of_a_batch(row):
    batches, ends = batches_of(row), row["ends"]
    return (ends[-1] - ends[0]) / (batches[-1] - batches[0])


def loss_at(row, time):
    """Return the mean of the last points of a curve before a time, as many as a tenth
    of the curve has.
    """
    points = [value for end, value in zip(row["ends"], row["curve"]) if end <= time]
    last = points[-max(1, round(LAST * len(row["curve"]))) :]
    return float("nan") if None in last else mean(last)


# for each method: its role in the style sheet, and whether its line is dashed
LINES = {
    **{
        "1f1b": ("other", False),
        "pipedream": ("straight", False),
        "vertical-sync": ("straight", True),
    },
    **{"nesterov": ("other", True), "2bw": ("V", False), "paci": ("V", True)},
}


def picture(rows):
    """Return the losses as SVG: over batches, over time, and at the end by number of
    stages.
    """
    most, panels = max(row["stages"] for row in rows), []
    for task in TASKS:
        own = [row for row in rows if row["task"] == task]
        deep = [row for row in own if row["stages"] == most]
        over_batches = [
            line(row["method"], batches_of(row), row["curve"]) for row in deep
        ]
        over_time = [line(row["method"], row["ends"], row["curve"]) for row in deep]
        ends = [
            (method, [row for row in own if row["method"] == method])
            for method in METHODS
        ]
        by_stages = [
            line(m, [r["stages"] for r in each], [at_the_end(r) for r in each])
            for m, each in ends
        ]
        panels.append(
            [
                Panel(f"{task}, {most} stages", "batches", over_batches),
                Panel(
                    f"{task}, {most} stages",
                    "simulated time, in F of a stage",
                    over_time,
                ),
                Panel(f"{task}, at the end", "stages", by_stages, is_log=True),
            ]
        )
    names = {method: how.words for method, how in METHODS.items()}
    return draw_panels("The loss of six ways to train a pipeline", panels, names, LINES)


def line(method, x, y):
    return Line(method, [(a, b) for a, b in zip(x, y) if b is not None])


def at_the_end(row):
    return None if None in row["loss"] else mean(row["loss"])


# -- on real ranks ---------------------------------------------------------------------


def measure(group, rounds=5, count=20):
    """Print the time of a batch on these ranks, also as a ratio to 1F1B. The methods
    take turns.
    """
    for task in TASKS.values():
        batches, runs = task.batches(0, count), {}
        for method, how in METHODS.items():
            table = how.table(group.size, MICROBATCHES * count)
            pipeline = Pipeline(
                task.model(),
                group,
                loss=nn.CrossEntropyLoss(),
                schedule=table,
                partition=task.partition(group.size),
            )
            optimiser = task.optimiser(
                pipeline.parameters(), task.rates[0], how.looks_ahead
            )
            predicted = simulate(table).makespan * (count if method == "1f1b" else 1)
            runs[method] = (
                partial(pipeline.run, batches, optimiser, stash=how.stash),
                predicted,
                [],
            )
        for number in range(rounds + 1):
            for act, _, times in runs.values():
                group.barrier()
                start = perf_counter()
                act()
                group.barrier()
                # the first round captures the steps
                times += [perf_counter() - start] if number else []
        report(task, runs, count, group) if group.rank == 0 else None


def report(task, runs, count, group):
    _, in_all, flushed = runs["1f1b"]
    print(
        f"{task.name}, {group.size} ranks: ms of a batch, over 1F1B (lowest to "
        "highest), predicted"
    )
    for method, (_, predicted, times) in runs.items():
        ratios = sorted(own / other for own, other in zip(times, flushed))
        numbers = (
            f"{1000 * median(times) / count:8.2f}{median(ratios):8.2f} "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )
        print(
            f"  {METHODS[method].words:18}{numbers}{predicted / in_all:8.2f}",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="DIR",
        help="where to write results.json and loss.svg",
    )
    parser.add_argument(
        "--quick", action="store_true", help="a few batches, to see that it runs"
    )
    parser.add_argument(
        "--measure",
        action="store_true",
        help="seconds of a batch on the ranks of mpirun",
    )
    parser.add_argument(
        "--draw", type=Path, metavar="FILE", help="take the results from this file"
    )
    options = parser.parse_args()
    if options.measure:
        with init_process_group() as group:
            measure(group, *((1, 2) if options.quick else ()))
        return
    if options.draw:
        rows = json.loads(options.draw.read_text())
    else:
        with ProcessPoolExecutor(os.cpu_count()) as pool:
            few = {"num_batches": 4, "num_rates": 2, "stages": (1, 2), "seeds": (0,)}
            rows = search(pool.map, **(few if options.quick else {}))
    print(*tables(rows), sep="\n")
    if options.output:
        lines = ",\n".join(map(json.dumps, rows))
        (options.output / "results.json").write_text(f"[\n{lines}\n]\n")
        (options.output / "loss.svg").write_text(picture(rows))


if __name__ == "__main__":
    sys.exit(main())
