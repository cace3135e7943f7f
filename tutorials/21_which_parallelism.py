# %% [markdown]
# # 21 · Which parallelism?
#
# Four ranks can be one pipeline, four replicas, four parts of each layer, or a mixture. Books say which to take: "four
# times as many microbatches as stages", "tensor parallelism inside a host, the pipeline between hosts". This lesson
# runs one model in every way and counts what each sends and holds. Then it asks the simulator when such a rule holds.
#
# `minipipe compare` does the first part on real ranks, with times, and says which way wins on your machine.

# %%
from minipipe import Costs, Pipeline, render, schedules, simulate, spawn
from minipipe.schedules.simulation.paper_scale import A100, Link, Run, predict
from minipipe.tuning.grids import Task, compare_on_ranks
from minipipe.tuning.hosts import on_hosts

# %% [markdown]
# ## Every way to divide four ranks
#
# The model is a GPT of four blocks. Its batch is 16 sequences, in microbatches of one, whatever the grid: replicas
# share them, a pipeline passes all of them through. These ranks are threads, so we look at everything but the time.

# %%
task = Task(layers=4, width=64, heads=4, symbols=64, length=32, batch=16, microbatches=16)
rows = spawn(lambda group: compare_on_ranks(task, group, Pipeline, rounds=1), num_ranks=4)[0]
rows = {row["grid"]: row for row in rows}
losses = {name: row["losses"][1] for name, row in rows.items()}
for name, loss in losses.items():
    print(f"{name:28} loss after an update {loss:.5f}")
assert len(losses) == 8 and max(losses.values()) - min(losses.values()) < 1e-4

# %% [markdown]
# ## What they send
#
# Each rank counts the bytes of its messages. Nothing has to run to know them:
#
# - **Replicas** sum the gradients of N parameters once a step. A rank sends 2 (d - 1) / d of them: its share of the sum
#   to each other one, and what it has added up.
# - **A pipeline** sends an activation over each cut for each microbatch, and its gradient back, however deep the model.
# - **Ranks that share a layer** sum activations, four times in each block and microbatch. Here each rank sends all it
#   has to the t - 1 others.
# - **Fully sharded replicas** keep a share of each layer, and gather the whole for each forward and each backward; of
#   its gradients each rank gets the sum of its share. That is three times (d - 1) / d of N, for each microbatch.

# %%
kinds = ("activations", "tensor sums", "gradient sums", "shares")
sent, bars = {}, []
for name, row in rows.items():
    most = max((rank["sent"] for rank in row["ranks"]), key=lambda sizes: sum(sizes[kind] for kind in kinds))
    own = {kind: most[kind] for kind in kinds}
    assert own in [rank["promised_sent"] for rank in row["ranks"]]
    sent[name] = sum(own.values())
    bars.append(render.Bar(own, f"{sent[name]:,}"))
colours = dict(zip(kinds, schedules.ActionKind))
picture = render.draw_bars(list(rows), {"bytes that a rank sends in a step, the most of any": bars}, colours, width=700)
render.show_picture(picture, "\n".join(f"{name:28} {size:9,} bytes" for name, size in sent.items()))
parameters = sum(parameter.size for parameter in task.model().parameters())
activation = 4 * task.length * task.width  # of one sequence, in float32
print(f"{parameters:,} parameters, {activation:,} bytes an activation")
assert (parameters, activation) == (210368, 8192)
assert sent["data 4"] == 2 * 3 / 4 * 4 * parameters == 1262208
assert sent["pipeline 4"] == 2 * 16 * activation == 262144  # an inner rank: to both sides
assert sent["fully sharded 4"] == 3 * 3 / 4 * 4 * parameters * 4 == 7573248  # four microbatches of each replica
assert sent["tensor 4"] == 3 * 16 * (4 * 4 + 1) * activation == 6684672  # and one sum of the embedding

# %% [markdown]
# The pipeline sends least; tensor parallelism and shares 25 times as much and more. Double the batch, and all double
# but the sum of gradients, which stays. Double the width, and the gradients grow fourfold, activations twofold. So
# whether replicas or a pipeline send less depends on the batch (exercise 1).
#
# ## What they hold
#
# Before anything ran, the plan of each grid had promised its memory. It was right to the last byte.

# %%
held = {}
for name, row in rows.items():
    for rank in row["ranks"]:
        assert rank["memory"].items() <= rank["promised_memory"].items()
    fullest = max((rank["memory"] for rank in row["ranks"]), key=lambda memory: sum(memory.values()))
    held[name] = [round(size / 1e3) for size in fullest.values()]
    print(f"{name:28}", *(f"{kind} {size} kB " for kind, size in zip(fullest, held[name])))
assert held["data 4"] == [841, 841, 1683, 648] and held["pipeline 4"] == [225, 225, 449, 624]
assert held["fully sharded 4"] == [210, 210, 421, 648]
assert held["tensor 4"] == [234, 234, 468, 280] and held["pipeline 2 x tensor 2"] == [218, 218, 436, 378]

# %% [markdown]
# Replicas hold everything, parameters with their gradients and the two numbers of Adam. Fully sharded, they hold a
# quarter of that, and one layer whole at a time. So does each rank of a pipeline, but its first one has four
# microbatches in flight. Tensor parallelism divides parameters and more than half of the activations; what stands
# between two sums is whole on every rank.
#
# ## Slower links
#
# Now put two ranks on each of two hosts. For each block F, I and W take a millisecond, divided among the ranks that
# share it; within a host sums and messages are free. What leaves a host shares its link: 50 us, and some bytes a
# second.


# %%
def timed(row, sum_time=0.0):
    """Return a row whose actions take what is said above, and each sum within a host so many seconds."""
    blocks, parts = task.layers / row["pipeline"], row["tensor"]
    sums = 2 * blocks * sum_time * (parts > 1)
    times = {"forward": 1e-3 * blocks / parts + sums, "backward_input": 1e-3 * blocks / parts + sums}
    return {**row, "costs": {**times, "backward_weight": 1e-3 * blocks / parts}}


def fastest(bandwidth, sum_time=0.0):
    """Return the milliseconds of each grid on two hosts, the fastest first."""
    link = Link(50e-6, bandwidth)
    times = {name: 1e3 * on_hosts(timed(row, sum_time), 16, 2, link).makespan for name, row in rows.items()}
    return {name: round(times[name], 1) for name in sorted(times, key=times.get)}


first = {}
for bandwidth in (1e9, 1e8, 1e7):
    times = fastest(bandwidth)
    first[bandwidth] = list(times.items())[:2]
    print(f"{bandwidth:.0e} bytes a second, in ms: {times}")
assert first[1e9] == [("data 2 x tensor 2", 49.0), ("data 4", 49.8)]
assert first[1e8] == [("pipeline 2 x tensor 2", 54.4), ("pipeline 2 x data 2", 55.7)]
assert first[1e7] == [("pipeline 2 x data 2", 67.5), ("pipeline 2 x fully sharded 2", 67.5)]

# %% [markdown]
# With fast links the bubble decides, and grids without a pipeline win. At 100 MB/s the sum of gradients takes longer
# than the bubble: a pipeline between the hosts, which sends little, is faster, with the layers divided inside. At 10
# MB/s each message counts. Both ranks that share a layer send the same activation to the other host; replicas inside a
# host send one each of their own, so there are half as many. Whether those replicas are fully sharded makes no
# difference, since their shares stay in the host; over slow links shares are the worst of all.
#
# The order depends on the links, and on what a sum within a host costs (exercise 2). `minipipe compare --hosts 2
# --links 5e-5,1e8` simulates this with the times of your machine.
#
# ## "Four times as many microbatches as stages"
#
# 1F1B of p equal stages is idle for (p - 1) / (m + p - 1) of its time. With m = 4 p that is always less than a fifth.


# %%
def bubble(num_stages, times=4, slowest=1.0, latency=0.0, name="1f1b"):
    """Return the idle part; the last stage takes ``slowest`` times as long as the others, of F = I = W = 1."""
    stages = num_stages if name == "1f1b" else 2 * num_stages
    work = [1.0] * (stages - 1) + [slowest]
    costs = Costs(work, work, work, latency=latency)
    return simulate(schedules.build(name, num_stages, times * num_stages), costs).bubble_fraction


bubbles = [round(bubble(num_stages), 3) for num_stages in (2, 4, 8, 16, 32)]
print("idle with m = 4 p, for 2, 4, 8, 16, 32 stages:", bubbles)
assert bubbles == [0.111, 0.158, 0.179, 0.19, 0.195]

# %% [markdown]
# But the longer the pipeline, the closer it is to the fifth, and the less it forgives. How much slower may the last
# stage be, which also has the head? How long may a message take, in units of F?


# %%
def most(idle, high):
    """Return the largest number, below high, for which a fifth is idle at most."""
    low = 0.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if idle(middle) < 0.2 else (low, middle)
    return low


slower = {p: round(most(lambda x, p=p: bubble(p, slowest=1 + x), 2) * 100, 1) for p in (4, 8, 16)}
late = {p: round(most(lambda x, p=p: bubble(p, latency=x), 2), 3) for p in (4, 8, 16)}
print("the last stage may be slower by, in %:", slower)
print("a message may take, in units of F:", late)
assert slower == {4: 9.1, 8: 3.7, 16: 1.7} and late == {4: 0.107, 8: 0.044, 16: 0.02}

# %% [markdown]
# So the rule holds for equal stages and messages that cost nearly nothing. With 16 stages a head that costs a fiftieth
# of a stage breaks it. And it is a rule about 1F1B: with two chunks on a rank, twice as many microbatches are enough.

# %%
twice = {p: (round(bubble(p, 2), 2), round(bubble(p, 2, name="interleaved-1f1b"), 2)) for p in (4, 8, 16)}
print("idle with m = 2 p, 1F1B and interleaved:", twice)
assert twice == {4: (0.27, 0.16), 8: (0.3, 0.18), 16: (0.32, 0.19)}

# %% [markdown]
# ## "Tensor inside a host, the pipeline between hosts"
#
# For this we need GPUs: the model of lesson 20, for 64 A100 in hosts of eight, and layers of three widths. Eight GPUs
# that share a layer are one host, and the pipeline has eight ranks. Or swapped: each host is a pipeline, and the sums
# go from host to host. Links between hosts have the bandwidth of those inside, or a tenth, or a hundredth.

# %%
INSIDE = A100.node


def seconds(width, tensor, ratio, is_swapped=False):
    """Return the time of 64 sequences through 64 layers on 64 GPUs."""
    run = Run("", "", 64, width, 64, tensor, 64 // tensor, 1, 64, 64, 1, "full", "nothing", "")
    between = Link(20e-6, INSIDE.bandwidth / ratio)
    sums_leave = is_swapped or tensor > 8
    node = between._replace(latency=INSIDE.latency) if sums_leave else INSIDE
    return predict(run, A100._replace(node=node, network=INSIDE if is_swapped else between))


swapped = {
    width: [round(seconds(width, 8, ratio, True) / seconds(width, 8, ratio), 1) for ratio in (1, 10, 100)]
    for width in (1024, 4096, 16384)
}
for width, times in swapped.items():
    print(f"width {width:6}: swapped, a step takes {times} times as long")
assert swapped == {1024: [1.0, 1.8, 10.0], 4096: [1.0, 2.4, 15.3], 16384: [1.0, 1.7, 9.0]}

# %% [markdown]
# That half of the rule is safe: with equal links it does not matter, and from there on it matters more, for every
# width. A block sums an activation four times for each microbatch, and a stage passes on one.
#
# The other half is often added silently: *fill* the host with tensor parallelism.

# %%
best = {}
for width in (1024, 4096, 16384):
    times = {tensor: seconds(width, tensor, 10) for tensor in (1, 2, 4, 8, 16)}
    best[width] = [round(time / min(times.values()), 2) for time in times.values()]
    print(f"width {width:6}: 1, 2, 4, 8, 16 GPUs a layer take {best[width]} times the best")
assert best[1024] == [1.5, 1.14, 1.0, 1.08, 3.21] and best[4096] == [1.56, 1.15, 1.0, 1.06, 4.25]
assert best[16384] == [1.65, 1.22, 1.03, 1.0, 2.59]

# %% [markdown]
# Sixteen, on two hosts, are far off. But four are as good as eight or better until layers are very wide: each sum costs
# 80 us before its first byte, and a narrow layer has little work to divide. One GPU a layer leaves a pipeline of 64
# stages with as many microbatches: half of it is bubble.
#
# ## Exercise
#
# 1. At how many sequences a step do `data 4` and `pipeline 4` send equally many bytes?
# 2. Each sum within a host takes 50 us. Which grid is the fastest at 100 MB/s?
# 3. The last of 8 stages is 20 % slower. Which multiple of 8 microbatches is enough to be idle for less than a fifth?
# 4. The coursework task `03_all_reduce` asks for a sum over ranks. How many bytes does each of 8 ranks send in a sum of
#    1 MB where each sends all it has to all others, as in `tensor 4`? And how many as parts, as in `data 4`?
#
# ```sh
# minipipe coursework mine                                    # once: writes the exercises into the folder mine/
# minipipe grade mine/03_all_reduce.py
# ```
#
# <details>
# <summary>Answers</summary>
#
# 1. 77: an activation there and back for each sequence, against 1.5 times the gradients.
#
# ```python
# assert round(2 * 3 / 4 * 4 * parameters / (2 * activation), 1) == 77.0
# ```
#
# 2. `pipeline 2 x data 2`: the grids with divided layers take 6 to 7 ms longer.
#
# ```python
# assert list(fastest(1e8, 50e-6))[0] == "pipeline 2 x data 2"
# ```
#
# 3. 88, nearly three times the rule: however many there are, seven of eight ranks wait for the slow one, which alone
#    makes them idle for 15 % of the time.
#
# ```python
# assert [bubble(8, times, slowest=1.2) < 0.2 for times in (9, 10, 11)] == [False, False, True]
# assert round(1 - (7 + 1.2) / (8 * 1.2), 2) == 0.15
# ```
#
# 4. 7 MB, and 2 * 7 / 8 = 1.75 MB, a quarter.
#
# ```python
# from minipipe.execution.sums import bytes_sent_in_sum
#
# assert bytes_sent_in_sum([(125_000, 8)], 8, 0) == 2 * 7 / 8 * 1e6 == 7e6 / 4
# ```
#
# </details>
#
# This was the last lesson. The next one is yours: train something, draw it with `--trace`, and find out what your ranks
# are waiting for.
