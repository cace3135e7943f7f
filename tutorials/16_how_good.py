# %% [markdown]
# # 16 · How good can a schedule be?
#
# In this lesson you compute lower bounds: times that no schedule can beat. You close
# the gap between these bounds and known schedules with a search, and see which kind of
# answer counts as a proof.
#
# A schedule shows that a time is possible. It does not show that a shorter time is
# impossible. At the end you know the best time for every memory limit of one small
# pipeline, with a proof.

# %%
from itertools import product
from math import factorial

from minipipe import Costs, render, schedules, simulate, verify
from minipipe.errors import ScheduleError
from minipipe.schedules import Objective, find_schedule, lower_bound, lower_bounds

# %% [markdown]
# ## The question
#
# Take four ranks with one stage each, and eight microbatches. F, I and W take one unit
# each. (Lesson 09 split the backward into I, the gradient of the inputs, and W, the
# gradient of the weights.) The cell lists the named schedules with one stage on each
# rank.

# %%
RANKS, BATCHES = 4, 8
NAMES = ["sequential", "gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2"]
times, held = {}, {}
for name in NAMES:
    schedule = schedules.build(name, RANKS, BATCHES)
    times[name], held[name] = (
        simulate(schedule).makespan,
        max(schedules.peak_activations(schedule)),
    )
    print(f"{name:10} {times[name]:3g} units, holds {held[name]} microbatches")
assert list(times.values()) == [96, 33, 33, 33, 27, 27]
assert list(held.values()) == [1, 8, 4, 7, 4, 7]

# %% [markdown]
# The fastest take 27 units. Is 26 possible? And which time is possible with memory for
# only three microbatches, or two? Of these schedules only the sequential one fits then,
# and it takes 96 units.
#
# ## Head and work
#
# A bound needs no schedule. It needs something that every schedule must do. Rank r
# cannot start before microbatch 0 has passed through the r ranks before it: the *head*.
# Then it has to run an F, an I and a W for each of eight microbatches: the *work*. No
# order can make the step end before both are done.

# %%
head_and_work = [rank + BATCHES * 3 for rank in range(RANKS)]
print(f"by rank, no schedule ends before {head_and_work} units")
assert head_and_work == [24, 25, 26, 27]
assert max(head_and_work) == times["zb-h1"] == times["zb-h2"] == 27

# %% [markdown]
# Rank 3 needs 27 units, and ZB-H1 takes 27. So no schedule with one stage on each rank
# is faster, with any amount of memory. All proofs of this lesson have this form: a
# schedule on one side, a bound on the other, and if they are equal, both are optimal.
#
# Now take 1F1B, whose backward is whole. After rank 3 has ended its last B, the
# gradient still has to pass through the three ranks before it, in a B of two units on
# each: the *tail*.

# %%
head, work, tail = 3, BATCHES * 3, 3 * 2
print(f"with whole backwards: {head} + {work} + {tail} = {head + work + tail} units")
assert head + work + tail == times["1f1b"] == times["gpipe"] == 33

# %% [markdown]
# So 1F1B and GPipe are optimal as well, among schedules that do not split the backward.
# To get from 33 to 27 units, splitting was necessary; no other order would have done
# it.
#
# ## Round trips: a bound from memory
#
# Now let no rank hold more than L microbatches. Rank 0 holds a microbatch from its F
# until its W. In between the microbatch goes down through four ranks and back up
# through four, and then its W runs: 4 + 4 + 1 = 9 units. L microbatches can travel
# together. The next F on rank 0 has to wait for a W, and another round trip begins. The
# last round starts with as many F as are left over. The function below adds this up.


# %%
def by_hand(limit):
    """Return a lower bound for four ranks that hold at most ``limit`` of eight microbatches."""
    rounds, left_over = divmod(BATCHES - 1, limit)
    trip = RANKS + RANKS + 1
    return max(max(head_and_work), rounds * trip + left_over + trip)


bounds = {limit: by_hand(limit) for limit in range(1, 6)}
for limit, units in bounds.items():
    print(f"memory for {limit}: at least {units} units")
assert list(bounds.values()) == [72, 37, 28, 27, 27]

# %% [markdown]
# With memory for one microbatch nothing overlaps: 8 × 9 = 72. With memory for four or
# more, the limit costs nothing.
#
# `lower_bounds` knows several arguments of this kind, for any costs and any placement,
# and gives a reason for each. Its argument is a *workload*: stages, ranks, costs,
# microbatches and limits, without an order of actions.

# %%
workloads = {
    limit: Costs().workload(range(RANKS), BATCHES, memory_limit=limit)
    for limit in range(1, 8)
}
three = lower_bounds(workloads[3], Objective.MAKESPAN)
for bound in three:
    print(f"{bound.value:g} by {bound.name}")
print(f"Why {three[0].value:g}? {three[0].reason}")
assert [bound.value for bound in three] == sorted(
    (bound.value for bound in three), reverse=True
)
assert (three[0].value, three[0].name) == (30, "warm-up and drain")
assert "Rank 0 computes for 24 and must wait" in three[0].reason

# %% [markdown]
# Each of these bounds is valid, so the largest one counts: 30. By hand we had 28. The
# larger bound adds up waits that we counted separately.
#
# ## The gap
#
# A search approaches from the other side. `find_schedule` tries many orders, and
# returns its best schedule with the best bound, as a `Certificate`. It stops as soon as
# the two are equal. Its result depends on the number of schedules that it may try, and
# not on the speed of your computer.

# %%
found = {
    limit: find_schedule(workloads[limit], Objective.MAKESPAN) for limit in range(1, 6)
}
for limit, certificate in found.items():
    print(
        f"memory for {limit}: schedule {certificate.value:g}, bound "
        f"{certificate.bound:g} ({certificate.bound_by})"
    )
assert [certificate.value for certificate in found.values()] == [72, 41, 31, 27, 27]
assert [limit for limit in found if found[limit].bound_by == "gallery"] == [2, 3]

# %% [markdown]
# All five answers are final. But two of the bounds come from the *gallery*, a table of
# optima that an exact solver proved for pipelines as small as this one. For your
# pipeline there will be no entry. So leave the gallery out, and see how far the
# formulas go.

# %%
formulas = {limit: lower_bound(workloads[limit], Objective.MAKESPAN) for limit in found}
found = {
    limit: found[limit]._replace(bound=bound.value, bound_by=bound.name)
    for limit, bound in formulas.items()
}
for limit, certificate in found.items():
    result = (
        "proved"
        if certificate.gap == 0
        else f"at most {certificate.gap:.0%} above the best"
    )
    print(
        f"memory for {limit}: schedule {certificate.value:g}, bound "
        f"{certificate.bound:g}: {result}"
    )
assert [certificate.bound for certificate in found.values()] == [72, 39, 30, 27, 27]

# %% [markdown]
# For three of the five limits the answer is still final. For memory of two and three
# there is a *gap*. A gap has two possible causes: the search missed a better schedule,
# or no schedule reaches the bound. The numbers alone do not tell which. A gap is useful
# all the same. If a schedule is at most 5 % above the best, you can stop improving it.
#
# ## Check a certificate
#
# You need not trust the search, which is long and full of heuristics. Its answer can be
# checked without it: is the schedule legal, within the memory limit, and as fast as
# claimed? Is the bound correct? The next cell checks the five answers and two false
# ones.


# %%
def is_right(certificate):
    """Check a certificate without a search."""
    limit = int(certificate.workload.memory_limit[0])
    try:
        verify(certificate.schedule, memory_limit=limit)
    except ScheduleError:
        return False
    makespan = simulate(certificate.schedule).makespan
    bound = lower_bound(certificate.workload, Objective.MAKESPAN).value
    return (certificate.value, certificate.bound) == (makespan, bound)


honest = [is_right(certificate) for certificate in found.values()]
too_fast = found[4]._replace(value=26.0)
too_much_memory = found[3]._replace(schedule=found[4].schedule, value=27.0)
print(
    f"as returned: {honest}; false makespan: {is_right(too_fast)}; too much "
    f"memory: {is_right(too_much_memory)}"
)
assert all(honest) and not is_right(too_fast) and not is_right(too_much_memory)
assert sum(map(len, found[4].schedule.actions)) == 96

# %% [markdown]
# On the command line a certificate is a file that you can pass on:
#
# ```sh
# minipipe search --memory-limit 4 --objective makespan -o found.json
# minipipe check --certificate found.json
# ```
#
# The check goes through 96 actions once. How many schedules would a complete search
# have to compare? Each rank runs its eight F, its eight I and its eight W in order,
# with no I before its F and no W before its I. The number of such orders is a
# three-dimensional Catalan number.

# %%
orders = (
    2
    * factorial(3 * BATCHES)
    // (factorial(BATCHES) * factorial(BATCHES + 1) * factorial(BATCHES + 2))
)
print(f"{orders:,} orders on one rank, {float(orders**RANKS):.0e} on four")
assert orders == 23_371_634 and 2e29 < orders**RANKS < 4e29

# %% [markdown]
# Checking takes milliseconds. Comparing 3 × 10²⁹ schedules would take longer than the
# age of the universe. Many scheduling problems are like that: an answer is easy to
# check and hard to find. (Job-shop scheduling, which includes this problem, is
# *NP-hard*: no known method is fast for all cases.) That is why the search returns a
# certificate.
#
# ## Try them all
#
# For a pipeline as small as this one, the gap can be closed, because many schedules
# have the same beginning. With unit times all ranks advance in steps of one unit. And
# no rank gains by waiting if it could work: run its next ready action of any kind now,
# and everything that follows stays possible. (An F that is moved forward takes memory
# earlier. But memory was free, and no other F lies in between.) So after each unit,
# only the number of F, I and W that each rank has run matters. These counts are the
# *state*. Two schedules that reach the same state can be continued in the same ways.
#
# First take one rank and one unit: which counts can it reach?


# %%
def one_unit_later(state, rank, limit):
    """Return the counts (F, I, W) that a rank can reach one unit after ``state``, the counts of all ranks."""
    f, i, w = state[rank]
    # the rank before has done one more F
    has_input = rank == 0 or state[rank - 1][0] > f
    # the rank after has done one more I
    has_gradient = rank == RANKS - 1 or state[rank + 1][1] > i
    reached = []
    if f < BATCHES and has_input and f - w < limit:  # f - w microbatches are held
        reached.append((f + 1, i, w))
    if i < f and has_gradient:
        reached.append((f, i + 1, w))
    if w < i:
        reached.append((f, i, w + 1))
    return reached or [state[rank]]  # no action is ready, so the rank waits


nothing_done = ((0, 0, 0),) * RANKS
some_done = ((2, 0, 0), (1, 0, 0), (0, 0, 0), (0, 0, 0))  # two units later
options = [one_unit_later(some_done, rank, limit=3) for rank in range(RANKS)]
print(f"from {some_done}, rank by rank: {options}")
assert [one_unit_later(nothing_done, rank, limit=3) for rank in range(RANKS)] == [
    [(1, 0, 0)],
    *[[(0, 0, 0)]] * 3,
]
assert options == [[(3, 0, 0)], [(2, 0, 0)], [(1, 0, 0)], [(0, 0, 0)]]

# %% [markdown]
# At the beginning there is no choice. Later a rank may have two or three options, and
# the ranks choose independently: `product` makes all combinations. Start from the state
# in which nothing has run, and collect all states that can be reached after one unit,
# two units, and so on. A set keeps each state once. The first unit after which
# everything can be done is the answer.


# %%
def least_of_all(limit):
    """Return the least makespan of all schedules, and the number of states that were visited."""
    done = ((BATCHES,) * 3,) * RANKS
    states, units, met = {((0, 0, 0),) * RANKS}, 0, 0
    while done not in states:
        following = set()
        for state in states:
            options = [one_unit_later(state, rank, limit) for rank in range(RANKS)]
            following.update(product(*options))
        states, units, met = following, units + 1, met + len(following)
    return units, met


best = {limit: least_of_all(limit) for limit in range(1, 6)}
for limit, (units, met) in best.items():
    print(f"memory for {limit}: the best takes {units} units; {met:,} states")
assert [units for units, _ in best.values()] == [72, 41, 31, 27, 27]
assert best[3] == (31, 3391)
assert all(
    found[limit].bound <= units <= found[limit].value
    for limit, (units, _) in best.items()
)

# %% [markdown]
# A few thousand states represent all combinations, and a fraction of a second closes
# both gaps. The search had found the best schedules. The formulas, 39 and 30, were too
# low.
#
# This is also a proof, but not one that can be checked quickly: you have to trust these
# lines or run them again. A bound such as head and work fits into a sentence. For
# larger pipelines, exact solvers give answers of the second kind.
#
# ## The price of memory
#
# Now we know the best time for each memory limit. The cell draws the idle units as
# bars.

# %%
ideal = BATCHES * 3
for limit, (units, _) in best.items():
    print(
        f"memory for {limit}: {units:2} units, bubble {1 - ideal / units:3.0%}  "
        f"{'#' * (units - ideal)}"
    )
bubbles = [round(100 * (1 - ideal / units)) for units, _ in best.values()]
assert bubbles == [67, 41, 23, 11, 11] and list(best) == [1, 2, 3, 4, 5]

# %% [markdown]
# The second microbatch of memory saves 31 units, the third 10, the fourth 4, and the
# fifth none. Memory for as many microbatches as there are ranks is enough. ZB-H1, which
# holds four, is optimal in time and in memory.
#
# That is true for one stage on each rank. Lesson 10 folded the pipeline into a V, which
# is another workload with other bounds. `v-half` holds three microbatches, counted in
# whole ranks:

# %%
folded = simulate(schedules.v_half(RANKS, BATCHES), Costs().cut(2))
workload = Costs().cut(2).workload((0, 1, 2, 3, 3, 2, 1, 0), BATCHES, memory_limit=3)
none_below = lower_bound(workload, Objective.MAKESPAN).value
print(
    f"v-half: {folded.makespan:g} units; no schedule on this V is below {none_below:g}"
)
assert folded.makespan == none_below == 26.5 < best[3][0]

# %% [markdown]
# `v-half` is proved optimal on its V, and is faster than every schedule with one stage
# per rank, even those with more memory. A proof of optimality holds for one question,
# and changing the question is often the larger gain.
#
# This command draws all of it in one picture, with the bounds as dashed lines and the
# results of a search as crosses:
#
# ```sh
# minipipe schedules --plot pareto.svg --search 20
# ```
#
# ## Another objective: the span of each rank
#
# Lesson 09 counted the idle time of a rank within its span, from its first action to
# its last one, because the next step can fill the rest. For this objective, more memory
# than four microbatches helps. The cell searches for four limits, and draws the
# schedule for five.

# %%
spans = {
    limit: find_schedule(workloads[limit], Objective.SPAN) for limit in range(4, 8)
}
for limit, certificate in spans.items():
    print(
        f"memory for {limit}: longest span {certificate.value:g}, lower bound "
        f"{certificate.bound:g}"
    )
assert [certificate.value for certificate in spans.values()] == [27, 26, 25, 24]
assert all(certificate.gap == 0 for certificate in spans.values())
assert {limit: spans[limit].value for limit in (4, 7)} == {4: 27, 7: 24}
render.show(spans[5].schedule)

# %% [markdown]
# All four are proved. Between ZB-H1, which holds 4, and ZB-H2, which holds 7, there is
# a schedule for each limit, and each microbatch saves one unit. The one in the picture,
# for five, has no name.
#
# Real stages are unequal, and their times are not whole numbers. The bounds and the
# search accept any times: put measured costs into the workload
# (`pipeline.measure_costs`, lesson 12). The gap then tells you whether searching
# further is worth it.
#
# ## In PyTorch and in Megatron
#
# Neither searches for a schedule. You can search here and run the result there: PyTorch
# reads a schedule as CSV, in the same format that minipipe writes.
#
# ```sh
# minipipe search --memory-limit 3 --objective makespan -o found.csv
# ```
#
# `_PipelineScheduleRuntime(stages, n_microbatches, loss_fn)` of
# `torch.distributed.pipelining.schedules` loads it with `_load_csv("found.csv",
# format="compute_only")`. (The underscores say that PyTorch may change these names. The
# page [Coming from PyTorch](site/coming-from-pytorch.md) has more.)
#
# ## What you have learnt
#
# - A lower bound comes from something that every schedule must do.
# - A schedule that reaches a bound is optimal. A gap says how much could still be
#   gained.
# - A certificate can be checked without the search that produced it.
# - A proof holds for one workload: other placements and objectives have other optima.

# %% [markdown]
# ## Exercise
#
# 1. Print the reason for the bound of memory for two, 39. Draw the waits that it names
#    into a schedule of 41 units. Where are the other two units lost?
# 2. Let W take half a unit: `Costs(backward_weight=0.5)`. ZB-H1 then takes 24.5 units.
#    Is that optimal with memory for four? For five, for seven? Read how the reason of
#    the largest bound changes.
# 3. How does the number of states in `least_of_all` grow with the microbatches, and how
#    with the ranks? Up to which pipeline would you wait for it?
# 4. Where does the proof that no rank gains by waiting fail if an F takes two units and
#    an I one?
# 5. The coursework task `14_puzzle` has a fifth level: find a schedule of 31 units with
#    memory for three, by hand. Now you know that none of 30 exists. (`minipipe
#    coursework DIR` creates your copy.)
#
# <details>
# <summary>Answers</summary>
#
# 1. The reason says that rank 0 computes for 24 units and waits for 5 before its first
#    I, 4 after its last F and 6 in between: 39. In a schedule of 41 units it waits for
#    8 in between. A round trip takes 9 units, and rank 0 has only two microbatches to
#    work on meanwhile. The bound adds up the smallest value of each wait, and one
#    schedule cannot reach all of them.
#
# ```python
# two = formulas[2]
# assert two.value == 39 and "5 before its first I, 4 after its last F, and 6 in between" in two.reason
# whole = simulate(found[2].schedule)
# waits = [slot.end - slot.start for slot in whole.idle[0]]
# assert whole.makespan == 41 and waits == [5, 4, 4, 4]
# ```
#
# 2. For all three the search reaches the bound: 24.5, 24 and 23. So ZB-H1 is optimal
#    with memory for four, and better schedules exist with more. For four and five the
#    largest bound is the drain: the last rank has too little W left to work on. With
#    seven it is the work alone.
#
# ```python
# for limit, units, name in ((4, 24.5, "drain"), (5, 24, "drain"), (7, 23, "work")):
#     workload = Costs(backward_weight=0.5).workload(range(RANKS), BATCHES, memory_limit=limit)
#     assert lower_bounds(workload, Objective.MAKESPAN)[0].name == name
#     certificate = find_schedule(workload, Objective.MAKESPAN)
#     assert certificate.value == certificate.bound == units
# assert simulate(schedules.zb_h1(RANKS, BATCHES), Costs(backward_weight=0.5)).makespan == 24.5
# ```
#
# 3. With memory for three and four ranks: 228 states for 4 microbatches, 3,391 for 8
#    and 22,649 for 16. With 8 microbatches: 661 for two ranks, 1,982 for three, 3,391
#    for four and 4,163 for five, because a small memory ties the ranks to each other.
#    Without a limit both grow much faster, until time or memory runs out.
#
# ```python
# counts = {}
# for RANKS, BATCHES in ((4, 4), (4, 8), (4, 16), (2, 8), (3, 8), (5, 8)):
#     counts[RANKS, BATCHES] = least_of_all(3)[1]
# RANKS, BATCHES = 4, 8
# assert list(counts.values()) == [228, 3391, 22649, 661, 1982, 4163]
# assert least_of_all(5)[1] > 2 * counts[4, 8]
# ```
#
# 4. If actions take unequal times, running an action now can delay another one that
#    becomes ready before it ends. Here an F of two units is ready when an I of one unit
#    is about to arrive. A rank that waits for the I passes the gradient on one unit
#    earlier. With unit times no action becomes ready before the next whole unit, so
#    nothing is delayed.
#
# ```python
# long_f = Costs(forward=[1, 2], backward_input=1, backward_weight=1)
# eager = "rank 0: 0F0 0F1 0I0 0W0 0I1 0W1 \n rank 1: 1F0 1F1 1I0 1W0 1I1 1W1"
# patient = "rank 0: 0F0 0F1 0I0 0W0 0I1 0W1 \n rank 1: 1F0 1I0 1F1 1W0 1I1 1W1"
# ends = [simulate(schedules.Schedule.from_text(text), long_f).spans[0][2].start for text in (eager, patient)]
# assert ends[1] < ends[0]
# ```
#
# </details>
#
# Next, `17_where_the_time_goes.py`: inside an action, and the cost of software there.
