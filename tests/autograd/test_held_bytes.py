"""Each layer holds at most the bytes, after F and after I, that it held when operations
were closures.
"""

import numpy as np
import pytest

from minipipe import Tensor, nn, random_key
from minipipe.autograd import StageInput, backward_input
from minipipe.autograd.memory import held_bytes

LABELS, TARGETS = (
    np.arange(16) % 8,
    np.random.default_rng(1).standard_normal((16, 8)).astype(np.float32),
)
ROWS, SEQUENCES, SIGNALS, IMAGES = (16, 8), (2, 6, 8), (2, 8, 6), (2, 3, 6, 6)


def between(*layers):
    return lambda: nn.Sequential(nn.Linear(8, 8), *layers, nn.Linear(8, 8))


def behind(layer, *others):
    return lambda: nn.Sequential(layer, *others)


class Loss(nn.Module):
    not_trained = ("targets",)

    def __init__(self, loss, targets):
        self.loss, self.targets = loss, targets

    def forward(self, x):
        return self.loss(x, self.targets)


def loss(function, targets):
    return lambda: nn.Sequential(nn.Linear(8, 8), Loss(function, targets))


LAYERS = {
    "Linear": (lambda: nn.Linear(8, 8), ROWS),
    "Linear of three axes": (lambda: nn.Linear(8, 8), SEQUENCES),
    "ReLU": (between(nn.ReLU()), ROWS),
    "GELU": (between(nn.GELU()), ROWS),
    "SiLU": (between(nn.SiLU()), ROWS),
    "Tanh": (between(nn.Tanh()), ROWS),
    "Sigmoid": (between(nn.Sigmoid()), ROWS),
    "Dropout": (between(nn.Dropout(0.5)), ROWS),
    "LayerNorm": (lambda: nn.LayerNorm(8), ROWS),
    "RMSNorm": (lambda: nn.RMSNorm(8), ROWS),
    "GroupNorm": (lambda: nn.GroupNorm(2, 8), SIGNALS),
    "MultiHeadAttention": (lambda: nn.MultiHeadAttention(8, 2), SEQUENCES),
    "MultiHeadAttention with dropout": (
        lambda: nn.MultiHeadAttention(8, 2, dropout=0.2),
        SEQUENCES,
    ),
    "TransformerBlock": (
        lambda: nn.TransformerBlock(8, 2, is_causal=True, dropout=0.1),
        SEQUENCES,
    ),
    "LSTM": (lambda: nn.LSTM(8, 8), SEQUENCES),
    "Conv1d": (lambda: nn.Conv1d(8, 8, 3), SIGNALS),
    "Conv2d": (lambda: nn.Conv2d(3, 4, 3, padding=1), IMAGES),
    "MaxPool1d": (behind(nn.Conv1d(8, 8, 1), nn.MaxPool1d(2)), SIGNALS),
    "AvgPool1d": (behind(nn.Conv1d(8, 8, 1), nn.AvgPool1d(2)), SIGNALS),
    "MaxPool2d": (behind(nn.Conv2d(3, 4, 1), nn.MaxPool2d(2)), IMAGES),
    "AvgPool2d, GlobalAvgPool": (
        behind(nn.Conv2d(3, 4, 1), nn.AvgPool2d(2), nn.GlobalAvgPool()),
        IMAGES,
    ),
    "Residual": (lambda: nn.Residual(nn.Linear(8, 8), nn.ReLU()), ROWS),
    "Recompute": (
        lambda: nn.Recompute(nn.Sequential(nn.Linear(8, 8), nn.ReLU())),
        ROWS,
    ),
    "Flatten": (behind(nn.Flatten(), nn.Linear(48, 8)), SEQUENCES),
    "CrossEntropyLoss": (loss(nn.CrossEntropyLoss(), LABELS), ROWS),
    "CrossEntropyLoss, smoothed": (
        loss(nn.CrossEntropyLoss(label_smoothing=0.1), LABELS),
        ROWS,
    ),
    "CrossEntropyLoss, ignoring": (
        loss(nn.CrossEntropyLoss(ignore_index=3), LABELS),
        ROWS,
    ),
    "CrossEntropyLoss, weighted": (
        loss(nn.CrossEntropyLoss(class_weights=np.arange(1.0, 9.0)), LABELS),
        ROWS,
    ),
    "MSELoss": (loss(nn.MSELoss(), TARGETS), ROWS),
}
# By layer, the bytes with closures: after F, after I.
HELD = {
    "Linear": (512, 1024),
    "Linear of three axes": (384, 768),
    "ReLU": (1024, 2048),
    "GELU": (1536, 2048),
    "SiLU": (1536, 2048),
    "Tanh": (1024, 2048),
    "Sigmoid": (1024, 2048),
    "Dropout": (1152, 2048),
    "LayerNorm": (576, 1024),
    "RMSNorm": (576, 1024),
    "GroupNorm": (400, 768),
    "MultiHeadAttention": (2880, 2304),
    "MultiHeadAttention with dropout": (3456, 2304),
    "TransformerBlock": (7392, 7680),
    "LSTM": (2688, 2688),
    "Conv1d": (384, 640),
    "Conv2d": (864, 2016),
    "MaxPool1d": (432, 768),
    "AvgPool1d": (384, 768),
    "MaxPool2d": (936, 2016),
    "AvgPool2d, GlobalAvgPool": (864, 2016),
    "Residual": (1024, 1024),
    "Recompute": (512, 1024),
    "Flatten": (384, 448),
    "CrossEntropyLoss": (1152, 1024),
    "CrossEntropyLoss, smoothed": (1536, 1024),
    "CrossEntropyLoss, ignoring": (1540, 1024),
    "CrossEntropyLoss, weighted": (1540, 1024),
    "MSELoss": (1024, 1024),
}


@pytest.fixture(autouse=True)
def watching():
    """Watch nothing, unlike other tests: a watched array is kept twice."""


def held(make, shape):
    """Return the bytes that a layer holds after F and after I; its parameters do not
    count.
    """
    layer = make().initialise(0)
    x = Tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32))
    x.node = StageInput(needs_gradient=True)
    with random_key(1):
        y = layer(x)
    parameters, root, gradient = (
        [p.data for p in layer.parameters()],
        y.node,
        np.ones(y.shape, np.float32),
    )
    del x, y
    return held_bytes([root], parameters), held_bytes(
        [backward_input({root: gradient})], parameters
    )


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_holds_no_more_than_with_closures(name):
    after_f, after_i = held(*LAYERS[name])
    assert after_f <= HELD[name][0] and after_i <= HELD[name][1]
    assert (after_f, after_i) != (0, 0)
