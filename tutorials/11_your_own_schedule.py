# %% [markdown]
# # 11 · Your own schedule: write it, verify it, run it
#
# In this lesson you write schedules as text, let the verifier explain their mistakes,
# and train with the result. You also find a schedule that is better than the named ones
# for a special problem: unequal stages under a memory limit.

# %%
import tempfile
from pathlib import Path

import numpy as np

from minipipe import (
    Costs,
    Pipeline,
    Schedule,
    nn,
    render,
    schedules,
    simulate,
    spawn,
    verify,
)
from minipipe.errors import ScheduleError
from minipipe.schedules import theory
from minipipe.testing import check_same_as_one_process

# %% [markdown]
# ## Write a schedule as text
#
# A schedule is a list of actions for each rank, and nothing else. The text has one line
# for each rank and one action in each cell: stage, kind, microbatch. `1B0` is the
# backward of microbatch 0 on stage 1. The numbers of ranks, stages and microbatches
# follow from the text.

# %%
mine = Schedule.from_text(
    """
    rank 0: 0F0 0F1 0B0 0B1
    rank 1: 1F0 1B0 1F1 1B1
    """,
    name="mine",
)
verify(mine)  # silent: it is legal, and every rank finishes
render.show(mine)
print(
    f"{mine.num_ranks} ranks, {mine.num_microbatches} microbatches: "
    f"{simulate(mine).makespan:g} units"
)
assert (
    simulate(mine).makespan
    == theory.makespan("1f1b", num_ranks=2, num_microbatches=2)
    == 9
)

# %% [markdown]
# This is 1F1B for two ranks. It takes as long as the theory says: (m + p - 1)(F + B) =
# 3 × 3.
#
# ## The first mistake: the wrong order
#
# The verifier reports the cause of a mistake and not its consequences. It names the
# rank and the position in the list of the rank (both counted from 0), and marks the
# action. Here rank 1 starts a backward before the forward that it depends on.


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
    rank 0: 0F0 0F1 0I0 0W0 0I1 0W1
    rank 1: 1F0 1I0 1W0 1I1 1W1 1F1
    """
)
print(error)
assert error.code == "order" and (error.problems[0].rank, error.problems[0].step) == (
    1,
    3,
)

# %% [markdown]
# ## The second mistake: a missing action
#
# A split backward needs both halves. This schedule has lost a W.

# %%
error = complaint_about(
    """
    rank 0: 0F0 0F1 0I0 0W0 0I1 0W1
    rank 1: 1F0 1I0 1F1 1I1 1W1
    """
)
print(error)
assert (
    error.code == "missing" and error.problems[0].message == "1W0 is missing on rank 1."
)

# %% [markdown]
# Without this check, the gradient of stage 1 would lack one microbatch, and the network
# would learn something slightly wrong without any message. That is why a pipeline
# verifies every schedule before it runs.
#
# ## The third mistake: ranks that wait in a cycle
#
# No rank can detect the third mistake by itself: each line is correct, but the two
# lines contradict each other. Rank 0 expects the gradient of microbatch 0 before it
# computes microbatch 1. Rank 1 expects microbatch 1 before it starts on the gradients.
# Each waits for the other forever: a deadlock (lesson 03). The marked cells show where
# the ranks of the cycle are blocked.

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
# Now solve a problem. There are three ranks, six microbatches, and a model that cannot
# be partitioned evenly: the middle stage takes twice as long as the others, for each of
# F, I and W. Memory is limited: **no rank may hold more than 2 microbatches**.
#
# How short can the makespan be? The middle rank has 6 × (2 + 2 + 2) = 36 units of work,
# and cannot start until the first rank has run a forward, which takes 1 unit. So no
# schedule can take less than 37 units. Call this number *par*, as in golf.

# %%
costs = Costs(forward=[1, 2, 1], backward_input=[1, 2, 1], backward_weight=[1, 2, 1])
LIMIT, PAR = 2, 1 + 6 * (2 + 2 + 2)
for name in ("sequential", "gpipe", "1f1b", "zb-h1", "zb-h2"):
    timeline = simulate(schedules.build(name, num_ranks=3, num_microbatches=6), costs)
    fits = max(timeline.peak_activations) <= LIMIT
    print(
        f"{name:10} {timeline.makespan:g} units, holds "
        f"{timeline.peak_activations}{', fits' if fits else ''}"
    )
    assert fits == (name == "sequential")
    assert (
        timeline.makespan
        == {"sequential": 72, "gpipe": 42, "1f1b": 40, "zb-h1": 37, "zb-h2": 37}[name]
    )
assert PAR == 37

# %% [markdown]
# ZB-H1 reaches par, but it holds 3 microbatches. Only the slowest of these five
# schedules fits.
#
# ## A first try
#
# Start from 1F1B with split backwards, run W right after I, and never hold more than
# two microbatches. The last rank needs only one.

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
# 41 units is one unit less than GPipe, which holds six microbatches, but four units
# above par. Where are the four units lost? Only rank 1 matters, since it has the most
# work. Ask the timeline why rank 1 is idle.

# %%
waits = [idle for idle in timeline.idle[1] if idle.cause == "waiting"]
for idle in waits:
    print(
        f"rank 1 waits from {idle.start:g} to {idle.end:g} for {idle.awaited} on "
        f"rank {idle.source}"
    )
assert [(str(idle.awaited), idle.end - idle.start) for idle in waits] == [
    (f"0F{k}", 1) for k in (2, 3, 4, 5)
]

# %% [markdown]
# Rank 1 waits four times, each time one unit for a forward of rank 0. It could do
# something else in that unit, because the gradient of the next microbatch has already
# arrived.
#
# ## A second try
#
# So let rank 1 run the `I` of the next microbatch first, and postpone the `W`. Only the
# line of rank 1 changes.

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
print(
    f"{timeline.makespan:g} units, par is {PAR}; rank 1 is idle for "
    f"{timeline.idle_within_span(1):g} within its span"
)
assert timeline.makespan == PAR and timeline.idle_within_span(1) == 0
assert timeline.peak_activations == (2, 2, 1)

# %% [markdown]
# This is par, with two thirds of the memory of ZB-H1. The method is general: find the
# rank with the most work, look up why it waits, and give it something else to do.
#
# ## Build a schedule automatically
#
# `schedules.greedy` moves forward through time. Whenever a rank is free, it picks an
# action that is ready, and prefers the kinds that come first in `priority`. It never
# looks ahead, so try several priorities. `B` stands for whole backwards.

# %%
spans = {}
for priority in ("BF", "FB", "IFW", "FIW", "FWI"):
    built = schedules.greedy(
        6, costs, placement=range(3), memory_limit=LIMIT, priority=priority
    )
    verify(built, memory_limit=LIMIT)
    spans[priority] = simulate(built, costs).makespan
print(spans)
assert spans == {"BF": 42, "FB": 42, "IFW": 37, "FIW": 37, "FWI": 37}

# %% [markdown]
# With split backwards it also reaches par. With whole backwards neither priority does,
# because no W can be postponed.
#
# ## Train with it
#
# Nothing has to be registered or compiled. A `Pipeline` accepts your schedule and runs
# it exactly as written, here on three thread ranks. The model has four equal layers,
# and the middle stage gets two of them.


# %%
def network():
    return nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)])


parts = [range(0, 1), range(1, 3), range(3, 4)]
generator = np.random.default_rng(seed=0)
samples = generator.standard_normal((6 * 64, 256)).astype(np.float32)


def train(group):
    pipeline = Pipeline(
        network(), group, loss=nn.MSELoss(), schedule=second_try, partition=parts
    )
    # the first step is slower: memory is allocated and caches are cold
    for _ in range(2):
        pipeline.step(samples, samples)
    return pipeline.timeline()


measured = spawn(train, num_ranks=3)[0]
order = [[str(span.action) for span in row] for row in measured.spans]
print(
    "the ranks ran the actions as written, and held at most "
    f"{measured.peak_activations} microbatches"
)
assert order == [[str(action) for action in row] for row in second_try.actions]
assert measured.peak_activations == (2, 2, 1)

# %% [markdown]
# One process computes the same gradients:

# %%
check_same_as_one_process(
    network(), nn.MSELoss(), samples, samples, second_try, partition=parts
)
print("one process computes the same gradients, bit for bit")
assert second_try.is_reproducible

# %% [markdown]
# They are equal because each stage runs its W in ascending order. In another order the
# schedule would still train, but floating-point sums depend on the order of the
# additions, so the last bits could differ. `is_reproducible` tells which is the case,
# and the pipeline warns you.
#
# ## Predicted and measured
#
# Now draw what your ranks did, as just measured, and below it the prediction of the
# simulator from the mean times of each stage's actions.

# %%
predicted = simulate(second_try, Costs.measured(measured))
render.show(measured, predicted)
assert measured.makespan > 0 and predicted.peak_activations == measured.peak_activations

# %% [markdown]
# I on stage 0 takes almost no time, because the gradient of the batch itself is not
# needed. Thread ranks share one interpreter, and perhaps one core, so do not take their
# times too seriously. Lesson 12 measures processes.
#
# ## Save it to a file
#
# A schedule can be saved as CSV: one line for each rank, with cells separated by
# commas. Reading the file returns the same schedule.

# %%
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "mine.csv"
    path.write_text(second_try.to_csv())
    again = Schedule.from_file(path)
print(second_try.to_csv().splitlines()[2])
assert (
    again.name == "mine"
    and again.actions == second_try.actions
    and again.placement == (0, 1, 2)
)

# %% [markdown]
# To use the schedule in a terminal, save it in the current folder:
# `Path("mine.csv").write_text(second_try.to_csv())`. The commands below verify and
# simulate it. `minipipe step` walks through a schedule action by action, and shows
# where the ranks of an illegal schedule block. The training program runs your schedule
# on three processes. Its option `--trace` writes a page for the browser that shows what
# the ranks did, and the prediction below it.
#
# ```sh
# minipipe check mine.csv --memory-limit 2
# minipipe simulate mine.csv --costs F=1:2:1,I=1:2:1,W=1:2:1
# minipipe step mine.csv
# mpirun -n 3 python tutorials/train.py --schedule mine.csv --trace mine.html
# ```
#
# ## Run the file in PyTorch
#
# PyTorch reads and writes the same CSV, so it can run your schedule. Its class for
# this, `_PipelineScheduleRuntime`, is internal: the underscore says that it may change.
# This program runs with PyTorch 2.13. Save it as `from_csv.py` beside `mine.csv`:
#
# ```python
# import torch
# import torch.distributed as dist
# from torch import nn
# from torch.distributed.pipelining import PipelineStage
# from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
#
# dist.init_process_group("gloo")  # "nccl" on GPUs
# rank, num_ranks = dist.get_rank(), dist.get_world_size()
# torch.manual_seed(0)
# blocks = [nn.Linear(256, 256) for _ in range(num_ranks)]
# stage = PipelineStage(blocks[rank], rank, num_ranks, torch.device("cpu"))
# schedule = _PipelineScheduleRuntime([stage], n_microbatches=6, loss_fn=nn.MSELoss())
# schedule._load_csv("mine.csv")  # reads the actions, and adds sends and receives
# samples, losses = torch.randn(6 * 64, 256), []
# if stage.is_last:
#     schedule.step(target=samples, losses=losses)
#     print(f"mean loss {torch.stack(losses).mean():.4f}")
# else:
#     schedule.step(*[samples] if stage.is_first else [])
# dist.destroy_process_group()
# ```
#
# ```bash
# torchrun --nproc-per-node 3 from_csv.py
# ```
#
# In the other direction, `schedule._dump_csv("theirs.csv", format="compute_only")`
# writes a schedule of PyTorch, and `minipipe check FILE` verifies it. [Coming from
# PyTorch](site/coming-from-pytorch.md) compares the names. Megatron-LM chooses its
# schedule by options, and reads no file.

# %% [markdown]
# ## What you have learnt
#
# - A schedule is a list of actions for each rank. You can write it as text or CSV.
# - The verifier finds wrong orders, missing actions, deadlocks and too much memory. The
#   simulator tells how good a legal schedule is.
# - To improve a schedule, find the rank with the most work, and fill its waits with
#   other actions.
#
# ## Exercise
#
# 1. Delete one cell of `second_try`, or swap two, and read what the verifier says. Can
#    you make a mistake that it does not notice?
# 2. Take four ranks, eight microbatches, stages of 1, 2, 1 and 1 units for each of F, I
#    and W, and at most 3 microbatches on a rank. What is par? 1F1B takes 53 units and
#    holds 4; can you reach par?
# 3. With at most 2 microbatches on each of the same four ranks, `greedy` with `"FIW"`
#    takes 51 units. Can you do better?
# 4. The coursework tasks for this lesson are `14_puzzle`, a schedule under a memory
#    limit, with points for getting close to par, and `09_verifier_rule`, in which you
#    write the check that found your mistakes. (`minipipe coursework DIR` creates your
#    copy.)
#
# <details>
# <summary>Answers</summary>
#
# 1. The verifier notices every deleted cell. It also notices most swaps within a row: a
#    dependency in the same row, a deadlock, or too much memory. But 29 swaps are legal,
#    and 25 of these are slower. The verifier does not report them, because it says
#    whether a schedule computes the right thing, and not whether it is fast. Ask the
#    simulator for that.
#
# ```python
# def outcome_of(rows):
#     """Return the code of the error, or the makespan of a legal schedule."""
#     try:
#         changed = Schedule("changed", range(3), 6, rows)
#         verify(changed, memory_limit=LIMIT)
#         return simulate(changed, costs).makespan
#     except ScheduleError as error:
#         return str(error.code)
#
#
# deleted, swapped = [], []
# for rank in range(3):
#     for i in range(18):
#         rows = [list(row) for row in second_try.actions]
#         del rows[rank][i]
#         deleted.append(outcome_of(rows))
#         for j in range(i):
#             rows = [list(row) for row in second_try.actions]
#             rows[rank][i], rows[rank][j] = rows[rank][j], rows[rank][i]
#             swapped.append(outcome_of(rows))
# assert set(deleted) == {"missing"} and len(deleted) == 54
# assert {name: swapped.count(name) for name in ("order", "deadlock", "memory")} == {
#     "order": 342,
#     "deadlock": 70,
#     "memory": 18,
# }
# legal = [makespan for makespan in swapped if not isinstance(makespan, str)]
# assert len(legal) == 29 and legal.count(PAR) == 4
# ```
#
# 2. Par is 49: rank 1 has 8 × 6 = 48 units of work, and gets its first input after 1.
#    It can be reached with 3 microbatches on each rank; `greedy` does it.
#
# ```python
# four = Costs([1, 2, 1, 1], [1, 2, 1, 1], [1, 2, 1, 1])
# assert simulate(schedules.one_f_one_b(4, 8), four).makespan == 53
# mine = schedules.greedy(8, four, placement=range(4), memory_limit=3, priority="FIW")
# verify(mine, memory_limit=3)
# assert simulate(mine, four).makespan == 1 + 8 * 6 == 49
# ```
#
# 3. No, it is impossible. `lower_bound` (lesson 16) proves that no schedule with this
#    memory takes less than 51.
#
# ```python
# tight = schedules.greedy(8, four, placement=range(4), memory_limit=2, priority="FIW")
# bound = schedules.lower_bound(four.workload(range(4), 8, memory_limit=2), schedules.Objective.MAKESPAN)
# assert simulate(tight, four).makespan == bound.value == 51
# ```
#
# </details>
#
# Next, `12_plan_and_reality.py`: from units to milliseconds.
