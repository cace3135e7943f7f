"""Optimisers, learning rates and loss scales that change, and clipping: the update after each step. No messages."""

from minipipe.hints import missing
from minipipe.optim.learning_rate import LearningRateSchedule, constant, cosine, linear, step_decay
from minipipe.optim.optimiser import Optimiser, ParameterGroup
from minipipe.optim.rules import SGD, Adam, AdamW
from minipipe.optim.scaling import (
    LossScale,
    clip_grad_norm,
    clip_gradients,
    gradient_norm,
    gradients_are_finite,
    squared_norms,
    total_norm,
)

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
    raise missing("minipipe.optim", name, __all__)
