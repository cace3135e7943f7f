# %% [markdown]
# # 05 · Microbatches and the bubble
#
# In this lesson you split a batch into **microbatches**, so that four ranks work at the
# same time, and you calculate how much idle time is left. You write a first schedule,
# GPipe, check your calculation with the simulator, and train a network with your
# schedule.
#
# In lesson 04 four ranks shared one model, but only one of them worked at a time: while
# the batch was on one stage, the other three ranks had nothing to do. The idea that
# removes most of this idle time is simple. Send the batch through the stages in small
# parts, one after the other, like cars through the stations of a car wash.

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
    watch_everything,
)
from minipipe.testing import same_bits

# raise an error if an array is modified while its old values are still needed
watch_everything()

# %% [markdown]
# ## Four ranks, one batch
#
# Here is the schedule of lesson 04 again, this time as text: for each rank a list of
# **actions**. `2F0` means stage 2, forward, microbatch 0. `2B0` is the corresponding
# backward. So far there is only one microbatch, the whole batch.
#
# In the picture, one unit of time is one forward. A backward takes two units: a linear
# layer computes one matrix product in the forward and two in the backward, one for the
# gradient of its input and one for the gradient of its weights.

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
# As in lesson 04, the makespan (the time from the first start to the last end) is 12
# units, and the bubble (the idle fraction of the total rank time) is 75 %: at any
# moment three of the four ranks are waiting.
#
# ## Split the batch into microbatches
#
# A **microbatch** is a part of a batch. A batch of 64 samples makes, for example, four
# microbatches of 16. As soon as rank 0 has finished microbatch 0 it starts microbatch
# 1, while rank 1 works on microbatch 0. The gradients of the microbatches are added up
# (lesson 01), and the optimiser updates the parameters once, after all of them. So the
# model learns the same as from the unsplit batch.
#
# The simplest order is GPipe (Huang et al. 2019): all forwards first, then all
# backwards. Here it is as a function:


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
assert four.actions == schedules.gpipe(4, 4).actions  # the same as the library's
assert simulate(four).makespan == 21

# %% [markdown]
# `verify` proves that a schedule is legal: no action is missing or duplicated, and no
# rank waits forever. It prints nothing if the schedule is legal. (Remove an action from
# a row and see what it reports.)

# %%
verify(four)

# %% [markdown]
# ## Calculate the bubble
#
# Let `p` be the number of ranks and `m` the number of microbatches. A forward takes
# `tF` and a backward `tB`. How long is rank `r` idle? Look at the last picture row by
# row:
#
# * At the start, rank `r` waits until microbatch 0 has passed through the `r` ranks
#   before it: `r tF`.
# * In the middle, it waits until its last forward has passed through the `p-1-r` ranks
#   after it and the first backward has come back: `(p-1-r)(tF + tB)`.
# * At the end, it has nothing left to do while the last backward travels down to rank
#   0: `r tB`.
#
# The sum is `(p-1)(tF + tB)`. It is **the same for every rank and does not depend on
# `m`**. The simulator records the cause of each idle interval, so we can compare:

# %%
p, m, forward, backward = 4, 4, 1, 2
timeline = simulate(four)
for rank in range(p):
    simulated = {slot.cause: slot.end - slot.start for slot in timeline.idle[rank]}
    by_hand = [rank * forward, (p - 1 - rank) * (forward + backward), rank * backward]
    print(
        f"rank {rank} is idle for {by_hand[0]} at the start, {by_hand[1]} in the "
        f"middle, {by_hand[2]} at the end"
    )
    assert [
        simulated.get(cause, 0) for cause in ("warm-up", "waiting", "drain")
    ] == by_hand
    assert sum(by_hand) == (p - 1) * (forward + backward) == 9

# %% [markdown]
# Each rank works for `m (tF + tB)`. So the makespan is `(m + p - 1)(tF + tB)`, and the
# bubble is
#
# >  `(p - 1) / (m + p - 1)`
#
# The idle time is constant and the work grows with `m`: **more microbatches, smaller
# bubble**. For four ranks:

# %%
for m, expected in [(4, 57), (8, 73), (16, 84)]:
    timeline = simulate(my_gpipe(4, m))
    by_hand = 3 / (m + 3)
    print(
        f"{m:2d} microbatches: bubble {by_hand:5.1%}, the ranks work "
        f"{1 - by_hand:.0%} of the time"
    )
    assert abs(timeline.bubble_fraction - by_hand) < 1e-12
    assert timeline.makespan == (m + 3) * (forward + backward)
    assert round(100 * (1 - by_hand)) == expected

# %% [markdown]
# The same in a picture, with four and with eight microbatches:

# %%
few, many = (
    replace(simulate(my_gpipe(4, m)), name=f"my GPipe, {m} microbatches")
    for m in (4, 8)
)
render.show(few, many)
assert (few.makespan, many.makespan) == (21, 33)

# %% [markdown]
# The GPipe paper gives a rule of thumb: the bubble is negligible with at least `4p`
# microbatches. The formula shows that the ranks then work more than 80 % of the time.
# So why not use a thousand microbatches? Because they have three costs: memory,
# messages, and less efficient matrix products.
#
# ## Cost 1: memory
#
# The activations of a microbatch stay in memory from its forward to its backward. In
# GPipe all forwards come first, so every rank holds the activations of all `m`
# microbatches. There are two ways to get more microbatches:
#
# * Keep their size and use a **larger batch**. Memory then grows with `m`.
# * Keep the batch and make the microbatches **smaller**. Memory stays the same, because
#   every rank still holds the activations of the whole batch.
#
# `Costs` tells the simulator the cost of each action. `activation` is the memory of one
# microbatch. `latency` is the time of a message. `forward`, `backward_input` and
# `backward_weight` are the times of the three matrix products. Each cost is a number
# for all stages, or a list with one number for each stage.

# %%
for m in (4, 8, 16):
    # 16 samples in each microbatch
    larger_batch = simulate(my_gpipe(4, m), Costs(activation=16))
    # 64 samples in the batch
    smaller_parts = simulate(my_gpipe(4, m), Costs(activation=64 / m))
    print(
        f"{m:2d} microbatches: a rank holds {larger_batch.peak_memory[0]:3.0f} "
        "samples if each microbatch has 16, "
        f"and {smaller_parts.peak_memory[0]:.0f} if the batch has 64"
    )
    assert larger_batch.peak_memory == (16 * m,) * 4
    assert smaller_parts.peak_memory == (64,) * 4

# %% [markdown]
# A batch cannot grow without limit either: beyond some size, a larger batch makes each
# step more expensive and hardly any better.
#
# ## Cost 2: messages
#
# Each microbatch crosses `p-1` stage boundaries twice: its activation on the way
# forward and its gradient on the way back. That makes `2(p-1)m` messages. Most of them
# are in flight while the ranks compute something else. Only the round trip of a single
# microbatch adds to the makespan: if a message takes `c`, GPipe takes `2(p-1)c` longer,
# for any `m`.

# %%
for m in (4, 8, 16):
    quick, slow = simulate(my_gpipe(4, m)), simulate(my_gpipe(4, m), Costs(latency=1))
    longer = slow.makespan - quick.makespan
    print(
        f"{m:2d} microbatches: {len(quick.messages):2d} messages; with c = 1 the "
        f"makespan is {longer:g} units longer"
    )
    assert len(quick.messages) == 2 * 3 * m
    assert longer == 2 * 3 * 1

# %% [markdown]
# The picture compares GPipe without latency and with a latency of one unit:

# %%
slow = replace(simulate(my_gpipe(4, 4), Costs(latency=1)), name="my GPipe, c = 1")
render.show(simulate(my_gpipe(4, 4)), slow)
assert slow.makespan == 21 + 6

# %% [markdown]
# ## Cost 3: small matrix products are inefficient
#
# A small matrix product takes more time per sample than a large one. Calling a
# function, starting a GPU kernel and reading the weights from memory take the same time
# for 1 sample as for 64. Here is a simple **model**: each matrix product takes a fixed
# time of 3 units plus 1 unit per sample. The batch has 64 samples.


# %%
def timeline_of_batch(num_microbatches, fixed=3, batch=64):
    product = fixed + batch / num_microbatches
    # a backward is two products
    costs = Costs(forward=product, backward_input=product, backward_weight=product)
    return simulate(my_gpipe(4, num_microbatches), costs)


counts = [1, 2, 4, 8, 16, 32, 64]
times = []
for m in counts:
    timeline = timeline_of_batch(m)
    times.append(timeline.makespan)
    bar = "#" * round(timeline.makespan / 16)
    print(
        f"m = {m:2d} of {64 // m:2d} samples, bubble {3 / (m + 3):3.0%}, "
        f"makespan {timeline.makespan:g} {bar}"
    )
    assert abs(timeline.bubble_fraction - 3 / (m + 3)) < 1e-12
assert times == [804, 525, 399, 363, 399, 525, 804]
assert counts[times.index(min(times))] == 8

# %% [markdown]
# The bubble shrinks from line to line, but the makespan has a minimum at 8
# microbatches. With 64 microbatches it is as long as with one. Let `h` be the fixed
# time of a product, `t` its time per sample, and `n` the number of samples in the
# batch. The makespan is then `3 (m + p - 1)(h + n t / m)`, which has its minimum where
# `m` is the square root of `(p-1) n t / h`:

# %%
best = ((4 - 1) * 64 * 1 / 3) ** 0.5
print(f"best number of microbatches: {best:g}")
assert best == 8

# %% [markdown]
# The two numbers `h` and `t` belong to one machine, one layer and one library. Lesson
# 12 measures them. The shape of the curve is general: **too few microbatches leave
# ranks idle, too many are inefficient.** Lesson 07 turns this into a recipe that also
# includes memory and latency.
#
# ## Run it
#
# Now your schedule trains a network on four ranks (threads here; MPI processes work the
# same way). The batch has 30 samples, which do not divide evenly into four
# microbatches. No sample is dropped; the sizes differ by one:

# %%
parts = split_microbatches(30, 4)
sizes = [part.stop - part.start for part in parts]
print("sizes of the microbatches:", sizes)
assert sizes == [8, 8, 7, 7]

# %% [markdown]
# The loss of a batch is the mean over its samples. The mean of the four microbatch
# means would give a sample in a small microbatch more weight than a sample in a large
# one. So **each microbatch is weighted by its size**. (In lesson 14 the samples
# themselves differ in size.) Here are losses that you can add up in your head:

# %%
losses = np.arange(30.0)  # sample 0 has loss 0, sample 29 has loss 29
means = [losses[part].mean() for part in parts]
mean_of_means = sum(means) / 4
weighted_mean = sum(size / 30 * mean for size, mean in zip(sizes, means))
print(
    f"mean {losses.mean()}, mean of means {mean_of_means}, weighted mean "
    f"{weighted_mean:g}"
)
assert losses.mean() == 14.5
assert mean_of_means == 15.0
assert abs(weighted_mean - 14.5) < 1e-12

# %% [markdown]
# The reference is one process. It runs forward and backward for one microbatch after
# another and adds up the gradients.

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
        loss.backward(weight)  # start from the weight instead of from 1
        total += weight * loss.item()
    return total, {name: parameter.grad for name, parameter in model.named_parameters()}


expected_loss, expected = spawn(one_process, num_ranks=1)[0]

# %% [markdown]
# Now the pipeline, with your schedule:


# %%
def four_ranks(group):
    pipeline = Pipeline(
        make_model(), group, loss=loss_function, schedule=my_gpipe(4, 4), seed=0
    )
    loss = pipeline.step(inputs, targets)
    return loss, {
        name: parameter.grad for name, parameter in pipeline.named_parameters()
    }


results = spawn(four_ranks, num_ranks=4)
gradients = {
    name: gradient
    for _, part_of_rank in results
    for name, gradient in part_of_rank.items()
}
num_equal = sum(same_bits(gradients[name], expected[name]) for name in expected)
print(f"loss in one process {expected_loss!r}, on each of four ranks {results[0][0]!r}")
print(f"{num_equal} of {len(expected)} gradients have the same bits")
assert all(loss == expected_loss for loss, _ in results)
assert gradients.keys() == expected.keys()
assert num_equal == len(expected) == 8

# %% [markdown]
# The results are not only close: **they have the same bits**. The ranks worked at the
# same time, but each stage added its gradients in the order of the microbatches, as one
# process does.
#
# ## The unsplit batch has other bits
#
# If you process the batch without splitting it, the last digits do differ: the same
# numbers are added in a different order and therefore rounded differently.


# %%
def unsplit(group):
    model = make_model()
    model.initialise(seed=0)
    loss_function(model(Tensor(inputs)), Tensor(targets)).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


whole = spawn(unsplit, num_ranks=1)[0]
is_close = all(
    np.allclose(whole[name], expected[name], rtol=1e-4, atol=1e-6) for name in expected
)
is_same = all(same_bits(whole[name], expected[name]) for name in expected)
print("the unsplit batch: close?", is_close, "the same bits?", is_same)
assert is_close
assert not is_same

# %% [markdown]
# ## The same in PyTorch
#
# In PyTorch, `ScheduleGPipe(stage, n_microbatches=4, loss_fn=loss)` runs this schedule.
# Megatron-LM does not offer GPipe; it runs the schedule of the next lesson, which has
# programs and commands for both.
#
# ## What you have learnt
#
# - Microbatches let the stages work at the same time. The bubble of GPipe is
#   `(p-1)/(m+p-1)`.
# - More microbatches shrink the bubble, but cost memory, messages and efficiency.
# - Each microbatch is weighted by its size, and gradients are added in the order of the
#   microbatches. So the result has the same bits as one process.
#
# ## Exercise
#
# 1. The authors of GPipe run the backwards in the opposite order: last microbatch
#    first. Copy `my_gpipe` and reverse `backwards`. Does the makespan change? Does the
#    memory change? What does the pipeline warn about now, and why?
# 2. Make stage 2 twice as slow:
#    `simulate(my_gpipe(4, 8), Costs([1, 1, 2, 1], [1, 1, 2, 1], [1, 1, 2, 1]))`. How
#    large is the bubble, and how much of it would more microbatches remove?
# 3. The coursework tasks for this lesson are `05_bubble` and `15_gpipe_time`.
#    (`minipipe coursework DIR` creates your copy.)
#
# <details>
# <summary>Answers</summary>
#
# 1. Neither the makespan nor the memory changes: all forwards still come before all
#    backwards. But now the gradients are added in the order 3, 2, 1, 0, and a sum in
#    another order is rounded differently. The pipeline warns that the last bits may
#    differ from one process, which adds in the order 0, 1, 2, 3.
#
# ```python
# reversed_rows = [[*row[:4], *row[:3:-1]] for row in my_gpipe(4, 4).actions]
# backwards_first = Schedule("reversed", range(4), 4, reversed_rows)
# verify(backwards_first)
# assert [str(action) for action in backwards_first.actions[1][4:]] == [
#     "1B3",
#     "1B2",
#     "1B1",
#     "1B0",
# ]
# assert simulate(backwards_first).makespan == simulate(my_gpipe(4, 4)).makespan == 21
# assert simulate(backwards_first).peak_activations == (4, 4, 4, 4)
# assert my_gpipe(4, 4).is_reproducible and not backwards_first.is_reproducible
# ```
#
# 2. With 8 microbatches it is 47 %. Stage 2 works 6 units on each microbatch and the
#    others work 3. With many microbatches the other three ranks are therefore idle half
#    of the time: 3/4 of the ranks, half of the time, is 37.5 %. No number of
#    microbatches removes that. Only another partition does (lesson 12).
#
# ```python
# slow_stage = Costs([1, 1, 2, 1], [1, 1, 2, 1], [1, 1, 2, 1])
# bubbles = [simulate(my_gpipe(4, m), slow_stage).bubble_fraction for m in (8, 64, 1000)]
# assert [round(100 * bubble, 1) for bubble in bubbles] == [47.4, 38.9, 37.6]
# assert all(bubble > 3 / 4 * 1 / 2 for bubble in bubbles)
# ```
#
# </details>
#
# Next, `06_one_f_one_b.py`: as fast as GPipe, with much less memory.
