"""What a node of each operation keeps is what its gradients name, and stands in a table: kept.txt."""

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
        (lambda x, w: functional.relu(functional.linear(x, w)), 2 * X.nbytes + W.nbytes, 2 * X.nbytes),
        (lambda x, w: functional.layer_norm(x, w[0], w[1]), X.nbytes + X[:, 0].nbytes + W.nbytes, 2 * X.nbytes),
        (lambda x, w: functional.rms_norm(x, w[0]), X.nbytes + X[:, 0].nbytes + W.nbytes, 2 * X.nbytes),
    ],
    ids=["linear", "add", "multiply", "linear and relu", "layer_norm", "rms_norm"],
)
def test_the_bytes_follow_from_the_table(operation, after_f, after_i):
    x, weight = Tensor(X.copy()), Tensor(W.copy(), requires_grad=True)
    x.node = StageInput(needs_gradient=True, array=x.data)
    root = operation(x, weight).node
    assert held_bytes([root], []) == after_f
    assert held_bytes([backward_input({root: np.ones((8, 4), np.float32)})], []) == after_i
