"""Where the ranks of a grid are: those that share a layer on one host, whatever the
launcher did.
"""

import threading
import warnings
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Grid, spawn
from minipipe.comm import grid as grids


def on_hosts(names, look, **sizes):
    """Return what a function of a grid returns on each rank, whose hosts are called
    so.
    """
    here = threading.local()

    def run(group):
        here.rank = group.rank
        return look(Grid(group, **sizes))

    with mock.patch.object(grids.socket, "gethostname", lambda: names[here.rank]):
        return spawn(run, len(names))


def dealt(sizes, tensor):
    """Return hosts by rank: of each host a multiple of ``tensor`` ranks, in any
    order.
    """
    return st.permutations(
        [
            f"node{host}"
            for host, count in enumerate(sizes)
            for _ in range(count * tensor)
        ]
    )


@given(st.data())
def test_ranks_that_share_a_layer_are_on_one_host(data):
    tensor, count = data.draw(st.sampled_from([(1, 6), (2, 4), (2, 2), (3, 2), (4, 2)]))
    per_host = data.draw(st.sampled_from([[count], [1] * count, [count - 1, 1]]))
    names = data.draw(dealt(per_host, tensor))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = on_hosts(
            names,
            lambda grid: (
                grid.coordinates,
                grid.tensor.world_ranks,
                grid.group.world_ranks,
                grid.roles,
            ),
            pipeline=count,
            tensor=tensor,
        )
    assert len({coordinates for coordinates, *_ in found}) == len(names)
    for rank, (coordinates, sharing, everyone, roles) in enumerate(found):
        assert {names[other] for other in sharing} == {names[rank]} and everyone[0] == 0
        assert list(everyone) == sorted(
            everyone, key=lambda other: (names.index(names[other]), other)
        )
        assert roles[rank] == "pipeline rank {}, replica {}, part {}".format(
            *coordinates
        )


def test_ranks_that_were_dealt_by_turns_are_put_in_order():
    assert on_hosts(
        "abab",
        lambda grid: (grid.coordinates, list(grid.tensor.world_ranks)),
        pipeline=2,
        tensor=2,
    ) == [
        ((0, 0, 0), [0, 2]),
        ((1, 0, 0), [1, 3]),
        ((0, 0, 1), [0, 2]),
        ((1, 0, 1), [1, 3]),
    ]


@pytest.mark.parametrize(
    ("names", "tensor", "words"),
    [
        (
            "aaabbb",
            2,
            (
                "tensor 2 does not divide the 3 ranks on host a, so ranks 2, 3, "
                "which share"
            ),
        ),
        (
            "ababbb",
            3,
            (
                "tensor 3 does not divide the 2 ranks on host a, so ranks 0, 2, 1, "
                "which share"
            ),
        ),
        (
            "aabb",
            4,
            (
                "tensor 4 does not divide the 2 ranks on host a, so ranks 0, 1, 2, "
                "3, which share"
            ),
        ),
    ],
)
def test_a_layer_that_is_shared_over_the_network_is_warned_of(names, tensor, words):
    with pytest.warns(UserWarning, match=words) as caught:
        on_hosts(names, lambda grid: None, pipeline=len(names) // tensor, tensor=tensor)
    assert len(caught) == 1
