# %% [markdown]
# # 21 · Which parallelism?
#
# In this lesson you run one model on four ranks in eight ways, and count what each way
# sends and holds. Then you ask the simulator when two rules of thumb hold: "four times
# as many microbatches as stages", and "tensor parallelism inside a host, the pipeline
# between hosts".
#
# The ways combine four kinds of parallelism: a pipeline, data parallelism (lesson 18),
# *tensor parallelism*, which divides every layer among ranks, and *fully sharded* data
# parallelism, in which each replica stores only a shard of every parameter.

# %%
from minipipe import Costs, Pipeline, render, schedules, simulate, spawn
from minipipe.schedules.simulation.paper_scale import A100, Link, Run, predict
from minipipe.tuning.grids import Task, compare_on_ranks
from minipipe.tuning.hosts import on_hosts

# %% [markdown]
# ## Eight ways to divide four ranks
#
# The model is a GPT of four blocks, and its batch is 16 sequences. A microbatch is one
# sequence. Replicas divide the 16 microbatches among them; a pipeline passes all of
# them through. A combination of sizes, such as `pipeline 2 x data 2`, is called a
# *device mesh*; the class here is `Grid`. The ranks are threads, so the times mean
# nothing and are not shown. (`minipipe compare` does the same on MPI ranks, with
# times.)

# %%
task = Task(
    layers=4, width=64, heads=4, symbols=64, length=32, batch=16, microbatches=16
)
rows = spawn(
    lambda group: compare_on_ranks(task, group, Pipeline, rounds=1), num_ranks=4
)[0]
rows = {row["grid"]: row for row in rows}
losses = {name: row["losses"][1] for name, row in rows.items()}
for name, loss in losses.items():
    print(f"{name:28} loss after an update {loss:.5f}")
assert len(losses) == 8 and max(losses.values()) - min(losses.values()) < 1e-4

# %% [markdown]
# The losses agree: all eight compute the same update, up to rounding.
#
# ## Bytes sent
#
# Each rank counts the bytes of its messages. They can be computed before anything runs:
#
# - **Data parallel**: an all-reduce of N gradients once per step. With d replicas a
#   rank sends 2 (d - 1) / d of them: d - 1 shards to the other ranks, and its own
#   reduced shard to all of them.
# - **Pipeline**: an activation across each stage boundary for each microbatch, and its
#   gradient back. The depth of the model does not matter.
# - **Tensor parallel**: all-reduces of activations, four in each block and microbatch,
#   each of which sends 2 (t - 1) / t of an activation.
# - **Fully sharded**: for each microbatch every rank gathers each layer once for the
#   forward and once for the backward, and a reduce-scatter gives it the sum of its
#   shard of the gradients. That is three times (d - 1) / d of N.
#
# The picture shows the rank that sends most.

# %%
LABELS = {
    "activations": "activations",
    "tensor sums": "tensor-parallel all-reduce",
    "gradient sums": "gradient all-reduce",
    "shares": "gathered and scattered shards",
}
sent, bars = {}, []
for name, row in rows.items():
    most = max(
        (rank["sent"] for rank in row["ranks"]),
        key=lambda sizes: sum(sizes[kind] for kind in LABELS),
    )
    of_rank = {kind: most[kind] for kind in LABELS}
    assert of_rank in [rank["promised_sent"] for rank in row["ranks"]]
    sent[name] = sum(of_rank.values())
    bars.append(
        render.Bar(
            {LABELS[kind]: size for kind, size in of_rank.items()}, f"{sent[name]:,}"
        )
    )
colours = dict(zip(LABELS.values(), schedules.ActionKind))
picture = render.draw_bars(
    list(rows),
    {"bytes sent in a step, by the rank that sends most": bars},
    colours,
    width=700,
)
render.show_picture(
    picture, "\n".join(f"{name:28} {size:9,} bytes" for name, size in sent.items())
)
parameters = sum(parameter.size for parameter in task.model().parameters())
activation = 4 * task.length * task.width  # of one sequence, in float32
print(f"{parameters:,} parameters, {activation:,} bytes an activation")
assert (parameters, activation) == (210368, 8192)
assert sent["data 4"] == 2 * 3 / 4 * 4 * parameters == 1262208
# an inner rank: to both sides
assert sent["pipeline 4"] == 2 * 16 * activation == 262144
# four microbatches of each replica
assert sent["fully sharded 4"] == 3 * 3 / 4 * 4 * parameters * 4 == 7573248
# and one sum of the embedding
assert sent["tensor 4"] == 2 * 3 / 4 * 16 * (4 * 4 + 1) * activation == 3342336

# %% [markdown]
# The pipeline sends least. Tensor parallelism sends 13 times as much, and full sharding
# 29 times.
#
# If the batch doubles, everything doubles except the gradient all-reduce. If the width
# doubles, gradients grow fourfold and activations twofold. So the batch decides whether
# replicas or a pipeline send less (exercise 1).
#
# ## Memory
#
# Each mesh has a plan that predicts its memory. The next cell compares it with the
# bytes that were measured, and prints the fullest rank.

# %%
held = {}
for name, row in rows.items():
    for rank in row["ranks"]:
        assert rank["memory"].items() <= rank["promised_memory"].items()
    fullest = max(
        (rank["memory"] for rank in row["ranks"]),
        key=lambda memory: sum(memory.values()),
    )
    held[name] = [round(size / 1e3) for size in fullest.values()]
    print(
        f"{name:28}", *(f"{kind} {size} kB " for kind, size in zip(fullest, held[name]))
    )
assert held["data 4"] == [841, 841, 1683, 648] and held["pipeline 4"] == [
    225,
    225,
    449,
    624,
]
assert held["fully sharded 4"] == [210, 210, 421, 648]
assert held["tensor 4"] == [234, 234, 468, 280] and held["pipeline 2 x tensor 2"] == [
    218,
    218,
    436,
    378,
]

# %% [markdown]
# The prediction is exact to the byte.
#
# Replicas hold everything: parameters, gradients, and the two numbers of Adam for each
# parameter. Fully sharded replicas hold a quarter of that, and one whole layer at a
# time. A pipeline rank also holds about a quarter, but the first rank has four
# microbatches in flight. Tensor parallelism divides the parameters and more than half
# of the activations. Activations between two all-reduces are whole on every rank.
#
# ## Slower links
#
# Now put two ranks on each of two hosts. In each block, F, I and W take one millisecond
# each, divided by the number of tensor-parallel ranks. All-reduces and messages within
# a host are free. Messages between hosts share one link, with a latency of 50 µs and a
# given bandwidth. The cell prints the time of a step for three bandwidths.


# %%
def timed(row, sum_time=0.0):
    """Return a row with the costs above; each all-reduce within a host takes ``sum_time`` seconds."""
    blocks, parts = task.layers / row["pipeline"], row["tensor"]
    sums = 2 * blocks * sum_time * (parts > 1)
    times = {
        "forward": 1e-3 * blocks / parts + sums,
        "backward_input": 1e-3 * blocks / parts + sums,
    }
    return {**row, "costs": {**times, "backward_weight": 1e-3 * blocks / parts}}


def fastest(bandwidth, sum_time=0.0):
    """Return the milliseconds of each mesh on two hosts, the fastest first."""
    link = Link(50e-6, bandwidth)
    times = {
        name: 1e3 * on_hosts(timed(row, sum_time), 16, 2, link).makespan
        for name, row in rows.items()
    }
    return {name: round(times[name], 1) for name in sorted(times, key=times.get)}


first = {}
for bandwidth in (1e9, 1e8, 1e7):
    times = fastest(bandwidth)
    first[bandwidth] = list(times.items())[:2]
    print(f"{bandwidth:.0e} bytes a second, in ms: {times}")
assert first[1e9] == [("data 2 x tensor 2", 49.0), ("data 4", 49.8)]
assert first[1e8] == [("pipeline 2 x tensor 2", 54.4), ("pipeline 2 x data 2", 55.7)]
assert first[1e7] == [
    ("pipeline 2 x data 2", 67.5),
    ("pipeline 2 x fully sharded 2", 67.5),
]

# %% [markdown]
# At 1 GB/s the bubble decides, and meshes without a pipeline win. At 100 MB/s the
# gradient all-reduce between the hosts takes longer than the bubble. A pipeline between
# the hosts is faster, with tensor parallelism inside them. At 10 MB/s every message
# counts. Tensor-parallel ranks both send the same activation to the other host.
# Replicas inside a host send one each for different microbatches, which is half as many
# messages. Full sharding inside a host makes no difference; between hosts it is the
# slowest of all.
#
# The order depends on the links and on the cost of an all-reduce within a host
# (exercise 2). `minipipe compare --hosts 2 --links 5e-5,1e8` simulates this with times
# measured on your machine.
#
# ## Rule 1: four times as many microbatches as stages
#
# 1F1B with p equal stages and m microbatches is idle for (p - 1) / (m + p - 1) of the
# time. With m = 4 p that stays below a fifth:


# %%
def bubble(num_stages, times=4, slowest=1.0, latency=0.0, name="1f1b"):
    """Return the idle fraction; all stages have F = I = W = 1, times ``slowest`` for the last one."""
    stages = num_stages if name == "1f1b" else 2 * num_stages
    work = [1.0] * (stages - 1) + [slowest]
    costs = Costs(work, work, work, latency=latency)
    return simulate(
        schedules.build(name, num_stages, times * num_stages), costs
    ).bubble_fraction


bubbles = [round(bubble(num_stages), 3) for num_stages in (2, 4, 8, 16, 32)]
print("idle with m = 4 p, for 2, 4, 8, 16, 32 stages:", bubbles)
assert bubbles == [0.111, 0.158, 0.179, 0.19, 0.195]

# %% [markdown]
# The longer the pipeline, the closer it is to a fifth, and the smaller its margin. How
# much slower than the others may the last stage be, which also has the output head? How
# long may a message take, in units of F? The next cell searches for both limits, for 4,
# 8 and 16 stages.


# %%
def most(idle, high):
    """Return the largest number below ``high`` that leaves at most a fifth idle."""
    low = 0.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if idle(middle) < 0.2 else (low, middle)
    return low


slower = {
    p: round(most(lambda x, p=p: bubble(p, slowest=1 + x), 2) * 100, 1)
    for p in (4, 8, 16)
}
late = {p: round(most(lambda x, p=p: bubble(p, latency=x), 2), 3) for p in (4, 8, 16)}
print("the last stage may be slower by, in %:", slower)
print("a message may take, in units of F:", late)
assert slower == {4: 9.1, 8: 3.7, 16: 1.7} and late == {4: 0.107, 8: 0.044, 16: 0.02}

# %% [markdown]
# So the rule needs equal stages and messages that cost almost nothing. With 16 stages,
# a head of two per cent of a stage breaks it.
#
# The rule is also specific to 1F1B. With two chunks on a rank, half as many
# microbatches are enough:

# %%
twice = {
    p: (round(bubble(p, 2), 2), round(bubble(p, 2, name="interleaved-1f1b"), 2))
    for p in (4, 8, 16)
}
print("idle with m = 2 p, 1F1B and interleaved:", twice)
assert twice == {4: (0.27, 0.16), 8: (0.3, 0.18), 16: (0.32, 0.19)}

# %% [markdown]
# ## Rule 2: tensor parallelism inside a host, the pipeline between hosts
#
# This rule is about GPUs. Take the cost model of lesson 20 for 64 A100 in hosts of
# eight, and layers of three widths. In the first mesh the eight tensor-parallel GPUs
# are one host, and the pipeline has eight stages. In the second one they are swapped:
# each host is a pipeline, and the all-reduces of tensor parallelism go from host to
# host. Links between hosts have the bandwidth of the links inside, a tenth of it, or a
# hundredth.

# %%
INSIDE = A100.node


def seconds(width, tensor, ratio, is_swapped=False):
    """Return the time of 64 sequences through 64 layers on 64 GPUs."""
    run = Run(
        "", "", 64, width, 64, tensor, 64 // tensor, 1, 64, 64, 1, "full", "nothing", ""
    )
    between = Link(20e-6, INSIDE.bandwidth / ratio)
    sums_leave = is_swapped or tensor > 8
    node = between._replace(latency=INSIDE.latency) if sums_leave else INSIDE
    return predict(
        run, A100._replace(node=node, network=INSIDE if is_swapped else between)
    )


swapped = {
    width: [
        round(seconds(width, 8, ratio, True) / seconds(width, 8, ratio), 1)
        for ratio in (1, 10, 100)
    ]
    for width in (1024, 4096, 16384)
}
for width, times in swapped.items():
    print(f"width {width:6}: swapped, a step takes {times} times as long")
assert swapped == {
    1024: [1.0, 1.8, 10.0],
    4096: [1.0, 2.4, 15.3],
    16384: [1.0, 1.7, 9.0],
}

# %% [markdown]
# This part of the rule holds in every case. With equal links the order does not matter,
# and with slower ones it matters more and more. A block needs four all-reduces of an
# activation for each microbatch; a stage passes on one activation.
#
# The rule is often quoted with an addition: *fill* the host with tensor parallelism.
# The next cell varies the number of tensor-parallel GPUs, with links between hosts at a
# tenth of the bandwidth.

# %%
best = {}
for width in (1024, 4096, 16384):
    times = {tensor: seconds(width, tensor, 10) for tensor in (1, 2, 4, 8, 16)}
    best[width] = [round(time / min(times.values()), 2) for time in times.values()]
    print(
        f"width {width:6}: 1, 2, 4, 8, 16 GPUs per layer take {best[width]} "
        "times the best"
    )
assert best[1024] == [1.5, 1.14, 1.0, 1.08, 3.21] and best[4096] == [
    1.56,
    1.15,
    1.0,
    1.06,
    4.25,
]
assert best[16384] == [1.65, 1.22, 1.03, 1.0, 2.59]

# %% [markdown]
# Sixteen GPUs, on two hosts, are far behind. But four are as good as eight or better,
# unless layers are very wide: each all-reduce costs 80 µs before its first byte, and a
# narrow layer has little work to divide. One GPU per layer leaves a pipeline of 64
# stages for 64 microbatches, and half of its time is bubble.
#
# ## In PyTorch and in Megatron
#
# The same eight ranks, with two stages, two replicas and two tensor-parallel ranks:
#
# - **Megatron-LM**. Data parallelism has no option: it is what the other sizes leave of
#   the processes.
#
# ```text
# torchrun --nproc-per-node 8 pretrain_gpt.py \
#     --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 …
# ```
#
# - Add `--sequence-parallel` to divide the activations between two all-reduces as well.
#   minipipe does not have it.
# - Full sharding in Megatron is `--use-megatron-fsdp --data-parallel-sharding-strategy
#   optim_grads_params`; only the optimiser is `--use-distributed-optimizer`.
# - **PyTorch**: one mesh, and one call for each dimension.
#
# ```python
# mesh = init_device_mesh("cuda", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
# parallelize_module(stage_module, mesh["tp"], plan)         # tensor parallel
# fully_shard(stage_module, mesh=mesh["dp"])                 # fully sharded
# stage = PipelineStage(stage_module, stage_index, num_stages, device,
#                       group=mesh.get_group("pp"))
# ```
#
# - **minipipe**: `Pipeline(model, Grid(group, pipeline=2, data=2, tensor=2), …)`, and
#   `fully_sharded=True` in the `Grid` for shards.
#
# Megatron numbers tensor-parallel ranks first, and in this mesh `tp` is the last
# dimension. Both put them on neighbouring GPUs of one host, as rule 2 asks. With a
# pipeline, full sharding gathers the parameters again for every microbatch, as counted
# above. `fully_shard(…, reshard_after_forward=False)` keeps them gathered until the
# backward, and gives up that memory. A distributed optimiser (lesson 18) shards less,
# and sends nothing more per microbatch. The tables in [Coming from
# Megatron-LM](site/coming-from-megatron.md) and [Coming from
# PyTorch](site/coming-from-pytorch.md) list all options.
#
# ## What you have learnt
#
# - A pipeline sends least; tensor parallelism and full sharding send most. Replicas
#   hold most.
# - Fast links favour meshes without a bubble, slow links a pipeline between the hosts.
# - Four times as many microbatches as stages leave a fifth idle only if stages are
#   equal and messages are cheap.
# - Keep tensor parallelism inside a host. It need not fill the host.

# %% [markdown]
# ## Exercise
#
# 1. With how many sequences per step do `data 4` and `pipeline 4` send equally many
#    bytes?
# 2. Let each all-reduce within a host take 50 µs. Which mesh is the fastest at 100
#    MB/s?
# 3. The last of 8 stages is 20 % slower. Which multiple of 8 microbatches leaves less
#    than a fifth idle?
# 4. The coursework task `03_all_reduce` asks for an all-reduce. How many bytes does
#    each of 8 ranks send for 1 MB if each sends everything to all others, as in `tensor
#    4`? How many if it sends shards, as in `data 4`?
#
# ```sh
# minipipe coursework mine               # once: writes mine/
# minipipe grade mine/03_all_reduce.py
# ```
#
# <details>
# <summary>Answers</summary>
#
# 1. With 77. Each sequence costs an activation and its gradient, and the all-reduce
#    costs 1.5 times the gradients.
#
# ```python
# assert round(2 * 3 / 4 * 4 * parameters / (2 * activation), 1) == 77.0
# ```
#
# 2. `pipeline 2 x data 2`. The meshes with two tensor-parallel ranks take 6 to 7 ms
#    longer than before.
#
# ```python
# assert list(fastest(1e8, 50e-6))[0] == "pipeline 2 x data 2"
# ```
#
# 3. 88, nearly three times the rule. Seven of the eight ranks wait for the slow one
#    with any number of microbatches, and that alone leaves 15 % idle.
#
# ```python
# assert [bubble(8, times, slowest=1.2) < 0.2 for times in (9, 10, 11)] == [False, False, True]
# assert round(1 - (7 + 1.2) / (8 * 1.2), 2) == 0.15
# ```
#
# 4. 7 MB, and 2 * 7 / 8 = 1.75 MB, a quarter.
#
# ```python
# from minipipe.parallel.reduction import bytes_sent_in_sum
#
# assert bytes_sent_in_sum([(125_000, 8)], 8, 0) == 2 * 7 / 8 * 1e6 == 7e6 / 4
# ```
#
# </details>
#
# Next, `22_two_directions.py`: microbatches that enter a pipeline at both ends.
