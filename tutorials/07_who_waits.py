# %% [markdown]
# # 07 · Who waits for whom
#
# In this lesson you make a parallel program hang, learn why it hangs, let the verifier
# find the cause without running anything, and see the rule that makes such a hang
# impossible. Then you look at programs that finish, find out which rank waits for
# which, and use the answers to **choose the number of microbatches for a given batch**.
#
# *"My MPI program works with small arrays and hangs with large ones."* This is an old
# question on forums about parallel programming, and everyone who writes a pipeline by
# hand meets it.

# %%
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from minipipe import Costs, Program, render, schedules, simulate, verify
from minipipe.errors import ScheduleError
from minipipe.render.descriptions import describe_idle

# %% [markdown]
# ## A program that hangs
#
# Each of two ranks has an array for the other one. Each sends its own array first and
# then receives. `Send` and `Recv` are the functions of MPI. (minipipe never uses
# `Send`, for the reason that this section explains.)
#
# A program that hangs would also stop this lesson, so each process asks the system to
# end it after a few seconds.

# %%
PROGRAM = """
import signal, sys
import numpy as np
from mpi4py import MPI

num_bytes, seconds, order = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
world = MPI.COMM_WORLD
other = 1 - world.rank
mine, theirs = np.ones(num_bytes, np.uint8), np.zeros(num_bytes, np.uint8)

def send():
    world.Send(mine, other)
    print("sent", flush=True)

def receive():
    world.Recv(theirs, other)

world.Barrier()
print("ready", flush=True)
signal.alarm(seconds)
if order == "both send first" or world.rank == 0:
    send()
    receive()
else:
    receive()
    send()
"""

# %% [markdown]
# The next cell runs the program on two ranks, as you would in a terminal.

# %%
mpirun = shutil.which("mpirun", path=Path(sys.executable).parent) or shutil.which(
    "mpirun"
)
has_mpi = mpirun is not None and find_spec("mpi4py") is not None


def exchange(num_bytes, seconds, order):
    """Run the program on two ranks; return how many got ready, how many finished sending, and stderr."""
    command = [
        mpirun,
        "-n",
        "2",
        sys.executable,
        "-c",
        PROGRAM,
        str(num_bytes),
        str(seconds),
        order,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout.count("ready"), done.stdout.count("sent"), done.stderr


if has_mpi:
    for num_bytes, seconds, expected in [(1_000, 30, 2), (10_000_000, 1, 0)]:
        num_ready, num_sent, errors = exchange(num_bytes, seconds, "both send first")
        outcome = (
            "it finishes" if num_sent == 2 else f"ended by the system after {seconds} s"
        )
        print(
            f"{num_bytes:10,} bytes: {num_ready} ranks were ready, {num_sent} "
            f"have sent; {outcome}"
        )
        assert (num_ready, num_sent) == (2, expected), errors
else:
    print("This cell needs MPI: pip install -e '.[mpi]'. Continue with the next cell.")

# %% [markdown]
# With 1,000 bytes it finishes at once; with 10,000,000 bytes it never does. The reason
# is the promise of `Send`: it returns as soon as the array may be modified again, and
# promises nothing more.
#
# - A **small** message is *buffered*: MPI copies the payload into its own buffer, and
#   `Send` returns at once.
# - A **large** message needs a *rendezvous*: sender and receiver do a handshake first,
#   so `Send` waits until the other rank has reached its `Recv`. Then the payload is
#   copied straight across.
#
# The threshold depends on the MPI library and on the network. A program that relies on
# buffering is wrong, even if it works today.
#
# With a rendezvous, both ranks wait in `Send`, and neither reaches its `Recv`. The
# waits form a cycle: a **deadlock**. The smallest fix is to let one of the two ranks
# receive first:

# %%
if has_mpi:
    num_ready, num_sent, errors = exchange(10_000_000, 30, "one sends first")
    print(f"10,000,000 bytes: {num_ready} ranks were ready, {num_sent} have sent")
    assert (num_ready, num_sent) == (2, 2), errors
else:
    print("This cell needs MPI as well. Continue with the next cell.")

# %% [markdown]
# ## The same deadlock in a schedule
#
# With many ranks a deadlock is no longer easy to see. Take 1F1B on two ranks and insert
# the messages in the obvious way: **receive just before use, send just after**.
# `0SEND_F0` sends the activation that `0F0` has computed, and `1RECV_F0` receives it
# for `1F0`. `SEND_B` and `RECV_B` do the same for gradients. A schedule with its
# messages is a `Program`:

# %%
by_hand = Program.from_text(
    """
    rank 0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1
    rank 1: 1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1
    """,
    name="by hand",
)

# %% [markdown]
# Can you see the deadlock? The verifier can. It assumes the strictest message system
# possible, in which every send blocks until its receive:

# %%
try:
    verify(by_hand)
except ScheduleError as error:
    print(error)
    problem = error.problems[0]
assert problem.code == "rendezvous-deadlock"
assert (problem.rank, problem.step) == (0, 3)

# %% [markdown]
# Both ranks are blocked at their fourth action (position 3, counted from 0). Rank 0
# sends an activation to rank 1, and rank 1 sends a gradient to rank 0: the program from
# above again.
#
# If sends are buffered, the schedule runs, and takes as long as 1F1B should:

# %%
buffered = simulate(by_hand)  # by default a send costs its rank no time
render.show(buffered)
assert buffered.makespan == simulate(schedules.one_f_one_b(2, 2)).makespan == 9

# %% [markdown]
# Is this an exception? Here the naive rule is a function, and we try it on many sizes.
# `X` means that the verifier finds a deadlock:


# %%
def with_naive_messages(schedule):
    last = schedule.num_stages - 1
    rows = []
    for row in schedule.actions:
        program = []
        for stage, kind, k in row:
            comes_from_another = stage > 0 if kind == "F" else stage < last
            goes_to_another = stage < last if kind == "F" else stage > 0
            program += [f"{stage}RECV_{kind}{k}"] if comes_from_another else []
            program += [f"{stage}{kind}{k}"]
            program += [f"{stage}SEND_{kind}{k}"] if goes_to_another else []
        rows.append(program)
    return Program("naive", schedule.placement, schedule.num_microbatches, rows)


def hangs(schedule):
    try:
        verify(schedule)
    except ScheduleError:
        return True
    return False


assert with_naive_messages(schedules.one_f_one_b(2, 2)).actions == by_hand.actions
counts = range(1, 6)
print("microbatches       ", *counts)
for builder in (schedules.gpipe, schedules.one_f_one_b):
    for p in (1, 2, 3, 4):
        results = [hangs(with_naive_messages(builder(p, m))) for m in counts]
        print(
            f"{builder.__name__:11} {p} ranks",
            *("-X"[is_stuck] for is_stuck in results),
        )
        assert results == [
            builder is schedules.one_f_one_b and p >= 2 and m >= 2 for m in counts
        ]

# %% [markdown]
# GPipe never hangs. 1F1B hangs as soon as there are at least two ranks and two
# microbatches. The difference: in GPipe all activations are sent first, and all
# gradients afterwards. In 1F1B, after the warm-up, neighbours send to each other at the
# same time, one an activation and the other a gradient.
#
# ## The fix: one order for all
#
# `lower` adds messages to a schedule so that this cannot happen. It walks through the
# actions of all ranks in **topological order**: each action comes after everything it
# depends on. When an action produces a value for another rank, `lower` appends the SEND
# to the producer's program **and, at the same moment, the RECV to the consumer's
# program**.

# %%
lowered = schedules.lower(schedules.one_f_one_b(2, 2))
print(lowered)
verify(lowered)
assert [str(action) for action in lowered.actions[1][:3]] == [
    "1RECV_F0",
    "1RECV_F1",
    "1F0",
]

# %% [markdown]
# Rank 0 has not changed. Rank 1 receives both activations before it computes anything:
# `1RECV_F1` now stands at the point at which rank 0 sends the value, not at the point
# at which rank 1 uses it.
#
# Why does this always work? Each pair of SEND and RECV has a single position in **one
# global order**. Look at the first item in that order that has not completed.
# Everything before it has completed, so every rank that takes part in it has reached
# it, and nothing blocks it. So at least one rank can always make progress, until the
# program is finished. Try it with sends that block:

# %%
for builder in (schedules.gpipe, schedules.one_f_one_b):
    for p in (1, 2, 3, 4):
        for m in counts:
            program = schedules.lower(builder(p, m))
            verify(program)
            assert (
                simulate(program, Costs(sends_block=True)).makespan
                == simulate(builder(p, m)).makespan
            )
print("40 programs, none hangs")
assert 2 * 4 * len(counts) == 40

# %% [markdown]
# A `Pipeline` lowers every schedule. Its sends do not block: the rank continues to
# compute while the message is in flight, and only checks at the end of the step that
# all messages have left. This matters if messages take time, because a blocking send
# costs its rank that time.
#
# In the picture each message takes one unit. A rank that is blocked in a send is drawn
# with `+` in a terminal and with vertical lines in a notebook:

# %%
flowing = simulate(lowered, Costs(latency=1))
blocking = replace(
    simulate(lowered, Costs(latency=1, sends_block=True)), name="1f1b, sends block"
)
render.show(flowing, blocking)
assert flowing.makespan == 11
assert blocking.makespan == 12

# %% [markdown]
# ## Why is this rank idle?
#
# Now we look at programs that finish. Here stage 2 is twice as slow as the others, and
# the picture has many gaps. For each gap, the timeline records the cause and the action
# that the rank was waiting for:

# %%
slow_stage_2 = [1, 1, 2, 1]
schedule = schedules.one_f_one_b(4, 4)
timeline = simulate(schedule, Costs(slow_stage_2, slow_stage_2, slow_stage_2))
render.show(timeline)
for gap in timeline.idle[3]:
    print(f"rank 3, from {gap.start:g} to {gap.end:g}: {describe_idle(gap)}")
assert timeline.makespan == 31
assert [(gap.cause, gap.start, gap.end, gap.source) for gap in timeline.idle[3]] == [
    ("warm-up", 0, 4, 2),
    ("waiting", 10, 13, 2),
    ("waiting", 16, 19, 2),
    ("drain", 22, 31, None),
]

# %% [markdown]
# Rank 3 waits for rank 2 again and again, so a faster rank 3 would not help. Which rank
# would? Start at the action that ends last and find the action that it had to wait for.
# Do the same for that action, and so on back to the beginning. This chain is the
# **critical path**. Its actions follow each other without a gap, so their times add up
# to the makespan:

# %%
path = timeline.critical_path
print(*(str(span.action) for _, span in path))
times_by_rank = [
    sum(span.end - span.start for r, span in path if r == rank) for rank in range(4)
]
print("time on the critical path, by rank:", *(f"{time:g}" for time in times_by_rank))
assert times_by_rank == [3, 3, 22, 3]
assert sum(times_by_rank) == timeline.makespan == 31

# %% [markdown]
# Of 31 units, 22 are on rank 2. To see the effect, make each stage in turn twice as
# fast:

# %%
expected = [29.5, 29.5, 21, 30]
for stage in range(4):
    times = [time / 2 if s == stage else time for s, time in enumerate(slow_stage_2)]
    makespan = simulate(schedule, Costs(times, times, times)).makespan
    print(f"stage {stage} twice as fast: makespan {makespan:g}")
    assert makespan == expected[stage]

# %% [markdown]
# Nearly all actions of stage 2 are on the critical path, so speeding it up saves 10
# units. The other stages are on the path only while the pipeline fills and drains; they
# save 1 or 1.5 units.
#
# ## Slow messages make 1F1B slower than GPipe
#
# In lesson 06, 1F1B was as fast as GPipe. But there, messages took no time. The time of
# a message is its **latency**, called `c` below. Let a forward take 2 units, a backward
# 4, and each message 1:

# %%
costs = Costs(forward=2, backward_input=2, backward_weight=2, latency=1)
gpipe, one_f_one_b = (
    simulate(schedules.gpipe(4, 8), costs),
    simulate(schedules.one_f_one_b(4, 8), costs),
)
render.show(gpipe, one_f_one_b)
print(f"GPipe {gpipe.makespan:g}, 1F1B {one_f_one_b.makespan:g}")
assert gpipe.makespan == 72
assert one_f_one_b.makespan == 82

# %% [markdown]
# In GPipe, messages are in flight while the next microbatch is computed. A rank waits
# only for its first activation and its first gradient. In 1F1B, rank 0 holds 4
# microbatches and can only start another one when one of them has come back. The round
# trip takes 4 forwards, 4 backwards and 6 messages: `4 (2 + 4) + 6 = 30` units. Four
# microbatches in 30 units is one every 7.5 units, but the work of a rank on a
# microbatch takes only 6. In general, if rank 0 holds `K` microbatches, the time per
# microbatch is
#
# > the larger of `tF + tB` and `(p (tF + tB) + 2 (p-1) c) / K`.
#
# Let us check: twenty more microbatches should add twenty times that.


# %%
def period_by_hand(held):
    return max(2 + 4, (4 * (2 + 4) + 2 * (4 - 1) * 1) / held)


def period(builder):
    return (
        simulate(builder(4, 40), costs).makespan
        - simulate(builder(4, 20), costs).makespan
    ) / 20


print(
    f"1F1B: a microbatch takes {period(schedules.one_f_one_b)} units; by hand "
    f"{period_by_hand(held=4)}"
)
print(
    f"GPipe: a microbatch takes {period(schedules.gpipe)} units; by hand "
    f"{period_by_hand(held=20)}"
)
assert period(schedules.one_f_one_b) == period_by_hand(held=4) == 7.5
assert period(schedules.gpipe) == period_by_hand(held=20) == 6

# %% [markdown]
# The formula shows the remedy: a larger `K`. **Eager 1F1B** doubles the
# warm-up to `2 (p-1-r)` forwards, so that rank 0 holds 7 microbatches:

# %%
eager = simulate(schedules.eager_1f1b(4, 8), costs)
render.show(eager)
for timeline in (gpipe, one_f_one_b, eager):
    print(
        f"{timeline.name:11} makespan {timeline.makespan:g}, microbatches held "
        f"{timeline.peak_activations}"
    )
assert eager.makespan == gpipe.makespan == 72
assert (gpipe.peak_activations, one_f_one_b.peak_activations) == (
    (8, 8, 8, 8),
    (4, 3, 2, 1),
)
assert eager.peak_activations == (7, 5, 3, 1)
assert period(schedules.eager_1f1b) == period_by_hand(held=7) == 6

# %% [markdown]
# Eager 1F1B is as fast as GPipe again. Its memory still does not grow with `m`, but
# rank 0 holds nearly twice as much as in 1F1B. So latency costs either time or memory.
#
# ## How many microbatches for my batch? A recipe
#
# You now know what matters for this choice: the bubble, the fixed time of a matrix
# product (lesson 05), latency and memory. For a first estimate, take the formula of
# lesson 05: the square root of `(p-1) n t / h`, for p stages, n samples in the batch,
# the time t of a sample and the fixed time h. It leaves out latency and memory. This
# recipe includes them:
#
# 1. Measure your stages: the times t1 and t2 of a forward of n1 and n2 samples, the
#    latency of a message, and the memory of one sample. (`pipeline.measure_costs`
#    measures times, see lesson 12. `pipeline.measure_memory` measures memory, see
#    lesson 06.) The time per sample is (t2 - t1) / (n2 - n1), and the fixed time is t1
#    minus n1 times the time per sample.
# 2. List the numbers of microbatches that divide your batch.
# 3. Simulate a step for each of them, with the costs of that size.
# 4. Discard the numbers that need more memory than a rank has.
# 5. Take the fastest of the remaining numbers.
#
# Steps 2 and 3 are the function below. It assumes equal stages, and a backward of two
# matrix products, each as long as a forward. Memory is counted in samples: a rank that
# holds two microbatches of 16 samples holds 32. In the example the batch has 512
# samples, and the stages the same times as in lesson 05: fixed 3 units, and 1 unit per
# sample.


# %%
def simulated_steps(
    batch, num_stages, fixed, per_sample, latency, builder=schedules.one_f_one_b
):
    """Return the timeline of a step for each number of microbatches that divides the batch."""
    steps = {}
    for m in range(1, batch + 1):
        if batch % m == 0:
            samples = batch // m
            # a forward; a backward is two of them
            product = fixed + per_sample * samples
            costs = Costs(
                product, product, product, latency=latency, activation=samples
            )
            steps[m] = simulate(builder(num_stages, m), costs)
    return steps


steps = simulated_steps(batch=512, num_stages=4, fixed=3, per_sample=1, latency=1)
estimate = ((4 - 1) * 512 * 1 / 3) ** 0.5
print(f"first estimate: {estimate:.1f} microbatches")
print("microbatches  samples in each  bubble  samples held  makespan")
for m, step in steps.items():
    held = max(step.peak_memory)
    bar = "#" * round(step.makespan / 200)
    print(
        f"{m:12d} {512 // m:16d} {step.bubble_fraction:7.0%} {held:13.0f} "
        f"{step.makespan:9.0f} {bar}"
    )
assert round(estimate, 1) == 22.6
assert list(steps) == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
assert [step.makespan for step in steps.values()][3:7] == [2227, 2023, 2047, 2311]
assert [max(step.peak_memory) for step in steps.values()][3:7] == [256, 128, 64, 32]

# %% [markdown]
# With few microbatches the bubble is large; with many, the fixed times add up. (From
# 256 on, the bubble grows again: a microbatch is then so short that the latency
# counts.) The fastest number is 16, with microbatches of 32 samples. The first
# estimate, 22.6, lies between 16 and the next candidate, 32, which takes almost the
# same time. With 16 microbatches, rank 0 holds the activations of 128 samples. Steps 4
# and 5 take the memory of a rank into account. Here are the choices for three limits,
# from ample to tight:


# %%
def best_number(steps, memory):
    """Return the fastest number of microbatches whose activations fit into the memory of a rank."""
    makespans = {
        m: step.makespan for m, step in steps.items() if max(step.peak_memory) <= memory
    }
    return min(makespans, key=makespans.get)


choices = {memory: best_number(steps, memory) for memory in (200, 100, 40)}
for memory, m in choices.items():
    slower = steps[m].makespan / steps[16].makespan - 1
    print(
        f"memory for {memory:3d} samples: {m} microbatches of {512 // m} "
        f"samples, {slower:4.1%} above the fastest"
    )
assert choices == {200: 16, 100: 32, 40: 64}
assert [
    round(steps[m].makespan / steps[16].makespan - 1, 3) for m in choices.values()
] == [0, 0.012, 0.142]

# %% [markdown]
# With memory for 100 samples, 32 microbatches cost hardly any time. The curve is flat
# near its minimum, so rough measurements are good enough. Exercise 3 checks how rough
# they may be.
#
# If no number fits, even microbatches of a single sample are too large. Then recompute
# activations (lesson 06), use a schedule with less memory (lesson 10), or use more
# stages.
#
# The best number depends on the batch. For larger batches, both the number of
# microbatches and their size grow:

# %%
best = {
    n: best_number(simulated_steps(n, 4, fixed=3, per_sample=1, latency=1), memory=n)
    for n in (64, 256, 1024)
}
for n, m in best.items():
    print(f"batch of {n:4d}: {m:2d} microbatches of {n // m:2d} samples")
assert best == {64: 8, 256: 16, 1024: 32}

# %% [markdown]
# The same recipe works for other schedules: pass `builder=schedules.zb_h1`, for
# example. `minipipe advise PROGRAM` does all five steps for your own training program:
# it measures the costs and compares partitions and schedules as well.
#
# In PyTorch and Megatron-LM, pass the result as follows (lesson 06 has the whole
# programs). For 32 microbatches of 16 samples:
#
# ```text
# PyTorch:      Schedule1F1B(stage, n_microbatches=32, loss_fn=loss)
# Megatron-LM:  --micro-batch-size 16 --global-batch-size 512
# ```
#
# In PyTorch, `n_microbatches` divides the batch that you pass to `schedule.step` on
# this pipeline. The Megatron options are for one replica of the pipeline. With R
# data-parallel replicas (lesson 18), each replica gets 512 / R samples of the batch. So
# compute the number of microbatches for a batch of 512 / R, and keep
# `--global-batch-size 512`.

# %% [markdown]
# ## What you have learnt
#
# - A `Send` of a large array waits for its receive. If two ranks send to each other
#   first, they deadlock.
# - A schedule whose sends and receives have one global order cannot deadlock. `lower`
#   builds such programs, and `verify` finds the others.
# - The critical path shows which rank determines the makespan.
# - Latency slows 1F1B down, unless each rank holds more microbatches.
# - To choose the number of microbatches, measure the costs, simulate each number, and
#   take the fastest one that fits into memory.
#
# ## Exercise
#
# 1. Fix `by_hand` with as few moves as you can: move one action, and ask `verify`.
#    Which of the moves that work is the one that `lower` makes?
# 2. Above which latency does a microbatch in 1F1B, with 4 ranks, `tF = 2` and `tB = 4`,
#    take longer than the work of a rank on it? Find the latency by hand from the
#    formula, then with `period`.
# 3. Suppose that your measurements of `fixed`, `per_sample` and `latency` are each
#    wrong by up to 20 %. How much slower is the step with the chosen number than with
#    the best one, for a batch of 512 and ample memory?
# 4. The coursework tasks for this lesson are `08_lowering` and `09_verifier_rule`.
#
# <details>
# <summary>Answers</summary>
#
# 1. One move is enough, and there are several. Either rank may receive before it sends:
#    rank 0 `0RECV_B0` before `0SEND_F1`, or rank 1 `1RECV_F1` before `1SEND_B0`. Moving
#    the send behind the receive is the same move. `lower` moves the receive of rank 1
#    even further: `1RECV_F1` stands at the point at which rank 0 sends it, in front of
#    `1F0`.
#
# ```python
# def moved(rank, begin, end):
#     """Return the program with one action moved."""
#     rows = [list(row) for row in by_hand.actions]
#     rows[rank].insert(end, rows[rank].pop(begin))
#     return Program("moved", by_hand.placement, 2, rows)
#
#
# works = [
#     (rank, begin, end)
#     for rank in (0, 1)
#     for begin in range(8)
#     for end in range(8)
#     if begin != end and not hangs(moved(rank, begin, end))
# ]
# assert {str(by_hand.actions[rank][begin]) for rank, begin, _ in works} == {
#     *("0RECV_B0", "0SEND_F1", "1RECV_F1", "1SEND_B0")
# }
# lowered = schedules.lower(schedules.one_f_one_b(2, 2))
# assert [place for place in works if moved(*place).actions == lowered.actions] == [
#     (1, 4, 1)
# ]
# ```
#
# 2. Above 0. The formula gives (4 × 6 + 6 c) / 4 units for a microbatch, and the work
#    is 6 units: 1.5 c more, for any latency c. 1F1B holds exactly as many microbatches
#    as are needed to keep the ranks busy without latency, and none to spare.
#
# ```python
# for latency in (0, 0.1, 1):
#     costs = Costs(forward=2, backward_input=2, backward_weight=2, latency=latency)
#     assert abs(period(schedules.one_f_one_b) - (6 + 1.5 * latency)) < 1e-9
# ```
#
# 3. At most 1.2 %: the choice is sometimes 32 instead of 16, and these two take almost
#    the same time.
#
# ```python
# import itertools
#
#
# def times(fixed, per_sample, latency):
#     steps = simulated_steps(512, 4, 3 * fixed, per_sample, latency)
#     return {m: step.makespan for m, step in steps.items()}
#
#
# true = times(1, 1, 1)
# losses = []
# for errors in itertools.product((0.8, 1.0, 1.2), repeat=3):
#     measured = times(*errors)
#     chosen = min(measured, key=measured.get)
#     losses.append(true[chosen] / min(true.values()) - 1)
# assert round(max(losses), 3) == 0.012
# ```
#
# </details>
#
# Next, `08_interleaved.py`: several stages on each rank, so that the pipeline fills
# faster.
