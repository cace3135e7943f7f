"""What tests of layers compare: PyTorch's values and gradients, and a backward in two
halves with a whole one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minipipe import Tensor, nn
from minipipe.autograd import StageInput, backward, backward_input


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def values_and_gradients(
    operation: Any, arrays: tuple[np.ndarray, ...]
) -> list[np.ndarray]:
    tensors = [Tensor(array, requires_grad=True) for array in arrays]
    result = operation(*tensors)
    result.backward(numbers(*result.shape, seed=3))
    return [result.numpy(), *(tensor.grad for tensor in tensors)]


def values_and_gradients_of_torch(
    operation: Any, arrays: tuple[np.ndarray, ...]
) -> list[np.ndarray]:
    torch = pytest.importorskip(
        "torch", reason="needs PyTorch: pip install '.[oracle]'"
    )
    tensors = [torch.tensor(array, requires_grad=True) for array in arrays]
    result = operation(torch.nn.functional, *tensors)
    result.backward(torch.tensor(numbers(*result.shape, seed=3)))
    return [result.detach().numpy(), *(tensor.grad.numpy() for tensor in tensors)]


def check_against_torch(ours: Any, theirs: Any, arrays: tuple[np.ndarray, ...]) -> None:
    """Compare ``ours(*tensors)`` with ``theirs(torch.nn.functional, *tensors)``, and
    all gradients.
    """
    expected = values_and_gradients_of_torch(theirs, arrays)
    for given, wanted in zip(values_and_gradients(ours, arrays), expected, strict=True):
        assert given.shape == wanted.shape
        np.testing.assert_allclose(given, wanted, rtol=1e-10, atol=1e-10)


def check_two_halves(make: Callable[[], nn.Module], *shape: int) -> None:
    """Compare the bits that I and W leave with those of a whole backward, over two
    microbatches of a shape.
    """
    bits = _bits_of_two_microbatches(make(), shape, split=True)
    assert bits == _bits_of_two_microbatches(make(), shape, split=False)
    assert all(np.frombuffer(each, np.float32).any() for each in bits)


def _bits_of_two_microbatches(
    model: nn.Module, shape: tuple[int, ...], split: bool
) -> list[bytes]:
    inputs, postponed = [], []
    for k in range(2):
        x = Tensor(numbers(*shape, seed=k).astype(np.float32))
        x.node = StageInput(needs_gradient=True)
        y = model(x)
        upstream = numbers(*y.shape, seed=10 + k).astype(np.float32)
        if split:
            postponed.append(backward_input({y.node: upstream}))
        else:
            backward({y.node: upstream})
        inputs.append(x.grad.tobytes())
    # I has touched no weight
    assert not split or all(parameter.grad is None for parameter in model.parameters())
    for work in postponed:
        work.run()
    return inputs + [parameter.grad.tobytes() for parameter in model.parameters()]
