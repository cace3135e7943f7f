"""The certificate of a search, checked by what has no part in the search: for ``minipipe check``."""

from __future__ import annotations

import json

from minipipe.cli.exit_status import ExitStatus
from minipipe.errors import ArgumentError, FileError, ScheduleCode, ScheduleError, quoted
from minipipe.io import MOST_JSON, read_text
from minipipe.schedules.analysis.workload import ROUNDING
from minipipe.schedules.search.certificate import Certificate, changed, read_certificate
from minipipe.schedules.simulation.evaluation import Claim, Finding, check_claim
from minipipe.schedules.text import describe_sizes


def check_certificate(path: str, seconds: float | None, as_json: bool) -> ExitStatus:
    """Check a file, and repeat the proof of its bound where some seconds are given; print what was found.

    Raises
    ------
    ScheduleError
        Code ``file``; those of :func:`~minipipe.schedules.search.certificate.read_certificate` and of
        :func:`~minipipe.schedules.simulation.evaluation.check_claim`; ``certificate``, where the proof finds a better
        schedule.
    """
    try:
        certificate, is_unchanged = read_certificate(read_text(path, MOST_JSON))
    except FileError as error:
        raise ScheduleError.of(ScheduleCode.FILE, f"The certificate {error}") from None
    claim = Claim(certificate.objective, certificate.value, certificate.bound, certificate.bound_by)
    finding = check_claim(certificate.schedule, certificate.workload, claim)
    if not is_unchanged:
        raise changed()
    proof = _proof(certificate, seconds) if seconds is not None and not finding.is_proved else None
    facts, reason = _facts(certificate, finding, proof), finding.formula.reason if proof is None else ""
    is_proved = claim.bound <= facts.bound * (1 + ROUNDING)
    if as_json:
        data = {"objective": facts.objective, "value": facts.value, "bound": facts.bound, "bound_by": facts.bound_by}
        claimed = {"claimed_bound": claim.bound, "claimed_by": claim.bound_by, "is_proved_here": is_proved}
        print(json.dumps({"legal": True, **data, "gap": facts.gap, **claimed}))
    else:
        print(f"{_about_the_bound(facts, reason, claim, is_proved)}\n{_about_the_schedule(facts)}")
    return ExitStatus.NO if seconds is not None and not is_proved else ExitStatus.YES


def _facts(certificate: Certificate, finding: Finding, proof: Certificate | None) -> Certificate:
    """Return what a certificate says, with the value that was simulated here, and the largest bound proved here."""
    bound, bound_by = min(finding.formula.value, finding.value), finding.formula.name
    if proof is not None and proof.bound > bound:
        bound, bound_by = proof.bound, proof.bound_by
    return certificate._replace(value=finding.value, bound=bound, bound_by=bound_by)


def _proof(certificate: Certificate, seconds: float) -> Certificate:
    """Search anew: with CP-SAT, or without OR-tools by branch and bound."""
    from minipipe.schedules.search.brute_force import solve_by_branch_and_bound
    from minipipe.schedules.search.exact import solve

    workload, objective = certificate.workload, certificate.objective
    try:
        found = solve(workload, objective, seconds, certificate.schedule)
    except ArgumentError:
        found = solve_by_branch_and_bound(workload, objective, seconds)
    if found.value < certificate.bound * (1 - ROUNDING):
        message = f"The certificate says that no schedule is below {certificate.bound:.12g}; {found.found_by} found"
        raise ScheduleError.of(ScheduleCode.CERTIFICATE, f"{message} one with {found.value:.12g}.")
    return found


def _about_the_bound(facts: Certificate, reason: str, claim: Claim, is_proved: bool) -> str:
    proved = f"bound {facts.bound:.12g}: proved here by {facts.bound_by}. {reason}".rstrip()
    if is_proved:
        return proved
    again = "; --prove SECONDS searches for a proof" if reason else ""
    said = f"claimed by {quoted(claim.bound_by)}, not proved here"
    return f"{proved}\nbound {claim.bound:.12g}: {said}{again}"


def _about_the_schedule(facts: Certificate) -> str:
    gap = f"at most {100 * facts.gap:.2g} % above the best possible" if facts.gap else "which no schedule undercuts"
    schedule = facts.schedule
    sizes = describe_sizes(schedule.num_ranks, schedule.num_stages, schedule.num_microbatches)
    named = f"legal and within memory: {sizes}, called {quoted(schedule.name)}"
    return f"{named}; {facts.objective} {facts.value:.12g}, {gap}"
