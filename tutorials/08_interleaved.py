# %% [markdown]
# # 08 · Interleaved: several chunks on a rank
#
# In this lesson each rank holds several short pipeline stages instead of one long one,
# which makes the bubble of 1F1B smaller. You compute how much smaller, and how many
# more messages and activations it costs.
#
# A pipeline of `p` stages has to fill and drain: the last rank cannot start until the
# first microbatch has passed through all stages before it. In lessons 05 and 06 this
# cost each rank `(p-1)(tF + tB)` of idle time, for a forward that takes `tF` and a
# backward that takes `tB`. More microbatches do not reduce that
# time. They only make it a smaller fraction of the whole step.
#
# A pipeline with **shorter** stages fills faster. So partition the model into twice as
# many stages, each half as long, and give every rank two of them. The stages of one
# rank are called its **chunks**. (Megatron-LM calls them virtual stages.)

# %%
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
    testing,
    verify,
)
from minipipe.errors import ScheduleError

# %% [markdown]
# ## The placement loops around the ranks
#
# Which two stages should a rank hold? Two neighbours would act as one long stage again.
# So deal the stages out like cards: stage 0 to rank 0, stage 1 to rank 1, and so on.
# After the last rank, continue with rank 0. Each microbatch then travels around all
# ranks twice.

# %%
interleaved = schedules.interleaved_1f1b(
    num_ranks=4, num_microbatches=8, chunks_per_rank=2
)
for rank in range(4):
    print(f"rank {rank} holds stages", *interleaved.stages_of(rank))
assert [interleaved.stages_of(rank) for rank in range(4)] == [
    (0, 4),
    (1, 5),
    (2, 6),
    (3, 7),
]
assert interleaved.placement == (0, 1, 2, 3, 0, 1, 2, 3)

# %% [markdown]
# ## The order of the forwards
#
# Now each rank has a choice. When microbatch 0 returns to rank 0 for stage 4, rank 0
# could continue with it or start a new microbatch. Here are the forwards of rank 0 in
# the order of the schedule, with a new line whenever the stage changes.


# %%
def order_of_forwards(schedule, rank):
    lines = []
    for action in schedule.actions[rank]:
        if action.kind == "F":
            if not lines or lines[-1][-1].stage != action.stage:
                lines.append([])
            lines[-1].append(action)
    return [" ".join(map(str, line)) for line in lines]


table = order_of_forwards(interleaved, rank=0)
print("\n".join(table))
assert table == [
    "0F0 0F1 0F2 0F3",
    "4F0 4F1 4F2 4F3",
    "0F4 0F5 0F6 0F7",
    "4F4 4F5 4F6 4F7",
]

# %% [markdown]
# The schedule works in **groups of p microbatches**, as many as there are ranks: four
# through the first chunk, the same four through the second chunk, then the next four.
#
# Why four? While microbatch 0 travels around the 4 ranks, rank 0 has time for 4
# microbatches, and then microbatch 0 returns just in time. In smaller groups rank 0
# would wait for it. In larger groups the microbatch would wait for rank 0, and the rank
# would hold more activations.
#
# The backwards follow the same table with the chunks in reverse. The two tables are
# merged as in 1F1B: a warm-up of forwards, then one forward and one backward in turn,
# then the remaining backwards. The result is **interleaved 1F1B** (Narayanan et al.
# 2021, Megatron-LM).
#
# ## It takes less time
#
# Let one unit be the forward of one **chunk**. A stage of plain 1F1B is twice as long:
# its forward takes 2 units and its backward 4. Both pictures show the same amount of
# work. On a rank with several stages, a label starts with the stage: `4F0` is the
# forward of microbatch 0 on stage 4. In a notebook, the later stage of a rank is
# darker.

# %%
plain = simulate(
    schedules.one_f_one_b(4, 8), Costs(forward=2, backward_input=2, backward_weight=2)
)
shorter = simulate(interleaved, Costs(forward=1, backward_input=1, backward_weight=1))
render.show(plain, shorter)
idle = [timeline.makespan - timeline.busy(0) for timeline in (plain, shorter)]
print(
    f"makespan: 1F1B {plain.makespan:g} chunk units, interleaved {shorter.makespan:g}"
)
print(f"idle time of each rank: 1F1B {idle[0]:g}, interleaved {idle[1]:g}")
assert plain.makespan == 66
assert shorter.makespan == 57
assert all(plain.busy(rank) == shorter.busy(rank) == 48 for rank in range(4))
assert idle == [18, 9]

# %% [markdown]
# Each rank computes as long as before, but the pipeline now fills and drains one chunk
# at a time. With `v` chunks on each rank, a chunk takes `1/v` of the time of the whole
# rank. So the idle time of a rank is `(p-1)(tF + tB) / v`, and the makespan is
#
# > `(m + (p-1)/v) (tF + tB)`
#
# for at least as many microbatches as ranks. Here `tF` and `tB` are the times of all
# chunks of a rank together: 1 and 2, as in the previous lessons. Papers often divide
# the idle time by the **work** of a rank instead of by the makespan. This ratio is
# `(p-1) / (m v)`. The simulator agrees:


# %%
def with_chunks(num_chunks, latency=0.0, num_microbatches=8):
    """Simulate 1F1B with `num_chunks` chunks on each of 4 ranks; one chunk takes 1/num_chunks of a rank's time."""
    if num_chunks == 1:
        schedule = schedules.one_f_one_b(4, num_microbatches)
    else:
        schedule = schedules.interleaved_1f1b(4, num_microbatches, num_chunks)
    time = 1 / num_chunks
    return simulate(
        schedule,
        Costs(forward=time, backward_input=time, backward_weight=time, latency=latency),
    )


for v, expected in [(1, 33), (2, 28.5), (4, 26.25)]:
    timeline = with_chunks(v)
    print(
        f"v = {v}: makespan {timeline.makespan:5}, idle over work "
        f"{timeline.bubble_over_ideal:.1%}"
    )
    assert timeline.makespan == expected == (8 + 3 / v) * 3
    assert timeline.bubble_over_ideal == 3 / (8 * v)

# %% [markdown]
# ## The cost in messages and memory
#
# A microbatch now crosses `p v - 1` stage boundaries in the forward and again in the
# backward, with one message each time. That makes `2 (p v - 1) m` messages, more than
# `v` times as many as before.
#
# The warm-up of rank 0 is also longer, so rank 0 holds more than the 4 microbatches of
# plain 1F1B. The table counts whole microbatches per rank: one chunk of one microbatch
# counts as `1/v`.

# %%
for v, num_messages, expected in [(1, 48, 4), (2, 112, 5.5), (4, 240, 4.75)]:
    timeline = with_chunks(v)
    held = timeline.peak_activations[0] / v
    print(
        f"v = {v}: {len(timeline.messages):3d} messages, rank 0 holds up to "
        f"{held:g} microbatches"
    )
    assert len(timeline.messages) == num_messages == 2 * (4 * v - 1) * 8
    assert held == expected

# %% [markdown]
# ## The cost of latency
#
# An interleaved schedule sends more messages, and at shorter intervals: a chunk is
# short, and after each chunk the next rank waits for a message. So the gain depends on
# the latency, the time that a message takes (lesson 07). In the next table one unit is
# the forward of a whole rank.

# %%
print("latency   v = 1     v = 2     v = 4")
expected = {
    0: [33, 28.5, 26.25],
    0.125: [35, 30.25, 30],
    0.5: [41, 35.5, 45],
    1: [49, 46, 69],
    2: [65, 70, 117],
}
for latency in expected:
    makespans = [with_chunks(v, latency).makespan for v in (1, 2, 4)]
    best = (1, 2, 4)[makespans.index(min(makespans))]
    print(
        f"{latency:<7g}",
        *(f"{makespan:<9g}" for makespan in makespans),
        f"best: v = {best}",
    )
    assert makespans == expected[latency]

# %% [markdown]
# Interleaving pays off if messages are fast and if the bubble is large because there
# are few microbatches. Lesson 09 compares it with the other remedy for the bubble, the
# split backward, and gives a rule for the choice between the two.
#
# ## What the model must have
#
# The model needs at least `p v` layers, one for each stage. And a group needs at least
# `p` microbatches: 9 microbatches on 4 ranks form groups of 4 and 5. In smaller groups,
# ranks may wait for each other in a cycle, so `interleaved_1f1b` refuses them:

# %%
assert schedules.interleaved_1f1b(4, 9).num_microbatches == 9
try:
    schedules.interleaved_1f1b(4, 9, microbatch_group_size=2)
except ScheduleError as error:
    print(error)
    message = str(error)
assert "microbatch_group_size is 2; expected a whole number, at least 4" in message

# %% [markdown]
# ## A mistake: one microbatch after another
#
# Why not send each microbatch around the ranks twice before the next one starts? That
# order is easier to write:


# %%
def one_after_another(num_ranks, num_microbatches, num_chunks):
    rows = []
    for rank in range(num_ranks):
        stages = range(rank, num_ranks * num_chunks, num_ranks)
        forwards = [f"{stage}F{k}" for k in range(num_microbatches) for stage in stages]
        backwards = [
            f"{stage}B{k}"
            for k in range(num_microbatches)
            for stage in reversed(stages)
        ]
        rows.append(" ".join(forwards + backwards))
    return Schedule.from_text("\n".join(rows), name="one after another")


mistake = one_after_another(4, 4, 2)
verify(mistake)
# here a backward takes as long as a forward
costs = Costs(forward=1, backward_input=0.5, backward_weight=0.5)
slow, fast = simulate(mistake, costs), simulate(schedules.interleaved_1f1b(4, 4), costs)
render.show(slow, fast)
assert slow.makespan == 46
assert fast.makespan == 22

# %% [markdown]
# `verify` accepts this schedule: it is legal, and its gradients are right. But rank 0
# waits for each microbatch to return instead of starting the next one, so the schedule
# takes more than twice as long. The same with 8 microbatches:

# %%
slow, fast = simulate(one_after_another(4, 8, 2), costs), simulate(interleaved, costs)
print(
    f"one after another: {slow.makespan:g} chunk units; in groups of four: "
    f"{fast.makespan:g}"
)
assert slow.makespan == 86
assert fast.makespan == 38

# %% [markdown]
# ## The other extreme: all microbatches in one group
#
# The largest possible group contains all microbatches: all of them pass through the
# first chunk, then all through the second, and then all backwards follow. This schedule
# is **looped BFS** (breadth first; Lamy-Poirier 2023).

# %%
breadth_first = schedules.looped_bfs(4, 8, 2)
print("\n".join(order_of_forwards(breadth_first, rank=0)))
timeline = simulate(breadth_first)
render.show(timeline)
print(
    f"looped BFS:       makespan {timeline.makespan:g}; rank 0 holds "
    f"{timeline.peak_activations[0]} chunks"
)
print(
    f"interleaved 1F1B: makespan {shorter.makespan:g}; rank 0 holds "
    f"{shorter.peak_activations[0]} chunks"
)
assert timeline.makespan == shorter.makespan == 57
assert timeline.peak_activations == (16, 16, 16, 16)
assert shorter.peak_activations == (11, 9, 7, 5)

# %% [markdown]
# Looped BFS relates to interleaved 1F1B as GPipe does to 1F1B: the makespan is equal,
# but every rank holds all activations.
#
# It has one advantage. Each rank runs all forwards of a chunk in a row, and later all
# backwards of the chunk in a row. Suppose that each machine stores only a part of the
# weights, and fetches the others before each use (*fully sharded*, lesson 21). This
# order fetches the weights of a chunk only twice in a step.
#
# ## Train with it
#
# Now run interleaved 1F1B with real arrays: four ranks and eight stages. Each rank
# builds the same model, and `print(pipeline)` shows on which rank each layer is.

# %%
model = nn.Sequential(
    *(layer for _ in range(7) for layer in (nn.Linear(16, 16), nn.Tanh())),
    nn.Linear(16, 1),
)
generator = np.random.default_rng(8)
inputs = generator.standard_normal((32, 16), dtype=np.float32)
targets = inputs[:, :1] * inputs[:, 1:2]


def step_with(schedule):
    """Return the table of the pipeline, the loss, and the gradients of all ranks."""

    def train(group):
        pipeline = Pipeline(
            model, group, loss=nn.MSELoss(), schedule=schedule, num_microbatches=8
        )
        loss = pipeline.step(inputs, targets)
        return (
            str(pipeline),
            loss,
            {name: parameter.grad for name, parameter in pipeline.named_parameters()},
        )

    by_rank = spawn(train, num_ranks=4)
    return *by_rank[0][:2], {
        name: gradient for *_, part in by_rank for name, gradient in part.items()
    }


table, _, _ = step_with("interleaved-1f1b")
print(table)
assert "Linear(16, 16)      4     0" in table  # stage 4 is on rank 0 again
assert "Linear(16, 1)       7     3" in table

# %% [markdown]
# Are the gradients right? The next cell compares one process with three schedules,
# which use two partitions of the model and three orders. (Lesson 05 wrote out the loop
# of one process; `testing.one_process_step` does the same.)


# %%
def one_process(group):
    model.initialise(seed=0)
    return testing.one_process_step(
        model, nn.MSELoss(), inputs, targets, num_microbatches=8
    )


expected = spawn(one_process, num_ranks=1)[0]
print(f"{'one process':16} loss {expected.loss!r}")
for name in ("1f1b", "interleaved-1f1b", "looped-bfs"):
    _, loss, gradients = step_with(name)
    num_equal = sum(
        testing.same_bits(gradients[key], expected.gradients[key])
        for key in expected.gradients
    )
    print(
        f"{name:16} loss {loss!r}, {num_equal} of {len(expected.gradients)} "
        "gradients are equal bit for bit"
    )
    assert loss == expected.loss
    assert gradients.keys() == expected.gradients.keys()
    assert num_equal == len(expected.gradients) == 16

# %% [markdown]
# ## The same in PyTorch and in Megatron-LM
#
# In PyTorch each rank builds a `PipelineStage` for each of its chunks and passes the
# list to `ScheduleInterleaved1F1B`. Save this program as `interleaved.py`:
#
# ```python
# import torch
# import torch.distributed as dist
# from torch import nn
# from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B
#
# dist.init_process_group("gloo")  # "nccl" on GPUs
# rank, num_ranks, chunks_per_rank = dist.get_rank(), dist.get_world_size(), 2
# num_stages = chunks_per_rank * num_ranks
# torch.manual_seed(0)
# blocks = [nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(num_stages)]
# stages = [
#     PipelineStage(blocks[index], index, num_stages, torch.device("cpu"))
#     for index in range(rank, num_stages, num_ranks)  # rank 0 holds stages 0 and p
# ]
# schedule = ScheduleInterleaved1F1B(stages, n_microbatches=8, loss_fn=nn.MSELoss())
# inputs, losses = torch.randn(32, 16), []
# if rank == num_ranks - 1:  # it holds the last stage
#     schedule.step(target=inputs, losses=losses)
#     print(f"mean loss {torch.stack(losses).mean():.4f}")
# else:
#     schedule.step(*[inputs] if rank == 0 else [])
# dist.destroy_process_group()
# ```
#
# ```bash
# torchrun --nproc-per-node 4 interleaved.py
# ```
#
# In Megatron-LM you give either the number of layers in a chunk
# (`--num-layers-per-virtual-pipeline-stage 3`) or the number of chunks on a rank
# (`--num-virtual-stages-per-pipeline-rank 2`). This job has 4 ranks and 24 layers, so 3
# layers in a chunk make 24 / (4 × 3) = 2 chunks on each rank. It has 8 microbatches,
# the global batch size divided by the microbatch size. It needs four GPUs, and was not
# run for this lesson.
#
# ```bash
# torchrun --nproc-per-node 4 pretrain_gpt.py \
#     --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3 \
#     --num-layers 24 --hidden-size 1024 --num-attention-heads 16 \
#     --seq-length 1024 --max-position-embeddings 1024 \
#     --micro-batch-size 1 --global-batch-size 8 \
#     --train-iters 100 --lr 1e-4 --bf16 \
#     --mock-data --tokenizer-type NullTokenizer --vocab-size 8192
# ```
#
# In minipipe the same is `Pipeline(model, group, schedule="interleaved-1f1b",
# chunks_per_rank=2)`. More options are compared in [Coming from
# PyTorch](site/coming-from-pytorch.md) and [Coming from
# Megatron-LM](site/coming-from-megatron.md).

# %% [markdown]
# ## What you have learnt
#
# - With `v` chunks on each rank, the idle time of 1F1B is divided by `v`.
# - The price is more than `v` times as many messages, and up to `(p-1)/v` more
#   microbatches in memory on rank 0.
# - The order matters: with groups of `p` microbatches, each rank has work while a
#   microbatch travels around the other ranks.
#
# ## Exercise
#
# 1. How many chunks on each of 4 ranks make the bubble smaller than 5 % of the work,
#    with 8 microbatches? How many layers must the model have, and how many messages are
#    sent? Check with `with_chunks`.
# 2. Use groups of two microbatches instead of four. Write the rows of such a schedule
#    for 4 ranks, 4 microbatches and 2 chunks, forwards first, then backwards. What
#    makespan does the simulator report?
# 3. The coursework task for this lesson is `10_interleaved_order`.
#
# <details>
# <summary>Answers</summary>
#
# 1. The bubble is 3 / (8 v) of the work, so v must be more than 7.5: 8 chunks. That
#    takes at least 32 layers, one for each stage, and 2 (32 - 1) × 8 = 496 messages
#    instead of 48.
#
# ```python
# assert with_chunks(7).bubble_over_ideal > 0.05 > with_chunks(8).bubble_over_ideal == 3 / (8 * 8)
# assert len(with_chunks(8).messages) == 2 * (4 * 8 - 1) * 8 == 496
# ```
#
# 2. 45 chunk units. The same code with groups of four takes only 33 units. With groups
#    of two, rank 0 has run both microbatches of a group through its first chunk, and
#    then waits for the first one to return.
#
# ```python
# def in_groups(size):
#     """Return a schedule of 4 ranks, 4 microbatches and 2 chunks: all forwards in groups, then all backwards."""
#     rows, groups = [], [range(first, first + size) for first in range(0, 4, size)]
#     for rank in range(4):
#         forwards = [f"{stage}F{k}" for group in groups for stage in (rank, rank + 4) for k in group]
#         backwards = [f"{stage}B{k}" for group in groups for stage in (rank + 4, rank) for k in group]
#         rows.append(" ".join(forwards + backwards))
#     return Schedule.from_text("\n".join(rows), name=f"groups of {size}")
#
#
# for size, makespan in ((2, 45), (4, 33)):
#     verify(in_groups(size))
#     assert simulate(in_groups(size)).makespan == makespan
# ```
#
# </details>
#
# Next, `09_zero_bubble.py`: a backward in two halves, one of which can wait and fill
# the idle time.
