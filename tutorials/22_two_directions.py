# %% [markdown]
# # 22 · Pipelines in both directions
#
# In this lesson microbatches enter a pipeline at both ends. You learn what Chimera and
# DualPipe gain by that, why they need two copies of the weights, and when it pays to
# overlap the forward of one microbatch with the backward of another.
#
# You need replicas and REDUCE_GRAD from lesson 18, and the V shape from lesson 10.

# %%
from dataclasses import replace

from minipipe import Costs, Schedule, render, schedules, simulate, verify
from minipipe.errors import ScheduleError

# %% [markdown]
# ## Chimera
#
# In 1F1B every microbatch begins on rank 0, so the last rank is idle at first. Chimera
# (Li and Hoefler 2021) starts half of the microbatches on the last rank and sends them
# through the ranks in the opposite direction. In the first picture microbatches 0 and 1
# go *down*, from rank 0 to rank 3, and 2 and 3 go *up*. Its labels include the stage,
# because each rank now has two: `3F2` is stage 3, forward, microbatch 2. (A notebook
# draws the upward direction darker.) The second picture is 1F1B. A backward takes as
# long as a forward here, as in the figures of the paper.

# %%
EVEN = Costs(forward=1, backward_input=0.5, backward_weight=0.5)
chimera = schedules.chimera(num_ranks=4, num_microbatches=4)
verify(chimera)
render.show(simulate(chimera, EVEN), simulate(schedules.one_f_one_b(4, 4), EVEN))
for rank in range(4):
    print(f"rank {rank} has stages {chimera.stages_of(rank)}")
assert (
    simulate(chimera, EVEN).makespan == 10
    and simulate(schedules.one_f_one_b(4, 4), EVEN).makespan == 14
)
assert [chimera.stages_of(rank) for rank in range(4)] == [
    (0, 3),
    (1, 2),
    (1, 2),
    (0, 3),
]

# %% [markdown]
# Chimera takes 10 units and 1F1B 14.
#
# The next cell prints the idle time of a rank, makespan minus work, for more ranks and
# more microbatches: Chimera first, then 1F1B.

# %%
idle = {}
for ranks, microbatches in ((4, 4), (4, 8), (8, 8), (8, 16)):
    work = 2 * microbatches
    both = (
        schedules.chimera(ranks, microbatches),
        schedules.one_f_one_b(ranks, microbatches),
    )
    idle[ranks, microbatches] = [
        simulate(schedule, EVEN).makespan - work for schedule in both
    ]
    print(
        "{} ranks, {:2} microbatches: Chimera {:g} units idle, 1F1B {:g}".format(
            ranks, microbatches, *idle[ranks, microbatches]
        )
    )
assert idle == {(4, 4): [2, 6], (4, 8): [2, 6], (8, 8): [6, 14], (8, 16): [6, 14]}
assert all(both == [ranks - 2, 2 * (ranks - 1)] for (ranks, _), both in idle.items())

# %% [markdown]
# With p ranks, each rank is idle for p - 2 units in Chimera and for 2 (p - 1) units in
# 1F1B. In 1F1B this holds for any number of microbatches, and in Chimera for multiples
# of p; other numbers leave more idle time.
#
# ## Why two copies of the weights?
#
# Microbatches that go down need stage 0 on rank 0. Microbatches that go up begin on
# rank 3, and need stage 0 on rank 3. **A rank must hold every stage that it runs for
# any microbatch.** So each stage has two replicas, and each rank holds the weights of
# two stages. At the end of the step there is an all-reduce between the two replicas, as
# in data parallelism.
#
# Could a microbatch run its forward on one replica of a stage and its backward on the
# other? No: the backward needs the activations, which are on the rank of the forward.
# The verifier reports it:


# %%
def complaint_about(text):
    """Return the error that the verifier raises."""
    try:
        verify(Schedule.from_text(text))
    except ScheduleError as error:
        return error
    raise AssertionError("the schedule is legal")


error = complaint_about(
    """
    rank 0: 0F0 0F1 1F2 1B2 1F3 1B3 0B0 0B3
    rank 1: 0F2 0F3 1F0 1B0 1F1 1B1 0B2 0B1
    """
)
print(error)
assert error.code == "placement" and ">0B3<" in error.grid

# %% [markdown]
# ## Compare with the same memory
#
# Two stages of weights on each rank can be used in another way: two shorter pipelines
# side by side, each a 1F1B of two ranks with two stages on each. The next cell compares
# Chimera with that, for backwards as long as a forward and twice as long. It prints the
# makespan without the all-reduce and with it, and the (stage, microbatch) pairs that
# each rank holds at its peak.

# %%
side_by_side = schedules.data_parallel(
    schedules.one_f_one_b(2, 4, chunks_per_rank=2), 2
)
# one copy: its two directions are the replicas
crossing = schedules.data_parallel(schedules.chimera(4, 8), 1)
compared = {}
for name, costs in (("B = F", EVEN), ("B = 2F", Costs())):
    with_reduce = replace(costs, gradient_size=3, bandwidth=1)
    for schedule in (crossing, side_by_side):
        timeline = simulate(schedule, with_reduce)
        without = simulate(schedule, costs).makespan
        compared[name, schedule.name] = (
            without,
            timeline.makespan,
            timeline.peak_activations,
        )
        times = f"{without:g} units, {timeline.makespan:g} with the all-reduce"
        print(
            f"{name:6}  {schedule.name:16} {times}, holds {timeline.peak_activations}"
        )
assert [row[:2] for row in compared.values()] == [
    (18, 21),
    (20, 23),
    (30, 33),
    (30, 33),
]
assert {row[2] for row in compared.values()} == {(3, 4, 4, 3), (4, 2, 4, 2)}
assert all(
    len(schedule.stages_of(rank)) == 2
    for schedule in (crossing, side_by_side)
    for rank in range(4)
)

# %% [markdown]
# If a backward takes as long as a forward, Chimera is 2 units faster. If it takes twice
# as long, as usual, both take the same time, because the actions of one direction no
# longer fit exactly into the gaps of the other. In both schedules a rank holds at most
# 4 pairs. When you judge a schedule, compare it with the best alternative that uses the
# same memory.
#
# ## DualPipe
#
# DualPipe (DeepSeek-AI 2024) also sends microbatches in two directions, for another
# reason. A rank runs the forward of one direction together with the backward of the
# other, and the messages of each are hidden behind the computation of the other. First
# look at the schedule without these pairs, with one action at a time. The next cell
# compares it with 1F1B, and with two copies of another schedule, `dualpipe_v`, on the
# same number of ranks.

# %%
dual = schedules.dualpipe(num_ranks=8, num_microbatches=20)
halves = schedules.data_parallel(schedules.dualpipe_v(4, 10), 2)
verify(dual)
for schedule in (dual, halves, schedules.one_f_one_b(8, 20)):
    timeline = simulate(schedule)
    held = max(timeline.peak_activations)
    print(
        f"{schedule.name:22} {timeline.makespan:g} units, holds {held}, stages "
        f"of rank 0: {schedule.stages_of(0)}"
    )
    assert timeline.makespan == (81 if schedule.name == "1f1b" else 63)
assert (
    max(simulate(dual).peak_activations) == max(simulate(halves).peak_activations) == 9
)
assert dual.stages_of(0) == halves.stages_of(0) == (0, 7)

# %% [markdown]
# The first two lines show the same times and memory. To see why, fold DualPipe in the
# middle: put rank 7 on rank 0, rank 6 on rank 1, and so on. Each microbatch then passes
# over the four ranks and back, as in the V of lesson 10. One copy of the weights is
# enough, and half of the ranks. This schedule is DualPipe-V, which Qi et al. (2025)
# call "cut in half". The next cell checks that each rank of DualPipe runs a row of
# DualPipe-V, with other numbers for the microbatches.

# %%
half = schedules.dualpipe_v(4, 10)
for rank in range(8):
    row, of_half = dual.actions[rank], half.actions[min(rank, 7 - rank)]
    kinds = [str(action.kind) for action in row]
    assert kinds == [str(action.kind) for action in of_half]
    assert [action.microbatch % 10 for action in row] == [
        action.microbatch for action in of_half
    ]
print(f"rank 0 of DualPipe begins {' '.join(map(str, dual.actions[0][:9]))}")
print(f"rank 0 of DualPipe-V begins {' '.join(map(str, half.actions[0][:9]))}")
assert dual.stages_of(0) == half.stages_of(0)

# %% [markdown]
# So two copies of DualPipe-V take as long as DualPipe, hold the same weights on each
# rank, and reduce the same gradients. **The two directions are data parallelism, with
# both replicas on the same ranks.**
#
# ## Overlap a forward with a backward
#
# With `joined=True`, a forward in the steady state runs together with the action that
# follows it. Text writes such an overlapped pair as `(0F1;0B0)OVERLAP_F_B`, as PyTorch
# does. A pair begins when the inputs of both actions are available. `Costs(overlap=0)`
# lets it take as long as both actions together, `overlap=1` as long as the longer one.

# %%
overlapped = schedules.dualpipe(8, 20, joined=True)
verify(overlapped)
by_overlap = {
    overlap: simulate(overlapped, Costs(overlap=overlap)).makespan
    for overlap in (0, 0.5, 1)
}
for overlap, makespan in by_overlap.items():
    print(
        f"{len(overlapped.overlaps)} pairs that hide {overlap:4.0%} of their shorter "
        f"action: {makespan:g} units"
    )
assert by_overlap == {0: 66, 0.5: 59, 1: 52} and len(overlapped.overlaps) == 82
# DeepSeek's formula: (p/2 - 1)(F&B + B - 3W)
assert by_overlap[0] == 3 * 20 + (8 // 2 - 1) * (3 + 2 - 3 * 1)

# %% [markdown]
# Without any overlap the pairs cost 3 units, 66 instead of 63, because each waits for
# the inputs of both actions. The assert compares this with the formula that DeepSeek
# publishes. With full overlap they take 52, 11 units less than without pairs. Pairs are
# worth it if much can be hidden, as in a mixture of experts, whose layers exchange
# tokens between ranks (an all-to-all) in both directions.
#
# ## A pair can deadlock
#
# A pair can cause a deadlock although the same rows are legal without the pair. Here
# rank 0 runs the forward of microbatch 1 together with the backward of microbatch 0.
# Rank 1 runs these two one after the other.

# %%
error = complaint_about(
    """
    rank 0: 0F0 (0F1;0B0)OVERLAP_F_B 0B1
    rank 1: 1F0 1F1 1B0 1B1
    """
)
print(error.problems[0].message)
assert (
    error.code == "deadlock"
    and "Without the overlaps it would end" in error.problems[0].message
)

# %% [markdown]
# The pair on rank 0 waits for `1B0` on rank 1. Rank 1 first runs `1F1`, which waits for
# the pair.
#
# ## The same in PyTorch and in Megatron-LM
#
# - **PyTorch** has DualPipe-V as `ScheduleDualPipeV` in `torch.distributed.pipelining`.
#   Each rank gives it two stages, placed as a V. `get_schedule_class("DualPipeV")`
#   returns it by name, and torchtitan takes the name as an option:
#
# ```text
# --parallelism.pipeline_parallel_degree 4 \
# --parallelism.pipeline_parallel_schedule DualPipeV
# ```
#
# - **DeepSeek** published both schedules as `DualPipe` and `DualPipeV` in the
#   repository `deepseek-ai/DualPipe`. You write the function that runs an overlapped
#   pair of your own layers.
# - **Megatron-LM** has no pipeline in two directions. Its option
#   `--overlap-moe-expert-parallel-comm` overlaps the forward of one microbatch with the
#   backward of another within the 1F1B order, to hide the all-to-all of experts;
#   `--delay-wgrad-compute` also splits the backward.
# - **minipipe** trains with `schedule="dualpipe"`, `"dualpipe-v"` and `"chimera"`. It
#   computes the forward of an overlapped pair before the backward, because on a CPU
#   only messages can be hidden.
#
# More options stand side by side in [Coming from PyTorch](site/coming-from-pytorch.md)
# and [Coming from Megatron-LM](site/coming-from-megatron.md).
#
# ## What you have learnt
#
# - Two directions need two replicas of each stage, and an all-reduce at the end.
# - Chimera saves time if a backward takes as long as a forward. If a backward takes
#   twice as long, two shorter pipelines with the same memory are as fast or faster.
# - DualPipe is two copies of DualPipe-V on the same ranks. Its gain comes from
#   overlapped pairs, and only if there is something to hide.
#
# Draw, step through and simulate the schedules:
#
# ```sh
# minipipe show chimera
# minipipe step chimera
# minipipe simulate dualpipe --joined --costs overlap=0.5
# ```

# %% [markdown]
# ## Exercise
#
# 1. `crossing` and `side_by_side` both took 30 units for 8 microbatches, without the
#    all-reduce. How long do they take for 16? Why?
# 2. Put two copies of Chimera side by side. On which ranks is stage 0 then? How long
#    does an all-reduce take with `gradient_size=3` and a bandwidth of 1?
# 3. How much must a pair hide before DualPipe with pairs is as fast as DualPipe without
#    them?
# 4. The coursework task for this lesson is `11_weight_placement`: it moves W away from
#    its I, into idle time. In which part of its rows does DualPipe-V (`half`) do that,
#    and why there?
#
# ```sh
# minipipe coursework mine               # once: writes mine/
# minipipe grade mine/11_weight_placement.py
# ```
#
# <details>
# <summary>Answers</summary>
#
# 1. Chimera takes 58 units, the two pipelines 54. Chimera runs its microbatches in
#    groups of p, and each group adds (p - 2)(B - F) units of idle time. The idle time
#    of 1F1B does not grow with the number of microbatches.
#
# ```python
# assert simulate(schedules.chimera(4, 16)).makespan == 16 * 3 + (4 - 2) * (1 + 16 / 4 * (2 - 1)) == 58
# wider = schedules.data_parallel(schedules.one_f_one_b(2, 8, chunks_per_rank=2), 2)
# assert simulate(wider).makespan == 16 * 3 + (2 - 1) * 6 == 54
# ```
#
# 2. On ranks 0, 3, 4 and 7. Each of the four replicas sends three quarters of its
#    gradient twice: 2 × 3/4 × 3 = 4.5 units.
#
# ```python
# four = schedules.data_parallel(schedules.chimera(4, 8), 2)
# found = simulate(four, Costs(gradient_size=3, bandwidth=1)).sums[0]
# assert four.ranks_of(0) == (0, 3, 4, 7) and found.end - found.begin == 2 * 3 / 4 * 3 == 4.5
# ```
#
# 3. A little more than a fifth of the shorter action. The step takes 66 units less 14
#    times the overlap, which is 63 for 3/14.
#
# ```python
# assert round(simulate(overlapped, Costs(overlap=3 / 14)).makespan, 9) == 63
# ```
#
# 4. In the cool-down, on ranks 1 to 3. There a rank waits for gradients of later
#    stages, and a postponed W fills the idle time. Before that there is always a
#    forward or a whole backward to run. Rank 0 postpones none.
#
# ```python
# for rank, row in enumerate(half.actions):
#     moved = [n for n, a in enumerate(row) if a.kind == "W" and row[n - 1] != a._replace(kind="I")]
#     assert all(n > 0.8 * len(row) for n in moved) and bool(moved) == (rank > 0)
# ```
#
# </details>
#
# Next, `23_what_one_rank_does.py`: the program of one rank, from top to bottom.
