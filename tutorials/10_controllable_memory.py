# %% [markdown]
# # 10 · Controllable memory: the V shapes
#
# Zero-bubble schedules paid for time with memory. This lesson finds out where the memory goes. Then it folds the
# pipeline into a V, so that every rank holds the same amount and you can choose that amount: as much as 1F1B holds on
# its first rank, or less, down to about a third of it. As always, less memory means more idle time, but now the choice
# is yours.

# %%
import numpy as np

from minipipe import Costs, Pipeline, nn, render, schedules, simulate, spawn, verify
from minipipe.errors import ScheduleError
from minipipe.testing import check_same_as_one_process

# %% [markdown]
# ## Memory is lifetime times arrival rate
#
# A microbatch takes up memory on a rank from its F on that rank until its backward there is finished. Call that time
# its *lifetime* on the rank. Once the pipeline is full, new microbatches arrive at a steady rate. If each lives for
# 12 units and one arrives every 3, then 12 / 3 = 4 are alive at any time. This is Little's law. (It also works for
# guests in a hotel: the number of guests is the number of arrivals per day times the number of days that they stay.)
#
# Here is 1F1B with four ranks and 24 microbatches; F, I and W take one unit each. A rank works on one microbatch for
# 3 units, so one arrives every 3. We look at microbatch 12, when the pipeline is full.


# %%
def lives(schedule, rank, microbatch=12):
    """Return the lifetime of a microbatch on each stage of a rank: from the start of F to the end of B or W."""
    times = {}
    for action, start, end in simulate(schedule).spans[rank]:
        if action.microbatch == microbatch:
            first, last = times.get(action.stage, (start, end))
            times[action.stage] = (min(first, start), max(last, end))
    return {stage: last - first for stage, (first, last) in times.items()}


one_f_one_b = schedules.one_f_one_b(num_ranks=4, num_microbatches=24)
for rank in range(4):
    life = sum(lives(one_f_one_b, rank).values())
    print(f"rank {rank}: a life of {life:g} units, so {life / 3:g} alive; the simulator counts ", end="")
    print(simulate(one_f_one_b).peak_activations[rank])
    assert life / 3 == simulate(one_f_one_b).peak_activations[rank] == 4 - rank

# %% [markdown]
# The first stage has the longest lifetime, because its microbatches have to travel to the far end of the pipeline and
# back. The last stage has the shortest: it starts the backward as soon as the forward is finished. So the first rank is
# full while the last is nearly empty, and it is the fullest rank that has to fit.
#
# ## The V
#
# So give each rank one stage with a long lifetime and one with a short lifetime. Cut the model into twice as many
# stages as there are ranks, and place them out and back: rank 0 gets the first stage *and the last*, rank 1 gets the
# second and the second to last, and so on. The last rank gets two neighbouring stages, and passes values between them
# without a message.

# %%
zb_v = schedules.zb_v(num_ranks=4, num_microbatches=8)
for rank in range(4):
    first, second = zb_v.stages_of(rank)
    indent = "         " * rank
    print(f"rank {rank}  {indent}stage {first}{'                  ' * (3 - rank)}  stage {second}")
print(f"the rank of each stage: {zb_v.placement}")
assert zb_v.placement == (0, 1, 2, 3, 3, 2, 1, 0)
assert [zb_v.stages_of(rank) for rank in range(4)] == [(0, 7), (1, 6), (2, 5), (3, 4)]

# %% [markdown]
# (Lesson 08 placed chunks *around* the ranks: 0, 1, 2, 3, 0, 1, 2, 3. There rank 0 has the longest lifetime in each of
# the two halves, and memory stays uneven.)
#
# **ZB-V** runs I and W separately on such a V. The lifetimes of a rank's two stages now add up to the same total on
# every rank: the longer one is, the shorter the other.

# %%
longer = schedules.zb_v(num_ranks=4, num_microbatches=24)
for rank in range(4):
    life = lives(longer, rank)
    words = " + ".join(f"{units:g}" for units in life.values())
    print(f"rank {rank}: lives of {words} = {sum(life.values()):g} units; one of each arrives every 6, so 8 are held")
    assert sum(life.values()) == 48
assert [tuple(lives(longer, rank).values()) for rank in range(4)] == [(45, 3), (39, 9), (33, 15), (27, 21)]
assert simulate(longer).peak_activations == (8, 8, 8, 8)

# %% [markdown]
# Eight chunks take as much memory as four whole stages, because a chunk is half of one. That is what 1F1B holds on its
# first rank, but without any idle time within a rank's own span. As in lesson 08, labels in text include the stage, and
# a notebook draws the later stage in a darker shade.

# %%
render.show(zb_v)
timeline = simulate(zb_v)
print(f"idle within each rank's own span: {[timeline.idle_within_span(rank) for rank in range(4)]}")
assert [timeline.idle_within_span(rank) for rank in range(4)] == [0, 0, 0, 0]
assert timeline.makespan == 6 * 8 + 4 - 1 == 51

# %% [markdown]
# ## Half of it: the trip of one microbatch
#
# A lifetime can be shortened, and so memory can be chosen. How? A microbatch has six actions on a rank: F, I and W on
# each of its two stages. Other ranks wait only for the F and the I. So begin with the four of one microbatch on each
# rank: F on the way out, F on the way back, I out, I back. Forget W for the moment, and think of a train that makes
# these two round trips. It can hurry, and pass a rank in every unit. Or it can take its time, two units for each rank.
#
# **V-Half** (Qi et al. 2024) travels out slowly and back fast, on both trips. Here is its timetable for four ranks: the
# unit in which each of the four begins.


# %%
def half(num_ranks, wait):
    """Return, for each rank, when F out, F back, I out and I back begin; `wait` units lie between the two trips."""
    p = num_ranks
    return [(2 * r, 3 * p - 2 - r, 3 * p - 1 + wait + 2 * r, 6 * p - 2 + wait - r) for r in range(p)]


def trip(timetable):
    """Return the trip of a microbatch as text: a row for each rank, a column for each unit."""
    rows = []
    for rank, starts in enumerate(timetable):
        row = ["."] * (1 + max(map(max, timetable)))
        for letter, start in zip("FFII", starts):
            row[start] = letter
        rows.append(f"rank {rank}  {''.join(row)}")
    return "\n".join(rows)


timetable = half(num_ranks=4, wait=3)
print(trip(timetable))
assert timetable == [(0, 10, 14, 25), (2, 9, 16, 24), (4, 8, 18, 23), (6, 7, 20, 22)]

# %% [markdown]
# The next microbatch follows six units later, for each needs six units of work on every rank. So the same timetable
# repeats every six units, and that is the difficulty: two microbatches must not need a rank in the same unit. They do
# not if the four starts of a rank leave four *different remainders* when divided by 6. The two remainders that are
# free belong to the two W. That is what the wait between the trips is for:


# %%
def fits(timetable):
    """Tell whether microbatches that follow every six units never need a rank at the same time."""
    return all(len({start % 6 for start in starts}) == 4 for starts in timetable)


without, with_wait = half(4, wait=0), half(4, wait=3)
for name, starts in (("no wait", without), ("a wait of 3", with_wait)):
    remainders = [[start % 6 for start in row] for row in starts]
    print(f"{name}: remainders {remainders}: {'they fit' if fits(starts) else 'some are the same'}")
assert not fits(without) and fits(with_wait)
assert [start % 6 for start in without[0]] == [0, 4, 5, 4] and [start % 6 for start in with_wait[0]] == [0, 4, 2, 1]

# %% [markdown]
# Now the memory. A rank holds the first stage of a microbatch from `F out` to `I back`, and the second from `F back` to
# `I out`. On every rank that is the same in all: where the first is long, the second is short. And with 31 units, of
# which six belong to one microbatch, a rank holds five or six of them. ZB-V needed eight.

# %%
held = [(i_back + 1 - f_out, i_out + 1 - f_back) for f_out, f_back, i_out, i_back in timetable]
for rank, (first, second) in enumerate(held):
    print(f"rank {rank}: {first} + {second} = {first + second} units; one arrives every 6: {(first + second) / 6:.1f}")
assert held == [(26, 5), (23, 8), (20, 11), (17, 14)] and {sum(units) for units in held} == {31}

# %% [markdown]
# `schedules.v_half` writes the timetable down for all microbatches, puts each W into the next free unit, and closes the
# gaps that are left at the beginning and at the end. W prolongs the lifetimes a little:

# %%
v_half = schedules.v_half(num_ranks=4, num_microbatches=8)
render.show(v_half)
sums = [sum(lives(schedules.v_half(4, 24), rank).values()) for rank in range(4)]
print(f"lifetimes with W {sums}, so {max(sums) / 6:g} at most; the simulator counts", end=" ")
print(simulate(v_half).peak_activations)
assert sums == [34, 34, 34, 36]
assert simulate(v_half).makespan == 53 and simulate(v_half).peak_activations == (6, 6, 6, 6)

# %% [markdown]
# In the middle of a long step the timetable uses every unit: six of each six. What is idle lies at the beginning and at
# the end, where the microbatches are missing that would fill the pauses of the trip. So it is the same for any number
# of microbatches: 5 units here, where ZB-V has 3.

# %%
for m in (8, 24):
    over = [simulate(build(4, m)).makespan - 6 * m for build in (schedules.zb_v, schedules.v_half, schedules.v_min)]
    print(f"{m:2} microbatches: zb-v, v-half and v-min take {over} units more than the work")
    assert over == [3, 5, 11]

# %% [markdown]
# ## A third of it
#
# **V-Min** hurries all the way: a rank in each unit, out and back, on both trips. For many ranks it takes a third of
# the memory of ZB-V, and V-Half a half; with four ranks it is 4 chunks instead of 8. As you saw, it leaves the most
# idle time of the three.

# %%
hurry = [(r, 7 - r, 8 + r, 15 - r) for r in range(4)]
print(trip(hurry))
assert fits(hurry) and hurry[0] == (0, 7, 8, 15)

# %%
v_min = schedules.v_min(num_ranks=4, num_microbatches=8)
render.show(v_min)
assert simulate(v_min).makespan == 59 and simulate(v_min).peak_activations == (4, 4, 4, 4)

# %% [markdown]
# ## A table to choose from
#
# To compare schedules with one stage per rank and with two, count in units of a rank's whole share: a chunk takes half
# the time and half the memory. This time there are eight ranks and 24 microbatches, so that the differences show.
# Memory is that of the fullest rank, in microbatches.

# %%
NAMES = ["gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min"]


def bubble_and_memory(name, num_ranks, num_microbatches):
    """Return the bubble in per cent, and the number of microbatches held by the fullest rank."""
    schedule = schedules.build(name, num_ranks, num_microbatches)
    share = num_ranks / schedule.num_stages
    timeline = simulate(schedule, Costs(share, share, share, activation=share))
    return 100 * timeline.bubble_fraction, max(timeline.peak_memory)


points = {name: bubble_and_memory(name, num_ranks=8, num_microbatches=24) for name in NAMES}
for name, (bubble, memory) in points.items():
    print(f"{name:16}  bubble {bubble:4.1f} %   memory {memory:4g}")
assert {name: memory for name, (_, memory) in points.items()} == {
    "gpipe": 24,
    "1f1b": 8,
    "interleaved-1f1b": 11.5,
    "zb-h1": 8,
    "zb-h2": 15,
    "zb-v": 8,
    "v-half": 5,
    "v-min": 4,
}
assert [round(bubble, 1) for bubble, _ in points.values()] == [22.6, 22.6, 12.7, 8.9, 8.9, 4.6, 10.6, 14.8]

# %% [markdown]
# The same as a picture: memory to the right, bubble upwards. Lower and further left is better. In a terminal GPipe, at
# 24 microbatches, is off the chart. A notebook draws all named schedules on scales that double from line to line, with
# the **Pareto front**: the schedules that none beats in both at once. The dashed lines are bounds, which no schedule
# can pass (lesson 16).


# %%
def plot(points, columns=66, rows=12, most_memory=16, most_bubble=24):
    """Return the points as text: memory to the right, bubble upwards, in per cent."""
    grid = [[" "] * columns for _ in range(rows + 1)]
    for name, (bubble, memory) in points.items():
        if memory <= most_memory:
            row, column = rows - round(bubble / most_bubble * rows), round(memory / most_memory * 48)
            grid[row][column : column + len(name) + 2] = f"* {name}"
    lines = [f"{most_bubble * (rows - i) / rows:4.0f} % |{''.join(row)}".rstrip() for i, row in enumerate(grid)]
    ticks = "".join(f"{memory:<12}" for memory in range(0, most_memory + 1, 4))
    return "\n".join([*lines, "       " + "-" * columns, f"       {ticks.rstrip()} microbatches held"])


render.show_picture(render.draw_tradeoff(schedules.tradeoff(8, 24)), plot(points))
best = [
    name
    for name, (bubble, memory) in points.items()
    if not any(b <= bubble and m <= memory and (b, m) != (bubble, memory) for b, m in points.values())
]
print(f"not beaten in both at once: {', '.join(best)}")
assert best == ["zb-v", "v-half", "v-min"]

# %% [markdown]
# Only the three V shapes are left. Each of the other schedules is dominated: one of the three beats it in one respect,
# and is at least as good in the other. Between the three, the memory that you have decides. V-Half holds 3 microbatches
# fewer than ZB-V, and its bubble is 6 percentage points larger. V-Min saves one more microbatch for another 4 points.
#
# So why would anyone use anything else? Because this comparison assumes that F, I and W take equally long and that
# messages are free. I and W seldom take equally long. Between I and W a microbatch can hold more than it did before I
# (lesson 09). And a V cuts the model into twice as many stages, so it sends twice as many messages. When few
# microbatches are in flight, a rank has nothing else to do while a message travels. Let each message take half as long
# as a rank's F:

# %%
for name in ("zb-h1", "zb-v", "v-half", "v-min"):
    schedule = schedules.build(name, num_ranks=8, num_microbatches=24)
    share = 8 / schedule.num_stages
    slow = simulate(schedule, Costs(share, share, share, latency=0.5))
    bubble, without = 100 * slow.bubble_fraction, points[name][0]
    print(f"{name:7} {len(slow.messages)} messages, bubble {bubble:.1f} %, without latency {without:.1f} %")
    assert bubble > 2.5 * without
    assert len(slow.messages) == (2 * 24 * 7 if name == "zb-h1" else 2 * 24 * 14)
    assert round(bubble, 1) == {"zb-h1": 22.6, "zb-v": 22.2, "v-half": 42.2, "v-min": 53.4}[name]

# %% [markdown]
# ZB-V is now hardly better than plain ZB-H1, and the schedules that hold the least suffer the most. There is no best
# schedule, only a best one for given numbers. Put your own into `Costs`, and look again.
#
# ## Enforcing a limit
#
# Once you know how much fits, let `verify` enforce it. It counts (stage, microbatch) pairs, and reports the first
# action that exceeds the limit.

# %%
try:
    verify(zb_v, memory_limit=6)
except ScheduleError as error:
    problem = error.problems[0]
print(problem.message)
assert problem.code == "memory" and (problem.rank, problem.step) == (0, 6)
assert problem.message == "Rank 0, position 6: with 0F6 it holds 7 (stage, microbatch) pairs; the limit is 6."

# %%
verify(v_half, memory_limit=6)  # silent: it is legal, and within the limit
verify(v_min, memory_limit=4)

# %% [markdown]
# ## For real
#
# Now V-Half with real arrays and messages: four ranks train eight layers for one step. Rank 0 reads the batch *and*
# computes the loss, because it has both the first stage and the last.


# %%
def network():
    layers = [layer for _ in range(8) for layer in (nn.Linear(12, 12), nn.Tanh())]
    return nn.Sequential(*layers)


generator = np.random.default_rng(seed=0)
samples = generator.standard_normal((32, 12)).astype(np.float32)


def train(group):
    pipeline = Pipeline(network(), group, loss=nn.MSELoss(), schedule=v_half)
    pipeline.step(samples, samples)
    return pipeline.local_stages, pipeline.timeline()


for rank, (stages, measured) in enumerate(spawn(train, num_ranks=4)):
    print(f"rank {rank} has stages {stages} and held {measured.peak_activations[rank]} pairs at most")
    assert stages == (rank, 7 - rank)
    assert measured.peak_activations == simulate(v_half).peak_activations == (6, 6, 6, 6)

# %% [markdown]
# The ranks held exactly what was predicted. And the gradients are those of one process, to the last bit.

# %%
for schedule in (zb_v, v_half, v_min):
    check_same_as_one_process(network(), nn.MSELoss(), samples, samples, schedule)
    print(f"{schedule.name}: the bits of one process")
    assert schedule.is_reproducible

# %% [markdown]
# ## Exercise
#
# 1. `schedules.dualpipe_v` uses the same V. Where is it in the plot? Add it to `NAMES`. (It is designed to hide
#    messages behind computation, which the simulator does not reward.)
# 2. Which of the eight has the smallest bubble if no rank may hold more than 4 microbatches, with 8 ranks? And if W
#    takes half as long as I (`Costs(share, share, share / 2)`)?
# 3. Call `lives` on `schedules.interleaved_1f1b(4, 24)`, whose chunks are placed around the ranks. What do the
#    lifetimes of a rank's two stages add up to?
# 4. The coursework task for this lesson is `12_memory_peak`: find out what a schedule holds. (`minipipe coursework DIR`
#    creates your copy.)
#
# <details>
# <summary>Answers</summary>
#
# 1. At a bubble of 4.6 % and 8.5 microbatches: just to the right of ZB-V, at the same height. So it is dominated here:
#    half a microbatch more, and no gain.
#
# ```python
# bubble, memory = bubble_and_memory("dualpipe-v", num_ranks=8, num_microbatches=24)
# assert (round(bubble, 1), memory) == (4.6, 8.5)
# assert round(points["zb-v"][0], 1) == 4.6 and points["zb-v"][1] == 8
# ```
#
# 2. V-Min, the only one that fits, with 14.8 %. With the shorter W it still is the only one that fits, but its bubble
#    is 28.8 %: what it repeats every six units no longer fills them.
#
# ```python
# fitting = [name for name, (_, memory) in points.items() if memory <= 4]
# shorter = Costs(1 / 2, 1 / 2, 1 / 4, activation=1 / 2)
# timeline = simulate(schedules.v_min(8, 24), shorter)
# assert fitting == ["v-min"] and max(timeline.peak_memory) == 4
# assert round(100 * timeline.bubble_fraction, 1) == 28.8
# ```
#
# 3. 66, 54, 42 and 30 units. Divided by 6 that is 11, 9, 7 and 5 chunks, as many as the ranks hold: both stages of rank
#    0 live longer than those of rank 3.
#
# ```python
# around = schedules.interleaved_1f1b(4, 24)
# sums = [sum(lives(around, rank).values()) for rank in range(4)]
# assert sums == [66, 54, 42, 30]
# assert simulate(around).peak_activations == tuple(units / 6 for units in sums) == (11, 9, 7, 5)
# ```
#
# </details>
#
# Next, `11_your_own_schedule.py`: you write one.
