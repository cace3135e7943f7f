"""A language model in NumPy whose training can be reordered, rounded, and made wrong.

Tokens are embedded, pass through layers with skip connections, and the same embedding
predicts the next token: a tied weight. Texts have unequal lengths.
"""

from typing import NamedTuple

import numpy as np

from minipipe.referee.formats import FORMATS

SYMBOLS = 17


class Plan(NamedTuple):
    """One training. All but ``mutant`` and the first lines change only roundings.

    Attributes
    ----------
    order : permutation of the microbatches, or None
    blocks : number of replicas, whose sums are added last
    shards : parts of the inner products, as in tensor parallelism
    accumulate : format of the sum of gradients, or empty
    is_even : whether all texts but one are equally long
    nudge : function of the first weights
    mutant : name of a bug, or empty
    where : its microbatch or step
    """

    seed: int = 0
    width: int = 16
    layers: int = 2
    sequences: int = 16
    length: int = 8
    steps: int = 1
    rate: float = 0.3
    optimiser: str = "sgd"
    dropout: float = 0.0
    fixed_batch: bool = False
    num_microbatches: int = 4
    order: tuple = None
    blocks: int = 1
    shards: int = 1
    dtype: str = "float32"
    accumulate: str = ""
    is_even: bool = False
    nudge: object = None
    mutant: str = ""
    where: int = 0


def initial(plan):
    """Return the weights by name."""
    random = np.random.default_rng(plan.seed)
    weights = {"0.weight": 0.5 * random.standard_normal((SYMBOLS, plan.width))}
    for layer in range(1, plan.layers + 1):
        scale = 1 / np.sqrt(plan.width)
        weights[f"{layer}.weight"] = scale * random.standard_normal((plan.width,) * 2)
        weights[f"{layer}.bias"] = 0.1 * random.standard_normal(plan.width)
    weights = {name: w.astype("float32") for name, w in weights.items()}
    if plan.nudge:
        weights = {name: plan.nudge(w) for name, w in weights.items()}
    return {name: w.astype(plan.dtype) for name, w in weights.items()}


def batch(plan, step):
    """Return sequences of tokens and their lengths."""
    if plan.fixed_batch:
        step = 0
    random = np.random.default_rng((plan.seed, step, 1))
    tokens = random.integers(0, SYMBOLS, (plan.sequences, plan.length + 1))
    tokens[:, 1::2] = (tokens[:, :-1:2] + 1) % SYMBOLS  # something to learn
    lengths = random.integers(2, plan.length + 1, plan.sequences)
    if plan.is_even:
        lengths[:] = plan.length
        lengths[0] -= 1
    return tokens, np.sort(lengths)


def product(a, b, shards):
    """Return a @ b as a sum over shards of the inner dimension."""
    if shards == 1:
        return a @ b
    parts = np.array_split(np.arange(a.shape[1]), shards)
    return sum(a[:, part] @ b[part] for part in parts)


def forward_and_backward(weights, tokens, lengths, plan, key):
    """Return the mean loss over the tokens of a microbatch, and its gradients."""
    mask = np.arange(plan.length) < lengths[:, None]
    inputs, targets = tokens[:, :-1][mask], tokens[:, 1:][mask]
    hidden = weights["0.weight"][inputs]
    saved = []
    random = np.random.default_rng((plan.seed, *key, 2))
    for layer in range(1, plan.layers + 1):
        w, bias = weights[f"{layer}.weight"], weights[f"{layer}.bias"]
        outputs = np.tanh(product(hidden, w, plan.shards) + bias)
        kept = np.ones_like(outputs)
        if plan.dropout:
            kept = random.random(outputs.shape) >= plan.dropout
            kept = (kept / (1 - plan.dropout)).astype(plan.dtype)
        saved.append((hidden, outputs, kept))
        hidden = hidden + outputs * kept
    logits = product(hidden, weights["0.weight"].T, plan.shards)
    logits = logits - logits.max(axis=1, keepdims=True)
    probabilities = np.exp(logits)
    sums = probabilities.sum(axis=1, keepdims=True)
    rows = np.arange(len(targets))
    losses = np.log(sums[:, 0]) - logits[rows, targets]
    g = probabilities / sums
    g[rows, targets] -= 1
    g /= np.array(len(targets), plan.dtype)
    gradients = {}
    of_output = g.T @ hidden
    g = product(g, weights["0.weight"], plan.shards)
    for layer in range(plan.layers, 0, -1):
        hidden, outputs, kept = saved[layer - 1]
        inner = g * kept * (1 - outputs * outputs)
        gradients[f"{layer}.weight"] = hidden.T @ inner
        gradients[f"{layer}.bias"] = inner.sum(axis=0)
        g = g + product(inner, weights[f"{layer}.weight"].T, plan.shards)
    of_input = np.zeros_like(weights["0.weight"])
    np.add.at(of_input, inputs, g)
    if plan.mutant == "tied weight counted once":
        of_input *= 0
    gradients["0.weight"] = of_output + of_input
    return losses.mean(), gradients


def add(terms, plan):
    """Return the sum of the microbatches' gradients."""
    if plan.accumulate:
        grid = FORMATS[plan.accumulate]
        total = np.zeros(terms[0].shape)
        for term in terms:
            total = grid.rounded(total + term)
        return total.astype("float32")
    sums = []
    for block in np.array_split(np.arange(len(terms)), plan.blocks):
        total = terms[block[0]].copy()
        for k in block[1:]:
            total += terms[k]
        sums.append(total)
    return sum(sums[1:], sums[0])


def step_of(weights, plan, step):
    """Return the loss of a batch, its gradients, and the part of each microbatch."""
    tokens, lengths = batch(plan, step)
    parts = np.array_split(np.arange(plan.sequences), plan.num_microbatches)
    order = list(plan.order or range(len(parts)))
    count = lengths.sum()
    loss, terms = 0.0, {}
    for k in order:
        part = parts[k]
        weight = lengths[part].sum() / count
        if plan.mutant == "mean of means":
            weight = 1 / len(parts)
        if plan.mutant == "a missing microbatch" and k == plan.where % len(parts):
            continue
        if plan.mutant == "loss scaled twice":
            weight = weight / len(parts)
        key = (step, 0 if plan.mutant == "dropout keys shared" else k)
        value, gradients = forward_and_backward(
            weights, tokens[part], lengths[part], plan, key
        )
        loss += weight * float(value)
        weight = np.array(weight, plan.dtype)
        terms[k] = {name: weight * g for name, g in gradients.items()}
    total = {}
    for name in weights:
        total[name] = add([terms[k][name] for k in terms], plan)
    return loss, total, terms


def train(plan):
    """Return by name all that a run could record."""
    weights = initial(plan)
    record = {f"step/0/weights/{name}": w for name, w in weights.items()}
    moments = {
        name: [np.zeros_like(w), np.zeros_like(w)] for name, w in weights.items()
    }
    losses, before = [], weights
    for step in range(1, plan.steps + 1):
        is_stale = plan.mutant == "one stale update" and step == plan.where
        loss, total, terms = step_of(weights, plan, step)
        if is_stale:
            _, total, terms = step_of(before, plan, step)
        losses.append(loss)
        for name, g in total.items():
            record[f"step/{step}/gradients/{name}"] = g
            for k in terms:
                record[f"step/{step}/microbatch/{k}/gradients/{name}"] = terms[k][name]
        before = weights
        weights = updated(weights, total, moments, plan, step)
        for name, w in weights.items():
            record[f"step/{step}/weights/{name}"] = w
    return {"loss": np.array(losses), **record}


def updated(weights, gradients, moments, plan, step):
    """Return the weights after SGD or Adam."""
    result = {}
    for name, w in weights.items():
        g = gradients[name].astype(plan.dtype)
        if plan.optimiser == "adam":
            m, v = moments[name]
            m[:] = 0.9 * m + 0.1 * g
            v[:] = 0.999 * v + 0.001 * g * g
            g = m / (1 - 0.9**step) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
        result[name] = (w - plan.rate * g).astype(plan.dtype)
    return result
