"""Functions of stand-alone files that do not depend on the program."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

HELPERS = {
    "add_rows": '''\
def add_rows(values, ids, shape):
    """Return zeros, with values added to the rows of their ids, in pairs."""
    order = np.argsort(ids, kind="stable")
    ids, values = ids[order], values[order]
    is_first = np.append(True, ids[1:] != ids[:-1])
    first = np.flatnonzero(is_first)
    place = np.arange(len(ids)) - first[np.cumsum(is_first) - 1]
    distance = 1
    while len(right := np.flatnonzero(place % (2 * distance) == distance)):
        values[right - distance] += values[right]
        distance *= 2
    result = np.zeros(shape, values.dtype)
    result[ids[first]] = values[first]
    return result''',
    "scattered": '''\
def scattered(gradient, index, shape):
    """Return zeros with a gradient added at an index."""
    result = np.zeros(shape, gradient.dtype)
    np.add.at(result, index, gradient)
    return result''',
    "uniform": '''\
def uniform(like, layer, k, draw):
    """Return random numbers that depend on step, layer and microbatch alone."""
    place = [0, training_step, k, draw]
    bits = np.random.Philox(key=[SEED, layer], counter=place)
    return np.random.Generator(bits).random(like.shape, dtype=np.float32)''',
}
"""Functions that statements call, by name."""

FUNCTIONS = {
    "add_gradient": '''\
def add_gradient(name, value):
    """The first microbatch of a step gives the gradient, later ones add to it."""
    gradients[name] = gradients[name] + value if name in gradients else value.copy()''',
    "send": '''\
def send(rank, tag, array):
    """Begin to send an array; step waits for all at its end."""
    array = np.ascontiguousarray(array)
    sent.append((comm.Isend(array, rank, tag), array))''',
    "receive": '''\
def receive(rank, tag, shape, dtype="float32"):
    """Wait for an array."""
    array = np.empty(shape, dtype)
    comm.Recv(array, rank, tag)
    return array''',
    "end_block": '''\
def end_block(layers):
    """Put the gradients of a block of microbatches aside."""
    own = {name: gradients.pop(name) for name in names_of(layers)}
    blocks.setdefault(layers, []).append(own)''',
    "join_blocks": '''\
def join_blocks(layers):
    """Add the gradients of all blocks in pairs."""
    parts = blocks.pop(layers)
    for name in parts[0]:
        gradients[name] = in_pairs([part[name] for part in parts])''',
    "send_gradients": '''\
def send_gradients(layers, ranks, tag):
    """Send the gradients of a stage to its other replicas."""
    for name in names_of(layers):
        for rank in ranks:
            if rank != comm.rank:
                send(rank, tag, gradients[name])''',
    "add_replicas": '''\
def add_replicas(layers, ranks, tag):
    """Add the gradients of all replicas of a stage in pairs, in this order."""
    for name in names_of(layers):
        own = gradients[name]
        terms = [
            own if rank == comm.rank else receive(rank, tag, own.shape, own.dtype)
            for rank in ranks
        ]
        gradients[name] = in_pairs(terms)''',
    "names_of": '''\
def names_of(layers):
    """Return the names of the gradients of some layers, in order."""
    return [n for n in sorted(gradients) if int(n.partition(".")[0]) in layers]''',
    "in_pairs": '''\
def in_pairs(terms):
    """Return the sum of pairs, of pairs of pairs, …"""
    if len(terms) == 1:
        return terms[0]
    half = 1 << (len(terms) - 1).bit_length() - 1
    return in_pairs(terms[:half]) + in_pairs(terms[half:])''',
}
"""Functions of gradients and messages, by name."""


def dicts(names: Collection[str], comment: str) -> Iterator[str]:
    """Yield the line that makes empty dicts, if there are any."""
    if names:
        values = ", ".join(["{}"] * len(names))
        yield f"{', '.join(names)} = {values}  # {comment}"


CLIP = '''\
def clip(limit):
    """Scale all gradients, of all ranks, so that their norm is at most the limit."""
    own = [g for name, g in gradients.items()OTHERS]
    own = [each.astype("float64") for each in own]
    squares = [float(np.add.reduce(each * each, axis=None)) for each in own]
    norm = sqrt(fsum(sum(comm.allgather(squares), [])))
    if norm > limit:
        for gradient in gradients.values():
            gradient *= limit / norm'''


def sgd(numbers: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of an update by SGD."""
    momentum = numbers["momentum"]
    decay = numbers["weight_decay"]
    yield "def update(rate):"
    options = f"momentum {momentum}, weight decay {decay}"
    yield f'    """SGD with {options}."""'
    yield "    for name, g in gradients.items():"
    if not momentum:
        gradient = "g"
        if decay:
            gradient = f"(g + {decay!r} * w[name])"
        yield f"        w[name] -= rate * {gradient}"
        return
    yield "        v = velocity[name]"
    yield f"        v *= {momentum!r}"
    if decay:
        yield f"        g = g + {decay!r} * w[name]"
    yield "        v += g"
    step = "v"
    if numbers["nesterov"]:
        step = f"(g + {momentum!r} * v)"
    yield f"        w[name] -= rate * {step}"


def adam(numbers: Mapping[str, Any], is_decoupled: bool = False) -> Iterator[str]:
    """Yield the lines of an update by Adam or AdamW."""
    beta1, beta2 = numbers["betas"]
    decay = numbers["weight_decay"]
    name = "Adam" + "W" * is_decoupled
    yield "def update(rate):"
    yield f'    """{name} with weight decay {decay}."""'
    yield "    for name, g in gradients.items():"
    yield "        p, m, v = w[name], mean[name], mean_square[name]"
    yield "        num_steps[name] += 1"
    yield "        t = int(num_steps[name])"
    yield f"        root = np.sqrt(1 - {beta2!r} ** t).item()"
    yield f"        corrected = rate * root / (1 - {beta1!r} ** t)"
    if decay and is_decoupled:
        yield f"        p *= 1 - rate * {decay!r}"
    elif decay:
        yield f"        g = g + {decay!r} * p"
    yield f"        m *= {beta1!r}"
    yield f"        m += (1 - {beta1!r}) * g"
    yield f"        v *= {beta2!r}"
    yield f"        v += (1 - {beta2!r}) * (g * g)"
    step = "corrected * m"
    if numbers["nesterov"]:
        yield f"        ahead = rate * root * {beta1!r} / (1 - {beta1!r} ** (t + 1))"
        step = f"(ahead * m + corrected * (1 - {beta1!r}) * g)"
    yield f"        p -= {step} / (np.sqrt(v) + {numbers['epsilon']!r} * root)"


UPDATES: dict[str, Callable[[Mapping[str, Any]], Iterator[str]]] = {
    "SGD": sgd,
    "Adam": adam,
    "AdamW": lambda numbers: adam(numbers, is_decoupled=True),
}
"""The lines of an update, by the class of the optimiser."""
