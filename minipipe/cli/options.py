"""The options that verbs share, and the schedules, sizes and costs that they name."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from minipipe.cli.declaring import NUM_RANKS, Parser, adder
from minipipe.cli.numbers import real
from minipipe.cli.output import help_text
from minipipe.core.schedules.action_table import ActionTable, Program, Schedule, T
from minipipe.core.specs import SCHEDULE_COUNT
from minipipe.errors import Code, ScheduleError, misuse, quoted
from minipipe.io import columns_of_terminal, parse_integer, read_stream
from minipipe.schedules.reading import read_schedule, schedule_of_text
from minipipe.schedules.registry import (
    NUM_MICROBATCHES,
    REGISTRY,
    TRADES,
    build,
    check_sizes_of,
    expected_names,
    spelled,
)
from minipipe.schedules.transforms import freeze_stages, offloaded, recomputed, repeat

if TYPE_CHECKING:
    from minipipe.schedules.analysis.activations import Footprint
    from minipipe.schedules.simulation.costs import Costs


_MOST_OF_A_FLOAT = 10**308  # a larger limit has no effect


_OF_NAMES = ("--group", "--per-update", "--joined", "--slices")  # not of a table


def add_schedule(
    parser: argparse.ArgumentParser, several: bool = False, is_optional: bool = False
) -> None:
    """Declare the schedule of a command, or several of them, with sizes and costs."""
    form: dict[str, Any] = {}
    if several or is_optional:
        form["nargs"] = "+" if several else "?"
    schedule = adder(parser, "show" if several else "")("schedule", **form)
    schedule.completer = lambda **_: TRADES  # type: ignore[attr-defined]  # at a Tab; the shell knows the files
    group = parser.add_argument_group("schedule")
    add = adder(group)
    add("--chunks", spec=SCHEDULE_COUNT)
    add("--group", spec=SCHEDULE_COUNT)
    add("--per-update", spec=SCHEDULE_COUNT)
    add("--joined", default=None)
    add("--recompute")
    add("--offload", spec=SCHEDULE_COUNT)
    add("--replicas", spec=SCHEDULE_COUNT)
    add("--slices", spec=SCHEDULE_COUNT)
    add("--freeze", type=whole_numbers, default=[])
    add("--steps", spec=SCHEDULE_COUNT, default=1)
    add("--rows")
    add("--ignore-sharding")
    add_sizes(group)
    add_costs(parser)


def add_sizes(parser: Parser) -> None:
    """Declare the sizes of named schedules."""
    add = adder(parser)
    add("--ranks", spec=SCHEDULE_COUNT, usual=NUM_RANKS)
    add("--microbatches", spec=SCHEDULE_COUNT, usual=NUM_MICROBATCHES)


def add_costs(parser: argparse.ArgumentParser) -> None:
    """Declare the costs by which schedules are timed."""
    add = adder(parser.add_argument_group("costs", help_text("costs")))
    add("--costs", default="")
    add("--sends-block")


def text_width(options: argparse.Namespace) -> int:
    """Return the columns of a drawing as text, by default the width of the terminal."""
    if options.width is None:
        return max(40, columns_of_terminal(80))
    return options.width


def amount(text: str) -> float:
    """Parse a number, as an int if possible."""
    try:
        number = parse_integer(text)
    except ValueError:
        return real(text)
    return inf if number > _MOST_OF_A_FLOAT else number


def whole_numbers(text: str) -> list[int]:
    """Parse a list of whole numbers.

    Examples
    --------
    >>> whole_numbers("2,4,8")
    [2, 4, 8]
    """
    try:
        return [parse_integer(number) for number in text.split(",")]
    except ValueError:
        problem = f"{quoted(text)} is not a list of whole numbers"
        message = f"{problem}; expected a list such as 4 or 2,4,8"
        raise argparse.ArgumentTypeError(message) from None


def schedule_of(name: str, options: argparse.Namespace) -> Schedule | Program:
    """Return the schedule of a name or a file, with the options applied: frozen stages,
    less memory, replicas.

    Raises
    ------
    ScheduleError
        Codes ``name``, ``value``, ``unreadable`` and ``syntax``.
    """
    schedule = _one_step(name, options)
    with _about("--freeze"):
        schedule = freeze_stages(schedule, options.freeze)
    transforms: dict[str, Callable[..., Schedule]] = {}
    if options.recompute:
        transforms["--recompute"] = recomputed
    if options.offload is not None:
        transforms["--offload"] = partial(offloaded, num_held=options.offload)
    if options.replicas is not None:
        transforms["--replicas"] = partial(_copies, replicas=options.replicas)
    for option, transform in transforms.items():
        if isinstance(schedule, Program):
            problem = f"{option} needs a schedule without messages"
            raise misuse(f"{problem}; remove SEND and RECV from {name}.")
        with _about(option):
            schedule = transform(schedule)
    if getattr(options, "rows", False):
        return _framed(schedule, options)
    return schedule


@contextmanager
def _about(option: str) -> Iterator[None]:
    """Name the option in an error about its effect."""
    try:
        yield
    except ScheduleError as error:
        raise misuse(f"{option}: {error.problems[0].message}") from None


def _framed(schedule: Schedule | Program, options: argparse.Namespace) -> Program:
    from minipipe.core.schedules.analysis.lowering import lower
    from minipipe.passes.framing import frame  # on demand, as lower and replicas

    if options.steps > 1:
        problem = f"--rows are of one step, and --steps is {options.steps}"
        raise misuse(f"{problem}; leave one of them out.")
    if schedule.rank_kinds:
        problem = f"{schedule.title} has the instructions of --rows already"
        raise misuse(f"{problem}; leave --rows out.")
    has_replicas = schedule.has_replicas and not schedule.is_forward_only
    if isinstance(schedule, Schedule) and has_replicas:
        # The replicas of a bidirectional schedule also need gradient all-reduces.
        schedule = _copies(schedule, 1)
    return frame(lower(schedule))


def _copies(schedule: Schedule, replicas: int) -> Schedule:
    # On demand: most commands have no replicas.
    from minipipe.schedules.analysis.data_parallel import data_parallel

    return data_parallel(schedule, replicas)


def schedule_and_costs(
    options: argparse.Namespace,
) -> tuple[Schedule | Program, Schedule | Program, Costs]:
    """Return the schedule of a command for one step, the schedule for all steps, and
    the costs; raise their errors.
    """
    one_step = schedule_of(options.schedule, options)
    return one_step, all_steps(one_step, options), costs_of(options)


def all_steps(schedule: T, options: argparse.Namespace) -> T:
    """Return a schedule repeated for ``--steps``; raise code ``value`` if that is
    impossible.
    """
    if options.steps == 1 and getattr(options, "wait", False):
        raise misuse("--wait applies between training steps; add --steps 2 or more.")
    with _about("--steps"):
        return repeat(schedule, options.steps)


def _one_step(name: str, options: argparse.Namespace) -> Schedule | Program:
    if spelled(name) in REGISTRY:
        overlap = options.joined or None
        return build(
            name,
            *sizes_of(options),
            options.chunks,
            options.group,
            options.per_update,
            overlap,
            options.slices,
        )
    schedule = _table_of(name, options.ignore_sharding)
    for option in _OF_NAMES:
        if getattr(options, option[2:].replace("-", "_")) not in (None, False):
            problem = f"{option} applies to named schedules only"
            raise misuse(f"{problem}, and {name} is a file; leave it out.")
    microbatches = schedule.num_microbatches / schedule.num_slices
    chunks = schedule.num_stages / schedule.num_ranks
    check_sizes_of(
        name,
        ("--ranks", options.ranks, schedule.num_ranks),
        ("--microbatches", options.microbatches, microbatches),
        ("--chunks", options.chunks, chunks),
    )
    return schedule


def _table_of(path: str, ignore_sharding: bool) -> Schedule | Program:
    """Return the schedule of a file, or of the standard input."""
    if path == "-":
        text = read_stream(sys.stdin, "stdin")
        return schedule_of_text(text, "stdin", ignore_sharding)
    if os.path.exists(path) and not os.path.isdir(path):
        return read_schedule(path, ignore_sharding)
    what = "neither a schedule nor a"
    expected = expected_names(path)
    if path.lower().endswith((".csv", ".txt")):
        what = "no"
        expected = "expected a file, or a name from `minipipe schedules`"
    message = f"There is {what} file {quoted(path, 120)}; {expected}."
    raise misuse(message, Code.NAME)


def schedules_of(
    names: Sequence[str], options: argparse.Namespace
) -> list[Schedule | Program]:
    """Return several schedules; without size options, named ones have the sizes of the
    first file.
    """
    files = [name for name in names if spelled(name) not in REGISTRY]
    schedules = {name: schedule_of(name, options) for name in files}
    for schedule in list(schedules.values())[:1]:
        copies = options.replicas or 1
        if options.ranks is None:
            options.ranks = schedule.num_ranks // copies
        if options.microbatches is None:
            sliced = schedule.num_microbatches
            options.microbatches = sliced // schedule.num_slices // copies
    for name in names:
        if name not in schedules:
            schedules[name] = schedule_of(name, options)
    return [schedules[name] for name in names]


def sizes_of(options: argparse.Namespace) -> tuple[int, int]:
    """Return the numbers of ranks and microbatches."""
    sizes = {"ranks": NUM_RANKS, "microbatches": NUM_MICROBATCHES}
    for name in sizes:
        if getattr(options, name) is not None:
            sizes[name] = getattr(options, name)
    return sizes["ranks"], sizes["microbatches"]


def costs_of(options: argparse.Namespace) -> Costs:
    """Return the costs."""
    return read_costs(options.costs, options.sends_block)


def read_costs(text: str, sends_block: bool) -> Costs:
    """Return costs from text, or of a file; sends block if either says so."""
    from dataclasses import replace

    from minipipe.schedules.simulation.costs import Costs

    if text.lower().endswith(".json"):
        costs = Costs.load(text)
    else:
        costs = Costs.parse(text)
    return replace(costs, sends_block=sends_block or costs.sends_block)


def memory_of(costs: Costs, schedule: ActionTable) -> Footprint | None:
    """Return the memory of a microbatch, if the costs have it; otherwise None, and a
    memory limit counts pairs.
    """
    of_activations = (costs.activation, costs.weight_activation)
    others = (costs.transient_activation, costs.weights, costs.keys_values)
    if (*of_activations, *others) == (1.0, None, 0.0, 0.0, 0.0):
        return None
    return costs.sliced(schedule.num_slices).memory(schedule.num_stages)
