# %% [markdown]
# # 18 · Data parallelism: replicas of a pipeline
#
# In this lesson you run several copies of a pipeline side by side, each on its own part
# of the batch. You learn why the copies need an all-reduce of gradients (lesson 03),
# how much of its time is hidden behind computation, and how its order determines the
# bits of the result.
#
# A copy of a stage is called a *replica*. Training with replicas is *data parallelism*;
# in large jobs it is combined with a pipeline.

# %%
from functools import partial, reduce

import numpy as np

from minipipe import (
    Costs,
    Pipeline,
    Schedule,
    init_process_group,
    nn,
    optim,
    render,
    schedules,
    simulate,
    spawn,
    verify,
)
from minipipe.errors import ScheduleError
from minipipe.testing import same_bits

# %% [markdown]
# ## Two copies of one pipeline
#
# `data_parallel` puts copies of any schedule side by side. The second copy has its own
# ranks and its own microbatches: 0 and 1 run in the first copy, 2 and 3 in the second.
# The stages are the same in both, so each stage is on two ranks.

# %%
copies = schedules.data_parallel(
    schedules.one_f_one_b(num_ranks=2, num_microbatches=2), num_replicas=2
)
verify(copies)
print(copies)
print(
    f"stage 0 is on ranks {copies.ranks_of(0)}, its microbatch 3 on rank "
    f"{copies.rank_of(0, 3)}"
)
assert copies.placement == ((0, 2), (1, 3)) and copies.rank_of(0, 3) == 2

# %% [markdown]
# Each row ends with a new kind of action, REDUCE_GRAD. After the step all replicas of a
# stage must have the same weights. They therefore need the same gradient, summed over
# the microbatches of all replicas. `0REDUCE_GRAD1` on rank 0 and `0REDUCE_GRAD3` on
# rank 2 are the two ends of one all-reduce (lesson 03). Each rank contributes the
# gradients that it has accumulated up to that microbatch.
#
# ## An all-reduce that starts too early
#
# Suppose that a rank starts the all-reduce before its last backward. Nothing hangs, and
# the replicas stay equal, but the gradient of the last microbatch is missing. This bug
# has happened in a framework (torchrec, pull request 4758), and the loss hardly shows
# it. The verifier reports it, because the schedule contains both actions.


# %%
def complaint_about(text):
    """Return the error that the verifier raises."""
    try:
        verify(Schedule.from_text(text))
    except ScheduleError as error:
        return error
    raise AssertionError("there is nothing wrong with it")


error = complaint_about(
    """
    rank 0: 0F0 0B0 0F1 0REDUCE_GRAD1 0B1
    rank 1: 0F2 0B2 0F3 0B3 0REDUCE_GRAD3
    """
)
print(error)
assert error.code == "order" and (error.problems[0].rank, error.problems[0].step) == (
    0,
    3,
)

# %% [markdown]
# ## How much of the all-reduce is hidden
#
# Take two copies of 1F1B, each with four ranks and eight microbatches. Let an
# all-reduce take 6 units, as long as a rank computes for two microbatches. An
# all-reduce is *hidden* while some rank still computes, and *exposed* when it makes the
# step longer. A REDUCE_GRAD itself takes no time: the rank starts the all-reduce and
# continues. The all-reduce begins when the last replica has reached its REDUCE_GRAD.
# The picture draws it below the rank; in a terminal it is a row named "sum".

# %%
SUMS = Costs(gradient_size=6, bandwidth=1)
one = schedules.one_f_one_b(num_ranks=4, num_microbatches=8)
alone = simulate(one).makespan
together = simulate(schedules.data_parallel(one, 2), SUMS)
render.show(together)
for each in together.sums:
    print(
        f"stage {each.actions[0].stage}, ranks {each.ranks}: all-reduce from "
        f"{each.begin:g} to {each.end:g}"
    )
print(
    f"one copy takes {alone:g} units, two copies with their all-reduces take "
    f"{together.makespan:g}"
)
assert [(each.begin, each.end) for each in together.sums] == [
    (27, 33),
    (29, 35),
    (31, 37),
    (33, 39),
]
assert (alone, together.makespan) == (33, 39)

# %% [markdown]
# The last stage has its complete gradient at 27. Stage 0 has it only at 33, because the
# cool-down ends on one rank after another. So the all-reduce of stage 3 ends when rank
# 0 ends its last backward, and is hidden completely. Stage 2 hides four of the 6 units,
# stage 1 hides two, and stage 0 none, because no rank computes after rank 0. The step
# takes 39 units instead of 33, for twice as many microbatches.
#
# ## Which schedules hide it best?
#
# With two stages on each rank, there are two all-reduces of half the size. Compare 1F1B
# with three other schedules of the same model. Each line shows the makespan of one copy
# and of two copies, and how many of the 6 units are exposed.

# %%
table = {}
for schedule in (
    one,
    schedules.interleaved_1f1b(4, 8, 2),
    schedules.zb_h1(4, 8),
    schedules.zb_v(4, 8),
):
    # stages half as long, with gradients half as large
    costs = SUMS.cut(schedule.num_stages // 4)
    before = simulate(schedule, costs)
    after = simulate(schedules.data_parallel(schedule, 2), costs)
    table[schedule.name] = (before.makespan, after.makespan)
    print(
        f"{schedule.name:16} {before.makespan:4g} -> {after.makespan:4g},",
        f"{after.makespan - before.makespan:g} of 6 exposed",
    )
assert table == {
    "1f1b": (33, 39),
    "interleaved-1f1b": (28.5, 31.5),
    "zb-h1": (27, 33),
    "zb-v": (25.5, 28.5),
}

# %% [markdown]
# In interleaved 1F1B and ZB-V, only the all-reduce of the stage that a rank finishes
# last is exposed: 3 units. The all-reduce of its other stage runs while the rank still
# computes. In ZB-H1 all ranks end at the same time, so no rank has a cool-down that
# could hide an all-reduce.
#
# Data-parallel libraries use the same idea without a pipeline. They divide the
# gradients into *buckets* of layers, and reduce each bucket as soon as the backward has
# left its layers.
#
# ## Deep or wide?
#
# Eight ranks can form one pipeline of eight stages, or several shorter ones. Let the
# whole model take 4 units for the forward of a microbatch and 8 for its backward. Its
# gradients have a size of 24, and the batch has 16 microbatches. An all-reduce over R
# replicas takes 2 (R - 1) / R times the size divided by the bandwidth.


# %%
def shapes(bandwidth):
    """Return the makespan of eight ranks by depth of the pipeline: without the all-reduce, and with it."""
    times = {}
    for depth in (8, 4, 2, 1):
        copies = 8 // depth
        per_stage = 4 / depth
        pipeline = schedules.one_f_one_b(depth, 16 // copies)
        costs = Costs(
            per_stage,
            per_stage,
            per_stage,
            gradient_size=24 / depth,
            bandwidth=bandwidth,
        )
        wide = schedules.data_parallel(pipeline, copies)
        times[depth] = (
            simulate(pipeline, costs).makespan,
            simulate(wide, costs).makespan,
        )
    return times


slow, fast = shapes(bandwidth=1), shapes(bandwidth=20)
for depth in (8, 4, 2, 1):
    without, with_sums = slow[depth]
    times = (
        f"{without:4g} alone, {with_sums:4g} with slow links, {fast[depth][1]:4.3g} "
        "with fast ones"
    )
    print(
        f"{8 // depth} copies of {depth} stages: {times}; each rank has "
        f"1/{depth} of the weights"
    )
assert [without for without, _ in slow.values()] == [34.5, 33, 30, 24]
assert [with_sums for _, with_sums in slow.values()] == [34.5, 39, 48, 66]
assert [round(with_sums, 2) for _, with_sums in fast.values()] == [
    34.5,
    33.3,
    30.9,
    26.1,
]

# %% [markdown]
# Short pipelines have small bubbles, but their ranks hold more weights, and their
# all-reduce is larger. With fast links, choose the shortest pipeline that fits into
# memory. With slow links, the deepest pipeline is the fastest.
#
# ## The order of additions
#
# The result of floating-point additions depends on their order. A ring all-reduce
# divides the array into one shard for each replica, and adds each shard along the ring,
# starting at a different replica. With two replicas the order does not matter:
# a + b and b + a have the same bits. With three replicas it does: (a + b) + c may differ
# from (b + c) + a.


# %%
def along_a_ring(arrays):
    """Add arrays as a ring does: each shard begins at another replica."""
    n, total = len(arrays), np.empty_like(arrays[0])
    for first in range(n):
        shard = slice(first * total.size // n, (first + 1) * total.size // n)
        total[shard] = reduce(
            np.add, [arrays[(first + i) % n][shard] for i in range(n)]
        )
    return total


other_bits = {}
for replicas in (2, 3, 4, 8):
    arrays = (
        np.random.default_rng(seed=0)
        .standard_normal((replicas, 24_000))
        .astype(np.float32)
    )
    other_bits[replicas] = np.mean(along_a_ring(arrays) != reduce(np.add, arrays))
    print(
        f"{replicas} replicas: {other_bits[replicas]:.0%} of the numbers differ "
        "from a sum in rank order"
    )
assert [round(100 * part) for part in other_bits.values()] == [0, 22, 32, 52]

# %% [markdown]
# None of these sums is wrong. But a pipeline that promises the bits of one process has
# to fix the order. In minipipe microbatches are added in ascending order within a
# replica, and then the replicas in order. Fixing the order sends no more bytes: each
# replica sends every other one its shard, adds the shards that it receives in order,
# and sends the result to all. That is as much as a ring sends, in two rounds. The
# simulator times this algorithm.
#
# ## An all-reduce by hand
#
# Four ranks form two copies of a pipeline with two stages. `group.split` divides the
# ranks twice: into the pipelines, and into the replicas of each stage. `all_reduce`
# adds in rank order. Compare the result with one process that adds in the same order,
# and with one that adds all eight microbatches in a single sequence.


# %%
def network():
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh())


samples = np.random.default_rng(seed=0).standard_normal((64, 16)).astype(np.float32)


def gradients(group, data, num_microbatches):
    pipeline = Pipeline(
        network(), group, loss=nn.MSELoss(), num_microbatches=num_microbatches
    )
    pipeline.step(data, data)
    return {name: parameter.grad for name, parameter in pipeline.named_parameters()}


def replica(group):
    copy, stage = divmod(group.rank, 2)
    local = gradients(group.split(copy), samples[32 * copy :][:32], num_microbatches=4)
    across = group.split(stage)
    return {name: across.all_reduce(gradient) / 2 for name, gradient in local.items()}


by_rank = spawn(replica, num_ranks=4)
with init_process_group() as group:
    first, second = (gradients(group, half, 4) for half in (samples[:32], samples[32:]))
    in_one_row = gradients(group, samples, 8)
for rank, summed in enumerate(by_rank):
    is_same = all(
        same_bits(summed[name], (first[name] + second[name]) / 2) for name in summed
    )
    other = np.mean(
        np.concatenate([np.ravel(summed[name] != in_one_row[name]) for name in summed])
    )
    print(
        f"rank {rank} has {sorted(summed)}: equal to one process that adds in "
        f"this order: {is_same},"
    )
    print(
        f"       some numbers differ from a single sequence of eight: {0 < other < 1}"
    )
    assert (
        is_same
        and 0 < other < 1
        and sorted(summed) == [f"{rank % 2 * 2}.bias", f"{rank % 2 * 2}.weight"]
    )
    assert all(
        np.allclose(summed[name], in_one_row[name], atol=1e-6) for name in summed
    )

# %% [markdown]
# So to repeat a run bit for bit, you need the same number of replicas, or the option
# `gradient_blocks` (below).
#
# ## The same with one argument
#
# `Pipeline` does all of this with `replicas=2`. It also starts the all-reduce of a
# stage as soon as its gradient is complete, while other stages still compute.


# %%
def with_replicas(group):
    pipeline = Pipeline(
        network(),
        group,
        loss=nn.MSELoss(),
        schedule="1f1b",
        num_microbatches=4,
        replicas=2,
    )
    pipeline.step(samples, samples)
    return {name: parameter.grad for name, parameter in pipeline.named_parameters()}


for rank, (built_in, by_hand) in enumerate(
    zip(spawn(with_replicas, num_ranks=4), by_rank, strict=True)
):
    is_same = all(same_bits(built_in[name], by_hand[name]) for name in by_hand)
    print(f"rank {rank}: the bits of the all-reduce by hand: {is_same}")
    assert is_same and built_in.keys() == by_rank[rank].keys()

# %% [markdown]
# (With four replicas it adds the gradients in pairs: 0 and 1, 2 and 3, then both sums.
# With the option `gradient_blocks`, a run on two replicas can have the same bits.)
#
# ## Shard the optimiser
#
# Each replica also stores the state of the optimiser. Adam keeps two numbers for each
# parameter, and they are the same on all replicas. `pipeline.sharded` divides this
# state among the replicas: each updates its shard of the parameters, and sends the new
# values to the others. This is called ZeRO stage 1, or a distributed optimiser. Compare
# the memory and the resulting weights of both kinds.


# %%
def train(group, is_sharded):
    """Take three steps on two replicas of two stages; return the bytes of Adam's state, and the weights."""
    pipeline = Pipeline(
        network(), group, loss=nn.MSELoss(), num_microbatches=4, replicas=2
    )
    rule = optim.Adam
    optimiser = pipeline.sharded(rule) if is_sharded else rule(pipeline.parameters())
    for _ in range(3):
        pipeline.step(samples, samples)
        optimiser.step()
    return optimiser.nbytes, [
        parameter.data.copy() for parameter in pipeline.parameters()
    ]


whole, sharded = (
    spawn(partial(train, is_sharded=each), num_ranks=4) for each in (False, True)
)
for rank in range(4):
    is_same = all(map(same_bits, whole[rank][1], sharded[rank][1]))
    print(
        f"rank {rank}: {whole[rank][0]} bytes of state, sharded "
        f"{sharded[rank][0]}; the same weights: {is_same}"
    )
    assert is_same and 2 * sharded[rank][0] == whole[rank][0]

# %% [markdown]
# Each rank holds half of the state, and the weights have the same bits.
#
# ## The same in PyTorch and in Megatron-LM
#
# In Megatron-LM you do not give the number of replicas: it is the number of processes
# divided by the other sizes. The first two items were not run for this lesson.
#
# - **Megatron-LM** on 8 GPUs, as two replicas of a pipeline with four stages.
#   `--overlap-grad-reduce` starts the reduction of each bucket during the backward,
#   `--use-distributed-optimizer` shards the optimiser, and `--overlap-param-gather`
#   sends updated parameters during the next forward:
#
# ```text
# torchrun --nproc-per-node 8 pretrain_gpt.py --pipeline-model-parallel-size 4 \
#     --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather …
# ```
#
# - **PyTorch**: `mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "pp"))`
#   makes the groups that `split` made above. Wrap the module of each stage in
#   `DistributedDataParallel(module, process_group=mesh.get_group("dp"))`, and give the
#   stage to a schedule of `torch.distributed.pipelining`. `ZeroRedundancyOptimizer`
#   shards the optimiser. `fully_shard(module, mesh=mesh["dp"])`, in place of both,
#   shards gradients and parameters as well (lesson 21).
# - **minipipe**: `mpirun -n 8 python tutorials/train.py --replicas 2`, and
#   `pipeline.sharded(optim.Adam)` in a program of your own.
#
# In PyTorch and Megatron, gradients are summed by NCCL in an order of its choice. The
# bits of a run may then change with the number of replicas and the version of the
# library.
#
# The pages "Coming from PyTorch" and "Coming from Megatron-LM"
# ([`site/coming-from-pytorch.md`](site/coming-from-pytorch.md),
# [`site/coming-from-megatron.md`](site/coming-from-megatron.md)) compare all options.
#
# ## What you have learnt
#
# - Replicas of a stage need one all-reduce of gradients per step, and it may only start
#   after the last backward.
# - The cool-down hides the all-reduce of the last stage, and nothing of stage 0. With
#   several stages on each rank, less of it is exposed.
# - Few replicas of deep pipelines suit slow links; many replicas of short ones suit
#   fast links.
# - The order of additions is part of the result.
#
# All of these schedules can be drawn, checked and simulated from the command line:
#
# ```sh
# minipipe show 1f1b --replicas 2 --costs gradient_size=6,bandwidth=1
# minipipe simulate 1f1b --replicas 2 --costs gradient_size=6,bandwidth=1
# mpirun -n 4 python tutorials/train.py --replicas 2
# ```

# %% [markdown]
# ## Exercise
#
# 1. Divide each stage of `one` into n neighbouring stages on the same rank, with
#    `chunks_per_rank=n` and `SUMS.cut(n)`. How long do two copies take for n of 1, 2, 3
#    and 6? What changes with `latency=0.5`?
# 2. Look at the table of depths. At which bandwidth do two copies of four stages take
#    as long as one pipeline of eight?
# 3. A rank has two replicated stages and reduces stage 0 first. Another rank reduces
#    stage 1 first. Does that hang? Write the schedule and ask the verifier.
# 4. The coursework task for this lesson is `03_all_reduce`. How many numbers does each
#    rank send in it, if there are R ranks and N numbers? How many does it send in the
#    all-reduce of this lesson?
#
# ```sh
# minipipe coursework mine               # once: writes mine/
# minipipe grade mine/03_all_reduce.py
# ```
#
# <details>
# <summary>Answers</summary>
#
# 1. Only the all-reduce of stage 0 is exposed, which now is 1/n of the former stage. So
#    the step takes 33 + 6/n units. With latency, one copy alone takes 41 units, and two
#    copies 6/n + 1 more. The 1 is the latency of the two rounds of an all-reduce, for
#    any n.
#
# ```python
# from dataclasses import replace
#
# for n in (1, 2, 3, 6):
#     cut = schedules.data_parallel(schedules.one_f_one_b(4, 8, chunks_per_rank=n), 2)
#     slow = replace(SUMS.cut(n), latency=0.5)
#     assert round(simulate(cut, SUMS.cut(n)).makespan, 9) == 33 + 6 / n
#     assert round(simulate(cut, slow).makespan, 9) == 41 + 6 / n + 1
# assert simulate(one, replace(SUMS, latency=0.5)).makespan == 41
# ```
#
# 2. At a bandwidth of 4. One pipeline takes 34.5 units. Two copies take 33, and the
#    exposed all-reduce of stage 0 takes 6 divided by the bandwidth.
#
# ```python
# assert shapes(4)[4][1] == shapes(4)[8][1] == 34.5
# ```
#
# 3. The verifier rejects it as a deadlock. A library that runs collectives one after
#    another, as most do, would hang.
#
# ```python
# error = complaint_about(
#     """
#     rank 0: 0F0 1F0 1B0 0B0 0REDUCE_GRAD0 1REDUCE_GRAD0
#     rank 1: 0F1 1F1 1B1 0B1 1REDUCE_GRAD1 0REDUCE_GRAD1
#     """
# )
# assert error.code == "deadlock"
# ```
#
# 4. In the task every array travels around the whole ring: (R - 1) N numbers. Here each
#    rank sends 2 (R - 1) N / R, which is less than 2 N for any number of ranks.
#
# ```python
# for R in (2, 3, 8):
#     copies = schedules.data_parallel(schedules.gpipe(1, 1), R)
#     found = simulate(copies, Costs(gradient_size=24, bandwidth=1)).sums[0]
#     assert round(found.end - found.begin, 9) == 2 * (R - 1) * 24 / R
# ```
#
# </details>
#
# Next, `19_without_flushes.py`: what happens if no rank waits for the others at the end
# of a step?
