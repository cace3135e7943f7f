# %% [markdown]
# # 18 · More pipelines than one
#
# So far a stage was on one rank. In this lesson a stage is on several, its *replicas*, each with microbatches of its
# own. That gives two families of schedules: copies of a pipeline side by side, which is data parallelism, and two
# pipelines that run in opposite directions over the same ranks, Chimera and DualPipe. Both have a new cost, a sum of
# gradients, and you find out how much of it hides in idle time.

# %%
from dataclasses import replace
from functools import reduce

import numpy as np

from minipipe import Costs, Pipeline, Schedule, init_process_group, nn, render, schedules, simulate, spawn, verify
from minipipe.errors import ScheduleError
from minipipe.testing import same_bits

# %% [markdown]
# ## Copies side by side
#
# `data_parallel` puts copies of any schedule side by side. The second copy has ranks of its own, and microbatches of
# its own: numbers go on, so that each microbatch of the batch has one number, whatever copy it runs in. A stage is the
# same stage in all copies. So it has a tuple of ranks.

# %%
copies = schedules.data_parallel(schedules.one_f_one_b(num_ranks=2, num_microbatches=2), num_replicas=2)
verify(copies)
print(copies)
print(f"stage 0 is on ranks {copies.ranks_of(0)}, its microbatch 3 on rank {copies.rank_of(0, 3)}")
assert copies.placement == ((0, 2), (1, 3)) and copies.rank_of(0, 3) == 2

# %% [markdown]
# There is one new kind of action. After the step all replicas of a stage must have the same weights, so they need the
# same gradient: that of all microbatches. `0REDUCE_GRAD1` on rank 0 and `0REDUCE_GRAD3` on rank 2 are the two ends of
# one all-reduce (lesson 03). Each contributes the gradients of its rank up to that microbatch.
#
# What if a sum comes too early? All ranks get through, nothing waits for ever, and all replicas stay equal. Only the
# gradient of the last microbatch is missing from it. Frameworks have had this bug (torchrec, pull request 4758), and it
# is hard to see in a loss. The verifier sees it in the rows.


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
assert error.code == "early-sum" and (error.problems[0].rank, error.problems[0].step) == (0, 3)

# %% [markdown]
# ## What hides in the cool-down
#
# Now the price. Take two copies of 1F1B, each with four ranks and eight microbatches. Let a sum take 6 units, as long
# as a rank computes for two microbatches. A REDUCE_GRAD takes its rank no time: it hands the gradient over, and
# continues. The sum itself begins when the last replica has come.

# %%
SUMS = Costs(gradient_size=6, bandwidth=1)
one = schedules.one_f_one_b(num_ranks=4, num_microbatches=8)
alone = simulate(one).makespan
together = simulate(schedules.data_parallel(one, 2), SUMS)
render.show(together)
for found in together.sums:
    print(f"stage {found.actions[0].stage}, ranks {found.ranks}: its sum runs from {found.begin:g} to {found.end:g}")
print(f"one copy takes {alone:g} units, two copies with their sums take {together.makespan:g}")
assert [(found.begin, found.end) for found in together.sums] == [(27, 33), (29, 35), (31, 37), (33, 39)]
assert (alone, together.makespan) == (33, 39)

# %% [markdown]
# Look at the last stage. In the cool-down the ranks end one after another, so it has its last gradient at 27, six units
# before stage 0 has. When rank 0 ends, that sum is over: it costs nothing. Of the sum of stage 2 four units are hidden,
# of stage 1 two, and of stage 0 none, because no rank ends later. So the step takes 39 instead of 33.
#
# With two stages on each rank there are two sums of half the size. And in a schedule in which all ranks end at once,
# no rank has a cool-down to hide a sum in.

# %%
table = {}
for schedule in (one, schedules.interleaved_1f1b(4, 8, 2), schedules.zb_h1(4, 8), schedules.zb_v(4, 8)):
    costs = SUMS.cut(schedule.num_stages // 4)  # stages half as long, with gradients half as large
    before = simulate(schedule, costs)
    after = simulate(schedules.data_parallel(schedule, 2), costs)
    table[schedule.name] = (before.makespan, after.makespan)
    print(f"{schedule.name:16} {before.makespan:4g} -> {after.makespan:4g}: {after.makespan - before.makespan:g} of 6")
assert table == {"1f1b": (33, 39), "interleaved-1f1b": (28.5, 31.5), "zb-h1": (27, 33), "zb-v": (25.5, 28.5)}

# %% [markdown]
# Interleaved 1F1B and ZB-V show only the sum of the stage that a rank ends with: 3 units. That of its other stage runs
# while the rank still computes. Libraries for data parallelism do the same in a single copy: they cut the gradients
# into "buckets", and sum each as soon as the backward has left its layers.
#
# ## Deep or wide?
#
# Eight ranks can be one deep pipeline, or several short ones. Let the whole model take 4 units for the forward of a
# microbatch and 8 for its backward, let its gradients have a size of 24, and let the batch have 16 microbatches.


# %%
def shapes(bandwidth):
    """Return, by the depth of a pipeline, the makespan of eight ranks: without the sums, and with them."""
    times = {}
    for depth in (8, 4, 2, 1):
        copies, share = 8 // depth, 4 / depth
        pipeline = schedules.one_f_one_b(depth, 16 // copies)
        costs = Costs(share, share, share, gradient_size=24 / depth, bandwidth=bandwidth)
        wide = schedules.data_parallel(pipeline, copies)
        times[depth] = (simulate(pipeline, costs).makespan, simulate(wide, costs).makespan)
    return times


slow, fast = shapes(bandwidth=1), shapes(bandwidth=20)
for depth in (8, 4, 2, 1):
    without, with_sums = slow[depth]
    words = f"{with_sums:g} with slow sums, {fast[depth][1]:.4g} with fast ones; each rank has 1/{depth} of the weights"
    print(f"{8 // depth} x {depth} ranks: {without:g} without sums, {words}")
assert [without for without, _ in slow.values()] == [34.5, 33, 30, 24]
assert [with_sums for _, with_sums in slow.values()] == [34.5, 39, 48, 66]
assert [round(with_sums, 2) for _, with_sums in fast.values()] == [34.5, 33.3, 30.9, 26.1]

# %% [markdown]
# Short pipelines have small bubbles, large sums, and take much memory for weights. On fast links one makes pipelines as
# short as memory allows. On slow ones the deepest is the best.
#
# ## In which order?
#
# An all-reduce on a ring cuts the array into one shard for each replica, and each shard is added up along the ring,
# beginning at another replica. With two replicas that is no question: a + b has the bits of b + a. With three, (a + b)
# + c differs from (b + c) + a.


# %%
def along_a_ring(arrays):
    """Add arrays as a ring does: each shard begins at another replica."""
    n, total = len(arrays), np.empty_like(arrays[0])
    for first in range(n):
        shard = slice(first * total.size // n, (first + 1) * total.size // n)
        total[shard] = reduce(np.add, [arrays[(first + i) % n][shard] for i in range(n)])
    return total


other_bits = {}
for replicas in (2, 3, 4, 8):
    arrays = np.random.default_rng(seed=0).standard_normal((replicas, 24_000)).astype(np.float32)
    other_bits[replicas] = np.mean(along_a_ring(arrays) != reduce(np.add, arrays))
    print(f"{replicas} replicas: {other_bits[replicas]:.0%} of the numbers have other bits than in a fixed order")
assert [round(100 * share) for share in other_bits.values()] == [0, 22, 32, 52]

# %% [markdown]
# None of these sums is wrong. But if a pipeline is to have the bits of one process, the order has to be said. Here it
# is: microbatches ascend within a replica, then replicas ascend. A fixed order costs nothing. Each replica sends every
# other one its shard, adds the shards in order, and sends the sum to all: the volume of the ring, in two rounds. The
# simulator times this one.
#
# Try it by hand. Four ranks are two copies of a pipeline with two stages. `split` divides the group, once into the
# pipelines, and once into the replicas of each stage; and `all_reduce` adds in a fixed order.


# %%
def network():
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh())


samples = np.random.default_rng(seed=0).standard_normal((64, 16)).astype(np.float32)


def gradients(group, data, num_microbatches):
    pipeline = Pipeline(network(), group, loss=nn.MSELoss(), num_microbatches=num_microbatches)
    pipeline.step(data, data)
    return {name: parameter.grad for name, parameter in pipeline.named_parameters()}


def replica(group):
    copy, stage = divmod(group.rank, 2)
    own = gradients(group.split(copy), samples[32 * copy :][:32], num_microbatches=4)
    across = group.split(stage)
    return {name: across.all_reduce(gradient) / 2 for name, gradient in own.items()}


by_rank = spawn(replica, num_ranks=4)
with init_process_group() as group:
    first, second = (gradients(group, half, 4) for half in (samples[:32], samples[32:]))
    in_one_row = gradients(group, samples, 8)
for rank, found in enumerate(by_rank):
    is_same = all(same_bits(found[name], (first[name] + second[name]) / 2) for name in found)
    other = np.mean(np.concatenate([np.ravel(found[name] != in_one_row[name]) for name in found]))
    print(f"rank {rank} has {sorted(found)}: bits of one process that adds the same way: {is_same}")
    assert is_same and 0 < other < 1 and sorted(found) == [f"{rank % 2 * 2}.bias", f"{rank % 2 * 2}.weight"]
    assert all(np.allclose(found[name], in_one_row[name], atol=1e-6) for name in found)

# %% [markdown]
# And a process that adds all eight microbatches in one row has other bits in some of the numbers. So the number of
# replicas is a part of what has to be said for a run to be repeated.
#
# `Pipeline` does all of this with `replicas=2`, on the same four ranks, and sums gradients while other stages still
# compute:


# %%
def with_replicas(group):
    pipeline = Pipeline(network(), group, loss=nn.MSELoss(), schedule="1f1b", num_microbatches=4, replicas=2)
    pipeline.step(samples, samples)
    return {name: parameter.grad for name, parameter in pipeline.named_parameters()}


for rank, (built_in, own) in enumerate(zip(spawn(with_replicas, num_ranks=4), by_rank, strict=True)):
    is_same = all(same_bits(built_in[name], own[name]) for name in own)
    print(f"rank {rank}: the bits of the sum by hand: {is_same}")
    assert is_same and built_in.keys() == by_rank[rank].keys()

# %% [markdown]
# (With more than two replicas it adds them in pairs: 0 and 1, 2 and 3, then both sums. Then four replicas can have the
# bits of two, with `gradient_blocks=`.)
#
# ## Two directions: Chimera
#
# In 1F1B rank 3 has nothing to do at first, because everything begins at rank 0. So let half of the microbatches
# begin at rank 3, and go *up*. Chimera (Li and Hoefler 2021) does that. Labels include the stage here: microbatches 0
# and 1 go down the ranks, 2 and 3 up. (A notebook draws the latter darker.) A backward takes as long as a forward, as
# in the figures of the paper.

# %%
EVEN = Costs(forward=1, backward_input=0.5, backward_weight=0.5)
chimera = schedules.chimera(num_ranks=4, num_microbatches=4)
verify(chimera)
render.show(simulate(chimera, EVEN), simulate(schedules.one_f_one_b(4, 4), EVEN))
for rank in range(4):
    print(f"rank {rank} has stages {chimera.stages_of(rank)}")
assert simulate(chimera, EVEN).makespan == 10 and simulate(schedules.one_f_one_b(4, 4), EVEN).makespan == 14
assert [chimera.stages_of(rank) for rank in range(4)] == [(0, 3), (1, 2), (1, 2), (0, 3)]

# %% [markdown]
# The idle time is p - 2 units for p ranks, however many microbatches there are, and that of 1F1B is 2 (p - 1).

# %%
idle = {}
for ranks, microbatches in ((4, 4), (4, 8), (8, 8), (8, 16)):
    work = 2 * microbatches
    both = (schedules.chimera(ranks, microbatches), schedules.one_f_one_b(ranks, microbatches))
    idle[ranks, microbatches] = [simulate(schedule, EVEN).makespan - work for schedule in both]
    print(f"{ranks} ranks, {microbatches} microbatches: idle {idle[ranks, microbatches]}")
assert idle == {(4, 4): [2, 6], (4, 8): [2, 6], (8, 8): [6, 14], (8, 16): [6, 14]}
assert all(found == [ranks - 2, 2 * (ranks - 1)] for (ranks, _), found in idle.items())

# %% [markdown]
# ## Why two copies of the weights?
#
# The microbatches that go down meet stage 0 on rank 0. Those that go up begin on rank 3, so rank 3 needs stage 0 as
# well. That is all: **a stage must be wherever a microbatch meets it**. Two directions are two replicas of each stage,
# every rank has the weights of two stages instead of one, and at the end there is a sum, although nobody asked for data
# parallelism. Could a microbatch change replicas on its way, and come back on the other one? Its activations are held
# where its forward ran. So no:

# %%
error = complaint_about(
    """
    rank 0: 0F0 0F1 1F2 1B2 1F3 1B3 0B0 0B3
    rank 1: 0F2 0F3 1F0 1B0 1F1 1B1 0B2 0B1
    """
)
print(error)
assert error.code == "other-replica" and ">0B3<" in error.grid

# %% [markdown]
# So is it a good deal? What else can be had for twice the weights? *Half as many ranks in a row, twice*: two copies of
# a 1F1B with two stages on each rank, side by side.

# %%
side_by_side = schedules.data_parallel(schedules.one_f_one_b(2, 4, chunks_per_rank=2), 2)
crossing = schedules.data_parallel(schedules.chimera(4, 8), 1)  # one copy: the sums of its own replicas
compared = {}
for name, costs in (("B = F", EVEN), ("B = 2F", Costs())):
    with_sums = replace(costs, gradient_size=3, bandwidth=1)
    for schedule in (crossing, side_by_side):
        timeline = simulate(schedule, with_sums)
        without = simulate(schedule, costs).makespan
        compared[name, schedule.name] = (without, timeline.makespan, timeline.peak_activations)
        words = f"{without:g} units, {timeline.makespan:g} with sums, holds {timeline.peak_activations}"
        print(f"{name:6}  {schedule.name:16} {words}")
assert [found[:2] for found in compared.values()] == [(18, 21), (20, 23), (30, 33), (30, 33)]
assert {found[2] for found in compared.values()} == {(3, 4, 4, 3), (4, 2, 4, 2)}
assert all(len(schedule.stages_of(rank)) == 2 for schedule in (crossing, side_by_side) for rank in range(4))

# %% [markdown]
# Chimera is ahead by 2 units where a backward takes as long as a forward, and not at all where it takes twice as long:
# then the slots of the two directions no longer fit into each other. The fullest rank holds as much in both.
# Always ask what an alternative would do *with the same memory*.
#
# ## DualPipe, and what it is cut in half
#
# DualPipe (DeepSeek-AI 2024) also sends microbatches in two directions. Its aim is another one: a rank runs a forward
# of one direction together with a backward of the other, so that the messages of each are hidden by the computation of
# the other. First without that: one action at a time.

# %%
dual = schedules.dualpipe(num_ranks=8, num_microbatches=20)
halves = schedules.data_parallel(schedules.dualpipe_v(4, 10), 2)
verify(dual)
for schedule in (dual, halves, schedules.one_f_one_b(8, 20)):
    timeline = simulate(schedule)
    words = f"{timeline.makespan:g} units, at most {max(timeline.peak_activations)} pairs held"
    print(f"{schedule.name:22} {words}, stages of rank 0: {schedule.stages_of(0)}")
    assert timeline.makespan == (81 if schedule.name == "1f1b" else 63)
assert max(simulate(dual).peak_activations) == max(simulate(halves).peak_activations) == 9
assert dual.stages_of(0) == halves.stages_of(0) == (0, 7)

# %% [markdown]
# The second line is no accident. Fold DualPipe in the middle: what goes up then comes back on the same ranks, and half
# of the ranks suffice. This is DualPipe-V, which has the V of lesson 10 and one copy of the weights. Every rank of
# DualPipe runs the row of a rank of DualPipe-V, but for the numbers of the microbatches:

# %%
half = schedules.dualpipe_v(4, 10)
for rank in range(8):
    row, of_half = dual.actions[rank], half.actions[min(rank, 7 - rank)]
    kinds = [str(action.kind) for action in row]
    assert kinds == [str(action.kind) for action in of_half]
    assert [action.microbatch % 10 for action in row] == [action.microbatch for action in of_half]
print(f"rank 0 of DualPipe begins {' '.join(map(str, dual.actions[0][:9]))}")
print(f"that of DualPipe-V begins {' '.join(map(str, half.actions[0][:9]))}")
assert dual.stages_of(0) == half.stages_of(0)

# %% [markdown]
# So two copies of DualPipe-V side by side take as long on eight ranks, have the same weights on each rank, and sum the
# same gradients. The two directions are data parallelism, with its replicas on the same ranks. (Qi et al. 2025 call
# the fold "cut in half".)
#
# Now the pairs. With `joined=True` forwards of the steady state run joined with the action behind them, which text
# writes as `(0F1;0B0)OVERLAP_F_B`, as PyTorch does. A pair begins when the inputs of both are there. With `overlap=0`
# it takes as long as both, with `overlap=1` as long as the longer one.

# %%
joined = schedules.dualpipe(8, 20, joined=True)
verify(joined)
by_overlap = {overlap: simulate(joined, Costs(overlap=overlap)).makespan for overlap in (0, 0.5, 1)}
for overlap, makespan in by_overlap.items():
    print(f"{len(joined.overlaps)} pairs, of which {overlap:.0%} of the shorter is hidden: {makespan:g} units")
assert by_overlap == {0: 66, 0.5: 59, 1: 52} and len(joined.overlaps) == 82
assert by_overlap[0] == 3 * 20 + (8 // 2 - 1) * (3 + 2 - 3 * 1)  # DeepSeek's formula: (p/2 - 1)(F&B + B - 3W)

# %% [markdown]
# With nothing hidden the pairs cost 3 units, because they wait for both of their inputs: 66 instead of 63, as in the
# formula of DeepSeek. They are worth it where much can be hidden: in a mixture of experts, whose layers wait for
# messages of their own.
#
# A pair can also be a deadlock where the same rows without it are legal. Here rank 0 wants to run the forward of
# microbatch 1 together with the backward of 0, and rank 1 runs these two one after the other:

# %%
error = complaint_about(
    """
    rank 0: 0F0 (0F1;0B0)OVERLAP_F_B 0B1
    rank 1: 1F0 1F1 1B0 1B1
    """
)
print(error.problems[0].message)
assert error.code == "overlap-deadlock" and "Without the overlaps it would end" in error.problems[0].message

# %% [markdown]
# All of these schedules can be drawn, checked, stepped through, simulated and trained with. (When it trains, minipipe
# computes the F of a joined pair before its B: on a CPU there are only messages to hide.)
#
# ```sh
# minipipe simulate 1f1b --replicas 2 --costs gradient_size=6,bandwidth=1
# minipipe step chimera
# minipipe simulate dualpipe --joined --costs overlap=0.5
# mpirun -n 4 python tutorials/train.py --replicas 2
# ```
#
# ## Exercise
#
# 1. Cut every stage of `one` into n neighbouring ones, with `chunks_per_rank=n` and `SUMS.cut(n)`. How long do two
#    copies take for n of 1, 2, 3 and 6? What happens to that with `latency=0.5`?
# 2. `crossing` and `side_by_side` both took 30 units for 8 microbatches, without sums. And for 16? Why?
# 3. Put two copies of Chimera side by side. On which ranks is stage 0 then, and how long does a sum take with
#    `gradient_size=3` and a bandwidth of 1?
# 4. A rank has two stages with replicas, and sums stage 0 first; another rank sums stage 1 first. Does that hang?
#    Write it and ask the verifier.
# 5. The coursework task for this lesson is `03_all_reduce`. How many numbers does each rank send in it, if there are R
#    ranks and N numbers? How many in the sum of this lesson? (`minipipe coursework DIR` creates your copy.)
#
# <details>
# <summary>Answers</summary>
#
# 1. The sum that is left over is that of one piece of rank 0, so the step takes 33 + 6/n. With latency, messages
#    between ranks make a copy alone take 41. What is left over takes 6/n + 1, twice the latency, and no cut helps with
#    that.
#
# ```python
# for n in (1, 2, 3, 6):
#     cut = schedules.data_parallel(schedules.one_f_one_b(4, 8, chunks_per_rank=n), 2)
#     slow = replace(SUMS.cut(n), latency=0.5)
#     assert round(simulate(cut, SUMS.cut(n)).makespan, 9) == 33 + 6 / n
#     assert round(simulate(cut, slow).makespan, 9) == 41 + 6 / n + 1
# assert simulate(one, replace(SUMS, latency=0.5)).makespan == 41
# ```
#
# 2. Chimera takes 58 units, the copies 54. Chimera runs its microbatches in units of p, and each unit leaves a bubble
#    of (p - 2)(B - F). That of a 1F1B does not grow with the number of microbatches.
#
# ```python
# assert simulate(schedules.chimera(4, 16)).makespan == 16 * 3 + (4 - 2) * (1 + 16 / 4 * (2 - 1)) == 58
# wider = schedules.data_parallel(schedules.one_f_one_b(2, 8, chunks_per_rank=2), 2)
# assert simulate(wider).makespan == 16 * 3 + (2 - 1) * 6 == 54
# ```
#
# 3. On ranks 0, 3, 4 and 7. Each of four replicas sends three quarters of its gradient twice: 2 × 3/4 × 3 = 4.5
#    units.
#
# ```python
# four = schedules.data_parallel(schedules.chimera(4, 8), 2)
# found = simulate(four, Costs(gradient_size=3, bandwidth=1)).sums[0]
# assert four.ranks_of(0) == (0, 3, 4, 7) and found.end - found.begin == 2 * 3 / 4 * 3 == 4.5
# ```
#
# 4. It is refused as a deadlock. A library that runs collectives one after another, as most do, would hang.
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
# 5. In the task every array travels around the whole ring: (R - 1) N numbers. Here 2 (R - 1) N / R, which is less than
#    2 N however many ranks there are.
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
# Next, `19_without_flushes.py`: what if nobody waits for the others at the end of a step?
