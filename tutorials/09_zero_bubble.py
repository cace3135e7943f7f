# %% [markdown]
# # 09 · Zero bubble: the backward in two halves
#
# In this lesson you split the backward into two halves, of which only one is urgent,
# and use the other half to fill the idle time of 1F1B. You also learn when this beats
# the interleaving of lesson 08, and when it does not.
#
# In 1F1B every rank is idle for p - 1 forwards and p - 1 backwards, where p is the
# number of ranks. First you compute the two halves by hand on one layer. Then you check
# that a pipeline that runs them separately computes the same bits, and you measure how
# much idle time it saves and how much memory it costs.

# %%
from dataclasses import replace

import numpy as np

from minipipe import (
    Costs,
    Pipeline,
    Schedule,
    Tensor,
    autograd,
    nn,
    render,
    schedules,
    simulate,
    spawn,
    verify,
)
from minipipe.schedules import theory
from minipipe.testing import check_same_as_one_process, same_bits

# %% [markdown]
# ## Two matrix products
#
# A linear layer computes `outputs = inputs @ weights`. Its backward receives
# `gradient`, the gradient of the loss with respect to the outputs, and computes two
# things:
#
# - the gradient with respect to its **inputs**, `gradient @ weights.T`, for the
#   previous layer,
# - the gradient with respect to its **weights**, `inputs.T @ gradient`, for the
#   optimiser.
#
# Each is a matrix product with as many multiplications as the forward. That is why a
# backward takes about twice as long as a forward.

# %%
generator = np.random.default_rng(seed=0)
inputs = generator.standard_normal((4, 3)).astype(np.float32)
weights = generator.standard_normal((3, 2)).astype(np.float32)
gradient = generator.standard_normal((4, 2)).astype(np.float32)

of_inputs = gradient @ weights.T
of_weights = inputs.T @ gradient

x, w = Tensor(inputs, requires_grad=True), Tensor(weights, requires_grad=True)
(x @ w).backward(gradient)
print(
    f"inputs' gradient {of_inputs.shape}, weights' gradient {of_weights.shape}: "
    "both equal the tape's"
)
assert same_bits(x.grad, of_inputs) and same_bits(w.grad, of_weights)

# %% [markdown]
# Neither product depends on the other, and only one is urgent. The previous layer
# cannot start its backward before it has the gradient of its outputs, which are the
# inputs here. The gradient of the weights is needed only by the optimiser, at the end
# of the step.
#
# So the halves get names. **I** computes the gradient of the inputs, and **W** computes
# the gradient of the weights. The whole backward, **B**, is I followed by W. (The
# papers on zero bubble write B for our I.)
#
# ## The tape, walked in two halves
#
# The split works for any layer, because the tape records every dependency. Tell the
# tape which tensor is the input of the stage. Everything computed from that tensor is
# an activation. Everything else belongs to the weights. Here is the tape of
# `tanh(inputs @ weights)`, drawn from the result down, as in lesson 01:
#
#     tanh           the gradient arrives here
#      └─ product
#          ├─ inputs     I goes on here and leaves the gradient of the inputs
#          └─ weights    I stops here and sets the product aside: W starts from it
#
# The first walk, I, computes only gradients of activations. A result that has weights
# among its inputs is set aside, with its gradient and the values that the gradients of
# the weights name: for a product, the other factor. All other values are freed. The
# second walk, W, starts from the results that were set aside.
#
# The pipeline calls both walks for you. To see them in isolation, the next cell uses
# three internal names of minipipe:
#
# - `x.node` is the tape entry of the tensor `x`. (In lesson 01 a `Value` was both the
#   number and the entry. minipipe separates them, so that an array can be freed while
#   its entry is still needed.)
# - `autograd.StageInput` makes an entry that marks the input of the stage.
#   `needs_gradient` is true on all stages but the first, since the gradient of the
#   batch itself is not needed.
# - `autograd.backward_input` is the first walk. It receives the entries of the results
#   with their gradients, and returns what was set aside. Its method `run` is the
#   second walk.

# %%
x, w = Tensor(inputs), Tensor(weights, requires_grad=True)
x.node = autograd.StageInput(needs_gradient=True)  # the stage begins here
y = (x @ w).tanh()

# I: from the entry of y, with the gradient of y
weight_work = autograd.backward_input({y.node: gradient})
print(
    f"after I: inputs {'have' if x.grad is not None else 'lack'} their gradient, ",
    end="",
)
print(f"weights {'have' if w.grad is not None else 'lack'} theirs")
assert x.grad is not None and w.grad is None
x_gradient = x.grad

weight_work.run()  # W
print(f"after W: weights {'have' if w.grad is not None else 'lack'} theirs")
assert w.grad is not None

# %% [markdown]
# One walk over the whole tape gives the same bits:

# %%
x, w_of_one_walk = (
    Tensor(inputs, requires_grad=True),
    Tensor(weights, requires_grad=True),
)
(x @ w_of_one_walk).tanh().backward(gradient)
is_same = same_bits(x_gradient, x.grad) and same_bits(w.grad, w_of_one_walk.grad)
print(f"two walks and one walk give the same bits: {is_same}")
assert is_same

# %% [markdown]
# ## The smallest pipeline that gains
#
# Two ranks and one microbatch are enough to see the effect. First with whole backwards:
# rank 0 waits until rank 1 has finished *both* of its products.

# %%
whole = Schedule.from_text(
    """
    rank 0: 0F0 0B0
    rank 1: 1F0 1B0
    """,
    name="whole",
)
render.show(whole)
assert simulate(whole).makespan == 6

# %% [markdown]
# Now with halves. Rank 1 sends the gradient as soon as I is done, and rank 0 computes
# while rank 1 runs its W.

# %%
halves = Schedule.from_text(
    """
    rank 0: 0F0 0I0 0W0
    rank 1: 1F0 1I0 1W0
    """,
    name="halves",
)
render.show(whole, halves)
assert simulate(halves).makespan == simulate(whole).makespan - 1 == 5

# %% [markdown]
# The step takes one unit less, although no action became faster.
#
# ## Step one: W right after its I
#
# Take 1F1B with four ranks and eight microbatches, and replace every `B` by `I W`. The
# function `split_backward` does this. Each rank does the same work in the same order as
# before, but each message leaves earlier: after I instead of after W.

# %%
one_f_one_b = schedules.one_f_one_b(num_ranks=4, num_microbatches=8)
at_once = replace(schedules.split_backward(one_f_one_b), name="W right after I")
verify(at_once)
render.show(one_f_one_b, at_once)
assert simulate(one_f_one_b).makespan == 33
assert simulate(at_once).makespan == 30

# %% [markdown]
# ## Step two: postpone some W
#
# The end of the picture still has gaps. The last microbatches travel back through the
# ranks, and every rank waits between them. A rank could run W in these gaps if it had
# saved some. So the later ranks, which receive their first gradient early, run ahead
# with I and F, and save some W for the end. This schedule is **ZB-H1** (Qi et al.
# 2023): rank r postpones r of its W.

# %%
zb_h1 = schedules.zb_h1(num_ranks=4, num_microbatches=8)
render.show(at_once, zb_h1)
timeline = simulate(zb_h1)
print(
    f"zb-h1 takes {timeline.makespan:g} units, 1F1B takes "
    f"{simulate(one_f_one_b).makespan:g}"
)
assert (
    timeline.makespan == 27
    and simulate(at_once).makespan == 30
    and simulate(one_f_one_b).makespan == 33
)

# %% [markdown]
# In all three schedules each rank has 8 × 3 = 24 units of work. The rest is the bubble.
# It is a multiple of p - 1 = 3:

# %%
work = 8 * 3
for schedule in (one_f_one_b, at_once, zb_h1):
    bubble = simulate(schedule).makespan - work
    print(f"{schedule.name:16} bubble {bubble:g} = {bubble / 3:g} (p - 1)")
assert [
    simulate(schedule).makespan - work for schedule in (one_f_one_b, at_once, zb_h1)
] == [3 * 3, 2 * 3, 1 * 3]
assert theory.makespan("zb-h1", 4, 8) == 3 * 8 + 4 - 1 == 27

# %% [markdown]
# The bubble is 3 (p - 1) with whole backwards, 2 (p - 1) if the gradient leaves after
# I, and p - 1 if W is also postponed.
#
# ## Why it is called "zero" bubble
#
# Three units are left. Rank 3 waits that long for its first microbatch, so within one
# step no schedule with one stage on each rank can avoid them. But rank 0 is idle in the
# middle,
# while it waits for its first gradient. If it had memory for more microbatches, it
# could run more forwards there, and its idle time would move to the end of the step.
# That schedule is **ZB-H2**.

# %%
zb_h2 = schedules.zb_h2(num_ranks=4, num_microbatches=8)
render.show(zb_h1, zb_h2)
print(
    f"zb-h1 takes {simulate(zb_h1).makespan:g} units, zb-h2 takes "
    f"{simulate(zb_h2).makespan:g}"
)
assert simulate(zb_h2).makespan == simulate(zb_h1).makespan == 27

# %% [markdown]
# ZB-H2 takes the same 27 units, but every rank now works without a pause from its first
# action to its last. The picture is a parallelogram, and the parallelogram of the next
# step fits next to it without a gap: rank 0 starts the next step while rank 3 finishes
# this one. Each rank may do so, because it updates the parameters of its own stages as
# soon as its own part of the step is done. Here are five steps in a row:

# %%
further = {
    s.name: simulate(s, num_steps=5).time_of_further_step
    for s in (one_f_one_b, zb_h1, zb_h2)
}
waiting = {
    s.name: simulate(s, num_steps=5, wait=True).time_of_further_step
    for s in (one_f_one_b, zb_h1, zb_h2)
}
for name, time in further.items():
    print(
        f"{name:6} each further step takes {time:g} units, or {waiting[name]:g} "
        "if every rank waits for the loss"
    )
assert further == {"1f1b": 33, "zb-h1": 27, "zb-h2": 24}
assert waiting == {"1f1b": 33, "zb-h1": 27, "zb-h2": 27}

# %% [markdown]
# From the second step on, ZB-H2 takes 24 units, and ZB-H1 still takes 27. But a rank
# that asks for the loss waits for the last rank, and loses the gain. So train with
# `pipeline.step(x, y, wait=False)` and ask for the loss later. Operations that need all
# ranks, such as clipping by the norm of all gradients, also wait. (Qi et al. update
# without waiting, and undo an update that turns out to be wrong.)
#
# The papers therefore count the idle time *within a rank's own span*, from its first
# action to its last:

# %%
for schedule in (one_f_one_b, zb_h1, zb_h2):
    timeline = simulate(schedule)
    within = [timeline.idle_within_span(rank) for rank in range(4)]
    print(
        f"{schedule.name:6} idle within each rank's span {within}, microbatches "
        f"held {timeline.peak_activations}"
    )
assert [simulate(one_f_one_b).idle_within_span(rank) for rank in range(4)] == [
    9,
    6,
    3,
    0,
]
assert [simulate(zb_h1).idle_within_span(rank) for rank in range(4)] == [3, 2, 1, 0]
assert [simulate(zb_h2).idle_within_span(rank) for rank in range(4)] == [0, 0, 0, 0]
assert simulate(one_f_one_b).peak_activations == (4, 3, 2, 1)
assert simulate(zb_h1).peak_activations == (4, 4, 4, 4)
assert simulate(zb_h2).peak_activations == (7, 7, 7, 7)

# %% [markdown]
# The second list of each line is the price. ZB-H1 holds 4 microbatches on every rank,
# as many as 1F1B holds on its first rank. ZB-H2 holds 2p - 1 = 7.
#
# ## The gradients have the same bits
#
# The gradients must not depend on when W runs. They do not: a postponed W computes the
# same product of the same numbers, and each stage adds its microbatches in the same
# order. To check this, the next cell trains a network with
# several kinds of layer for one step on four ranks, once with whole backwards and once
# with halves.


# %%
def network():
    return nn.Sequential(
        nn.Conv1d(3, 8, kernel_size=3, padding=1),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(8 * 6, 16),
        nn.LayerNorm(16),
        nn.Residual(nn.Sequential(nn.Linear(16, 16), nn.Tanh())),
        nn.Dropout(0.1),
        nn.Linear(16, 4),
    )


signals = generator.standard_normal((16, 3, 6)).astype(np.float32)
classes = generator.integers(0, 4, 16)


def gradients_with(schedule):
    """Return the gradient of every parameter after one step on four ranks, by name."""

    def train(group):
        pipeline = Pipeline(
            network(), group, loss=nn.CrossEntropyLoss(), schedule=schedule
        )
        pipeline.step(signals, classes)
        return {name: parameter.grad for name, parameter in pipeline.named_parameters()}

    return {
        name: grad for part in spawn(train, num_ranks=4) for name, grad in part.items()
    }


of_whole, of_halves = gradients_with(one_f_one_b), gradients_with(zb_h1)
is_same = all(same_bits(of_whole[name], of_halves[name]) for name in of_whole)
print(
    f"{len(of_halves)} gradients, 1F1B and ZB-H1: "
    f"{'equal to the last bit' if is_same else 'they differ'}"
)
assert is_same and of_whole.keys() == of_halves.keys() and len(of_halves) == 10

# %% [markdown]
# The next cell compares with one process, which accumulates the same microbatches one
# after another on an ordinary tape. `check_same_as_one_process` raises an error that
# names the parameter if a bit differs.

# %%
for schedule in (at_once, zb_h1, zb_h2):
    check_same_as_one_process(
        network(), nn.CrossEntropyLoss(), signals, classes, schedule
    )
    print(f"{schedule.name}: equal to one process, bit for bit")
    # every stage adds its gradients in ascending order of microbatches
    assert schedule.is_reproducible

# %% [markdown]
# ## The cost: memory between I and W
#
# From F until I, a layer keeps everything that I or W needs. From I until W, it keeps
# what W needs. For `inputs.T @ gradient` that is the inputs *and* the gradient of the
# outputs. A sequence of linear layers makes this easy to count. Give each of three
# ranks eight such layers, all 16 numbers wide, and measure the middle rank. (The first
# rank reads the batch, which is in memory anyway, and the last rank also holds the
# loss.)


# %%
def measure(group):
    layers = [nn.Linear(16, 16) for _ in range(3 * 8)]
    pipeline = Pipeline(
        nn.Sequential(*layers), group, loss=nn.MSELoss(), num_microbatches=4
    )
    samples = np.ones((32, 16), np.float32)
    return pipeline.measure_memory(samples, samples)


memory = spawn(measure, num_ranks=3)[0]
one_array = 8 * 16 * 4  # bytes: 8 samples of 16 numbers of 4 bytes
until_input, until_weight = (
    memory.activation[1] // one_array,
    memory.weight_activation[1] // one_array,
)
print(
    f"a microbatch on the middle rank holds {until_input} arrays from F until I, "
    f"{until_weight} from I until W"
)
assert (
    memory.activation[1] == 8 * one_array
    and memory.weight_activation[1] == 16 * one_array
)

# %% [markdown]
# After F there are eight inputs; after I there are eight inputs and eight gradients.
# Papers often assume the opposite: that a microbatch holds less after I than before.
# For some layers that is true, because everything that only I needs is freed after I.
# For linear layers the second number is twice the first. (A whole B never holds all
# eight gradients at once: it runs the W of a layer before it moves on to the previous
# layer.)
#
# From the two numbers, the simulator computes the memory of each schedule. Here it
# treats every rank as a middle one.

# %%
costs = Costs(activation=until_input, weight_activation=until_weight)
for schedule in (one_f_one_b, at_once, zb_h1, zb_h2):
    arrays = [int(held) for held in simulate(schedule, costs).peak_memory]
    print(f"{schedule.name:16} most arrays held, by rank: {arrays}")
assert simulate(one_f_one_b, costs).peak_memory == (32, 24, 16, 8)
assert simulate(at_once, costs).peak_memory == (40, 32, 24, 16)
assert simulate(zb_h1, costs).peak_memory == (40, 48, 56, 64)
assert simulate(zb_h2, costs).peak_memory == (64, 80, 96, 112)

# %% [markdown]
# So the split trades memory for time. It removes two thirds of the bubble (ZB-H1), or
# all idle time within a rank's span (ZB-H2). Recomputation (lesson 06) saves less
# memory with split backwards than with whole ones, because the recomputed activations
# are kept from I until W.
#
# ## When does interleaved beat zero bubble?
#
# Interleaved 1F1B (lesson 08) and ZB-H1 attack the same idle time: in 1F1B it is
# `(p-1)(tF+tI+tW)`.
#
# - Interleaving with v chunks divides it by v: `(p-1)(tF+tI+tW)/v`.
# - ZB-H1 fills it with W: `(p-1)(tF+tI-tW)` is left, if W takes no longer than I.
#
# Both can be combined: `interleaved-zb` splits the backward of v chunks. The next cell
# simulates all of them on four ranks with eight microbatches. One unit is the forward
# of a whole rank, and I takes as long. First let W take less time than F, as it does in
# attention with long sequences, where many products involve no weights.

# %%
CHOICES = {
    "1F1B": ("1f1b", 1),
    "v = 2": ("interleaved-1f1b", 2),
    "v = 4": ("interleaved-1f1b", 4),
    "ZB-H1": ("zb-h1", 1),
    "both": ("interleaved-zb", 2),
}


def idle_and_memory(
    choice, weight=1.0, latency=0.0, weight_activation=1.0, num_ranks=4
):
    """Return the idle time of each rank, in forwards of a rank, and the microbatches that the fullest rank holds."""
    name, v = CHOICES[choice]
    num_microbatches = 2 * num_ranks
    schedule = schedules.build(name, num_ranks, num_microbatches, v if v > 1 else None)
    held = {"activation": 1 / v, "weight_activation": weight_activation / v}
    timeline = simulate(
        schedule, Costs(1 / v, 1 / v, weight / v, latency=latency, **held)
    )
    return round(timeline.makespan - num_microbatches * (2 + weight), 9), max(
        timeline.peak_memory
    )


print("idle time of each rank")
print("W / F  ", *(f"{choice:>6}" for choice in CHOICES))
by_weight = {}
for weight in (1, 2 / 3, 1 / 2, 1 / 4):
    by_weight[weight] = [idle_and_memory(choice, weight)[0] for choice in CHOICES]
    print(f"{weight:<7.2f}", *(f"{idle:6.2f}" for idle in by_weight[weight]))
assert by_weight == {
    1: [9, 4.5, 2.25, 3, 1.5],
    2 / 3: [8, 4, 2, 4, 2],
    1 / 2: [7.5, 3.75, 1.875, 4.5, 2.25],
    1 / 4: [6.75, 3.375, 1.6875, 5.25, 2.625],
}

# %% [markdown]
# As W gets shorter, ZB-H1 has less to fill its gaps with, and its idle time grows. The
# idle time of the interleaved schedule shrinks with the work. With two chunks they are
# equal at W = 2/3 F. With three chunks they are equal at W = F, and with four chunks
# interleaved wins in every row, as long as messages take no time.
#
# They do take time. The next table varies the latency of a message, in forwards of a
# rank, with W = F.

# %%
print("idle time of each rank")
print("latency", *(f"{choice:>6}" for choice in CHOICES))
by_latency = {}
for latency in (0, 1 / 24, 1 / 8, 1 / 2, 1):
    by_latency[latency] = [
        idle_and_memory(choice, latency=latency)[0] for choice in CHOICES
    ]
    print(f"{latency:<7.3f}", *(f"{idle:6.2f}" for idle in by_latency[latency]))
assert by_latency[0] == by_weight[1]
assert by_latency[1 / 24][2:4] == [3.5, 3.5]  # four chunks and ZB-H1
assert by_latency[1 / 2] == [17, 11.5, 21, 9, 12]
assert all(
    zb_h1_idle < two_chunks for _, two_chunks, _, zb_h1_idle, _ in by_latency.values()
)

# %% [markdown]
# Four chunks win only while a message takes less than 1/24 of a forward. At half a
# forward, four chunks lose even to 1F1B, and ZB-H1, which sends as few messages as
# 1F1B, is the best of all.
#
# The last table is about memory. It varies the size of a microbatch after I, as a
# multiple of its size before I. For the linear layers above this is 2.

# %%
print("microbatches held by the fullest rank")
print("size   ", *(f"{choice:>6}" for choice in CHOICES))
by_size = {}
for size in (1, 1.25, 1.5, 2):
    by_size[size] = [
        idle_and_memory(choice, weight_activation=size)[1] for choice in CHOICES
    ]
    print(f"{size:<7.2f}", *(f"{held:6.2f}" for held in by_size[size]))
assert by_size == {
    1: [4, 5.5, 4.75, 4, 4],
    1.25: [4, 5.5, 4.75, 5, 4.5],
    1.5: [4, 5.5, 4.75, 6, 5],
    2: [4, 5.5, 4.75, 8, 6],
}
assert (
    idle_and_memory("ZB-H1", weight_activation=1.375)[1]
    == idle_and_memory("v = 2")[1]
    == 5.5
)

# %% [markdown]
# Interleaving holds p + (p-1)/v microbatches, whatever the size. ZB-H1 holds p of them,
# times the size after I. With two chunks, both hold the same at a size of 1 +
# (p-1)/(2p): 1.375 on four ranks, and nearly 1.5 on many ranks. So a memory limit can
# decide: with 5 microbatches per rank and a size of 1.5, only 1F1B, four chunks and the
# combination fit.
#
# **A rule of thumb**, if F and I take equally long:
#
# | your case | choose |
# |---|---|
# | messages are fast, and W takes less than 2/3 of F | interleaved, with two or more chunks |
# | messages are fast, and W takes as long as F | ZB-H1 rather than two chunks; four chunks are better |
# | W takes as long as F, and a message takes half a forward or more | ZB-H1 |
# | memory is short, and a microbatch holds 1.5 times as much after I as before, or more | interleaved |
# | messages are fast, and you can split backward *and* stages | both: half of ZB-H1's idle time is left |
#
# "Fast" means less than 1/24 of a forward on 4 ranks. The comparisons of idle time
# without latency hold for any number of ranks, because each of these idle times is a
# multiple of p - 1. The next cell checks this. To decide for your model, measure F, I,
# W and the latency (`pipeline.measure_costs`, lesson 12), put them into `Costs`, and
# simulate the candidates.

# %%
CHOICES["v = 3"] = ("interleaved-1f1b", 3)
CASES = {
    ("v = 2", 2 / 3): 4 / 3,
    ("ZB-H1", 2 / 3): 4 / 3,
    ("v = 3", 1): 1,
    ("ZB-H1", 1): 1,
    ("both", 1): 1 / 2,
}
print("idle time over p - 1, on   4, 8 and 16 ranks")
for (choice, weight), expected in CASES.items():
    ratios = [
        idle_and_memory(choice, weight, num_ranks=p)[0] / (p - 1) for p in (4, 8, 16)
    ]
    print(
        f"{choice}, W = {weight:.2f} F".ljust(25),
        *(f"{ratio:6.3f}" for ratio in ratios),
    )
    assert np.allclose(ratios, expected, rtol=1e-9)
assert len(CASES) == 5 and all(choice in CHOICES for choice, weight in CASES)

# %% [markdown]
# ## The same in PyTorch and in Megatron-LM
#
# PyTorch has the combination of both, `ScheduleInterleavedZeroBubble`. With one stage
# on each rank it is ZB-H1. It also has `ScheduleZBVZeroBubble`, which lesson 10
# explains. Save this program as `zero_bubble.py`:
#
# ```python
# import sys
#
# import torch
# import torch.distributed as dist
# from torch import nn
# from torch.distributed import pipelining
#
# dist.init_process_group("gloo")  # "nccl" on GPUs
# rank, num_ranks = dist.get_rank(), dist.get_world_size()
# is_v = sys.argv[1:] == ["v"]
# held = (rank, 2 * num_ranks - 1 - rank) if is_v else (rank, rank + num_ranks)
# torch.manual_seed(0)
# blocks = [nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(2 * num_ranks)]
# stages = [
#     pipelining.PipelineStage(blocks[index], index, 2 * num_ranks, torch.device("cpu"))
#     for index in held
# ]
# name = "ScheduleZBVZeroBubble" if is_v else "ScheduleInterleavedZeroBubble"
# schedule = getattr(pipelining, name)(stages, n_microbatches=8, loss_fn=nn.MSELoss())
# inputs, losses = torch.randn(32, 16), []
# has_last = any(stage.is_last for stage in stages)
# schedule.step(
#     *[inputs] if rank == 0 else [],
#     **{"target": inputs, "losses": losses} if has_last else {},
# )
# if has_last:
#     print(f"{name}: mean loss {torch.stack(losses).mean():.4f}")
# dist.destroy_process_group()
# ```
#
# ```bash
# torchrun --nproc-per-node 4 zero_bubble.py
# torchrun --nproc-per-node 4 zero_bubble.py v
# ```
#
# In minipipe these are `Pipeline(model, group, schedule="interleaved-zb",
# chunks_per_rank=2)` and `schedule="zb-v"`. Megatron-LM itself has no zero-bubble
# schedule. The authors of the papers maintain a fork of it,
# `sail-sg/zero-bubble-pipeline-parallelism`. Its example script downloads a sample data
# set, and needs at least four GPUs. These commands were not run for this lesson:
#
# ```bash
# ENABLE_ZERO_BUBBLE=1 bash examples/pretrain_zero_bubble.sh      # limit of 2p: as ZB-H2
# ZERO_BUBBLE_V_SCHEDULE=1 bash examples/pretrain_zero_bubble.sh  # ZB-V
# ```
#
# The script passes `--zero-bubble-max-pending-backward`, a limit on the microbatches in
# flight. A limit of p gives a schedule like ZB-H1, and a limit of 2p one like ZB-H2.
# See also [Coming from PyTorch](site/coming-from-pytorch.md) and [Coming from
# Megatron-LM](site/coming-from-megatron.md).

# %% [markdown]
# ## What you have learnt
#
# - The backward consists of I, which the previous stage waits for, and W, which can
#   wait.
# - ZB-H1 uses W to fill gaps: one third of the bubble is left if F, I and W take
#   equally long. ZB-H2 removes all idle time within a rank's span, and holds nearly
#   twice as many microbatches.
# - Interleaved 1F1B is better if W is short, if memory between I and W is large, or
#   with four or more chunks and fast messages.
#
# ## Exercise
#
# 1. W need not take as long as I. Attention, for instance, contains products without
#    weights, for which W has nothing to do. Simulate ZB-H1 with
#    `Costs(backward_weight=w)` for w = 0.5, 1 and 2, and subtract the work. When does
#    the idle time grow again, and why is it not smaller for 2 than for 1?
# 2. Postpone one more W on each rank than ZB-H1 does: write the text (start from
#    `print(zb_h1)`), `verify` it, and simulate it. Does it help? How much memory does
#    it cost?
# 3. The coursework task for this lesson is `11_weight_placement`: decide where each W
#    goes. (`minipipe coursework DIR` creates your copy.)
#
# <details>
# <summary>Answers</summary>
#
# 1. The idle time grows as soon as W is shorter than I. For w = 0.5 it is 4.5 units
#    instead of 3: the postponed W no longer fill the gaps, which are as long as an F
#    and an I. For 2 it is 3, as for 1. The last rank receives its first microbatch
#    after 3 units, and this wait does not depend on W.
#
# ```python
# for w, idle in ((0.5, 4.5), (1, 3), (2, 3)):
#     timeline = simulate(zb_h1, Costs(backward_weight=w))
#     assert timeline.makespan - 8 * (1 + 1 + w) == idle
# ```
#
# 2. It takes the same 27 units, which is the best possible (lesson 16 proves it), and
#    holds five microbatches instead of four. Counted in arrays, with the memory between
#    I and W, that is 80 instead of 64. It gains nothing: rank 0 still waits 3 units for
#    its first gradient, however many W are postponed.
#
# ```python
# def with_one_more_postponed(row):
#     """Return a row in which each W stands where the one after it stood, and the last one at the end."""
#     is_w = [action.kind == "W" for action in row]
#     is_w.pop(is_w.index(True))
#     halves, others = ([a for a in row if (a.kind == "W") == is_half] for is_half in (True, False))
#     return [(halves if place else others).pop(0) for place in [*is_w, True]]
#
#
# one_more = Schedule("one more", zb_h1.placement, 8, [with_one_more_postponed(row) for row in zb_h1.actions])
# verify(one_more)
# assert simulate(one_more).makespan == 27 and simulate(one_more).peak_activations == (5, 5, 5, 5)
# assert max(simulate(one_more, costs).peak_memory) == 80 and max(simulate(zb_h1, costs).peak_memory) == 64
# assert simulate(one_more).idle_within_span(0) == simulate(zb_h1).idle_within_span(0) == 3
# ```
#
# </details>
#
# Next, `10_controllable_memory.py`: the same two halves, with a placement of stages
# that saves memory.
