# %% [markdown]
# # 01 · A tape, and why gradients add
#
# In this lesson you write a program of about forty lines that computes the gradient of
# any calculation. You need it for everything that follows, and it rests on two facts:
# the program walks *backwards*, and gradients *add*.
#
# A neural network is a long calculation with many adjustable numbers, its *parameters*.
# Training asks one question about each of them: if this number increases a little, by
# how much does the result change? The answer is a slope, the derivative of the result
# with respect to this number. All the slopes together are the **gradient**. (The slope
# that belongs to a single number is also called the gradient of that number.)
#
# You first work with single numbers. At the end you meet the same program inside
# minipipe, working on arrays: it has the same parts, so your program is a map of it.
# Later lessons distribute it over several processes.

# %%
from inspect import signature

import numpy as np

from minipipe import Tensor, functional, op, render, watch_everything
from minipipe.testing import check_gradients

# raise an error if an array is modified while its old values are still needed
watch_everything()

# %% [markdown]
# ## Slopes by trying
#
# The simplest way to find a slope is to try: increase the number a little, decrease it
# a little, and see how the result changes.


# %%
def slope(function, x, step=1e-5):
    """Return the rate at which the result changes with x, by trying."""
    return (function(x + step) - function(x - step)) / (2 * step)


def example(x):
    return x * x + x


print(f"at 3 the example is {example(3.0)}, and its slope is {slope(example, 3.0):.4f}")
assert example(3.0) == 12.0
assert abs(slope(example, 3.0) - 7.0) < 1e-6

# %% [markdown]
# This takes two evaluations for each parameter. A network has millions of parameters,
# and each evaluation takes long. There is a way to compute all slopes together, for
# about the cost of three evaluations.
#
# ## A table of operations
#
# A long calculation consists of small ones, and the slopes of the small ones are known:
#
# - `a + b` grows as fast as `a` does, and as fast as `b` does: the slopes are 1 and 1.
# - `a * b` grows `b` times as fast as `a` does, and `a` times as fast as `b` does: the
#   slopes are `b` and `a`.
#
# We write them into a table. Each row has the *forward* of an operation and, for each
# of its inputs, a *gradient function*. Call `g` the gradient of the result: if it is
# known, the function returns what the input contributes, `g` times the slope. Its other
# parameters name the values that it needs.

# %%
TABLE = {
    "sum": (lambda a, b: a + b, {"a": lambda g: g, "b": lambda g: g}),
    "product": (lambda a, b: a * b, {"a": lambda g, b: g * b, "b": lambda g, a: g * a}),
}


def needs(function):
    """Return the names of the values that a gradient function needs, besides g."""
    return list(signature(function).parameters)[1:]


for name, (_, gradients) in TABLE.items():
    print(name, {each: needs(function) for each, function in gradients.items()})
assert needs(TABLE["product"][1]["a"]) == ["b"] and needs(TABLE["sum"][1]["a"]) == []

# %% [markdown]
# ## A tape
#
# Each result remembers its operation and its inputs. It also *saves* the values that
# the gradient functions need, and no others: a product saves both factors, a sum saves
# nothing. And each result is appended to a list as soon as it is computed. This list is
# the **tape**.

# %%
tape = []  # every result, in the order of computation


class Value:
    """A number that remembers how it was computed."""

    def __init__(self, number, name, inputs=(), saved=None):
        self.number = number
        self.name = name  # of a result, the name of its operation
        self.inputs = inputs
        self.saved = saved  # by name, what the gradient functions need
        self.gradient = 0.0

    def __add__(self, other):
        return computed("sum", self, other)

    def __mul__(self, other):
        return computed("product", self, other)


def computed(operation, *inputs):
    """Compute a result, and append it to the tape."""
    forward, gradients = TABLE[operation]
    numbers = dict(zip(gradients, [value.number for value in inputs]))
    needed = [name for function in gradients.values() for name in needs(function)]
    result = Value(
        forward(**numbers), operation, inputs, {name: numbers[name] for name in needed}
    )
    tape.append(result)
    return result


def contributions(value, g):
    """Return what each input of a value gets, if the gradient of the value is g."""
    _, gradients = TABLE[value.name]
    return [
        function(g, *[value.saved[name] for name in needs(function)])
        for function in gradients.values()
    ]


# %% [markdown]
# `example` was written for plain numbers, but it uses only `*` and `+`, so it also
# works with `Value`. The next cell prints the result as a tree: the inputs of each
# value are listed under it, indented. The slopes are what the gradient functions return
# for a gradient of 1.


# %%
def tree(value, slope="", indent=""):
    """Return a value and, indented below it, its inputs with their slopes."""
    lines = [f"{indent}{value.name} = {value.number:g}{slope}"]
    slopes = contributions(value, 1.0) if value.inputs else []
    for source, local_slope in zip(value.inputs, slopes):
        lines += tree(source, f"    (slope {local_slope:g})", indent + "    ")
    return lines


tape.clear()  # so that this cell can be run again
x = Value(3.0, "x")
y = example(x)
print("\n".join(tree(y)))
assert tree(y) == [
    "sum = 12",
    "    product = 9    (slope 1)",
    "        x = 3    (slope 3)",
    "        x = 3    (slope 3)",
    "    x = 3    (slope 1)",
]
assert [(value.name, value.saved) for value in tape] == [
    ("product", {"b": 3.0, "a": 3.0}),
    ("sum", {}),
]

# %% [markdown]
# The same as a graph. Each value appears once, and an arrow leads from each input to
# the value that was computed from it:


# %%
def label(value):
    return f"{value.name} = {value.number:g}"


arrows = [
    (label(source), label(value), f"slope {slope:g}")
    for value in tape
    for source, slope in zip(value.inputs, contributions(value, 1.0))
]
picture = render.draw_graph([[label(x)], *([label(value)] for value in tape)], arrows)
render.show_picture(
    picture,
    "\n".join(f"{source} to {result}: {text}" for source, result, text in arrows),
)
assert arrows == [
    ("x = 3", "product = 9", "slope 3"),
    ("x = 3", "product = 9", "slope 3"),
    ("product = 9", "sum = 12", "slope 1"),
    ("x = 3", "sum = 12", "slope 1"),
]

# %% [markdown]
# ## The walk back
#
# Along a path from the result down to `x`, the slopes multiply. The sum grows 1 times
# as fast as the product, and the product grows 3 times as fast as its first factor, so
# this path contributes 1 * 3 = 3.
#
# There are three such paths, because `x` is used three times. When `x` changes, all
# three uses change with it, and their contributions add up. So **the gradient is the
# sum over all paths**: 1 * 3 + 1 * 3 + 1 = 7, the slope that we found by trying.
#
# There is no need to follow every path. Walk the tape from its end to its beginning.
# Each value calls its gradient functions and passes the results on to its inputs; each
# input *adds* up what it receives. On the tape a result always comes after its
# inputs: the tape is in **topological order**. Read backwards, it reaches a value only
# after everything that was computed from it, so at that point the gradient of the value
# is complete.


# %%
def backward(result):
    """Walk the tape back from the last result, removing entries on the way."""
    assert tape and tape[-1] is result, "walk back from the latest result, and once"
    result.gradient = 1.0
    while tape:
        value = tape.pop()
        for source, contribution in zip(
            value.inputs, contributions(value, value.gradient)
        ):
            source.gradient += contribution


backward(y)
print(f"the gradient of x is {x.gradient}")
assert x.gradient == 7.0
assert not tape

# %% [markdown]
# This is the whole method. It is called *reverse-mode automatic differentiation*. The
# calculation itself is the **forward**, and the walk back is the **backward**.
#
# ## Why the walk is fast
#
# Double a number twenty times. The tape then has 20 entries, but every entry doubles
# the number of paths from the result to `x`: there are 2 to the power of 20.

# %%
x = Value(1.0, "x")
y = x
for _ in range(20):
    y = y + y
num_entries = len(tape)
backward(y)
print(f"{num_entries} entries on the tape, {x.gradient:,.0f} paths, each with slope 1")
assert num_entries == 20
assert x.gradient == 2**20 == 1_048_576

# %% [markdown]
# ## Without adding, the gradient is wrong
#
# Write `=` instead of `+=`, and the last contribution overwrites the others. There is
# no error message; the network just learns the wrong thing. That is why we compare
# gradients with the slope found by trying.


# %%
def backward_that_forgets(result):
    result.gradient = 1.0
    while tape:
        value = tape.pop()
        for source, contribution in zip(
            value.inputs, contributions(value, value.gradient)
        ):
            source.gradient = contribution  # the mistake


x = Value(3.0, "x")
backward_that_forgets(example(x))
print(f"without adding: {x.gradient}, by trying: {slope(example, 3.0):.4f}")
assert x.gradient == 3.0
assert abs(slope(example, 3.0) - 7.0) < 1e-6

# %% [markdown]
# ## The same with arrays
#
# A `Tensor` of minipipe works like our `Value`, but holds a whole array. There are
# three differences:
#
# - A tensor gets a gradient only if it is created with `requires_grad=True`. The
#   gradient is then stored in its attribute `grad`.
# - Each result has a serial number, and the walk always takes the latest result next.
#   So several independent calculations can exist side by side.
# - A slope is no longer a number, because each element of a result may depend on each
#   element of an input. But a gradient function works as before: it turns the gradient
#   of the result into the gradient of the input, both arrays. Such a function is called
#   a **vjp**, short for vector-Jacobian product. For `a * b` and `a` it is still "`g`
#   times `b`".

# %%
x = Tensor([3.0, -1.0, 0.5], requires_grad=True)
y = example(x)
y.sum().backward()
print(f"x            {x.numpy().tolist()}")
print(f"its gradient {x.grad.tolist()}")
assert x.numpy().tolist() == [3.0, -1.0, 0.5]
assert x.grad.tolist() == [7.0, -1.0, 2.0]  # 2 x + 1

# %% [markdown]
# A backward has to start from a single number, so the cell calls `sum()` first. `x` is
# used in three places, and the three contributions add, as before.
#
# ## Your program is a map
#
# Each part of your program is a part of minipipe:
#
# | here | in minipipe | in the file |
# |---|---|---|
# | a row of `TABLE` | an operation, made with `op` | `core/autograd/operation.py` |
# | `needs` | a plan: which values a result saves | `core/autograd/operation.py` |
# | the number of a `Value` | a tensor | `tensor.py` |
# | its operation, inputs and saved values | a node | `core/autograd/graph.py` |
# | `computed` | the call of an operation | `tensor.py` |
# | `tape` | the serial numbers of the nodes | `core/autograd/modes.py` |
# | `backward` | the walk | `core/autograd/walk.py` |
#
# Look at the node of a result. It says which operation it has, what its inputs are, and
# what it saves:

# %%
y = example(x)
print(y.node)
print(y.node.inputs[0])
assert str(y.node) == "add(multiply, Leaf), which keeps nothing"
assert str(y.node.inputs[0]) == "multiply(Leaf, Leaf), which keeps a, b"

# %% [markdown]
# A new row takes four lines. The forward is a function of arrays, and the gradient
# names what it needs, as in `TABLE`: here the slope of the cube is 3 x².


# %%
@op()
def cube(x):
    return x * x * x


cube.gradients(x=lambda g, x: g * (3 * x * x))

x = Tensor([3.0, -1.0, 0.5], requires_grad=True)
y = cube(x)
print(y.node)
y.sum().backward()
print(f"its gradient {x.grad.tolist()}")
assert x.grad.tolist() == [27.0, 3.0, 0.75]

# %% [markdown]
# ## Checking gradients
#
# `check_gradients` compares the gradients of any function of tensors with slopes found
# by trying. It prints nothing if they agree. Here it checks one layer of a network:
# inputs times weights, followed by `tanh`, a curve that becomes flat at both ends.

# %%
generator = np.random.default_rng(seed=0)
inputs, weights = generator.standard_normal((4, 3)), generator.standard_normal((3, 2))
check_gradients(
    lambda inputs, weights: functional.tanh(inputs @ weights), inputs, weights
)
check_gradients(cube, inputs)

# %% [markdown]
# If a gradient is wrong, it reports where. The next calculation contains a mistake:
# `detach()` separates a tensor from the tape, so one of the two uses of `x` is not
# counted.

# %%
try:
    check_gradients(lambda x: x * x.detach(), np.array([3.0]))
except AssertionError as error:
    place = str(error).split(":")[0]
print("wrong:", place)
assert place == "input 0, element (0,)"

# %% [markdown]
# ## The walk, written out
#
# For one calculation and one set of shapes, the walk visits the same entries in the
# same order every time. So it can be written down once as plain code, without tape and
# tensors. Here it is for `example`, by hand. The lines of `written_backward` are the
# steps of the walk, and each name says which value the gradient belongs to.


# %%
def written_forward(x):
    product = x * x
    result = product + x
    return result


def written_backward(x, result_gradient):
    # The sum: both of its slopes are 1.
    product_gradient = result_gradient
    x_gradient = result_gradient
    # The product: each of its slopes is the other factor, which is x both times.
    x_gradient = x_gradient + product_gradient * x
    x_gradient = x_gradient + product_gradient * x
    return x_gradient


result, gradient = written_forward(3.0), written_backward(3.0, 1.0)
print(f"at 3 the example is {result}, and its gradient {gradient}")
assert (result, gradient) == (example(3.0), 7.0) == (12.0, 7.0)

# %% [markdown]
# Compare this with the tree. The two results of the tree are the two lines of the
# forward. The three paths down to `x` are the three contributions to `x_gradient`. And
# gradients *add*, in two of the lines.
#
# The same lines work with arrays:

# %%
numbers = np.array([3.0, -1.0, 0.5], np.float32)
written = written_backward(numbers, np.ones(3, np.float32))
x = Tensor(numbers, requires_grad=True)
example(x).sum().backward()
print(f"written out {written.tolist()}, by the tape {x.grad.tolist()}")
assert written.tolist() == x.grad.tolist() == [7.0, -1.0, 2.0]

# %% [markdown]
# minipipe does the same automatically, if you ask for it: `Pipeline(…, compile=True)`
# records the NumPy calls of a training step as code without tensors and tape, and runs
# this code in later steps, which is faster. Lesson 17 measures the gain.
#
# ## Gradients add over calls
#
# There is one more place where gradients add, and the whole course rests on it. If you
# call `backward` on two different calculations that use the same `x`, the second
# gradient is added to the first. So you can take a large set of samples, process it in
# parts, and end up with the gradient of the whole set. (Before the next set, you clear
# the old gradient yourself; for a tensor, call `x.zero_grad()`.)

# %%
samples = np.array([1.0, 2.0, 3.0, 4.0], np.float32)

at_once = Tensor(5.0, requires_grad=True)
(at_once * samples).sum().backward()

in_parts = Tensor(5.0, requires_grad=True)
(in_parts * samples[:2]).sum().backward()
after_first_part = in_parts.grad.item()
(in_parts * samples[2:]).sum().backward()

print(
    f"first part {after_first_part}, both parts {in_parts.grad.item()}, at once "
    f"{at_once.grad.item()}"
)
assert after_first_part == 1.0 + 2.0
assert in_parts.grad.item() == at_once.grad.item() == 10.0

# %% [markdown]
# ## What you have learnt
#
# - A table has the forward and the gradients of each operation. A tape records each
#   result with its operation, its inputs and the values that the gradients need. One
#   walk back computes all gradients.
# - A value that is used several times receives several contributions, and they add.
# - Gradients also add over several calls of `backward`, so a set of samples can be
#   processed in parts.
#
# ## Exercise
#
# 1. `Value` cannot subtract. Give `TABLE` another row and `Value` a method `__sub__`,
#    compute `x * x - x` at 3, and compare with `slope`.
# 2. Before you run it: what is the gradient of `x` for `y = x * x; z = y * y` at 3?
#    Count the paths.
# 3. The coursework task for this lesson is `01_multiply`: the product of two tensors,
#    with its gradients. (`minipipe coursework DIR` creates your copy of all the tasks in
#    the folder DIR.)
#
# <details>
# <summary>Answers</summary>
#
# 1. The difference grows 1 times as fast as its first input and -1 times as fast as its
#    second. At 3 the gradient is 2 x - 1 = 5.
#
# ```python
# TABLE["difference"] = (lambda a, b: a - b, {"a": lambda g: g, "b": lambda g: -g})
# Value.__sub__ = lambda self, other: computed("difference", self, other)
# x = Value(3.0, "x")
# backward(x * x - x)
# assert x.gradient == 5.0
# assert abs(slope(lambda x: x * x - x, 3.0) - 5.0) < 1e-6
# ```
#
# 2. It is 108. `z` is x to the power of 4. Each `y` has two paths to `x`, each with
#    slope 3, and `z` has two paths to `y`, each with slope 9. That makes four paths,
#    each with slope 9 * 3 = 27.
#
# ```python
# x = Value(3.0, "x")
# y = x * x
# backward(y * y)
# assert x.gradient == 4 * 9 * 3 == 108.0
# ```
#
# </details>
#
# Next, `02_one_rank.py`: a network that learns to read digits with the method that you
# have just built.
