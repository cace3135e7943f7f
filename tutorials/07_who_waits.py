# %% [markdown]
# # 07 · Who waits for whom
#
# *"My MPI program works with small arrays and hangs with large ones."* This is one of the oldest questions on forums
# about parallel programs, and anyone who writes a pipeline by hand meets it. In this lesson you see it happen, learn
# why, let the verifier find it without running anything, and see the rule that makes it impossible.
#
# Then the same question for programs that do end: at each moment, which rank waits for which, and how long. There you
# find a case in which 1F1B is slower than GPipe.

# %%
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from minipipe import Costs, Schedule, render, schedules, simulate, verify
from minipipe.errors import ScheduleError
from minipipe.render.descriptions import describe_idle

# %% [markdown]
# ## The question
#
# Two ranks, each with an array for the other. Each sends its own, then receives the other's. `Send` and `Recv` are
# those of MPI, bare. (minipipe never uses `Send`, for the reason that you are about to see.)
#
# A program that hangs would hang this lesson, too; so each process asks the system to end it after some seconds.

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
# This starts it on two ranks, as you would in a terminal, where an MPI is installed:

# %%
mpirun = shutil.which("mpirun", path=Path(sys.executable).parent) or shutil.which("mpirun")
has_mpi = mpirun is not None and find_spec("mpi4py") is not None


def exchange(num_bytes, seconds, order):
    """Run the program on two ranks; return how many were ready, how many have sent, and what went wrong."""
    command = [mpirun, "-n", "2", sys.executable, "-c", PROGRAM, str(num_bytes), str(seconds), order]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.count("ready"), done.stdout.count("sent"), done.stderr


if has_mpi:
    for num_bytes, seconds, expected in [(1_000, 30, 2), (10_000_000, 1, 0)]:
        num_ready, num_sent, errors = exchange(num_bytes, seconds, "both send first")
        outcome = "it ends" if num_sent == 2 else f"ended by the system after {seconds} s"
        print(f"{num_bytes:10,} bytes: {num_ready} ranks were ready, {num_sent} have sent; {outcome}")
        assert (num_ready, num_sent) == (2, expected), errors
else:
    print("There is no MPI here (pip install -e '.[mpi]' brings one), so this cell has nothing to run; read on.")

# %% [markdown]
# With 1,000 bytes it ends at once, with 10,000,000 it never does. The reason is what `Send` promises: it returns when
# the array may be changed again, no more. For a **small** message MPI copies the array into a buffer of its own and
# returns at once: the send is *buffered*. For a **large** one it waits until the other rank has come to its `Recv`, and
# copies straight across: the two meet, a *rendezvous*. From which size on is up to the MPI library and the network;
# a program that works only with buffers is wrong, even where it works today.
#
# In a rendezvous both ranks wait in `Send`, and neither comes to its `Recv`: they wait in a circle, a **deadlock**.
# The smallest cure is that one of the two receives first:

# %%
if has_mpi:
    num_ready, num_sent, errors = exchange(10_000_000, 30, "one sends first")
    print(f"10,000,000 bytes: {num_ready} ranks were ready, {num_sent} have sent")
    assert (num_ready, num_sent) == (2, 2), errors
else:
    print("There is no MPI here, so this cell has nothing to run, either; read on.")

# %% [markdown]
# ## The same in a schedule
#
# With many ranks that is no longer easy to see. Take 1F1B on two ranks, and write the messages in, as anyone would at
# first: **receive just before use, send just after**. `0SEND_F0` sends the activation that `0F0` has made, `1RECV_F0`
# receives it for `1F0`; `SEND_B` and `RECV_B` are the same for gradients.

# %%
by_hand = Schedule.from_text(
    """
    rank 0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1
    rank 1: 1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1
    """,
    name="by hand",
)

# %% [markdown]
# Can you see it? The verifier can. It assumes the strictest message system there may be, in which every send waits for
# its receive:

# %%
try:
    verify(by_hand)
except ScheduleError as error:
    print(error)
    problem = error.problems[0]
assert problem.code == "rendezvous-deadlock"
assert (problem.rank, problem.step) == (0, 3)

# %% [markdown]
# Both ranks stand at their fourth action (step 3, as steps are counted from 0): rank 0 wants to send an activation up,
# rank 1 a gradient down. It is the program from above again. And if sends are buffered, or small, it runs, and takes
# what 1F1B takes:

# %%
buffered = simulate(by_hand)  # here a send costs its rank nothing, unless we say otherwise
render.show(buffered)
assert buffered.makespan == simulate(schedules.one_f_one_b(2, 2)).makespan == 9

# %% [markdown]
# Is it bad luck? Write the naive rule down once, and try it on many sizes:


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
    return Schedule("naive", schedule.placement, schedule.num_microbatches, rows)


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
        found = [hangs(with_naive_messages(builder(p, m))) for m in counts]
        print(f"{builder.__name__:11} {p} ranks", *("-X"[is_stuck] for is_stuck in found))
        assert found == [builder is schedules.one_f_one_b and p >= 2 and m >= 2 for m in counts]

# %% [markdown]
# (`X` hangs.) GPipe never hangs, 1F1B always does, as soon as there are two ranks and two microbatches. In GPipe first
# all messages go up, then all go down. In 1F1B neighbours send to each other at the same time, one up and one down,
# from the end of the warm-up on.
#
# ## The cure: one order for all
#
# `lower` adds messages to a schedule so that this cannot happen. It goes through the actions of all ranks in an order
# in which they can run. Where an action makes something for another rank, it writes the SEND into this rank's row
# **and at the same moment the RECV into the other one's**.

# %%
lowered = schedules.lower(schedules.one_f_one_b(2, 2))
print(lowered)
verify(lowered)
assert [str(action) for action in lowered.actions[1][:3]] == ["1RECV_F0", "1RECV_F1", "1F0"]

# %% [markdown]
# Rank 0 has not changed. Rank 1 receives both activations before it computes: `1RECV_F1` now stands where rank 0 sends
# it, not where rank 1 uses it.
#
# Why does this always work? Each pair has one place in **one order of everything**. Think of that order as a list, and
# of the first item on it that is not done yet. All before it is done, so both ranks that it concerns have come to it,
# and nothing holds it back. So something can always go on, until all is done. Try it, with sends that block:

# %%
for builder in (schedules.gpipe, schedules.one_f_one_b):
    for p in (1, 2, 3, 4):
        for m in counts:
            program = schedules.lower(builder(p, m))
            verify(program)
            assert simulate(program, Costs(sends_block=True)).makespan == simulate(builder(p, m)).makespan
print("40 programs, none hangs")
assert 2 * 4 * len(counts) == 40

# %% [markdown]
# A `Pipeline` lowers each schedule that it is given. And in it a send does not hold up its rank: the rank goes on
# computing while the message is under way, and looks only at the end of the step whether all have left. That is worth
# something, for when messages take time, a send that blocks costs its rank that time. Below each message takes one
# unit. A rank that waits in a send is drawn with `+` in a terminal, and with upright lines in a notebook:

# %%
flowing = simulate(lowered, Costs(latency=1))
blocking = replace(simulate(lowered, Costs(latency=1, sends_block=True)), name="1f1b, sends block")
render.show(flowing, blocking)
assert flowing.makespan == 11
assert blocking.makespan == 12

# %% [markdown]
# ## Why is this rank idle?
#
# Now to programs that end. Here stage 2 takes twice as long as the others, and the picture has many gaps. For each
# gap a timeline knows its cause and what the rank waited for:

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
# Rank 3 waits for rank 2, again and again. It is not rank 3 that one should make faster. Which one? Start at the action
# that ends last, and ask what it had to wait for; then ask the same of that one, back to the beginning. This chain is
# the **critical path**. Its actions follow each other without a gap, so their times add up to the makespan:

# %%
path = timeline.critical_path
print(*(str(span.action) for _, span in path))
times_by_rank = [sum(span.end - span.start for r, span in path if r == rank) for rank in range(4)]
print("time on the critical path, by rank:", *(f"{time:g}" for time in times_by_rank))
assert times_by_rank == [3, 3, 22, 3]
assert sum(times_by_rank) == timeline.makespan == 31

# %% [markdown]
# Of 31 units 22 are on rank 2. So make each stage twice as fast in turn, and see what that is worth. Stage 2, which is
# on the path with nearly all its actions, is worth 10 units; each of the others, which is on it only while the pipeline
# fills and drains, 1 or 1.5:

# %%
expected = [29.5, 29.5, 21, 30]
for stage in range(4):
    times = [time / 2 if s == stage else time for s, time in enumerate(slow_stage_2)]
    makespan = simulate(schedule, Costs(times, times, times)).makespan
    print(f"stage {stage} twice as fast: makespan {makespan:g}")
    assert makespan == expected[stage]

# %% [markdown]
# ## Where 1F1B loses to GPipe
#
# In lesson 06 1F1B took no longer than GPipe. But there messages took no time. Let a forward take 2 units, a backward
# 4, and each message 1:

# %%
costs = Costs(forward=2, backward_input=2, backward_weight=2, latency=1)
gpipe, one_f_one_b = simulate(schedules.gpipe(4, 8), costs), simulate(schedules.one_f_one_b(4, 8), costs)
render.show(gpipe, one_f_one_b)
print(f"GPipe {gpipe.makespan:g}, 1F1B {one_f_one_b.makespan:g}")
assert gpipe.makespan == 72
assert one_f_one_b.makespan == 82

# %% [markdown]
# In GPipe messages travel while the next microbatch is computed; only the first and the last one are waited for. In
# 1F1B rank 0 holds 4 microbatches, and may begin another one only when one of these has come back. The way there and
# back takes 4 forwards, 4 backwards and 6 messages, `4 (2 + 4) + 6 = 30` units. Four microbatches in 30 units makes one
# in 7.5, while the work of a rank for each is 6. In general a microbatch takes, with `K` held on rank 0,
#
# > the larger one of `tF + tB` and `(p (tF + tB) + 2 (p-1) c) / K`.
#
# Let us see whether it does: twenty microbatches more should take twenty times as long.


# %%
def period_by_hand(held):
    return max(2 + 4, (4 * (2 + 4) + 2 * (4 - 1) * 1) / held)


def period(builder):
    return (simulate(builder(4, 40), costs).makespan - simulate(builder(4, 20), costs).makespan) / 20


print(f"1F1B: a microbatch takes {period(schedules.one_f_one_b)} units; by hand {period_by_hand(held=4)}")
print(f"GPipe: a microbatch takes {period(schedules.gpipe)} units; by hand {period_by_hand(held=20)}")
assert period(schedules.one_f_one_b) == period_by_hand(held=4) == 7.5
assert period(schedules.gpipe) == period_by_hand(held=20) == 6

# %% [markdown]
# The formula says what helps: more microbatches under way. **Eager 1F1B** doubles the warm-up, to `2 (p-1-r)` forwards,
# so that rank 0 holds 7. It is as fast as GPipe again, and its memory still does not grow with `m`, but it holds
# nearly twice what 1F1B holds. There is no free lunch: latency is paid in time or in memory.

# %%
eager = simulate(schedules.eager_1f1b(4, 8), costs)
render.show(eager)
for timeline in (gpipe, one_f_one_b, eager):
    print(f"{timeline.name:11} makespan {timeline.makespan:g}, microbatches held {timeline.peak_activations}")
assert eager.makespan == gpipe.makespan == 72
assert (gpipe.peak_activations, one_f_one_b.peak_activations) == ((8, 8, 8, 8), (4, 3, 2, 1))
assert eager.peak_activations == (7, 5, 3, 1)
assert period(schedules.eager_1f1b) == period_by_hand(held=7) == 6

# %% [markdown]
# ## Exercise
#
# 1. Cure `by_hand` with as few moves as you can: change the place of one action, and let `verify` judge. Which of the
#    moves that work is `lower`'s?
# 2. From which latency on does 1F1B with 4 ranks, `tF = 2` and `tB = 4` take longer for each microbatch than its
#    work? Find it by hand from the formula, then with `period`. (Look closely at the number that comes out.)
# 3. The coursework tasks that belong here are `08_lowering` and `09_verifier_rule`.
#
# Next, `08_interleaved.py`: several stages on each rank, so that the pipeline fills faster.
