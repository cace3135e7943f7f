# %% [markdown]
# # 16 · How good can a schedule be?
#
# Every lesson so far ended with a schedule that was better than the last one. Where does that end? A schedule shows
# what is possible; it does not show that nothing better is. This lesson does the other half. You compute times that no
# schedule can beat, close the gap between these bounds and the schedules with a search, and look at what makes an
# answer a proof. At the end you know the best time for every amount of memory, for one small pipeline, and that it is
# the best.

# %%
from itertools import product
from math import factorial

from minipipe import Costs, render, schedules, simulate, verify
from minipipe.errors import ScheduleError
from minipipe.schedules import Objective, find_schedule, lower_bound, lower_bounds

# %% [markdown]
# ## The question
#
# Four ranks with one stage each, eight microbatches; F, I and W take one unit each. (Lesson 09 split the backward into
# I, the gradient of the inputs, and W, that of the weights.) These are the named schedules with one stage on each rank:

# %%
RANKS, BATCHES = 4, 8
NAMES = ["sequential", "gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2"]
times, held = {}, {}
for name in NAMES:
    schedule = schedules.build(name, RANKS, BATCHES)
    times[name], held[name] = simulate(schedule).makespan, max(schedules.peak_activations(schedule))
    print(f"{name:10} {times[name]:3g} units, holds {held[name]} microbatches")
assert list(times.values()) == [96, 33, 33, 33, 27, 27]
assert list(held.values()) == [1, 8, 4, 7, 4, 7]

# %% [markdown]
# Is there one of 26 units? And what if there is room for three microbatches only, or for two? No named schedule but the
# sequential one fits then, and it takes 96.
#
# ## Head and work
#
# A bound needs no schedule, only something that every schedule must do. Rank r cannot start before microbatch 0 has
# passed through the r ranks before it: its *head*. Then it has its *work* to do, an F, an I and a W for each of the
# eight microbatches. Whatever the order, the step cannot end before that.

# %%
head_and_work = [rank + BATCHES * 3 for rank in range(RANKS)]
print(f"no schedule ends before {head_and_work} units, for each rank")
assert head_and_work == [24, 25, 26, 27]
assert max(head_and_work) == times["zb-h1"] == times["zb-h2"] == 27

# %% [markdown]
# Rank 3 alone needs 27 units, and ZB-H1 takes 27. So the search for a better one is over: for this pipeline nobody will
# ever find a straight schedule that is faster, however much memory there is. That is the whole pattern of this lesson.
# On one side is a schedule, on the other side a bound, and where they meet both are the best of their kind.
#
# What about 1F1B? Its backward is whole, so after rank 3 has ended its last B, the gradient still has to pass through
# the ranks before it, in B of two units each: a *tail*.

# %%
head, work, tail = 3, BATCHES * 3, 3 * 2
print(f"with whole backwards: {head} + {work} + {tail} = {head + work + tail} units")
assert head + work + tail == times["1f1b"] == times["gpipe"] == 33

# %% [markdown]
# So 1F1B and GPipe cannot be beaten either, as long as nobody splits the backward. No cleverness with the order would
# have led from 33 to 27. It took another question.
#
# ## A round trip for what memory holds
#
# Now let memory be short: no rank may hold more than L microbatches. On rank 0 a microbatch is held from its F until
# its W. In between it goes down through all four ranks, back up through all four, and then comes its W: 4 + 4 + 1 = 9
# units. L of them can travel together. Then the next F on rank 0 has to wait for a W, and so another round trip begins.
# The last one starts with as many F as are left over.


# %%
def by_hand(limit):
    """Return a time that no schedule can beat, on four ranks that hold at most so many of eight microbatches."""
    rounds, left_over = divmod(BATCHES - 1, limit)
    trip = RANKS + RANKS + 1
    return max(max(head_and_work), rounds * trip + left_over + trip)


bounds = {limit: by_hand(limit) for limit in range(1, 6)}
for limit, units in bounds.items():
    print(f"memory for {limit}: at least {units} units")
assert list(bounds.values()) == [72, 37, 28, 27, 27]

# %% [markdown]
# With memory for one, nothing overlaps: 8 × 9 = 72. With four or more, memory costs nothing at all. In between we can
# do better than by hand. `lower_bounds` knows several arguments of this kind, for any costs and any placement, and
# gives a reason for each. The question is a *workload*: stages, ranks, costs, microbatches and limits, but no order.

# %%
workloads = {limit: Costs().workload(range(RANKS), BATCHES, memory_limit=limit) for limit in range(1, 8)}
three = lower_bounds(workloads[3], Objective.MAKESPAN)
for bound in three:
    print(f"{bound.value:g} by {bound.name}")
print(f"Why {three[0].value:g}? {three[0].reason}")
assert [bound.value for bound in three] == sorted((bound.value for bound in three), reverse=True)
assert (three[0].value, three[0].name) == (30, "warm-up and drain")
assert "Rank 0 computes for 24 and must wait" in three[0].reason

# %% [markdown]
# Each of these is true, so the largest counts: 30, where we had 28. It adds up waits that we counted one at a time.
#
# ## The gap
#
# From the other side comes a search. `find_schedule` tries many orders, and returns the best schedule it has met
# together with the bound, as a `Certificate`. As soon as the two meet it stops, because then it cannot get better. What
# it finds depends on how many schedules it may try, not on the speed of your computer.

# %%
found = {limit: find_schedule(workloads[limit], Objective.MAKESPAN) for limit in range(1, 6)}
for limit, certificate in found.items():
    print(
        f"memory for {limit}: found {certificate.value:g}, none is below {certificate.bound:g} ({certificate.bound_by})"
    )
assert [certificate.value for certificate in found.values()] == [72, 41, 31, 27, 27]
assert [limit for limit in found if found[limit].bound_by == "gallery"] == [2, 3]

# %% [markdown]
# Two of these bounds are by no formula. The gallery is a table of optima that an exact solver has proved once, for
# pipelines as small as ours. For yours there will be none, so let us put it aside for now, and see how far formulas go.

# %%
formulas = {limit: lower_bound(workloads[limit], Objective.MAKESPAN) for limit in found}
found = {limit: found[limit]._replace(bound=bound.value, bound_by=bound.name) for limit, bound in formulas.items()}
for limit, certificate in found.items():
    words = "proved" if certificate.gap == 0 else f"at most {certificate.gap:.0%} above the best"
    print(f"memory for {limit}: found {certificate.value:g}, no formula gives more than {certificate.bound:g}: {words}")
assert [certificate.bound for certificate in found.values()] == [72, 39, 30, 27, 27]

# %% [markdown]
# For three of the five limits the answer is final. For memory of two and three there is a gap between what was found
# and what is excluded. Such a gap has two possible reasons, and from the outside they look alike: the search has missed
# a better schedule, or the bound promises too much. Note that a gap is still worth a lot. A schedule that is at most 5
# % above the best is one that you can stop improving.
#
# ## A certificate
#
# Should you believe the answer? You need not believe the search, which is long and full of tricks, as you can check its
# answer without it: is the schedule legal, within memory and as fast as it says, and is the bound what it should be?


# %%
def is_right(certificate):
    """Tell whether a certificate is true, without a search."""
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
print(f"as they were found {honest}, boasting {is_right(too_fast)}, with other memory {is_right(too_much_memory)}")
assert all(honest) and not is_right(too_fast) and not is_right(too_much_memory)
assert sum(map(len, found[4].schedule.actions)) == 96

# %% [markdown]
# The same on the command line, where a certificate is a file that you can pass on:
#
# ```sh
# minipipe search --memory-limit 4 --objective makespan -o found.json
# minipipe check --certificate found.json
# ```
#
# The check follows 96 actions once. How many schedules would have to be looked at to find the best one among them? On
# each rank the eight F, the eight I and the eight W come in order, and no I before its F, no W before its I. The number
# of such orders is known (it is one of the three-dimensional Catalan numbers), and each rank has as many.

# %%
orders = 2 * factorial(3 * BATCHES) // (factorial(BATCHES) * factorial(BATCHES + 1) * factorial(BATCHES + 2))
print(f"{orders:,} orders on one rank, {float(orders**RANKS):.0e} on four")
assert orders == 23_371_634 and 2e29 < orders**RANKS < 4e29

# %% [markdown]
# Checking takes milliseconds, while going through all of these would take longer than the universe is old. Many
# questions of scheduling are like that: an answer is easy to check and hard to find. (Job-shop scheduling, of which
# this is a kind, is *NP-hard*: nobody knows a method that is fast for all of its cases.) That is why a search ends with
# a certificate, and not with a promise.
#
# ## Trying them all, after all
#
# For a pipeline as small as ours the gap can be closed, because the schedules have much in common. With unit times, the
# ranks go on in steps of one unit. And no rank gains anything by waiting when it could work: take the next action of
# the kind that is ready, run it now instead, and everything after it is still possible. (An F that is moved forward
# takes up memory earlier. But there was room for it, and no other F lies in between.) So what matters after each unit
# is only how many F, I and W each rank has done, its *state*. Two schedules with one state are one from here on.
#
# First one rank and one unit: what can it have done a unit later?


# %%
def one_unit_later(state, rank, limit):
    """Return the counts (F, I, W) that a rank can have reached one unit later; `state` has those of all ranks now."""
    f, i, w = state[rank]
    has_input = rank == 0 or state[rank - 1][0] > f  # the rank before has done one more F
    has_gradient = rank == RANKS - 1 or state[rank + 1][1] > i  # the rank after has done one more I
    reached = []
    if f < BATCHES and has_input and f - w < limit:  # f - w microbatches are held
        reached.append((f + 1, i, w))
    if i < f and has_gradient:
        reached.append((f, i + 1, w))
    if w < i:
        reached.append((f, i, w + 1))
    return reached or [state[rank]]  # nothing is ready: it has to wait


nothing_done = ((0, 0, 0),) * RANKS
some_done = ((2, 0, 0), (1, 0, 0), (0, 0, 0), (0, 0, 0))  # two units later
options = [one_unit_later(some_done, rank, limit=3) for rank in range(RANKS)]
print(f"from {some_done}, rank by rank: {options}")
assert [one_unit_later(nothing_done, rank, limit=3) for rank in range(RANKS)] == [[(1, 0, 0)], *[[(0, 0, 0)]] * 3]
assert options == [[(3, 0, 0)], [(2, 0, 0)], [(1, 0, 0)], [(0, 0, 0)]]

# %% [markdown]
# At the beginning there is no choice. Later a rank may have two or three options, and the ranks choose independently of
# each other: `product` gives all combinations. So start from the state in which nothing is done, and collect all
# states that can be reached after one unit, after two units, and so on. A set keeps each state once. The first
# unit after which everything can be done is the answer.


# %%
def least_of_all(limit):
    """Return the least makespan of all schedules, and how many states were met."""
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
assert all(found[limit].bound <= units <= found[limit].value for limit, (units, _) in best.items())

# %% [markdown]
# A few thousand states stand for 3 × 10²⁹ combinations, and a fraction of a second closes both gaps, as the gallery
# said. The search had found the best schedules; it was the formulas, 39 and 30, that promised too much.
#
# Is this a certificate, too? Not one that is checked in a moment: you have to trust these lines, or run them again. A
# bound like head and work fits into a sentence; this one is a computation. What exact solvers say of larger pipelines
# is of the second kind.
#
# ## What memory buys
#
# Now we know what no table of schedules can tell: the price of memory.

# %%
ideal = BATCHES * 3
for limit, (units, _) in best.items():
    print(f"memory for {limit}: {units:2} units, bubble {1 - ideal / units:3.0%}  {'#' * (units - ideal)}")
bubbles = [round(100 * (1 - ideal / units)) for units, _ in best.values()]
assert bubbles == [67, 41, 23, 11, 11] and list(best) == [1, 2, 3, 4, 5]

# %% [markdown]
# The second microbatch of memory saves 31 units, the third 10, the fourth 4, and the fifth nothing at all: as many as
# there are ranks, and then no more. ZB-H1, which holds four, is the best of its kind in both respects.
#
# "Of its kind" means: with one stage on each rank. Lesson 10 folded the pipeline into a V, and that is another workload
# with other bounds. `v-half` holds three microbatches, counted for whole ranks, and this is what it takes:

# %%
folded = simulate(schedules.v_half(RANKS, BATCHES), Costs().cut(2))
workload = Costs().cut(2).workload((0, 1, 2, 3, 3, 2, 1, 0), BATCHES, memory_limit=3)
none_below = lower_bound(workload, Objective.MAKESPAN).value
print(f"v-half: {folded.makespan:g} units; no schedule on this V is below {none_below:g}")
assert folded.makespan == none_below == 26.5 < best[3][0]

# %% [markdown]
# It is proved to be the best on its V, and beats every straight schedule, even those with more memory. A proof of
# optimality is always one for a question, and the most rewarding step is often to change the question. All of this in
# one picture, with the bounds as dashed lines and what a search finds as crosses, is
#
# ```sh
# minipipe schedules --plot pareto.svg --search 20
# ```
#
# ## Another aim: the own span
#
# Lesson 09 counted idle time within each rank's own span, from its first action to its last, since the next step can
# fill the rest. For this objective more memory than four microbatches does pay.

# %%
spans = {limit: find_schedule(workloads[limit], Objective.SPAN) for limit in range(4, 8)}
for limit, certificate in spans.items():
    print(f"memory for {limit}: longest own span {certificate.value:g}, none is below {certificate.bound:g}")
assert [certificate.value for certificate in spans.values()] == [27, 26, 25, 24]
assert all(certificate.gap == 0 for certificate in spans.values())
assert {limit: spans[limit].value for limit in (4, 7)} == {4: 27, 7: 24}
render.show(spans[5].schedule)

# %% [markdown]
# All four are proved. Between ZB-H1, which holds 4, and ZB-H2, which holds 7, there is a schedule for each amount, and
# each microbatch buys one unit. The picture shows the one for five, which has no name.
#
# Real stages are not equal, and their times are not whole numbers. The bounds and the search do not mind: put measured
# costs into the workload (`pipeline.measure_costs`, lesson 12). The gap then says whether it is worth looking further.
#
# ## Exercise
#
# 1. Print the reason for the bound of memory for two, 39, and draw the waits that it names into a schedule of 41 units.
#    Where are the other two units lost?
# 2. Let W take half a unit: `Costs(backward_weight=0.5)`. ZB-H1 then takes 24.5 units. Is that the best for memory of
#    four? Of five, of seven? Read how the reason of the largest bound changes.
# 3. How does the number of states of `least_of_all` grow with the microbatches, and how with the ranks? Up to which
#    pipeline would you wait for it?
# 4. Where does the proof that no rank gains by waiting go wrong if an F takes two units and an I one?
# 5. The coursework task `14_puzzle` has a fifth level: find a schedule of 31 units with memory for three, by hand. Now
#    you know that nobody will find one of 30. (`minipipe coursework DIR` creates your copy.)
#
# <details>
# <summary>Answers</summary>
#
# 1. The reason says that rank 0 computes for 24 units and waits for 5 before its first I, 4 after its last F and 6 in
#    between: 39. In a schedule of 41 units it waits for 8 in between. A round trip takes 9 units and rank 0 has only
#    two microbatches to work on meanwhile; the bound adds up the least that each of the waits must be, and they cannot
#    all be least in one schedule.
#
# ```python
# two = formulas[2]
# assert two.value == 39 and "5 before its first I, 4 after its last F, and 6 in between" in two.reason
# whole = simulate(found[2].schedule)
# waits = [slot.end - slot.start for slot in whole.idle[0]]
# assert whole.makespan == 41 and waits == [5, 4, 4, 4]
# ```
#
# 2. For all three the search finds what the bound allows: 24.5, 24 and 23. So ZB-H1 is the best for memory of four, and
#    with more memory there are better ones. The largest bound is the drain for four and for five: the last rank has too
#    little W left to work on. With seven it is the work alone.
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
# 3. With memory for three and four ranks: 228 states for 4 microbatches, 3,391 for 8 and 22,649 for 16. With 8
#    microbatches: 661 for two ranks, 1,982 for three, 3,391 for four and 4,163 for five, as short memory ties the ranks
#    to each other. Without a limit both grow much faster. Beyond that it is a matter of patience, and of memory for the
#    states.
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
# 4. If actions take unequal times, running an action now can hold up another one that gets ready before it ends. Here
#    an F of two units is ready when an I of one unit is about to come. Whoever waits for the I passes the gradient on
#    one unit earlier. With unit times no action is ready before the next whole unit, so nothing is held up.
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
# Next, `17_where_the_time_goes.py`: inside an action, and what software costs there.
