"""The certificate of a search, checked by what has no part in the search: for ``minipipe check``."""

from __future__ import annotations

import json

from minipipe.analysis.workload import ROUNDING
from minipipe.cli.exit_status import ExitStatus
from minipipe.errors import ArgumentError, FileError, ScheduleCode, ScheduleError
from minipipe.files import read_text
from minipipe.limits import MOST_JSON
from minipipe.printable import printable
from minipipe.search.certificate import Certificate, changed, read_certificate
from minipipe.simulation.claim import Claim, Finding, check_claim


def check_certificate(path: str, seconds: float | None, as_json: bool) -> ExitStatus:
    """Check a file, and repeat the proof of its bound where some seconds are given; print what was found.

    Raises
    ------
    ScheduleError
        Code ``file``; those of :func:`~minipipe.search.certificate.read_certificate` and of
        :func:`~minipipe.simulation.claim.check_claim`; ``certificate``, where the proof finds a better schedule.
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
    is_proved = finding.is_proved or (proof is not None and proof.bound >= certificate.bound * (1 - ROUNDING))
    if as_json:
        print(json.dumps({"legal": True, **claim._asdict(), "gap": certificate.gap, "is_proved_here": is_proved}))
    else:
        print(f"{_about_the_bound(certificate, finding, proof)}\n{_about_the_schedule(certificate)}")
    return ExitStatus.NO if seconds is not None and not is_proved else ExitStatus.YES


def _proof(certificate: Certificate, seconds: float) -> Certificate:
    """Search anew: with CP-SAT, or without OR-tools by branch and bound."""
    from minipipe.search.brute_force import solve_by_branch_and_bound
    from minipipe.search.exact import solve

    workload, objective = certificate.workload, certificate.objective
    try:
        found = solve(workload, objective, seconds, certificate.schedule)
    except ArgumentError:
        found = solve_by_branch_and_bound(workload, objective, seconds)
    if found.value < certificate.bound * (1 - ROUNDING):
        message = f"The certificate says that no schedule is below {certificate.bound:.12g}; {found.found_by} found"
        raise ScheduleError.of(ScheduleCode.CERTIFICATE, f"{message} one with {found.value:.12g}.")
    return found


def _about_the_bound(certificate: Certificate, finding: Finding, proof: Certificate | None) -> str:
    bound, formula = f"bound {certificate.bound:g}", finding.formula
    if finding.is_proved:
        return f"{bound}: computed again. {formula.reason}"
    by = f"{bound} was proved by {printable(certificate.bound_by)}"
    if proof is None:
        best = f"the best formula gives {formula.value:g}. --prove SECONDS searches again"
        return f"{by}, which is not repeated here; {best}"
    again = (
        "proved again" if proof.bound >= certificate.bound * (1 - ROUNDING) else f"not repeated: proved {proof.bound:g}"
    )
    return f"{by}; {again} by {proof.bound_by} in {proof.seconds:.1f} s"


def _about_the_schedule(certificate: Certificate) -> str:
    gap = f"{100 * certificate.gap:.2g} % above the bound" if certificate.gap else "which no schedule undercuts"
    title, objective = certificate.schedule.describe(", "), certificate.objective
    return f"legal and within memory: {title}; {objective} {certificate.value:g}, {gap}"
