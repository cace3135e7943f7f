"""Training without flushes in one process, from the formulas of the papers: no table, and nothing of the pipeline.

By stage s of p and microbatch k, which version of the weights does the forward find, and which the backward?
"""

import copy

import numpy as np

from minipipe import random_key
from minipipe.autograd.modes import current_mode, mode, setting
from minipipe.comm.job.host import limit_blas_threads


def pipedream(p, s, k):
    """Narayanan et al. 2019, section 3.3: when F of k runs, its p - 1 - s predecessors have not come back yet."""
    return max(0, k - (p - 1 - s))


def vertical_sync(p, s, k):
    """Narayanan et al. 2019, section 3.3: the version that the first stage has when k enters."""
    return max(0, k - (p - 1))


def paci(p, s, k, a):
    """Elam et al. 2026: in place, after every a backwards; forward and backward see what is there."""
    return max(0, k - (p - 1 - s)) // a, k // a


class DelayedNesterov:
    """Ajanthan et al. 2025, equation 10: w(t+1) = w(t) + d(t) - rate (1 - momentum) f'.

    There d(t) = momentum (w(t) - w(t-1)). The gradient f' is of w + d some updates ago: what a forward finds is w + d.
    """

    def __init__(self, parameters, rate, momentum):
        self.parameters, self.rate, self.momentum, self.w = parameters, rate, momentum, {}

    def step(self):
        for p in self.parameters:
            w = self.w.get(id(p), p.data)  # d(0) is 0
            self.w[id(p)] = p.data - self.rate * (1 - self.momentum) * p.grad
            p.data = self.w[id(p)] + self.momentum * (self.w[id(p)] - w)


def trained(name, model, parts, microbatches, rule, loss, a=1, seed=0):
    """Train; return the losses and the last values.

    2BW is Narayanan et al. 2021, equation of section 3.1: W(t+1) = W(t) - f(W(t-1)), with f over a microbatches.
    """
    twin = copy.deepcopy(model).initialise(seed)
    layers = twin.tied().flat_layers
    stages = [list({p.owner: 0 for i in part for p in layers[i].parameters()}) for part in parts]
    versions = [[[parameter.data.copy() for parameter in stage]] for stage in stages]
    optimiser = rule(list(twin.parameters()))
    losses, count = [], len(microbatches)
    with limit_blas_threads(1), setting(current_mode, mode()._replace(watch=None)):  # PACI changes in place
        for k, (x, y) in enumerate(microbatches):
            update = microbatches[k // a * a : (k // a + 1) * a]
            for s, stage in enumerate(stages):
                for parameter, array in zip(stage, versions[s][_forward(name, len(parts), s, k, a)]):
                    parameter.data = array.copy()
            with random_key(seed, 0, k):
                value = loss(twin(x), y)
            for s, stage in enumerate(stages if name == "paci" else ()):
                for parameter, array in zip(stage, versions[s][paci(len(parts), s, k, a)[1]]):
                    parameter.data[...] = array  # in place: a backward that multiplies by weights finds these
            value.backward(len(x) / sum(len(other) for other, _ in update))
            losses.append(float(value.data))
            if (k + 1) % a == 0 or k == count - 1:
                for s, stage in enumerate(stages):
                    for parameter, array in zip(stage, versions[s][-1]):
                        parameter.data = array.copy()
                optimiser.step()
                for s, stage in enumerate(stages):
                    versions[s].append([parameter.data.copy() for parameter in stage])
                twin.zero_grad()
    return losses, {name: np.array(parameter.data) for name, parameter in twin.named_parameters()}


def _forward(name, p, s, k, a):
    if name == "2bw":
        return max(0, k // a - 1)
    if name == "paci":
        return paci(p, s, k, a)[0]
    return {"pipedream": pipedream, "vertical-sync": vertical_sync}[name](p, s, k)
