# %% [markdown]
# # 17 · Where the time goes, and what compiling saves
#
# In this lesson you measure what each layer of software adds to the time of a step, in
# microseconds. You train a small network in five ways, from NumPy by hand to a
# pipeline, and then a large network in the same ways.
#
# At the end you know why small models are slow in every framework, why large ones are
# not, and what `Pipeline(…, compile=True)` does about it.

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

# Other lessons call watch_everything() here. This one does not: watching takes time, and watched steps run eagerly.

# %% [markdown]
# ## By hand
#
# The network has two Linear layers of equal width, each followed by a ReLU. A batch is
# divided into four microbatches. The loss is the mean squared error, and the update is
# plain gradient descent. Everything runs on one rank, so no message is sent.
#
# The first way, **by hand**, makes only the NumPy calls that the computation needs. It
# is a lower limit: a framework that calls the same NumPy functions cannot be much
# faster.

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
        # a product with ones sums rows fastest
        gradients = x.T.dot(g1), ones.dot(g1), h1.T.dot(g2), ones.dot(g2)
        total = (
            gradients if total is None else [a + b for a, b in zip(total, gradients)]
        )
    for weight, gradient in zip(weights, total):
        weight -= RATE * gradient


# %% [markdown]
# ## Four more ways
#
# - **operations**: tensors and operations that check their inputs and record a graph,
#   and the backward through that graph (lesson 01).
# - **modules**: layers that know their parameters, a loss, and an optimiser. This is
#   the loop of lesson 02, and what most people call a framework.
# - **pipeline**: a step for many ranks around the modules. It divides the batch,
#   follows a schedule, records times, and checks that the loss and all gradients are
#   finite. It runs *eagerly*: each layer is called for each microbatch.
# - **compiled**: the same pipeline with `compile=True`. Its second step is *recorded*:
#   the NumPy calls of a microbatch become straight-line code, like the code that lesson
#   01 wrote by hand. Later steps run this program, without operations and modules.


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
# All five ways begin with the same weights. `Way` holds a function that takes a step,
# and the weights that it trains.


# %%
class Way(NamedTuple):
    """A way to train the network."""

    step: partial  # (inputs, targets) -> None
    weights: list  # of arrays or tensors

    def values(self):
        return [
            weight if isinstance(weight, np.ndarray) else weight.numpy()
            for weight in self.weights
        ]


def network(width):
    layers = [nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers).initialise(seed=0)


def pipeline_way(group, width, is_compiled):
    """Return a new pipeline, and the way that trains it."""
    pipeline = Pipeline(
        network(width),
        group,
        loss=nn.MSELoss(),
        num_microbatches=M,
        compile=is_compiled,
    )
    optimiser = optim.SGD(pipeline.parameters(), RATE)
    return pipeline, Way(
        partial(with_pipeline, pipeline, optimiser), list(pipeline.parameters())
    )


def five_ways(group, width):
    """Return the five ways by name, and the compiled pipeline."""
    model = network(width)
    arrays = [parameter.data.copy() for parameter in model.parameters()]
    tensors = [Tensor(array.copy(), requires_grad=True) for array in arrays]
    loop = partial(
        with_modules, model, nn.MSELoss(), optim.SGD(model.parameters(), RATE)
    )
    pipeline, compiled = pipeline_way(group, width, is_compiled=True)
    return pipeline, {
        "by hand": Way(partial(by_hand, arrays), arrays),
        "operations": Way(partial(with_operations, tensors), tensors),
        "modules": Way(loop, list(model.parameters())),
        "pipeline": pipeline_way(group, width, is_compiled=False)[1],
        "compiled": compiled,
    }


# %% [markdown]
# ## A fair measurement
#
# Times of microseconds are easy to get wrong. Other programs take the processor away,
# so we read a clock that counts only while our thread runs. Other programs also empty
# the caches and change the clock rate. So the five ways take *turns*, one step each,
# and a disturbance affects all of them. From many rounds we take the *median*, which a
# few disturbed steps do not change. The first rounds are left out: memory is allocated
# in them, and nothing is compiled yet.

# %%
# Windows counts the latter in ticks of 16 ms
CLOCK = perf_counter if sys.platform == "win32" else thread_time


def seconds_of(step, *batch):
    begin = CLOCK()
    step(*batch)
    return CLOCK() - begin


def samples(width, rows):
    """Return a batch of inputs and targets, with ``rows`` rows in each microbatch."""
    return (
        np.random.default_rng(seed=0)
        .standard_normal((2, M * rows, width))
        .astype(np.float32)
    )


def compare(group, width, rows, rounds):
    """Let all ways take turns; return their median times in microseconds, their weights, and the compiled pipeline."""
    pipeline, ways = five_ways(group, width)
    batch = samples(width, rows)
    times = [
        [seconds_of(way.step, *batch) for way in ways.values()] for _ in range(rounds)
    ][6:]
    medians = {name: 1e6 * median(column) for name, column in zip(ways, zip(*times))}
    return medians, {name: way.values() for name, way in ways.items()}, pipeline


def table(times):
    """Return a line for each way: its time, its ratio to the first way, and its difference from the way before."""
    lines, before = [f"{'':10} µs a step  / by hand       adds"], 0
    for name, time in times.items():
        lines.append(
            f"{name:10} {time:9.0f} {time / times['by hand']:10.2f} "
            f"{time - before:+10.0f}"
        )
        before = time
    return "\n".join(lines)


# %% [markdown]
# ## A small network
#
# It is 32 wide, and a microbatch has 16 rows. `init_process_group` limits NumPy to one
# thread for all five ways. The columns of the table are the time of a step, its ratio
# to *by hand*, and the difference from the line above.

# %%
with init_process_group() as group:
    small, weights, pipeline = compare(group, width=32, rows=16, rounds=150)
print(table(small))
print(pipeline.compile_report())
assert list(small) == ["by hand", "operations", "modules", "pipeline", "compiled"]
assert all(time > 0 for time in small.values())  # what they are depends on your machine
assert pipeline.compile_report() == "step: stage 0 is compiled"

# %% [markdown]
# The numbers come from your machine. On ours *operations* took a little over twice the
# time of *by hand*, *modules* three times, *pipeline* four to five times, and
# *compiled* one and a half times.
#
# The product of a 16 x 32 and a 32 x 32 matrix takes NumPy little more than a
# microsecond. In the same time Python calls ten or twenty functions. An operation needs
# more than the product: it checks shapes and dtypes, makes a tensor and a node, and
# saves the values that its gradients need. Later the backward finds the latest node,
# calls a gradient function for each input, and adds the results. A module looks up its
# parameters and calls the operation. These steps have a purpose: they name the layer in
# an error message, and they let you write any model. But they take as long for a small
# product as for a large one.
#
# A compiled step skips them, because their outcome is the same for every microbatch. The
# checks of the whole step remain: that all ranks make the same call, that nothing has
# changed on which the program depends, and that loss and gradients are finite.
#
# ## What a compiled step runs
#
# `pipeline.source()` prints the whole program of this rank, and `source(0)` the part of
# stage 0: one function for the forward of a microbatch, and one for its backward.

# %%
program = pipeline.source()
print(pipeline.source(0))
assert pipeline.source(0) in program
assert "def forward_0(" in program and "def backward_0(" in program

# %% [markdown]
# Parameters are called `p`, their gradients `d`. Results go into arrays that are made
# once and used in every step: a program allocates nothing. Behind the functions of the
# stages stands the schedule of this rank, which calls them with the numbers of the
# microbatches:

# %%
schedule = program[program.index("def schedule(") : program.index("def step(")]
calls = [
    line.strip()
    for line in schedule.splitlines()
    if "forward_0(" in line or "backward_0(" in line
]
print(*calls, sep="\n")
assert len(calls) == 2 * M

# %% [markdown]
# With several ranks the sends and receives of lesson 06 stand between these lines. So
# the program of a rank is its row of the schedule, written in Python.
#
# ## The same bits
#
# All five ways have taken the same steps. Do they have the same weights?

# %%
is_same = {
    name: all(map(same_bits, values, weights["modules"]))
    for name, values in weights.items()
}
is_close = all(
    np.allclose(*pair, atol=1e-5)
    for pair in zip(weights["by hand"], weights["modules"])
)
print(
    f"pipeline has the bits of modules: {is_same['pipeline']}; compiled has "
    f"them: {is_same['compiled']}"
)
print(f"by hand is equal up to rounding: {is_close}")
assert is_same["operations"] and is_same["pipeline"] and is_same["compiled"]
assert is_close

# %% [markdown]
# ## A large network
#
# Now make it 512 wide, with 64 rows in a microbatch. Each product has 1,024 times as
# much arithmetic. The numbers of layers, operations and actions stay the same.

# %%
with init_process_group() as group:
    large, _, pipeline = compare(group, width=512, rows=64, rounds=20)
print(table(large))
assert (512 * 512 * 64) / (32 * 32 * 16) == 1024
assert all(time > 0 for time in large.values())
assert pipeline.compile_report() == "step: stage 0 is compiled"

# %% [markdown]
# Look at the last column. A layer of software adds about as much as before, some
# hundred microseconds. But the step by hand now takes milliseconds, so the additions
# are a small part of it. If the network were twice as wide again, they would disappear
# in the noise.
#
# So **small models are slow in every framework, and large ones in none**. The cost of
# software grows with the number of calls, and the cost of arithmetic with the number of
# elements. On a GPU the difference is larger: arithmetic is faster and calls are not,
# so only larger models hide the calls. Three things help:
#
# - **Larger pieces**: more rows in a microbatch, which means fewer microbatches. But a
#   pipeline needs many microbatches for a small bubble (lesson 05). Balance both on
#   your machine.
# - **Fewer, larger operations**: `functional.linear` is a product and a sum in one
#   operation.
# - **Compilation**, as here. CUDA graphs, `torch.compile` and `jax.jit` begin with the
#   same idea. They also generate new code that fuses several operations.
#
# ## When does compiling pay off?
#
# Recording is slow. Each NumPy call passes through Python code that writes a line, and
# the lines have to be sorted, given memory, printed and compiled. The next cell lets new
# pipelines take their first five steps with and without compilation. The difference is
# the cost that later steps have to save.


# %%
def pays_back(group, width, rows, times, pairs=5, beginning=5):
    """Return the microseconds that compiling adds to the first steps, and the step at which it has paid off."""
    batch, longer = samples(width, rows), []
    for _ in range(pairs):
        plain, compiled = (
            pipeline_way(group, width, is_compiled)[1].step
            for is_compiled in (False, True)
        )
        both = [
            (seconds_of(plain, *batch), seconds_of(compiled, *batch))
            for _ in range(beginning)
        ]
        longer.append(sum(second - first for first, second in both))
    cost, saving = max(0.0, 1e6 * median(longer)), times["pipeline"] - times["compiled"]
    return cost, beginning + cost / saving if saving > 0 else inf


with init_process_group() as group:
    results = [
        pays_back(group, 32, 16, small),
        pays_back(group, 512, 64, large, pairs=3),
    ]
for size, (cost, step) in zip(("small", "large"), results):
    result = (
        f"pays off at step {step:.0f}"
        if isfinite(step)
        else "has not paid off within this measurement"
    )
    print(f"{size} network: compiling takes {cost / 1000:.1f} ms and {result}")
assert all(cost >= 0 and step >= 5 for cost, step in results)

# %% [markdown]
# A training has thousands of steps, so a few dozen do not matter.
#
# ## What a program depends on
#
# A program is traced once. It holds for the shapes and dtypes of a batch, the mode, and
# the attributes of all layers as they were. Before each step the pipeline compares them.
# After a change it records again, so that a step is never wrong:

# %%
x, y = samples(32, 16)
with init_process_group() as group:
    pipeline, way = pipeline_way(group, 32, is_compiled=True)
    reports = []
    for step in range(8):
        if step == 5:
            way.weights[0].requires_grad = False
        pipeline.step(x, y)
        reports.append(pipeline.compile_report())
print(*reports, sep="\n")
assert [report.removeprefix("step: ") for report in reports] == [
    "runs eagerly in the first step of a kind",
    "is recorded",
    *3 * ["stage 0 is compiled"],
    "is recorded",
    *2 * ["stage 0 is compiled"],
]

# %% [markdown]
# Two kinds of programs gain nothing. If shapes differ in every step, as with texts of
# varying length, each shape needs its own program. And code that looks at the *values*
# of a tensor, such as `if x.data.max() > 0`, cannot be compiled, because another
# microbatch may need the other branch. `compile=True` refuses such a layer, with the line
# that looks; `compile="where-possible"` runs its stage eagerly, and
# `pipeline.compile_report()` gives the reason.
#
# ## In PyTorch
#
# - `torch.compile(module)` traces the operations of a module, generates fused code, and
#   falls back to Python at a *graph break*, such as a branch on a value. With
#   `fullgraph=True` a graph break is an error, as with `compile=True` here.
#   `torch.compile(module, mode="reduce-overhead")` also runs it as a CUDA graph.
# - `TORCH_LOGS=graph_breaks,recompiles python train.py` prints what `compile_report()`
#   prints here: the reason of each graph break, and each shape that needed a new trace.
#
# ## What you have learnt
#
# - Software costs time per call, arithmetic costs time per element.
# - Operations, modules and a pipeline add some hundred microseconds to a step of this
#   network, for any width.
# - A compiled step is the schedule of a rank as straight-line NumPy. It removes most of
#   that and keeps the bits.

# %% [markdown]
# ## Exercise
#
# 1. At which width is the eager pipeline 10 % slower than by hand? Guess
#    first, from the two tables.
# 2. Keep the width of 32, and give a microbatch 1, 16 and 256 rows. Why is the step by
#    hand nearly as long for 1 as for 16?
# 3. Measure the small network with `M` of 2, 4, 8 and 16, and 16 rows in a microbatch.
#    The times of *compiled* lie on a line. What does it cost to begin a step, and what
#    does each further microbatch cost?
# 4. Put a layer of your own into the network, and compile where possible. What does the
#    report say? Set the class attribute `is_compilable = True` in your layer, and read
#    the report again. Then let its forward ask `if x.data.max() > 0`.
# 5. In the coursework task `01_multiply` you wrote an operation with its gradients.
#    Nothing in it is about compilation. Why can it be compiled?
#
# <details>
# <summary>Answers</summary>
#
# 1. Somewhere between the two tables. Software costs some hundred microseconds per step
#    for any width, and arithmetic grows with the square of the width. Divide the
#    additional time of *pipeline* by a tenth, and look for the width at which the step
#    by hand takes that long. With 64 rows, that was between 256 and 512 on the machine
#    on which this was written.
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
# 2. NumPy calls take about a microsecond each, however small the arrays. For 1 and 16
#    rows they are most of the time. The arithmetic shows only with 256 rows.
#
# ```python
# with init_process_group() as group:
#     hands = {rows: compare(group, 32, rows, rounds=30)[0]["by hand"] for rows in (1, 16, 256)}
# assert hands[1] < hands[256]
# print(hands)
# ```
#
# 3. Fit a line through the times. Its slope is the cost of a microbatch, and its value
#    at M = 0 is the cost to begin a step. On the machine on which this was written
#    these were some 35 and some 200 microseconds.
#
# ```python
# with init_process_group() as group:
#     points = []
#     for M in (2, 4, 8, 16):
#         points.append((M, compare(group, width=32, rows=16, rounds=40)[0]["compiled"]))
# slope, begin = np.polyfit(*zip(*points), 1)
# M = 4
# print(f"a step {begin:.0f} µs, and {slope:.0f} µs for each microbatch")
# assert slope > 0
# ```
#
# 4. A layer of your own is not compiled, because minipipe cannot know whether it does
#    anything besides computing with tensors. With `is_compilable = True` you promise that
#    it does not. A branch on values is noticed, because another microbatch may take the
#    other branch.
#
# ```python
# class Mine(nn.Module):
#     def forward(self, x):
#         return x * x
#
#
# class Promising(Mine):
#     is_compilable = True
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
#         options = {"num_microbatches": 2, "compile": "where-possible"}
#         pipeline = Pipeline(model, group, loss=nn.MSELoss(), **options)
#         for _ in range(3):
#             pipeline.step(*samples(8, 2)[:, :4])
#         reports[layer.__name__] = pipeline.compile_report()
#         print(reports[layer.__name__])
# assert reports["Promising"] == "step: stage 0 is compiled"
# assert all("runs eagerly: layer 1" in reports[name] for name in ("Mine", "Looking"))
# ```
#
# 5. A trace records NumPy calls, and your operation calls NumPy. Its forward and its
#    gradients receive arrays that record each call.
#
# ```python
# from minipipe import op
#
#
# @op()
# def multiply(a, b):
#     """The product of two tensors, as in the coursework."""
#     return a * b
#
#
# multiply.gradients(a=lambda g, b: g * b, b=lambda g, a: g * a)
#
#
# class WithMultiply(nn.Module):
#     is_compilable = True
#
#     def forward(self, x):
#         return multiply(x, x)
#
#
# with init_process_group() as group:
#     model = nn.Sequential(nn.Linear(8, 8), WithMultiply(), nn.Linear(8, 8))
#     options = {"num_microbatches": 2, "compile": True}
#     pipeline = Pipeline(model, group, loss=nn.MSELoss(), **options)
#     for _ in range(3):
#         pipeline.step(*samples(8, 2)[:, :4])
#     report = pipeline.compile_report()
# assert report == "step: stage 0 is compiled"
# ```
#
# </details>
#
# Next, `18_more_pipelines.py`: back to schedules, with several replicas of each stage.
