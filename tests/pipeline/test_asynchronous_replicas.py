"""Training replicas without flushes: the bits are those of the formulas, with a sum in
pairs for each update.
"""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Pipeline, nn, schedules, spawn
from tests.launch import slowly
from tests.pipeline import formulas
from tests.pipeline.test_asynchronous import (
    BATCHES,
    RULES,
    assert_alike,
    model,
    run,
    table,
)
from tests.strategies import batch, examples


def in_order_of_replicas(batches, each, replicas):
    """Return the microbatches of the first replica, of the second, …: every one has a
    share of each batch.
    """
    pieces = [
        list(
            zip(np.array_split(x, each * replicas), np.array_split(y, each * replicas))
        )
        for x, y in batches
    ]
    return [
        pieces[b][d * each + i]
        for d in range(replicas)
        for b in range(len(batches))
        for i in range(each)
    ]


def assert_replicas(name, p, replicas, make, batches, each, rule, a=1, **options):
    """Train with a table, and by the name where that has the same updates; compare with
    the formulas.
    """
    count, sizes = (
        each * len(batches),
        {"pipedream": 1, "vertical-sync": 1, "2bw": p, "paci": 2},
    )
    found = [{"schedule": table(name, p, count, a)}]
    if sizes[name] == a:
        found.append({"schedule": name, "num_microbatches": each})
    for own in found:
        own |= {"replicas": replicas, **options}
        ran = spawn(
            lambda group, o=own: run(group, make, batches, rule, name != "paci", **o),
            p * replicas,
        )
        microbatches = in_order_of_replicas(batches, each, replicas)
        expected = formulas.trained(
            name,
            make(),
            ran[0][2],
            microbatches,
            rule,
            nn.MSELoss(),
            a,
            replicas=replicas,
        )
        ordered = [
            expected[0][d * count + b * each + i]
            for b in range(len(batches))
            for d in range(replicas)
            for i in range(each)
        ]
        assert_alike(ran, (ordered, expected[1]))


UPDATES = [("pipedream", 1), ("vertical-sync", 1), ("2bw", 2), ("paci", 2), ("paci", 3)]
QUICK = {
    (("pipedream", 1), 2),
    (("vertical-sync", 1), 2),
    (("2bw", 2), 2),
    (("paci", 3), 3),
}


@pytest.mark.parametrize(
    ("update", "replicas"),
    [case if case in QUICK else slowly(*case) for case in product(UPDATES, (2, 3, 4))],
)
def test_a_run_of_replicas_has_the_bits_of_the_formulas(update, replicas):
    name, a = update
    # of 25 samples, so that microbatches are ragged
    batches = [batch(25, 6, seed) for seed in range(3)]
    batches = [(x, np.roll(x, 1, axis=1)) for x, _ in batches]
    assert_replicas(name, 2, replicas, model, batches, 3, RULES["adam"], a)


@given(
    name=st.sampled_from(["pipedream", "vertical-sync", "2bw", "paci"]),
    p=st.integers(1, 4),
    replicas=st.integers(1, 3),
    each=st.integers(1, 3),
    num_batches=st.integers(1, 4),
    a=st.integers(1, 4),
    rule=st.sampled_from(list(RULES)),
    size=st.integers(9, 14),
    has_dropout=st.booleans(),
)
@examples(30)
def test_so_have_replicas_of_any_number_of_ranks(
    name, p, replicas, each, num_batches, a, rule, size, has_dropout
):
    a = (
        1
        if name in ("pipedream", "vertical-sync")
        else max(a, p)
        if name == "2bw"
        else a
    )
    layers = [
        layer
        for _ in range(4)
        for layer in (nn.Linear(6, 6), *[nn.Dropout(0.2)] * has_dropout, nn.Tanh())
    ]
    batches = [
        (x, np.roll(x, 1, axis=1))
        for x, _ in (batch(size, 6, seed) for seed in range(num_batches))
    ]
    assert_replicas(
        name, p, replicas, lambda: nn.Sequential(*layers), batches, each, RULES[rule], a
    )


def test_a_timeline_has_the_sum_of_each_update_with_its_bytes():
    schedule, (x, y) = schedules.pipedream(2, 4), BATCHES[0]

    def train(group):
        pipeline = Pipeline(
            model(), group, loss=nn.MSELoss(), schedule=schedule, replicas=2
        )
        pipeline.run([(x, y)], RULES["sgd"](pipeline.parameters()))
        sizes = {
            stage: sum(p.nbytes for p in pipeline.parameters())
            for stage in pipeline.local_stages
        }
        return pipeline.timeline(), sizes

    found = spawn(train, 4)
    sizes = {stage: size for _, own in found for stage, size in own.items()}
    for timeline, _ in found:
        assert len(timeline.sums) == 2 * 4  # of each stage and microbatch of a replica
        for each in timeline.sums:
            assert len(each.ranks) == 2 and each.size == sizes[each.actions[0].stage]
            assert each.begin <= each.end <= timeline.makespan


def test_without_the_sums_of_replicas_their_weights_would_differ(monkeypatch):
    """So the tests above see the sums: each replica alone leaves other losses."""
    options = {"schedule": schedules.pipedream(2, 4), "replicas": 2}
    found = []
    for _ in range(2):
        found.append(
            spawn(
                lambda group: run(group, model, BATCHES[:2], RULES["sgd"], **options), 4
            )[0][0]
        )
        monkeypatch.setattr(
            "minipipe.execution.versions.sum_in_pairs", lambda gradients: gradients[0]
        )
    assert found[0][0] == found[1][0] and found[0] != found[1]
