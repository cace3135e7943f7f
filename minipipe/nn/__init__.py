"""Parameters, modules, layers and losses."""

from minipipe.habits import MODULES, missing
from minipipe.nn import initialisers
from minipipe.nn.activations import GELU, ReLU, Sigmoid, SiLU, Tanh
from minipipe.nn.attention import MultiHeadAttention, TransformerBlock, Unembedding
from minipipe.nn.convolution import Conv1d, Conv2d
from minipipe.nn.embedding import Embedding, PositionalEmbedding
from minipipe.nn.function import Function
from minipipe.nn.layers import Dropout, Flatten, Identity, Linear
from minipipe.nn.losses import CrossEntropyLoss, MSELoss
from minipipe.nn.module import Module
from minipipe.nn.normalisation import GroupNorm, LayerNorm, RMSNorm
from minipipe.nn.parameter import Parameter
from minipipe.nn.pooling import AvgPool1d, AvgPool2d, GlobalAvgPool, MaxPool1d, MaxPool2d
from minipipe.nn.recompute import Recompute
from minipipe.nn.recurrent import LSTM
from minipipe.nn.residual import Residual
from minipipe.nn.sequential import Sequential

__all__ = [
    "GELU",
    "LSTM",
    "AvgPool1d",
    "AvgPool2d",
    "Conv1d",
    "Conv2d",
    "CrossEntropyLoss",
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
    "Parameter",
    "PositionalEmbedding",
    "RMSNorm",
    "ReLU",
    "Recompute",
    "Residual",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Tanh",
    "TransformerBlock",
    "Unembedding",
    "initialisers",
]


def __getattr__(name: str) -> None:
    raise missing("minipipe.nn", name, MODULES, __all__)
