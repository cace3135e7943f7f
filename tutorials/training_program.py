"""Common parts of the training programs: command-line options, checkpoints and the
final report.
"""

import argparse
import contextlib
import json
import os
import platform
import socket
import sys
import warnings
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from statistics import median

import numpy as np

from minipipe import Costs, Grid, checkpoint, schedules, simulate
from minipipe.cli.streams import discard, finish_messages, prepare_streams
from minipipe.errors import FileError, MinipipeError, counted
from minipipe.io import is_terminal
from minipipe.render import check_ending, draw_text, has_colour, save
from minipipe.render.files import ENDINGS

# These options do not change any result, so a resumed run may change them.
WITHOUT_EFFECT = (
    "schedule",
    "device",
    "trace",
    "json",
    "checkpoint",
    "every",
    "resume",
    "recompute",
    "characters",
    "compile",
    "sample",
)


def run_as_command(main):
    """Run a training program, and report each error in one line."""
    name = Path(sys.argv[0]).name
    prepare_streams()
    if sys.stdout is None:  # stdout is closed: train without output
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    try:
        code = main()
        sys.stdout.flush()
    except MinipipeError as error:
        sys.exit(f"{name}: {error}")
    except OSError as error:
        discard(sys.stdout)
        sys.exit(
            f"{name}: {error.filename or 'its output'} cannot be written or "
            f"read: {error.strerror}."
        )
    finally:
        finish_messages()
    sys.exit(code)


def shows_bar(speaks):
    """Return whether this rank shows a progress bar: only the rank that prints, and
    only in a terminal.
    """
    return speaks and is_terminal(sys.stderr)


def make_parser(
    description, microbatches, batch_size, learning_rate, layers, layers_help
):
    """Return a parser with the options of every training program."""
    parser = argparse.ArgumentParser(description=description)
    add = parser.add_argument
    names = ", ".join(schedules.REGISTRY)
    default = "(default: %(default)s)"
    add(
        "--schedule",
        default="1f1b",
        metavar="NAME|FILE.csv",
        help=f"{names}, or a file {default}",
    )
    from_file = f"(default: {microbatches}, or the number in the file)"
    add(
        "--microbatches",
        type=int,
        metavar="N",
        help=f"microbatches per batch {from_file}",
    )
    add(
        "--replicas",
        type=int,
        default=1,
        metavar="R",
        help=f"data-parallel replicas of the pipeline {default}",
    )
    add(
        "--tensor",
        type=int,
        default=1,
        metavar="T",
        help=f"tensor-parallel ranks per stage {default}",
    )
    add(
        "--fully-sharded",
        action="store_true",
        help="shard the parameters over the replicas",
    )
    in_pairs = (
        "blocks of gradients, summed separately and then in pairs (default: the "
        "number of replicas)"
    )
    add("--blocks", type=int, metavar="N", help=in_pairs)
    add(
        "--batch-size",
        type=int,
        default=batch_size,
        metavar="N",
        help=f"samples per batch, at most {default}",
    )
    add(
        "--learning-rate",
        type=float,
        default=learning_rate,
        metavar="X",
        help=f"decreases to 0 {default}",
    )
    add(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help=f"seed of everything random {default}",
    )
    add(
        "--layers",
        type=int,
        default=layers,
        metavar="N",
        help=f"{layers_help} {default}",
    )
    add(
        "--device",
        default="cpu",
        choices=["cpu", "gpu", "cuda"],
        help=f"gpu, or cuda, requires CuPy {default}",
    )
    add(
        "--compile",
        action="store_true",
        help="run each rank's step as one printed program; the same bits, faster",
    )
    endings = " ".join(ENDINGS)
    add(
        "--trace",
        type=Path,
        metavar="FILE",
        help="draw the last step, measured and predicted, into a file of the host of "
        f"rank 0: {endings}. If ranks "
        "share cores, FILE shows the step with one core per rank, and "
        "NAME.measured the measured step",
    )
    add("--json", action="store_true", help="print one line of JSON last")
    add(
        "--checkpoint",
        type=Path,
        metavar="DIR",
        help="save checkpoints in DIR, the last one after the last step",
    )
    add(
        "--every",
        type=int,
        metavar="N",
        help="steps between checkpoints (default: only after the last step)",
    )
    add(
        "--resume",
        action="store_true",
        help="resume from the newest checkpoint in DIR, if there is one",
    )
    return parser


def read_options(parser, at_least_one, is_silent, mistake=lambda options: None):
    """Read and check the command line on every rank. Only one rank prints errors.

    ``mistake`` returns a message about any other error in the options, or None.
    """
    with contextlib.ExitStack() as stack:
        if is_silent:
            nowhere = stack.enter_context(open(os.devnull, "w"))
            stack.enter_context(contextlib.redirect_stdout(nowhere))
            stack.enter_context(contextlib.redirect_stderr(nowhere))
        options = parser.parse_args()
        for name in ("batch_size", "layers", "replicas", "tensor", *at_least_one):
            if getattr(options, name) < 1:
                parser.error(
                    f"--{name.replace('_', '-')} is {getattr(options, name)}; "
                    "expected at least 1"
                )
        if not 0 < options.learning_rate < float("inf"):
            parser.error(
                f"--learning-rate is {options.learning_rate}; expected a finite "
                "number, more than 0"
            )
        if options.microbatches is not None and options.microbatches % options.replicas:
            parser.error(
                f"--microbatches is {options.microbatches}; expected a multiple "
                f"of --replicas, {options.replicas}"
            )
        if options.seed < 0:
            parser.error(f"--seed is {options.seed}; expected at least 0")
        # the folder may be missing on other hosts
        if options.trace is not None and not is_silent:
            check_trace(options.trace, parser)
        if options.checkpoint is None and (options.resume or options.every is not None):
            parser.error(
                f"{'--resume' if options.resume else '--every'} needs a folder: "
                "--checkpoint DIR"
            )
        if options.every is not None and options.every < 1:
            parser.error(f"--every is {options.every}; expected at least 1 step")
        if options.checkpoint is not None and not is_silent:
            check_folder(options.checkpoint, parser)
        if mistake(options):
            parser.error(mistake(options))
        return options


def check_trace(path, parser):
    """Reject a file that cannot be written, before the training starts. Rank 0 checks
    it and writes it later.
    """
    where = f"rank 0 writes it, on {socket.gethostname()}"
    try:
        check_ending(path)
    except ValueError as error:
        parser.error(f"--trace: {error}")
    if not path.parent.is_dir():
        parser.error(
            f"--trace: there is no folder {str(path.parent)!r}; make it first, "
            f"or name another file; {where}"
        )
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        parser.error(
            f"--trace: {str(path)!r} cannot be written; name another file; {where}"
        )


def check_folder(path, parser):
    """Reject a folder for checkpoints that cannot be created or written to, before the
    training starts.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(
            f"--checkpoint: {str(path)!r} cannot be a folder: {error.strerror}; "
            "name another one"
        )
    if not os.access(path, os.W_OK):
        parser.error(
            f"--checkpoint: nothing can be written to {str(path)!r}; name "
            "another folder"
        )


class Checkpoints:
    """The checkpoints of a training program; without --checkpoint it saves none. The
    constructor is collective.

    Attributes
    ----------
    step : int
        The number of steps in the checkpoint from which the program resumed, or 0.
    extra : dict
        The values that the program saved in it besides the pipeline and the optimiser.
    """

    def __init__(self, options, pipeline, optimiser, num_steps, speaks):
        self.step, self.extra, self.best = 0, {}, float("inf")
        self.folder, self.every, self.num_steps = (
            options.checkpoint,
            options.every or num_steps,
            num_steps,
        )
        self.pipeline, self.optimiser = pipeline, optimiser
        self.settings = {
            name: value
            for name, value in vars(options).items()
            if name not in WITHOUT_EFFECT
        }
        if options.resume:
            self.resume(speaks)

    def resume(self, speaks):
        restored = checkpoint.restore(
            self.folder, self.pipeline, self.optimiser, required=False
        )
        say = print if speaks else lambda text: None
        if restored is None:
            say(
                f"There is no checkpoint in {self.folder} yet, so training "
                "starts with the first step.\n"
            )
            return
        self.step, self.extra, self.best = (
            restored.step,
            restored.extra,
            restored.extra["best"],
        )
        say(
            f"Resuming after step {self.step} of {self.num_steps}, from "
            f"{restored.path}.\n"
        )
        for name, before in self.extra["settings"].items():
            if before != self.settings.get(name):
                say(
                    f"--{name.replace('_', '-')} was {before}, and is "
                    f"{self.settings.get(name)} now.\n"
                )

    def is_due(self, step):
        """Return whether to save after this step, counted from 1."""
        return self.folder is not None and (
            step % self.every == 0 or step == self.num_steps
        )

    def save(self, step, **extra):
        """Save a checkpoint, with further values that the program needs to resume.
        Collective.
        """
        extra |= {"settings": self.settings, "best": self.best}
        checkpoint.save(
            self.folder, self.pipeline, self.optimiser, step=step, extra=extra
        )

    def keep_if_best(self, loss):
        """Export the model if this validation loss is the lowest so far. Collective."""
        if self.folder is not None and loss < self.best:
            self.best = loss
            checkpoint.export(self.folder / "best.safetensors", self.pipeline)


def ranks_of(options, group):
    """Return the arguments of a pipeline for its ranks: a group with replicas, or a
    device mesh. Collective.
    """
    if options.tensor == 1 and not options.fully_sharded:
        return {"group": group, "replicas": options.replicas}
    sizes = {"data": options.replicas, "tensor": options.tensor}
    pipeline = max(1, group.size // (options.replicas * options.tensor))
    return {
        "group": Grid(
            group, pipeline=pipeline, **sizes, fully_sharded=options.fully_sharded
        )
    }


def num_microbatches(options, default):
    """Return the number of microbatches of each replica. Their sum does not depend on
    the number of replicas.
    """
    if (
        options.microbatches is None
        and options.schedule.lower() not in schedules.REGISTRY
    ):
        return None
    return (options.microbatches or default) // options.replicas


def predict(pipeline, timeline):
    """Return the predicted timeline of a measured step, from its mean times of actions,
    latency and overhead.
    """
    return simulate(pipeline.schedule, Costs.measured(timeline))


def order_of_step(pipeline, batch):
    """Return the predicted step with one core per rank, or None if each rank already
    has a core. Collective.

    The time of an action is the time for which it had a core, measured in further steps
    of the same batch. Messages and the time between actions are left out: if ranks
    share cores, these are mostly waiting for a core.
    """
    is_crowded = np.array(float(pipeline.group.size > num_cores()))
    if not pipeline.group.all_reduce(is_crowded, "max"):
        return None
    with warnings.catch_warnings():
        # about other programs: they do not change the time on a core
        warnings.simplefilter("ignore")
        costs = pipeline.measure_costs(*batch, num_steps=4)
    if costs.cores is None:
        return None
    alone = replace(
        costs, cores=None, hosts=None, latency=0.0, bandwidth=float("inf"), overhead=0.0
    )
    return replace(
        simulate(pipeline.schedule, alone),
        name=f"{pipeline.schedule.name}, one core per rank",
    )


def report_nothing_left(speaks, noun, loss):
    """Print the result of a program that resumed from the checkpoint of its last
    step.
    """
    if speaks:
        print(f"Nothing is left to train.\n{noun} loss {loss!r}")


def report_last_step(timeline, predicted, order, num_ranks, trace, model):
    """Print the last step of every rank, measured and predicted, and draw both into the
    file ``trace`` if it is set.

    If ranks share cores, most of a measured step is waiting for a core. The function
    then prints and draws ``order`` instead, the step with one core per rank, and writes
    the measured step into a second file. ``model`` is a short description of the model,
    for the files. Return False if a file could not be written.
    """
    comparison, drawn = compare(timeline, predicted), [timeline, predicted]
    printed = comparison
    if order is None:
        print("The last step, measured, and predicted from its mean times:\n")
    else:
        printed, drawn = compare_with_order(order, timeline, num_ranks), [order]
        comparison = [*printed, *comparison]
        print(f"The last step, predicted for {num_ranks} ranks with one core each:\n")
    print(draw_text(*drawn, colour=has_colour()))
    print("", *printed, sep="\n")
    notes = [*comparison, *describe_run(timeline, model)]
    is_written = trace is None or write_trace(trace, drawn, notes)
    if order is not None and trace is not None:
        measured = trace.with_stem(f"{trace.stem}.measured")
        is_written = write_trace(measured, [timeline, predicted], notes) and is_written
    return is_written


def compare_with_order(order, timeline, num_ranks):
    """Return the makespan with one core per rank, and the measured one, as lines of
    text.
    """
    return [
        "predicted with one core per rank: makespan at least "
        f"{1000 * order.makespan:.2f} ms, "
        f"bubble {100 * order.bubble_fraction:.1f} %",
        (
            "  (from the time for which each action had a core, without messages and "
            "the time between actions)"
        ),
        f"On this machine {counted(num_ranks, 'rank')} share "
        f"{counted(num_cores(), 'core')}, so the step took "
        f"{1000 * timeline.makespan:.2f} ms: the rest is waiting for a core and "
        "time between actions.",
    ]


def compare(timeline, predicted):
    """Return makespan and bubble, measured and predicted, as lines of text."""
    deviation = predicted.makespan / timeline.makespan - 1
    return [
        f"makespan: measured {1000 * timeline.makespan:.2f} ms, predicted "
        f"{1000 * predicted.makespan:.2f} ms "
        f"({100 * deviation:+.1f} %)",
        (
            f"bubble: measured {100 * timeline.bubble_fraction:.1f} %, predicted "
            f"{100 * predicted.bubble_fraction:.1f} %"
        ),
    ]


def describe_run(timeline, model):
    """Return the model, the machine and the date of a run as lines of text."""
    microbatches = {span.action.microbatch for row in timeline.spans for span in row}
    ranks = counted(timeline.num_ranks, "rank")
    return [
        f"model: {model}; {ranks}, {counted(len(microbatches), 'microbatch')}",
        f"machine: {processor()}, {counted(num_cores(), 'core')}, {platform.system()}, "
        f"Python {platform.python_version()}, NumPy {np.__version__}",
        f"date: {datetime.now().astimezone():%Y-%m-%d %H:%M %z}",
    ]


def processor():
    """Return the name of the processor. On Linux, ``platform`` knows only the
    architecture; a file has the name.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [
        line.partition(":")[2].strip()
        for line in lines
        if line.startswith("model name")
    ]
    return names[0] if names else platform.processor() or platform.machine()


def num_cores():
    """Return the number of cores that this process may use."""
    return (
        len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count()
    )


def write_trace(path, timelines, notes):
    """Draw timelines into a file of this host. An error is printed, so that the results
    of the training are kept.
    """
    host = socket.gethostname()
    try:
        print(f"wrote {save(path, *timelines, notes=notes)} on {host}")
        return True
    except FileError as error:  # for example a full disk: then no file remains, rather than half a file
        print(f"--trace: on {host}, {error}", file=sys.stderr)
        return False


def print_json(times, timeline, predicted, num_ranks, **results):
    """Print the results as one line of JSON."""
    results |= {
        "step_ms": 1000 * median(times),
        "bubble_fraction": timeline.bubble_fraction,
        "predicted_bubble_fraction": predicted.bubble_fraction,
        "makespan_ms": 1000 * timeline.makespan,
        "predicted_makespan_ms": 1000 * predicted.makespan,
        "schedule": timeline.name,
        "ranks": num_ranks,
    }
    print(json.dumps(results), flush=True)
