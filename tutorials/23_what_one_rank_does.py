# %% [markdown]
# # 23 · What one rank really does
#
# In this lesson you read the program of one rank from top to bottom: every array, every
# message and every update of a training step, in about 120 lines of NumPy and MPI. Then
# you compare the step of 1F1B with the step of ZB-H1.
#
# You need the order of 1F1B from lesson 06 and the halves I and W from lesson 09.
#
# A pipeline looks up what to do next: an executor reads the row of its rank, finds the
# layers of a stage, and autograd finds the operations of a backward. If a step is
# *compiled* (lesson 17), all that is known before it runs. `minipipe export` writes it
# down, as one file for each rank that imports only NumPy and mpi4py.

# %%
import re
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from minipipe import Pipeline, nn, optim, schedules
from minipipe.compile.export import files_of

# %% [markdown]
# ## A program to export
#
# The program is an ordinary one: three linear layers on two ranks, and four
# microbatches. It takes six steps. The first ones run layer by layer, and from the third
# one on they are compiled. The file repeats the last three.


# %%
def train(group, schedule):
    layers = [
        nn.Linear(8, 16),
        nn.Tanh(),
        nn.Linear(16, 16),
        nn.Tanh(),
        nn.Linear(16, 4),
    ]
    model, loss = nn.Sequential(*layers), nn.MSELoss()
    pipeline = Pipeline(model, group, loss=loss, schedule=schedule, num_microbatches=4)
    optimiser = optim.SGD(pipeline.parameters(), learning_rate=0.1, momentum=0.9)
    generator = np.random.default_rng(seed=0)
    for _ in range(6):
        inputs = generator.standard_normal((8, 8)).astype(np.float32)
        pipeline.step(inputs, inputs[:, :4])
        optimiser.step()


def export(schedule):
    return files_of(lambda group: train(group, schedule), num_ranks=2)


programs = {schedule: export(schedule) for schedule in ("1f1b", "zb-h1")}
lengths = {
    name: [len(file.source.splitlines()) for file in files]
    for name, files in programs.items()
}
print("lines of rank 0 and rank 1:", lengths)
assert all(length < 150 for both in lengths.values() for length in both)


# %% [markdown]
# For a program in a file, such as `train.py`, use the command:
#
# ```sh
# minipipe export tutorials/train.py --ranks 2 -o exported
# ```
#
# ## What a rank has
#
# We read rank 1 of 1F1B. It begins with what exists before a step. `w` are the
# parameters of its layers, and only of these: layer 0 is on rank 0.
# `velocity` is what the optimiser keeps. `X1` and `G1` are the tags of its messages:
# the activations that come into stage 1, and their gradients, which go back.


# %%
def part(source, begin, end):
    """Return the lines from the one that begins with `begin` up to the one that begins with `end`."""
    return source[source.index(f"\n{begin}") : source.index(f"\n{end}")].strip()


last = programs["1f1b"][1].source
print(part(last, "w = ", "def add_gradient"))
arrays = programs["1f1b"][1].arrays
names = sorted(name for name in arrays if name.startswith("w/"))
print("parameters of rank 1:", names)
assert names == ["w/2.bias", "w/2.weight", "w/4.bias", "w/4.weight"]
assert "velocity = " in last

# %% [markdown]
# ## Forward and backward
#
# A stage is two functions. The forward takes the activations of one microbatch. At its
# end it *keeps* what the backward will need, under the number of the microbatch. This is
# the memory that a schedule is about: from F to B of a microbatch these arrays exist.
#
# The backward takes them out again. It goes through the layers in the opposite order.
# There is no tape any more. You see two products for each linear layer: one for its
# weights, and one for the gradient that goes on.

# %%
sections = part(last, "def forward_1", "def step")
print(sections)
forward, backward = sections.split("\n\n\n")
assert backward.count("add_gradient(") == 4 and backward.count(".T)") == 2
assert "kept[" in forward and "kept.pop(" in backward

# %% [markdown]
# `add_gradient` adds the gradients of the microbatches, in the order in which they come:
# that order decides the last bits.
#
# ## The step
#
# Now the row of the rank, an instruction a line. A receive is written in the place of
# its array, and a send around the function whose result it sends. Compare each line with
# the row: `F0` is the first line, `B0` the second one.

# %%
step = part(last, "def step", "def update")
print(step)
row = [
    f"{action.kind}{action.microbatch}"
    for action in schedules.one_f_one_b(2, 4).actions[1]
]
calls = re.findall(r"(forward|backward)_1\((\d)", step)
print("the row:", *row)
assert row == [f"{name[0].upper()}{k}" for name, k in calls]

# %% [markdown]
# That is all that a rank does in a step. No rank knows of another one but by the tags:
# nobody tells rank 1 to begin. It waits in `receive` until rank 0 has sent.
#
# ## ZB-H1 beside it
#
# ZB-H1 splits the backward. `backward_input` computes the gradient that rank 0 waits
# for; `backward_weight` has only the products for the weights. What it needs, it finds
# in `kept_for_weights` and `work`: these arrays are kept longer than in 1F1B, and that
# is the price.

# %%
split = programs["zb-h1"][1].source
print(part(split, "def backward_input_1", "def step"))
weights = part(split, "def backward_weight_1", "def step")
assert "send" not in weights and weights.count("add_gradient") == backward.count(
    "add_gradient"
)

# %% [markdown]
# The steps of rank 1, side by side: 1F1B left, ZB-H1 right. In 1F1B rank 0 gets its
# gradient after a whole backward. In ZB-H1 it gets it after I, and rank 1 computes W
# when it has nothing more urgent to do: the W of microbatch 0 after the I of 1.


# %%
def lines_of(name):
    lines = part(programs[name][1].source, "def step", "def update").splitlines()
    return [line for line in lines if "ward_" in line]


def short(line):
    """Return a line without shape and losses, to fit beside another one."""
    return re.sub(r", \(\d+, \d+\)|losses.* = ", "", line.strip())


left, right = (list(map(short, lines_of(name))) for name in ("1f1b", "zb-h1"))
for number in range(max(len(left), len(right))):
    pair = [each[number] if number < len(each) else "" for each in (left, right)]
    print("{:43}{}".format(*pair))
assert len(right) == len(left) + 4 and right.index("backward_weight_1(0)") == 4

# %% [markdown]
# ## The same bits
#
# Are these the computations of minipipe, or only similar ones? Each file compares: it
# runs its steps, and then a digest of all bits of its parameters with the digest that
# minipipe had after the same steps. One rank alone waits for ever; `mpirun` starts both.

# %%
if find_spec("mpi4py"):
    with tempfile.TemporaryDirectory() as folder:
        for file in programs["zb-h1"]:
            file.write(Path(folder))
        ranks = [
            ["-n", "1", sys.executable, f"{folder}/rank{rank}.py"] for rank in range(2)
        ]
        command = ["mpirun", *ranks[0], ":", *ranks[1]]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    printed = sorted(re.findall(r"rank \d: the same bits", done.stdout))
    print("\n".join(printed))
    assert printed == ["rank 0: the same bits", "rank 1: the same bits"]
else:
    print("This cell needs MPI: pip install -e '.[mpi]'. Continue with the next cell.")

# %% [markdown]
# ## What is left out
#
# The file is as short as it is because it trusts everybody. Without the rest, the
# following would hang or go wrong silently:
#
# - minipipe compares what the ranks do before each step: sizes, options, parameters.
# - It names a rank that has died, and ends the others; here they wait for ever.
# - It stops all ranks before an update if a loss or a gradient is not finite.
# - It begins a receive before its array is needed, so that the message travels while
#   the rank computes, and it uses the memory of arrays again.
#
# ## What you have learnt
#
# - The program of a rank is two or three functions for each stage, and a row of calls.
# - A schedule is the order of these calls; the arithmetic is the same in all.
# - The memory of a schedule is what is kept between two functions.
#
# Export a program of your own, change a line, and see whether the bits change:
#
# ```sh
# minipipe export tutorials/train_lm.py --ranks 2 -o exported -- --schedule zb-h1
# ```

# %% [markdown]
# ## Exercise
#
# 1. How many arrays does rank 1 keep between the forward and the backward of a
#    microbatch in 1F1B? How many does ZB-H1 keep until W?
# 2. Which lines of the step of rank 1 change if you export `gpipe` instead of `1f1b`?
# 3. The coursework task for this lesson is `11_weight_placement`: it decides when
#    `backward_weight` is called.
#
# ```sh
# minipipe coursework mine               # once: writes mine/
# minipipe grade mine/11_weight_placement.py
# ```
#
# <details>
# <summary>Answers</summary>
#
# 1. Three: `v3`, `v1` and `x`. Until W, ZB-H1 keeps two of them, and two that I makes.
#
# ```python
# (kept,) = re.findall(r"kept\[.+\] = (.+)", forward)
# later = re.findall(r"    (.+) = \w+\.pop", weights)
# assert [len(names.split(", ")) for names in (kept, *later)] == [3, 2, 2]
# ```
#
# 2. None is added or left out, only their order changes: all forwards come first.
#
# ```python
# programs["gpipe"] = export("gpipe")
# gpipe = list(map(short, lines_of("gpipe")))
# assert sorted(gpipe) == sorted(left) and ["forward" in line for line in gpipe[:4]] == [True] * 4
# ```
#
# </details>
#
# Next, `24_is_it_a_bug.py`: two runs differ in their losses; is it rounding, or a bug?
