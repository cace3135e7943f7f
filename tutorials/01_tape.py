# %% [markdown]
# # 01 · A tape, and why gradients add
#
# A neural network is a long calculation with many numbers in it that may be changed: its *parameters*. To train it is
# to ask, for each of them: if I raise you a little, how much does the result change? The answer is a slope, and all
# the slopes together are the **gradient**.
#
# In this lesson you build, in fewer than forty lines of plain Python, the machine that finds all slopes at once. At the
# end you meet the same machine inside minipipe, working on arrays. Everything that later lessons do over several
# processes rests on two facts that you see here: the machine walks *backwards*, and gradients *add*.

# %%
import numpy as np

from minipipe import Tensor, functional
from minipipe.testing import check_gradients

# %% [markdown]
# ## Slopes by trying
#
# The plainest way to find a slope is to try: move a number up a little and down a little, and see what becomes of the
# result.


# %%
def slope(function, x, step=1e-5):
    """Return how fast the result changes with x, by trying."""
    return (function(x + step) - function(x - step)) / (2 * step)


def example(x):
    return x * x + x


print(f"at 3 the example is {example(3.0)}, and its slope is {slope(example, 3.0):.4f}")
assert example(3.0) == 12.0
assert abs(slope(example, 3.0) - 7.0) < 1e-6

# %% [markdown]
# That needs two calculations for each number that may move. A network has millions of such numbers, and each
# calculation is long. There is a way to find all the slopes for the price of about two calculations, however many there
# are.
#
# ## A tape
#
# A long calculation is made of small ones, and the slope of a small one is known from school:
#
# - `a + b` grows as fast as `a` does, and as fast as `b` does: the slopes are 1 and 1.
# - `a * b` grows `b` times as fast as `a` does, and `a` times as fast as `b` does: the slopes are `b` and `a`.
#
# So let each number remember what it was computed from, with those slopes, and let each result be noted in a list, in
# the order of computing. That list is the **tape**.

# %%
tape = []  # every result, in the order in which they were computed


class Value:
    """A number that remembers what it was computed from."""

    def __init__(self, number, *inputs, name=""):
        self.number = number
        self.inputs = inputs  # pairs: (an input, the slope of this result with respect to it)
        self.gradient = 0.0
        self.name = name
        if inputs:
            tape.append(self)

    def __add__(self, other):
        return Value(self.number + other.number, (self, 1.0), (other, 1.0), name="sum")

    def __mul__(self, other):
        return Value(self.number * other.number, (self, other.number), (other, self.number), name="product")


# %% [markdown]
# `example` was written for plain numbers, but it works with these as well, since all it does is `*` and `+`. Below is
# what its result remembers, as a tree: under each result stands what it was computed from.


# %%
def tree(value, slope="", indent=""):
    """Return a value and, below it, what it was computed from, each with its slope."""
    lines = [f"{indent}{value.name} = {value.number:g}{slope}"]
    for source, local_slope in value.inputs:
        lines += tree(source, f"    (slope {local_slope:g})", indent + "    ")
    return lines


tape.clear()  # so that you may run this cell again
x = Value(3.0, name="x")
y = example(x)
print("\n".join(tree(y)))
assert tree(y) == [
    "sum = 12",
    "    product = 9    (slope 1)",
    "        x = 3    (slope 3)",
    "        x = 3    (slope 3)",
    "    x = 3    (slope 1)",
]
assert [value.number for value in tape] == [9.0, 12.0]

# %% [markdown]
# ## The walk back
#
# Along a path from the result down to `x` the slopes multiply: the sum grows 1 times as fast as the product, the
# product 3 times as fast as its first factor, so along this path 1 * 3 = 3.
#
# But there are three such paths, for `x` is used three times, and if `x` moves, all three uses move with it. Each adds
# its own share to the movement of the result. So **the gradient is the sum over all paths**: 1 * 3 + 1 * 3 + 1 = 7,
# which is what trying gave.
#
# It is not necessary to follow every path. Walk the tape from its end to its beginning. Each result, when its turn
# comes, hands its gradient on to its inputs, times the slope, and they *add* what they get. As a result stands on the
# tape behind everything that it was computed from, it has received all its shares before its own turn comes.


# %%
def backward(result):
    """Walk the tape back from its last result, and use it up."""
    assert tape and tape[-1] is result, "walk back from the latest result, and once"
    result.gradient = 1.0
    while tape:
        value = tape.pop()
        for source, local_slope in value.inputs:
            source.gradient += local_slope * value.gradient


backward(y)
print(f"the gradient of x is {x.gradient}")
assert x.gradient == 7.0
assert not tape

# %% [markdown]
# That is all. The method is called *reverse-mode automatic differentiation*; the calculation itself is the **forward**,
# and the walk back is the **backward**.
#
# How much does the walk save? Double a number twenty times. The tape then has 20 entries, but the paths from the result
# to `x` divide into two at each of them: there are 2 to the power of 20.

# %%
x = Value(1.0, name="x")
y = x
for _ in range(20):
    y = y + y
num_entries = len(tape)
backward(y)
print(f"{num_entries} entries on the tape, {x.gradient:,.0f} paths, each of slope 1")
assert num_entries == 20
assert x.gradient == 2**20 == 1_048_576

# %% [markdown]
# ## What goes wrong without adding
#
# Write `=` where `+=` belongs, and the last share to arrive overwrites the others. Nothing complains; the network
# merely learns something else. That is why gradients are checked against trying.


# %%
def backward_that_forgets(result):
    result.gradient = 1.0
    while tape:
        value = tape.pop()
        for source, local_slope in value.inputs:
            source.gradient = local_slope * value.gradient  # the mistake


x = Value(3.0, name="x")
backward_that_forgets(example(x))
print(f"without adding: {x.gradient}, by trying: {slope(example, 3.0):.4f}")
assert x.gradient == 3.0
assert abs(slope(example, 3.0) - 7.0) < 1e-6

# %% [markdown]
# ## The same with arrays
#
# A `Tensor` of minipipe is such a value, but it holds a whole array. Its tape is kept a little differently: each result
# has a number that says when it was made, and the walk takes the latest first, so that several calculations can be
# under way at once. Instead of a slope, each operation knows a function that turns the gradient of its result into the
# gradient of its input: the **vjp** (short for vector-Jacobian product). The vjp of `a * b` for `a` is
# "times `b`": for a single number, just what you wrote above.

# %%
x = Tensor([3.0, -1.0, 0.5], requires_grad=True)
y = example(x)
y.sum().backward()
print(f"x            {x.numpy().tolist()}")
print(f"its gradient {x.grad.tolist()}")
assert x.numpy().tolist() == [3.0, -1.0, 0.5]
assert x.grad.tolist() == [7.0, -1.0, 2.0]  # 2 x + 1

# %% [markdown]
# Only a single number has a slope to begin with, which is why `sum()` stands there. `x` is used in three places, and
# its shares add, as before.
#
# `check_gradients` is the comparison with trying, for any function of tensors. It says nothing when all is well. Here
# it checks one layer of a network: inputs times weights, through `tanh`, which is a curve that flattens out.

# %%
generator = np.random.default_rng(seed=0)
inputs, weights = generator.standard_normal((4, 3)), generator.standard_normal((3, 2))
check_gradients(lambda inputs, weights: functional.tanh(inputs @ weights), inputs, weights)

# %% [markdown]
# When something is wrong, it names the place. Here is a calculation with a mistake in it: `detach()` cuts a tensor off
# from the tape, so one of the two uses of `x` is not counted.

# %%
try:
    check_gradients(lambda x: x * x.detach(), np.array([3.0]))
except AssertionError as error:
    place = str(error).split(":")[0]
print("wrong:", place)
assert place == "input 0, element (0,)"

# %% [markdown]
# ## Gradients add over calls, too
#
# There is one more place where gradients add, and the whole course rests on it. Call `backward` twice, for two
# different calculations with the same `x`: the second gradient is added to the first one. So you can take a large pile
# of samples, work through it in parts, and end with the gradient of the whole pile, as if you had taken it at once.
# (Forgetting the old gradient before the next pile is your own business; for a tensor it is `x.zero_grad()`.)

# %%
samples = np.array([1.0, 2.0, 3.0, 4.0], np.float32)

at_once = Tensor(5.0, requires_grad=True)
(at_once * samples).sum().backward()

in_parts = Tensor(5.0, requires_grad=True)
(in_parts * samples[:2]).sum().backward()
after_first_part = in_parts.grad.item()
(in_parts * samples[2:]).sum().backward()

print(f"first part {after_first_part}, both parts {in_parts.grad.item()}, at once {at_once.grad.item()}")
assert after_first_part == 1.0 + 2.0
assert in_parts.grad.item() == at_once.grad.item() == 10.0

# %% [markdown]
# ## Exercise
#
# 1. `Value` cannot subtract. Give it `__sub__`, compute `x * x - x` at 3, and compare with `slope`.
# 2. Before you run it: what is the gradient of `x` for `y = x * x; z = y * y` at 3? Count the paths.
# 3. The coursework task that belongs here is `01_multiply`: the product of two tensors, with its vjps.
#    (`minipipe coursework DIR` makes your copy of all tasks, in the folder DIR.)
#
# Next, `02_one_rank.py`: a network that learns to read digits, by what you have just built.
