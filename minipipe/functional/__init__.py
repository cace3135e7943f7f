"""Operations: each one's forward and its gradients side by side.

To add an operation, write one function that ends in ``record(result, (input, vjp), …)`` and name it here; a test
fails until it has a gradient check.
"""

from minipipe.functional import operators as operators  # attaches arithmetic to Tensor
from minipipe.functional.attention import attention as attention
from minipipe.functional.attention import rotary as rotary
from minipipe.functional.attention import self_attention as self_attention
from minipipe.functional.contraction import einsum as einsum
from minipipe.functional.contraction import matmul as matmul
from minipipe.functional.elementwise import add as add
from minipipe.functional.elementwise import divide as divide
from minipipe.functional.elementwise import dropout as dropout
from minipipe.functional.elementwise import exp as exp
from minipipe.functional.elementwise import log as log
from minipipe.functional.elementwise import multiply as multiply
from minipipe.functional.elementwise import negative as negative
from minipipe.functional.elementwise import power as power
from minipipe.functional.elementwise import relu as relu
from minipipe.functional.elementwise import sigmoid as sigmoid
from minipipe.functional.elementwise import silu as silu
from minipipe.functional.elementwise import sqrt as sqrt
from minipipe.functional.elementwise import subtract as subtract
from minipipe.functional.elementwise import tanh as tanh
from minipipe.functional.embedding import embedding as embedding
from minipipe.functional.gelu import erf as erf
from minipipe.functional.gelu import gelu as gelu
from minipipe.functional.linear import linear as linear
from minipipe.functional.loss import cross_entropy as cross_entropy
from minipipe.functional.loss import log_softmax as log_softmax
from minipipe.functional.loss import logsumexp as logsumexp
from minipipe.functional.loss import mean_squared_error as mean_squared_error
from minipipe.functional.loss import softmax as softmax
from minipipe.functional.normalisation import group_norm as group_norm
from minipipe.functional.normalisation import layer_norm as layer_norm
from minipipe.functional.normalisation import rms_norm as rms_norm
from minipipe.functional.operands import astype as astype
from minipipe.functional.operands import in_float32 as in_float32
from minipipe.functional.recurrent import lstm as lstm
from minipipe.functional.reduction import amax as amax
from minipipe.functional.reduction import amin as amin
from minipipe.functional.reduction import mean as mean
from minipipe.functional.reduction import total as total
from minipipe.functional.reduction import variance as variance
from minipipe.functional.shape import clip as clip
from minipipe.functional.shape import concatenate as concatenate
from minipipe.functional.shape import contiguous as contiguous
from minipipe.functional.shape import identity as identity
from minipipe.functional.shape import index as index
from minipipe.functional.shape import masked_fill as masked_fill
from minipipe.functional.shape import reshape as reshape
from minipipe.functional.shape import split as split
from minipipe.functional.shape import stack as stack
from minipipe.functional.shape import transpose as transpose
from minipipe.functional.shape import where as where
from minipipe.functional.windows import avg_pool1d as avg_pool1d
from minipipe.functional.windows import avg_pool2d as avg_pool2d
from minipipe.functional.windows import conv1d as conv1d
from minipipe.functional.windows import conv2d as conv2d
from minipipe.functional.windows import global_avg_pool as global_avg_pool
from minipipe.functional.windows import max_pool1d as max_pool1d
from minipipe.functional.windows import max_pool2d as max_pool2d
from minipipe.hints import face

__getattr__, __all__ = face(__name__, globals())
