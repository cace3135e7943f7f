"""The page of the site says what is so: its programs run, its figures hold."""

import re

from minipipe.testing import referee
from tests.launch import ROOT
from tests.referee.cases import MUTANTS, recorded
from tests.referee.training import Plan

PAGE = (ROOT / "tutorials" / "site" / "is-it-a-bug.md").read_text()


def test_the_program_of_the_page_runs_and_its_answer_is_the_answer():
    blocks = re.findall(r"^```(\w+)\n(.+?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (program,) = [text for kind, text in blocks if "report = referee(" in text]
    exec(compile(program, "is-it-a-bug.md", "exec"), {})
    (answer,) = [text for kind, text in blocks if kind == "text"]
    plan = Plan(layers=4)
    wrong = plan._replace(mutant="a missing microbatch", where=2)
    report = referee(recorded(plan, "microbatches"), recorded(wrong, "gradients"))
    assert str(report).startswith(answer)


def test_the_page_names_each_planted_bug():
    text = " ".join(PAGE.split())
    assert all(
        mutant in text.replace("a loss scaled", "loss scaled") for mutant in MUTANTS
    )
