"""``minipipe check --layout``."""

import json

import numpy as np
import pytest

from minipipe import Pipeline, nn, spawn


def test_a_layout_of_megatron_is_printed_in_all_forms(ask):
    status, printed, _ = ask("check", "--layout", "Et*2|(tt|)*2,L", "--ranks", 2)
    assert status == 0
    assert printed.splitlines() == [
        "legal: layout for 2 ranks, 4 stages",
        "rank 0: Ett | tt",
        "rank 1: tt | L",
        "megatron: Et*2|(t*2|)*2L",
        "partition: [3, 2, 2, 1]",
        'torchtitan: [["tok_embeddings", "layers.0", "layers.1"], ["layers.2", '
        '"layers.3"], ["layers.4", "layers.5"], ["norm", "lm_head"]]',
    ]
    again = ask("check", "--layout", "3,2,2,1", "--ranks", 2)
    assert again == (0, printed, "")


def test_an_empty_stage_is_legal_and_has_no_partition(ask):
    status, printed, _ = ask("check", "--layout", "Et||tL", "--json")
    data = json.loads(printed)
    assert status == 0 and data["legal"] and data["partition"] is None
    assert "remove one '|'" in data["no_partition"]


def test_the_partition_of_a_layout_trains(ask):
    _, printed, _ = ask("check", "--layout", "Ett|tL", "--json")
    ends = np.cumsum([0, *json.loads(printed)["partition"]])
    partition = list(map(range, ends[:-1], ends[1:]))

    def run(group):
        model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(5)))
        loss = nn.MSELoss()
        pipeline = Pipeline(model, group, loss=loss, partition=partition)
        return pipeline.step(np.ones((8, 2), "f4"), np.ones((8, 2), "f4"))

    assert np.isfinite(spawn(run, 2)).all()


def test_a_schedule_and_a_layout_are_checked_together(ask):
    question = ["check", "interleaved-1f1b", "--ranks", 2, "--chunks", 2]
    status, printed, _ = ask(*question, "--layout", "4,6,6,4")
    assert status == 0 and printed.startswith("legal: interleaved-1f1b, 2 ranks")
    assert "partition: [4, 6, 6, 4]" in printed
    status, _, complaint = ask(*question, "--layout", "4,6,4,4,4,4")
    assert status == 1 and "the layout has 6 stages" in complaint
    v = ["check", "zb-v", "--ranks", 2, "--layout"]
    assert ask(*v, "4,6,6,4")[0] == 0  # torchtitan has its own placement of a V
    status, _, complaint = ask(*v, "Et|t|t|L")
    assert status == 1 and "on rank s modulo the ranks" in complaint


@pytest.mark.parametrize(
    ("options", "status", "complaint"),
    [
        (["--layout", "Et|x"], 1, "character 4 is 'x'"),
        (["--layout", "Et|t|L", "--ranks", 2], 1, "2 ranks do not divide"),
        (["--layout", "Et|L", "--certificate", "x.json"], 2, "Expected either"),
        (["--layout", "Et|L", "--chunks", 2], 2, "--chunks is 2, but the layout has 1"),
        ([], 2, "Expected either a schedule (NAME or FILE), --layout TEXT"),
    ],
)
def test_a_wrong_layout_is_refused(ask, options, status, complaint):
    answered, _, complained = ask("check", *options)
    assert answered == status and complaint in complained
