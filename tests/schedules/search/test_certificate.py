"""Certificates as files: what one says is checked anew, and one with a number changed
is refused.
"""

import json
import re
import subprocess
import sys
from hashlib import sha256

import pytest
from hypothesis import given

from minipipe import Costs, schedules
from minipipe.cli import main
from minipipe.errors import MinipipeError, ScheduleError
from minipipe.schedules.analysis.bounds import lower_bounds
from minipipe.schedules.analysis.workload import Objective
from minipipe.schedules.simulation.evaluation import Claim, check_claim, evaluate
from minipipe.search.brute_force import solve_by_branch_and_bound
from minipipe.search.certificate import Certificate, read_certificate
from minipipe.search.clock import one_after_another
from tests.launch import slowly
from tests.schedules.search.workloads import workloads
from tests.strategies import examples

UNEVEN = Costs(
    [1, 2],
    [2, 2],
    [1.5, 1],
    latency=0.25,
    weight_activation=0.5,
    transient_activation=0.125,
    overhead=0.1,
)
PROVED_BY_SEARCH = solve_by_branch_and_bound(
    UNEVEN.workload((0, 1), 4, [2.5, 1.75]), Objective.MAKESPAN
)
PROVED_BY_FORMULA = Certificate(
    schedules.zb_h1(4, 8),
    Costs().workload(range(4), 8, 4),
    Objective.SPAN,
    27.0,
    27.0,
    "warm-up",
    "zb-h1",
    0.0,
)
NUMBER = re.compile(r"\d+(\.\d+)?")


def check(text):
    """Check as the command does: what it says first, then the digest."""
    certificate, is_unchanged = read_certificate(text)
    claim = Claim(
        certificate.objective,
        certificate.value,
        certificate.bound,
        certificate.bound_by,
    )
    finding = check_claim(certificate.schedule, certificate.workload, claim)
    return certificate, finding, is_unchanged


def signed(content):
    """Return a forged certificate: its digest is that of its content."""
    content = {name: value for name, value in content.items() if name != "sha256"}
    digest = sha256(
        json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()
    return json.dumps({**content, "sha256": digest})


def forged(certificate, **changes):
    """Change values, those of the workload by its prefix, and sign anew."""
    content = json.loads(certificate.to_json())
    for name, value in changes.items():
        inside = content["workload"] if name.startswith("workload_") else content
        inside[name.removeprefix("workload_")] = value
    return signed(content)


@given(workload=workloads(most_actions=30))
@examples(60)
def test_a_certificate_comes_back_from_its_text(workload):
    found = solve_by_branch_and_bound(workload, Objective.MAKESPAN, seconds=1)
    again, finding, is_unchanged = check(found.to_json())
    assert again == found == Certificate.from_json(found.to_json()) and is_unchanged
    assert finding.formula.value <= found.value * (1 + 1e-9)


@pytest.mark.parametrize(
    "certificate",
    [slowly(PROVED_BY_SEARCH), PROVED_BY_FORMULA],
    ids=["search", "formula"],
)
def test_a_certificate_with_any_one_number_changed_is_refused(certificate, file):
    text = certificate.to_json()
    assert main(["check", "--certificate", str(file(text))]) == 0
    for number in NUMBER.finditer(text):
        for other in ("0", "1", "7", f"{number[0]}1", f"-{number[0]}", "1e999"):
            if float(other) == float(number[0]):  # as a 17th digit may leave it
                continue
            with pytest.raises(MinipipeError):
                Certificate.from_json(
                    text[: number.start()] + other + text[number.end() :]
                )


@pytest.mark.parametrize(
    ("certificate", "changes", "message"),
    [
        (
            PROVED_BY_FORMULA,
            {"value": 26.0},
            "the span of its schedule is 26; the simulator computes 27",
        ),
        (
            PROVED_BY_FORMULA,
            {"value": 28.0, "bound": 28.0},
            "the span of its schedule is 28; the simulator computes 27",
        ),
        (
            PROVED_BY_FORMULA,
            {"bound": 28.0},
            "no schedule is below 28, but its own schedule has 27",
        ),
        (
            PROVED_BY_FORMULA,
            {"bound": 26.0},
            "names 26 as the bound 'warm-up', which is 27",
        ),
        (
            PROVED_BY_FORMULA,
            {"workload_memory_limit": [4, 2, 4, 4]},
            "Rank 1, position 2: with 1F2 it holds 3",
        ),
        (
            PROVED_BY_FORMULA,
            {"workload_num_microbatches": 7},
            "0F7 names microbatch 7; there are 7",
        ),
        (
            PROVED_BY_FORMULA,
            {"workload_forward": [1, 1, 1, 2]},
            "the simulator computes",
        ),
        (
            PROVED_BY_FORMULA,
            {"objective": "makespan", "value": 26.0},
            "the makespan of its schedule is 26",
        ),
        (
            PROVED_BY_FORMULA,
            {"schedule": {"name": "x", "rows": ["0F0"]}},
            "Stage 1 is placed on rank 1 of 1",
        ),
        (
            PROVED_BY_FORMULA,
            {"schedule": {"name": "x", "rows": ["0F0"] * 5}},
            "x places its stages on ranks",
        ),
    ],
)
def test_what_a_forged_certificate_says_is_not_believed(certificate, changes, message):
    """Its digest is right: the one who changes a number can change that, too."""
    with pytest.raises(ScheduleError) as caught:
        check(forged(certificate, **changes))
    assert message in caught.value.problems[0].message


def test_a_bound_that_a_search_proved_is_only_as_good_as_its_digest_until_it_is_proved_again(
    file, capsys
):
    raised = forged(PROVED_BY_SEARCH, bound=PROVED_BY_SEARCH.value)
    assert main(["check", "--certificate", str(file(raised))]) == 0
    assert (
        "claimed by 'branch and bound', not proved here; --prove SECONDS searches"
        in capsys.readouterr().out
    )
    slow = Certificate(
        schedules.split_backward(schedules.gpipe(2, 3)),
        Costs().workload((0, 1), 3),
        Objective.MAKESPAN,
        11.0,
        10.5,
        "an oracle",
        "gpipe",
        0.0,
    )
    assert (
        main(["check", "--certificate", str(file(slow.to_json())), "--prove", "20"])
        == 1
    )
    assert "says that no schedule is below 10.5" in capsys.readouterr().err


def test_a_claim_is_proved_where_the_largest_formula_reaches_it():
    """The smallest formula says 18 here, the largest 27."""
    workload = PROVED_BY_FORMULA.workload
    formulas = lower_bounds(workload, Objective.SPAN)
    assert (formulas[-1].value, formulas[0].value) == (18, 27)
    for bound in (24.0, 27.0):
        found = check_claim(
            PROVED_BY_FORMULA.schedule,
            workload,
            Claim(Objective.SPAN, 27.0, bound, "somebody"),
        )
        assert (found.formula, found.is_proved) == (formulas[0], True)
    schedule = one_after_another(workload)
    value = evaluate(schedule, workload, Objective.SPAN)
    assert not check_claim(
        schedule, workload, Claim(Objective.SPAN, value, 27.1, "somebody")
    ).is_proved


def test_the_proof_is_repeated_on_demand(file, capsys):
    path = str(file(PROVED_BY_SEARCH.to_json(), "found.json"))
    assert main(["check", "--certificate", path, "--prove", "30"]) == 0
    assert re.search(
        r"^bound \d.*: proved here by (CP-SAT|branch and bound)",
        capsys.readouterr().out,
    )


def test_a_bound_by_a_formula_is_computed_again(file, capsys):
    path = str(file(PROVED_BY_FORMULA.to_json(), "found.json"))
    assert main(["check", "--certificate", path]) == 0
    why = (
        "Rank 0 computes for 24 and must wait for 3 before its first I: after 4 F "
        "its memory is full."
    )
    assert capsys.readouterr().out.splitlines() == [
        f"bound 27: proved here by warm-up. {why}",
        (
            "legal and within memory: 4 ranks, 4 stages, 8 microbatches, called "
            "'zb-h1'; span 27, which is optimal"
        ),
    ]
    assert main(["check", "--certificate", path, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (
        found["legal"]
        and found["is_proved_here"]
        and found["gap"] == 0
        and found["bound"] == 27
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[1]", "it is [1], expected an object"),
        (
            '{"format": "minipipe certificate", "version": 2}',
            "its version is 2, expected 1",
        ),
        ('{"format": "minipipe certificate", "version": 1}', "it lacks 'workload'"),
        (
            PROVED_BY_FORMULA.to_json().replace("27.0", "NaN", 1),
            "its value is nan; expected a number, at least 0",
        ),
        (
            PROVED_BY_FORMULA.to_json().replace("27.0", "9" * 400, 1),
            "9…; expected a number, at least 0",
        ),
        (
            PROVED_BY_FORMULA.to_json().replace('"span"', '"speed"'),
            "'speed' is not a valid Objective",
        ),
        (
            PROVED_BY_FORMULA.to_json().replace("0F0", "0X0", 1),
            "'0X0' is not an action",
        ),
        (
            forged(PROVED_BY_FORMULA, workload_placement=[0, 10**9]),
            "expected a rank from 0 to",
        ),
        (
            forged(PROVED_BY_FORMULA, workload_placement=[0, 4096]),
            "expected a rank from 0 to 4095",
        ),
        (
            forged(PROVED_BY_FORMULA, workload_placement=[0] * 4097),
            "for each of 1 to 4096 stages",
        ),
        (forged(PROVED_BY_FORMULA, workload_placement="0123"), "expected a list"),
        (
            forged(PROVED_BY_FORMULA, schedule={"name": "x", "rows": [7]}),
            "a row of its schedule is 7; expected cells",
        ),
        (forged(PROVED_BY_FORMULA, workload_num_microbatches=10**9), "the limits are"),
        (
            forged(PROVED_BY_FORMULA, workload_forward=[1]),
            "forward has 1 value for 4 stages",
        ),
    ],
)
def test_what_is_no_certificate_is_refused_with_the_reason(text, message):
    with pytest.raises(ScheduleError) as caught:
        Certificate.from_json(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            [],
            "Expected either a schedule (NAME or FILE), --layout TEXT, or both; or --cert",
        ),
        (["1f1b", "--certificate", "x.json"], "Expected either a schedule"),
        (["1f1b", "--prove", "3"], "--prove needs --certificate FILE"),
        (
            ["--certificate", "x.json", "--prove", "nan"],
            "--prove is nan; expected a number of seconds",
        ),
        (
            ["--certificate", "/no/such/file"],
            "The certificate '/no/such/file' cannot be read",
        ),
    ],
)
def test_a_wrong_request_is_refused(words, message, capsys):
    assert main(["check", *words]) == 2
    assert message in capsys.readouterr().err


def test_the_check_loads_nothing_of_the_searches(file):
    path = file(PROVED_BY_SEARCH.to_json(), "found.json")
    program = (
        "import sys; from minipipe.cli import main; assert main(['check', "
        f"'--certificate', {str(path)!r}]) == 0\n"
        "loaded = {name for name in sys.modules if "
        "name.startswith('minipipe.search.')}\n"
        "assert loaded == {'minipipe.search.certificate'}, loaded\nassert "
        "'ortools' not in sys.modules"
    )
    subprocess.run(
        [sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL
    )
