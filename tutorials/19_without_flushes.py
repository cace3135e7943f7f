# %% [markdown]
# # 19 · Without flushes
#
# Every step so far ended with a *flush*: the pipeline drains, all ranks update their weights, and the next batch fills
# it again. Asynchronous schedules leave the flush out. Each stage updates its weights while the others run on, so
# nobody waits. But then a microbatch meets weights that are not the newest, and what is computed changes. In this
# lesson you read off a table which weights each microbatch meets, and what four schedules do about it: PipeDream,
# vertical sync, 2BW and PACI.

# %%
from math import ceil, pi, sin

import numpy as np

from minipipe import Costs, Schedule, Tensor, render, schedules, simulate, verify
from minipipe.errors import ScheduleError
from minipipe.schedules import Action

# %% [markdown]
# ## An update is an action
#
# `0U3` updates the weights of stage 0, with the gradients of all microbatches up to 3 that no earlier U has taken. So a
# table can have several updates, and a flush is nothing but a place for them. These are two steps of 1F1B with four
# microbatches each. (In the pictures an update takes one unit, so that you can see it; in the figures it takes none. A
# notebook also draws the versions of the weights that each rank holds.)

# %%
RANKS, BATCH = 4, 4
SEEN = Costs(update=1)


def with_flushes(num_steps):
    """Return steps of 1F1B as one table, with an update of each stage behind each step."""
    rows = []
    for rank, row in enumerate(schedules.one_f_one_b(RANKS, BATCH).actions):
        rows.append([])
        for step in range(num_steps):
            rows[-1] += [action._replace(microbatch=action.microbatch + BATCH * step) for action in row]
            rows[-1] += [Action.parse(f"{rank}U{BATCH * step + BATCH - 1}")]
    return Schedule("with flushes", tuple(range(RANKS)), BATCH * num_steps, rows)


render.show(simulate(with_flushes(2), SEEN))
flushed = with_flushes(5)
verify(flushed)
timeline = simulate(flushed)
print(f"{timeline.makespan:g} units for 5 updates, bubble {timeline.bubble_fraction:.0%}")
assert timeline.makespan == 5 * 21 == 105 and round(timeline.bubble_fraction, 2) == 0.43
assert timeline.makespan == simulate(schedules.one_f_one_b(RANKS, BATCH), num_steps=5).makespan
assert simulate(with_flushes(2), SEEN).makespan == 2 * (21 + 1)

# %% [markdown]
# That is a lot of idle time. One way out is a larger batch: all 20 microbatches in one step take 69 units. But then
# there is one update instead of five. PipeDream (Narayanan et al. 2019) takes the other way: the order of 1F1B for all
# microbatches, and an update right behind each backward.

# %%
render.show(simulate(schedules.pipedream(RANKS, 8), SEEN))
pipedream = schedules.pipedream(RANKS, 20)
verify(pipedream)
units = {microbatches: simulate(schedules.pipedream(RANKS, microbatches)).makespan for microbatches in (20, 40)}
print(
    f"{units[20]:g} units for 20 updates, {units[40]:g} for 40: {(units[40] - units[20]) / 20:g} for each further one"
)
assert units == {20: 69, 40: 129} and simulate(schedules.one_f_one_b(RANKS, 20)).makespan == 69
assert simulate(schedules.pipedream(RANKS, 8), SEEN).makespan == 41

# %% [markdown]
# Once it is full, no rank is ever idle: each further microbatch takes 3 units, its F and its B.
#
# ## Versions, read off the row
#
# Count the U of a stage from the left, and you have the *version* of its weights. It is written nowhere, so nothing can
# contradict it. Here is the row of rank 0 up to its fourth update.

# %%
row = pipedream.actions[0]
print(" ".join(f"{action!s:3}" for action in row[:14]))
versions = [sum(str(action.kind) == "U" for action in row[:position]) for position in range(14)]
print(" ".join(f"{version:<3}" for version in versions))
forwards = [version for action, version in zip(row, versions) if str(action.kind) == "F"]
assert forwards == [0, 0, 0, 0, 1, 2, 3] == list(schedules.weight_versions(pipedream)[0][:7])

# %% [markdown]
# Microbatch 4 runs forward with version 1: the gradient of microbatch 0 is in it, those of 1, 2 and 3 are not yet. When
# its own gradient is applied, by `0U4`, the weights will have version 4. So the gradient is three updates too old. That
# number is its *staleness*: the updates between its forward and the update that applies it. On each stage:

# %%
for stage, stale in enumerate(schedules.staleness(pipedream)):
    print(f"stage {stage}: {' '.join(map(str, stale))}")
    assert set(stale[RANKS:]) == {RANKS - 1 - stage}
assert schedules.staleness(flushed) == ((0,) * 20,) * RANKS

# %% [markdown]
# Stage s of p has p - 1 - s, as many as there are forwards in its warm-up. And with flushes it is 0: all gradients are
# those of the weights to which they are applied.
#
# ## Does it matter?
#
# The smallest training has one weight w, and the loss w²/2, whose gradient is w. With the learning rate r, an update is
# w - r w. On a stage of the pipeline it is w - r v, where v is the version that the table says.


# %%
def descend(schedule, stage, rate):
    """Return the last weight of a stage that starts with 1, and updates after each microbatch."""
    weights = [1.0]
    for version in schedules.weight_versions(schedule)[stage]:
        weights.append(weights[-1] - rate * weights[version])
    return weights[-1]


longer = schedules.pipedream(RANKS, 400)
RATES = (0.1, 0.4, 0.5, 0.7, 0.9, 1.1, 1.9, 2.1)
works = {stage: [rate for rate in RATES if abs(descend(longer, stage, rate)) < 1] for stage in range(RANKS)}
for stage, rates in works.items():
    limit = 2 * sin(pi / (2 * (2 * (RANKS - 1 - stage) + 1)))
    print(f"stage {stage} learns with {rates}; the limit is {limit:.3f}")
    assert rates == [rate for rate in RATES if rate < limit]
assert [len(rates) for rates in works.values()] == [2, 3, 5, 7]

# %% [markdown]
# All of them learn with a small rate. But the first stage, whose gradients are three updates old, diverges at rates
# with which the last one is at ease. (For staleness d the limit is 2 sin(π / (2 (2 d + 1))).) Real losses are no
# parabolas, and whether staleness hurts there has to be tried. PipeMare (Yang et al. 2021) lowers the rate of the early
# stages for this reason.
#
# ## Which weights does the backward use?
#
# There is a second question. Between the forward of microbatch 4 on stage 0 and its backward there are three updates.
# A backward multiplies with weights, so with which? Let a stage have two layers, `y = (x @ first) @ second`. The
# gradient of `first` is a product with `second`. Now update `second` in between, once as a new array, and once in
# place.


# %%
def gradient_of_first(is_in_place):
    """Return the gradient of the first layer's weights, where the second's are updated before the backward."""
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


stashed, overwritten = gradient_of_first(is_in_place=False), gradient_of_first(is_in_place=True)
print(f"with the weights of the forward {stashed}, with newer ones {overwritten}")
assert stashed == [3 * 1, 3 * 2] and overwritten == [2 * 1, 2 * 2]

# %% [markdown]
# The first is a gradient, at the old weights. The second is the gradient of no function: it mixes values of the old
# weights with new weights. PipeDream keeps the weights of the forward until the backward is
# done, which it calls *weight stashing*. That takes memory, one copy for each version that is still needed. Count them
# as you would by hand.


# %%
def most_versions(schedule, rank):
    """Return how many versions of its weights a rank with one stage needs at once."""
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
    raise AssertionError("there is nothing wrong with it")


held = [most_versions(pipedream, rank) for rank in range(RANKS)]
print(f"versions by rank: {held}; with flushes: {[most_versions(flushed, rank) for rank in range(RANKS)]}")
error = complaint_about(pipedream, max_versions=3)
print(error.problems[0].message)
verify(pipedream, max_versions=4)
assert held == [RANKS - stage for stage in range(RANKS)] and error.code == "versions" and error.problems[0].rank == 0
assert [most_versions(flushed, rank) for rank in range(RANKS)] == [1] * RANKS

# %% [markdown]
# Stage s has p - s versions. On rank 0 of 16 that is 16 times the weights, and a pipeline was meant for models that do
# not fit.
#
# ## Vertical sync: the same version on all stages
#
# Stages also disagree with each other. Microbatch 4 meets version 1 on stage 0 and version 4 on stage 3. *Vertical
# sync* delays each U until all stages have the same:

# %%
synchronous = schedules.vertical_sync(RANKS, 20)
verify(synchronous)
for name, schedule in (("PipeDream", pipedream), ("vertical sync", synchronous)):
    of_stage = [versions[10] for versions in schedules.weight_versions(schedule)]
    print(
        f"{name}: microbatch 10 meets versions {of_stage}, staleness {[s[10] for s in schedules.staleness(schedule)]}"
    )
    assert of_stage == ([7, 8, 9, 10] if schedule is pipedream else [7, 7, 7, 7])
assert {stale for stage in schedules.staleness(synchronous) for stale in stage[RANKS:]} == {RANKS - 1}
assert simulate(synchronous).makespan == simulate(pipedream).makespan == 69

copies = [simulate(schedule, Costs(activation=0, weights=1)).peak_memory for schedule in (pipedream, synchronous)]
print(f"copies of weights and gradients beyond the first, by rank: {copies[0]} and {copies[1]}")
assert copies == [(3, 2, 1, 0), (3, 3, 3, 3)]

# %% [markdown]
# Now it is the gradient of one network, p - 1 updates old on every stage. It takes as long. But the last stage is now
# as stale as the first. And it holds no less: no versions of the weights, but a sum of gradients for each update that
# waits.
#
# ## 2BW: two versions are enough
#
# PipeDream-2BW (Narayanan et al. 2021, "double-buffered weight updates") updates less often: once for m microbatches,
# with m at least p. And it delays the update of a batch until right before the batch after the next one begins.

# %%
render.show(simulate(schedules.two_buffered(RANKS, 12, microbatches_per_update=4), SEEN))
buffered = schedules.two_buffered(RANKS, 20, microbatches_per_update=4)
verify(buffered, max_versions=2, max_staleness=1)
for stage, versions in enumerate(schedules.weight_versions(buffered)):
    print(f"stage {stage}: {' '.join(map(str, versions))}")
    assert versions == tuple(max(k // 4 - 1, 0) for k in range(20))
assert {stale for stage in schedules.staleness(buffered) for stale in stage[4:]} == {1}
assert simulate(buffered).makespan == 69 < simulate(flushed).makespan

# %% [markdown]
# Every stage has the same version, the staleness is 1 for all microbatches but those of the first batch, and two
# versions are held, on any number of ranks. It takes the 69 units of a pipeline without flushes, where five flushes
# took 105. This is what 2BW buys:

# %%
bought = {}
for ranks in (4, 8, 16):
    both = (schedules.pipedream(ranks, 4 * ranks), schedules.two_buffered(ranks, 4 * ranks))
    bought[ranks] = [(most_versions(found, 0), max(schedules.staleness(found)[0])) for found in both]
    words = " or ".join(f"{versions} versions and staleness {stale}" for versions, stale in bought[ranks])
    print(f"{ranks} ranks, stage 0: {words}")
    assert bought[ranks] == [(ranks, ranks - 1), (2, 1)]

# %% [markdown]
# ## PACI: one version
#
# Why not keep no copy at all? PACI (Elam et al. 2026) updates in place, so a backward may run with newer weights than
# its forward, as in the second of our two gradients. It keeps that *drift* small, by updating after every a
# microbatches only. With N ranks it is at most ceil((N - 1) / a) updates.

# %%
drifts = {}
for ranks in (4, 8):
    for a in range(1, 9):
        drift = schedules.drift(schedules.paci(ranks, 60, microbatches_per_update=a))
        drifts[ranks, a] = max(map(max, drift))
    print(f"{ranks} ranks, a from 1 to 8: drift {[drifts[ranks, a] for a in range(1, 9)]}")
assert all(drift == ceil((ranks - 1) / a) for (ranks, a), drift in drifts.items())

# %% [markdown]
# With one update for N - 1 microbatches or more it is 1: a microbatch that is in flight during an update has a backward
# with weights that are one update newer than those of its forward.
#
# ## All of them
#
# Twenty microbatches on four ranks. What a schedule needs is *either* the versions *or*, without copies, the drift.

# %%
paci = schedules.paci(RANKS, 20, microbatches_per_update=4)
table = {}
print("                 units  updates  staleness  versions, or drift")
for schedule in (flushed, pipedream, synchronous, buffered, paci):
    updates = sum(action.kind == "U" for action in schedule.actions[0])
    stale = max(map(max, schedules.staleness(schedule)))
    drift = max(map(max, schedules.drift(schedule)))
    versions = max(most_versions(schedule, rank) for rank in range(RANKS))
    table[schedule.name] = (simulate(schedule).makespan, updates, stale, versions, drift)
    units = table[schedule.name][0]
    print(f"{schedule.name:15} {units:6g} {updates:8} {stale:10} {versions:9} {drift:9}")
assert table == {
    "with flushes": (105, 5, 0, 1, 0),
    "pipedream": (69, 20, 3, 4, 3),
    "vertical-sync": (69, 20, 3, 4, 3),
    "2bw": (69, 5, 1, 2, 1),
    "paci": (69, 5, 1, 2, 1),
}

# %% [markdown]
# Without flushes, 20 microbatches take 69 units, as long as one step with all of them. What that costs is in the other
# columns: stale gradients, and copies of the weights or a drift. What it buys, compared with that one step, is more
# updates. So whether it is worth it depends on what one large batch would do to *your* training. (Delayed Nesterov is
# no schedule: it is PipeDream with an optimiser that looks ahead, `nesterov=True`.)
#
# ## Mistakes that a table shows
#
# An update that comes before a gradient which it applies; an update after which one is left over; a stage that has
# none. All three would train, and learn something else than what was meant.

# %%
MISTAKES = {
    "early-update": "0F0 0F1 0B0 0U1 0B1",
    "skipped": "0F0 0F1 0B0 0U0 0B1",
    "missing": "0F0 0B0 0U0 \n 1F0 1B0",
}
problems = {code: complaint_about(Schedule.from_text(text)).problems[0] for code, text in MISTAKES.items()}
for code, problem in problems.items():
    print(f"{code}: {problem.message}")
assert all(problem.code == code for code, problem in problems.items())

# %% [markdown]
# Two things get lost that no verifier brings back. With a flush, one can look at all gradients before any weight
# changes: for one that is not finite, or to clip the norm of all of them. Here the last stage has updated before the
# first has its gradient. And weights that two stages share would have two versions. `Pipeline` refuses both there. All
# else runs, with `pipeline.run(batches, optimiser)`: [an experiment](asynchronous/README.md) compares what they learn,
# and when. And it can be drawn and checked:
#
# ```sh
# minipipe show pipedream 2bw --costs update=1 -o updates.svg
# minipipe check pipedream --max-versions 3
# minipipe step paci --per-update 4
# ```
#
# ## Exercise
#
# 1. Which learning rates does stage 0 of PipeDream bear on 8 ranks? And with 2BW, where each update takes the mean
#    gradient of 8 microbatches, all of one version?
# 2. In row 0 of `pipedream`, move `0U0` behind `0F4`. What happens to the staleness, and to the number of versions?
#    Guess first.
# 3. Give 2BW batches of 8 microbatches instead of 4, and 40 microbatches in all. What changes: the time, the
#    staleness, the number of versions, the number of updates?
# 4. On 16 ranks, what is the smallest batch of an update for which PACI has a drift of at most 2?
# 5. The coursework task for this lesson is `06_warmup`: the rows of 1F1B. Where in your rows is the staleness of
#    PipeDream? (`minipipe coursework DIR` creates your copy.)
#
# <details>
# <summary>Answers</summary>
#
# 1. Its staleness is 7, so up to 2 sin(π/30) = 0.209. With 2BW the staleness is 1 on any number of ranks, and the
#    limit is 1.
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
# 2. Microbatch 4 now runs with version 0, and its gradient is applied to version 4: a staleness of 4, for this one
#    alone. There are still four versions at most: 0, 2, 3 and 4, while it is in flight.
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
# 3. Nothing but the number of updates: 5 instead of 10.
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
# 5. It is the length of the warm-up: the forwards of a row before its first pair of a forward and a backward. What is
#    in flight between F and B of a microbatch is what is updated in between.
#
# ```python
# for rank, row in enumerate(pipedream.actions):
#     kinds = [str(action.kind) for action in row]
#     assert kinds.index("B") - 1 == RANKS - 1 - rank == max(schedules.staleness(pipedream)[rank])
# ```
#
# </details>
#
# Next, `20_a_trillion_parameters.py`: 3,072 GPUs, and where their time goes.
