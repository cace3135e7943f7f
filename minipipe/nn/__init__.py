"""Parameters, modules, layers and losses."""

from minipipe.nn import initialisers
from minipipe.nn.layers import Flatten, Identity, Linear, ReLU, Sequential, Sigmoid, Tanh
from minipipe.nn.losses import CrossEntropyLoss, MSELoss
from minipipe.nn.module import Module
from minipipe.nn.parameter import Parameter

__all__ = [
    "CrossEntropyLoss",
    "Flatten",
    "Identity",
    "Linear",
    "MSELoss",
    "Module",
    "Parameter",
    "ReLU",
    "Sequential",
    "Sigmoid",
    "Tanh",
    "initialisers",
]
