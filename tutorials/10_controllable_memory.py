# %% [markdown]
# # 10 · Controllable memory: V-shaped schedules
#
# In this lesson you find out why some ranks hold more activations than others, and you
# place the stages in the shape of a V so that every rank holds the same amount. You can
# then choose that amount: as much as 1F1B holds on its first rank, or about a half, or
# about a third of it. Less memory costs more idle time.

# %%
from operator import attrgetter

import numpy as np

from minipipe import (
    Costs,
    Pipeline,
    Timeline,
    nn,
    render,
    schedules,
    simulate,
    spawn,
    verify,
)
from minipipe.errors import ScheduleError
from minipipe.schedules import Action, Span
from minipipe.testing import check_same_as_one_process

# %% [markdown]
# ## Memory is lifetime times arrival rate
#
# A microbatch takes up memory on a rank from the start of its F on that rank until its
# backward there is finished. This time is its *lifetime* on the rank. Once the pipeline
# is full, new microbatches arrive at a steady rate. If each lives for 12 units and one
# arrives every 3 units, then 12 / 3 = 4 are alive at any time. This is Little's law.
# (It also holds for guests in a hotel: their number is the arrivals per day times the
# days that each guest stays.)
#
# Take 1F1B with four ranks and 24 microbatches, where F, I and W take one unit each. A
# rank works on one microbatch for 3 units, so one arrives every 3 units. The next cell
# reads the lifetime of microbatch 12, when the pipeline is full, from the simulation.


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
    counted = simulate(one_f_one_b).peak_activations[rank]
    print(
        f"rank {rank}: lifetime {life:g} units, so {life / 3:g} are alive; the "
        f"simulator counts {counted}"
    )
    assert life / 3 == counted == 4 - rank

# %% [markdown]
# Lifetimes are longest on the first stage, because its microbatches travel to the far
# end of the pipeline and back. They are shortest on the last stage, which starts the
# backward as soon as the forward is finished. So the first rank holds many microbatches
# while the last holds one, and the rank that holds the most decides whether the model
# fits.
#
# ## The V
#
# The remedy is to give each rank one stage with a long lifetime and one with a short
# lifetime. Partition the model into twice as many stages as ranks, and place them out
# and back: rank 0 holds the first stage *and the last*, rank 1 holds the second and the
# second to last, and so on. The last rank holds two neighbouring stages, and passes
# values between them without a message.

# %%
zb_v = schedules.zb_v(num_ranks=4, num_microbatches=8)
for rank in range(4):
    first, second = zb_v.stages_of(rank)
    indent = "         " * rank
    print(
        f"rank {rank}  {indent}stage {first}{'                  ' * (3 - rank)}  "
        f"stage {second}"
    )
print(f"the rank of each stage: {zb_v.placement}")
assert zb_v.placement == (0, 1, 2, 3, 3, 2, 1, 0)
assert [zb_v.stages_of(rank) for rank in range(4)] == [(0, 7), (1, 6), (2, 5), (3, 4)]

# %% [markdown]
# (Lesson 08 placed chunks *around* the ranks: 0, 1, 2, 3, 0, 1, 2, 3. There each
# chunk of rank 0 has a longer lifetime than the same chunk of a later rank, and memory
# stays uneven: exercise 3.)
#
# **ZB-V** (Qi et al. 2023) runs I and W separately on such a V. A stage is now half as
# long as in 1F1B. Each of its actions takes one unit again in this lesson. Here are the
# lifetimes on the two stages of each rank:

# %%
longer = schedules.zb_v(num_ranks=4, num_microbatches=24)
for rank in range(4):
    life = lives(longer, rank)
    both = " + ".join(f"{units:g}" for units in life.values())
    print(
        f"rank {rank}: lifetimes {both} = {sum(life.values()):g} units; one "
        "arrives every 6, so 8 are held"
    )
    assert sum(life.values()) == 48
assert [tuple(lives(longer, rank).values()) for rank in range(4)] == [
    (45, 3),
    (39, 9),
    (33, 15),
    (27, 21),
]
assert simulate(longer).peak_activations == (8, 8, 8, 8)

# %% [markdown]
# The longer one lifetime is, the shorter the other, and their sum is the same on every
# rank. Eight chunks take as much memory as four whole stages, because a chunk is half
# of a stage. That is what 1F1B holds on its first rank.
#
# Now the picture. As in lesson 08, labels in text include the stage, and a notebook
# draws the later stage of a rank in a darker shade.

# %%
render.show(zb_v)
timeline = simulate(zb_v)
print(
    "idle within each rank's span: "
    f"{[timeline.idle_within_span(rank) for rank in range(4)]}"
)
assert [timeline.idle_within_span(rank) for rank in range(4)] == [0, 0, 0, 0]
assert timeline.makespan == 6 * 8 + 4 - 1 == 51

# %% [markdown]
# No rank is idle between its first and its last action.
#
# ## Half the memory: a timetable for one microbatch
#
# A shorter lifetime means less memory, so you choose the memory by choosing lifetimes.
# A microbatch has six actions on each rank: F, I and W on both of its stages. Other
# ranks wait only for F and I. So start with these four and leave W aside. They make two
# round trips: first F goes out, from rank 0 to the last rank, and back to rank 0, then
# I does the same. A trip can be fast and pass a rank in every unit, or it can be slow
# and take two units for each rank.
#
# **V-Half** (Qi et al. 2024) travels out slowly and back fast on both trips. The next
# cell draws its timetable for four ranks: the unit in which each of the four actions
# starts. In the text, capital letters are the first stage of a rank and small letters
# its second stage.


# %%
def half(num_ranks, wait):
    """Return, for each rank, when F out, F back, I out and I back start; `wait` units lie between the two trips."""
    p = num_ranks
    return [
        (2 * r, 3 * p - 2 - r, 3 * p - 1 + wait + 2 * r, 6 * p - 2 + wait - r)
        for r in range(p)
    ]


def actions_of(timetable, rank):
    """Return the four actions of microbatch 0 on a rank, each with its start."""
    out, back = rank, 2 * len(timetable) - 1 - rank  # the two stages of the rank
    return list(zip((f"{out}F", f"{back}F", f"{back}I", f"{out}I"), timetable[rank]))


def as_timeline(name, rows, peaks):
    """Return (action, start) pairs of each rank as a timeline: every action takes one unit."""
    spans = [
        [Span(Action.parse(action), float(start), start + 1.0) for action, start in row]
        for row in rows
    ]
    return Timeline(
        name,
        tuple(tuple(sorted(row, key=attrgetter("start"))) for row in spans),
        tuple(peaks),
    )


def as_text(timeline):
    """Return a row for each rank and a column for each unit; # where two actions start in the same unit."""
    lines = []
    for rank, row in enumerate(timeline.spans):
        cells = ["."] * round(timeline.makespan)
        for action, start, _ in row:
            letter = (
                str(action.kind) if action.stage == rank else str(action.kind).lower()
            )
            cells[round(start)] = letter if cells[round(start)] == "." else "#"
        lines.append(f"rank {rank}  {''.join(cells)}")
    return "\n".join([timeline.name, *lines])


def draw(*timelines):
    """Show timelines as one picture in a notebook, as text elsewhere."""
    render.show_picture(
        render.draw_svg(*timelines, width=640, memory=False, legend=False),
        "\n".join(map(as_text, timelines)),
    )


timetable = half(num_ranks=4, wait=3)
trip = as_timeline(
    "one microbatch of V-Half",
    [
        [(f"{action}0", start) for action, start in actions_of(timetable, rank)]
        for rank in range(4)
    ],
    peaks=[2] * 4,
)
draw(trip)
assert timetable == [(0, 10, 14, 25), (2, 9, 16, 24), (4, 8, 18, 23), (6, 7, 20, 22)]
assert trip.makespan == 26

# %% [markdown]
# ## The timetable repeats every six units
#
# The next microbatch follows six units later, because each one needs six units of work
# on every rank: F, I and W on two stages. So microbatch k starts `6 k` units after
# microbatch 0, and the whole timetable repeats with a period of six units.
#
# That is the difficulty: two microbatches must not need a rank in the same unit. To see
# whether they do, look at one period in the middle of a long step. An action that
# starts in unit 25 of its own microbatch, 25 = 4 × 6 + 1, stands in slot 1 of the
# period, and belongs to the microbatch that started four periods earlier. The slot is
# the **remainder** of the start modulo 6. The next cell draws this period twice:
# without a wait between the two trips, and with a wait of 3 units.


# %%
def held_at_most(starts):
    """Return the most (stage, microbatch) pairs of a rank, when a microbatch starts every six units."""
    # from F to I on either stage
    lives = (starts[0], starts[3]), (starts[1], starts[2])
    return max(
        sum((end - slot) // 6 + (slot - start) // 6 + 1 for start, end in lives)
        for slot in range(6)
    )


def one_period(name, timetable, microbatch=4):
    """Return what the ranks do in the six units from the start of this microbatch on."""
    rows = [
        [
            (f"{action}{microbatch - start // 6}", start % 6)
            for action, start in actions_of(timetable, rank)
        ]
        for rank in range(len(timetable))
    ]
    return as_timeline(name, rows, map(held_at_most, timetable))


def fits(timetable):
    """Tell whether microbatches that follow every six units never need a rank at the same time."""
    return all(len({start % 6 for start in starts}) == 4 for starts in timetable)


without, with_wait = half(4, wait=0), half(4, wait=3)
draw(one_period("no wait", without), one_period("a wait of 3 units", with_wait))
assert not fits(without) and fits(with_wait)
assert [p for p in range(2, 16) if not fits(half(p, wait=0))] == [
    2,
    4,
    6,
    8,
    10,
    12,
    14,
]
assert all(fits(half(p, wait=3)) for p in range(2, 16, 2))
assert [start % 6 for start in without[0]] == [0, 4, 5, 4] and [
    start % 6 for start in with_wait[0]
] == [0, 4, 2, 1]

# %% [markdown]
# Without the wait, two actions fall into the same slot on every rank: slot 4 on rank 0,
# slot 3 on rank 1, and so on. (The picture draws the two side by side inside a frame.
# The text has a `#`.) With a wait of 3 units, the four actions of each rank have four
# different remainders. The two slots that remain free on each rank are for the two W.
# (With an odd number of ranks, V-Half needs no wait.)
#
# ## The memory of the timetable
#
# A rank holds the first stage of a microbatch from `F out` to `I back`, and the second
# stage from `F back` to `I out`.

# %%
held = [
    (i_back + 1 - f_out, i_out + 1 - f_back)
    for f_out, f_back, i_out, i_back in timetable
]
for rank, (first, second) in enumerate(held):
    print(
        f"rank {rank}: {first} + {second} = {first + second} units; one arrives "
        f"every 6: {(first + second) / 6:.1f}"
    )
assert held == [(26, 5), (23, 8), (20, 11), (17, 14)] and {
    sum(units) for units in held
} == {31}
assert [held_at_most(starts) for starts in timetable] == [6, 6, 6, 6]

# %% [markdown]
# The sum is the same on all ranks, as in ZB-V. With 31 units, and a microbatch every
# six units, a rank holds five or six chunks. ZB-V needed eight.
#
# ## The schedule made from the timetable
#
# `schedules.v_half` writes the timetable down for all microbatches, puts each W into
# the next free slot, and closes the gaps at the beginning and at the end. The next cell
# draws three periods from the middle of a step with 24 microbatches.

# %%
long_step = simulate(schedules.v_half(num_ranks=4, num_microbatches=24))
middle = as_timeline(
    "v-half, units 60 to 78",
    [
        [(str(action), start - 60) for action, start, _ in row if 60 <= start < 78]
        for row in long_step.spans
    ],
    peaks=[6] * 4,
)
draw(middle)
for row in middle.spans:
    period = [(action.stage, action.kind, action.microbatch) for action, _, _ in row]
    assert [(stage, kind, k + 1) for stage, kind, k in period[:12]] == period[6:]
assert middle.bubble_fraction == 0

# %% [markdown]
# Every period has the same pattern, with all microbatch numbers one higher. Each rank
# uses all of its six slots: two F, two I and two W.
#
# The timetable of one microbatch, W included, is the *building block* of the schedule.
# `schedules.BuildingBlock` takes it from a schedule, predicts the memory from it alone,
# as you did above, and repeats it:

# %%
block = schedules.BuildingBlock.of(schedules.v_half(num_ranks=4, num_microbatches=48))
print(block.to_text())
print(f"predicted peaks: {block.peak_activations}")
assert block.peak_activations == simulate(block.unrolled(24)).peak_activations
assert block.peak_activations == (6, 6, 6, 6) and block.interval == 6

# %% [markdown]
# In the playground of the site, or with `minipipe edit`, you can move the actions of a
# block by hand and watch the prediction.
#
# Here is a whole step of 8 microbatches. W makes the lifetimes a little longer:

# %%
v_half = schedules.v_half(num_ranks=4, num_microbatches=8)
render.show(v_half)
sums = [sum(lives(schedules.v_half(4, 24), rank).values()) for rank in range(4)]
print(f"lifetimes with W {sums}, so at most {max(sums) / 6:g} chunks")
print(f"the simulator counts {simulate(v_half).peak_activations}")
assert sums == [34, 34, 34, 36]
assert simulate(v_half).makespan == 53 and simulate(v_half).peak_activations == (
    6,
    6,
    6,
    6,
)

# %% [markdown]
# All idle time lies at the beginning and at the end of the step, when no other
# microbatches fill the pauses of a trip. So it does not depend on the number of
# microbatches. The next cell also contains `v_min`, which the next section explains:

# %%
for m in (8, 24):
    over = [
        simulate(build(4, m)).makespan - 6 * m
        for build in (schedules.zb_v, schedules.v_half, schedules.v_min)
    ]
    print(f"{m:2} microbatches: zb-v, v-half and v-min are idle for {over} units")
    assert over == [3, 5, 11]

# %% [markdown]
# ## A third of the memory
#
# The last number belongs to **V-Min**, which is fast everywhere: it passes a rank in
# every unit, out and back, on both trips. Here are its timetable for four ranks, and
# one period:


# %%
def fast(num_ranks, wait):
    """Return when F out, F back, I out and I back start on each rank; one unit for each rank on all trips."""
    p = num_ranks
    return [
        (r, 2 * p - 1 - r, 2 * p + wait + r, 4 * p - 1 + wait - r) for r in range(p)
    ]


hurry = fast(num_ranks=4, wait=0)
rows = [
    [(f"{action}0", start) for action, start in actions_of(hurry, rank)]
    for rank in range(4)
]
draw(as_timeline("one microbatch of V-Min", rows, peaks=[2] * 4))
draw(one_period("one period of V-Min", hurry, microbatch=2))
assert fits(hurry) and hurry[0] == (0, 7, 8, 15)
assert [p for p in range(2, 16) if not fits(fast(p, wait=0))] == [3, 6, 9, 12, 15]
assert all(fits(fast(p, wait=2)) for p in (3, 6, 9, 12, 15))

# %% [markdown]
# On four ranks the remainders differ without a wait. (On 3, 6, 9, … ranks V-Min needs a
# wait of 2 units.) For many ranks V-Min takes a third of the memory of ZB-V, and V-Half
# takes a half. On four ranks V-Min holds 4 chunks instead of 8:

# %%
v_min = schedules.v_min(num_ranks=4, num_microbatches=8)
render.show(v_min)
print(
    f"v-min holds {simulate(v_min).peak_activations} chunks, zb-v "
    f"{simulate(zb_v).peak_activations}"
)
assert simulate(zb_v).peak_activations == (8, 8, 8, 8)
assert simulate(v_min).makespan == 59 and simulate(v_min).peak_activations == (
    4,
    4,
    4,
    4,
)

# %% [markdown]
# ## A table to choose from
#
# To compare schedules with one stage and with two stages per rank, count in units of a
# whole rank: a chunk takes half the time and half the memory. This time there are eight
# ranks and 24 microbatches, so that the differences show. Memory is counted in
# microbatches on the fullest rank.

# %%
NAMES = [
    "gpipe",
    "1f1b",
    "interleaved-1f1b",
    "zb-h1",
    "zb-h2",
    "zb-v",
    "v-half",
    "v-min",
]


def bubble_and_memory(name, num_ranks, num_microbatches):
    """Return the bubble in per cent, and the number of microbatches held by the fullest rank."""
    schedule = schedules.build(name, num_ranks, num_microbatches)
    part = num_ranks / schedule.num_stages
    timeline = simulate(schedule, Costs(part, part, part, activation=part))
    return 100 * timeline.bubble_fraction, max(timeline.peak_memory)


points = {
    name: bubble_and_memory(name, num_ranks=8, num_microbatches=24) for name in NAMES
}
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
assert [round(bubble, 1) for bubble, _ in points.values()] == [
    22.6,
    22.6,
    12.7,
    8.9,
    8.9,
    4.6,
    10.6,
    14.8,
]

# %% [markdown]
# The same as a picture, with memory to the right and bubble upwards, so that lower and
# further left is better. In a terminal, GPipe is off the chart at 24 microbatches. A
# notebook draws all named schedules on scales that double from line to line, with the
# **Pareto front**: the schedules that no other schedule beats in both respects. The
# dashed lines are bounds that no schedule can pass (lesson 16).


# %%
def plot(points, columns=66, rows=12, most_memory=16, most_bubble=24):
    """Return the points as text: memory to the right, bubble upwards, in per cent."""
    grid = [[" "] * columns for _ in range(rows + 1)]
    for name, (bubble, memory) in points.items():
        if memory <= most_memory:
            row, column = (
                rows - round(bubble / most_bubble * rows),
                round(memory / most_memory * 48),
            )
            grid[row][column : column + len(name) + 2] = f"* {name}"
    lines = [
        f"{most_bubble * (rows - i) / rows:4.0f} % |{''.join(row)}".rstrip()
        for i, row in enumerate(grid)
    ]
    ticks = "".join(f"{memory:<12}" for memory in range(0, most_memory + 1, 4))
    return "\n".join(
        [
            *lines,
            "       " + "-" * columns,
            f"       {ticks.rstrip()} microbatches held",
        ]
    )


render.show_picture(render.draw_tradeoff(schedules.tradeoff(8, 24)), plot(points))
best = [
    name
    for name, (bubble, memory) in points.items()
    if not any(
        b <= bubble and m <= memory and (b, m) != (bubble, memory)
        for b, m in points.values()
    )
]
print(f"on the Pareto front: {', '.join(best)}")
assert best == ["zb-v", "v-half", "v-min"]

# %% [markdown]
# Only the three V shapes are on the front. For each of the other schedules, one of the
# three is better in one respect and at least as good in the other. Choose among the
# three by the memory that you have. V-Half holds 3 microbatches fewer than ZB-V, and
# its bubble is 6 percentage points larger. V-Min saves one more microbatch for another
# 4 points.
#
# ## When the V loses
#
# This comparison assumed that F, I and W take equally long and that messages are free.
# Both assumptions often fail. I and W seldom take equally long, and between I and W a
# microbatch can hold more than before I (lesson 09). A V also has twice as many stages,
# so it sends twice as many messages. A rank that holds few microbatches has nothing
# else to do while a message travels. Let each message take half as long as the forward
# of a whole rank:

# %%
for name in ("zb-h1", "zb-v", "v-half", "v-min"):
    schedule = schedules.build(name, num_ranks=8, num_microbatches=24)
    part = 8 / schedule.num_stages
    slow = simulate(schedule, Costs(part, part, part, latency=0.5))
    bubble, without = 100 * slow.bubble_fraction, points[name][0]
    print(
        f"{name:7} {len(slow.messages)} messages, bubble {bubble:.1f} %, without "
        f"latency {without:.1f} %"
    )
    assert bubble > 2.5 * without
    assert len(slow.messages) == (2 * 24 * 7 if name == "zb-h1" else 2 * 24 * 14)
    assert (
        round(bubble, 1)
        == {"zb-h1": 22.6, "zb-v": 22.2, "v-half": 42.2, "v-min": 53.4}[name]
    )

# %% [markdown]
# ZB-V is now hardly better than ZB-H1, and the schedules that hold the least lose the
# most. Which schedule is best depends on the costs. Put the costs of your model into
# `Costs`, and compare again.
#
# ## Enforce a limit
#
# Once you know how much fits, let `verify` enforce it. It counts (stage, microbatch)
# pairs, and reports the first action that exceeds the limit.

# %%
try:
    verify(zb_v, memory_limit=6)
except ScheduleError as error:
    problem = error.problems[0]
print(problem.message)
assert problem.code == "memory" and (problem.rank, problem.step) == (0, 6)
assert problem.message == (
    "Rank 0, position 6: with 0F6 it holds 7 (stage, microbatch) pairs; the limit is 6."
)

# %%
verify(v_half, memory_limit=6)  # silent: it is legal, and within the limit
verify(v_min, memory_limit=4)

# %% [markdown]
# ## Train with V-Half
#
# Now with real arrays and messages: four ranks train eight layers for one step. Rank 0
# reads the batch *and* computes the loss, because it holds both the first stage and the
# last.


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
    print(
        f"rank {rank} has stages {stages} and held at most "
        f"{measured.peak_activations[rank]} pairs"
    )
    assert stages == (rank, 7 - rank)
    assert (
        measured.peak_activations == simulate(v_half).peak_activations == (6, 6, 6, 6)
    )

# %% [markdown]
# The ranks held exactly as much as the simulator predicted. One process computes the
# same gradients, bit for bit:

# %%
for schedule in (zb_v, v_half, v_min):
    check_same_as_one_process(network(), nn.MSELoss(), samples, samples, schedule)
    print(f"{schedule.name}: equal to one process, bit for bit")
    assert schedule.is_reproducible

# %% [markdown]
# ## The same in PyTorch and in Megatron-LM
#
# In PyTorch, `ScheduleZBVZeroBubble` is ZB-V; lesson 09 has a program that runs it.
# Megatron-LM has no V schedule. The authors' fork of it, which lesson 09 names, has
# V-Half and V-Min: the last option is `half` or `min`. This command was not run for
# this lesson:
#
# ```bash
# ZERO_BUBBLE_V_SCHEDULE=1 bash examples/pretrain_zero_bubble.sh \
#     --zero-bubble-v-schedule-mem-setup half
# ```

# %% [markdown]
# ## What you have learnt
#
# - The number of microbatches that a rank holds is their lifetime divided by the time
#   between arrivals.
# - A V pairs a long lifetime with a short one, so that all ranks hold the same.
# - A V schedule repeats a timetable with a period of six units. It works if the
#   remainders modulo six differ on each rank.
# - A shorter trip holds less and idles more. Slow messages cost the V schedules most.
#
# ## Exercise
#
# 1. `schedules.dualpipe_v` uses the same V. Where is it in the plot? Add it to `NAMES`.
#    (It is designed to hide messages behind computation, which the simulator does not
#    reward.)
# 2. Which of the eight schedules has the smallest bubble if no rank may hold more than
#    4 microbatches, with 8 ranks? What is its bubble if W takes half as long as I
#    (`Costs(part, part, part / 2)`)?
# 3. Call `lives` on `schedules.interleaved_1f1b(4, 24)`, whose chunks are placed around
#    the ranks. What do the lifetimes of a rank's two stages add up to?
# 4. The coursework task for this lesson is `12_memory_peak`: find out how much a
#    schedule holds. (`minipipe coursework DIR` creates your copy.)
#
# <details>
# <summary>Answers</summary>
#
# 1. At a bubble of 4.6 % and 8.5 microbatches: just to the right of ZB-V, at the same
#    height. So ZB-V is better here: dualpipe-v holds half a microbatch more, and gains
#    nothing.
#
# ```python
# bubble, memory = bubble_and_memory("dualpipe-v", num_ranks=8, num_microbatches=24)
# assert (round(bubble, 1), memory) == (4.6, 8.5)
# assert round(points["zb-v"][0], 1) == 4.6 and points["zb-v"][1] == 8
# ```
#
# 2. V-Min, the only one that fits, with 14.8 %. With the shorter W its bubble is 28.8
#    %. The schedule was built for periods of six units, and the work is now shorter.
#
# ```python
# fitting = [name for name, (_, memory) in points.items() if memory <= 4]
# shorter = Costs(1 / 2, 1 / 2, 1 / 4, activation=1 / 2)
# timeline = simulate(schedules.v_min(8, 24), shorter)
# assert fitting == ["v-min"] and max(timeline.peak_memory) == 4
# assert round(100 * timeline.bubble_fraction, 1) == 28.8
# ```
#
# 3. 66, 54, 42 and 30 units. Divided by 6 that is 11, 9, 7 and 5 chunks, as many as the
#    ranks hold. Each chunk has the longest lifetime on rank 0 and the shortest on rank
#    3: the first chunk 45 and 27 units, the second chunk 21 and 3.
#
# ```python
# around = schedules.interleaved_1f1b(4, 24)
# sums = [sum(lives(around, rank).values()) for rank in range(4)]
# assert sums == [66, 54, 42, 30]
# assert lives(around, 0) == {0: 45, 4: 21} and lives(around, 3) == {3: 27, 7: 3}
# assert simulate(around).peak_activations == tuple(units / 6 for units in sums) == (11, 9, 7, 5)
# ```
#
# </details>
#
# Next, `11_your_own_schedule.py`: you write one.
