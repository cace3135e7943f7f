"""The public names of ``minipipe.optim``, for type checkers and for ``minipipe._lazy``, one on a line."""

from minipipe.optim.learning_rate import LearningRateSchedule as LearningRateSchedule
from minipipe.optim.learning_rate import constant as constant
from minipipe.optim.learning_rate import cosine as cosine
from minipipe.optim.learning_rate import linear as linear
from minipipe.optim.learning_rate import step_decay as step_decay
from minipipe.optim.muon import Muon as Muon
from minipipe.optim.muon import muon_groups as muon_groups
from minipipe.optim.muon import orthogonalised as orthogonalised
from minipipe.optim.optimiser import Optimiser as Optimiser
from minipipe.optim.optimiser import ParameterGroup as ParameterGroup
from minipipe.optim.rules import SGD as SGD
from minipipe.optim.rules import Adam as Adam
from minipipe.optim.rules import AdamW as AdamW
from minipipe.optim.scaling import LossScale as LossScale
from minipipe.optim.scaling import clip_grad_norm as clip_grad_norm
from minipipe.optim.scaling import clip_gradients as clip_gradients
from minipipe.optim.scaling import gradient_norm as gradient_norm
from minipipe.optim.scaling import gradients_are_finite as gradients_are_finite
from minipipe.optim.scaling import squared_norms as squared_norms
from minipipe.optim.scaling import total_norm as total_norm
