"""Search for schedules better than the records, and write the page of records,
``tutorials/site/records.md``, with a certificate for each.

    python -m tests.slow.records                     the page, from the certificates
    python -m tests.slow.records --evaluations 0.2   search as well: minutes

A search tries so many schedules that all of them have ten million actions, or a part of
that. A certificate stays unless the search finds a better schedule. Each is checked
anew: the schedule, its time, its memory, and the lower bound.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from minipipe import Costs
from minipipe.core.schedules.placement import looped_placement
from minipipe.io import write_whole
from minipipe.schedules import Objective, find_schedule
from minipipe.schedules.analysis.workload import Workload
from minipipe.schedules.placements import v_placement
from minipipe.schedules.simulation.evaluation import Claim, Finding, check_claim
from minipipe.search.certificate import Certificate
from minipipe.search.finding import usual_evaluations
from tests.launch import ROOT
from tests.schedules.published import TABLE_5

PAGE = ROOT / "tutorials" / "site" / "records.md"
FOLDER = PAGE.with_suffix("")
MODELS = ("1.5B", "6.2B", "14.6B", "28.3B")  # of three rows each


class Record(NamedTuple):
    """A problem, with the value published for it: a bubble rate or a makespan."""

    name: str
    workload: Workload
    objective: Objective
    published: float
    cells: tuple[str, ...]
    shown: Callable[[float], str]

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.json"


def zero_bubble():
    """Yield the rows of the zero-bubble paper's tables 5 and 9."""
    for times_p in (1, 2):
        for number, (p, m, times, sizes, once, twice, _) in enumerate(TABLE_5):
            heads, width, length = sizes
            held = 34 * width + 5 * heads * length
            costs = Costs(*times, activation=held, weight_activation=32 * width)
            workload = costs.workload(range(p), m, times_p * p * held)
            work = workload.work(0)

            def rate(value, work=work):
                return f"{1 - work / value:.4f}"

            model = MODELS[number // 3]
            name = f"zero-bubble-{model}-{m}-{times_p}p"
            cells = (model, str(p), str(m), f"{times_p}p")
            published = twice if times_p == 2 else once
            yield Record(name, workload, Objective.SPAN, published, cells, rate)


def puzzles():
    """Yield problems of ezyang's pipeline-parallelism-tutor with F=B=1."""
    problems = [
        ("puzzle-looped", looped_placement(3, 2), 4, 6, 21),
        ("puzzle-v", v_placement(3), 4, 6, 24),
        ("puzzle-interleaved", v_placement(4), 8, 8, 38),
    ]
    costs = Costs(backward_weight=0)
    for name, placement, m, limit, published in problems:
        workload = costs.workload(placement, m, limit)
        cells = (",".join(map(str, placement)), str(m), str(limit))
        objective = Objective.MAKESPAN
        yield Record(name, workload, objective, published, cells, "{:g}".format)


TABLES = {"zero-bubble": list(zero_bubble()), "puzzles": list(puzzles())}
RECORDS = [record for records in TABLES.values() for record in records]


def checked(record) -> tuple[Certificate, Finding]:
    """Return a certificate and what is found about it; refuse another problem's."""
    certificate = Certificate.from_json(record.path.read_text())
    assert certificate.workload == record.workload
    assert certificate.objective is record.objective
    claim = Claim(*(getattr(certificate, name) for name in Claim._fields))
    return certificate, check_claim(certificate.schedule, record.workload, claim)


def search(record, part):
    """Write the certificate of a better schedule, if the search finds one."""
    evaluations = max(int(part * usual_evaluations(record.workload)), 2)
    found = find_schedule(record.workload, record.objective, evaluations=evaluations)
    best = checked(record)[0].value if record.path.exists() else float("inf")
    if found.value < best:
        # the time of the search is not of the record
        write_whole(record.path, found._replace(seconds=0.0).to_json())
        print(f"{record.name}: {found.value:g}, bound {found.bound:g}", flush=True)


def row(record):
    """Return the row of a record, from its certificate checked anew."""
    certificate, finding = checked(record)
    best, least = map(record.shown, (finding.value, finding.formula.value))
    state = "optimal" if best == least else "open"
    if not certificate.gap:
        state = "optimal, proved"
    elif state == "optimal":
        state = f"within {100 * certificate.gap:.1g} %"
    by = f"{least} ({finding.formula.name})"
    link = f"[{record.name}](records/{record.path.name})"
    published = f"{record.published:.4f}" if record.published < 1 else record.published
    cells = (*record.cells, published, f"**{best}**", by, state, link)
    return f"| {' | '.join(map(str, cells))} |\n"


def page():
    """Return the text of the page."""
    text = Path(__file__).with_name("records.md").read_text()
    for name, records in TABLES.items():
        text = text.replace(f"<!-- {name} -->\n", "".join(map(row, records)))
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    part = "also search, with this part of ten million actions for each record"
    parser.add_argument("--evaluations", type=float, metavar="PART", help=part)
    options = parser.parse_args()
    for record in RECORDS:
        if options.evaluations or not record.path.exists():
            search(record, options.evaluations or 0.1)
    write_whole(PAGE, page())
    print(f"wrote {PAGE.name}")


if __name__ == "__main__":
    main()
