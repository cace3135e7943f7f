# %% [markdown]
# # 15 · Other means
#
# In lesson 14 a loss was a mean over the wrong things: over microbatches, and not over the tokens of the batch. It
# gave a wrong gradient, and no error. The loss is not the only mean in a training. Gradients are accumulated over
# batches, metrics are averaged, layers take means of their own. In this lesson you first meet a check that finds
# such mistakes, and then the places where they occur.

# %%
import textwrap

import numpy as np

from minipipe import Microbatches, Pipeline, functional, nn, optim, spawn, split_microbatches, watch_everything
from minipipe.testing import check_independent_of_microbatches

watch_everything()  # an array changed in place between forward and backward is an error, not a wrong gradient

# %% [markdown]
# ## The batch and the model of lesson 14
#
# Eight texts of letters from a to f, each with an end, number 0. Two of them are long and six short, so the
# four microbatches have 25, 5, 5 and 5 tokens. What is left of a row is padding. The model sees a letter and predicts
# the next one. (This cell and the next one repeat what lesson 14 explains; skip them if you remember it.)

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
counts = [int((labels[part] != PAD).sum()) for part in split_microbatches(len(labels), 4)]
print(f"tokens in each of four microbatches: {counts}")
assert counts == [25, 5, 5, 5] and labels.size == 104

# %% [markdown]
# `token_loss` says what its mean is over (its `weight` counts the tokens), so it is right. `over_tokens` is a bare
# function, whose mean the pipeline takes to be over texts. It is the mistake of lesson 14. `over_texts` really is a
# mean over texts. To compare gradients we take the cosine of the angle between them, and the ratio of their lengths;
# both are 1 if the gradients are equal.

# %%
token_loss = nn.CrossEntropyLoss(ignore_index=PAD)


def over_tokens(outputs, labels):
    """Return the mean over the tokens that it is given: those of one microbatch."""
    return functional.cross_entropy(outputs, labels, ignore_index=PAD)


def over_texts(outputs, labels):
    """Return the mean over texts of the mean over the tokens of each."""
    means = [over_tokens(outputs[row], labels[row]) for row in range(labels.shape[0])]
    return functional.stack(means).mean()


def together(results):
    """Return the loss of a step, and the gradients of all ranks as one vector."""
    gradients = {name: gradient for _, own in results for name, gradient in own.items()}
    return results[0][0], np.concatenate([gradients[name].ravel() for name in sorted(gradients)])


def measure(loss, num_microbatches, x=inputs, y=labels, model=None):
    """Return the loss of a step on two ranks, and its gradient."""

    def run(group):
        pipeline = Pipeline(model or make_model(), group, loss=loss, num_microbatches=num_microbatches)
        return float(pipeline.step(x, y)), {name: p.grad for name, p in pipeline.named_parameters()}

    return together(spawn(run, num_ranks=2))


def compare(gradient, right):
    """Return the cosine of the angle between two gradients, and how many times as long the first one is."""
    lengths = np.linalg.norm(gradient), np.linalg.norm(right)
    return float(gradient @ right / (lengths[0] * lengths[1])), float(lengths[0] / lengths[1])


right_loss, right = measure(token_loss, 1)  # a batch in one piece has only one mean
for name, loss in (("token_loss", token_loss), ("over_tokens", over_tokens)):
    found, gradient = measure(loss, 4)
    cosine, ratio = compare(gradient, right)
    print(f"{name:11} loss {found:.3f}, cosine to the right gradient {cosine:.3f}, length {ratio:.3f} times")
    is_right = abs(found - right_loss) < 1e-12 and abs(cosine - 1) < 1e-12 and abs(ratio - 1) < 1e-12
    assert is_right == (loss is token_loss)
    assert is_right or [round(found, 3), round(cosine, 3), round(ratio, 3)] == [1.928, 0.700, 1.152]

# %% [markdown]
# ## A check that finds them
#
# Each mistake of this kind will look different. But all of them break the same rule: the result depends on the number
# of microbatches. `check_independent_of_microbatches` computes a step with several numbers, and compares loss and
# gradients.


# %%
def complaint_about(model, loss, x=inputs, y=labels):
    """Return what the check says, or nothing."""

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
assert complaint_about(make_model(), token_loss) == complaint_about(make_model(), over_texts) == ""

# %% [markdown]
# Give it a batch as uneven as yours ever get. On a batch without padding the wrong loss passes:

# %%
even = make_batch((5,) * 8)
print("texts of equal lengths:", complaint_about(make_model(), over_tokens, *even) or "no complaint")
assert complaint_about(make_model(), over_tokens, *even) == ""

# %% [markdown]
# ## The sum, and the learning rate
#
# With `reduction="sum"` there is nothing to divide by: each share is 1, and the losses and gradients of the
# microbatches are added. The result does not depend on m either. But it is N times the mean, and so is the gradient.
# With SGD that is a learning rate N times as large, and N varies from batch to batch. Divide our batch into two:

# %%
batches = [(inputs[:4], labels[:4]), (inputs[4:], labels[4:])]
sum_loss = nn.CrossEntropyLoss(ignore_index=PAD, reduction="sum")
tokens = [token_loss.weight(y) for _, y in batches]
for (x, y), num_tokens in zip(batches, tokens):
    added, of_sum = measure(sum_loss, 4, x, y)
    mean, of_mean = measure(token_loss, 4, x, y)
    cosine, ratio = compare(of_sum, of_mean)
    print(f"{num_tokens:g} tokens: sum {added:.2f}, mean {mean:.4f}; the gradient is {ratio:.1f} times as long")
    assert abs(added - num_tokens * mean) < 1e-9 and abs(cosine - 1) < 1e-12 and abs(ratio - num_tokens) < 1e-9
assert tokens == [30, 10]

# %% [markdown]
# Whoever changes from mean to sum divides the learning rate by N. Adam hides the difference, as it divides by the size
# of the gradient. But clipping does not: `pipeline.clip_grad_norm(1.0)` cuts a gradient that is N times as long N times
# as much. Such a factor can slip in unnoticed. In torchtitan the same model had gradients of the mean without a
# pipeline and of the sum with one (issue 2972, 2026): the losses that were printed agreed, since they were divided
# after the backward.
#
# ## Several batches in one update
#
# If a batch does not fit into memory, compute several and add their gradients: `step(…, accumulate=True)` adds, and
# `scale=` multiplies the gradients of a batch. `scale=1/2` for each of two batches gives the mean of the batch means.
# That is the same trap, one level up. It is also where Transformers fell into it. The cure is the same, too: the scale
# of a batch is its share of all tokens. Count before the first step.


# %%
def accumulate(loss, scales):
    """Return the losses of two batches of two microbatches each, and their gradient."""

    def run(group):
        pipeline = Pipeline(make_model(), group, loss=loss, num_microbatches=2)
        found = [
            float(pipeline.step(x, y, accumulate=number > 0, scale=scale))
            for number, ((x, y), scale) in enumerate(zip(batches, scales))
        ]
        return found, {name: p.grad for name, p in pipeline.named_parameters()}

    return together(spawn(run, num_ranks=2))


for name, loss, scales in (
    ("mean, scale = 1/2", token_loss, [1 / 2, 1 / 2]),
    ("mean, scale = own tokens / all tokens", token_loss, [30 / 40, 10 / 40]),
    ("sum, scale = 1 / all tokens", sum_loss, [1 / 40, 1 / 40]),
):
    found, gradient = accumulate(loss, scales)
    cosine, ratio = compare(gradient, right)
    total = sum(scale * own for scale, own in zip(scales, found))
    print(f"{name:38} cosine {cosine:.3f}, length {ratio:.3f}, loss {total:.4f}")
    is_right = abs(cosine - 1) < 1e-12 and abs(ratio - 1) < 1e-12 and abs(total - right_loss) < 1e-12
    assert is_right == (name != "mean, scale = 1/2")
    assert is_right or [round(cosine, 3), round(ratio, 3), round(total, 4)] == [0.853, 1.118, 1.9351]

# %% [markdown]
# (`scale` multiplies the gradients, not the loss that `step` returns. So the program multiplies the losses with the
# same scales before it adds them, in `total`.)
#
# ## Without padding
#
# Of the places in our batch 62 % are empty, and the model computes them all the same. Texts of similar length side by
# side need little padding, *within their microbatch*. `Microbatches` takes microbatches that are cut already, of any
# lengths. Since the share of each is counted, the mean stays what it was.

# %%
parts = split_microbatches(8, 4)
longest = [max(LENGTHS[part]) for part in parts]
x = Microbatches([inputs[part, :length] for part, length in zip(parts, longest)])
y = Microbatches([labels[part, :length] for part, length in zip(parts, longest)])
places = sum(part.size for part in y.parts)
loss, gradient = measure(token_loss, 4, x, y)
cosine, ratio = compare(gradient, right)
print(f"{labels.size} places become {places}, for the same {sum(counts)} tokens")
print(f"loss {loss:.3f}, before {right_loss:.3f}; cosine {cosine:.3f}, length {ratio:.3f}")
assert longest == [13, 3, 3, 3] and places == 44 and sum(counts) == 40
assert abs(loss - right_loss) < 1e-12 and np.allclose(gradient, right, rtol=1e-9, atol=1e-12)
assert abs(cosine - 1) < 1e-12 and abs(ratio - 1) < 1e-12

# %% [markdown]
# (Now the microbatches take unequal times, and a long one holds up the others, as a slow stage does in lesson 12. So
# cut a batch into microbatches with about equally many places, not equally many texts.)
#
# ## Accuracy has the same trap
#
# A training program prints more than the loss. `step` and `evaluate` take `metrics`, functions of the outputs and the
# targets of a microbatch, and combine their values **with the shares that the losses have**. So let a metric take its
# mean over what the loss does. The accuracy of tokens fits. The fraction of texts whose end was found does not: it is a
# mean over texts.


# %%
def accuracy(outputs, labels):
    """Return the fraction of the tokens that were predicted."""
    counted = labels != PAD
    return ((outputs.argmax(axis=-1) == labels) & counted).sum() / max(1, counted.sum())


def ends_found(outputs, labels):
    """Return the fraction of the texts whose end was predicted."""
    return ((outputs.argmax(axis=-1) == END) & (labels == END)).sum() / len(labels)


def evaluate(group):
    """Train for 200 steps, and evaluate on the same texts."""
    pipeline = Pipeline(make_model(), group, loss=token_loss, num_microbatches=4)
    optimiser = optim.SGD(pipeline.parameters(), learning_rate=0.5)
    for _ in range(200):
        pipeline.step(inputs, labels)
        optimiser.step()
    metrics = {"accuracy": accuracy, "ends found": ends_found}
    metrics["by texts"] = lambda outputs, labels: (ends_found(outputs, labels), len(labels))  # a mean, and its weight
    return pipeline.evaluate(inputs, labels, metrics=metrics, outputs="everywhere")


found = spawn(evaluate, num_ranks=2)[0]
rows = {}
for name, metric in (("accuracy", accuracy), ("ends found", ends_found)):
    of_parts = [metric(found.outputs[part], labels[part]) for part in parts]
    rows[name] = [metric(found.outputs, labels), np.mean(of_parts), found.metrics[name]]
    print("{:11} whole batch {:.3f}, mean of microbatches {:.3f}, metrics= {:.3f}".format(name, *rows[name]))
print(f"ends found, weighted by texts: metrics= {found.metrics['by texts']:.3f}")
assert np.allclose(rows["accuracy"], [0.4, 0.36, 0.4]) and np.allclose(rows["ends found"], [0.75, 0.75, 0.875])
assert found.metrics["by texts"] == 0.75

# %% [markdown]
# Each of the two ways is right for one of the two (the second one only because each microbatch has two texts). The cure
# is that of the loss: a metric whose mean is over something else returns its weight, too, as the last line does. Where
# no mean fits, keep the outputs, with `outputs=True` or `"everywhere"`, and compute the number from the whole batch, as
# in the column on the left. And take functions of a mean after the mean: perplexity is exp(loss of the batch), not the
# mean of exp(loss of a microbatch).

# %% [markdown]
# ## Layers that look at the whole batch
#
# Here the loss is right, and still something depends on m: a layer takes mean and variance *over the batch*, as
# BatchNorm does.


# %%
class OverTheBatch(nn.Module):
    """Subtracts the mean over all places of all texts, and divides by the standard deviation."""

    def forward(self, x):
        centred = x - x.mean(axis=(0, 1))
        return centred / functional.sqrt((centred * centred).mean(axis=(0, 1)) + 1e-5)


by_count = {m: measure(token_loss, m, model=make_model(OverTheBatch()))[0] for m in (1, 2, 4, 8)}
for m, loss in by_count.items():
    print(f"m = {m}: loss {loss:.4f}")
wrong = complaint_about(make_model(OverTheBatch()), token_loss)
print(textwrap.fill(wrong, 100))
assert [round(loss, 4) for loss in by_count.values()] == [2.0836, 2.0627, 2.0427, 2.0613]
assert "depends on the number of microbatches: with 2" in wrong
assert complaint_about(make_model(nn.LayerNorm(16, dtype=np.float64)), token_loss) == ""

# %% [markdown]
# No share can repair this. The statistics are those of a microbatch, so what the layer makes of a text depends on the
# texts beside it. To have those of the batch, the layer would have to wait for all microbatches before it lets the
# first one pass, and the stages after it would be idle until then, as in lesson 04. GPipe's authors take them within
# each microbatch (Huang et al. 2019); then the number of microbatches is a part of the model. minipipe has no
# BatchNorm; `nn.BatchNorm1d` is an error that says why. LayerNorm and GroupNorm take their statistics within each
# sample, or each token, and the check is silent, as the last line asserts.
#
# ## Losses of layers
#
# `nn.AuxiliaryLoss` lets a layer add to the loss: a penalty on large activations, or on experts that are not equally
# busy. It counts with the share of its microbatch, so its mean ought to be over the same things as that of the loss.
# This one is over all places, with the padding:

# %%
penalty = nn.AuxiliaryLoss(lambda x: (x * x).mean(), weight=10.0)
with_penalty = {m: measure(token_loss, m, model=make_model(penalty))[0] - right_loss for m in (1, 2, 4, 8)}
for m, value in with_penalty.items():
    print(f"m = {m}: the penalty adds {value:.4f}")
assert [round(value, 4) for value in with_penalty.values()] == [0.0119, 0.0116, 0.0110, 0.0109]
assert complaint_about(make_model(penalty), token_loss) == ""

# %% [markdown]
# It differs a little. And note the last line: the check does not see it, because it runs the model in evaluation mode,
# where these losses are left out. For a small penalty that is acceptable, if you know it. For some there is no right
# weight: the balance of experts in Switch Transformers (Fedus et al. 2021) multiplies two means. Such a loss is taken
# within each microbatch, and the number of microbatches is a part of the recipe.
# ## Exercise
#
# 1. Add the metric `lambda outputs, labels: np.exp(over_tokens(outputs, labels).item())`, the perplexity of a
#    microbatch. Compare it with `np.exp(loss)`. Which one is larger, and is that so for every batch?
# 2. `nn.CrossEntropyLoss(class_weights=…)` divides by the sum of the weights of its labels. Write a loss that divides
#    by the number of tokens instead. What does its `weight` return? Ask the check.
# 3. Data parallelism: two copies of a pipeline compute different batches, and add their gradients by an all-reduce. By
#    which number does each multiply its gradients, and what do the copies have to tell each other first?
# 4. If you have not done it yet: the coursework task `16_token_mean`, in which every token counts once.
#
# <details>
# <summary>Answers</summary>
#
# 1. The mean of the perplexities is larger, 6.956 instead of 6.955 before any training. It is so for every batch: exp
#    is convex, and of a convex function the mean of the values is at least the value of the mean (Jensen). The two are
#    equal only if all microbatches have the same loss.
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
# 2. Its `weight` returns the number of tokens: what its mean divides by. The check is silent.
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
# 3. By its own tokens over those of all copies. So they have to add up their tokens first, in an all-reduce of one
#    number.
#
# ```python
# def one_copy(group):
#     """Return the summed gradient; each rank is a copy of the whole model, with a batch of its own."""
#     x, y = batches[group.rank]
#     own = token_loss.weight(y)
#     share = own / float(group.all_reduce(np.array(float(own))))
#     model = make_model()
#     model.initialise(seed=0)
#     token_loss(model(x), y).backward(share)
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
# Next, `16_how_good.py`: back to schedules, and how to know that there is no better one.
