"""What a node of each operation keeps is what its gradients name, and stands in a
table: kept.txt.
"""

import numpy as np
import pytest

from minipipe import Tensor, functional
from minipipe.autograd import StageInput, backward_input
from minipipe.autograd.memory import held_bytes
from tests.autograd.kept import FILE, table

X, W = np.ones((8, 4), np.float32), np.ones((4, 4), np.float32)


def test_the_table_is_that_of_the_operations():
    """If it is not: is the change wanted? Then ``python -m tests.autograd.kept``."""
    assert FILE.read_text(encoding="utf-8").splitlines() == table().splitlines()


@pytest.mark.parametrize(
    ("operation", "after_f", "after_i"),
    [
        (functional.linear, X.nbytes + W.nbytes, 2 * X.nbytes),
        (lambda x, w: functional.add(x, w[0]), 0, X.nbytes),
        (lambda x, w: functional.multiply(x, w[0]), X.nbytes + W.nbytes, 2 * X.nbytes),
        (
            lambda x, w: functional.relu(functional.linear(x, w)),
            2 * X.nbytes + W.nbytes,
            2 * X.nbytes,
        ),
        (
            lambda x, w: functional.layer_norm(x, w[0], w[1]),
            X.nbytes + X[:, 0].nbytes + W.nbytes,
            2 * X.nbytes,
        ),
        (
            lambda x, w: functional.rms_norm(x, w[0]),
            X.nbytes + X[:, 0].nbytes + W.nbytes,
            2 * X.nbytes,
        ),
    ],
    ids=["linear", "add", "multiply", "linear and relu", "layer_norm", "rms_norm"],
)
def test_the_bytes_follow_from_the_table(operation, after_f, after_i):
    x, weight = Tensor(X.copy()), Tensor(W.copy(), requires_grad=True)
    x.node = StageInput(needs_gradient=True, array=x.data)
    root = operation(x, weight).node
    assert held_bytes([root], []) == after_f
    assert (
        held_bytes([backward_input({root: np.ones((8, 4), np.float32)})], []) == after_i
    )


def stage_input(*shape):
    x = Tensor(np.ones(shape, np.float32))
    x.node = StageInput(needs_gradient=True, array=x.data)
    return x


def weight(*shape):
    return Tensor(np.ones(shape, np.float32), requires_grad=True)


NUMBER = 4  # bytes
SMALLER = {
    # Of 64 queries and 64 keys the score gradient has 64 * 64 numbers, and the values
    # have 64 * 16.
    "values": (
        lambda: functional.attention(
            stage_input(2, 64, 16), weight(2, 64, 16), weight(2, 64, 16)
        ),
        # weights, scaled queries, values and the gradient
        2 * (64 * 64 + 3 * 64 * 16) * NUMBER,
    ),
    "the score gradient": (
        lambda: functional.attention(
            stage_input(2, 4, 4), weight(2, 4, 4), weight(2, 4, 64)
        ),
        # weights, score gradient, scaled queries and the gradient
        2 * (2 * 4 * 4 + 4 * 4 + 4 * 64) * NUMBER,
    ),
    "normalised": (
        lambda: functional.layer_norm(weight(8, 4), stage_input(4), weight(4)),
        (2 * 8 * 4 + 8 + 4) * NUMBER,  # normalised, the gradient, scale and the weight
    ),
    "products": (
        lambda: functional.layer_norm(stage_input(8, 4), weight(4), weight(4)),
        2 * 8 * 4 * NUMBER,  # products and the gradient
    ),
}


@pytest.mark.parametrize(("compute", "after_i"), SMALLER.values(), ids=SMALLER)
def test_after_i_the_smaller_of_a_shared_value_and_its_sources_is_kept(
    compute, after_i
):
    root = compute()
    work = backward_input({root.node: np.ones(root.shape, np.float32)})
    assert held_bytes([work], []) == after_i
    work.run()
