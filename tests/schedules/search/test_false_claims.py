"""What a certificate claims falsely is refused or told as a claim; nothing of it is
ever printed as a fact.
"""

import json
from hashlib import sha256

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minipipe import Costs
from minipipe.cli import main
from minipipe.errors import ScheduleError
from minipipe.schedules.analysis.bounds import Formula, lower_bounds
from minipipe.schedules.analysis.workload import Objective
from minipipe.schedules.simulation.evaluation import Claim, check_claim, evaluate
from minipipe.search.certificate import Certificate, read_certificate
from minipipe.search.clock import one_after_another
from tests.schedules.search.enumeration import optimum
from tests.schedules.search.workloads import objectives, workloads
from tests.strategies import examples

NAMES = [
    *Formula,
    "CP-SAT 9.15.6755",
    "branch and bound",
    "gallery",
    "",
    "\x1b[2J",
    "x, which is optimal",
]
SCRIPTS = [str(digit) for digit in range(10)], list("٠١٢٣٤٥٦٧٨٩")


def signed(content):
    """Return the text of a certificate whose digest is that of its content, whatever
    that says.
    """
    return json.dumps({**content, "sha256": sha256(_canonical(content)).hexdigest()})


def _canonical(content):
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def honest(workload, objective):
    """Return the content of a certificate of a schedule that is seldom optimal, with
    what a formula proves of it.
    """
    schedule = one_after_another(workload)
    value, bound = (
        evaluate(schedule, workload, objective),
        lower_bounds(workload, objective)[0],
    )
    found = Certificate(
        schedule,
        workload,
        objective,
        value,
        bound.value,
        bound.name,
        schedule.name,
        0.0,
    )
    content = json.loads(found.to_json())
    del content["sha256"]
    return content


@st.composite
def claims(draw):
    """Draw a certificate that claims more than its formula proves, and the least that
    any schedule takes.
    """
    workload, objective = (
        draw(workloads([(0, 1), (0, 1, 2), (0, 1, 1, 0)], most_actions=12)),
        draw(objectives),
    )
    content, least = honest(workload, objective), optimum(workload, objective)
    tighter = workload._replace(
        memory_limit=tuple(map(workload.least_memory, range(workload.num_ranks)))
    )
    other_limits = (
        [bound.value for bound in lower_bounds(tighter, objective)]
        if min(tighter.memory_limit)
        else []
    )
    value = content["value"]
    more = [
        value,
        least,
        least * (1 + 1e-8),
        (least + value) / 2,
        value * (1 - 1e-8),
        value * (1 + 1e-10),
        *other_limits,
    ]
    content["bound"] = draw(st.sampled_from(more))
    content["bound_by"] = draw(st.sampled_from(NAMES) | st.text(max_size=20))
    content["value"] = draw(
        st.sampled_from(
            [value, value, value, least, value * (1 + 1e-10), value * (1 + 1e-8)]
        )
    )
    content["found_by"] = content["schedule"]["name"] = draw(st.sampled_from(NAMES))
    return content, least, value


@given(claim=claims())
@settings(
    max_examples=examples(60).max_examples,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_what_is_printed_as_a_fact_is_one(claim, file, capsys):
    """23 of 66 false claims were printed as "which is optimal", for any name."""
    content, least, value = claim
    path = str(file(signed(content)))
    capsys.readouterr()
    if main(["check", "--certificate", path, "--json"]) != 0:
        return
    told = json.loads(capsys.readouterr().out)
    assert told["value"] == pytest.approx(value, rel=1e-12)
    assert told["bound"] <= least * (1 + 1e-9) and told["bound_by"] in list(Formula)
    assert told["is_proved_here"] == (content["bound"] <= told["bound"] * (1 + 1e-9))
    assert told["gap"] == 0 if value <= told["bound"] * (1 + 1e-9) else told["gap"] > 0
    assert main(["check", "--certificate", path]) == 0
    *bounds, schedule = capsys.readouterr().out.splitlines()
    assert schedule.endswith(", which is optimal") == (told["gap"] == 0)
    assert (
        len(bounds) == 1 + (not told["is_proved_here"])
        and " proved here by " in bounds[0]
    )
    assert all(
        ": claimed by " in line and ", not proved here" in line for line in bounds[1:]
    )


@pytest.mark.parametrize("name", Formula)
def test_a_formula_that_says_nothing_about_the_workload_proves_nothing(name):
    """Without a limit of memory neither does what is held over time, nor both waits
    together.
    """
    workload = Costs().workload((0, 1), 4)
    schedule = one_after_another(workload)
    known = {
        bound.name: bound.value for bound in lower_bounds(workload, Objective.MAKESPAN)
    }
    claim = Claim(Objective.MAKESPAN, 20.0, known.get(name, 20.0), str(name))
    if name in known:
        assert check_claim(schedule, workload, claim).value == 20
    else:
        with pytest.raises(
            ScheduleError, match="which gives no bound for this workload"
        ):
            check_claim(schedule, workload, claim)
    assert {Formula.MEMORY, Formula.BOTH}.isdisjoint(known) and Formula.WORK in known


def _paths(content, path=()):
    """Yield the path of every number of a content."""
    for key, value in (
        content.items() if isinstance(content, dict) else enumerate(content)
    ):
        if isinstance(value, dict | list):
            yield from _paths(value, (*path, key))
        elif not isinstance(value, str) and value is not None:
            yield (*path, key)


def _with(content, path, value):
    copy = json.loads(json.dumps(content))
    inside = copy
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value(inside[path[-1]])
    return copy


def in_other_digits(number):
    """Return a number as text, in digits that Python reads as well."""
    return "".join(dict(zip(*SCRIPTS)).get(sign, sign) for sign in str(number))


ILL_TYPED = [
    str,
    in_other_digits,
    lambda number: True,
    lambda number: [number],
    lambda number: None,
]
ILL_TYPED += [
    lambda number, given=given: given
    for given in (float("nan"), float("inf"), -1, 10**400, "", {}, "1_0")
]


def test_a_number_of_another_type_is_refused_wherever_it_stands():
    """ "3" was read for 3, as were the digits of other scripts, and true was a
    version.
    """
    content = honest(
        Costs(weight_activation=0.5).workload((0, 1), 2, 3), Objective.SPAN
    )
    forged = [
        (path, _with(content, path, wrong))
        for path in _paths(content)
        for wrong in ILL_TYPED
    ]
    assert len(forged) >= 200 and read_certificate(signed(content))[1]
    for path, wrong in forged:
        if (
            path[-2:-1] == ("memory_limit",)
            and wrong["workload"]["memory_limit"][path[-1]] is None
        ):
            continue  # an infinite limit is written so
        with pytest.raises(ScheduleError):
            read_certificate(signed(wrong))


def test_a_name_that_is_there_twice_is_refused_wherever_it_stands():
    """The last one counted: one reader saw 26, another one 27."""
    text = signed(honest(Costs().workload((0, 1), 2, 2), Objective.SPAN))
    for name in (
        json.loads(text) | json.loads(text)["workload"] | json.loads(text)["schedule"]
    ):
        twice = text.replace(f'"{name}":', f'"{name}": 0, "{name}":', 1)
        assert twice != text
        with pytest.raises(ScheduleError, match=f"'{name}' occurs twice"):
            read_certificate(twice)


def test_a_bound_of_nothing_proves_no_schedule_optimal():
    """A value above a bound of 0 had a gap of 0, and was told as optimal."""
    workload = Costs().workload((0, 1), 2)
    found = Certificate(
        one_after_another(workload), workload, Objective.SPAN, 12.0, 0.0, "", "", 0.0
    )
    assert found.gap == float("inf")
    assert found._replace(value=0.0).gap == 0 and found._replace(bound=12.0).gap == 0
    assert (
        found._replace(bound=8.0).gap == 0.5
        and found._replace(bound=12.0 - 1e-8).gap == 0
    )
