"""Parameters, modules, layers and losses."""

from minipipe.hints import missing
from minipipe.nn import initialisers
from minipipe.nn.auxiliary_loss import AuxiliaryLoss, AuxiliaryLosses, auxiliary_losses
from minipipe.nn.bundle import On, Take
from minipipe.nn.function import Function
from minipipe.nn.layers import (
    GELU,
    LSTM,
    Dropout,
    Embedding,
    Flatten,
    GroupNorm,
    Identity,
    LayerNorm,
    Linear,
    PositionalEmbedding,
    ReLU,
    Residual,
    RMSNorm,
    Sigmoid,
    SiLU,
    Tanh,
    Unembedding,
)
from minipipe.nn.losses import CrossEntropyLoss, MSELoss
from minipipe.nn.module import Module
from minipipe.nn.parameter import Parameter
from minipipe.nn.recompute import Recompute
from minipipe.nn.sequential import Sequential
from minipipe.nn.spatial import AvgPool1d, AvgPool2d, Conv1d, Conv2d, GlobalAvgPool, MaxPool1d, MaxPool2d
from minipipe.nn.transformer import CrossAttention, DecoderBlock, MultiHeadAttention, TransformerBlock

__all__ = [
    "GELU",
    "LSTM",
    "AuxiliaryLoss",
    "AuxiliaryLosses",
    "AvgPool1d",
    "AvgPool2d",
    "Conv1d",
    "Conv2d",
    "CrossAttention",
    "CrossEntropyLoss",
    "DecoderBlock",
    "Dropout",
    "Embedding",
    "Flatten",
    "Function",
    "GlobalAvgPool",
    "GroupNorm",
    "Identity",
    "LayerNorm",
    "Linear",
    "MSELoss",
    "MaxPool1d",
    "MaxPool2d",
    "Module",
    "MultiHeadAttention",
    "On",
    "Parameter",
    "PositionalEmbedding",
    "RMSNorm",
    "ReLU",
    "Recompute",
    "Residual",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Take",
    "Tanh",
    "TransformerBlock",
    "Unembedding",
    "auxiliary_losses",
    "initialisers",
]


def __getattr__(name: str) -> None:
    raise missing("minipipe.nn", name, __all__)
