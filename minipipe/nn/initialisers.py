"""First values of parameters: the public names of ``core/nn/initialisers.py``."""

from minipipe.core.familiar import names_of
from minipipe.core.nn.initialisers import Initialiser as Initialiser
from minipipe.core.nn.initialisers import constant as constant
from minipipe.core.nn.initialisers import generator_for as generator_for
from minipipe.core.nn.initialisers import glorot_normal as glorot_normal
from minipipe.core.nn.initialisers import glorot_uniform as glorot_uniform
from minipipe.core.nn.initialisers import he_normal as he_normal
from minipipe.core.nn.initialisers import he_uniform as he_uniform
from minipipe.core.nn.initialisers import lecun_normal as lecun_normal
from minipipe.core.nn.initialisers import normal as normal
from minipipe.core.nn.initialisers import truncated_normal as truncated_normal
from minipipe.core.nn.initialisers import uniform as uniform

__all__ = [
    "Initialiser",
    "constant",
    "generator_for",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "lecun_normal",
    "normal",
    "truncated_normal",
    "uniform",
]
__getattr__ = names_of(__name__, __all__)
