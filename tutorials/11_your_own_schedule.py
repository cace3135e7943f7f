# %% [markdown]
# # 11 · Your own schedule: write it, prove it, run it
#
# A schedule is a list of actions for each rank, and nothing else. So you can write one with a pencil. In this lesson
# you write schedules as text, let the verifier explain what is wrong with them, beat the named ones on a problem that
# they were not made for, and train with the result.

# %%
import tempfile
from pathlib import Path

import numpy as np

from minipipe import Costs, Pipeline, Schedule, nn, render, schedules, simulate, spawn, verify
from minipipe.errors import ScheduleError
from minipipe.schedules import theory
from minipipe.testing import check_same_as_one_process

# %% [markdown]
# ## Write it as text
#
# A line for each rank, an action in each cell: stage, kind, microbatch. `1B0` is the backward of microbatch 0 on stage
# 1. The numbers of ranks, stages and microbatches follow from what you write.

# %%
mine = Schedule.from_text(
    """
    rank 0: 0F0 0F1 0B0 0B1
    rank 1: 1F0 1B0 1F1 1B1
    """,
    name="mine",
)
verify(mine)  # says nothing: it is legal, and every rank comes to its end
render.show(mine)
print(f"{mine.num_ranks} ranks, {mine.num_microbatches} microbatches: {simulate(mine).makespan:g} units")
assert simulate(mine).makespan == theory.makespan("1f1b", num_ranks=2, num_microbatches=2) == 9

# %% [markdown]
# That is 1F1B for two ranks, and its time is what theory says: (m + p - 1)(F + B) = 3 × 3.
#
# ## Let the verifier explain: the wrong order
#
# Now some mistakes. The verifier finds the cause, not its consequences, names rank and step (both counted from 0), and
# marks the place. Here rank 1 begins a backward before the forward that it belongs to.


# %%
def complaint_about(text):
    """Return what the verifier says."""
    try:
        verify(Schedule.from_text(text))
    except ScheduleError as error:
        return error
    raise AssertionError("there is nothing wrong with it")


error = complaint_about(
    """
    rank 0: 0F0 0F1 0I0 0W0 0I1 0W1
    rank 1: 1F0 1I0 1W0 1I1 1W1 1F1
    """
)
print(error)
assert error.code == "order" and (error.problems[0].rank, error.problems[0].step) == (1, 3)

# %% [markdown]
# ## Something is missing
#
# A backward in two halves needs both. Here somebody forgot a W, so the gradient of stage 1 would lack a microbatch, and
# the network would learn something slightly wrong without a word. That is why a schedule is verified before it runs.

# %%
error = complaint_about(
    """
    rank 0: 0F0 0F1 0I0 0W0 0I1 0W1
    rank 1: 1F0 1I0 1F1 1I1 1W1
    """
)
print(error)
assert error.code == "missing" and error.problems[0].message == "1W0 is missing on rank 1."

# %% [markdown]
# ## Waiting in a circle
#
# The third mistake is one that no rank can see for itself: each line is fine, but the two do not fit together. Rank 0
# wants the gradient of microbatch 0 before it hands over microbatch 1. Rank 1 wants microbatch 1 before it begins with
# gradients. Each waits for the other, for ever: a deadlock (lesson 03). In the drawing, the marked cells are those
# where the ranks of the circle are stuck.

# %%
error = complaint_about(
    """
    rank 0: 0F0 0I0 0F1 0W0 0I1 0W1
    rank 1: 1F0 1F1 1I0 1W0 1I1 1W1
    """
)
print(error)
assert error.code == "deadlock" and ">0I0<" in error.grid and ">1F1<" in error.grid

# %% [markdown]
# ## A problem, and its par
#
# Now something useful. Three ranks, six microbatches, and a model that cannot be cut evenly: the middle stage takes
# twice as long as the others, for F, I and W alike. And memory is short: **no rank may hold more than 2 microbatches**.
#
# What is the best that anybody can hope for? The middle rank has 6 × (2 + 2 + 2) = 36 units of work, and cannot begin
# before the first one has done a forward, 1 unit. So no schedule can be faster than 37. That is our *par*, as in golf.

# %%
costs = Costs(forward=[1, 2, 1], backward_input=[1, 2, 1], backward_weight=[1, 2, 1])
LIMIT, PAR = 2, 1 + 6 * (2 + 2 + 2)
for name in ("sequential", "gpipe", "1f1b", "zb-h1", "zb-h2"):
    timeline = simulate(schedules.build(name, num_ranks=3, num_microbatches=6), costs)
    fits = max(timeline.peak_activations) <= LIMIT
    print(f"{name:10} {timeline.makespan:g} units, holds {timeline.peak_activations}{': fits' if fits else ''}")
    assert fits == (name == "sequential")
    assert timeline.makespan == {"sequential": 72, "gpipe": 42, "1f1b": 40, "zb-h1": 37, "zb-h2": 37}[name]
assert PAR == 37

# %% [markdown]
# ZB-H1 is at par, but holds 3. The only named schedule that fits is the worst of all.
#
# ## A first try
#
# Begin with what you know: 1F1B with halves, W right after I, and never more than two on board. The last rank needs
# only one.

# %%
first_try = Schedule.from_text(
    """
    rank 0: 0F0 0F1 0I0 0W0 0F2 0I1 0W1 0F3 0I2 0W2 0F4 0I3 0W3 0F5 0I4 0W4 0I5 0W5
    rank 1: 1F0 1F1 1I0 1W0 1F2 1I1 1W1 1F3 1I2 1W2 1F4 1I3 1W3 1F5 1I4 1W4 1I5 1W5
    rank 2: 2F0 2I0 2W0 2F1 2I1 2W1 2F2 2I2 2W2 2F3 2I3 2W3 2F4 2I4 2W4 2F5 2I5 2W5
    """,
    name="first try",
)
verify(first_try, memory_limit=LIMIT)
timeline = simulate(first_try, costs)
render.show(timeline)
assert timeline.makespan == 41

# %% [markdown]
# 41: one less than GPipe, which holds six, but four above par. Where are the four units? Only rank 1 matters, as it is
# the one with most work. Ask the timeline why it is idle.

# %%
waits = [idle for idle in timeline.idle[1] if idle.cause == "waiting"]
for idle in waits:
    print(f"rank 1 waits from {idle.start:g} to {idle.end:g} for {idle.awaited} on rank {idle.source}")
assert [(str(idle.awaited), idle.end - idle.start) for idle in waits] == [(f"0F{k}", 1) for k in (2, 3, 4, 5)]

# %% [markdown]
# Four times it waits one unit for a forward of rank 0. And each time there would have been something else to do: the
# gradient of the next microbatch is there already. So let it do that `I` first, and keep the `W` for afterwards. Only
# the line of rank 1 changes.

# %%
second_try = Schedule.from_text(
    """
    rank 0: 0F0 0F1 0I0 0W0 0F2 0I1 0W1 0F3 0I2 0W2 0F4 0I3 0W3 0F5 0I4 0W4 0I5 0W5
    rank 1: 1F0 1F1 1I0 1W0 1I1 1F2 1W1 1I2 1F3 1W2 1I3 1F4 1W3 1I4 1F5 1W4 1I5 1W5
    rank 2: 2F0 2I0 2W0 2F1 2I1 2W1 2F2 2I2 2W2 2F3 2I3 2W3 2F4 2I4 2W4 2F5 2I5 2W5
    """,
    name="second try",
)
verify(second_try, memory_limit=LIMIT)
timeline = simulate(second_try, costs)
render.show(timeline)
print(f"{timeline.makespan:g} units, par is {PAR}; rank 1 idles for {timeline.idle_within_span(1):g} within its span")
assert timeline.makespan == PAR and timeline.idle_within_span(1) == 0
assert timeline.peak_activations == (2, 2, 1)

# %% [markdown]
# At par, with two thirds of the memory of ZB-H1. That is the whole method: find the rank that matters, ask why it
# waits, give it something else to do.
#
# ## Let a machine try
#
# `schedules.greedy` goes through time, and whenever a rank is free, it takes what is ready, the most urgent kind first.
# It looks no further than the moment, so try several orders of urgency. `BF` has whole backwards.

# %%
spans = {}
for priority in ("BF", "FB", "IFW", "FIW", "FWI"):
    found = schedules.greedy(6, costs, placement=range(3), memory_limit=LIMIT, priority=priority)
    verify(found, memory_limit=LIMIT)
    spans[priority] = simulate(found, costs).makespan
print(spans)
assert spans == {"BF": 42, "FB": 42, "IFW": 37, "FIW": 37, "FWI": 37}

# %% [markdown]
# With halves it comes to par as well. With whole backwards it cannot, however urgent they are: the halves are what
# there is to shift about.
#
# ## Train with it
#
# Nothing has to be registered or compiled. A `Pipeline` takes your schedule as it is and runs it as written, here on
# three thread ranks. Of four equal layers the middle stage gets two.


# %%
def network():
    return nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)])


parts = [range(0, 1), range(1, 3), range(3, 4)]
generator = np.random.default_rng(seed=0)
samples = generator.standard_normal((6 * 64, 256)).astype(np.float32)


def train(group):
    pipeline = Pipeline(network(), group, loss=nn.MSELoss(), schedule=second_try, partition=parts)
    for _ in range(2):  # the first step is slower: memory is new, and so is everything else
        pipeline.step(samples, samples)
    return pipeline.timeline()


measured = spawn(train, num_ranks=3)[0]
order = [[str(span.action) for span in row] for row in measured.spans]
print(f"the ranks ran what was written, and held {measured.peak_activations} microbatches at most")
assert order == [[str(action) for action in row] for row in second_try.actions]
assert measured.peak_activations == (2, 2, 1)

# %%
check_same_as_one_process(network(), nn.MSELoss(), samples, samples, second_try, partition=parts)
print("its gradients have the bits of one process")
assert second_try.is_reproducible

# %% [markdown]
# (They have, because each stage does its W in ascending order. Write them in another order and it still trains, but
# sums of floating-point numbers depend on their order, so the last bits may differ. `is_reproducible` tells, and the
# pipeline warns.)
#
# Here is what your ranks did, measured here and now, above what the simulator makes of the average times of each
# stage's actions. Thread ranks share one interpreter, and perhaps one core, so do not take their times too seriously;
# lesson 12 does it with processes. (I on stage 0 takes next to no time: nobody wants the gradient of the batch itself.)

# %%
predicted = simulate(second_try, Costs.measured(measured))
render.show(measured, predicted)
assert measured.makespan > 0 and predicted.peak_activations == measured.peak_activations

# %% [markdown]
# ## Keep it in a file
#
# A schedule can be written as CSV, in the format that PyTorch reads and writes for its own pipelines: a line for each
# rank, cells with commas between them. What you read back is the same schedule.

# %%
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "mine.csv"
    path.write_text(second_try.to_csv())
    again = Schedule.from_file(path)
print(second_try.to_csv().splitlines()[2])
assert again.name == "mine" and again.actions == second_try.actions and again.placement == (0, 1, 2)

# %% [markdown]
# With such a file, all of this works from the terminal. `minipipe step` walks through the schedule action by action,
# also through one that is wrong, up to where it sticks. The training program runs it on three processes; `--trace`
# draws what they did, above what was predicted, as a page for the browser.
#
# ```sh
# minipipe check mine.csv --memory-limit 2
# minipipe simulate mine.csv --costs F=1:2:1,I=1:2:1,W=1:2:1
# minipipe step mine.csv
# mpirun -n 3 python tutorials/train.py --schedule mine.csv --trace mine.html
# ```
#
# ## Exercise
#
# 1. Delete one cell of `second_try`, or swap two, and read what the verifier says. Can you make a mistake that it does
#    not notice?
# 2. Four ranks, eight microbatches, stages of 1, 2, 1 and 1 units for F, I and W each, at most 3 microbatches on a
#    rank. What is the par? 1F1B takes 53 units and holds 4; can you be at par?
# 3. At most 2 on a rank, for the same four: `greedy` with `"FIW"` takes 51. Is there anything better?
# 4. The coursework task that belongs here is `14_puzzle`: a schedule under a memory limit, with points for how near it
#    comes to par; and `09_verifier_rule`, to write what found your mistakes. (`minipipe coursework DIR` makes your
#    copy.)
#
# Next, `12_plan_and_reality.py`: from units to milliseconds.
