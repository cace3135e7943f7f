"""``minipipe check``: check that a schedule or a layout of layers is legal, or that the
certificate of a search is true.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from minipipe.cli.declaring import adder
from minipipe.cli.options import (
    add_schedule,
    amount,
    memory_of,
    schedule_and_costs,
    schedule_of,
)
from minipipe.cli.output import ExitStatus, answer, as_json, fields, figures
from minipipe.core.flow import flow_of
from minipipe.core.schedules.action import U
from minipipe.core.schedules.action_table import ActionTable, describe_sizes
from minipipe.core.specs import SCHEDULE_COUNT, Spec
from minipipe.errors import (
    ArgumentError,
    Code,
    FileError,
    ScheduleError,
    counted,
    misuse,
    quoted,
)
from minipipe.io import MOST_JSON, read_text
from minipipe.schedules import Certificate, drift, simulate, staleness, verify
from minipipe.schedules.analysis.copies import copies_held
from minipipe.schedules.analysis.workload import ROUNDING
from minipipe.schedules.registry import check_sizes_of
from minipipe.schedules.simulation.evaluation import Claim, Finding, check_claim
from minipipe.schedules.simulation.timeline import by_rank
from minipipe.search.certificate import changed, read_certificate

if TYPE_CHECKING:
    from minipipe.schedules.layouts import Layout

ANSWER = "legal"

_PROVE = Spec(
    float, above=0, expected="a number of seconds above 0", error=ScheduleError.of
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_schedule(parser, is_optional=True)
    add = adder(parser, "check")
    add("--memory-limit", type=amount)
    add("--max-versions", spec=SCHEDULE_COUNT)
    add("--max-staleness", spec=SCHEDULE_COUNT._replace(minimum=0))
    add("--layout")
    add("--certificate")
    add("--prove", spec=_PROVE)


def run(options: argparse.Namespace) -> ExitStatus:
    """Print one line of figures for a legal schedule, and the forms of a legal layout;
    illegal ones raise.
    """
    subjects = (options.schedule or options.layout, options.certificate)
    if subjects.count(None) != 1:
        forms = "a schedule (NAME or FILE), --layout TEXT, or both"
        raise misuse(f"Expected either {forms}; or --certificate FILE.")
    if options.prove is not None and options.certificate is None:
        raise misuse("--prove needs --certificate FILE.")
    if options.certificate is not None:
        return _check_certificate(options)
    layout: dict[str, Any] = {}
    if options.layout is not None:
        layout = _check_layout(options)
    if options.schedule is None:
        text = f"legal: {_about_the_layout(layout)}"
        return answer(options, {ANSWER: True, **layout}, text)
    return _check_schedule(options, layout)


def _check_schedule(options: argparse.Namespace, layout: dict[str, Any]) -> ExitStatus:
    one_step, schedule, costs = schedule_and_costs(options)
    n = schedule.num_stages
    memory = memory_of(costs, schedule)
    weights = costs.weight_memory(n)
    keys_values = costs.sliced(schedule.num_slices).by_stage("keys_values", n)
    limits = fields(options, "memory_limit", "max_versions", "max_staleness")
    of_stages: dict[str, Any] = {"weights": weights, "keys_values": keys_values}
    verify(schedule, memory=memory, **of_stages, **limits)
    timeline = simulate(one_step, costs, options.steps)
    remark = ""
    if schedule.is_forward_only:
        remark = "; forward only, so it does not train"
    elif not schedule.is_reproducible:
        remark = "; it accumulates gradients in another order than one process"
    data = {ANSWER: True, **figures(schedule, timeline)}
    if U in schedule.kinds:
        ages = _ages(schedule)
        data |= ages
        by_ranks = by_rank(ages["versions"])
        change = f"drift {ages['drift']}"
        versions = f"versions of weights by rank {by_ranks} (without copies: {change})"
        remark += f"; {versions}; staleness {ages['staleness']}"
    text = f"legal: {schedule.describe(', ')}; {timeline.describe()}{remark}"
    if layout:
        data["layout"] = layout
        text += f"\n{_about_the_layout(layout)}"
    return answer(options, data, text)


def _ages(schedule: ActionTable) -> dict[str, Any]:
    """Return the most versions of a stage's weights on each rank, and the largest drift
    and staleness.
    """
    rows = (copies_held(flow_of(schedule), rank) for rank in range(schedule.num_ranks))
    versions = [max((held.versions for held, _ in row), default=1) for row in rows]
    ages = {"drift": drift(schedule), "staleness": staleness(schedule)}
    largest = {name: max(map(max, of_ranks)) for name, of_ranks in ages.items()}
    return {"versions": versions, **largest}


# -- layouts ---------------------------------------------------------------------------


def _check_layout(options: argparse.Namespace) -> dict[str, Any]:
    """Check a layout for its ranks, or for the schedule; return it in all forms.

    Raises
    ------
    ScheduleError
        The codes of :class:`~minipipe.schedules.layouts.Layout`; ``placement``, if the
        schedule has other stages, or Megatron places them elsewhere.
    """
    from minipipe.schedules.layouts import Layout  # on demand: most checks have none

    layout = Layout.parse(options.layout)
    n = len(layout.stages)
    num_ranks = n if options.ranks is None else options.ranks
    if options.schedule is not None:
        schedule = schedule_of(options.schedule, options)
        num_ranks = schedule.num_ranks
        layout.check(num_ranks)
        expected: Any = (n, schedule.placement)
        if "E" in options.layout:
            expected = (n, layout.placement(num_ranks))
        if (schedule.num_stages, schedule.placement) != expected:
            has = f"{counted(schedule.num_stages, 'stage')} on ranks"
            problem = f"{schedule.title} has {has} {quoted(schedule.placement)}"
            loop = "Megatron runs stage s of a layout on rank s modulo the ranks"
            message = f"{problem}; the layout has {counted(n, 'stage')}, and {loop}"
            remedy = "expected 1f1b, interleaved-1f1b, or a layout for these stages"
            raise ScheduleError.of(Code.PLACEMENT, f"{message}: {remedy}.")
    layout.check(num_ranks)
    check_sizes_of("the layout", ("--chunks", options.chunks, n / num_ranks))
    about: dict[str, Any] = {"num_ranks": num_ranks, "stages": layout.stages}
    about["megatron"] = layout.to_megatron()
    exports = {"partition": _sizes_in, "torchtitan": Layout.to_torchtitan}
    for name, export in exports.items():
        try:
            about[name] = export(layout)
        except ScheduleError as error:
            about |= {name: None, f"no_{name}": error.problems[0].message}
    return about


def _sizes_in(layout: Layout) -> list[int]:
    return list(map(len, layout.partition))


def _about_the_layout(about: dict[str, Any]) -> str:
    stages = about["stages"]
    num_ranks = about["num_ranks"]
    sizes = f"{counted(num_ranks, 'rank')}, {counted(len(stages), 'stage')}"
    lines = [f"layout for {sizes}"]
    for rank in range(num_ranks):
        lines.append(f"rank {rank}: {' | '.join(stages[rank::num_ranks])}")
    lines.append(f"megatron: {about['megatron']}")
    for name in ("partition", "torchtitan"):
        value = about[name]
        form = "none. " + about.get(f"no_{name}", "")
        if value is not None:
            form = as_json(value)
        lines.append(f"{name}: {form}")
    return "\n".join(lines)


# -- certificates ----------------------------------------------------------------------


def _check_certificate(options: argparse.Namespace) -> ExitStatus:
    """Check a certificate with code that the search does not use; with ``--prove``,
    also prove its bound again.

    Raises
    ------
    ScheduleError
        Code ``unreadable``; the codes of
        :func:`~minipipe.search.certificate.read_certificate` and of
        :func:`~minipipe.schedules.simulation.evaluation.check_claim`; ``mismatch``, if
        the proof finds a better schedule.
    """
    seconds: float | None = options.prove
    try:
        text = read_text(options.certificate, MOST_JSON)
        certificate, is_unchanged = read_certificate(text)
    except FileError as error:
        raise ScheduleError.of(Code.UNREADABLE, f"The certificate {error}") from None
    claim = Claim(**fields(certificate, *Claim._fields))
    finding = check_claim(certificate.schedule, certificate.workload, claim)
    if not is_unchanged:
        raise changed()
    proof = None
    reason = finding.formula.reason
    if seconds is not None and not finding.is_proved:
        proof = _proof(certificate, seconds)
        reason = ""
    facts = _facts(certificate, finding, proof)
    is_proved = claim.bound <= facts.bound * (1 + ROUNDING)
    data = fields(facts, "objective", "value", "bound", "bound_by", "gap")
    claimed = {"claimed_bound": claim.bound, "claimed_by": claim.bound_by}
    data = {ANSWER: True, **data, **claimed, "is_proved_here": is_proved}
    bound = _about_the_bound(facts, reason, claim, is_proved)
    status = ExitStatus(seconds is not None and not is_proved)
    return answer(options, data, f"{bound}\n{_about_the_schedule(facts)}", status)


def _facts(
    certificate: Certificate, finding: Finding, proof: Certificate | None
) -> Certificate:
    """Return a certificate with the value simulated here and the largest bound proved
    here.
    """
    bound = min(finding.formula.value, finding.value)
    bound_by = finding.formula.name
    if proof is not None and proof.bound > bound:
        bound = proof.bound
        bound_by = proof.bound_by
    return certificate._replace(value=finding.value, bound=bound, bound_by=bound_by)


def _proof(certificate: Certificate, seconds: float) -> Certificate:
    """Search again: with CP-SAT, or without OR-tools by branch and bound."""
    from minipipe.search.brute_force import solve_by_branch_and_bound
    from minipipe.search.exact import solve

    workload = certificate.workload
    objective = certificate.objective
    try:
        proof = solve(workload, objective, seconds, certificate.schedule)
    except ArgumentError:
        proof = solve_by_branch_and_bound(workload, objective, seconds)
    if proof.value < certificate.bound * (1 - ROUNDING):
        claim = f"no schedule is below {certificate.bound:.12g}"
        message = f"The certificate says that {claim}; {proof.found_by} found"
        raise ScheduleError.of(Code.MISMATCH, f"{message} one with {proof.value:.12g}.")
    return proof


def _about_the_bound(
    facts: Certificate, reason: str, claim: Claim, is_proved: bool
) -> str:
    proved = f"bound {facts.bound:.12g}: proved here by {facts.bound_by}. {reason}"
    proved = proved.rstrip()
    if is_proved:
        return proved
    claimed = f"claimed by {quoted(claim.bound_by)}, not proved here"
    if reason:
        claimed += "; --prove SECONDS searches for a proof"
    return f"{proved}\nbound {claim.bound:.12g}: {claimed}"


def _about_the_schedule(facts: Certificate) -> str:
    gap = "which is optimal"
    if facts.gap:
        gap = f"at most {100 * facts.gap:.2g} % above the best possible"
    table = facts.schedule
    sizes = describe_sizes(table.num_ranks, table.num_stages, table.num_microbatches)
    named = f"legal and within memory: {sizes}, called {quoted(table.name)}"
    return f"{named}; {facts.objective} {facts.value:.12g}, {gap}"
