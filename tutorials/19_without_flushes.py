# %% [markdown]
# # 19 · Without flushes
#
# In this lesson stages update their weights without waiting for the end of a step. You
# read from a schedule which version of the weights each microbatch uses, and compare
# four asynchronous schedules: PipeDream, vertical sync, 2BW and PACI.
#
# Every step so far ended with a *flush*: the pipeline drains, all ranks update their
# weights, and the next batch fills it again. Without flushes a full pipeline is never
# idle. But a microbatch may then use weights that are not the newest, and the
# computation changes.

# %%
from math import ceil, pi, sin

import numpy as np

from minipipe import Costs, Schedule, Tensor, render, schedules, simulate, verify
from minipipe.errors import ScheduleError
from minipipe.schedules import Action

# %% [markdown]
# ## An update is an action
#
# `0U3` updates the weights of stage 0. It applies the gradients of all microbatches up
# to 3 that no earlier U has applied. So one table can contain several updates, and a
# flush is one way to place them. The picture shows two steps of 1F1B with four
# microbatches each. (In the pictures an update takes one unit, so that you can see it;
# in the printed times it takes none. A notebook also draws the versions of the weights
# that each rank holds.)

# %%
RANKS, BATCH = 4, 4
SEEN = Costs(update=1)


def with_flushes(num_steps):
    """Return steps of 1F1B as one table, with an update of each stage after each step."""
    rows = []
    for rank, row in enumerate(schedules.one_f_one_b(RANKS, BATCH).actions):
        rows.append([])
        for step in range(num_steps):
            rows[-1] += [
                action._replace(microbatch=action.microbatch + BATCH * step)
                for action in row
            ]
            rows[-1] += [Action.parse(f"{rank}U{BATCH * step + BATCH - 1}")]
    return Schedule("with flushes", tuple(range(RANKS)), BATCH * num_steps, rows)


render.show(simulate(with_flushes(2), SEEN))
flushed = with_flushes(5)
verify(flushed)
timeline = simulate(flushed)
print(
    f"{timeline.makespan:g} units for 5 updates, bubble {timeline.bubble_fraction:.0%}"
)
assert timeline.makespan == 5 * 21 == 105 and round(timeline.bubble_fraction, 2) == 0.43
assert (
    timeline.makespan
    == simulate(schedules.one_f_one_b(RANKS, BATCH), num_steps=5).makespan
)
assert simulate(with_flushes(2), SEEN).makespan == 2 * (21 + 1)

# %% [markdown]
# The ranks are idle for 43 % of the time. A larger batch would help: all 20
# microbatches in one step take 69 units, but that is one update instead of five.
# PipeDream (Narayanan et al. 2019) removes the flush instead. It continues the order of
# 1F1B over all microbatches, with an update right after each backward:

# %%
render.show(simulate(schedules.pipedream(RANKS, 8), SEEN))
pipedream = schedules.pipedream(RANKS, 20)
verify(pipedream)
units = {
    microbatches: simulate(schedules.pipedream(RANKS, microbatches)).makespan
    for microbatches in (20, 40)
}
print(
    f"{units[20]:g} units for 20 updates, {units[40]:g} for 40: "
    f"{(units[40] - units[20]) / 20:g} for each further one"
)
assert (
    units == {20: 69, 40: 129}
    and simulate(schedules.one_f_one_b(RANKS, 20)).makespan == 69
)
assert simulate(schedules.pipedream(RANKS, 8), SEEN).makespan == 41

# %% [markdown]
# Once the pipeline is full, no rank is idle. Each further microbatch takes 3 units, its
# F and its B.
#
# ## Versions
#
# Count the U of a stage from the left, and you get the *version* of its weights. The
# table does not store it, so nothing can contradict it. The cell prints the row of rank
# 0 up to its fourth update, and the version below each action.

# %%
row = pipedream.actions[0]
print(" ".join(f"{action!s:3}" for action in row[:14]))
versions = [
    sum(str(action.kind) == "U" for action in row[:position]) for position in range(14)
]
print(" ".join(f"{version:<3}" for version in versions))
forwards = [
    version for action, version in zip(row, versions) if str(action.kind) == "F"
]
assert (
    forwards
    == [0, 0, 0, 0, 1, 2, 3]
    == list(schedules.weight_versions(pipedream)[0][:7])
)

# %% [markdown]
# Microbatch 4 runs its forward with version 1. That version includes the gradient of
# microbatch 0, and not those from 1, 2 and 3. When `0U4` applies the gradient of
# microbatch 4, the weights have version 4. The gradient is three updates too old. This
# number is its *staleness*: the number of updates between the forward and the update
# that applies the gradient. The cell prints it for each stage and microbatch.

# %%
for stage, stale in enumerate(schedules.staleness(pipedream)):
    print(f"stage {stage}: {' '.join(map(str, stale))}")
    assert set(stale[RANKS:]) == {RANKS - 1 - stage}
assert schedules.staleness(flushed) == ((0,) * 20,) * RANKS

# %% [markdown]
# With p stages, stage s has a staleness of p - 1 - s, as many as it has forwards in its
# warm-up. With flushes it is 0, because all gradients are applied to the weights from
# which they were computed.
#
# ## Does it matter?
#
# The smallest training has one weight w and the loss w²/2, whose gradient is w. With a
# learning rate r, an update is w - r w. In an asynchronous pipeline it is w - r v, with
# v the version that the forward used. The cell tries eight learning rates on each
# stage, and prints those with which the weight shrinks.


# %%
def descend(schedule, stage, rate):
    """Return the last weight of a stage that starts at 1 and updates after each microbatch."""
    weights = [1.0]
    for version in schedules.weight_versions(schedule)[stage]:
        weights.append(weights[-1] - rate * weights[version])
    return weights[-1]


longer = schedules.pipedream(RANKS, 400)
RATES = (0.1, 0.4, 0.5, 0.7, 0.9, 1.1, 1.9, 2.1)
works = {
    stage: [rate for rate in RATES if abs(descend(longer, stage, rate)) < 1]
    for stage in range(RANKS)
}
for stage, rates in works.items():
    limit = 2 * sin(pi / (2 * (2 * (RANKS - 1 - stage) + 1)))
    print(f"stage {stage} learns with {rates}; the limit is {limit:.3f}")
    assert rates == [rate for rate in RATES if rate < limit]
assert [len(rates) for rates in works.values()] == [2, 3, 5, 7]

# %% [markdown]
# All stages learn with a small rate. The first stage, with gradients that are three
# updates old, diverges at rates at which the last one still learns. (For staleness d
# the limit is 2 sin(π / (2 (2 d + 1))).) Real losses are not parabolas, and the effect
# of staleness on them has to be tried. PipeMare (Yang et al. 2021) lowers the learning
# rate of early stages for this reason.
#
# ## Which weights does the backward use?
#
# Three updates lie between the forward of microbatch 4 on stage 0 and its backward. The
# backward multiplies by weights: by which version? Let a stage have two layers, `y = (x
# @ first) @ second`. The gradient of `first` is a product with `second`. The cell
# updates `second` in between, once as a new array and once in place.


# %%
def gradient_of_first(is_in_place):
    """Return the gradient of ``first`` if ``second`` is updated before the backward."""
    x = Tensor(np.array([[1.0, 2.0]]))
    first = Tensor(np.array([[1.0], [1.0]]), requires_grad=True)
    second = Tensor(np.array([[3.0]]), requires_grad=True)
    y = (x @ first) @ second
    if is_in_place:
        second.data -= 1  # now the forward's weights are gone
    else:
        second.data = second.data - 1  # the tape still has those of the forward
    y.backward(np.ones((1, 1)))
    return first.grad.ravel().tolist()


stashed, overwritten = (
    gradient_of_first(is_in_place=False),
    gradient_of_first(is_in_place=True),
)
print(f"with the weights of the forward {stashed}, with newer ones {overwritten}")
assert stashed == [3 * 1, 3 * 2] and overwritten == [2 * 1, 2 * 2]

# %% [markdown]
# The first result is a gradient at the old weights. The second is the gradient of no
# function: it mixes values from old weights with new weights. PipeDream therefore keeps
# the weights of the forward until the backward is done, which it calls *weight
# stashing*. That takes memory: one copy for each version that is still needed. Count
# the copies:


# %%
def most_versions(schedule, rank):
    """Return the largest number of versions of its weights that a rank with one stage needs at once."""
    newest, needed, most = 0, {}, 1
    for _, kind, microbatch in schedule.actions[rank]:
        if kind == "F":
            needed[microbatch] = newest
        elif kind == "B":
            del needed[microbatch]
        newest += kind == "U"
        most = max(most, len({newest, *needed.values()}))
    return most


def complaint_about(schedule, **limits):
    """Return the error that the verifier raises."""
    try:
        verify(schedule, **limits)
    except ScheduleError as error:
        return error
    raise AssertionError("the schedule is legal")


held = [most_versions(pipedream, rank) for rank in range(RANKS)]
print(
    f"versions by rank: {held}; with flushes: "
    f"{[most_versions(flushed, rank) for rank in range(RANKS)]}"
)
error = complaint_about(pipedream, max_versions=3)
print(error.problems[0].message)
verify(pipedream, max_versions=4)
assert (
    held == [RANKS - stage for stage in range(RANKS)]
    and error.code == "staleness"
    and error.problems[0].rank == 0
)
assert [most_versions(flushed, rank) for rank in range(RANKS)] == [1] * RANKS

# %% [markdown]
# Stage s has p - s versions. On rank 0 of 16 that is 16 times the weights, and a
# pipeline is meant for models that do not fit.
#
# ## Vertical sync: one version for all stages
#
# Stages also use different versions for the same microbatch: microbatch 4 uses version
# 1 on stage 0 and version 4 on stage 3. *Vertical sync* delays each U until all stages
# have the same version:

# %%
synchronous = schedules.vertical_sync(RANKS, 20)
verify(synchronous)
for name, schedule in (("PipeDream", pipedream), ("vertical sync", synchronous)):
    of_stage = [versions[10] for versions in schedules.weight_versions(schedule)]
    print(
        f"{name}: microbatch 10 meets versions {of_stage}, staleness "
        f"{[s[10] for s in schedules.staleness(schedule)]}"
    )
    assert of_stage == ([7, 8, 9, 10] if schedule is pipedream else [7, 7, 7, 7])
assert {
    stale for stage in schedules.staleness(synchronous) for stale in stage[RANKS:]
} == {RANKS - 1}
assert simulate(synchronous).makespan == simulate(pipedream).makespan == 69

copies = [
    simulate(schedule, Costs(activation=0, weights=1)).peak_memory
    for schedule in (pipedream, synchronous)
]
print(
    f"copies of weights and gradients beyond the first, by rank: {copies[0]} and "
    f"{copies[1]}"
)
assert copies == [(3, 2, 1, 0), (3, 3, 3, 3)]

# %% [markdown]
# Now each gradient belongs to one network, p - 1 updates old on every stage, in the
# same time. But the last stage is now as stale as the first. Memory is not smaller:
# instead of versions of the weights, a stage holds the accumulated gradients of each
# update that waits.
#
# ## 2BW: two versions
#
# PipeDream-2BW (Narayanan et al. 2021, "double-buffered weight updates") updates once
# for m microbatches, with m at least p. The update of a batch waits until the batch
# after the next one begins.

# %%
render.show(
    simulate(schedules.two_buffered(RANKS, 12, microbatches_per_update=4), SEEN)
)
buffered = schedules.two_buffered(RANKS, 20, microbatches_per_update=4)
verify(buffered, max_versions=2, max_staleness=1)
for stage, versions in enumerate(schedules.weight_versions(buffered)):
    print(f"stage {stage}: {' '.join(map(str, versions))}")
    assert versions == tuple(max(k // 4 - 1, 0) for k in range(20))
assert {stale for stage in schedules.staleness(buffered) for stale in stage[4:]} == {1}
assert simulate(buffered).makespan == 69 < simulate(flushed).makespan

# %% [markdown]
# Every stage has the same version. The staleness is 1 for all microbatches after the
# first batch, and no rank holds more than two versions. The time is 69 units, as
# without flushes; five flushes took 105. The next cell compares 2BW with PipeDream for
# more ranks.

# %%
bought = {}
for ranks in (4, 8, 16):
    both = (
        schedules.pipedream(ranks, 4 * ranks),
        schedules.two_buffered(ranks, 4 * ranks),
    )
    bought[ranks] = [
        (most_versions(each, 0), max(schedules.staleness(each)[0])) for each in both
    ]
    pipe, twice = ("{} versions, staleness {}".format(*each) for each in bought[ranks])
    print(f"{ranks:2} ranks, stage 0: PipeDream {pipe}; 2BW {twice}")
    assert bought[ranks] == [(ranks, ranks - 1), (2, 1)]

# %% [markdown]
# With 2BW both numbers are constant.
#
# ## PACI: one version
#
# PACI (Elam et al. 2026) keeps no copies. It updates in place, so a backward may use
# newer weights than its forward, as in the second gradient above. The number of updates
# in between is called *drift*. PACI limits it by updating only after every a
# microbatches:

# %%
drifts = {}
for ranks in (4, 8):
    for a in range(1, 9):
        drift = schedules.drift(schedules.paci(ranks, 60, microbatches_per_update=a))
        drifts[ranks, a] = max(map(max, drift))
    print(
        f"{ranks} ranks, a from 1 to 8: drift {[drifts[ranks, a] for a in range(1, 9)]}"
    )
assert all(drift == ceil((ranks - 1) / a) for (ranks, a), drift in drifts.items())

# %% [markdown]
# With N ranks the drift is at most ceil((N - 1) / a) updates, as the assert checks.
# With one update for N - 1 microbatches or more it is 1: a microbatch that is in flight
# during an update has a backward with weights that are one update newer.
#
# ## Comparison
#
# The table shows 20 microbatches on four ranks. A schedule needs *either* the versions
# *or*, without copies, the drift.

# %%
paci = schedules.paci(RANKS, 20, microbatches_per_update=4)
table = {}
print("                 units  updates  staleness  versions, or drift")
for schedule in (flushed, pipedream, synchronous, buffered, paci):
    updates = sum(action.kind == "U" for action in schedule.actions[0])
    stale = max(map(max, schedules.staleness(schedule)))
    drift = max(map(max, schedules.drift(schedule)))
    versions = max(most_versions(schedule, rank) for rank in range(RANKS))
    table[schedule.name] = (
        simulate(schedule).makespan,
        updates,
        stale,
        versions,
        drift,
    )
    units = table[schedule.name][0]
    print(
        f"{schedule.name:15} {units:6g} {updates:8} {stale:10} {versions:9} {drift:9}"
    )
assert table == {
    "with flushes": (105, 5, 0, 1, 0),
    "pipedream": (69, 20, 3, 4, 3),
    "vertical-sync": (69, 20, 3, 4, 3),
    "2bw": (69, 5, 1, 2, 1),
    "paci": (69, 5, 1, 2, 1),
}

# %% [markdown]
# Without flushes, 20 microbatches take 69 units, as long as one step with all of them.
# The price is stale gradients, and copies of the weights or a drift. The gain over one
# large step is more updates. Whether that is worth it depends on how *your* training
# reacts to a large batch. (Delayed Nesterov is not a schedule: it is PipeDream with an
# optimiser that looks ahead, `nesterov=True`.)
#
# ## Mistakes that the verifier finds
#
# An update before a gradient that it applies, an update that leaves a gradient out, and
# a stage without an update would all train, and learn something else than intended.

# %%
MISTAKES = {
    "0F0 0F1 0B0 0U1 0B1": "order",
    "0F0 0F1 0B0 0U0 0B1": "missing",
    "0F0 0B0 0U0 \n 1F0 1B0": "missing",
}
problems = [complaint_about(Schedule.from_text(text)).problems[0] for text in MISTAKES]
for problem in problems:
    print(f"{problem.code}: {problem.message}")
assert [problem.code for problem in problems] == list(MISTAKES.values())

# %% [markdown]
# Two things are impossible without a flush. With one, all gradients are complete before
# any weight changes. They can be checked for values that are not finite, and clipped by
# their total norm. Here the last stage has updated before the first has its gradient.
# And weights shared by two stages would have two versions. `Pipeline` refuses both for
# asynchronous schedules.
#
# Everything else runs, with `pipeline.run(batches, optimiser)`. [An
# experiment](asynchronous/README.md) compares what the schedules learn, and how fast.
# From the command line:
#
# ```sh
# minipipe show pipedream 2bw --costs update=1 -o updates.svg
# minipipe check pipedream --max-versions 3
# minipipe step paci --per-update 4
# ```
#
# ## In PyTorch and in Megatron
#
# The schedules of `torch.distributed.pipelining` and of Megatron-LM all end in a flush,
# and the optimiser steps after it. No option corresponds to this lesson. There, use
# more microbatches, interleaving (lesson 08) or a split backward (lesson 09) for a
# smaller bubble.
#
# ## What you have learnt
#
# - Updates are actions, and versions, staleness and drift can be read from the table.
# - PipeDream is never idle once it is full, and needs up to p versions of the weights.
#   2BW needs two, PACI one with a drift.
# - Staleness lowers the learning rate with which training converges.

# %% [markdown]
# ## Exercise
#
# 1. Which learning rates can stage 0 of PipeDream use on 8 ranks? And with 2BW, if each
#    update takes the mean gradient of 8 microbatches, all with one version?
# 2. In row 0 of `pipedream`, move `0U0` behind `0F4`. What happens to the staleness,
#    and to the number of versions? Guess first.
# 3. Give 2BW batches of 8 microbatches instead of 4, and 40 microbatches in all. What
#    changes: the time, the staleness, the number of versions, the number of updates?
# 4. On 16 ranks, what is the smallest batch of an update for which PACI has a drift of
#    at most 2?
# 5. The coursework task for this lesson is `06_warmup`: the rows of 1F1B. Where in your
#    rows is the staleness of PipeDream? (`minipipe coursework DIR` creates your copy.)
#
# <details>
# <summary>Answers</summary>
#
# 1. The staleness is 7, so rates up to 2 sin(π/30) = 0.209. With 2BW the staleness is 1
#    on any number of ranks, and the limit is 1.
#
# ```python
# eight = schedules.pipedream(8, 800)
# assert round(2 * sin(pi / 30), 3) == 0.209
# assert abs(descend(eight, 0, 0.2)) < 1 < abs(descend(eight, 0, 0.22))
# last = {}
# for rate in (0.95, 1.05):
#     weights = [1.0]
#     for version in schedules.weight_versions(schedules.two_buffered(8, 3200))[0][::8]:
#         weights.append(weights[-1] - rate * weights[version])
#     last[rate] = abs(weights[-1])
# assert last[0.95] < 1 < last[1.05]
# ```
#
# 2. Microbatch 4 now runs with version 0, and its gradient is applied to version 4: a
#    staleness of 4, for this one alone. At most four versions are still held: 0, 2, 3
#    and 4, while it is in flight.
#
# ```python
# row = list(pipedream.actions[0])
# update = row.pop(5)
# row.insert(6, update)
# moved = Schedule("moved", pipedream.placement, 20, [row, *pipedream.actions[1:]])
# verify(moved)
# assert str(update) == "0U0" and str(row[5]) == "0F4"
# assert schedules.staleness(moved)[0][:8] == (0, 1, 2, 3, 4, 3, 3, 3)
# assert most_versions(moved, 0) == 4
# ```
#
# 3. Only the number of updates changes: 5 instead of 10.
#
# ```python
# for batch, updates in ((4, 10), (8, 5)):
#     larger = schedules.two_buffered(4, 40, microbatches_per_update=batch)
#     assert simulate(larger).makespan == 129 and max(map(max, schedules.staleness(larger))) == 1
#     assert most_versions(larger, 0) == 2
#     assert sum(action.kind == "U" for action in larger.actions[0]) == updates
# ```
#
# 4. 8 microbatches: 15/8 is at most 2, 15/7 is more.
#
# ```python
# drifts = [max(map(max, schedules.drift(schedules.paci(16, 100, a)))) for a in (7, 8)]
# assert drifts == [ceil(15 / 7), ceil(15 / 8)] == [3, 2]
# ```
#
# 5. It is the length of the warm-up: the forwards of a row before its first pair of a
#    forward and a backward. Each microbatch that is in flight between F and B of
#    another one brings an update in between.
#
# ```python
# for rank, row in enumerate(pipedream.actions):
#     kinds = [str(action.kind) for action in row]
#     assert kinds.index("B") - 1 == RANKS - 1 - rank == max(schedules.staleness(pipedream)[rank])
# ```
#
# </details>
#
# Next, `20_a_trillion_parameters.py`: 3,072 GPUs, and how they spend their time.
