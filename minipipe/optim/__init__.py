"""Optimisers, learning rates and loss scales that change, and clipping: the update after each step. No messages."""

from minipipe.habits import OPTIMISERS, missing
from minipipe.optim.adam import Adam, AdamW
from minipipe.optim.clipping import clip_grad_norm, clip_gradients, gradient_norm, squared_norms, total_norm
from minipipe.optim.learning_rate import LearningRateSchedule, constant, cosine, linear, step_decay
from minipipe.optim.loss_scale import LossScale, gradients_are_finite
from minipipe.optim.optimiser import Optimiser
from minipipe.optim.parameter_group import ParameterGroup
from minipipe.optim.sgd import SGD

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "LearningRateSchedule",
    "LossScale",
    "Optimiser",
    "ParameterGroup",
    "clip_grad_norm",
    "clip_gradients",
    "constant",
    "cosine",
    "gradient_norm",
    "gradients_are_finite",
    "linear",
    "squared_norms",
    "step_decay",
    "total_norm",
]


def __getattr__(name: str) -> None:
    raise missing("minipipe.optim", name, OPTIMISERS, __all__)
