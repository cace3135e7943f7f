# %% [markdown]
# # 20 · Where the time of a trillion parameters goes
#
# In 2021 a model of 1,008 billion parameters was trained on 3,072 GPUs, and the paper says how fast: 163 TF/s on each
# GPU. You have no such machine. But you have everything that decides how long its iteration takes: the shape of the
# model, the rates of one GPU and its links, and the schedule. This lesson adds the parts up, compares the sum with what
# was published, and then changes what the authors chose: would you have cut the model in another way?

# %%
from minipipe import schedules, simulate
from minipipe.schedules.simulation.paper_scale import A100, costs_of, predict, published_runs

# %% [markdown]
# ## The run
#
# Three numbers divide the GPUs. Eight share each layer (*tensor parallelism*: the links within a host are fast), 64
# stand behind each other (the pipeline), and six copies of that train on different data.

# %%
run = published_runs("megatron-table-1")[-1]
print(f"{run.tensor} x {run.pipeline} x {run.replicas} = {run.gpus:,} GPUs, {run.layers} layers {run.hidden:,} wide")
print(f"{run.num_microbatches} microbatches of one sequence on each pipeline")
assert (run.tensor, run.pipeline, run.replicas, run.gpus) == (8, 64, 6, 3072)
assert (run.layers, run.hidden, run.num_microbatches) == (128, 25600, 512)
print(f"published: {run.seconds():.1f} s an iteration")
assert round(run.seconds(), 1) == 102.6

# %% [markdown]
# ## What would be possible
#
# An A100 multiplies large matrices at about 260 TF/s, once their operands are there. The operations of an iteration are
# easy to count; each forward runs twice, since activations are computed again in the backward.

# %%
ideal = run.operations / run.gpus / A100.products
print(f"{run.operations:.2e} operations: {ideal:.1f} s, if every GPU did nothing else")
assert round(ideal, 1) == 64.3 and round(100 * ideal / run.seconds()) == 63

# %% [markdown]
# So 63 % of the time is explained by products alone, and 38 seconds are missing.
#
# ## The rest, part by part
#
# `costs_of` returns the time of each stage for F, I and W, from the same shape: products and their operands, norms and
# softmax, sums over the eight GPUs, messages between stages. The schedule is 1F1B over 64 ranks, and the simulator of
# lesson 07 runs it: 65,536 actions. To it come the sum of gradients over the six replicas and the optimiser.

# %%
seconds = predict(run)
print(f"predicted: {seconds:.1f} s, {100 * (seconds / run.seconds() - 1):+.1f} %")
assert round(seconds, 1) == 104.0 and round(100 * (seconds / run.seconds() - 1), 1) == 1.4
worth = {}
for term in ("recomputation", "bubble", "operands", "tensor-sums", "accumulation", "head", "memory", "attention"):
    worth[term] = seconds - predict(run, without=[term])
    print(f"{term:14}{worth[term]:6.1f} s")
assert [round(part) for part in worth.values()] == [24, 11, 9, 6, 5, 5, 4, 4]

# %% [markdown]
# Leaving a part out is how you learn what it is worth. The largest is a choice: to keep activations would save 24
# seconds, but nobody had the memory for it. One year later a second paper computed only attention again, and kept the
# rest: `minipipe paper korthikanti-table-5` has its rows.
#
# The bubble is the second, 11 seconds. From lesson 05 you know its size without any simulator: of 512 microbatches and
# 64 ranks, (p - 1) / m of the time that the rest takes.

# %%
inside = simulate(run.schedule(), costs_of(run)).makespan
by_formula = (run.pipeline - 1) / run.num_microbatches * (inside - worth["bubble"])
print(f"bubble: {worth['bubble']:.1f} s simulated, {by_formula:.1f} s by the formula, which knows no head")
assert round(worth["bubble"], 1) == 10.8 and round(by_formula, 1) == 11.4

# %% [markdown]
# ## Would you have cut it in another way?
#
# The second table of the paper has a model of 175 billion parameters on 1,536 GPUs. Let us leave the number of GPUs and
# replicas, and trade ranks of the pipeline for GPUs that share a layer. A host has eight GPUs. Sixteen that share a
# layer are on two hosts, and their sums go over the network.

# %%
smaller = published_runs("megatron-table-2")[2]
between_hosts = A100._replace(node=A100.network)
found = {}
for tensor, pipeline in ((1, 96), (2, 48), (4, 24), (8, 12), (16, 6)):
    cut = smaller._replace(tensor=tensor, pipeline=pipeline)
    found[tensor] = predict(cut, A100 if tensor <= 8 else between_hosts)
    print(f"{tensor:2} GPUs a layer, {pipeline:2} ranks: {found[tensor]:5.1f} s")
assert [round(time, 1) for time in found.values()] == [34.0, 25.1, 21.4, 21.1, 60.3]

# %% [markdown]
# To the left of eight the pipeline is long, and its bubble grows: with 96 ranks for 96 microbatches they are idle for
# half of the time. To the right the sums leave the host, and the time triples. Hence the rule that every framework
# repeats, "tensor parallel within a host, pipeline between hosts". Here it is the least of five numbers, and only with
# these rates: four and eight are nearly the same.
#
# Another rule says "at least four times as many microbatches as ranks".

# %%
for factor in (1, 2, 4, 8):
    batch = run._replace(batch=factor * run.pipeline * run.replicas)
    bubble = 1 - predict(batch, without=["bubble"]) / predict(batch)
    print(f"{factor} x 64 microbatches: idle {bubble:.0%} of an iteration")
assert round(bubble, 2) == 0.10

# %% [markdown]
# With four times as many it is 19 %, with eight times 10 %. There is nothing special about four; it is where people
# found the price acceptable. A schedule with less bubble moves that point: the costs serve any schedule over the same
# stages, since `costs_of` has I and W apart.

# %%
few = run._replace(batch=run.pipeline * run.replicas)
one, split = (simulate(build(64, 64), costs_of(few)).makespan for build in (schedules.one_f_one_b, schedules.zb_h1))
print(f"64 microbatches: 1F1B {one:.1f} s, ZB-H1 {split:.1f} s")
assert (round(one, 1), round(split, 1)) == (22.4, 16.9)

# %% [markdown]
# ## How much of this may you believe?
#
# All 24 rows of the three tables, with one set of rates, have a mean error of 1.8 %, and the worst row is off by 5.5 %.
# That is better than it should be: of 1,000 draws of the four rates within ± 10 %, half have a mean error above 3.4 %.
# And four choices were made after errors had been seen. A model is worth most where it says what it leaves out: here
# gaps between kernels and stragglers; and whatever runs beside something else is free.
#
# ## Exercise
#
# 1. The forwards of a rank take 21.8 s. To compute them again costs 23.8 s. Why is that more?
# 2. In the run of 145.6 billion parameters each rank has two chunks. What would one chunk have cost?
# 3. Twice the bandwidth between hosts, or twice that within a host: which is worth more for a trillion parameters?
# 4. The coursework task `05_bubble` asks for the bubble of GPipe. What does its formula give for 64 ranks and 512
#    microbatches, and of which time is it a part?
#
# ```sh
# minipipe coursework mine                                    # once: writes the exercises into the folder mine/
# minipipe grade mine/05_bubble.py
# ```
#
# <details>
# <summary>Answers</summary>
#
# 1. While the pipeline fills and drains, a rank waits for the work of others, so that each second of work on a rank
#    counts (m + p - 1) / m times. And a forward that is computed again sends no message.
#
# ```python
# silent = costs_of(run, without=["messages"]).forward[1]
# assert round(512 * costs_of(run).forward[1], 1) == 21.8
# assert round((512 + 63) * silent, 1) == round(worth["recomputation"], 1) == 23.8
# ```
#
# 2. 1.5 s of 24: with two chunks the bubble is half as long, and there are more messages.
#
# ```python
# chunked = published_runs("megatron-table-1")[6]
# assert chunked.chunks == 2
# assert [round(predict(chunked._replace(chunks=v)), 1) for v in (1, 2)] == [25.5, 24.0]
# ```
#
# 3. Within a host: 3 s against 0.5 s. The sums over eight GPUs are worth 6 s and the messages between stages little
#    more than one, since each GPU sends an eighth of an activation.
#
# ```python
# faster = [A100._replace(**{name: link._replace(bandwidth=2 * link.bandwidth)})
#           for name, link in (("network", A100.network), ("node", A100.node))]
# assert [round(seconds - predict(run, each), 1) for each in faster] == [0.5, 3.0]
# ```
#
# 4. 63 / 575 = 11 %, of all time, idle time included: in 1F1B as in GPipe.
#
# ```python
# assert round(63 / (512 + 63), 2) == 0.11 == round(simulate(run.schedule()).bubble_fraction, 2)
# ```
#
# </details>
#
# Next, `21_which_parallelism.py`: one model as pipeline, as replicas and divided, and when which one wins.
