# %% [markdown]
# # 10 · Controllable memory: the V shapes
#
# Zero bubble paid for its time with memory. This lesson finds where the memory goes, and then folds the pipeline into a
# V, so that every rank holds equally much, and so that you may choose how much: all that 1F1B held on its first rank,
# half of it, or a third. What you give for less memory is idle time, as ever, but now you have the choice.

# %%
import numpy as np

from minipipe import Costs, Pipeline, nn, render, schedules, simulate, spawn, verify
from minipipe.errors import ScheduleError
from minipipe.testing import check_same_as_one_process

# %% [markdown]
# ## Memory is how long times how often
#
# A microbatch takes up memory on a rank from its F there until its backward there is done. Call that time its *life* on
# the rank. Once the pipeline is full, a new one arrives every so often. If each lives for 12 units and one arrives
# every 3, then 12 / 3 = 4 are alive at any time. (It is the same with guests at an inn: how many are there is how many
# come each day, times how many days they stay.)
#
# Here is 1F1B with four ranks and 24 microbatches, F, I and W one unit each. A rank's work on one microbatch takes 3
# units, so one arrives every 3. We look at microbatch 12, when the pipeline is full.


# %%
def lives(schedule, rank, microbatch=12):
    """Return, for each stage of a rank, how long it holds a microbatch: from the start of F to the end of B or W."""
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
# The first stage has the longest life, for its microbatches have the whole way before them, there and back. The last
# stage has the shortest: it begins the backward as soon as it has ended the forward. So the first rank is full when the
# last is nearly empty, and it is the fullest rank that has to fit.
#
# ## The V
#
# So give each rank one stage with a long life and one with a short life. Cut the model into twice as many stages as
# there are ranks, and place them there and back: rank 0 gets the first stage *and the last*, rank 1 the second and the
# last but one, and so on. The last rank holds two neighbours, and hands over to itself without a message.

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
# (Lesson 08 placed chunks *round* the ranks: 0, 1, 2, 3, 0, 1, 2, 3. There rank 0 has the longest life of each half,
# and memory stays uneven.)
#
# **ZB-V** runs I and W apart over such a V. The lives of a rank's two stages now add up to the same on every rank: what
# one has more, the other has less.

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
# Eight chunks are as much as four whole stages, for a chunk is half of one. That is what 1F1B holds on its first rank,
# but without any idle time within a rank's own span. As in lesson 08, labels in text name the stage, and a
# notebook has the later one in a darker shade.

# %%
render.show(zb_v)
timeline = simulate(zb_v)
print(f"idle within each rank's own span: {[timeline.idle_within_span(rank) for rank in range(4)]}")
assert [timeline.idle_within_span(rank) for rank in range(4)] == [0, 0, 0, 0]
assert timeline.makespan == 6 * 8 + 4 - 1 == 51

# %% [markdown]
# ## Half, and a third
#
# Now memory can be chosen, for a life can be made shorter. A microbatch does six things on a rank: F and I on either
# stage, and W on either. Fix the moments of the four that others wait for, for one microbatch, and repeat that pattern
# every six units for the next ones; W goes into the gaps. The earlier the pattern turns back towards I, the shorter the
# life. Two patterns are known by name (Qi et al. 2024): **V-Half** and **V-Min**. Turning back sooner means that a
# microbatch is hurried through while others wait, so the pattern fits together less well, and there is idle time.

# %%
v_half = schedules.v_half(num_ranks=4, num_microbatches=8)
render.show(v_half)
assert simulate(v_half).makespan == 53 and simulate(v_half).peak_activations == (6, 6, 6, 6)

# %%
v_min = schedules.v_min(num_ranks=4, num_microbatches=8)
render.show(v_min)
assert simulate(v_min).makespan == 59 and simulate(v_min).peak_activations == (4, 4, 4, 4)

# %% [markdown]
# ## A table to choose from
#
# To compare schedules with one stage and with two stages on each rank, count in units of a rank's whole share: a chunk
# takes half the time, and holds half the memory. Eight ranks and 24 microbatches this time, so that the differences
# show. Memory is what the fullest rank holds, in microbatches.

# %%
NAMES = ["gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min"]


def bubble_and_memory(name, num_ranks, num_microbatches):
    """Return the bubble in per cent of all time, and the most microbatches that a rank holds."""
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
# The same as a picture: memory to the right, bubble upwards. What lies further down and further to the left is better
# in both. (GPipe, at 24 microbatches, does not fit on the paper.)


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


print(plot(points))
best = [
    name
    for name, (bubble, memory) in points.items()
    if not any(b <= bubble and m <= memory and (b, m) != (bubble, memory) for b, m in points.values())
]
print(f"not beaten in both at once: {', '.join(best)}")
assert best == ["zb-v", "v-half", "v-min"]

# %% [markdown]
# Only the three V shapes are left: each of the others is beaten by one of them in one of the two, and no better in the
# other. Between the three you choose by the memory that you have. V-Half holds 3 microbatches less than ZB-V, and 6 per
# cent more of all time is idle; V-Min saves one more, for another 4 per cent.
#
# So why would anybody use anything else? Because this counts F, I and W as equally long and messages as free. I and W
# are seldom equally long. What is held between I and W can be more than what was held before (lesson 09). And a V cuts
# the model into twice as many stages, so twice as many messages are on their way. With few microbatches on board, there
# is nothing else to do while one of them travels. Let each message take half as long as a rank's F:

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
# ZB-V is hardly better than the plain ZB-H1 now, and the ones that hold little suffer most. There is no best schedule,
# only one that is best for given numbers. Put your own into `Costs`, and look again.
#
# ## A limit, and who keeps to it
#
# When you know how much fits, let `verify` enforce it. It counts (stage, microbatch) pairs, and names the first action
# that is too much.

# %%
try:
    verify(zb_v, memory_limit=6)
except ScheduleError as error:
    problem = error.problems[0]
print(problem.message)
assert problem.code == "memory" and (problem.rank, problem.step) == (0, 6)
assert problem.message == "Rank 0, step 6: with 0F6 it holds 7 (stage, microbatch) pairs; the limit is 6."

# %%
verify(v_half, memory_limit=6)  # says nothing: it is legal, and holds no more than that
verify(v_min, memory_limit=4)

# %% [markdown]
# ## For real
#
# V-Half with arrays and messages: four ranks train eight layers for one step. Rank 0 reads the batch *and* computes the
# loss now, as it has the first stage and the last.


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
# What was predicted is what was held. And the gradients are those of one process, to the last bit.

# %%
for schedule in (zb_v, v_half, v_min):
    check_same_as_one_process(network(), nn.MSELoss(), samples, samples, schedule)
    print(f"{schedule.name}: the bits of one process")
    assert schedule.is_reproducible

# %% [markdown]
# ## Exercise
#
# 1. `schedules.dualpipe_v` goes over the same V. Where does it lie in the plot? Add it to `NAMES`. (It is made for
#    hiding messages behind computing, which the simulator does not reward.)
# 2. Which of the eight has the least bubble if no rank may hold more than 4 microbatches, for 8 ranks? And if W takes
#    half as long as I (`Costs(share, share, share / 2)`)?
# 3. In `lives`, look at `schedules.interleaved_1f1b(4, 24)` with its chunks placed round the ranks. What do the lives
#    of a rank's two stages add up to?
# 4. The coursework task that belongs here is `12_memory_peak`: say what a schedule holds. (`minipipe coursework DIR`
#    makes your copy.)
#
# Next, `11_your_own_schedule.py`: you write one.
