"""Sums of gradients on a rank: blocks of microbatches are added in pairs, and messages
have tags of their own.
"""

from itertools import pairwise

import numpy as np
import pytest

from minipipe import Pipeline, nn, spawn
from minipipe.autograd import Leaf
from minipipe.execution.sums import Blocks
from minipipe.parallel.pairwise import sum_in_pairs


def blocks_of(gradients, size):
    """Let the gradients of microbatches come one by one; return what is left, and the
    most sums there were at once.
    """
    leaf = Leaf((3,), np.float32)
    blocks, most = Blocks([leaf], size), 0
    for gradient in gradients:
        leaf.grad = gradient.copy() if leaf.grad is None else leaf.grad + gradient
        blocks.note_gradient()
        most = max(most, len(blocks._sums))
    blocks.finish()
    return leaf.grad, most


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("num_blocks", range(1, 10))
def test_blocks_are_added_in_pairs_and_as_many_are_kept_as_their_number_has_digits(
    num_blocks, size
):
    generator = np.random.default_rng(num_blocks)
    gradients = [
        generator.standard_normal(3).astype(np.float32) * 10.0**i
        for i in range(num_blocks * size)
    ]
    gradients = [
        gradient.astype(np.float32) for gradient in generator.permutation(gradients)
    ]
    found, most = blocks_of(gradients, size)
    of_blocks = []
    for first in range(0, len(gradients), size):
        total = gradients[first]
        for gradient in gradients[first + 1 : first + size]:
            total = total + gradient
        of_blocks.append(total)
    assert found.tobytes() == sum_in_pairs(of_blocks).tobytes()
    assert most == max(number.bit_count() for number in range(1, num_blocks + 1))


def test_a_single_block_is_added_in_the_order_of_its_microbatches():
    gradients = [
        np.float32([1e8, 1.0, 3.0]),
        np.float32([1.0, 1e8, 2.0]),
        np.float32([-1e8, 1.0, 1.0]),
    ]
    found, most = blocks_of(gradients, 0)
    assert (
        found.tobytes() == (gradients[0] + gradients[1] + gradients[2]).tobytes()
        and most == 0
    )


def test_a_block_in_which_nothing_has_a_gradient_leaves_none():
    leaf = Leaf((3,), np.float32)
    blocks = Blocks([leaf], 1)
    for gradient in (None, np.ones(3, np.float32), None):
        leaf.grad = gradient
        blocks.note_gradient()
    blocks.finish()
    assert leaf.grad.tolist() == [1.0, 1.0, 1.0]
    blocks.begin()
    leaf.grad = None
    blocks.note_gradient()
    blocks.finish()
    assert leaf.grad is None


def test_each_sum_has_two_tags_between_those_of_the_executor_and_those_that_are_free():
    def tags(group):
        model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))
        pipeline = Pipeline(
            model,
            group,
            loss=nn.MSELoss(),
            schedule="interleaved-1f1b",
            chunks_per_rank=2,
            replicas=2,
        )
        program = pipeline.plan.program
        return (
            2 * program.num_stages * program.num_microbatches,
            pipeline._sums._tags,
            pipeline._sums.last_tag,
        )

    first, of_action, last = spawn(tags, 4)[0]
    found = sorted(set(of_action.values()))
    # a sum for each stage, of two replicas
    assert len(found) == 4 and len(of_action) == 8
    assert found[0] == first and found[-1] + 2 == last
    assert all(after - before == 2 for before, after in pairwise(found))
