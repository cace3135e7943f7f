# %% [markdown]
# # 12 · Unbalanced stages: predicted and measured times
#
# In this lesson you plan a pipeline whose stages take 10, 20, 15 and 5 ms, and improve
# it by moving the stage boundaries. Then you run the plan, and compare the measured
# time with the planned one.
#
# So far nearly all stages were equal, and all times were units. The layers of real
# models take different times, and so does the same layer on different machines.

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
from minipipe import (
    Costs,
    Pipeline,
    nn,
    partition_by_cost,
    render,
    schedules,
    simulate,
    spawn,
)
from minipipe.core.tensor import record

# %% [markdown]
# ## The slowest stage sets the pace
#
# There are four stages, with forwards of 10, 20, 15 and 5 ms and backwards of twice
# that time (I and W each take as long as the forward). In GPipe the first microbatch
# passes through all stages, which takes the *sum* of their times. Each further
# microbatch comes out one *maximum* later, the time of the slowest stage. The same
# holds for the backwards:
#
# sum F + (m - 1) max F + sum B + (m - 1) max B

# %%
FORWARD = [10, 20, 15, 5]  # ms
M = 8  # microbatches


def costs_of(forward):
    """Return costs in seconds, given each stage's forward in ms; I and W take as long."""
    seconds = [ms / 1000 for ms in forward]
    return Costs(
        forward=seconds, backward_input=seconds, backward_weight=seconds, unit="s"
    )


def gpipe_formula(forward, m):
    return 3 * (sum(forward) + (m - 1) * max(forward))


gpipe = schedules.gpipe(num_ranks=4, num_microbatches=M)
planned = simulate(replace(gpipe, name="stages of 10, 20, 15, 5 ms"), costs_of(FORWARD))
render.show(planned)
print(
    f"GPipe: formula {gpipe_formula(FORWARD, M)} ms, simulator "
    f"{1000 * planned.makespan:.0f} ms"
)
assert gpipe_formula(FORWARD, M) == (50 + 7 * 20) + (100 + 7 * 40) == 570
assert round(1000 * planned.makespan, 6) == 570

# %% [markdown]
# The formula and the simulator agree. Rank 1 works most of the time, and the others
# wait for it:

# %%
for rank in range(4):
    print(
        f"rank {rank} is busy {100 * planned.busy(rank) / planned.makespan:.0f} "
        "% of the time"
    )
assert [round(100 * planned.busy(rank) / planned.makespan) for rank in range(4)] == [
    42,
    84,
    63,
    21,
]

# %% [markdown]
# Another schedule helps a little. But the slowest stage spends 20 + 40 = 60 ms on each
# microbatch, so in the long run no schedule takes less than 60 ms for one more
# microbatch:

# %%
for name in ("gpipe", "1f1b", "zb-h1"):
    eight, nine = (
        simulate(schedules.build(name, 4, m), costs_of(FORWARD)).makespan
        for m in (M, M + 1)
    )
    print(
        f"{name:6} {1000 * eight:.0f} ms for eight microbatches, "
        f"{1000 * (nine - eight):.0f} ms for one more"
    )
    assert round(1000 * eight, 6) == {"gpipe": 570, "1f1b": 540, "zb-h1": 500}[name]
    assert round(1000 * (nine - eight), 6) == 60

# %% [markdown]
# All three schedules take exactly 60 ms for one more. Faster versions of the other
# three stages would not change this.
#
# ## Move the stage boundaries
#
# So balance the stages: choose another **partition**, the assignment of layers to
# stages. Suppose that the model consists of ten layers with a forward of 5 ms each. The
# stages above had 2, 4, 3 and 1 of them. `partition_by_cost` finds the partition that
# minimises the time of the slowest stage. (For your model, `minipipe.measure_layers`
# measures the time of each layer, and `minipipe.balance` partitions by it.)

# %%
layers = [5] * 10  # ms
partition = partition_by_cost(layers, num_stages=4)
balanced = [sum(layers[i] for i in part) for part in partition]
after = simulate(replace(gpipe, name="stages of 15, 15, 10, 10 ms"), costs_of(balanced))
print(f"{[len(part) for part in partition]} layers, so stages of {balanced} ms")
print(
    f"GPipe: {1000 * after.makespan:.0f} ms instead of {1000 * planned.makespan:.0f}: ",
    end="",
)
print(f"{planned.makespan / after.makespan:.2f} times as fast")
assert balanced == [15, 15, 10, 10]
assert round(1000 * after.makespan, 6) == gpipe_formula(balanced, M) == 465
assert round(planned.makespan / after.makespan, 2) == 1.23

# %%
render.show(planned, after)
assert after.bubble_fraction < planned.bubble_fraction

# %% [markdown]
# The result is not perfect: four stages of 12.5 ms would take 3 × (50 + 7 × 12.5) =
# 412.5 ms. But a boundary cannot lie inside a layer. The finer the layers, the closer
# you get, and no stage is ever faster than its slowest layer.
#
# ## A mistake: close a stage once it is full
#
# The obvious method walks along the layers and closes a stage as soon as its cost
# reaches the average, the total cost divided by the number of stages. It can fail
# badly. Take three layers of 99, 100 and 1 ms, and two stages: the average is 100. The
# first layer alone does not reach it, so the second layer joins the same stage.


# %%
def close_once_full(layers, num_stages):
    """Return the costs of the stages if each is closed once it has reached the average: the mistake."""
    average, stages, current = sum(layers) / num_stages, [], 0
    for cost in layers:
        current += cost
        if current >= average:
            stages.append(current)
            current = 0
    return [*stages, current] if current else stages


best = [
    sum([99, 100, 1][i] for i in part) for part in partition_by_cost([99, 100, 1], 2)
]
print(
    "layers of 99, 100 and 1 for two stages: closed once full "
    f"{close_once_full([99, 100, 1], 2)}, the best {best}"
)
print(
    "layers of 1 and 2 for two stages: closed once full "
    f"{close_once_full([1, 2], 2)}, a stage too few"
)
assert close_once_full([99, 100, 1], 2) == [199, 1] and best == [99, 101]
assert close_once_full([1, 2], 2) == [3]
assert round(199 / 101, 2) == 1.97

# %% [markdown]
# The slowest stage is 1.97 times as slow as necessary. And with unlucky costs, the
# method produces too few stages.
#
# ## The best partition
#
# *Dynamic programming* finds the best partition: it solves small problems first, and
# builds the solutions of larger ones from them. Let `best[n]` be the cost of the
# slowest stage when the first n layers are divided among the stages so far in the best
# possible way. To add one more stage, try every place for the last boundary. Each place
# gives two numbers: the best result for the layers before the boundary, and the total
# cost of the layers after it. The larger of the two is the slowest stage. Keep the
# place with the smallest result.


# %%
def least_slowest(layers, num_stages):
    """Return the cost of the slowest stage of the best partition."""
    before = [0, *accumulate(layers)]  # before[n]: the cost of the first n layers
    best = [0] + [inf] * len(layers)  # with no stages, only zero layers are possible
    for _ in range(num_stages):
        best = [
            min(
                (max(best[place], before[n] - before[place]) for place in range(n)),
                default=inf,
            )
            for n in range(len(best))
        ]
    return best[-1]


for example, num_stages in (
    ([99, 100, 1], 2),
    (layers, 4),
    ([3, 1, 4, 1, 5, 9, 2, 6], 3),
):
    largest = max(
        sum(example[i] for i in part) for part in partition_by_cost(example, num_stages)
    )
    print(
        f"{example} in {num_stages} stages: the slowest takes "
        f"{least_slowest(example, num_stages)}"
    )
    assert least_slowest(example, num_stages) == largest
assert least_slowest([3, 1, 4, 1, 5, 9, 2, 6], 3) == 14

# %% [markdown]
# ## Run the plan
#
# Now run the same model with real arrays, messages and ranks. To get layers of exactly
# 5 ms, let them *sleep* for 5 ms in the forward, and for 10 ms in the backward. A
# sleeping rank needs no core, so all ranks run at the same time, even on the smallest
# machine, as if each had a computer to itself.


# %%
class SlowLinear(nn.Module):
    """A linear layer that takes 5 ms in the forward and 10 ms in the backward."""

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        y = self.linear(x)
        time.sleep(0.005)

        def of_y(gradient):
            time.sleep(0.010)
            return gradient

        return record(y.data, (y, of_y))  # the same values, and a pause in the backward


samples = np.random.default_rng(seed=0).standard_normal((4 * M, 4)).astype(np.float32)


def measure(parts):
    """Return the measured timeline of one step on four thread ranks."""

    def train(group):
        model = nn.Sequential(*[SlowLinear(4) for _ in range(10)])
        pipeline = Pipeline(
            model, group, loss=nn.MSELoss(), schedule=gpipe, partition=parts
        )
        pipeline.step(samples, samples)
        return pipeline.timeline()

    return spawn(train, num_ranks=4)[0]


unbalanced = measure([range(0, 2), range(2, 6), range(6, 9), range(9, 10)])
well_balanced = measure(partition)
for plan, measured in ((planned, unbalanced), (after, well_balanced)):
    excess = measured.makespan / plan.makespan - 1
    print(
        f"planned {1000 * plan.makespan:.0f} ms, measured "
        f"{1000 * measured.makespan:.0f} ms: {excess:+.1%}"
    )
    assert measured.makespan > 0.99 * plan.makespan  # a thread never wakes up early

# %%
render.show(after, well_balanced)
assert well_balanced.is_measured and not after.is_measured

# %% [markdown]
# The upper picture is the plan, and the lower one is the measurement. The measured time
# is a little longer, and much longer on a busy machine, because a sleeping thread may
# wake up late. It never wakes up early.
#
# ## Plan with measured times
#
# The times of layers are seldom known in advance. So measure one step, let
# `Costs.measured` extract the times of each stage, and predict *other* schedules before
# you run them.

# %%
costs = Costs.measured(well_balanced)
forward_ms = [1000 * seconds for seconds in costs.forward]
print("measured forward of each stage:", ", ".join(f"{ms:.1f} ms" for ms in forward_ms))
for name in ("1f1b", "eager-1f1b", "sequential"):
    predicted = simulate(schedules.build(name, 4, M), costs)
    print(f"{name:10} is predicted to take {1000 * predicted.makespan:.0f} ms")
    assert predicted.makespan > 0
assert all(ms >= 0.99 * plan for ms, plan in zip(forward_ms, balanced))

# %% [markdown]
# ## Two processes, and real work
#
# Sleep is easy to predict. Now two MPI processes multiply matrices (lesson 03 explains
# MPI).
# `pipeline.measure_costs` does the measurement for you: it combines several steps, and
# times I and W separately. The program below measures a pipeline with 1F1B, predicts
# other schedules from the result, runs them as well, and prints both times. One of them
# has two stages on each rank: `costs.cut(2)` estimates the costs when every stage is
# split in half. Each measured time is the median of five steps, so that a single
# disturbed step does not count.

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
    """Run a program on `num_ranks` processes; return its output, or None if there is no MPI."""
    beside = Path(sys.executable).parent / "mpirun"
    launcher = str(beside) if beside.exists() else shutil.which("mpirun")
    if launcher is None or find_spec("mpi4py") is None:
        return None
    settings = {
        "PYTHONPATH": str(Path(minipipe.__file__).parent.parent),
        # these three are for Open MPI: running as root, and with few cores
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.py"
        path.write_text(program)
        command = [launcher, "-n", str(num_ranks), sys.executable, str(path)]
        done = subprocess.run(
            command,
            env={**os.environ, **settings},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return done.stdout


# %%
printed = mpirun(PROGRAM, num_ranks=2)
if printed is None:
    print("This cell needs MPI: pip install -e '.[mpi]'. Continue with the next cell.")
else:
    drawing, _, last_line = printed.strip().rpartition("\n")
    print(f"{drawing}\n")
    assert "rank 0 F" in drawing and "1f1b: makespan" in drawing
    rows = json.loads(last_line)
    for name, measured, predicted in rows:
        error = predicted / measured - 1
        print(
            f"{name:16} measured {1000 * measured:.1f} ms, predicted "
            f"{1000 * predicted:.1f} ms: {error:+.0%}"
        )
        assert measured > 0 and predicted > 0
    assert [name for name, _, _ in rows] == [
        "sequential",
        "gpipe",
        "zb-h1",
        "interleaved-1f1b",
    ]

# %% [markdown]
# ## If the prediction is far off
#
# The predictions are best on a machine with a core for each rank and no other program.
# If yours are far off, these are the usual reasons:
#
# - **Ranks share a core.** If a rank loses its core in the middle of an action, the
#   action seems to take longer. The timeline cannot tell the difference, and
#   `Costs.measured` takes it at face value. `pipeline.measure_costs` reads another
#   clock, which counts only while the rank has a core; see the next section.
# - **Thread ranks share the interpreter.** Large matrix products run in parallel;
#   everything else takes turns. So measure with processes. Timelines of thread ranks
#   carry a note that says so.
# - **Another program is running.** Use the median of several steps, or the fastest one,
#   and state which of the two you report.
# - **Messages.** `Costs.measured` estimates a latency from the messages that a rank had
#   to wait for. But by default the simulator lets any number of messages overlap, while
#   real messages share a link, and copying them takes processor time.
#   (`Costs(hosts=(0, 0, 1, 1))` says which ranks are on which host; between hosts,
#   messages then share the links.)
# - **The first step.** Memory is allocated, and libraries initialise. Never measure it.
#
# ## More ranks than cores
#
# Four ranks on a laptop with two cores are a common case while you learn.
# `Costs(cores=2)` predicts it: while n ranks are busy, each runs at the rate 2 / n, or
# at full speed if n is at most 2. So once all four are busy, an action takes twice its
# time, and the picture has actions of different lengths although all forwards have the
# same cost.

# %%
crowded = simulate(
    replace(schedules.one_f_one_b(4, M), name="1f1b, two cores"), Costs(cores=2)
)
roomy = simulate(replace(schedules.one_f_one_b(4, M), name="1f1b, four cores"))
render.show(crowded, roomy)
print(
    f"four ranks: {crowded.makespan:.0f} units on two cores, "
    f"{roomy.makespan:.0f} on four"
)
assert (crowded.makespan, roomy.makespan) == (51, 33)
assert crowded.makespan >= 4 * M * 3 / 2  # all the work, on two cores that never rest

# %% [markdown]
# Two cores could do the work of 96 units in 48, so only 3 units are lost here: a bubble
# costs little if another rank can use the core. A measured pipeline loses more, because
# waiting ranks look for their messages now and then, and the operating system does not
# move a rank to an idle core at once. So if ranks outnumber cores,
# `pipeline.measure_costs` measures how long each action had a core, and fits
# `costs.cores`, the cores that the ranks got.
#
# `mpirun -n 4 python tutorials/train.py --trace step.html` draws the last step of a
# real training run, measured above predicted, as a page that you can step through. If
# ranks share cores, it writes two pages. In `step.html` each action takes as long as it
# had a core, and `step.measured.html` shows the measured times.
#
# ## The same in PyTorch and in Megatron-LM
#
# In PyTorch, if each rank builds its own stage (lesson 06), you choose the stage
# boundaries by the layers that you build. If the whole model exists on each rank,
# PyTorch can split it. These lines split a `model` of ten layers into stages of 3, 3, 2
# and 2 layers. `inputs` is a batch of 64 samples, and a microbatch has 8:
#
# ```python
# from torch.distributed.pipelining import SplitPoint, pipeline
#
# boundaries = {name: SplitPoint.BEGINNING for name in ("3", "6", "8")}
# stages = pipeline(model, mb_args=(inputs[:8],), split_spec=boundaries)
# stage = stages.build_stage(rank, torch.device("cpu"))  # then as in lesson 06
# ```
#
# In Megatron-LM, stages have equal numbers of transformer layers. The first option
# below changes this, with `E` for the embedding, `t` for a transformer layer, `L` for
# the loss, and `|` between stages. `--decoder-first-pipeline-num-layers` and
# `--decoder-last-pipeline-num-layers` change only the first and the last stage. This
# was not run for this lesson:
#
# ```text
# --pipeline-model-parallel-layout "Et*3|t*3|t*2|t*2L" \
# --pipeline-model-parallel-size 4 --num-layers 10
# ```
#
# In minipipe the same is `Pipeline(…, partition=[range(0, 3), range(3, 6), range(6, 8),
# range(8, 10)])`.

# %% [markdown]
# ## What you have learnt
#
# - The slowest stage sets the pace in every schedule. Balance the stages first.
# - Dynamic programming finds the best partition. If you close a stage once it is full,
#   the slowest stage can be almost twice as slow.
# - Measured costs predict other schedules. Measure processes and not threads, take the
#   median of several steps, and never the first.
#
# ## Exercise
#
# 1. How long does GPipe take with twenty layers of 2.5 ms? And with ten layers, one of
#    which takes 30 ms instead of 5? What would you do about that layer?
# 2. For the stages of 10, 20, 15 and 5 ms, which helps more: a better partition or
#    ZB-H1? And both together?
# 3. Give `measure` a second argument for the schedule, and run 1F1B and ZB-H1 with the
#    good partition. Why is ZB-H1 no faster here? In which half of the backward does a
#    `SlowLinear` sleep, and where would it have to sleep to change that?
# 4. The coursework task for this lesson is `13_partition`: find the best partition.
#    (`minipipe coursework DIR` creates your copy.)
#
# <details>
# <summary>Answers</summary>
#
# 1. 412.5 ms: each stage takes 12.5 ms. With a layer of 30 ms the slowest stage takes
#    at least 30, and GPipe 855 ms, more than before. Split that layer in two, if
#    possible. If not, put nothing else on its stage; the other ranks still wait for it.
#
# ```python
# fine = [sum([2.5] * len(part)) for part in partition_by_cost([2.5] * 20, 4)]
# assert fine == [12.5] * 4 and gpipe_formula(fine, M) == 412.5
# for place in range(10):
#     uneven = [5] * place + [30] + [5] * (9 - place)
#     stages = [sum(uneven[i] for i in part) for part in partition_by_cost(uneven, 4)]
#     assert max(stages) == 30 and gpipe_formula(stages, M) == 855
# ```
#
# 2. A better partition saves 105 of 570 ms, and ZB-H1 saves 70. Both together save 185,
#    more than the sum: once the stages are even, mostly the waits between them are
#    left, and ZB-H1 fills those.
#
# ```python
# def milliseconds(name, stages):
#     return round(1000 * simulate(schedules.build(name, 4, M), costs_of(stages)).makespan, 6)
#
#
# assert [milliseconds(*pair) for pair in (("gpipe", FORWARD), ("gpipe", balanced))] == [570, 465]
# assert [milliseconds(*pair) for pair in (("zb-h1", FORWARD), ("zb-h1", balanced))] == [500, 385]
# ```
#
# 3. A `SlowLinear` sleeps in I, because the gradient of its inputs is computed after
#    the pause. W takes almost no time, so there is nothing to postpone, and the plan
#    says the same for both schedules. To change that, half of the pause would have to
#    depend on the weights: in the vjp of `self.linear.weight`.
#
# ```python
# all_in_i = replace(costs_of(balanced), backward_input=[0.030, 0.030, 0.020, 0.020], backward_weight=[0] * 4)
# both = [simulate(schedules.build(name, 4, M), all_in_i).makespan for name in ("1f1b", "zb-h1")]
# assert [round(1000 * seconds, 6) for seconds in both] == [435, 435]
#
#
# def measure_halves(group):
#     model = nn.Sequential(*[SlowLinear(4) for _ in range(10)])
#     schedule = schedules.zb_h1(4, M)
#     pipeline = Pipeline(model, group, loss=nn.MSELoss(), schedule=schedule, partition=partition)
#     pipeline.step(samples, samples)
#     return pipeline.timeline()
#
#
# halves = Costs.measured(spawn(measure_halves, num_ranks=4)[0])
# for stage in (1, 2, 3):
#     assert halves.backward_input[stage] > 0.99 * 2 * balanced[stage] / 1000
#     assert halves.backward_weight[stage] < halves.backward_input[stage]
# ```
#
# </details>
#
# Next, `13_gpu_and_cluster.py`: other devices, and more than one machine.
