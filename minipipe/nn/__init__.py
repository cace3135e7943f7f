"""Parameters, modules, layers and losses."""

from minipipe.hints import face
from minipipe.nn import initialisers as initialisers
from minipipe.nn.auxiliary_loss import AuxiliaryLoss as AuxiliaryLoss
from minipipe.nn.auxiliary_loss import AuxiliaryLosses as AuxiliaryLosses
from minipipe.nn.auxiliary_loss import auxiliary_losses as auxiliary_losses
from minipipe.nn.bundle import On as On
from minipipe.nn.bundle import Take as Take
from minipipe.nn.function import Function as Function
from minipipe.nn.layers import GELU as GELU
from minipipe.nn.layers import LSTM as LSTM
from minipipe.nn.layers import Dropout as Dropout
from minipipe.nn.layers import Embedding as Embedding
from minipipe.nn.layers import Flatten as Flatten
from minipipe.nn.layers import GroupNorm as GroupNorm
from minipipe.nn.layers import Identity as Identity
from minipipe.nn.layers import LayerNorm as LayerNorm
from minipipe.nn.layers import Linear as Linear
from minipipe.nn.layers import PositionalEmbedding as PositionalEmbedding
from minipipe.nn.layers import ReLU as ReLU
from minipipe.nn.layers import Residual as Residual
from minipipe.nn.layers import RMSNorm as RMSNorm
from minipipe.nn.layers import Sigmoid as Sigmoid
from minipipe.nn.layers import SiLU as SiLU
from minipipe.nn.layers import Tanh as Tanh
from minipipe.nn.layers import Unembedding as Unembedding
from minipipe.nn.losses import CrossEntropyLoss as CrossEntropyLoss
from minipipe.nn.losses import MSELoss as MSELoss
from minipipe.nn.module import Module as Module
from minipipe.nn.parameter import Parameter as Parameter
from minipipe.nn.recompute import Recompute as Recompute
from minipipe.nn.sequential import Sequential as Sequential
from minipipe.nn.spatial import AvgPool1d as AvgPool1d
from minipipe.nn.spatial import AvgPool2d as AvgPool2d
from minipipe.nn.spatial import Conv1d as Conv1d
from minipipe.nn.spatial import Conv2d as Conv2d
from minipipe.nn.spatial import GlobalAvgPool as GlobalAvgPool
from minipipe.nn.spatial import MaxPool1d as MaxPool1d
from minipipe.nn.spatial import MaxPool2d as MaxPool2d
from minipipe.nn.transformer import CrossAttention as CrossAttention
from minipipe.nn.transformer import DecoderBlock as DecoderBlock
from minipipe.nn.transformer import MultiHeadAttention as MultiHeadAttention
from minipipe.nn.transformer import TransformerBlock as TransformerBlock

__getattr__, __all__ = face(__name__, globals())
