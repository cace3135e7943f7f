# %% [markdown]
# # 12 · Plan and reality: stages of 10, 20, 15 and 5 ms
#
# So far nearly all stages were alike, and all times were units. Real models are made of layers that take unlike times,
# and real machines take the times that they take. In this lesson you plan a pipeline in milliseconds, improve it by
# cutting the model elsewhere, and then measure how far the plan is from what happens.

# %%
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from importlib.util import find_spec
from itertools import accumulate
from math import inf
from pathlib import Path

import numpy as np

import minipipe
from minipipe import Costs, Pipeline, nn, partition_by_cost, render, schedules, simulate, spawn
from minipipe.tensor import record

# %% [markdown]
# ## The slowest stage rules
#
# Four stages, whose forward takes 10, 20, 15 and 5 ms, and whose backward takes twice as long (I and W each as long as
# the forward). With GPipe, the first microbatch goes through all stages: the *sum* of their times. Each further one
# comes out as soon as the slowest stage has done it: so many times the *largest*. The backwards likewise:
#
# sum F + (m - 1) max F + sum B + (m - 1) max B

# %%
FORWARD = [10, 20, 15, 5]  # ms
M = 8  # microbatches


def costs_of(forward):
    """Return costs in seconds, given each stage's forward in ms; I and W take as long."""
    seconds = [ms / 1000 for ms in forward]
    return Costs(forward=seconds, backward_input=seconds, backward_weight=seconds, unit="s")


def gpipe_formula(forward, m):
    return 3 * (sum(forward) + (m - 1) * max(forward))


gpipe = schedules.gpipe(num_ranks=4, num_microbatches=M)
planned = simulate(replace(gpipe, name="stages of 10, 20, 15, 5 ms"), costs_of(FORWARD))
render.show(planned)
print(f"GPipe: formula {gpipe_formula(FORWARD, M)} ms, simulator {1000 * planned.makespan:.0f} ms")
assert gpipe_formula(FORWARD, M) == (50 + 7 * 20) + (100 + 7 * 40) == 570
assert round(1000 * planned.makespan, 6) == 570

# %% [markdown]
# Rank 1 is nearly always busy, the others wait for it:

# %%
for rank in range(4):
    print(f"rank {rank} works {100 * planned.busy(rank) / planned.makespan:.0f} % of the time")
assert [round(100 * planned.busy(rank) / planned.makespan) for rank in range(4)] == [42, 84, 63, 21]

# %% [markdown]
# Another schedule helps a little. But whatever the schedule, one more microbatch takes 20 + 40 = 60 ms more, which is
# what it costs the slowest stage. The other three could be twice as fast, and nobody would notice.

# %%
for name in ("gpipe", "1f1b", "zb-h1"):
    eight, nine = (simulate(schedules.build(name, 4, m), costs_of(FORWARD)).makespan for m in (M, M + 1))
    print(f"{name:6} {1000 * eight:.0f} ms for eight microbatches, {1000 * (nine - eight):.0f} ms for one more")
    assert round(1000 * eight, 6) == {"gpipe": 570, "1f1b": 540, "zb-h1": 500}[name]
    assert round(1000 * (nine - eight), 6) == 60

# %% [markdown]
# ## Cut elsewhere
#
# So balance the stages. Say that the model is made of ten layers whose forward takes 5 ms each: our stages had 2, 4, 3
# and 1 of them. `partition_by_cost` finds the cuts for which the slowest stage is as fast as it can be.

# %%
layers = [5] * 10  # ms
partition = partition_by_cost(layers, num_stages=4)
balanced = [sum(layers[i] for i in part) for part in partition]
after = simulate(replace(gpipe, name="stages of 15, 15, 10, 10 ms"), costs_of(balanced))
print(f"layers {[len(part) for part in partition]}, so stages of {balanced} ms")
print(f"GPipe: {1000 * after.makespan:.0f} ms instead of {1000 * planned.makespan:.0f}: ", end="")
print(f"{planned.makespan / after.makespan:.2f} times as fast")
assert balanced == [15, 15, 10, 10]
assert round(1000 * after.makespan, 6) == gpipe_formula(balanced, M) == 465
assert round(planned.makespan / after.makespan, 2) == 1.23

# %%
render.show(planned, after)
assert after.bubble_fraction < planned.bubble_fraction

# %% [markdown]
# It is not perfect: four stages of 12.5 ms would take 3 × (50 + 7 × 12.5) = 412.5 ms. But a layer cannot be cut in the
# middle. The finer the layers, the nearer one comes; and no stage is ever faster than its slowest layer.
#
# ## How to find the best cuts
#
# The obvious way is: go along the layers, and close a stage once it has its share, the total divided by the number of
# stages. It can go badly wrong. Three layers of 99, 100 and 1 ms, for two stages: the share is 100. The first layer
# alone does not reach it, so the second one comes along, too.


# %%
def close_once_full(layers, num_stages):
    """Return the stages' costs if each is closed once it has its share: the mistake."""
    share, stages, current = sum(layers) / num_stages, [], 0
    for cost in layers:
        current += cost
        if current >= share:
            stages.append(current)
            current = 0
    return [*stages, current] if current else stages


best = [sum([99, 100, 1][i] for i in part) for part in partition_by_cost([99, 100, 1], 2)]
print(f"closed once full {close_once_full([99, 100, 1], 2)}, the best {best}")
print(f"layers of 1 and 2 for two stages: closed once full {close_once_full([1, 2], 2)}, a stage too few")
assert close_once_full([99, 100, 1], 2) == [199, 1] and best == [99, 101]
assert close_once_full([1, 2], 2) == [3]
assert round(199 / 101, 2) == 1.97

# %% [markdown]
# The slowest stage is 1.97 times as slow as need be. And when the model falls out badly, there is a stage without any
# layers.
#
# The sure way is called *dynamic programming*: solve the small problems first, and build the large ones from them. Let
# `best[n]` be the least possible slowest stage when the first n layers make the stages that there are so far. With one
# stage more, the last cut lies somewhere; try every place, and take the one where the larger of the two (the best for
# what lies before the cut, and what lies behind it) is least.


# %%
def least_slowest(layers, num_stages):
    """Return the cost of the slowest stage, when the cuts are the best."""
    before = [0, *accumulate(layers)]  # before[n]: the cost of the first n layers
    best = [0] + [inf] * len(layers)  # with no stage there may be no layer
    for _ in range(num_stages):
        best = [
            min((max(best[cut], before[n] - before[cut]) for cut in range(n)), default=inf) for n in range(len(best))
        ]
    return best[-1]


for example, num_stages in (([99, 100, 1], 2), (layers, 4), ([3, 1, 4, 1, 5, 9, 2, 6], 3)):
    largest = max(sum(example[i] for i in part) for part in partition_by_cost(example, num_stages))
    print(f"{example} in {num_stages}: slowest stage {least_slowest(example, num_stages)}")
    assert least_slowest(example, num_stages) == largest
assert least_slowest([3, 1, 4, 1, 5, 9, 2, 6], 3) == 14

# %% [markdown]
# ## Make it real
#
# Now the same model with arrays, messages and ranks. To have layers of exactly 5 ms we let them *sleep* for that time,
# and for twice that time in the backward. A sleeping rank needs no core, so all ranks really go on at the same time
# even on the smallest machine: like ranks each of which has a computer of its own.


# %%
class SlowLinear(nn.Module):
    """A linear layer that takes its time: 5 ms forward, 10 ms backward."""

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        y = self.linear(x)
        time.sleep(0.005)

        def of_y(gradient):
            time.sleep(0.010)
            return gradient

        return record(y.data, (y, of_y))  # the same values; on the way back, a rest


samples = np.random.default_rng(seed=0).standard_normal((4 * M, 4)).astype(np.float32)


def measure(parts):
    """Return what four thread ranks did in one step."""

    def train(group):
        model = nn.Sequential(*[SlowLinear(4) for _ in range(10)])
        pipeline = Pipeline(model, group, loss=nn.MSELoss(), schedule=gpipe, partition=parts)
        pipeline.step(samples, samples)
        return pipeline.timeline()

    return spawn(train, num_ranks=4)[0]


cut_badly, cut_well = measure([range(0, 2), range(2, 6), range(6, 9), range(9, 10)]), measure(partition)
for plan, measured in ((planned, cut_badly), (after, cut_well)):
    excess = measured.makespan / plan.makespan - 1
    print(f"planned {1000 * plan.makespan:.0f} ms, here and now {1000 * measured.makespan:.0f} ms: {excess:+.1%}")
    assert measured.makespan > 0.99 * plan.makespan  # nobody wakes up before the time

# %%
render.show(after, cut_well)
assert cut_well.is_measured and not after.is_measured

# %% [markdown]
# The upper one is the plan, the lower one what happened. (If your machine was busy, the gap is larger than on a quiet
# one. A sleeper wakes up late, never early.)
#
# ## Plan with what you measured
#
# You seldom know beforehand how long layers take. So turn it round: measure one step, let `Costs.measured` take the
# times of each stage from it, and predict *other* schedules with them before you run those.

# %%
costs = Costs.measured(cut_well)
forward_ms = [1000 * seconds for seconds in costs.forward]
print("forward of each stage, here and now:", ", ".join(f"{ms:.1f} ms" for ms in forward_ms))
for name in ("1f1b", "eager-1f1b", "sequential"):
    predicted = simulate(schedules.build(name, 4, M), costs)
    print(f"{name:10} is predicted to take {1000 * predicted.makespan:.0f} ms")
    assert predicted.makespan > 0
assert all(ms >= 0.99 * plan for ms, plan in zip(forward_ms, balanced))

# %% [markdown]
# ## Two processes, and real work
#
# Sleeping is easy to predict. Now two MPI processes multiply matrices. `pipeline.measure_costs` does for you what we
# did above, over several steps, and times I and W apart. The small program below measures a pipeline with 1F1B,
# predicts other schedules from that, runs those as well, and prints both. One of them has two stages on each rank:
# `costs.cut(2)` says what halves of the stages cost. Times are the median of five steps, so that one that was disturbed
# does not count.

# %%
PROGRAM = """
import json
from statistics import median
import numpy as np
from minipipe import Pipeline, init_process_group, nn, render, schedules, simulate

samples = np.random.default_rng(0).standard_normal((8 * 64, 384)).astype(np.float32)

def pipeline_with(group, schedule):
    model = nn.Sequential(*[nn.Linear(384, 384) for _ in range(8)])
    return Pipeline(model, group, loss=nn.MSELoss(), schedule=schedule)

def makespans(pipeline):
    for _ in range(6):
        pipeline.step(samples, samples)
        yield pipeline.timeline().makespan

with init_process_group() as group:
    profiled = pipeline_with(group, schedules.one_f_one_b(group.size, 8))
    costs = profiled.measure_costs(samples, samples, num_steps=5)
    rows = []
    for name in ("sequential", "gpipe", "zb-h1", "interleaved-1f1b"):
        schedule = schedules.build(name, group.size, 8)
        first, *others = makespans(pipeline_with(group, schedule))
        predicted = simulate(schedule, costs.cut(schedule.num_stages // group.size)).makespan
        rows.append([name, median(others), predicted])
    profiled.step(samples, samples)
    timeline = profiled.timeline()
    if group.rank == 0:
        print(render.draw_text(timeline))
        print(json.dumps(rows))
"""


# %%
def mpirun(program, num_ranks):
    """Run a program on so many processes; return what it prints, or None where there is no MPI."""
    beside = Path(sys.executable).parent / "mpirun"
    launcher = str(beside) if beside.exists() else shutil.which("mpirun")
    if launcher is None or find_spec("mpi4py") is None:
        return None
    settings = {
        "PYTHONPATH": str(Path(minipipe.__file__).parent.parent),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",  # these three matter to Open MPI only: as root, and with few cores
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.py"
        path.write_text(program)
        command = [launcher, "-n", str(num_ranks), sys.executable, str(path)]
        done = subprocess.run(command, env={**os.environ, **settings}, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


# %%
printed = mpirun(PROGRAM, num_ranks=2)
if printed is None:
    print("There is no MPI here (pip install -e '.[mpi]' brings one), so nothing is measured.")
else:
    drawing, _, last_line = printed.strip().rpartition("\n")
    print(f"{drawing}\n")
    assert "rank 0 F" in drawing and "1f1b: makespan" in drawing
    rows = json.loads(last_line)
    for name, measured, predicted in rows:
        error = predicted / measured - 1
        print(f"{name:16} measured {1000 * measured:.1f} ms, predicted {1000 * predicted:.1f} ms: {error:+.0%}")
        assert measured > 0 and predicted > 0
    assert [name for name, _, _ in rows] == ["sequential", "gpipe", "zb-h1", "interleaved-1f1b"]

# %% [markdown]
# On a quiet machine with a core for each rank the predictions come within some per cent. If yours are far off, that is
# a finding, too. The usual reasons:
#
# - **Ranks share a core.** A rank that waits for a core in the middle of an action seems to compute for longer. The
#   timeline cannot tell, and `Costs.measured` believes it. With more ranks than cores, measured times say little about
#   a machine that has enough.
# - **Thread ranks share the interpreter.** Large matrix products run side by side, all the rest takes turns. That is
#   why timelines of thread ranks carry a note, and why you measure with processes.
# - **Something else runs.** Take the median of several steps, or the fastest, and say which.
# - **Messages.** `Costs.measured` finds a latency from the messages that somebody waited for. But the simulator lets
#   any number of messages pass side by side, while real ones share a wire, and copying them takes a core.
# - **The first step.** Memory is fetched from the system, libraries prepare. Never measure it.
#
# `mpirun -n 4 python tutorials/train.py --trace step.html` draws the last step of a real training, measured above
# predicted, in a page that you can step through.
#
# ## Exercise
#
# 1. With layers of 2.5 ms, twenty of them, what does GPipe take? And with ten layers, one of which takes 30 ms instead
#    of 5? What would you do about that one?
# 2. Which is better for the stages of 10, 20, 15 and 5 ms: cutting better, or ZB-H1? And both?
# 3. Give `measure` a second argument for the schedule, and run 1F1B and ZB-H1 with the good cuts. Why is ZB-H1 no
#    faster here? In which half of the backward does a `SlowLinear` rest, and where would you let it rest to change
#    that?
# 4. The coursework task that belongs here is `13_partition`: the best cuts. (`minipipe coursework DIR` makes your
#    copy.)
#
# Next, `13_gpu_and_cluster.py`: other devices, and more than one machine.
