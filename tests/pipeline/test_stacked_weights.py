"""Weight gradients of neighbouring W as one product: the same sums, in fewer
products.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Pipeline, Schedule, Tensor, functional, nn, spawn
from minipipe.core.autograd.operation import GradientRule
from minipipe.schedules.transforms import split_backward
from minipipe.testing import one_process_step
from tests.strategies import NAMES, build, examples


def gradients(model, schedule, inputs, targets, num_ranks, **options):
    """Return the gradients of one step, by name."""

    def train(group):
        pipeline = Pipeline(
            model, group, loss=nn.MSELoss(), schedule=schedule, **options
        )
        loss = pipeline.step(inputs, targets)
        return loss, {
            name: parameter.grad for name, parameter in pipeline.named_parameters()
        }

    losses, parts = zip(*spawn(train, num_ranks))
    return losses[0], {
        name: gradient for part in parts for name, gradient in part.items()
    }


def whole_numbers(generator, *shape):
    return generator.integers(-2, 3, shape).astype(np.float64)


@examples(40)
@given(
    st.sampled_from([*NAMES, "all W last"]),
    st.integers(1, 3),
    st.integers(0, 2**32 - 1),
    st.booleans(),
)
def test_sums_that_are_exact_have_the_same_bits_as_those_of_one_process(
    name, num_ranks, seed, is_deep
):
    """Whole numbers, over powers of two, add up without rounding in any order."""
    generator, m = np.random.default_rng(seed), 4
    schedule = (
        all_w_last(m, num_ranks)
        if name == "all W last"
        else split_backward(build(name, num_ranks, m))
    )
    model = nn.Sequential(
        *(nn.Linear(4, 4, dtype=np.float64) for _ in range(schedule.num_stages))
    ).initialise(0)
    for parameter in model.parameters():
        parameter.load(whole_numbers(generator, *parameter.shape), "parameter")
    shape = (8, 2, 4) if is_deep else (8, 4)
    inputs, targets = whole_numbers(generator, *shape), whole_numbers(generator, *shape)
    expected = one_process_step(model, nn.MSELoss(), inputs, targets, m)
    loss, found = gradients(
        model, schedule, inputs, targets, num_ranks, stack_weight_gradients=True
    )
    assert loss == expected.loss
    assert max(np.abs(gradient).max() for gradient in found.values()) < 2**40
    for key, gradient in expected.gradients.items():
        np.testing.assert_array_equal(found[key], gradient)


def all_w_last(m, num_ranks):
    rows = [
        [f"{r}{kind}{k}" for kind in "FIW" for k in range(m)] for r in range(num_ranks)
    ]
    return Schedule.from_text("\n".join(" ".join(row) for row in rows))


class Image(nn.Module):
    def __init__(self):
        self.convolution = nn.Conv2d(1, 2, 3, padding=1, dtype=np.float64)

    def forward(self, x):
        return functional.reshape(
            self.convolution(functional.reshape(x, (-1, 1, 4, 4))), (-1, 32)
        )


class FromVectors(nn.Module):
    """Applies a linear layer to single vectors, whose gradients have no axis of
    rows.
    """

    def __init__(self):
        self.inner = nn.Linear(4, 4, dtype=np.float64)

    def forward(self, x):
        return functional.stack([self.inner(x[i]) for i in range(x.shape[0])])


class WithTurnedWeight(nn.Module):
    def __init__(self):
        self.weight = nn.Parameter((4, 4), nn.initialisers.he_uniform(4), np.float64)

    def forward(self, x):
        return functional.linear(x, self.weight.transpose()) + functional.linear(
            x, self.weight
        )


class OfTwoShapes(nn.Module):
    """The story: rows of both shapes were put behind each other, and NumPy refused."""

    def __init__(self):
        self.inner = nn.Linear(4, 4, dtype=np.float64)

    def forward(self, x):
        return functional.mean(self.inner(x), axis=1) + self.inner(
            functional.mean(x, axis=1)
        )


class Learned(nn.Module):
    """Ignores its input: what it returns depends on a weight alone."""

    def __init__(self):
        self.weight = nn.Parameter((1, 4), nn.initialisers.he_uniform(4), np.float64)

    def forward(self, x):
        return self.weight + np.zeros(x.shape)


def layer(*sizes):
    return nn.Linear(*sizes, dtype=np.float64)


SHARED = layer(4, 4)
MODELS = {
    "block": (
        nn.Sequential(nn.TransformerBlock(8, 2, dtype=np.float64), layer(8, 8)),
        (8, 3, 8),
    ),
    "convolution": (nn.Sequential(Image(), layer(32, 4)), (8, 16)),
    "recomputed": (
        nn.Sequential(
            nn.Recompute(nn.Sequential(layer(4, 4), nn.Tanh(), layer(4, 4))),
            layer(4, 4),
        ),
        (8, 4),
    ),
    "vectors": (nn.Sequential(FromVectors(), layer(4, 4)), (8, 4)),
    "learned": (nn.Sequential(Learned(), layer(4, 4)), (8, 4)),
    "of two shapes": (nn.Sequential(OfTwoShapes(), layer(4, 4)), (8, 3, 4)),
    "turned": (nn.Sequential(WithTurnedWeight(), layer(4, 4)), (8, 4)),
    "used twice": (nn.Sequential(SHARED, nn.Tanh(), SHARED, layer(4, 4)), (8, 4)),
}


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_one_process_but_for_rounding(name, recompute):
    model, shape = MODELS[name]
    model.initialise(1)
    generator = np.random.default_rng(0)
    inputs = generator.standard_normal(shape)
    targets = generator.standard_normal(model(Tensor(inputs)).shape)
    # of 3, 3 and 2 samples
    expected = one_process_step(model, nn.MSELoss(), inputs, targets, 3)
    _, found = gradients(
        model,
        all_w_last(3, 2),
        inputs,
        targets,
        2,
        recompute=recompute,
        stack_weight_gradients=True,
    )
    assert found.keys() == expected.gradients.keys()
    for key, gradient in expected.gradients.items():
        np.testing.assert_allclose(found[key], gradient, rtol=1e-11, atol=1e-14)


@pytest.fixture
def products(monkeypatch):
    """Yield a list that gets the shape of the input of each gradient of a linear
    layer's weight.
    """
    operation, calls = functional.linear.operation, []
    gradient_of_weight = operation.steps["weight"].function

    def counted(g, x):
        calls.append(x.shape)
        return gradient_of_weight(g, x)

    monkeypatch.setitem(operation.steps, "weight", GradientRule.of("weight", counted))
    operation.plans.clear()
    yield calls
    operation.plans.clear()


@pytest.mark.parametrize("stacks, num_products", [(False, 4), (True, 1)])
def test_neighbouring_w_are_one_product(products, stacks, num_products):
    model = nn.Sequential(nn.Linear(3, 2)).initialise(0)
    inputs, targets = np.ones((8, 3), np.float32), np.ones((8, 2), np.float32)
    gradients(
        model, all_w_last(4, 1), inputs, targets, 1, stack_weight_gradients=stacks
    )
    assert len(products) == num_products and sum(rows for rows, _ in products) == 8


def test_only_w_with_no_other_computation_between_them_are(products):
    model = nn.Sequential(nn.Linear(2, 2)).initialise(0)
    schedule = Schedule.from_text("F0 F1 F2 I0 I1 W0 W1 I2 W2")
    gradients(
        model,
        schedule,
        np.ones((3, 2)),
        np.ones((3, 2)),
        1,
        stack_weight_gradients=True,
    )
    assert [rows for rows, _ in products] == [2, 1]


def test_they_share_their_time_and_all_are_held_until_the_last():
    model = nn.Sequential(nn.Linear(200, 200)).initialise(0)
    inputs = np.ones((400, 200), np.float32)

    def train(group):
        pipeline = Pipeline(
            model,
            group,
            loss=nn.MSELoss(),
            schedule=all_w_last(4, 1),
            stack_weight_gradients=True,
        )
        pipeline.measures_memory = True
        pipeline.step(inputs, inputs)
        return pipeline.timeline()

    timeline = spawn(train, 1)[0]
    times = [
        span.end - span.start for span in timeline.spans[0] if span.action.kind == "W"
    ]
    assert min(times) == pytest.approx(max(times)) and min(times) > 0
    assert all(
        a.end <= b.start for a, b in zip(timeline.spans[0], timeline.spans[0][1:])
    )
    assert timeline.peak_activations == (4,)
    assert len(set(timeline.memory[0][7:11])) == 1 and timeline.memory[0][11] == 0
