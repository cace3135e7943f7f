# %% [markdown]
# # 14 · Loss weights: texts of unequal length
#
# In this lesson you train on texts of unequal length, and find that the mean of the
# microbatches' means gives a wrong loss and a wrong gradient. You measure the error,
# and remove it by weighting each microbatch by its number of tokens.
#
# The loss of a batch is a mean. A pipeline splits the batch, so each microbatch has its
# own mean, and the means must be combined again. In lesson 05 the microbatches differed
# by one sample, and each was weighted by its number of samples. That is not enough if
# the samples themselves differ in size, as texts do.
#
# Nothing fails when the weights are wrong. The loss falls, and may even look better. So
# this mistake was found late, and more than once: in Hugging Face Transformers in 2024
# (pull request 34191), and in torchtitan in 2026 (pull request 2206). Lesson 15 shows
# where else it hides.

# %%
import textwrap

import numpy as np

from minipipe import (
    Pipeline,
    functional,
    nn,
    optim,
    render,
    schedules,
    simulate,
    spawn,
    split_microbatches,
    watch_everything,
)
from minipipe.errors import MicrobatchError

# an array changed in place between forward and backward is an error, not a wrong
# gradient
watch_everything()

# %% [markdown]
# ## A batch with padding
#
# A language model reads a text as a row of **tokens**: characters, words, or parts of
# words. For each token it predicts the next one. Here the tokens are the letters a to f
# and the end of the text. The end is number 0, and is drawn as a dot. Each text starts
# from the end of the text before it.
#
# Texts have unequal lengths, but an array has rows of one length. The rest of a row is
# **padding**: places without a token. Their labels are a number that is no token, here
# -100, drawn as a dash. The batch has two long texts and six short ones, in the order
# of a data set that is sorted by length.

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


inputs, labels = make_batch(LENGTHS)
counts = []
for k, part in enumerate(split_microbatches(len(labels), 4)):
    counts.append(int((labels[part] != PAD).sum()))
    for row in labels[part]:
        print(
            "   ", " ".join("-" if token == PAD else ".abcdef"[token] for token in row)
        )
    print(f"microbatch {k}: {counts[k]} tokens\n")
empty = (labels == PAD).mean()
print(
    f"{sum(counts)} tokens in {labels.size} places; {empty:.0%} of the places are empty"
)
assert counts == [25, 5, 5, 5] and labels.size == 104
assert round(100 * empty) == 62

# %% [markdown]
# Each of the four microbatches has two texts. Their numbers of samples are equal, but
# their numbers of tokens are not.
#
# ## The mean of the means
#
# Start with losses that you can add in your head: each token of a long text has loss 1,
# and each token of a short text has loss 3.

# %%
losses = np.where(np.array(LENGTHS)[:, None] > 3, 1.0, 3.0) * np.ones(labels.shape)
counted = labels != PAD
mean = losses[counted].mean()
means = [losses[part][counted[part]].mean() for part in split_microbatches(8, 4)]
print(f"mean over the tokens: (25 x 1 + 15 x 3) / 40 = {mean}")
print(f"mean of the means: (1 + 3 + 3 + 3) / 4 = {np.mean(means)}")
assert mean == (25 * 1 + 15 * 3) / 40 == 1.75
assert means == [1, 3, 3, 3] and np.mean(means) == 2.5

# %% [markdown]
# The mean of the means is 2.5 instead of 1.75, because the 25 cheap tokens of the first
# microbatch count as much as the 5 expensive tokens of each other one.
#
# ## A wrong loss and a wrong gradient
#
# Now with a small model, which sees one token and predicts the next. Its loss is a
# function that takes the mean over the tokens that count. The function only ever sees
# one microbatch, so it cannot take the mean over the batch. And the pipeline cannot
# know over what a function takes its mean. It assumes samples, as in lesson 05.


# %%
def make_model(*layers):
    """Return a model of letters, with these layers in the middle."""
    first = nn.Embedding(7, 8, dtype=np.float64), nn.Linear(8, 16, dtype=np.float64)
    return nn.Sequential(*first, *layers, nn.Tanh(), nn.Linear(16, 7, dtype=np.float64))


def over_tokens(outputs, labels):
    """Return the mean over the tokens of its arguments, which are one microbatch."""
    return functional.cross_entropy(outputs, labels, ignore_index=PAD)


def together(results):
    """Return the loss of a step, and the gradients of all ranks as one vector."""
    gradients = {
        name: gradient for _, local in results for name, gradient in local.items()
    }
    return results[0][0], np.concatenate(
        [gradients[name].ravel() for name in sorted(gradients)]
    )


def measure(loss, num_microbatches, x=inputs, y=labels, model=None, loss_weight=None):
    """Return the loss of a step on two ranks, and its gradient."""

    def train(group):
        options = {"num_microbatches": num_microbatches, "loss_weight": loss_weight}
        pipeline = Pipeline(model or make_model(), group, loss=loss, **options)
        return float(pipeline.step(x, y)), {
            name: p.grad for name, p in pipeline.named_parameters()
        }

    return together(spawn(train, num_ranks=2))


def compare(gradient, right):
    """Return the cosine of the angle between two gradients, and how many times as long the first one is."""
    lengths = np.linalg.norm(gradient), np.linalg.norm(right)
    return float(gradient @ right / (lengths[0] * lengths[1])), float(
        lengths[0] / lengths[1]
    )


right_loss, right = measure(over_tokens, 1)  # a batch in one piece has only one mean
table = {}
for m in (1, 2, 4, 8):
    loss, gradient = measure(over_tokens, m)
    cosine, ratio = compare(gradient, right)
    table[m] = [round(value, 3) for value in (loss, cosine, ratio)]
    print(
        f"m = {m}: loss {loss:.3f}, cosine to the right gradient {cosine:.3f}, "
        f"length {ratio:.3f} times"
    )
angle = np.degrees(np.arccos(table[4][1]))
print(f"For m = 4 the angle between the gradients is {angle:.0f} degrees.")
assert table[1] == [1.939, 1, 1] and table[2] == [1.935, 0.853, 1.118]
assert table[4] == [1.928, 0.700, 1.152] and table[8] == [1.928, 0.715, 1.188]
assert round(angle) == 46

# %% [markdown]
# The loss differs by half a per cent, which is easily overlooked. But for m = 4 the
# gradient is 15 % longer, and points 46 degrees away from the right one. It depends on
# the number of microbatches, a setting that should change memory and time and nothing
# else.
#
# ## The effect on the model
#
# What does a model learn from such gradients? Every text has one end, so there are 8
# ends among 40 tokens. A model that has learnt this expects an end with a probability
# of 20 % on average, and so writes texts of 1 / 20 % = 5 tokens, the mean length of
# these texts. But ends are rare in the microbatch of long texts, 2 of 25, and frequent
# in the others, 2 of 5 each. The mean of the four fractions is (8 + 40 + 40 + 40) / 4 =
# 32 %.


# %%
def train(group, loss, num_microbatches, num_steps=200):
    """Return a trained pipeline, and the last loss that it reported."""
    pipeline = Pipeline(
        make_model(), group, loss=loss, num_microbatches=num_microbatches
    )
    optimiser = optim.SGD(pipeline.parameters(), learning_rate=0.5)
    for _ in range(num_steps):
        last = pipeline.step(inputs, labels)
        optimiser.step()
    return pipeline, float(last)


def examine(loss, num_microbatches):
    """Train; return the last loss, the mean loss over all tokens, and the mean probability of an end."""

    def run(group):
        pipeline, last = train(group, loss, num_microbatches)
        return last, pipeline.predict(inputs)

    last, scores = spawn(run, num_ranks=2)[0]
    over_all = functional.cross_entropy(scores, labels, ignore_index=PAD).item()
    probabilities = functional.softmax(scores).numpy()
    return last, over_all, float(probabilities[labels != PAD, END].mean())


learnt = {}
for m in (1, 4):
    last, over_all, ends = examine(over_tokens, m)
    learnt[m] = [round(last, 2), round(over_all, 2), round(ends, 2), round(1 / ends, 1)]
    print(
        f"m = {m}: reported loss {last:.2f}, over all tokens {over_all:.2f}; ", end=""
    )
    print(f"expects an end with {ends:.0%}, so texts of {1 / ends:.1f} tokens")
assert learnt == {1: [1.31, 1.31, 0.20, 5.0], 4: [1.21, 1.50, 0.36, 2.8]}

# %% [markdown]
# With four microbatches the model writes texts that are little more than half as long.
# And it *reports the lower loss*, 1.21 instead of 1.31, because each run reduces the
# number that it reports. Measured by the mean over all tokens, it is much worse. A
# comparison of the loss curves would not raise suspicion against the run with the lower
# curve. (Why 36 % and not 32 %? The model has learnt 32 % as a mean with the wrong
# weights; the printed number is the mean over the tokens.)
#
# ## The cause
#
# Let there be m microbatches with n_k tokens in microbatch k, and N tokens in all. Let
# l_ki be the loss of token i in microbatch k.
#
# > mean: 1/N Σ_k Σ_i l_ki, so each token weighs 1 / N
# >
# > mean of the means: 1/m Σ_k (1/n_k Σ_i l_ki), so a token of microbatch k weighs 1 / (m n_k)
#
# They are equal if all n_k are equal, because then m n_k = N. Here they are not:

# %%
factors = [sum(counts) / (len(counts) * count) for count in counts]
for k, factor in enumerate(factors):
    print(
        f"microbatch {k}: a token weighs {factor:g} times as much as it should "
        f"{'#' * round(10 * factor)}"
    )
assert factors == [0.4, 2, 2, 2]

# %% [markdown]
# ## The remedy
#
# Multiply the mean of microbatch k by n_k / N instead of 1 / m. Then n_k cancels out:
#
# > Σ_k n_k/N (1/n_k Σ_i l_ki) = 1/N Σ_k Σ_i l_ki
#
# Call n_k the **weight** of the microbatch, and n_k / N its **relative weight**. Lesson
# 05 did the same with samples. A gradient is linear in the loss, so the gradient of a
# microbatch has the same relative weight: its backward starts from n_k / N instead of
# 1.
#
# When must the relative weight be known? In 1F1B the last rank starts the first
# backward long before it has seen the last microbatch:

# %%
timeline = simulate(schedules.one_f_one_b(num_ranks=2, num_microbatches=4))
render.show(timeline)
starts = {str(action): start for action, start, _ in timeline.spans[1]}
print(f"the last rank starts 1B0 at {starts['1B0']:g}, and 1F3 at {starts['1F3']:g}")
assert starts["1B0"] < starts["1F3"]
assert (starts["1B0"], starts["1F3"]) == (2, 10)

# %% [markdown]
# So the relative weight of microbatch 0 must be known before microbatch 3 has been
# computed. That is possible: the tokens are counted in the *targets*, and the rank of
# the last stage has the targets of the whole batch when the step starts. No message is
# needed.
#
#     targets of the batch   [ 25 tokens | 5 | 5 | 5 ]   counted before the first forward: N = 40
#
#     last rank     1F0 -> loss 0     1B0 starts from 25/40
#                   1F1 -> loss 1     1B1 starts from  5/40
#                   1F2 -> loss 2     1B2 starts from  5/40
#                   1F3 -> loss 3     1B3 starts from  5/40
#
#     loss of the batch = 25/40 loss 0 + 5/40 loss 1 + 5/40 loss 2 + 5/40 loss 3
#
# A loss can have a method `weight(targets)`, which receives the targets of a microbatch
# as arrays and returns the weight. The method of `nn.CrossEntropyLoss` counts the
# labels that are not ignored. The pipeline calls it for each microbatch, adds the
# weights, and divides.

# %%
token_loss = nn.CrossEntropyLoss(ignore_index=PAD)
weights = [token_loss.weight(labels[part]) for part in split_microbatches(8, 4)]
relative = [weight / sum(weights) for weight in weights]
print("weights", weights, "relative weights", relative)
assert weights == [25, 5, 5, 5]
assert relative == [0.625, 0.125, 0.125, 0.125]

# %% [markdown]
# With this loss, the number of microbatches no longer matters:

# %%
for m in (1, 2, 4, 8):
    loss, gradient = measure(token_loss, m)
    cosine, ratio = compare(gradient, right)
    print(
        f"m = {m}: loss {loss:.3f}, cosine to the right gradient {cosine:.3f}, "
        f"length {ratio:.3f} times"
    )
    assert abs(loss - right_loss) < 1e-12
    assert abs(cosine - 1) < 1e-12 and abs(ratio - 1) < 1e-12

_, _, ends = examine(token_loss, 4)
print(
    f"trained with m = 4: expects an end with {ends:.0%}, so texts of "
    f"{1 / ends:.1f} tokens"
)
assert round(ends, 2) == 0.20 and round(1 / ends, 1) == 5.0

# %% [markdown]
# The loss and the gradient are equal to all printed digits for every m. (The last bits
# differ between different m, since the sums are rounded in another order. For one m
# they are the bits of one process, as always.)
#
# ## Empty microbatches
#
# A microbatch of padding alone has weight 0, and adds nothing. A batch of padding alone
# has no mean, so it is an error:

# %%
last_two_empty, all_empty = labels.copy(), np.full_like(labels, PAD)
last_two_empty[6:] = PAD
loss, gradient = measure(token_loss, 4, y=last_two_empty)
whole_loss, whole = measure(token_loss, 1, y=last_two_empty)
print(f"microbatch 3 is empty: loss {loss:.3f}, in one piece {whole_loss:.3f}")
assert abs(loss - whole_loss) < 1e-12 and np.allclose(
    gradient, whole, rtol=1e-9, atol=1e-12
)

try:
    measure(token_loss, 4, y=all_empty)
except MicrobatchError as error:
    no_mean = error
print(textwrap.fill(str(no_mean), 100))
assert no_mean.code == "value" and "[0.0, 0.0, 0.0, 0.0]" in str(no_mean)

# %% [markdown]
# ## A loss with a mask
#
# Other losses need weights as well. `nn.MSELoss` takes the targets alone, or a pair of
# targets and a mask (or weights). With a mask, the mean is over the elements that the
# mask selects, and the weight is their number. Take a series of measurements with gaps.
# The values in the gaps do not matter, not even `nan`.

# %%
generator = np.random.default_rng(seed=14)
# eight series, six times, three quantities each
series = generator.standard_normal((8, 6, 3))
values = series.sum(axis=-1, keepdims=True)
# the first series have many gaps
observed = generator.random(values.shape) < np.linspace(0.1, 1, 8)[:, None, None]
values[~observed] = np.nan


def make_regressor():
    return nn.Sequential(
        nn.Linear(3, 8, dtype=np.float64), nn.Tanh(), nn.Linear(8, 1, dtype=np.float64)
    )


masked = (values, observed)
weights = [
    nn.MSELoss().weight((values[part], observed[part]))
    for part in split_microbatches(8, 4)
]
print("measurements by microbatch:", weights)
assert weights == [int(observed[part].sum()) for part in split_microbatches(8, 4)]
squares = {
    m: measure(nn.MSELoss(), m, x=series, y=masked, model=make_regressor())[0]
    for m in (1, 4)
}
for m, loss in squares.items():
    print(f"m = {m}: mean square {loss:.3f}")
assert round(squares[1], 3) == 1.891 and abs(squares[4] - squares[1]) < 1e-12

# %% [markdown]
# ## Your own loss
#
# Your own loss is a function or an object. If its mean is over samples, there is
# nothing to do. Otherwise tell the pipeline the weight: give an object a method
# `weight`, or pass `loss_weight=` beside a function. The loss receives tensors, and the
# weight receives arrays. Here is a loss for counts (of events per hour, say), where -1
# marks a missing count:


# %%
def poisson(outputs, targets):
    """Return the mean of exp(output) - target * output over the targets that are not missing."""
    observed = (targets.numpy() >= 0).astype(np.float64)
    terms = functional.exp(outputs) - outputs * targets
    # 0 instead of 0 / 0 if all are missing
    return (terms * observed).sum() / max(1.0, observed.sum())


def num_events(targets):
    """Return how many targets are not missing."""
    return (targets >= 0).sum()


class PoissonLoss:
    """Both in one object."""

    def __call__(self, outputs, targets):
        return poisson(outputs, targets)

    def weight(self, targets):
        return num_events(targets)


events = np.where(observed, generator.poisson(3.0, values.shape), -1).astype(np.float64)
options = {"x": series, "y": events, "model": make_regressor()}
whole_loss, whole = measure(poisson, 1, **options)
for name, loss, loss_weight in (
    ("a function alone", poisson, None),
    ("a function and loss_weight=", poisson, num_events),
    ("an object with a weight", PoissonLoss(), None),
):
    value, gradient = measure(loss, 4, loss_weight=loss_weight, **options)
    cosine, ratio = compare(gradient, whole)
    print(
        f"{name:28} loss {value:.3f}, in one piece {whole_loss:.3f}; cosine "
        f"{cosine:.3f}, length {ratio:.3f}"
    )
    is_right = (
        abs(value - whole_loss) < 1e-12
        and abs(cosine - 1) < 1e-12
        and abs(ratio - 1) < 1e-12
    )
    assert is_right == (name != "a function alone")
    assert is_right or [round(value, 3), round(cosine, 3), round(ratio, 3)] == [
        0.878,
        0.977,
        1.055,
    ]
assert round(whole_loss, 3) == 1.123

# %% [markdown]
# ## Which mean do you want?
#
# Perhaps each *text* should count equally, and not each token. That is also a mean:
# first over the tokens of each text, then over the texts. Its weight is the number of
# texts, which the pipeline assumes by default.


# %%
def over_texts(outputs, labels):
    """Return the mean over texts of the mean over the tokens of each."""
    means = [over_tokens(outputs[row], labels[row]) for row in range(labels.shape[0])]
    return functional.stack(means).mean()


table = {}
for m in (1, 2, 4, 8):
    table[m] = [
        round(measure(loss, m)[0], 4) for loss in (token_loss, over_texts, over_tokens)
    ]
    print(
        "m = {}: over tokens {:.4f}, over texts {:.4f}, mean of means {:.4f}".format(
            m, *table[m]
        )
    )
by_tokens, by_texts, mixed = zip(*table.values())
assert set(by_tokens) == {1.9395} and set(by_texts) == {1.9282}
assert mixed == (1.9395, 1.9351, 1.9279, 1.9282)

# %% [markdown]
# The first two columns are both right. They are different numbers, so choose one, and
# say which. The last column is neither. For m = 1 it is the first mean; for m = 8, when
# each microbatch is one text, it is the second; for 2 and 4 it is a mixture without a
# use.
#
# **A mean is right if it does not depend on the number of microbatches.**
#
# ## Choose the weight
#
# | the loss is a mean over | weight of a microbatch | write |
# |---|---|---|
# | samples | its samples | nothing |
# | tokens that count | how many it has | `nn.CrossEntropyLoss(ignore_index=…)` |
# | tokens, by class | the sum of the weights of its labels | `nn.CrossEntropyLoss(class_weights=…)` |
# | elements under a mask | the sum of the mask | `nn.MSELoss()`, with targets `(values, mask)` |
# | anything else | the divisor of your mean | `weight(targets)`, or `loss_weight=` |
# | nothing: it is a sum | each has relative weight 1 | `reduction="sum"`, and another learning rate |
#
# ## The same mistake in PyTorch and Megatron-LM
#
# The schedules of `torch.distributed.pipelining` add the gradients of the microbatches
# and divide by their number: `scale_grads=True` is the default. With a mean over tokens
# this is the mean of the means. The remedy is a loss that divides by the tokens of the
# whole batch, and `scale_grads=False`:
#
# ```python
# num_tokens = (labels != -100).sum()  # of the whole batch, on the rank of the last stage
#
#
# def token_mean(outputs, labels):
#     scores, flat_labels = outputs.flatten(0, 1), labels.flatten()
#     total = torch.nn.functional.cross_entropy(
#         scores, flat_labels, ignore_index=-100, reduction="sum"
#     )
#     return total / num_tokens
#
#
# schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=token_mean, scale_grads=False)
# ```
#
# In Megatron-LM, add `--calculate-per-token-loss` to the command of lesson 08. Without
# it, the sum of each microbatch is divided by its own tokens and by m, which is the
# mean of the means. Its issue 936 of 2024 discusses this. See also [Coming from
# Megatron-LM](site/coming-from-megatron.md).

# %% [markdown]
# ## What you have learnt
#
# - The mean of the microbatches' means differs from the mean of the batch if the
#   microbatches have unequal numbers of tokens.
# - The gradient is then wrong, while the reported loss may even be lower.
# - Weight each microbatch by what its mean is over: samples, tokens or elements.
#
# ## Exercise
#
# 1. Shuffle the batch: `LENGTHS = (13, 3, 2, 3, 12, 2, 3, 2)`. How near do cosine and
#    length come to 1 for m = 4? Why does shuffling make the mistake smaller without
#    removing it? For which lengths does it vanish?
# 2. Some data sets mark padding with the number of the end: `PAD = 0` here, and
#    `ignore_index=0`. Which tokens count then? What will the model never learn?
#    Describe two remedies.
# 3. The coursework task for this lesson is `16_token_mean`: count every token once.
#    (`minipipe coursework DIR` creates your copy.)
#
# <details>
# <summary>Answers</summary>
#
# 1. For m = 4 the cosine is 0.893 instead of 0.700, and the length 1.207. The
#    microbatches now have 16, 5, 14 and 5 tokens: each long text has a short one beside
#    it, but there are four microbatches and only two long texts. The mistake vanishes
#    if all microbatches have equally many tokens, for example with pairs of texts of 13
#    and 2, of 12 and 3, and so on: 15 each.
#
# ```python
# shuffled = make_batch((13, 3, 2, 3, 12, 2, 3, 2))
# _, whole = measure(over_tokens, 1, *shuffled)
# _, gradient = measure(over_tokens, 4, *shuffled)
# assert [round(value, 3) for value in compare(gradient, whole)] == [0.893, 1.207]
# even = make_batch((13, 2, 12, 3, 11, 4, 10, 5))
# _, whole = measure(over_tokens, 1, *even)
# _, gradient = measure(over_tokens, 4, *even)
# assert all(abs(value - 1) < 1e-12 for value in compare(gradient, whole))
# ```
#
# 2. Only the letters count, 32 of 40 tokens. The model never learns to end a text,
#    since no end is ever counted. Either give padding a number that is no token, as in
#    this lesson. Or keep the number, and say with a mask or with the lengths which
#    tokens count: your own loss, with a `weight`.
#
# ```python
# as_end = np.where(labels == PAD, END, labels)
# ignoring_ends = nn.CrossEntropyLoss(ignore_index=END)
# assert sum(ignoring_ends.weight(as_end[part]) for part in split_microbatches(8, 4)) == 32
#
#
# from minipipe import Tensor
#
#
# class ByLength:
#     """Counts the tokens up to the first end of each text, whatever number stands behind it."""
#
#     def weight(self, labels):
#         return int(((np.cumsum(labels == END, axis=1) - (labels == END)) == 0).sum())
#
#     def __call__(self, outputs, labels):
#         values = labels.numpy()
#         counted = (np.cumsum(values == END, axis=1) - (values == END)) == 0
#         return over_tokens(outputs, Tensor(np.where(counted, values, PAD)))
#
#
# loss, gradient = measure(ByLength(), 4, y=as_end)
# assert abs(loss - right_loss) < 1e-12 and np.allclose(gradient, right, rtol=1e-9, atol=1e-12)
# ```
#
# </details>
#
# Next, `15_other_means.py`: where the same mistake hides elsewhere, and a check that
# finds it.
