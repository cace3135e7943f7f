"""Replicas are copies of each other: what is kept beside them, and going on with fewer.
On threads.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Pipeline, Plan, nn, optim, spawn
from minipipe.errors import RankLostError
from minipipe.pipeline.elastic.vault import (
    Made,
    Vault,
    changed_bits,
    state_for,
    takers_of_copies,
)
from minipipe.testing import same_bits
from tests.launch import slowly
from tests.pipeline.tied_models import SYMBOLS, language_model

TOKENS = np.random.default_rng(0).integers(0, SYMBOLS, (8, 4))


def make(group, replicas, blocks=2, shards=False):
    options = {
        "replicas": replicas,
        "num_microbatches": 4 // replicas,
        "gradient_blocks": blocks,
    }
    pipeline = Pipeline(language_model(), group, loss=nn.CrossEntropyLoss(), **options)
    if shards:
        return pipeline, pipeline.sharded(optim.Adam, learning_rate=0.1)
    return pipeline, optim.Adam(pipeline.parameters(), learning_rate=0.1)


def train(made, num_steps):
    for _ in range(num_steps):
        made.pipeline.step(TOKENS, TOKENS)
        made.optimiser.step()
    return made.pipeline.state_dict()


def vaults_of(num_ranks, copies=1, **layout):
    """Train two steps, keep copies before the third, and lose what the ranks had."""

    def run(group):
        made, vault = Made.checked(make(group, **layout)), Vault(copies)
        train(made, 2)
        vault.keep(group, made, 2)
        return vault

    return spawn(run, num_ranks)


def gone_on(vaults, living, **layout):
    """Return the values after two more steps of the living ranks."""

    def recover(group):
        group.world_ranks, made = (
            list(group.world_ranks),
            Made.checked(make(group, **layout)),
        )
        made.load(
            state_for(
                group, made.pipeline, vaults[living[group.rank]].newest_of_all(group)
            )
        )
        return train(made, 2)

    return spawn(recover, len(living))


@pytest.fixture(scope="module")
def undisturbed():
    return spawn(lambda group: train(Made.checked(make(group, 1)), 4), 1)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lost", "replicas", "shards"),
    [
        slowly({2}, 1, False),
        ({0, 3}, 2, True),
        *[
            slowly(lost, 1, shards)
            for lost in ({0}, {1}, {0, 1}, {1, 2})
            for shards in (False, True)
        ],
        *[
            slowly(lost, 2, shards)
            for lost in ({2, 3}, {0, 3}, set())
            for shards in (False, True)
        ],
    ],
)
def test_two_replicas_of_two_stages_go_on_with_fewer_replicas_or_other_stages(
    undisturbed, lost, replicas, shards
):
    """Without one copy sent: what is lost of a replica, the other one has."""
    vaults = vaults_of(4, replicas=2, shards=shards)
    assert all(len(vault._generations[-1].messages) == 1 for vault in vaults)
    living = [rank for rank in range(4) if rank not in lost]
    for values in gone_on(
        vaults, living, replicas=replicas, shards=shards and replicas > 1
    ):
        assert all(same_bits(values[name], undisturbed[name]) for name in undisturbed)


def test_both_replicas_of_a_stage_are_survived_with_two_copies_and_named_without(
    undisturbed,
):
    with pytest.raises(
        RankLostError,
        match=r"No copy of the state of ranks 1 and 3 survived.*copies=2\) survives",
    ):
        gone_on(vaults_of(4, replicas=2), [0, 2], replicas=1)
    for values in gone_on(vaults_of(4, copies=2, replicas=2), [0, 2], replicas=1):
        assert all(same_bits(values[name], undisturbed[name]) for name in undisturbed)


@pytest.mark.slow
def test_another_number_of_blocks_has_other_bits_and_that_is_said(undisturbed):
    values, *_ = gone_on(vaults_of(4, replicas=2), [0, 1, 2], replicas=1, blocks=1)
    assert not all(same_bits(values[name], undisturbed[name]) for name in undisturbed)
    plans = [
        Plan(language_model(), num_ranks=2, num_microbatches=2, replicas=r)
        for r in (1, 2)
    ]
    words = (
        "With 4 microbatches before and 2 now, 2 gradient_blocks before and 1 now, "
        "gradients differ in the last bits"
    )
    assert (
        words in changed_bits(*plans[::-1]) and changed_bits(plans[0], plans[0]) == ""
    )


@given(st.data(), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_as_many_ranks_as_asked_for_have_each_state_and_not_all_on_one_host(
    data, stages, replicas, copies
):
    size = stages * replicas
    hosts = data.draw(st.lists(st.sampled_from("ab"), min_size=size, max_size=size))
    plan = Plan(
        nn.Sequential(*[nn.Linear(1, 1) for _ in range(4)]),
        num_ranks=size,
        replicas=replicas,
    )
    takers = takers_of_copies(plan, hosts, copies)
    for stage in range(stages):
        twins = plan.program.ranks_of(stage)
        sent = [taker for rank in twins for taker in takers[rank]]
        having = {*twins, *sent}
        # nothing is sent twice, or to a replica
        assert len(having) == len(twins) + len(sent)
        assert len(having) >= min(copies + 1, size)
        assert len({hosts[rank] for rank in having}) == len(set(hosts))
        assert len(sent) <= max(
            copies + 1 - len(twins), 1 if len(set(hosts)) > 1 else 0
        )
