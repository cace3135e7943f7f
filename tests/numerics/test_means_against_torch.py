"""Accumulation over microbatches that count by their tokens: the gradients that PyTorch
finds for the whole batch.
"""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Microbatches, Pipeline, nn, spawn
from tests.strategies import NAMES, build, examples
from tests.torch_twins import of_linear

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install '.[oracle]'")

PAD, WIDTH, CLASSES = -100, 4, 5
WEIGHTS = [1.0, 0.5, 2.0, 0.1, 1.5]


def ours():
    layers = [
        layer
        for _ in range(6)
        for layer in (nn.Linear(WIDTH, WIDTH, dtype=np.float64), nn.Tanh())
    ]
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES, dtype=np.float64))


def theirs_of(model):
    """Return the same layers in PyTorch, with the same values."""
    layers = []
    for layer in model:
        if isinstance(layer, nn.Linear):
            layers.append(torch.nn.Linear(*layer.weight.shape, dtype=torch.float64))
            for pair in of_linear(layer, layers[-1]):
                with torch.no_grad():
                    pair.our_way(pair.theirs)[...] = pair.ours.numpy()
        else:
            layers.append(torch.nn.Tanh())
    return torch.nn.Sequential(*layers)


@st.composite
def batches(draw):
    samples, length = draw(st.integers(2, 8)), draw(st.integers(1, 5))
    generator = np.random.default_rng(draw(st.integers(0, 2**16)))
    labels = generator.integers(0, CLASSES, (samples, length))
    labels[generator.random(labels.shape) < draw(st.sampled_from([0.0, 0.5, 0.9]))] = (
        PAD
    )
    labels[draw(st.integers(0, samples - 1)), 0] = 1
    return generator.standard_normal((samples, length, WIDTH)), labels


OPTIONS = st.fixed_dictionaries(
    {
        "label_smoothing": st.sampled_from([0.0, 0.1]),
        "class_weights": st.sampled_from([None, WEIGHTS]),
        "reduction": st.sampled_from(["mean", "sum"]),
    }
)


@examples(40)
@given(batches(), OPTIONS, st.sampled_from(NAMES), st.integers(1, 3), st.data())
def test_a_pipelined_step_has_the_loss_and_gradients_of_pytorchs_whole_batch(
    batch, options, name, num_ranks, data
):
    x, labels = batch
    m = data.draw(st.integers(1, len(x)))
    if data.draw(st.booleans()):  # cut by hand, into microbatches of any sizes
        inner = data.draw(st.sets(st.integers(1, len(x) - 1), max_size=m - 1))
        cuts = [0, *sorted(inner), len(x)]
        m = len(cuts) - 1
        given_batch = [
            Microbatches(array[a:b] for a, b in pairwise(cuts)) for array in (x, labels)
        ]
    else:
        given_batch = [x, labels]
    model = ours().initialise(0)
    twin = theirs_of(model)
    weights = options["class_weights"]
    expected = torch.nn.functional.cross_entropy(
        twin(torch.tensor(x)).reshape(-1, CLASSES),
        torch.tensor(labels).reshape(-1),
        weight=None if weights is None else torch.tensor(weights, dtype=torch.float64),
        ignore_index=PAD,
        label_smoothing=options["label_smoothing"],
        reduction=options["reduction"],
    )
    expected.backward()

    def step(group):
        loss = nn.CrossEntropyLoss(PAD, **options)
        pipeline = Pipeline(
            model, group, loss=loss, schedule=build(name, group.size, m)
        )
        return pipeline.step(*given_batch), {
            key: p.grad for key, p in pipeline.named_parameters()
        }

    results = spawn(step, num_ranks)
    found = {key: gradient for _, part in results for key, gradient in part.items()}
    assert all(loss == pytest.approx(expected.item(), rel=1e-12) for loss, _ in results)
    for i, layer in enumerate(model):
        if isinstance(layer, nn.Linear):
            weight, bias = found[f"{i}.weight"], found[f"{i}.bias"]
            np.testing.assert_allclose(
                weight, twin[i].weight.grad.numpy().T, rtol=1e-9, atol=1e-13
            )
            np.testing.assert_allclose(
                bias, twin[i].bias.grad.numpy(), rtol=1e-9, atol=1e-13
            )
