"""PyTorch as an oracle for half precision: the same roundings of operations, the same
scales and skipped updates.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Pipeline, Tensor, nn, optim, spawn
from minipipe import functional as F
from tests.strategies import examples

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install '.[oracle]'")
TF = torch.nn.functional

EPSILON = 2.0**-10  # of float16

# -- operations ------------------------------------------------------------------------

ROWS = {
    "linear": (F.linear, lambda x, w, b: TF.linear(x, w.T, b), "nk km m"),
    "matmul": (F.matmul, torch.matmul, "nk km"),
    "softmax": (F.softmax, lambda x: torch.softmax(x, -1), "nk"),
    "log_softmax": (F.log_softmax, lambda x: torch.log_softmax(x, -1), "nk"),
    "layer_norm": (
        F.layer_norm,
        lambda x, w, b: TF.layer_norm(x, w.shape, w, b),
        "nk k k",
    ),
    "gelu": (F.gelu, TF.gelu, "nk"),
    "silu": (F.silu, TF.silu, "nk"),
    "tanh": (F.tanh, torch.tanh, "nk"),
    "mean": (lambda x: x.mean(0), lambda x: x.mean(0), "nk"),
    "sum": (lambda x: x.sum(0), lambda x: x.sum(0), "nk"),
    "add, broadcast": (lambda a, b: a + b, lambda a, b: a + b, "nk k"),
}
LENGTHS = {"n": 300, "k": 20, "m": 5}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_values_and_gradients_in_float16_are_those_of_pytorch_but_for_a_few_roundings(
    row,
):
    ours, theirs, shapes = row
    generator = np.random.default_rng(0)
    arrays = [
        generator.standard_normal([LENGTHS[x] for x in s]).astype(np.float16)
        for s in shapes.split()
    ]
    tensors = [Tensor(array, requires_grad=True) for array in arrays]
    twins = [torch.tensor(array, requires_grad=True) for array in arrays]
    result, expected = ours(*tensors), theirs(*twins)
    upstream = generator.standard_normal(result.shape).astype(np.float16)
    result.backward(upstream)
    expected.backward(torch.tensor(upstream))
    pairs = [(result.numpy(), expected.detach())] + [
        (tensor.grad, twin.grad) for tensor, twin in zip(tensors, twins)
    ]
    for mine, other in pairs:
        other = other.numpy()
        assert mine.dtype == other.dtype == np.float16 and mine.shape == other.shape
        largest = max(1.0, float(np.abs(other).max()))
        np.testing.assert_allclose(
            mine.astype(float), other.astype(float), rtol=0, atol=3 * EPSILON * largest
        )


# -- training --------------------------------------------------------------------------

WIDTHS = [6, 8, 8, 3]
NUM_STEPS = 14


def our_model():
    layers = [
        layer
        for k, m in zip(WIDTHS, WIDTHS[1:])
        for layer in (nn.Linear(k, m, dtype=np.float16), nn.Tanh())
    ]
    return nn.Sequential(*layers[:-1])


def a_batch(seed):
    generator = np.random.default_rng(seed)
    return generator.standard_normal((12, 6)).astype(np.float16), generator.integers(
        0, 3, 12
    )


def ours(group, settings, seed, initial, growth_interval):
    """Return the scale before each step, whether its update was left out, and the
    values after the last.
    """
    pipeline = Pipeline(
        our_model(), group, loss=nn.CrossEntropyLoss(), num_microbatches=1, seed=seed
    )
    optimiser = optim.SGD(pipeline.parameters(), **settings)
    scale, scales, skipped = (
        optim.LossScale(initial, growth_interval=growth_interval),
        [],
        [],
    )
    inputs, labels = a_batch(seed)
    for _ in range(NUM_STEPS):
        scales.append(scale.value)
        pipeline.step(inputs, labels, scale=scale.value)
        skipped.append(not pipeline.unscale_gradients(scale))
        if not skipped[-1]:
            optimiser.step()
    return scales, skipped, pipeline.state_dict()


def theirs(settings, seed, initial, growth_interval):
    """The same with PyTorch: a model in half precision, master values in float32, and
    its GradScaler.
    """
    first_values = list(our_model().initialise(seed).state_dict().values())
    halves = [torch.tensor(value, requires_grad=True) for value in first_values]
    masters = [half.detach().float().requires_grad_() for half in halves]
    optimiser = torch.optim.SGD(
        masters, lr=settings["learning_rate"], momentum=settings["momentum"]
    )
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=initial, growth_interval=growth_interval
    )
    inputs, labels = map(torch.tensor, a_batch(seed))
    scales, skipped = [], []
    for _ in range(NUM_STEPS):
        scales.append(scaler.get_scale())
        x = inputs
        for i in range(0, len(halves), 2):
            x = TF.linear(x if i == 0 else torch.tanh(x), halves[i].T, halves[i + 1])
        scaler.scale(TF.cross_entropy(x.float(), labels)).backward()
        for half, master in zip(halves, masters):
            master.grad, half.grad = half.grad.float(), None
        scaler.unscale_(optimiser)
        skipped.append(not all(torch.isfinite(master.grad).all() for master in masters))
        scaler.step(optimiser)
        scaler.update()
        with torch.no_grad():
            for half, master in zip(halves, masters):
                half.copy_(master)
    return scales, skipped, [half.detach().numpy() for half in halves]


@examples(20)
@given(
    st.integers(0, 999),
    st.integers(10, 24),
    st.integers(1, 5),
    st.sampled_from([0.0, 0.9]),
)
def test_the_scales_the_skipped_updates_and_the_values_are_those_of_pytorch(
    seed, exponent, interval, momentum
):
    settings = {"learning_rate": 0.05, "momentum": momentum}
    scales, skipped, values = theirs(settings, seed, 2.0**exponent, interval)
    for num_ranks in (1, 2):
        for own_scales, own_skipped, state in spawn(
            lambda group: ours(group, settings, seed, 2.0**exponent, interval),
            num_ranks,
        ):
            assert (own_scales, own_skipped) == (scales, skipped)
            for mine, other in zip(state.values(), values):
                np.testing.assert_allclose(
                    mine.astype(float), other.astype(float), rtol=0, atol=4 * EPSILON
                )


def test_what_was_compared_had_skipped_updates_and_grown_scales():
    scales, skipped, _ = theirs({"learning_rate": 0.05, "momentum": 0.9}, 0, 2.0**20, 2)
    assert 0 < skipped.count(True) < NUM_STEPS and scales != sorted(
        scales, reverse=True
    )


def test_a_scale_that_grew_a_step_later_or_masters_that_were_missing_would_be_noticed(
    monkeypatch,
):
    settings = {"learning_rate": 0.001, "momentum": 0.0}
    scales, _, values = theirs(settings, 0, 2.0**10, 3)

    def distance(state):
        return sum(
            float(np.abs(mine.astype(float) - other).sum())
            for mine, other in zip(state.values(), values)
        )

    ((late, _, state),) = spawn(lambda group: ours(group, settings, 0, 2.0**10, 4), 1)
    assert late != scales
    monkeypatch.setattr(
        optim.Optimiser,
        "_update_half",
        lambda self, p, g, state, group: self._update(p.data, g, {}, group),
    )
    ((same, _, rounded),) = spawn(lambda group: ours(group, settings, 0, 2.0**10, 3), 1)
    assert same == scales and distance(rounded) > 10 * distance(state)
