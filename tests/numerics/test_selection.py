"""What a mask, a weight of 0 or a one-hot leaves out adds nothing, also where it is
infinite or NaN.

A product would: 0 * inf is NaN. The operations alone are in test_edges.py.
"""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

import minipipe
from minipipe import Tensor, functional, nn, optim, random_key, spawn
from minipipe.core.autograd import backend
from minipipe.errors import ArgumentError
from minipipe.execution.objective import BatchObjective
from minipipe.functional.parallel import parallel_cross_entropy
from tests.compile.driver import TRACED, Job, compiled, eager, traced
from tests.half_precision import every_half
from tests.launch import for_each
from tests.numerics.edges import CASES, failing

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")
INF, NAN = math.inf, math.nan
EDGES = [INF, -INF, NAN, 0.0, -0.0, 1.5, -2.0]
PACKAGE = Path(minipipe.__file__).parent


# -- the kernel ------------------------------------------------------------------------


def reference(array, mask):
    return np.where(mask, array, np.zeros((), array.dtype))


LAYOUTS = {
    "contiguous": lambda x, mask: (x, mask),
    "transposed": lambda x, mask: (x.T, mask.T),
    "every other one": lambda x, mask: (x[:, ::2], mask[:, ::2]),
    "backwards": lambda x, mask: (x[::-1], mask),
    "a mask that is broadcast": lambda x, mask: (x, mask[:1]),
    "an array that is broadcast": lambda x, mask: (x[:1], mask),
    "one number": lambda x, mask: (x[0, 0], mask[0, 0]),
    "no axes": lambda x, mask: (x[0, 0, ...], mask[0, 0, ...]),
    "nothing": lambda x, mask: (x[:0], mask[:0]),
    "read-only": lambda x, mask: (np.broadcast_to(x[:, :1], x.shape), mask),
    "another byte order": lambda x, mask: (x.astype(x.dtype.newbyteorder()), mask),
}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble])
@for_each(layout=LAYOUTS)
def test_masked_has_the_bits_of_a_selection(dtype, layout):
    x = np.array([EDGES, EDGES[::-1]], dtype)
    array, mask = layout(x, np.arange(x.size).reshape(x.shape) % 3 > 0)
    found, expected = backend.masked(array, mask), reference(array, mask)
    assert (
        found.dtype.newbyteorder("=") == expected.dtype
        and found.shape == expected.shape
    )
    assert np.array_equal(found, expected, equal_nan=True)
    assert np.array_equal(np.signbit(found), np.signbit(expected))


@every_half
def test_masks_of_halves_select(half):
    x = Tensor(np.array(EDGES, half), requires_grad=True)
    mask = np.arange(len(EDGES)) > 2
    kept = functional.where(mask, x, 1.0)
    kept.backward(np.array([NAN, INF, -INF, 1, 2, 3, 4], half))
    assert np.asarray(kept.data, float).tolist() == [1.0, 1.0, 1.0, *EDGES[3:]]
    assert np.asarray(x.grad, float).tolist() == [0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0]


# -- dropout ---------------------------------------------------------------------------


def test_dropout_drops_what_is_infinite_too():
    """PyTorch multiplies, and so has NaN there."""
    x = Tensor(np.full(64, INF, np.float32), requires_grad=True)
    with random_key(seed=0, step=0):
        y = functional.dropout(x, 0.5)
    y.backward(np.full(64, -INF))
    assert set(y.numpy().tolist()) == {0.0, INF} and set(x.grad.tolist()) == {0.0, -INF}
    assert ((y.numpy() == 0) == (x.grad == 0)).all()


def test_so_does_a_compiled_section():
    infinite = np.full(64, INF, np.float32)
    job = Job(
        lambda tensors: [functional.dropout(tensors[0], 0.5)],
        [],
        lambda k: [(np.ones(64, np.float32) if k == TRACED else infinite, True)],
        lambda k, i, result: -infinite,
    )
    row = [("F", 0), ("B", 0)]

    def is_same(group):
        return compiled(job, traced(job, is_split=False), row) == eager(job, row)

    assert spawn(is_same, 1) == [True]  # not watched there


# -- what several ranks share ----------------------------------------------------------

SCORES = {
    "a masked class": ([[1.0, -INF, 2.0, 0.5], [0.0, 1.0, -INF, 2.0]], [0, 1]),
    "a rank that has masked classes alone": (
        [[-INF, -INF, 2.0, 0.5], [0.0, 1.0, -INF, -INF]],
        [2, 0],
    ),
    "a masked label": ([[1.0, -INF, 2.0, 0.5], [0.0, 1.0, 1.0, 2.0]], [1, 1]),
    "a masked class, a row ignored": (
        [[1.0, -INF, 2.0, 0.5], [0.0, 1.0, -INF, 2.0]],
        [-1, 3],
    ),
    "NaN in a row that is ignored": (
        [[1.0, NAN, 2.0, 0.5], [0.0, 1.0, 1.0, 2.0]],
        [-1, 3],
    ),
    "everything ignored": ([[1.0, NAN, 2.0, 0.5], [0.0, -INF, 1.0, 2.0]], [-1, -1]),
}


@for_each(case=SCORES)
def test_a_loss_of_divided_scores_selects_as_that_of_whole_ones(case):
    scores, labels = np.array(case[0]), np.array(case[1])
    whole = Tensor(scores, requires_grad=True)
    expected = functional.cross_entropy(whole, labels, ignore_index=-1)
    expected.backward()

    def compute(group):
        own = Tensor(np.split(scores, 2, axis=1)[group.rank].copy(), requires_grad=True)
        loss = parallel_cross_entropy(own, labels, group, ignore_index=-1)
        loss.backward()
        return loss.item(), own.grad

    found = spawn(compute, 2)
    np.testing.assert_allclose([loss for loss, _ in found], expected.item(), rtol=1e-12)
    np.testing.assert_allclose(
        np.concatenate([grad for _, grad in found], axis=1),
        whole.grad,
        rtol=1e-12,
        atol=1e-15,
    )


def test_a_divided_embedding_takes_nothing_from_the_vectors_of_other_symbols():
    """A rank looks up its first vector in place of a symbol that it does not have."""

    def compute(group):
        table = nn.Embedding(
            4, 2, initialiser=nn.initialisers.constant(1.0)
        ).initialise(0)
        table.weight.data[2] = INF
        layer = nn.ParallelEmbedding(table, group)
        vectors = layer([0, 3])
        vectors.backward(np.array([[INF, 1.0], [NAN, 2.0]], np.float32))
        return vectors.numpy().tolist(), layer.weight.grad.tolist()

    (first, of_first), (second, of_second) = spawn(compute, 2)
    assert first == second == [[1.0, 1.0], [1.0, 1.0]]
    np.testing.assert_array_equal(of_first, [[INF, 1.0], [0.0, 0.0]])
    np.testing.assert_array_equal(of_second, [[0.0, 0.0], [NAN, 2.0]])


# -- weights of 0 ----------------------------------------------------------------------


def test_a_microbatch_that_does_not_count_adds_nothing_to_the_loss_of_the_batch():
    objective = BatchObjective(nn.MSELoss(), loss_weight=np.sum)
    objective.shares = [0.25, 0.0, 0.75]
    for k, loss in enumerate((4.0, NAN, 8.0)):
        objective.note(k, loss)
    np.testing.assert_array_equal(objective.numbers(), [7.0, 4.0, NAN, 8.0])


def test_an_auxiliary_loss_of_weight_0_adds_nothing_and_has_no_gradient():
    x = Tensor([0.0, 4.0], requires_grad=True)
    layer = nn.AuxiliaryLoss(lambda x: functional.sqrt(x).sum() * INF, weight=0.0)
    with nn.auxiliary_losses() as losses:
        loss = layer(x).sum()
    losses.added_to(loss).backward()
    assert losses[0].item() == 0.0 and x.grad.tolist() == [1.0, 1.0]


def test_a_class_weight_that_is_not_finite_is_refused():
    for weight in (INF, NAN):
        with pytest.raises(
            ArgumentError, match="is (inf|nan); expected a finite number"
        ) as caught:
            functional.cross_entropy(
                Tensor([[1.0, 2.0]]), [0], class_weights=[1.0, weight]
            )
        assert caught.value.code == "value"


def test_a_loss_scale_stays_finite():
    scale = optim.LossScale(initial=1e308, growth_interval=1)
    for _ in range(3):
        assert scale.unscale([], are_finite=True)
        assert scale.value == 1e308
    assert not scale.unscale([], are_finite=False) and scale.value == 5e307


# -- mutants ---------------------------------------------------------------------------


def selections():
    """Return where the package calls ``backend.masked``: file and line, by a name for
    people.
    """
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if "backend.masked(" in line:
                found[f"{path.relative_to(PACKAGE)}:{number}"] = (str(path), number)
    return found


def is_noticed(cases):
    """Return whether some case of the table, or a test above of what is not in the
    table, fails.
    """
    tests = (
        test_dropout_drops_what_is_infinite_too,
        test_a_loss_of_divided_scores_selects_as_that_of_whole_ones,
    )
    if next(failing(cases), None):
        return True
    for test in tests:
        try:
            test()
        except (AssertionError, ExceptionGroup):
            return True
    return False


@pytest.mark.slow
def test_a_product_in_place_of_any_selection_is_noticed(monkeypatch):
    select, places = backend.masked, selections()
    cases = [
        case for case in CASES if "refused" not in case and case["dtype"] == "float32"
    ]
    with np.errstate(all="ignore"):
        assert places and not is_noticed(cases)
        monkeypatch.setattr(backend, "masked", lambda array, mask: array * mask)
        cases = list(failing(cases))
        for name, place in places.items():

            def mutant(array, mask, place=place):
                frame = sys._getframe(1)
                is_here = (frame.f_code.co_filename, frame.f_lineno) == place
                return array * mask if is_here else select(array, mask)

            monkeypatch.setattr(backend, "masked", mutant)
            assert is_noticed(cases), name
