# %% [markdown]
# # 15 · Means in metrics, accumulation and layers
#
# In this lesson you meet a check that finds results which depend on the number of
# microbatches. Then you use it on the other means in a training: accumulated batches,
# metrics, auxiliary losses, and layers that look at the whole batch.
#
# In lesson 14 a loss was a mean over microbatches instead of a mean over the tokens of
# the batch. The gradient was wrong, and nothing raised an error. The same mistake is
# possible wherever a mean is taken.

# %%
import textwrap

import numpy as np

from minipipe import (
    Microbatches,
    Pipeline,
    functional,
    nn,
    optim,
    spawn,
    split_microbatches,
    watch_everything,
)
from minipipe.testing import check_independent_of_microbatches

# an array changed in place between forward and backward is an error, not a wrong
# gradient
watch_everything()

# %% [markdown]
# ## The batch and the model of lesson 14
#
# The batch has eight texts of letters from a to f. Each text ends with the token 0. Two
# texts are long and six are short, so the four microbatches have 25, 5, 5 and 5 tokens.
# The rest of each row is padding. The model reads a letter and predicts the next one.
# (Lesson 14 explains this cell and the next one; skip them if you remember them.)

# %%
END, PAD = 0, -100
LENGTHS = (13, 12, 3, 2, 2, 3, 3, 2)  # in tokens to predict: the letters, and the end


def make_batch(lengths, seed=0):
    """Return inputs and labels of shape (texts, longest): random letters, then the end, then padding."""
    generator = np.random.default_rng(seed)
    inputs = np.full((len(lengths), max(lengths)), END)
    labels = np.full((len(lengths), max(lengths)), PAD)
    for row, length in enumerate(lengths):
        letters = generator.integers(1, 7, length - 1)
        inputs[row, 1:length] = letters
        labels[row, :length] = [*letters, END]
    return inputs, labels


def make_model(*layers):
    """Return a model of letters, with these layers in the middle."""
    first = nn.Embedding(7, 8, dtype=np.float64), nn.Linear(8, 16, dtype=np.float64)
    return nn.Sequential(*first, *layers, nn.Tanh(), nn.Linear(16, 7, dtype=np.float64))


inputs, labels = make_batch(LENGTHS)
counts = [
    int((labels[part] != PAD).sum()) for part in split_microbatches(len(labels), 4)
]
print(f"tokens in each of four microbatches: {counts}")
assert counts == [25, 5, 5, 5] and labels.size == 104

# %% [markdown]
# The number by which a loss divides to get its mean is called its *weight*.
# `token_loss` counts tokens, and its method `weight` says so; it is right.
# `over_tokens` is a bare function. The pipeline assumes that its mean is over texts, so
# it is the mistake of lesson 14. `over_texts` really is a mean over texts.
#
# To compare a gradient with the right one, we print the cosine of the angle between
# them and the ratio of their lengths. Both are 1 if the gradients are equal.

# %%
token_loss = nn.CrossEntropyLoss(ignore_index=PAD)


def over_tokens(outputs, labels):
    """Return the mean over the tokens of the argument, which is one microbatch."""
    return functional.cross_entropy(outputs, labels, ignore_index=PAD)


def over_texts(outputs, labels):
    """Return the mean over texts of the mean over the tokens of each."""
    means = [over_tokens(outputs[row], labels[row]) for row in range(labels.shape[0])]
    return functional.stack(means).mean()


def together(results):
    """Return the loss of a step, and the gradients of all ranks as one vector."""
    gradients = {
        name: gradient for _, local in results for name, gradient in local.items()
    }
    return results[0][0], np.concatenate(
        [gradients[name].ravel() for name in sorted(gradients)]
    )


def measure(loss, num_microbatches, x=inputs, y=labels, model=None):
    """Return the loss of a step on two ranks, and its gradient."""

    def run(group):
        pipeline = Pipeline(
            model or make_model(), group, loss=loss, num_microbatches=num_microbatches
        )
        return float(pipeline.step(x, y)), {
            name: p.grad for name, p in pipeline.named_parameters()
        }

    return together(spawn(run, num_ranks=2))


def compare(gradient, right):
    """Return the cosine of the angle between two gradients, and the ratio of their lengths."""
    lengths = np.linalg.norm(gradient), np.linalg.norm(right)
    return float(gradient @ right / (lengths[0] * lengths[1])), float(
        lengths[0] / lengths[1]
    )


right_loss, right = measure(token_loss, 1)  # a batch in one piece has only one mean
for name, loss in (("token_loss", token_loss), ("over_tokens", over_tokens)):
    measured, gradient = measure(loss, 4)
    cosine, ratio = compare(gradient, right)
    print(
        f"{name:11} loss {measured:.3f}, cosine to the right gradient "
        f"{cosine:.3f}, length {ratio:.3f} times"
    )
    is_right = (
        abs(measured - right_loss) < 1e-12
        and abs(cosine - 1) < 1e-12
        and abs(ratio - 1) < 1e-12
    )
    assert is_right == (loss is token_loss)
    assert is_right or [round(measured, 3), round(cosine, 3), round(ratio, 3)] == [
        1.928,
        0.700,
        1.152,
    ]

# %% [markdown]
# The wrong gradient points in another direction, and is 15 % too long.
#
# ## A check
#
# All mistakes of this kind break one rule: the result must not depend on the number of
# microbatches. `check_independent_of_microbatches` runs a step with several numbers of
# microbatches, and compares losses and gradients.


# %%
def complaint_about(model, loss, x=inputs, y=labels):
    """Return the message of the check, or an empty text."""

    def run(group):
        pipeline = Pipeline(model, group, loss=loss, num_microbatches=4)
        check_independent_of_microbatches(pipeline, x, y, counts=(1, 2, 4, 8))

    try:
        spawn(run, num_ranks=2)
    except AssertionError as error:
        return str(error)
    return ""


wrong = complaint_about(make_model(), over_tokens)
print(textwrap.fill(wrong, 100))
assert "depends on the number of microbatches: with 2" in wrong
assert (
    complaint_about(make_model(), token_loss)
    == complaint_about(make_model(), over_texts)
    == ""
)

# %% [markdown]
# It reports `over_tokens`, and accepts the two right losses, as the asserts check.
#
# Use a batch as uneven as any that you will train with. If all texts have the same
# length, the wrong loss passes:

# %%
even = make_batch((5,) * 8)
print(
    "texts of equal lengths:",
    complaint_about(make_model(), over_tokens, *even) or "no complaint",
)
assert complaint_about(make_model(), over_tokens, *even) == ""

# %% [markdown]
# ## Sums and the learning rate
#
# With `reduction="sum"` nothing is divided: the losses and gradients of microbatches
# are added. The result does not depend on the number of microbatches. But the loss is N
# times the mean over N tokens, and so is the gradient. Take the two halves of our
# batch, and compare the sum with the mean:

# %%
batches = [(inputs[:4], labels[:4]), (inputs[4:], labels[4:])]
sum_loss = nn.CrossEntropyLoss(ignore_index=PAD, reduction="sum")
tokens = [token_loss.weight(y) for _, y in batches]
for (x, y), num_tokens in zip(batches, tokens):
    added, of_sum = measure(sum_loss, 4, x, y)
    mean, of_mean = measure(token_loss, 4, x, y)
    cosine, ratio = compare(of_sum, of_mean)
    print(
        f"{num_tokens:g} tokens: sum {added:.2f}, mean {mean:.4f}; the gradient "
        f"is {ratio:.1f} times as long"
    )
    assert (
        abs(added - num_tokens * mean) < 1e-9
        and abs(cosine - 1) < 1e-12
        and abs(ratio - num_tokens) < 1e-9
    )
assert tokens == [30, 10]

# %% [markdown]
# With SGD, a gradient that is N times as long acts like a learning rate that is N times
# as large, and N varies from batch to batch. If you change from mean to sum, divide the
# learning rate by N.
#
# Adam hides the difference, because it divides by the size of the gradient. Clipping
# does not: `pipeline.clip_grad_norm(1.0)` shortens a gradient that is N times as long N
# times as much. Such a factor is easy to miss. In torchtitan a model had gradients of
# the mean without a pipeline and of the sum with one (issue 2972, 2026). The printed
# losses agreed, because they were divided after the backward.
#
# ## Several batches in one update
#
# If a batch does not fit into memory, compute several smaller ones and add their
# gradients. `step(…, accumulate=True)` adds, and `scale=` multiplies the gradients of a
# batch. With `scale=1/2` for each of two batches you get the mean of two batch means.
# That is the same mistake again, and it is the one that was found in Transformers. The
# scale must be the batch's fraction of all tokens, so count the tokens before the first
# step. The next cell tries three ways.


# %%
def accumulate(loss, scales):
    """Return the losses of two batches of two microbatches each, and their gradient."""

    def run(group):
        pipeline = Pipeline(make_model(), group, loss=loss, num_microbatches=2)
        losses = [
            float(pipeline.step(x, y, accumulate=number > 0, scale=scale))
            for number, ((x, y), scale) in enumerate(zip(batches, scales))
        ]
        return losses, {name: p.grad for name, p in pipeline.named_parameters()}

    return together(spawn(run, num_ranks=2))


for name, loss, scales in (
    ("mean, scale = 1/2", token_loss, [1 / 2, 1 / 2]),
    ("mean, scale = its tokens / all tokens", token_loss, [30 / 40, 10 / 40]),
    ("sum, scale = 1 / all tokens", sum_loss, [1 / 40, 1 / 40]),
):
    losses, gradient = accumulate(loss, scales)
    cosine, ratio = compare(gradient, right)
    total = sum(scale * each for scale, each in zip(scales, losses))
    print(f"{name:38} cosine {cosine:.3f}, length {ratio:.3f}, loss {total:.4f}")
    is_right = (
        abs(cosine - 1) < 1e-12
        and abs(ratio - 1) < 1e-12
        and abs(total - right_loss) < 1e-12
    )
    assert is_right == (name != "mean, scale = 1/2")
    assert is_right or [round(cosine, 3), round(ratio, 3), round(total, 4)] == [
        0.853,
        1.118,
        1.9351,
    ]

# %% [markdown]
# Only the first way is wrong. (`scale` multiplies the gradients, and leaves the loss
# that `step` returns as it is. The program therefore multiplies the losses by the same
# scales before it adds them, in `total`.)
#
# ## Less padding
#
# In our batch 62 % of the places are padding, and the model computes them all. Texts of
# similar length need little padding if they are in the same microbatch. `Microbatches`
# takes microbatches that are already divided, of any lengths. Each counts with its
# number of tokens, so the mean stays the same.

# %%
parts = split_microbatches(8, 4)
longest = [max(LENGTHS[part]) for part in parts]
x = Microbatches([inputs[part, :length] for part, length in zip(parts, longest)])
y = Microbatches([labels[part, :length] for part, length in zip(parts, longest)])
places = sum(part.size for part in y.parts)
loss, gradient = measure(token_loss, 4, x, y)
cosine, ratio = compare(gradient, right)
print(f"{labels.size} places become {places}, for the same {sum(counts)} tokens")
print(
    f"loss {loss:.3f}, before {right_loss:.3f}; cosine {cosine:.3f}, length {ratio:.3f}"
)
assert longest == [13, 3, 3, 3] and places == 44 and sum(counts) == 40
assert abs(loss - right_loss) < 1e-12 and np.allclose(
    gradient, right, rtol=1e-9, atol=1e-12
)
assert abs(cosine - 1) < 1e-12 and abs(ratio - 1) < 1e-12

# %% [markdown]
# The loss and the gradient are equal to those of the padded batch, up to rounding.
#
# (Now microbatches take unequal times, and a long one delays the others, as a slow
# stage does in lesson 12. So divide a batch into microbatches of about equally many
# places, rather than equally many texts.)
#
# ## Metrics
#
# A training program also prints metrics, such as accuracy. `step` and `evaluate` take
# `metrics`: functions of the outputs and the targets of a microbatch. The pipeline
# combines their values **with the weights of the loss**. A metric must therefore take
# its mean over the same things as the loss. The accuracy of tokens does. The fraction
# of texts whose end was predicted is a mean over texts, and does not. The cell compares
# three ways to compute each metric: from the whole batch, as the mean of microbatches,
# and with `metrics=`.


# %%
def accuracy(outputs, labels):
    """Return the fraction of tokens that were predicted."""
    counted = labels != PAD
    return ((outputs.argmax(axis=-1) == labels) & counted).sum() / max(1, counted.sum())


def ends_found(outputs, labels):
    """Return the fraction of texts whose end was predicted."""
    return ((outputs.argmax(axis=-1) == END) & (labels == END)).sum() / len(labels)


def evaluate(group):
    """Train for 200 steps, and evaluate on the same texts."""
    pipeline = Pipeline(make_model(), group, loss=token_loss, num_microbatches=4)
    optimiser = optim.SGD(pipeline.parameters(), learning_rate=0.5)
    for _ in range(200):
        pipeline.step(inputs, labels)
        optimiser.step()
    metrics = {"accuracy": accuracy, "ends found": ends_found}
    # a mean, and its weight
    metrics["by texts"] = lambda outputs, labels: (
        ends_found(outputs, labels),
        len(labels),
    )
    return pipeline.evaluate(inputs, labels, metrics=metrics, outputs="everywhere")


result = spawn(evaluate, num_ranks=2)[0]
rows = {}
for name, metric in (("accuracy", accuracy), ("ends found", ends_found)):
    of_parts = [metric(result.outputs[part], labels[part]) for part in parts]
    rows[name] = [
        metric(result.outputs, labels),
        np.mean(of_parts),
        result.metrics[name],
    ]
    print(
        "{:11} whole batch {:.3f}, mean of microbatches {:.3f}, metrics= {:.3f}".format(
            name, *rows[name]
        )
    )
print(f"ends found, weighted by texts: metrics= {result.metrics['by texts']:.3f}")
assert np.allclose(rows["accuracy"], [0.4, 0.36, 0.4]) and np.allclose(
    rows["ends found"], [0.75, 0.75, 0.875]
)
assert result.metrics["by texts"] == 0.75

# %% [markdown]
# `metrics=` is right for accuracy and wrong for the ends of texts, 0.875 instead of
# 0.75. The mean of microbatches is right for the ends only because each microbatch has
# two texts.
#
# The remedy is the one used for the loss: a metric with another mean returns its weight
# as well, as `"by texts"` in the last line. If no mean fits, keep the outputs with
# `outputs=True` or `"everywhere"`, and compute the number from the whole batch.
# Functions of a mean come after the mean: perplexity is exp(loss of the batch), and not
# the mean of exp(loss of a microbatch).

# %% [markdown]
# ## Layers that look at the whole batch
#
# Some layers take a mean and a variance over the batch, as BatchNorm does. Here the
# loss is right, and the result still depends on the number of microbatches m:


# %%
class OverTheBatch(nn.Module):
    """Subtracts the mean over all places of all texts, and divides by the standard deviation."""

    def forward(self, x):
        centred = x - x.mean(axis=(0, 1))
        return centred / functional.sqrt((centred * centred).mean(axis=(0, 1)) + 1e-5)


by_count = {
    m: measure(token_loss, m, model=make_model(OverTheBatch()))[0] for m in (1, 2, 4, 8)
}
for m, loss in by_count.items():
    print(f"m = {m}: loss {loss:.4f}")
wrong = complaint_about(make_model(OverTheBatch()), token_loss)
print(textwrap.fill(wrong, 100))
assert [round(loss, 4) for loss in by_count.values()] == [
    2.0836,
    2.0627,
    2.0427,
    2.0613,
]
assert "depends on the number of microbatches: with 2" in wrong
assert complaint_about(make_model(nn.LayerNorm(16, dtype=np.float64)), token_loss) == ""

# %% [markdown]
# No weight can repair this. The statistics are computed from one microbatch, so the
# output for a text depends on the texts beside it. To use the statistics of the batch,
# the layer would have to wait for all microbatches before it passes the first one on,
# and later stages would be idle until then, as in lesson 04. The authors of GPipe use
# the statistics of each microbatch (Huang et al. 2019); the number of microbatches is
# then a part of the model.
#
# minipipe has no BatchNorm; `nn.BatchNorm1d` raises an error that explains this.
# LayerNorm and GroupNorm take their statistics within a sample or a token, and pass the
# check, as the last assert shows.
#
# ## Auxiliary losses
#
# `nn.AuxiliaryLoss` lets a layer add to the loss: a penalty on large activations, or on
# experts that are not equally busy. It counts with the weight of its microbatch in the
# loss, so its mean should be over the same things. This penalty is a mean over all
# places, including padding:

# %%
penalty = nn.AuxiliaryLoss(lambda x: (x * x).mean(), weight=10.0)
with_penalty = {
    m: measure(token_loss, m, model=make_model(penalty))[0] - right_loss
    for m in (1, 2, 4, 8)
}
for m, value in with_penalty.items():
    print(f"m = {m}: the penalty adds {value:.4f}")
assert [round(value, 4) for value in with_penalty.values()] == [
    0.0119,
    0.0116,
    0.0110,
    0.0109,
]
assert complaint_about(make_model(penalty), token_loss) == ""

# %% [markdown]
# The penalty depends a little on m. The check does not see that, because it runs the
# model in evaluation mode, in which auxiliary losses are left out. For a small penalty
# this is acceptable, if you know it. For some losses no weight is right: the balance of
# experts in Switch Transformers (Fedus et al. 2021) multiplies two means. Such a loss
# is taken within each microbatch, and the number of microbatches belongs to the recipe.
#
# ## In PyTorch and in Megatron
#
# - **PyTorch**: the schedules of `torch.distributed.pipelining` divide gradients by the
#   number of microbatches (`scale_grads=True`). That is right if all microbatches count
#   equally. For tokens, use a loss with `reduction="sum"` and `scale_grads=False`, and
#   divide by the tokens of the whole batch on all replicas.
# - **Megatron-LM** also averages the means of microbatches by default.
#   `--calculate-per-token-loss` divides by all tokens.
#
# ## What you have learnt
#
# - A check with several numbers of microbatches finds wrong means. It needs an uneven
#   batch.
# - Accumulated batches need their fraction of all tokens as a scale.
# - A metric with a mean of its own returns its weight.
# - Layers with statistics of the batch make the number of microbatches a part of the
#   model.

# %% [markdown]
# ## Exercise
#
# 1. Add the metric `lambda outputs, labels: np.exp(over_tokens(outputs,
#    labels).item())`, the perplexity of a microbatch. Compare it with `np.exp(loss)`.
#    Which one is larger, and is that so for every batch?
# 2. `nn.CrossEntropyLoss(class_weights=…)` divides by the sum of the weights of its
#    labels. Write a loss that divides by the number of tokens instead. What does its
#    `weight` return? Ask the check.
# 3. Data parallelism: two copies of a pipeline compute different batches, and add their
#    gradients in an all-reduce. By which number does each multiply its gradients, and
#    what do the copies have to tell each other first?
# 4. If you have not done it yet: the coursework task `16_token_mean`, in which every
#    token counts once.
#
# <details>
# <summary>Answers</summary>
#
# 1. The mean of the perplexities is larger, 6.956 instead of 6.955 before any training,
#    and it is for every batch. The function exp is convex, and the mean of a convex
#    function is at least its value at the mean (Jensen). They are equal only if all
#    microbatches have the same loss.
#
# ```python
# def perplexities(group):
#     pipeline = Pipeline(make_model(), group, loss=token_loss, num_microbatches=4)
#     metrics = {"perplexity": lambda outputs, labels: np.exp(over_tokens(outputs, labels).item())}
#     found = pipeline.step(inputs, labels, metrics=metrics)
#     return np.exp(float(found)), found.metrics["perplexity"]
#
#
# of_mean, mean_of = spawn(perplexities, num_ranks=2)[0]
# assert mean_of > of_mean and (round(of_mean, 3), round(mean_of, 3)) == (6.955, 6.956)
# ```
#
# 2. Its `weight` returns the number of tokens by which it divides. The check accepts
#    it.
#
# ```python
# class PerToken:
#     """The sum of the losses of all tokens, each times the weight of its class, over the number of tokens."""
#
#     in_all = nn.CrossEntropyLoss(ignore_index=PAD, class_weights=[2.0] + [1.0] * 6, reduction="sum")
#
#     def __call__(self, outputs, labels):
#         return self.in_all(outputs, labels) / max(1, self.weight(labels.numpy()))
#
#     def weight(self, labels):
#         return int((labels != PAD).sum())
#
#
# assert complaint_about(make_model(), PerToken()) == ""
# ```
#
# 3. Each copy multiplies by its tokens, divided by the tokens of all copies. So they
#    first add up their numbers of tokens, in an all-reduce of one number.
#
# ```python
# def one_copy(group):
#     """Return the gradient of all copies; each rank has the whole model and one batch."""
#     x, y = batches[group.rank]
#     tokens = float(token_loss.weight(y))
#     fraction = tokens / float(group.all_reduce(np.array(tokens)))
#     model = make_model()
#     model.initialise(seed=0)
#     token_loss(model(x), y).backward(fraction)
#     return {name: group.all_reduce(p.grad) for name, p in model.named_parameters()}
#
#
# summed = spawn(one_copy, num_ranks=2)[0]
# summed = np.concatenate([summed[name].ravel() for name in sorted(summed)])
# assert np.allclose(summed, right, rtol=1e-9, atol=1e-12)
# ```
#
# </details>
#
# Next, `16_how_good.py`: back to schedules, and how to know that no better one exists.
