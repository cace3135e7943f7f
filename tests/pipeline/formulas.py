"""Training without flushes in one process, from the formulas of the papers: no table,
and nothing of the pipeline.

By stage s of p and microbatch k, which version of the weights does the forward find,
and which the backward?
"""

import copy

import numpy as np

from minipipe import random_key
from minipipe.core.autograd.modes import current_mode, mode, setting
from minipipe.core.comm.host import limit_blas_threads


def pipedream(p, s, k):
    """Narayanan et al. 2019, section 3.3: when F of k runs, its p - 1 - s predecessors
    have not come back yet.
    """
    return max(0, k - (p - 1 - s))


def vertical_sync(p, s, k):
    """Narayanan et al. 2019, section 3.3: the version that the first stage has when k
    enters.
    """
    return max(0, k - (p - 1))


def paci(p, s, k, a):
    """Elam et al. 2026: in place, after every a backwards; forward and backward see
    what is there.
    """
    return max(0, k - (p - 1 - s)) // a, k // a


class DelayedNesterov:
    """Ajanthan et al. 2025, equation 10: w(t+1) = w(t) + d(t) - rate (1 - momentum) f'.

    There d(t) = momentum (w(t) - w(t-1)). The gradient f' is of w + d some updates ago:
    what a forward finds is w + d.
    """

    def __init__(self, parameters, rate, momentum):
        self.parameters, self.rate, self.momentum, self.w = (
            parameters,
            rate,
            momentum,
            {},
        )

    def step(self):
        for p in self.parameters:
            w = self.w.get(id(p), p.data)  # d(0) is 0
            self.w[id(p)] = p.data - self.rate * (1 - self.momentum) * p.grad
            p.data = self.w[id(p)] + self.momentum * (self.w[id(p)] - w)


def trained(name, model, parts, microbatches, rule, loss, a=1, seed=0, replicas=1):
    """Train; return the losses and the last values.

    2BW is Narayanan et al. 2021, equation of section 3.1: W(t+1) = W(t) - f(W(t-1)),
    with f over a microbatches. Of several replicas each has a part of the microbatches,
    one after the other; an update takes a of each, and adds the sums of the replicas in
    pairs.
    """
    twin = copy.deepcopy(model).initialise(seed)
    layers = twin.tied().flat_layers
    stages = [
        list({p.owner: 0 for i in part for p in layers[i].parameters()})
        for part in parts
    ]
    versions = [[[parameter.data.copy() for parameter in stage]] for stage in stages]
    optimiser = rule(list(twin.parameters()))
    losses, count = {}, len(microbatches) // replicas
    gradients = [{} for _ in range(replicas)]
    with (
        limit_blas_threads(1),
        setting(current_mode, mode()._replace(watch=None)),
    ):  # PACI changes in place
        for k, d in ((k, d) for k in range(count) for d in range(replicas)):
            x, y = microbatches[d * count + k]
            update = range(k // a * a, min(count, (k // a + 1) * a))
            size = sum(
                len(microbatches[e * count + other][0])
                for other in update
                for e in range(replicas)
            )
            for s, stage in enumerate(stages):
                for parameter, array in zip(
                    stage, versions[s][_forward(name, len(parts), s, k, a)]
                ):
                    parameter.data = array.copy()
            for parameter in twin.parameters() if replicas > 1 else ():
                parameter.grad = gradients[d].get(id(parameter))
            with random_key(seed, 0, d * count + k):
                value = loss(twin(x), y)
            for s, stage in enumerate(stages if name == "paci" else ()):
                for parameter, array in zip(
                    stage, versions[s][paci(len(parts), s, k, a)[1]]
                ):
                    # in place: a backward that multiplies by weights finds these
                    parameter.data[...] = array
            value.backward(len(x) / size)
            losses[d * count + k] = float(value.data)
            gradients[d] = {
                id(parameter): parameter.grad for parameter in twin.parameters()
            }
            if k == update[-1] and d == replicas - 1:
                for s, stage in enumerate(stages):
                    for parameter, array in zip(stage, versions[s][-1]):
                        parameter.data = array.copy()
                for parameter in twin.parameters() if replicas > 1 else ():
                    parameter.grad = sum_in_pairs(
                        [of_replica[id(parameter)] for of_replica in gradients]
                    )
                optimiser.step()
                for s, stage in enumerate(stages):
                    versions[s].append([parameter.data.copy() for parameter in stage])
                twin.zero_grad()
                gradients = [{} for _ in range(replicas)]
    values = {
        name: np.array(parameter.data) for name, parameter in twin.named_parameters()
    }
    return [losses[k] for k in sorted(losses)], values


def sum_in_pairs(arrays):
    """Of pairs, and of pairs of those, and so on; some may be None."""
    if len(arrays) == 1:
        return arrays[0]
    half = 2 ** ((len(arrays) - 1).bit_length() - 1)
    left, right = sum_in_pairs(arrays[:half]), sum_in_pairs(arrays[half:])
    return right if left is None else left if right is None else left + right


def _forward(name, p, s, k, a):
    if name == "2bw":
        return max(0, k // a - 1)
    if name == "paci":
        return paci(p, s, k, a)[0]
    return {"pipedream": pipedream, "vertical-sync": vertical_sync}[name](p, s, k)
