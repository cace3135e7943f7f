# %% [markdown]
# # 05 · Microbatches and the bubble
#
# In lesson 04 four ranks held one model, and only one of them worked at a time: while a batch was on one stage, the
# other three ranks had nothing to do. This lesson cures most of that with one idea. **Cut the batch into smaller
# pieces**, and send them through the stages one behind the other, like cars through the stations of a car wash.
#
# You will write a schedule in a few lines, count how long the ranks still wait, compare your count with a
# simulator, weigh how small the pieces should be, and then train with your schedule on four ranks.

# %%
from dataclasses import replace

import numpy as np

from minipipe import (
    Costs,
    Pipeline,
    Schedule,
    Tensor,
    nn,
    render,
    schedules,
    simulate,
    spawn,
    split_microbatches,
    verify,
)
from minipipe.testing import same_bits

# %% [markdown]
# ## Four ranks, one batch
#
# Here is the schedule of lesson 04 again, this time as text: for each rank a list of **actions**. `2F0` is stage 2,
# forward, piece 0 of the batch; `2B0` is its backward. So far there is one piece, the whole batch.
#
# In the picture a backward is twice as long as a forward, because each layer does two products there (for the gradient
# of its input, and for that of its weights), and one in the forward. One unit of time is one forward. Idle times are
# dots in a terminal, and hatched in a notebook.

# %%
one_batch = Schedule.from_text(
    """
    rank 0: 0F0 0B0
    rank 1: 1F0 1B0
    rank 2: 2F0 2B0
    rank 3: 3F0 3B0
    """,
    name="one batch",
)
render.show(one_batch)
timeline = simulate(one_batch)
print(f"Each rank works {1 - timeline.bubble_fraction:.0%} of the time.")
assert timeline.makespan == 12
assert timeline.bubble_fraction == 0.75

# %% [markdown]
# The **makespan**, the time from the first start to the last end, is 12 units, and the **bubble**, the share of all
# ranks' time in which they are idle, is 75 %: three of four ranks always wait.
#
# ## Cut it into microbatches
#
# A **microbatch** is a piece of a batch: of 64 samples, say, four microbatches of 16. As soon as rank 0 is done with
# microbatch 0 it goes on with microbatch 1, while rank 1 works on microbatch 0. Gradients of the microbatches are
# added up (lesson 01), and the optimiser steps once, after all of them; so the batch teaches the model what it would
# have taught it in one piece.
#
# The simplest order is that of GPipe (Huang et al. 2019): first all forwards, then all backwards. Write it down:


# %%
def my_gpipe(num_ranks, num_microbatches):
    rows = []
    for rank in range(num_ranks):
        forwards = [f"{rank}F{k}" for k in range(num_microbatches)]
        backwards = [f"{rank}B{k}" for k in range(num_microbatches)]
        rows.append(" ".join(forwards + backwards))
    return Schedule.from_text("\n".join(rows), name="my GPipe")


four = my_gpipe(4, 4)
print(four)
render.show(four)
assert four.actions == schedules.gpipe(4, 4).actions  # the library's is the same
assert simulate(four).makespan == 21

# %% [markdown]
# `verify` proves that a schedule is legal: nothing missing, nothing twice, and nobody waits for ever. It is silent
# when all is well. (Leave an action out, and see what it says.)

# %%
verify(four)

# %% [markdown]
# ## Count the bubble
#
# Let there be `p` ranks and `m` microbatches, and let a forward take `tF` and a backward `tB`. How long is rank `r`
# idle? Look at the picture row by row:
#
# * At the start it waits until microbatch 0 has passed the `r` ranks before it: `r tF`.
# * In the middle it waits until its last forward has passed the `p-1-r` ranks behind it and the first backward has
#   come back: `(p-1-r)(tF + tB)`.
# * At the end it has nothing left to do while the last backward goes down to rank 0: `r tB`.
#
# Together that is `(p-1)(tF + tB)`, **the same for every rank, and whatever m is**. The simulator keeps each idle time
# with its cause, so we can compare:

# %%
p, m, forward, backward = 4, 4, 1, 2
timeline = simulate(four)
for rank in range(p):
    found = {slot.cause: slot.end - slot.start for slot in timeline.idle[rank]}
    by_hand = [rank * forward, (p - 1 - rank) * (forward + backward), rank * backward]
    print(f"rank {rank} is idle at the start {by_hand[0]}, in the middle {by_hand[1]}, at the end {by_hand[2]}")
    assert [found.get(cause, 0) for cause in ("warm-up", "waiting", "drain")] == by_hand
    assert sum(by_hand) == (p - 1) * (forward + backward) == 9

# %% [markdown]
# Each rank works for `m (tF + tB)`. So the makespan is `(m + p - 1)(tF + tB)`, and the bubble is this part of it:
#
# >  `(p - 1) / (m + p - 1)`
#
# The waiting stays the same, the work grows: **more microbatches, less bubble**. For four ranks:

# %%
for m, expected in [(4, 57), (8, 73), (16, 84)]:
    timeline = simulate(my_gpipe(4, m))
    by_hand = 3 / (m + 3)
    print(f"{m:2d} microbatches: bubble {by_hand:5.1%}, the ranks work {1 - by_hand:.0%} of the time")
    assert abs(timeline.bubble_fraction - by_hand) < 1e-12
    assert timeline.makespan == (m + 3) * (forward + backward)
    assert round(100 * (1 - by_hand)) == expected

# %%
render.show(my_gpipe(4, 4), my_gpipe(4, 8))
assert simulate(my_gpipe(4, 8)).makespan == 33

# %% [markdown]
# A rule of thumb from the GPipe paper: at least `4p` microbatches, then the ranks work 80 % of the time or more. Why
# not a thousand microbatches? Because they have a price: memory, messages, and the size of the products.
#
# ## Price 1: memory
#
# Between the forward and the backward of a microbatch its activations stay in memory. In GPipe no backward comes
# before the last forward, so every rank holds the activations of all `m` microbatches. There are two ways to have
# more of them. You keep their size and take **larger batches**: then memory grows with `m`. Or you keep the batch and
# cut it **finer**: then memory stays what the whole batch needs, however fine you cut, and each piece gets small.
#
# `Costs` tells the simulator what things take, where it should not be one unit each: `activation` is what one
# microbatch holds, `latency` below is the time of a message, and `forward`, `backward_input` and `backward_weight` are
# those of the three products.

# %%
for m in (4, 8, 16):
    larger_batch = simulate(my_gpipe(4, m), Costs(activation=16))  # 16 samples in each microbatch
    finer_cut = simulate(my_gpipe(4, m), Costs(activation=64 / m))  # 64 samples in the batch
    print(
        f"{m:2d} microbatches: each rank holds the activations of {larger_batch.peak_memory[0]:3.0f} samples "
        f"with 16 in each, of {finer_cut.peak_memory[0]:.0f} with {64 // m} in each"
    )
    assert larger_batch.peak_memory == (16 * m,) * 4
    assert finer_cut.peak_memory == (64,) * 4

# %% [markdown]
# (Nor can the batch grow for ever: beyond some size a larger batch makes a step dearer and hardly better.)
#
# ## Price 2: messages
#
# Each microbatch crosses `p-1` borders twice: its activation on the way up, its gradient on the way down. That is
# `2(p-1)m` messages. Most of them travel while the ranks compute something else. Only the way of one microbatch, up
# and down, adds to the makespan: if a message takes `c`, GPipe takes `2(p-1)c` longer, whatever `m` is.

# %%
for m in (4, 8, 16):
    quick, slow = simulate(my_gpipe(4, m)), simulate(my_gpipe(4, m), Costs(latency=1))
    longer = slow.makespan - quick.makespan
    print(f"{m:2d} microbatches: {len(quick.messages):2d} messages; with c = 1 the makespan is {longer:g} units longer")
    assert len(quick.messages) == 2 * 3 * m
    assert longer == 2 * 3 * 1

# %%
slow = replace(simulate(my_gpipe(4, 4), Costs(latency=1)), name="my GPipe, c = 1")
render.show(simulate(my_gpipe(4, 4)), slow)
assert slow.makespan == 21 + 6

# %% [markdown]
# ## Price 3: small products are inefficient
#
# A product of small matrices takes longer for each sample than one of large matrices: calling a function, starting
# work on a GPU, and reading all the weights from memory cost the same for 1 sample as for 64. Let us put that into a
# **model**: each product takes a fixed time of 3 units, and 1 unit for each sample on top. The batch has 64 samples.


# %%
def timeline_of_batch(num_microbatches, fixed=3, batch=64):
    product = fixed + batch / num_microbatches
    costs = Costs(forward=product, backward_input=product, backward_weight=product)  # a backward is two products
    return simulate(my_gpipe(4, num_microbatches), costs)


counts = [1, 2, 4, 8, 16, 32, 64]
times = []
for m in counts:
    timeline = timeline_of_batch(m)
    times.append(timeline.makespan)
    bar = "#" * round(timeline.makespan / 16)
    print(f"m = {m:2d}, samples in each {64 // m:2d}, bubble {3 / (m + 3):3.0%}, makespan {timeline.makespan:g} {bar}")
    assert abs(timeline.bubble_fraction - 3 / (m + 3)) < 1e-12
assert times == [804, 525, 399, 363, 399, 525, 804]
assert counts[times.index(min(times))] == 8

# %% [markdown]
# The bubble shrinks to the last line, but the makespan has its minimum at 8 microbatches and is as bad with 64 as
# with 1. With a fixed time `h`, `n` samples in the batch and a time `t` for each, the makespan is
# `3 (m + p - 1)(h + n t / m)`. It is least where `m` is the square root of `(p-1) n t / h`:

# %%
best = ((4 - 1) * 64 * 1 / 3) ** 0.5
print(f"best number of microbatches: {best:g}")
assert best == 8

# %% [markdown]
# This is a model: "a fixed time and so much for each sample" is roughly true, and the two numbers are those of one
# machine, one layer, one library. Lesson 12 measures them instead. What stays true is the shape: **too few
# microbatches wait, too many are too small.**
#
# ## Run it
#
# Now your schedule trains a network, on four ranks (threads here; MPI processes work the same way). The batch has 30
# samples, which four microbatches cannot share evenly. Nothing is dropped; the sizes differ by one:

# %%
parts = split_microbatches(30, 4)
sizes = [part.stop - part.start for part in parts]
print("sizes of the microbatches:", sizes)
assert sizes == [8, 8, 7, 7]

# %% [markdown]
# The loss of a batch is the mean over its samples. A mean of the four means would count a sample of a small
# microbatch for more than one of a large microbatch, so **each microbatch is weighted by its size**. For losses that
# one can add up in the head:

# %%
losses = np.arange(30.0)  # sample 0 has loss 0, sample 29 has loss 29
means = [losses[part].mean() for part in parts]
mean_of_means = sum(means) / 4
weighted_mean = sum(size / 30 * mean for size, mean in zip(sizes, means))
print(f"mean {losses.mean()}, mean of means {mean_of_means}, weighted mean {weighted_mean:g}")
assert losses.mean() == 14.5
assert mean_of_means == 15.0
assert abs(weighted_mean - 14.5) < 1e-12

# %% [markdown]
# First one process, written out: microbatch after microbatch, forward and backward, the gradients adding up.

# %%
generator = np.random.default_rng(5)
inputs = generator.standard_normal((30, 8), dtype=np.float32)
targets = inputs[:, :1] * inputs[:, 1:2]
loss_function = nn.MSELoss()


def make_model():
    return nn.Sequential(
        *(nn.Linear(8, 32), nn.Tanh()),
        *(nn.Linear(32, 32), nn.Tanh()),
        *(nn.Linear(32, 32), nn.Tanh()),
        nn.Linear(32, 1),
    )


def one_process(group):
    model = make_model()
    model.initialise(seed=0)
    total = 0.0
    for part in parts:
        weight = (part.stop - part.start) / len(inputs)
        loss = loss_function(model(Tensor(inputs[part])), Tensor(targets[part]))
        loss.backward(weight)  # instead of 1: this is where the weight comes in
        total += weight * loss.item()
    return total, {name: parameter.grad for name, parameter in model.named_parameters()}


expected_loss, expected = spawn(one_process, num_ranks=1)[0]

# %% [markdown]
# Then the pipeline, with the schedule that you wrote:


# %%
def four_ranks(group):
    pipeline = Pipeline(make_model(), group, loss=loss_function, schedule=my_gpipe(4, 4), seed=0)
    loss = pipeline.step(inputs, targets)
    return loss, {name: parameter.grad for name, parameter in pipeline.named_parameters()}


results = spawn(four_ranks, num_ranks=4)
gradients = {name: gradient for _, part_of_rank in results for name, gradient in part_of_rank.items()}
num_equal = sum(same_bits(gradients[name], expected[name]) for name in expected)
print(f"loss in one process {expected_loss!r}, on each of four ranks {results[0][0]!r}")
print(f"{num_equal} of {len(expected)} gradients have the same bits")
assert all(loss == expected_loss for loss, _ in results)
assert gradients.keys() == expected.keys()
assert num_equal == len(expected) == 8

# %% [markdown]
# Not nearly the same: **the same bits**. The ranks worked at the same time, yet each stage added its gradients in the
# order of the microbatches, as one process does. Compare with the batch in one piece, and the last digits do differ:
# the same numbers, added in another order, are rounded differently.


# %%
def in_one_piece(group):
    model = make_model()
    model.initialise(seed=0)
    loss_function(model(Tensor(inputs)), Tensor(targets)).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


whole = spawn(in_one_piece, num_ranks=1)[0]
is_close = all(np.allclose(whole[name], expected[name], rtol=1e-4, atol=1e-6) for name in expected)
is_same = all(same_bits(whole[name], expected[name]) for name in expected)
print("the batch in one piece: close?", is_close, "the same bits?", is_same)
assert is_close
assert not is_same

# %% [markdown]
# ## Exercise
#
# 1. GPipe's authors take the backwards in the opposite order: the last microbatch first. Copy `my_gpipe` and
#    turn `backwards` around. Do makespan and memory change? What does the pipeline warn of now, and why?
# 2. Let stage 2 be twice as slow: `simulate(my_gpipe(4, 8), Costs([1, 1, 2, 1], [1, 1, 2, 1], [1, 1, 2, 1]))`. How
#    large is the bubble, and how much of it would more microbatches take away?
# 3. The coursework tasks that belong here are `05_bubble` and `15_gpipe_time`. (`minipipe coursework DIR` makes your
#    copy.)
#
# Next, `06_one_f_one_b.py`: the time of GPipe, with much less memory.
