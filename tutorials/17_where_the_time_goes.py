# %% [markdown]
# # 17 · Where the time goes
#
# The lessons so far counted actions, in units or in milliseconds. This one looks inside an action, at microseconds. You
# train a small network in five ways, from NumPy by hand to a pipeline, and measure what each layer of software adds on
# your machine. Then you do the same with a large network, and nearly all of the difference has gone. At the end you
# know why small models are slow in every framework, why large ones are not, and what can be done about it.

# %%
import sys
from functools import partial
from math import inf, isfinite
from statistics import median
from time import perf_counter, thread_time
from typing import NamedTuple

import numpy as np

from minipipe import Pipeline, Tensor, functional, init_process_group, nn, optim
from minipipe.testing import same_bits

# Other lessons call watch_everything() here. This one does not: watching takes time, and nothing watched is replayed.

# %% [markdown]
# ## The floor
#
# The network has two Linear layers of equal width, each followed by a ReLU. A batch is cut into four microbatches, the
# loss is the mean squared error, and the update is plain gradient descent. Everything runs on one rank, so no message
# is sent and nobody waits.
#
# The first way is **by hand**: what NumPy has to compute, and nothing else. It is the *floor*. A framework that calls
# the same functions of NumPy cannot be much faster.

# %%
M = 4  # microbatches
RATE = 0.01  # the learning rate


def by_hand(weights, inputs, targets):
    """Take one step: a forward and a backward for each microbatch, then the update."""
    w1, b1, w2, b2 = weights
    ones, total = np.ones(len(inputs) // M, np.float32), None
    for x, y in zip(np.split(inputs, M), np.split(targets, M)):
        h1 = np.maximum(x.dot(w1) + b1, 0)
        h2 = np.maximum(h1.dot(w2) + b2, 0)
        g2 = (h2 - y) * (2 / h2.size / M) * (h2 > 0)
        g1 = g2.dot(w2.T) * (h1 > 0)
        gradients = x.T.dot(g1), ones.dot(g1), h1.T.dot(g2), ones.dot(g2)  # a product with ones sums rows fastest
        total = gradients if total is None else [a + b for a, b in zip(total, gradients)]
    for weight, gradient in zip(weights, total):
        weight -= RATE * gradient


# %% [markdown]
# ## Four ways above it
#
# - **operations**: tensors, operations that check their inputs and record a graph, and the walk back (lesson 01).
# - **modules**: layers that know their parameters, a loss and an optimiser. This is the loop of lesson 02, and what is
#   usually meant by a framework.
# - **pipeline**: around the modules, everything that makes a step on many ranks. It cuts the batch, follows a schedule,
#   notes times, checks that the loss and all gradients are finite. This one is made with `replay=False`.
# - **replayed**: the same pipeline as it is by default. It *captures* the NumPy calls of a microbatch as straight-line
#   code, which you saw in lesson 01. Then it *replays* these lines for every microbatch like it, without operations and
#   modules.


# %%
def with_operations(weights, inputs, targets):
    """Take the same step with operations on tensors."""
    w1, b1, w2, b2 = weights
    for x, y in zip(np.split(inputs, M), np.split(targets, M)):
        hidden = functional.relu(functional.linear(Tensor(x), w1, b1))
        outputs = functional.relu(functional.linear(hidden, w2, b2))
        functional.mean_squared_error(outputs, y).backward(1 / M)
    for weight in weights:
        weight.data -= RATE * weight.grad
        weight.zero_grad()


def with_modules(model, loss_of, optimiser, inputs, targets):
    """Take the same step with layers, a loss and an optimiser."""
    for x, y in zip(np.split(inputs, M), np.split(targets, M)):
        loss_of(model(Tensor(x)), y).backward(1 / M)
    optimiser.step()
    model.zero_grad()


def with_pipeline(pipeline, optimiser, inputs, targets):
    """Take the same step with a pipeline."""
    pipeline.step(inputs, targets)
    optimiser.step()


# %% [markdown]
# All five begin with the same weights. Each way is a function that takes a step, beside the weights that it trains.


# %%
class Way(NamedTuple):
    """A way to train the network."""

    step: partial  # (inputs, targets) -> None
    weights: list  # of arrays or tensors

    def values(self):
        return [weight if isinstance(weight, np.ndarray) else weight.numpy() for weight in self.weights]


def network(width):
    layers = [nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers).initialise(seed=0)


def pipeline_way(group, width, replay):
    """Return a new pipeline, and the way that trains it."""
    pipeline = Pipeline(network(width), group, loss=nn.MSELoss(), num_microbatches=M, replay=replay)
    optimiser = optim.SGD(pipeline.parameters(), RATE)
    return pipeline, Way(partial(with_pipeline, pipeline, optimiser), list(pipeline.parameters()))


def five_ways(group, width):
    """Return the five ways by name, and the pipeline that replays."""
    model = network(width)
    arrays = [parameter.data.copy() for parameter in model.parameters()]
    tensors = [Tensor(array.copy(), requires_grad=True) for array in arrays]
    loop = partial(with_modules, model, nn.MSELoss(), optim.SGD(model.parameters(), RATE))
    replaying, replayed = pipeline_way(group, width, replay=True)
    return replaying, {
        "by hand": Way(partial(by_hand, arrays), arrays),
        "operations": Way(partial(with_operations, tensors), tensors),
        "modules": Way(loop, list(model.parameters())),
        "pipeline": pipeline_way(group, width, replay=False)[1],
        "replayed": replayed,
    }


# %% [markdown]
# ## A fair measurement
#
# Times of microseconds are easy to get wrong. Other programs take the processor away, so we read a clock that counts
# only while our thread has a core. They also empty its caches and change its speed. So the five ways take *turns*, one
# step each, and what disturbs one of them disturbs all. Of many rounds we take the *median*, which a few disturbed
# steps do not move. The first rounds do not count: memory is allocated in them, and nothing is replayed yet.

# %%
CLOCK = perf_counter if sys.platform == "win32" else thread_time  # Windows counts the latter in ticks of 16 ms


def seconds_of(step, *batch):
    begin = CLOCK()
    step(*batch)
    return CLOCK() - begin


def samples(width, rows):
    """Return a batch of inputs and targets, with so many rows in each microbatch."""
    return np.random.default_rng(seed=0).standard_normal((2, M * rows, width)).astype(np.float32)


def compare(group, width, rows, rounds):
    """Let all ways take turns; return their median times in microseconds, their weights, and which stages replay."""
    pipeline, ways = five_ways(group, width)
    batch = samples(width, rows)
    times = [[seconds_of(way.step, *batch) for way in ways.values()] for _ in range(rounds)][6:]
    medians = {name: 1e6 * median(column) for name, column in zip(ways, zip(*times))}
    return medians, {name: way.values() for name, way in ways.items()}, pipeline.replay_report()


def table(times):
    """Return a line for each way: its time, that time over the floor, and what it adds to the way before it."""
    lines, before = [f"{'':10} µs a step  / by hand       adds"], 0
    for name, time in times.items():
        lines.append(f"{name:10} {time:9.0f} {time / times['by hand']:10.2f} {time - before:+10.0f}")
        before = time
    return "\n".join(lines)


# %% [markdown]
# ## A small network
#
# It is 32 wide, and a microbatch has 16 rows. `init_process_group` limits NumPy to one thread, for all five ways.

# %%
with init_process_group() as group:
    small, weights, report = compare(group, width=32, rows=16, rounds=150)
print(table(small))
print(report)
assert list(small) == ["by hand", "operations", "modules", "pipeline", "replayed"]
assert all(time > 0 for time in small.values())  # what they are depends on your machine
assert report == "stage 0: replays 1 kind of microbatch"

# %% [markdown]
# The numbers are those of your machine, now. Ours says a little over two times the floor for *operations*, three for
# *modules*, four to five for the *pipeline*, and between two and three once it is *replayed*.
#
# Where does the time go? A product of 16 x 32 and 32 x 32 numbers takes NumPy little more than a microsecond. In the
# same time Python calls ten or twenty functions. And an operation is more than a product: it checks shapes and dtypes,
# and makes a tensor, a node and a vjp for each input. Later the walk looks for the latest node, calls each vjp and adds
# what it returns. A module looks up its parameters and calls the operation. None of this is waste. It is what names the
# layer when shapes do not fit, and what lets you write any model you like. But it takes as long for a small product as
# for a large one.
#
# Replaying skips most of it, because it has the same outcome for every microbatch. What it cannot skip is the step
# around the microbatches: most of the difference between *replayed* and *by hand*.
#
# And does it compute the same? All five have taken the same steps. Compare their weights.

# %%
is_same = {name: all(map(same_bits, values, weights["modules"])) for name, values in weights.items()}
is_close = all(np.allclose(*pair, atol=1e-5) for pair in zip(weights["by hand"], weights["modules"]))
print(f"the bits of the loop with modules: {is_same['pipeline']} for the pipeline, {is_same['replayed']} for replayed")
print(f"by hand the same but for rounding: {is_close}")
assert is_same["operations"] and is_same["pipeline"] and is_same["replayed"]
assert is_close

# %% [markdown]
# ## A large network
#
# Now let it be 512 wide, with 64 rows in a microbatch. Each product has 1,024 times as much arithmetic. But there are
# as many layers, operations and actions as before.

# %%
with init_process_group() as group:
    large, _, report = compare(group, width=512, rows=64, rounds=20)
print(table(large))
assert (512 * 512 * 64) / (32 * 32 * 16) == 1024
assert all(time > 0 for time in large.values())
assert report == "stage 0: replays 1 kind of microbatch"

# %% [markdown]
# Look at the last column: what a layer of software adds is of the same order as before, some hundred microseconds. But
# by hand the step now takes milliseconds, so the same costs are a small part of it. Twice as wide again, they are
# lost in the noise.
#
# That is why **small models are slow in every framework, and large ones in none**. The cost of software is counted in
# calls, the cost of arithmetic in numbers. When we measured the forward and backward of one microbatch in PyTorch, it
# took 8.5 times the floor for our small network, and 2.4 times for one that is 128 wide. With a GPU it is worse: the
# arithmetic is faster and the calls are not, so a model has to be larger before they stop mattering. Three things help:
#
# - **larger pieces**: more rows in a microbatch, that is, fewer microbatches. But a pipeline needs many of them for a
#   small bubble (lesson 05). Both costs have to be weighed against each other, and on your machine.
# - **fewer, larger operations**: `functional.linear` is a product and a sum in one operation.
# - **capture and replay**. CUDA graphs, `torch.compile` and `jax.jit` begin with the same idea, and go on from there:
#   they also write new code for several operations at once.
#
# ## When does a capture pay back?
#
# A capture is slow. Each call of NumPy passes through Python code that notes it, and the lines have to be sorted,
# written and compiled. It is also done twice, in different steps: only if both have left the same lines are these
# trusted. So let new pipelines take their first five steps, without replaying and with it. The difference is what the
# steps that follow have to save.


# %%
def pays_back(group, width, rows, times, pairs=5, beginning=5):
    """Return how many microseconds capturing adds to the first steps, and the step from which it has paid."""
    batch, longer = samples(width, rows), []
    for _ in range(pairs):
        plain, capturing = (pipeline_way(group, width, replay)[1].step for replay in (False, True))
        both = [(seconds_of(plain, *batch), seconds_of(capturing, *batch)) for _ in range(beginning)]
        longer.append(sum(second - first for first, second in both))
    cost, saving = max(0.0, 1e6 * median(longer)), times["pipeline"] - times["replayed"]
    return cost, beginning + cost / saving if saving > 0 else inf


with init_process_group() as group:
    found = [pays_back(group, 32, 16, small), pays_back(group, 512, 64, large, pairs=3)]
for size, (cost, step) in zip(("small", "large"), found):
    words = f"made up for by step {step:.0f}" if isfinite(step) else "not made up for, as far as we could measure"
    print(f"{size} network: capturing takes {cost / 1000:.1f} ms, {words}")
assert all(cost >= 0 and step >= 5 for cost, step in found)

# %% [markdown]
# A training has thousands of steps, so some twenty are nothing. But there is no gain where shapes differ in every step,
# as with texts that are cut to another length each time: each shape needs a capture of its own. And code that looks at
# the *values* of a tensor, such as `if x.data.max() > 0`, is not captured at all, since another microbatch may have to
# take the other branch. Such a stage goes on as before, and `pipeline.replay_report()` says which one and why.
#
# ## Exercise
#
# 1. At which width is the pipeline without replaying 10 % above the floor? Guess first, from the two tables.
# 2. Leave the width at 32, and give a microbatch 1, 16 and 256 rows. Why is the step by hand nearly as long for 1 as
#    for 16?
# 3. Measure the small network with `M` of 2, 4, 8 and 16, and 16 rows in a microbatch. The times of *replayed* lie
#    on a line. What does it cost to begin a step, and what does each further microbatch cost?
# 4. Put a layer of your own into the network. What does the report say? Give it `is_replayable = True`, as in lesson
#    01, and read the report again. Then let its forward ask `if x.data.max() > 0`.
# 5. In the coursework task `01_multiply` you wrote an operation with its vjps. Nothing in it is about replaying. Why
#    can it be replayed?
#
# <details>
# <summary>Answers</summary>
#
# 1. Somewhere between the two tables. The costs of software are some hundred microseconds a step, whatever the width,
#    and the arithmetic grows with the square of it. So divide what *pipeline* adds by a tenth, and look for the width
#    at which the step by hand takes that long. On the machine where this was written that is between 256 and 512, with
#    64 rows.
#
# ```python
# with init_process_group() as group:
#     ratios = {}
#     for width in (64, 128, 256):
#         times, _, _ = compare(group, width=width, rows=64, rounds=16)
#         ratios[width] = times["pipeline"] / times["by hand"]
# assert all(0 < ratio < inf for ratio in ratios.values())
# print(ratios)
# ```
#
# 2. For 1 row it is nearly as long as for 16, because calls of NumPy take about a microsecond each, however small the
#    arrays. The arithmetic is what is left, and only shows with 256 rows.
#
# ```python
# with init_process_group() as group:
#     hands = {rows: compare(group, 32, rows, rounds=30)[0]["by hand"] for rows in (1, 16, 256)}
# assert hands[1] < hands[256]
# print(hands)
# ```
#
# 3. Fit a line through the times: its slope is what a microbatch costs, and where it meets M = 0, what it costs to
#    begin a step. On the machine where this was written that was some 35 and some 200 microseconds.
#
# ```python
# with init_process_group() as group:
#     points = []
#     for M in (2, 4, 8, 16):
#         points.append((M, compare(group, width=32, rows=16, rounds=40)[0]["replayed"]))
# slope, begin = np.polyfit(*zip(*points), 1)
# M = 4
# print(f"a step {begin:.0f} µs, and {slope:.0f} µs for each microbatch")
# assert slope > 0
# ```
#
# 4. A layer of your own is not replayed: minipipe cannot know whether it does anything besides computing with tensors.
#    With `is_replayable = True` it is. A question about values spoils the capture, since another microbatch may get
#    another answer.
#
# ```python
# class Mine(nn.Module):
#     def forward(self, x):
#         return x * x
#
#
# class Promising(Mine):
#     is_replayable = True
#
#
# class Looking(Promising):
#     def forward(self, x):
#         return x * x if x.data.max() > 0 else x
#
#
# reports = {}
# with init_process_group() as group:
#     for layer in (Mine, Promising, Looking):
#         model = nn.Sequential(nn.Linear(8, 8), layer(), nn.Linear(8, 8))
#         pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=2)
#         for _ in range(5):
#             pipeline.step(*samples(8, 2)[:, :4])
#         reports[layer.__name__] = pipeline.replay_report()
#         print(reports[layer.__name__])
# assert reports["Promising"] == "stage 0: replays 1 kind of microbatch"
# assert all("replays" not in reports[name] for name in ("Mine", "Looking"))
# ```
#
# 5. What is noted is what NumPy is asked to do, and your operation asks NumPy. It needs to know nothing about it: its
#    forward and its vjps get arrays that note each call.
#
# ```python
# from minipipe.tensor import record
#
#
# def multiply(a, b):
#     """The product of two tensors, as in the coursework."""
#     return record(a.data * b.data, (a, lambda gradient: gradient * b.data), (b, lambda gradient: gradient * a.data))
#
#
# class WithMultiply(nn.Module):
#     is_replayable = True
#
#     def forward(self, x):
#         return multiply(x, x)
#
#
# with init_process_group() as group:
#     model = nn.Sequential(nn.Linear(8, 8), WithMultiply(), nn.Linear(8, 8))
#     pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=2)
#     for _ in range(5):
#         pipeline.step(*samples(8, 2)[:, :4])
#     report = pipeline.replay_report()
# assert report == "stage 0: replays 1 kind of microbatch"
# ```
#
# </details>
#
# Next, `18_more_pipelines.py`: back to schedules, in which a stage is on more than one rank.
