"""Copies: which survive, which are found, and whose are missing. On threads; real
losses are in test_survival.py.
"""

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import elastic, optim, spawn
from minipipe.comm import OneRankGroup
from minipipe.errors import ArgumentError, LaunchError, RankLostError
from minipipe.pipeline import Pipeline
from minipipe.pipeline.elastic.training import _Training
from minipipe.pipeline.elastic.vault import Generation, Made, Vault, state_for
from tests.pipeline.elastic.test_pieces import are_same, make


def kept_by(num_ranks, copies, num_steps=1):
    """Return the vault of each rank before step ``num_steps``, and the state of all
    ranks at that moment, by name.
    """

    def train(group):
        made, vault = Made.checked(make(group)), Vault(copies)
        for k in range(num_steps):
            vault.keep(group, made, k)
            made.pipeline.step(np.ones((4, 3), int), np.ones((4, 3), int))
            made.optimiser.step()
        vault.keep(group, made, num_steps)
        return vault, by_name(made.state())

    vaults, states = zip(*spawn(train, num_ranks))
    return vaults, {name: own for state in states for name, own in state.items()}


def by_name(state):
    """Return the values and what the optimiser keeps of each parameter, with the
    numbers of its group.
    """
    numbers = {
        name: group["numbers"]
        for group in state["optimiser"]["groups"]
        for name in group["parameters"]
    }
    kept = state["optimiser"]["kept"]
    return {
        name: [value, kept[name], numbers[name]]
        for name, value in state["values"].items()
    }


def recovered(vaults, living, world_ranks):
    """Let the living ranks form a group and find their states."""

    def recover(group):
        group.world_ranks = world_ranks
        vault = vaults[living[group.rank]]
        made = Made.checked(make(group))
        made.load(state_for(group, made.pipeline, vault.newest_of_all(group)))
        return made.state()

    return spawn(recover, len(living))


@given(data=st.data(), num_ranks=st.integers(2, 5), copies=st.integers(1, 3))
def test_values_are_found_unless_a_rank_and_all_that_have_its_copy_are_lost(
    data, num_ranks, copies
):
    lost = data.draw(
        st.sets(st.integers(0, num_ranks - 1), min_size=1, max_size=num_ranks - 1),
        "lost",
    )
    living = [rank for rank in range(num_ranks) if rank not in lost]
    vaults, expected = kept_by(num_ranks, copies)
    distances = range(min(copies, num_ranks - 1) + 1)
    gone = {
        rank
        for rank in lost
        if {(rank + distance) % num_ranks for distance in distances} <= lost
    }
    plan = spawn(lambda group: make(group)[0].plan, num_ranks)[0]
    having = {
        name: {rank} | set(plan.shared.get(name, {0: ()})[0])
        for name, rank in plan.owners.items()
    }
    if any(ranks <= gone for ranks in having.values()):
        with pytest.raises(RankLostError) as caught:
            recovered(vaults, living, living)
        assert caught.value.code == "rank-lost" and f"copies={len(distances)}" in str(
            caught.value
        )
        return
    for state in recovered(vaults, living, living):
        assert state["num_steps"] == 1
        assert all(
            are_same(own, expected[name]) for name, own in by_name(state).items()
        )


def test_the_newest_generation_that_all_have_is_taken_and_the_others_are_dropped():
    """Rank 0 was behind the barrier, ranks 1 and 2 before it; rank 2 has begun a
    generation that others have not.
    """
    ages = {0: [(4, 7)], 1: [(4, 6), (4, 7)], 2: [(4, 7), (4, 8)]}

    def find(group):
        vault = Vault(1)
        vault._generations = [
            Generation(step, [], None, tuple(range(size)))
            for size, step in ages[group.rank]
        ]
        found = vault.newest_of_all(group)
        return found.step, [one.step for one in vault._generations]

    assert spawn(find, 3) == [(7, [7])] * 3


def test_copies_of_a_smaller_group_are_newer_than_those_of_the_same_step_before():
    def find(group):
        vault = Vault(1)
        vault._generations = [
            Generation(5, [], None, tuple(range(size))) for size in (4, 3)
        ]
        return len(vault.newest_of_all(group).world_ranks)

    assert spawn(find, 2) == [3, 3]


def test_before_the_first_copies_there_is_nothing_to_go_back_to():
    def find(group):
        vault = Vault(1)
        # behind the barrier of the first; then all others would have it
        if group.rank == 0:
            vault._generations = [Generation(0, [], None, (0, 1))]
        return vault.newest_of_all(group), vault._generations

    assert spawn(find, 2) == [(None, [])] * 2


def test_a_rank_keeps_one_generation_beside_the_one_that_is_made():
    vaults, _ = kept_by(3, 1, num_steps=3)
    assert [
        [(one.step, len(one.messages)) for one in vault._generations]
        for vault in vaults
    ] == [[(3, 2)]] * 3


# -- train() ---------------------------------------------------------------------------


def step(k, pipeline, optimiser):
    loss = pipeline.step(np.full((4, 3), k), np.ones((4, 3), int), wait=False)
    optimiser.step()
    return loss


def test_ranks_that_keep_nothing_train_as_any_others():
    def losses(group):
        return list(map(float, elastic.train(make, step, group, 4, copies=0).results))

    alone, *three = [*spawn(losses, 1), *spawn(losses, 3)]
    assert three == [alone] * 3


def test_what_was_made_is_gone_before_it_is_made_anew():
    """After a loss: otherwise there would be two pipelines in memory."""
    made, alive = [], []

    def make_and_look(group):
        alive.append([ref() is not None for ref in made])
        found = make(group)
        made.append(weakref.ref(found[0]))
        return found

    training = _Training(make_and_look, step, num_steps=1, every=1)
    gc.disable()
    try:
        for _ in range(2):
            training.run(OneRankGroup())
    finally:
        gc.enable()
    assert alive == [[], [False]]


def test_what_train_returns_on_one_rank():
    def train(group):
        trained = elastic.train(make, step, group, 3)
        assert isinstance(trained.pipeline, Pipeline) and isinstance(
            trained.optimiser, optim.Adam
        )
        return (
            trained.pipeline.num_steps,
            trained.others,
            [type(loss).__name__ for loss in trained.results],
        )

    assert spawn(train, 1) == [(3, (), ["BatchLoss"] * 3)]


def test_threads_cannot_be_lost_and_that_is_said_at_the_beginning():
    with pytest.raises(LaunchError, match="mpirun --with-ft ulfm -n 2") as caught:
        spawn(lambda group: elastic.train(make, step, group, 3), 2)
    assert caught.value.code == "unavailable"


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"num_steps": -1}, "num_steps is -1; expected a whole number, at least 0"),
        ({"num_steps": 2.0}, "num_steps is 2.0"),
        ({"copies": True}, "copies is True"),
        ({"every": 0}, "every is 0; expected a whole number, at least 1"),
    ],
)
def test_a_number_out_of_its_range_is_refused(numbers, words):
    with pytest.raises(ArgumentError, match=words):
        spawn(
            lambda group: elastic.train(
                make, step, group, **{"num_steps": 1, **numbers}
            ),
            1,
        )
