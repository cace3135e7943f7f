"""``minipipe paper``: published training times on thousands of GPUs, and the times that
a model predicts.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import inf, nan
from statistics import mean, median
from string import Template
from typing import Any, TypeVar

from minipipe.cli.declaring import adder, file_path
from minipipe.cli.output import ExitStatus, answer, help_text, wrote
from minipipe.cli.progress import Progress
from minipipe.core.specs import Spec
from minipipe.errors import ArgumentError, ScheduleError, counted, misuse, quoted
from minipipe.io import parse_real, printable, read_text, text_table
from minipipe.schedules.simulation.paper_scale import (
    A100,
    SOURCES,
    TABLES,
    TERMS,
    Hardware,
    Link,
    Run,
    costs_of,
    predict,
    published_runs,
    read_runs,
)
from minipipe.schedules.simulation.vocabulary_scale import (
    NUM_MICROBATCHES,
    VocabularyRun,
    vocabulary_runs,
)

_VOCABULARY = "vocabulary"  # a table of another form
_COLUMNS = (Run._fields[:8], Run._fields[8:])
EPILOG = Template(help_text("paper")).substitute(
    terms="\n".join(f"  {name:14}{words}" for name, words in TERMS.items()),
    rates="\n".join(f"  {rate:36}{source}" for rate, source in SOURCES.items()),
    columns=",\n".join(f"  {','.join(names)}" for names in _COLUMNS),
)

_HEAD = "model GPUs t p d m v recompute seconds paper TF/s paper error"
# The sizes of a run, by their names in the data; one attribute has another name.
_SIZES = (
    *("model", "gpus", "tensor", "pipeline", "replicas"),
    *("num_microbatches", "chunks_per_rank", "recompute"),
)
_FIELDS = {"chunks_per_rank": "chunks"}
_VOCABULARY_HEAD = "p hidden layers s V MFU ratio predicted error"
_R = TypeVar("_R")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = adder(parser, "paper")
    add("table", usual=", ".join(_tables()))
    add("--without", action="append", default=[])
    add("--model")
    add("--rates", usual=", ".join(_rates_of(A100)))
    add("-o", "--output", type=file_path)


def _tables() -> tuple[str, ...]:
    """Return the names of all published tables."""
    return (*TABLES, _VOCABULARY)


def run(options: argparse.Namespace) -> ExitStatus:
    """Print a table with the published and the predicted time of each row."""
    if options.table == _VOCABULARY:
        return _print_vocabulary(options)
    for term in options.without:
        Spec(str, choices=tuple(TERMS), error=ScheduleError.of).check("--without", term)
    runs = _runs(options.table, options.model)
    hardware = _hardware(options.rates)
    if options.output is not None:
        path = costs_of(runs[0], hardware, options.without).save(options.output)
        return wrote(path, options, f": {_sizes(runs[0])}")
    if hardware != A100:
        runs = [run._replace(published="") for run in runs]  # those times are an A100's
    rows: list[dict[str, Any]] = []
    with Progress("predicting training times", is_long=False) as progress:
        progress.watch(lambda: f"{len(rows)} of {counted(len(runs), 'row')}")
        for run in runs:
            rows.append(_row(run, predict(run, hardware, options.without)))
    text = f"{_table(rows)}\n"
    summary = _summary(rows)
    if summary:
        figures = [f"{name} {100 * error:.1f} %" for name, error in summary.items()]
        error = "error"
        if options.without:
            error += f" without {', '.join(options.without)}"
        text += f"\n{error}: {', '.join(figures)}\n"
    if hardware == A100:
        text += f"\n{help_text('table_of_paper')}"
    data = {"rows": rows, "error": summary, "without": options.without}
    return answer(options, {**data, "rates": _rates_of(hardware)}, text)


def _summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the errors of all rows with a published time in three figures."""
    errors = [abs(row["error"]) for row in rows if row["error"] is not None]
    if not errors:
        return {}
    return {"mean": mean(errors), "median": median(errors), "largest": max(errors)}


def _runs(table: str, model: str | None) -> list[Run]:
    """Return the rows of a table with a model, or all."""
    runs = _all_runs(table)
    return _with_model(table, {run: run.model for run in runs}, model)


def _with_model(table: str, models: Mapping[_R, str], model: str | None) -> list[_R]:
    """Return the rows of a table with a model, or all."""
    chosen = [run for run, name in models.items() if model in (None, name)]
    if not chosen:
        known = ", ".join(dict.fromkeys(models.values()))
        problem = f"No row of {quoted(table)} has the model {quoted(model)}"
        raise misuse(f"{problem}; it has {known}.")
    return chosen


def _all_runs(table: str) -> list[Run]:
    """Return the rows of a published table, or of a file."""
    if table in TABLES:
        return published_runs(table)
    if not table.lower().endswith(".csv"):
        reason = f"There is no table {quoted(table)}; expected {', '.join(_tables())}"
        raise misuse(f"{reason}, or a file that ends in .csv.")
    try:
        return read_runs(read_text(table))
    except ArgumentError as error:
        raise misuse(f"{quoted(table, 200)}: {error.message}") from None


def _rates_of(hardware: Hardware) -> dict[str, float]:
    """Return the rates by their names in the option --rates."""
    rates = {"products": hardware.products, "memory": hardware.memory}
    for name, link in ("node", hardware.node), ("network", hardware.network):
        for rate, value in link._asdict().items():
            rates[f"{name}-{rate}"] = value
    return rates


def _hardware(text: str | None) -> Hardware:
    """Return the rates of an A100, except the rates in the option."""
    if not text:
        return A100
    rates = _rates_of(A100)
    seen = set[str]()
    for part in text.split(","):
        name, _, number = part.partition("=")
        if name in seen:
            raise misuse(f"--rates has {quoted(name)} twice; pass it once.")
        seen.add(name)
        try:
            rate = parse_real(number)
        except ArgumentError:
            rate = nan
        is_positive = rate > 0 or (rate == 0 and name.endswith("latency"))
        if name not in rates or not (is_positive and rate < inf):
            names = f"any of {', '.join(rates)}"
            expected = f"a number above 0 for {names}, such as products=6e14"
            raise misuse(f"--rates has {quoted(part)}; expected {expected}.")
        rates[name] = rate
    products, memory, *links = rates.values()
    return Hardware(products, memory, Link(*links[:2]), Link(*links[2:]))


def _row(run: Run, seconds: float) -> dict[str, Any]:
    """Return the results of one run as data; times in seconds, rates in operations per
    second and GPU.
    """
    published = run.seconds()
    rate = run.operations / run.gpus
    published_rate = error = None
    if published is not None:
        published_rate = rate / published
        error = seconds / published - 1
    return {
        **{name: getattr(run, _FIELDS.get(name, name)) for name in _SIZES},
        "published_seconds": published,
        "seconds": seconds,
        "published_rate": published_rate,
        "rate": rate / seconds,
        "error": error,
    }


def _table(rows: Sequence[dict[str, Any]]) -> str:
    cells = [_HEAD.split()]
    for row in rows:
        figures = (
            _or_dash(row["seconds"], "{:.2f}"),
            _or_dash(row["published_seconds"], "{:.2f}"),
            f"{row['rate'] / 1e12:.1f}",
            _or_dash(row["published_rate"], "{:.1f}", 1e-12),
            _or_dash(row["error"], "{:+.1f} %", 100),
        )
        cells.append([*(printable(str(row[name])) for name in _SIZES), *figures])
    return text_table(cells, right=range(1, 13))


def _or_dash(number: float | None, form: str, factor: float = 1) -> str:
    if number is None:
        return "-"
    return form.format(factor * number)


def _sizes(run: Run) -> str:
    sizes = {
        "rank": run.pipeline,
        "microbatch": run.num_microbatches,
        "stage": run.pipeline * run.chunks,
    }
    return ", ".join(counted(size, noun) for noun, size in sizes.items())


# -- the table of vocabularies ---------------------------------------------------------


def _print_vocabulary(options: argparse.Namespace) -> ExitStatus:
    """Print the published and the predicted loss of efficiency of each row."""
    if options.without or options.rates:
        name = "--rates"
        if options.without:
            name = "--without"
        raise misuse(
            f"{name} does not apply to {_VOCABULARY}, which is predicted from numbers "
            "of operations alone; leave it out."
        )
    models = {run: run.name for run in vocabulary_runs()}
    runs = _with_model(_VOCABULARY, models, options.model)
    if options.output is not None:
        path = runs[0].costs().save(options.output)
        ranks = counted(runs[0].ranks, "rank")
        sizes = f"{ranks}, {counted(NUM_MICROBATCHES, 'microbatch')}"
        return wrote(path, options, f": {sizes}, V={runs[0].vocabulary}")
    rows = _vocabulary_rows(runs)
    summary = _summary(rows)
    cells = [_VOCABULARY_HEAD.split()]
    for row in rows:
        ratios = (
            f"{row['ratio']:.3f}",
            f"{row['predicted_ratio']:.3f}",
            _or_dash(row["error"], "{:+.1f} %", 100),
        )
        *shape, published = [row[name] for name in VocabularyRun.__dataclass_fields__]
        cells.append([*map(str, shape), f"{published:.2f} %", *ratios])
    figures = [f"{name} {100 * error:.1f} %" for name, error in summary.items()]
    text = f"{text_table(cells, right=range(9))}\n\nerror of "
    text += f"{sum(row['error'] is not None for row in rows)} ratios: "
    text += f"{', '.join(figures)}\n\n{help_text('table_of_vocabulary')}"
    return answer(options, {"rows": rows, "error": summary}, text)


def _vocabulary_rows(runs: Sequence[VocabularyRun]) -> list[dict[str, Any]]:
    """Return the results as data: each vocabulary beside the smallest one above it."""
    rows = []
    base = runs[0]
    for run in runs:
        error = None
        if run.vocabulary <= base.vocabulary:
            base = run
        ratio = run.published / base.published
        predicted = run.efficiency / base.efficiency
        if run is not base:
            error = predicted / ratio - 1
        figures = {"ratio": ratio, "predicted_ratio": predicted, "error": error}
        rows.append({**asdict(run), **figures})
    return rows
