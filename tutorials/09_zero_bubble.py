# %% [markdown]
# # 09 · Zero bubble: the backward in two halves
#
# In 1F1B every rank is still idle for p - 1 forwards and p - 1 backwards, where p is the number of ranks. Interleaving
# (lesson 08) reduced that by cutting the model more finely. This lesson cuts something else: the backward itself. One
# half of it is urgent, and the other half can wait until the rank has nothing better to do.
#
# First you compute the two halves by hand, on one layer. Then you check that a pipeline that runs them separately still
# computes the same bits, and see how much idle time that saves and what it costs in memory.

# %%
from dataclasses import replace

import numpy as np

from minipipe import Costs, Pipeline, Schedule, Tensor, autograd, nn, render, schedules, simulate, spawn, verify
from minipipe.schedules import theory
from minipipe.testing import check_same_as_one_process, same_bits

# %% [markdown]
# ## Two products
#
# A linear layer computes `outputs = inputs @ weights`. Its backward is given `gradient`, the gradient of the loss with
# respect to the outputs, and has to compute two things:
#
# - the gradient with respect to its **inputs**, `gradient @ weights.T`, for the previous layer,
# - the gradient with respect to its **weights**, `inputs.T @ gradient`, for the optimiser.
#
# These are two matrix products, each with as many multiplications as the forward. That is why a backward takes about
# twice as long as a forward.

# %%
generator = np.random.default_rng(seed=0)
inputs = generator.standard_normal((4, 3)).astype(np.float32)
weights = generator.standard_normal((3, 2)).astype(np.float32)
gradient = generator.standard_normal((4, 2)).astype(np.float32)

of_inputs = gradient @ weights.T
of_weights = inputs.T @ gradient

x, w = Tensor(inputs, requires_grad=True), Tensor(weights, requires_grad=True)
(x @ w).backward(gradient)
print(f"the gradients of the inputs {of_inputs.shape} and of the weights {of_weights.shape}: as the tape has them")
assert same_bits(x.grad, of_inputs) and same_bits(w.grad, of_weights)

# %% [markdown]
# Neither product depends on the other. And only one of them is urgent. The previous layer cannot start its backward
# until it has the gradient of its outputs, which are our inputs. The gradient of the weights is not needed until the
# optimiser runs, at the end of the step.
#
# So we name the halves. **I** computes the gradient of the inputs and **W** the gradient of the weights. The whole
# backward, **B**, is I followed by W. (The papers on this subject write B for our I.)
#
# ## The tape walked in two halves
#
# This works for any layer, not only for linear ones, because the tape records every dependency. Say which tensor is the
# input of the stage. Whatever is computed from it is an activation; everything else is on the weights' side. Here is
# the tape of `tanh(inputs @ weights)`, drawn from the result down, as in lesson 01:
#
#     tanh           the gradient arrives here
#      └─ product
#          ├─ inputs     I follows this edge, and leaves the gradient of the inputs
#          └─ weights    I stops at this edge, and notes it down with its gradient: W begins here
#
# The first walk, I, follows only the edges that lead to activations. Each edge that leads to the weights' side is noted
# down. The second walk, W, begins with what was noted.
#
# In a training you never call these walks yourself: the pipeline does. To see them alone, the next cell uses three
# names from inside minipipe.
#
# - `x.node` is the entry of the tape that belongs to the tensor `x`. (In lesson 01 a `Value` was both: the number and
#   the entry. minipipe keeps them apart, so that an array can be freed while its entry is still needed.)
# - `autograd.StageInput` makes an entry that says: the stage begins here. `needs_gradient` is true on all stages but
#   the first, since nobody needs the gradient of the batch.
# - `autograd.backward_input` is the first walk. It gets the entries of the results with the gradient of each. It
#   returns what was noted down, with a method `run`: the second walk.

# %%
x, w = Tensor(inputs), Tensor(weights, requires_grad=True)
x.node = autograd.StageInput(needs_gradient=True)  # the stage begins here
y = (x @ w).tanh()

weight_work = autograd.backward_input({y.node: gradient})  # I: from the entry of y, with the gradient of y
print(f"after I: inputs {'have' if x.grad is not None else 'lack'} their gradient, ", end="")
print(f"weights {'have' if w.grad is not None else 'lack'} theirs")
assert x.grad is not None and w.grad is None
x_gradient = x.grad

weight_work.run()  # W
print(f"after W: weights {'have' if w.grad is not None else 'lack'} theirs")
assert w.grad is not None

# %% [markdown]
# And in one walk, as always?

# %%
x, w_of_one_walk = Tensor(inputs, requires_grad=True), Tensor(weights, requires_grad=True)
(x @ w_of_one_walk).tanh().backward(gradient)
is_same = same_bits(x_gradient, x.grad) and same_bits(w.grad, w_of_one_walk.grad)
print(f"the same bits as in one walk: {is_same}")
assert is_same

# %% [markdown]
# ## Who waits for whom
#
# Two ranks and one microbatch are the smallest pipeline that shows the effect. First with whole backwards: rank 0 waits
# until rank 1 has finished *both* of its products.

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
# Now in halves. Rank 1 sends the gradient as soon as I is done, and rank 0 works while rank 1 does its W.

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
# One unit less, although no action became faster.
#
# ## Step one: W right after its I
#
# Take 1F1B with four ranks and eight microbatches, and replace every `B` by `I W` (that is what `split_backward` does).
# Each rank does the same work in the same order as before. Only the message leaves earlier: after I instead of after W.

# %%
one_f_one_b = schedules.one_f_one_b(num_ranks=4, num_microbatches=8)
at_once = replace(schedules.split_backward(one_f_one_b), name="W right after I")
verify(at_once)
render.show(one_f_one_b, at_once)
assert simulate(one_f_one_b).makespan == 33
assert simulate(at_once).makespan == 30

# %% [markdown]
# ## Step two: W when there is nothing better to do
#
# Look at the end of the picture. The last microbatches travel back through the ranks, and every rank waits between
# them. There would be time for W there, if only some were left. So postpone some: let the later ranks, which get their
# first gradient early, run ahead with I and F, and save some W for the end. That is the schedule **ZB-H1** (Qi et al.
# 2023): rank r postpones r of its W.

# %%
zb_h1 = schedules.zb_h1(num_ranks=4, num_microbatches=8)
render.show(at_once, zb_h1)
timeline = simulate(zb_h1)
print(f"zb-h1 takes {timeline.makespan:g} units, 1F1B {simulate(one_f_one_b).makespan:g}")
assert timeline.makespan == 27 and simulate(at_once).makespan == 30 and simulate(one_f_one_b).makespan == 33

# %% [markdown]
# However they are arranged, each rank has 8 × 3 = 24 units of work. The rest is the bubble, and it is a multiple of
# p - 1 = 3: three times that with a whole B, twice if the gradient leaves after I, and once if W is also postponed.

# %%
work = 8 * 3
for schedule in (one_f_one_b, at_once, zb_h1):
    bubble = simulate(schedule).makespan - work
    print(f"{schedule.name:16} bubble {bubble:g} = {bubble / 3:g} (p - 1)")
assert [simulate(schedule).makespan - work for schedule in (one_f_one_b, at_once, zb_h1)] == [3 * 3, 2 * 3, 1 * 3]
assert theory.makespan("zb-h1", 4, 8) == 3 * 8 + 4 - 1 == 27

# %% [markdown]
# ## Why "zero" bubble
#
# Three units are left. Rank 3 waits that long for its first microbatch, so within one step no schedule on these ranks
# can avoid them. But look at where rank 0 is idle: in the middle, while it waits for its first gradient. If it could
# run more forwards there, that is, if it had room for more microbatches, its idle time would move to the end. That is
# **ZB-H2**.

# %%
zb_h2 = schedules.zb_h2(num_ranks=4, num_microbatches=8)
render.show(zb_h1, zb_h2)
print(f"zb-h2 takes {simulate(zb_h2).makespan:g} units, as zb-h1 does")
assert simulate(zb_h2).makespan == simulate(zb_h1).makespan == 27

# %% [markdown]
# It takes the same 27 units, but now every rank works without a pause from its first action to its last. The picture is
# a parallelogram, and the parallelogram of the next step fits next to it without a gap: rank 0 starts the next step
# while rank 3 finishes this one. It may, because each rank updates the parameters of its own stages, as soon as its own
# part of the step is done. Only a rank that asks for the loss waits for the last one, so train with
# `pipeline.step(x, y, wait=False)` and ask later. (What needs all ranks, such as clipping by the norm of all gradients,
# waits, too. The paper has a solution.) From the second step on, ZB-H2 then takes 24 units, and ZB-H1 still 27:

# %%
further = {s.name: simulate(s, num_steps=5).time_of_further_step for s in (one_f_one_b, zb_h1, zb_h2)}
waiting = {s.name: simulate(s, num_steps=5, wait=True).time_of_further_step for s in (one_f_one_b, zb_h1, zb_h2)}
for name, time in further.items():
    print(f"{name:6} each further step {time:g} units, or {waiting[name]:g} if every rank waits for the loss")
assert further == {"1f1b": 33, "zb-h1": 27, "zb-h2": 24}
assert waiting == {"1f1b": 33, "zb-h1": 27, "zb-h2": 27}

# %% [markdown]
# For these schedules it is therefore usual to count the idle time *within a rank's own span*, from its first action to
# its last.

# %%
for schedule in (one_f_one_b, zb_h1, zb_h2):
    timeline = simulate(schedule)
    within = [timeline.idle_within_span(rank) for rank in range(4)]
    print(f"{schedule.name:6} idle within the own span {within}, microbatches held at most {timeline.peak_activations}")
assert [simulate(one_f_one_b).idle_within_span(rank) for rank in range(4)] == [9, 6, 3, 0]
assert [simulate(zb_h1).idle_within_span(rank) for rank in range(4)] == [3, 2, 1, 0]
assert [simulate(zb_h2).idle_within_span(rank) for rank in range(4)] == [0, 0, 0, 0]
assert simulate(one_f_one_b).peak_activations == (4, 3, 2, 1)
assert simulate(zb_h1).peak_activations == (4, 4, 4, 4)
assert simulate(zb_h2).peak_activations == (7, 7, 7, 7)

# %% [markdown]
# The right-hand column is the price. ZB-H1 holds as many microbatches on every rank as 1F1B does on its first (4, 4, 4,
# 4 instead of 4, 3, 2, 1). ZB-H2 holds 2p - 1.
#
# ## The same bits
#
# All of this rests on the claim that it makes no difference to the result when W runs. It makes none. W computes the
# same thing later from the same numbers, and each stage adds up its microbatches in the same order. Here is a network
# with several kinds of layer. It is trained for one step on four ranks, once with whole backwards and once in halves.


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
        pipeline = Pipeline(network(), group, loss=nn.CrossEntropyLoss(), schedule=schedule)
        pipeline.step(signals, classes)
        return {name: parameter.grad for name, parameter in pipeline.named_parameters()}

    return {name: grad for part in spawn(train, num_ranks=4) for name, grad in part.items()}


of_whole, of_halves = gradients_with(one_f_one_b), gradients_with(zb_h1)
is_same = all(same_bits(of_whole[name], of_halves[name]) for name in of_whole)
print(f"{len(of_halves)} gradients, 1F1B and ZB-H1: {'equal to the last bit' if is_same else 'they differ'}")
assert is_same and of_whole.keys() == of_halves.keys() and len(of_halves) == 10

# %% [markdown]
# And here is the comparison with one process, which accumulates the same microbatches one after the other on an
# ordinary tape. `check_same_as_one_process` is silent if all is well, and names the parameter if a bit differs.

# %%
for schedule in (at_once, zb_h1, zb_h2):
    check_same_as_one_process(network(), nn.CrossEntropyLoss(), signals, classes, schedule)
    print(f"{schedule.name}: the bits of one process")
    assert schedule.is_reproducible  # every stage adds its gradients in ascending order of microbatches

# %% [markdown]
# ## What it costs: memory between I and W
#
# What does a layer have to keep? From F to I: everything that I or W will need. From I to W: whatever W needs. For
# `inputs.T @ gradient` that is the inputs *and* the gradient of the outputs. For a sequence of linear layers this is
# easy to count. Give each of three ranks eight such layers, all 16 numbers wide, and look at the middle rank. (The
# first rank reads the batch, which is in memory anyway, and the last one also has the loss.)


# %%
def measure(group):
    layers = [nn.Linear(16, 16) for _ in range(3 * 8)]
    pipeline = Pipeline(nn.Sequential(*layers), group, loss=nn.MSELoss(), num_microbatches=4)
    samples = np.ones((32, 16), np.float32)
    return pipeline.measure_memory(samples, samples)


memory = spawn(measure, num_ranks=3)[0]
one_array = 8 * 16 * 4  # bytes: 8 samples of 16 numbers of 4 bytes
until_input, until_weight = memory.activation[1] // one_array, memory.weight_activation[1] // one_array
print(f"one microbatch on the middle rank: {until_input} arrays from F until I, {until_weight} from I until W")
assert memory.activation[1] == 8 * one_array and memory.weight_activation[1] == 16 * one_array

# %% [markdown]
# Eight inputs after F; eight inputs and eight gradients after I. Papers often assume the opposite, that less is held
# after I than before. For some layers that is true, because everything that only I needs is freed after I. For these
# layers the second number is twice the first. (A whole B never holds all eight gradients at once: it does the W of a
# layer before it moves on to the previous layer.) So a microbatch waiting for its W holds more than one waiting for its
# I. Given the two numbers, the simulator computes what each schedule holds. Here it treats every rank as a middle one.

# %%
costs = Costs(activation=until_input, weight_activation=until_weight)
for schedule in (one_f_one_b, at_once, zb_h1, zb_h2):
    arrays = [int(held) for held in simulate(schedule, costs).peak_memory]
    print(f"{schedule.name:16} arrays held at most, by rank: {arrays}")
assert simulate(one_f_one_b, costs).peak_memory == (32, 24, 16, 8)
assert simulate(at_once, costs).peak_memory == (40, 32, 24, 16)
assert simulate(zb_h1, costs).peak_memory == (40, 48, 56, 64)
assert simulate(zb_h2, costs).peak_memory == (64, 80, 96, 112)

# %% [markdown]
# That is the bargain: you pay with memory, and get rid of two thirds of the bubble, or of all idle time within a rank's
# own span. Recomputation (lesson 06) saves less here than with whole backwards, because the recomputed activations are
# kept from I until W.
#
# ## Exercise
#
# 1. W need not take as long as I. Attention, for instance, contains products without weights, for which W has nothing
#    to do. Simulate ZB-H1 with `Costs(backward_weight=w)` for w = 0.5, 1 and 2, and subtract the work. When does idle
#    time come back, and why is there no less of it for 2 than for 1?
# 2. Postpone one more W on each rank than ZB-H1 does: write the text (start from `print(zb_h1)`), `verify` it, and
#    simulate it. Does it help? What does it cost?
# 3. The coursework task for this lesson is `11_weight_placement`: decide where each W goes. (`minipipe coursework DIR`
#    creates your copy.)
#
# <details>
# <summary>Answers</summary>
#
# 1. Idle time comes back as soon as W is shorter than I. For w = 0.5 it is 4.5 units instead of 3: the W that was saved
#    up no longer fills the waits, which are as long as an F and an I. For 2 it is 3 again. The last rank gets its first
#    microbatch after 3 units, and this wait has nothing to do with W.
#
# ```python
# for w, idle in ((0.5, 4.5), (1, 3), (2, 3)):
#     timeline = simulate(zb_h1, Costs(backward_weight=w))
#     assert timeline.makespan - 8 * (1 + 1 + w) == idle
# ```
#
# 2. It takes the same 27 units, which is the best possible (lesson 16 proves it), and holds five microbatches instead
#    of four. Counted in arrays, with the memory between I and W, that is 80 instead of 64. It gains nothing: rank 0
#    still waits 3 units for its first gradient, which takes its time, whatever is postponed.
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
# Next, `10_controllable_memory.py`: the same two halves, with a placement of stages that gives the memory back.
