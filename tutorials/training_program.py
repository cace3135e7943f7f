"""What the training programs share: the options, read by many ranks of which one speaks, and the report at the end."""

import argparse
import contextlib
import json
import os
import sys
from pathlib import Path
from statistics import median

from minipipe import Costs, schedules, simulate
from minipipe.render import check_ending, draw_text, has_colour, save


def make_parser(description, microbatches, batch_size, learning_rate, layers, layers_help):
    """Return a parser with the options of every training program."""
    parser = argparse.ArgumentParser(description=description)
    add = parser.add_argument
    names = ", ".join(schedules.REGISTRY)
    add("--schedule", default="1f1b", metavar="NAME|FILE.csv", help=f"{names}, or a file (default: 1f1b)")
    add("--microbatches", type=int, metavar="N", help=f"of each batch (default: {microbatches}, or the file's)")
    add("--batch-size", type=int, default=batch_size, metavar="N", help="at most (default: %(default)s)")
    add("--learning-rate", type=float, default=learning_rate, metavar="X", help="falls to 0 (default: %(default)s)")
    add("--seed", type=int, default=0, metavar="N", help="of first values and order (default: %(default)s)")
    add("--layers", type=int, default=layers, metavar="N", help=f"{layers_help} (default: %(default)s)")
    add("--device", default="cpu", choices=["cpu", "gpu"], help="gpu needs CuPy (default: %(default)s)")
    add("--trace", type=Path, metavar="FILE", help="draw the last step, measured and predicted: .svg .html .json .txt")
    add("--json", action="store_true", help="print one line of JSON last")
    return parser


def read_options(parser, at_least_one, is_silent, mistake=lambda options: None):
    """Read the command line and check it. Every rank does, but only one may speak.

    ``mistake`` tells, in a sentence, what else is wrong with the options.
    """
    with contextlib.ExitStack() as stack:
        if is_silent:
            nowhere = stack.enter_context(open(os.devnull, "w"))
            stack.enter_context(contextlib.redirect_stdout(nowhere))
            stack.enter_context(contextlib.redirect_stderr(nowhere))
        options = parser.parse_args()
        for name in ("batch_size", "layers", *at_least_one):
            if getattr(options, name) < 1:
                parser.error(f"--{name.replace('_', '-')} is {getattr(options, name)}; expected at least 1")
        if not 0 < options.learning_rate < float("inf"):
            parser.error(f"--learning-rate is {options.learning_rate}; expected a finite number, more than 0")
        if options.seed < 0:
            parser.error(f"--seed is {options.seed}; expected at least 0")
        if options.trace is not None:
            check_trace(options.trace, parser)
        if mistake(options):
            parser.error(mistake(options))
        return options


def check_trace(path, parser):
    """Refuse before the training, not after it, a file that cannot be written."""
    try:
        check_ending(path)
    except ValueError as error:
        parser.error(f"--trace: {error}")
    if not path.parent.is_dir():
        parser.error(f"--trace: there is no folder {str(path.parent)!r}; make it first, or name another file")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        parser.error(f"--trace: {str(path)!r} cannot be written; name another file")


def num_microbatches(options, default):
    """Return how many: the same for any number of ranks, as gradients of equal microbatches have equal bits."""
    if options.microbatches is None and options.schedule in schedules.REGISTRY:
        return default
    return options.microbatches


def predict(pipeline, timeline):
    """Return the timeline that a step's own costs predict: mean times of actions, latency and overhead as fitted."""
    return simulate(pipeline.schedule, Costs.measured(timeline))


def report_last_step(timeline, predicted, num_ranks, trace):
    """Print what every rank did in the last step, and what was predicted; draw both into a file, if one is given."""
    print("The last step, as measured, and as predicted from its own mean times:\n")
    print(draw_text(timeline, predicted, colour=has_colour()))
    difference = predicted.makespan / timeline.makespan - 1
    print(
        f"\nmakespan: measured {1000 * timeline.makespan:.2f} ms, predicted {1000 * predicted.makespan:.2f} ms "
        f"({100 * difference:+.1f} %)\n"
        f"bubble: measured {100 * timeline.bubble_fraction:.1f} %, predicted {100 * predicted.bubble_fraction:.1f} %"
    )
    if trace is not None:
        write_trace(trace, timeline, predicted)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if num_ranks > cores:
        print(f"{num_ranks} ranks share {cores} cores: much of the measured bubble is waiting for a core.")


def write_trace(path, timeline, predicted):
    """Draw both into a file; if it cannot be written after all, what was learnt is not lost."""
    try:
        print(f"wrote {save(path, timeline, predicted)}")
    except OSError as error:
        print(f"--trace: {str(path)!r} cannot be written: {error.strerror}", file=sys.stderr)


def print_json(times, timeline, predicted, num_ranks, **results):
    """Print one line for machines."""
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
