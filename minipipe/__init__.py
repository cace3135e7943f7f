"""minipipe: pipeline-parallel training to learn from and to run."""

from minipipe import data, functional, nn, optim, schedules
from minipipe.autograd import no_grad
from minipipe.tensor import Tensor
