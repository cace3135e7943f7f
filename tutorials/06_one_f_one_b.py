# %% [markdown]
# # 06 · 1F1B: the same time, less memory
#
# In this lesson you change the order of GPipe so that **each backward runs as early as
# possible**. The result, 1F1B, takes the same time, needs much less memory, and its
# memory no longer grows with the number of microbatches.
#
# The reason: GPipe (lesson 05) runs all forwards first, so every rank holds the
# activations of every microbatch. A small bubble needs many microbatches, and with
# microbatches of a given size that means a lot of memory.
#
# You then measure the memory in bytes in a pipeline that really trains, reduce it
# further by recomputation, and see the commands that run 1F1B in PyTorch and in
# Megatron-LM.

# %%
from dataclasses import replace

import numpy as np

from minipipe import (
    Costs,
    Pipeline,
    Schedule,
    nn,
    render,
    schedules,
    simulate,
    spawn,
    verify,
)
from minipipe.testing import same_bits

# %% [markdown]
# ## How many forwards come first?
#
# Here is GPipe again. Look at its last rank.

# %%
gpipe = schedules.gpipe(4, 4)
render.show(gpipe)
print("rank 3:", *gpipe.actions[3])
assert list(map(str, gpipe.actions[3])) == [
    "3F0",
    "3F1",
    "3F2",
    "3F3",
    "3B0",
    "3B1",
    "3B2",
    "3B3",
]
assert simulate(gpipe).peak_activations == (4, 4, 4, 4)

# %% [markdown]
# After `3F0`, rank 3 has everything that `3B0` needs, but it runs three more forwards
# first.
#
# Suppose instead that the last rank runs `3B0` straight away, and that every rank then
# alternates: **one forward, one backward**. How many forwards must rank `r` run before
# that? There are `p-1-r` ranks after it, and each of them needs a microbatch to work
# on. So `p-1-r` microbatches must have left rank `r` before it starts to alternate. The
# row of a rank has three parts:
#
# * the **warm-up**, `p-1-r` forwards;
# * the **steady state**, pairs of a forward and a backward;
# * the **cool-down**, the remaining backwards.
#
# This is **1F1B**, for "one forward, one backward". It is also known as
# PipeDream-Flush, and it is the default schedule of Megatron-LM.


# %%
def my_1f1b(num_ranks, num_microbatches):
    rows = []
    for rank in range(num_ranks):
        forwards = [f"{rank}F{k}" for k in range(num_microbatches)]
        backwards = [f"{rank}B{k}" for k in range(num_microbatches)]
        warmup = min(num_ranks - 1 - rank, num_microbatches)
        pairs = zip(forwards[warmup:], backwards)
        steady = [action for pair in pairs for action in pair]
        cooldown = backwards[num_microbatches - warmup :]
        rows.append(" ".join(forwards[:warmup] + steady + cooldown))
    return Schedule.from_text("\n".join(rows), name="my 1F1B")


mine = my_1f1b(4, 8)
verify(mine)
print(mine)
assert mine.actions == schedules.one_f_one_b(4, 8).actions  # the same as the library's

# %% [markdown]
# ## The same time, less memory
#
# Both schedules with eight microbatches, one above the other:

# %%
gpipe = schedules.gpipe(4, 8)
render.show(gpipe, mine)
of_gpipe, of_mine = simulate(gpipe), simulate(mine)
print(f"makespan {of_gpipe.makespan:g} and {of_mine.makespan:g}")
print(
    f"most microbatches held, by rank: {of_gpipe.peak_activations} and "
    f"{of_mine.peak_activations}"
)
assert of_gpipe.makespan == of_mine.makespan == 33
assert of_gpipe.bubble_fraction == of_mine.bubble_fraction
assert of_gpipe.peak_activations == (8, 8, 8, 8)
assert of_mine.peak_activations == (4, 3, 2, 1)

# %% [markdown]
# The makespans are equal. Rank `r` never holds more than `p - r` microbatches: those of
# its warm-up and one more. Here is the number of microbatches that rank 0 holds after
# each of its actions. Every forward adds one, and every backward removes one:

# %%
for timeline in (of_gpipe, of_mine):
    print(f"{timeline.name:8}", *timeline.held_activations[0])
assert of_gpipe.held_activations[0] == (1, 2, 3, 4, 5, 6, 7, 8, 7, 6, 5, 4, 3, 2, 1, 0)
assert of_mine.held_activations[0] == (1, 2, 3, 4, 3, 4, 3, 4, 3, 4, 3, 4, 3, 2, 1, 0)

# %% [markdown]
# The peak of GPipe grows with the number of microbatches; the peak of 1F1B does not. So
# you can now use as many microbatches as a small bubble needs:

# %%
for m in (8, 16, 32):
    all_forwards_first, in_turn = (
        simulate(schedules.gpipe(4, m)),
        simulate(my_1f1b(4, m)),
    )
    print(
        f"{m:2d} microbatches: bubble {in_turn.bubble_fraction:4.0%}, rank 0 holds",
        end=" ",
    )
    print(
        f"{all_forwards_first.peak_activations[0]:2d} in GPipe and "
        f"{in_turn.peak_activations[0]} in 1F1B"
    )
    assert abs(in_turn.bubble_fraction - 3 / (m + 3)) < 1e-12
    assert in_turn.makespan == all_forwards_first.makespan == 3 * (m + 3)
    assert (all_forwards_first.peak_activations[0], in_turn.peak_activations[0]) == (
        m,
        4,
    )

# %% [markdown]
# ## Common mistakes about 1F1B
#
# 1F1B is explained in many places, and some of the explanations contain wrong formulas.
# You have a simulator, so check:
#
# * *"The bubble of 1F1B is `(p-1)/(2(m-1)+p)`."* It is `(p-1)/(m+p-1)`, the same as for
#   GPipe.
# * *"1F1B needs `(p+m)/(p m)` of the memory of GPipe."* On rank `r` it needs
#   `min(p-r, m)/m`: here one half on rank 0.
# * *"GPipe keeps `p m` activations, 1F1B `min(p, m)`."* The first number counts all
#   ranks together, the second one a single rank. Per rank, they are `m` and
#   `min(p-r, m)`.

# %%
p, m = 4, 8
print(
    f"bubble: claimed {(p - 1) / (2 * (m - 1) + p):.1%}, simulated "
    f"{of_mine.bubble_fraction:.1%}"
)
ratio = of_mine.peak_activations[0] / of_gpipe.peak_activations[0]
print(f"memory of rank 0: claimed {(p + m) / (p * m)}, simulated {ratio}")
assert abs(of_mine.bubble_fraction - 3 / 11) < 1e-12
assert (p - 1) / (2 * (m - 1) + p) == 3 / 18
assert (p + m) / (p * m) == 0.375
assert ratio == 0.5

# %% [markdown]
# ## Measure it in bytes
#
# So far we have counted microbatches. A pipeline can also measure their size. The
# network below has 24 layers, six on each of four ranks: three times a `Linear` and a
# `Tanh`, each 64 wide. A batch has 64 samples and a microbatch has 8, so one activation
# of a microbatch is an array of 8 x 64 numbers of 4 bytes each, which is 2048 bytes.
#
# `measure_memory` runs one microbatch through the stages and measures how much memory
# each stage holds after its forward:

# %%
layers = [layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.Tanh())]
model = nn.Sequential(*layers)
generator = np.random.default_rng(6)
inputs = generator.standard_normal((64, 64), dtype=np.float32)
targets = np.sin(inputs)


def measure(group, schedule, recompute=False):
    pipeline = Pipeline(
        model, group, loss=nn.MSELoss(), schedule=schedule, recompute=recompute
    )
    memory = pipeline.measure_memory(inputs, targets)  # of one microbatch
    pipeline.measures_memory = True
    loss = pipeline.step(inputs, targets)
    gradients = {
        name: parameter.grad for name, parameter in pipeline.named_parameters()
    }
    return memory, pipeline.timeline(), loss, gradients


def run(schedule, recompute=False):
    """Return the memory of one microbatch on each stage, the timeline, the loss and all gradients."""
    by_rank = spawn(lambda group: measure(group, schedule, recompute), num_ranks=4)
    memory, timeline, loss, _ = by_rank[0]
    gradients = {
        name: gradient for *_, part in by_rank for name, gradient in part.items()
    }
    return memory, timeline, loss, gradients


memory, measured, loss, gradients = run(mine)
array = 8 * 64 * 4
print("one microbatch holds, by stage:", memory.activation, "bytes")
print(
    "in arrays of 8 x 64 numbers:   ", tuple(held / array for held in memory.activation)
)
assert (
    memory.activation
    == (3 * array, 4 * array, 4 * array, 5 * array)
    == (6144, 8192, 8192, 10240)
)

# %% [markdown]
# A stage in the middle holds four arrays: its input and the results of its three `Tanh`
# layers. Each of them is the input of a `Linear`, needed for the gradient of the
# weights, or the output of a `Tanh`, needed for its slope, or both. The results of the
# `Linear` layers are not needed again and have been freed. The first stage holds one
# array less, because its input is part of the batch, which is in memory anyway. The
# last stage holds one array more, for the loss.
#
# ## Predicted and measured memory
#
# From these sizes the simulator predicts the peak memory of each rank.
# (`memory._asdict()` returns them under the parameter names of `Costs`.) The pipeline
# measures the peak in a training step:


# %%
def predict(schedule, memory):
    return simulate(schedule, Costs(**memory._asdict(), memory_unit="bytes"))


for schedule in (gpipe, mine):
    memory, measured, loss, gradients = run(schedule)
    predicted = predict(schedule, memory)
    print(f"{schedule.name:8} measured ", measured.peak_memory, "bytes")
    print(f"{'':8} predicted", tuple(map(int, predicted.peak_memory)))
    assert measured.peak_memory == predicted.peak_memory
    assert measured.peak_activations == predicted.peak_activations
    each = (8, 8, 8, 8) if schedule is gpipe else (4, 3, 2, 1)
    assert measured.peak_memory == tuple(
        n * held for n, held in zip(each, memory.activation)
    )

# %% [markdown]
# They are equal to the byte. 1F1B uses less memory on every rank: 24 KiB instead of 48
# KiB on rank 0, and 10 KiB instead of 80 KiB on rank 3. In a large model the difference
# is gigabytes. In 1F1B the ranks are no longer equal: the **first** ranks hold the most
# microbatches.
#
# ## Trade time for memory: recompute
#
# If that is still too much memory, keep only the **input** of a stage, free everything
# else, and compute it again at the start of the backward. This is **recomputation**,
# also called activation checkpointing. A microbatch then holds one array instead of
# four, and the price is a second forward. In minipipe you write `Pipeline(...,
# recompute=True)`.

# %%
memory_again, measured_again, loss_again, gradients_again = run(mine, recompute=True)
predicted_again = predict(mine, memory_again)
print("one microbatch holds, by stage:", memory_again.activation, "bytes")
print("and more while its B runs:     ", memory_again.transient_activation)
print("peak measured: ", measured_again.peak_memory)
print("peak predicted:", tuple(map(int, predicted_again.peak_memory)))
assert memory_again.activation == (0, array, array, 2 * array)
assert memory_again.transient_activation == (3 * array, 3 * array, 3 * array, 2 * array)
assert (
    measured_again.peak_memory
    == predicted_again.peak_memory
    == (3 * array, 6 * array, 5 * array, 4 * array)
)

# %% [markdown]
# Between actions, rank 0 now holds nothing beyond the batch itself, and rank 1 holds a
# quarter of the earlier amount. While a backward runs, the rank also holds the
# recomputed activations of one microbatch, and the peak includes them. So recomputation
# saves a lot on ranks that hold many microbatches, such as the first ranks of 1F1B or
# all ranks of GPipe. It saves almost nothing on a rank that holds only one.
#
# The loss and all gradients have the same bits, because the same numbers are computed
# in the same way, only twice:

# %%
num_equal = sum(same_bits(gradients_again[name], gradients[name]) for name in gradients)
print(
    f"loss {loss!r} and {loss_again!r}; {num_equal} of {len(gradients)} "
    "gradients have the same bits"
)
assert loss_again == loss
assert num_equal == len(gradients) == 24

# %% [markdown]
# ## The time of recomputation
#
# Threads of one process share one interpreter, so their times say little. We count the
# work instead. The layer below records each call of its forward, and each stage ends
# with one:

# %%
noted = []


class Noted(nn.Module):
    """A Tanh that records the stage it runs for."""

    def __init__(self, stage):
        self.stage = stage

    def forward(self, x):
        noted.append(self.stage)
        return x.tanh()


def count_forwards(recompute):
    noted.clear()
    stages = [nn.Sequential(nn.Linear(64, 64), Noted(stage)) for stage in range(4)]

    def train(group):
        pipeline = Pipeline.from_modules(
            stages, group, loss=nn.MSELoss(), schedule=mine, recompute=recompute
        )
        pipeline.step(inputs, targets)

    spawn(train, num_ranks=4)
    return [noted.count(stage) for stage in range(4)]


once, twice = count_forwards(recompute=False), count_forwards(recompute=True)
print("forwards of 8 microbatches, by stage:", once)
print("with recomputation:                  ", twice)
assert once == [8, 8, 8, 8]
assert twice == [16, 16, 16, 16]

# %% [markdown]
# Each microbatch has exactly one extra forward on each stage, at the start of its
# backward. If a forward takes one unit and a backward two, the backward now takes
# three. (The simulator does not know about recomputation; we add the extra unit to the
# backward ourselves.)

# %%
kept = simulate(mine)
computed_again = simulate(mine, Costs(forward=1, backward_input=2, backward_weight=1))
computed_again = replace(computed_again, name="my 1F1B, recomputed")
render.show(kept, computed_again)
print(f"makespan {kept.makespan:g} and {computed_again.makespan:g}")
assert kept.makespan == 33
assert computed_again.makespan == 44

# %% [markdown]
# A step takes a third longer, which is a lot. So recompute only if memory is too small
# without it. `nn.Recompute(layer)` does it for a single layer.
#
# ## The same in PyTorch and in Megatron-LM
#
# In minipipe, the training program takes the schedule and the number of microbatches as
# options:
#
# ```sh
# mpirun -n 4 python tutorials/train.py --schedule 1f1b --microbatches 8
# ```
#
# In **PyTorch**, each rank builds its own stage and passes it to a schedule object.
# This program trains the network of this lesson on CPUs. Save it as `train_torch.py`:
#
# ```python
# import torch
# import torch.distributed as dist
# from torch import nn
# from torch.distributed.pipelining import PipelineStage, Schedule1F1B
#
# dist.init_process_group("gloo")
# rank, num_stages = dist.get_rank(), dist.get_world_size()
# torch.manual_seed(0)
# layers = [layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.Tanh())]
# inputs = torch.randn(64, 64)
# targets = torch.sin(inputs)
#
# part = nn.Sequential(*layers[6 * rank : 6 * (rank + 1)])
# stage = PipelineStage(part, rank, num_stages, torch.device("cpu"))
# schedule = Schedule1F1B(stage, n_microbatches=8, loss_fn=nn.MSELoss())
# optimiser = torch.optim.SGD(part.parameters(), lr=0.1)
# for _ in range(100):
#     optimiser.zero_grad()
#     losses = []  # one per microbatch, on the last rank
#     if rank == 0:
#         schedule.step(inputs)
#     elif rank == num_stages - 1:
#         schedule.step(target=targets, losses=losses)
#     else:
#         schedule.step()
#     optimiser.step()
# if rank == num_stages - 1:
#     print(f"mean loss {torch.stack(losses).mean():.4f}")
# dist.destroy_process_group()
# ```
#
# ```text
# torchrun --nproc-per-node 4 train_torch.py
# ```
#
# On GPUs, use `"nccl"` and `torch.device("cuda", rank)`, and move `part`, `inputs` and
# `targets` to that device.
#
# In **Megatron-LM**, 1F1B is the schedule of every pipeline without virtual stages
# (lesson 08). You choose the size of a microbatch, and Megatron computes their number:
# the global batch size divided by the microbatch size and by the number of
# data-parallel replicas (lesson 18). This command runs one replica with four stages and
# eight microbatches of 8 samples. It needs four GPUs, and was not run for this lesson:
#
# ```text
# torchrun --nproc-per-node 4 pretrain_gpt.py \
#     --pipeline-model-parallel-size 4 --micro-batch-size 8 --global-batch-size 64 \
#     --num-layers 24 --hidden-size 1024 --num-attention-heads 16 \
#     --seq-length 1024 --max-position-embeddings 1024 \
#     …   # the options of data, tokenizer and optimiser
# ```
#
# Recomputation of whole layers is `torch.utils.checkpoint.checkpoint` in PyTorch and
# `--recompute-granularity full --recompute-method uniform --recompute-num-layers 1` in
# Megatron-LM. The pages [Coming from PyTorch](site/coming-from-pytorch.md) and
# [Coming from Megatron-LM](site/coming-from-megatron.md) list further names and
# options.

# %% [markdown]
# ## What you have learnt
#
# - 1F1B runs `p-1-r` forwards on rank `r`, then alternates. It is as fast as GPipe, and
#   rank `r` holds at most `p-r` microbatches.
# - The simulator predicts the peak memory of a step to the byte.
# - Recomputation keeps only the input of a stage, for one extra forward per microbatch.
#
# ## Exercise
#
# 1. Some authors give the warm-up `p-r` forwards, one more than ours. Copy `my_1f1b`
#    and change it accordingly. Is it legal? What does it cost, and on which ranks? Then
#    try one fewer, `max(0, num_ranks - 2 - rank)`: what does that cost?
# 2. Which holds less on rank 1 with 8 microbatches: GPipe with recomputation or 1F1B
#    without? Predict it from the bytes above, then call `run(gpipe, recompute=True)`.
# 3. The coursework tasks for this lesson are `06_warmup`, `07_recompute`,
#    `12_memory_peak` and, larger than the others, `17_pipeline_step`: a whole training
#    step on several ranks.
#
# <details>
# <summary>Answers</summary>
#
# 1. One more forward is legal and takes as long. It costs the memory of one microbatch
#    on every rank: 5, 4, 3, 2 instead of 4, 3, 2, 1. (Some authors call p - r the
#    warm-up because they include the forward of the first pair.) One fewer is also
#    legal, and holds one microbatch less on all ranks but the last. But then only p - 1
#    microbatches are in the pipeline at a time, so ranks wait for each other in every
#    round: 54 units instead of 33.
#
# ```python
# def with_warmup(length):
#     """Return 1F1B for 4 ranks, 8 microbatches and a warm-up of another length."""
#     rows = []
#     for rank in range(4):
#         forwards, backwards = ([f"{rank}{kind}{k}" for k in range(8)] for kind in "FB")
#         warmup = length(rank)
#         steady = [
#             action for pair in zip(forwards[warmup:], backwards) for action in pair
#         ]
#         rows.append(" ".join(forwards[:warmup] + steady + backwards[8 - warmup :]))
#     return Schedule.from_text("\n".join(rows), name="another warm-up")
#
#
# more, fewer = (
#     with_warmup(lambda rank: 4 - rank),
#     with_warmup(lambda rank: max(0, 2 - rank)),
# )
# verify(more)
# verify(fewer)
# assert simulate(more).makespan == 33 and simulate(more).peak_activations == (5, 4, 3, 2)
# assert simulate(fewer).makespan == 54 and simulate(fewer).peak_activations == (
#     3,
#     2,
#     1,
#     1,
# )
# ```
#
# 2. GPipe with recomputation, but only by a little. It holds the input of its stage for
#    each of 8 microbatches, one array each, and three more while a backward runs: 11
#    arrays. 1F1B without recomputation holds 3 microbatches of 4 arrays: 12.
#
# ```python
# of_gpipe_again, of_1f1b = run(gpipe, recompute=True)[1], run(mine)[1]
# assert of_gpipe_again.peak_memory[1] == (8 * 1 + 3) * array == 22528
# assert of_1f1b.peak_memory[1] == 3 * 4 * array == 24576
# ```
#
# </details>
#
# Next, `07_who_waits.py`: why a program can work with small arrays and hang with large
# ones.
