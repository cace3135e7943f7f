# %% [markdown]
# # 03 · Ranks and messages
#
# In this lesson several workers share a task, and you write the messages between them:
# send, receive, tags, and a sum over all workers. You also cause a deadlock on purpose
# and read its error message, because everybody causes one by accident sooner or later.
# There is no network in this lesson.

# %%
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from minipipe import render, spawn
from minipipe.errors import MessageError

# %% [markdown]
# ## A rank
#
# A **rank** is a worker with its own memory. All ranks run the same program; they
# differ only in a number, also called the rank: 0, 1, 2, … Together the ranks form a
# **group**. They communicate through the group object.
#
# On a cluster each rank is a process, possibly on a different machine. In a notebook it
# is more convenient to run the ranks as threads of one process. `spawn` runs a function
# once on each rank and returns the results in rank order.


# %%
def introduce(group):
    return f"I am rank {group.rank} of {group.size}"


introductions = spawn(introduce, num_ranks=4)
print("\n".join(introductions))
assert introductions == [f"I am rank {rank} of 4" for rank in range(4)]

# %% [markdown]
# Threads could look at each other's variables. Processes cannot, so our ranks never do:
# a value that one rank needs from another has to arrive in a **message**. So the same
# program runs on threads and on processes.
#
# ## Send and receive
#
# `send` names the destination rank, and `recv` names the source rank. Every send needs
# a matching receive: a message is only delivered if the other rank receives it. `recv`
# waits until the message has arrived.
#
# The list below has one return value per rank: `None` from rank 0, and the received
# numbers from rank 1.


# %%
def tell(group):
    if group.rank == 0:
        group.send(np.array([1.5, 2.5]), 1)  # to rank 1
        return None
    return group.recv(0).tolist()  # from rank 0


heard = spawn(tell, num_ranks=2)
print(heard)
assert heard == [None, [1.5, 2.5]]

# %% [markdown]
# ## Tags
#
# Messages from one rank to another arrive in the order in which they were sent. To
# receive them in a different order, or to be sure which message is which, give each
# message a number, its **tag**. `recv` then takes the next message with *that* tag.


# %%
def tell_two_things(group):
    if group.rank == 0:
        group.send(np.array(10), 1, tag=1)
        group.send(np.array(20), 1, tag=2)
        return None
    second = int(group.recv(0, tag=2))
    first = int(group.recv(0, tag=1))
    return [second, first]


heard = spawn(tell_two_things, num_ranks=2)
print(heard)
assert heard == [None, [20, 10]]

# %% [markdown]
# ## A ring
#
# Now every rank sends at the same time. Each rank sends its number to the next one, and
# the last rank sends to the first:
#
#     ┌─→ rank 0 ──→ rank 1 ──→ rank 2 ──→ rank 3 ─┐
#     └────────────────────────────────────────────┘
#
# `isend` starts a send and returns at once ("i" for immediate). It returns a request.
# Call `wait()` on the request before you modify the array again.


# %%
def ring(group):
    after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    sending = group.isend(np.array(group.rank), after)
    received = int(group.recv(before))
    sending.wait()
    return received


heard = spawn(ring, num_ranks=4)
for rank, number in enumerate(heard):
    print(f"rank {rank} heard from rank {number}")
assert heard == [3, 0, 1, 2]

# %% [markdown]
# ## A deadlock, on purpose
#
# In the next cell each rank receives first and sends afterwards. Rank 0 waits for rank
# 3, which waits for rank 2, which waits for rank 1, which waits for rank 0. None of
# them ever sends. This is a **deadlock**. With bare threads or bare MPI the program
# simply hangs, without a message.
#
# Here all ranks are threads of one process, so minipipe knows every wait. It sees at
# once that none of them can end, and raises an error. The `code` of the error is for
# programs, the message is for you: it says which rank waits for which message from
# which rank.


# %%
def ring_that_hangs(group):
    after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    received = int(group.recv(before))
    group.send(np.array(group.rank), after)
    return received


try:
    spawn(ring_that_hangs, num_ranks=4)
except MessageError as error:
    deadlock = error
print(f"{deadlock.code}: {deadlock}".replace("; ", ";\n    "))
assert deadlock.code == "deadlock"
for rank in range(4):
    assert (
        f"rank {rank} waits for a message with tag 0 from rank {(rank - 1) % 4}"
        in str(deadlock)
    )

# %% [markdown]
# The same as a graph. An arrow leads from each rank to the rank that it waits for:

# %%
waits = re.findall(
    r"(rank \d) (waits for) a message with tag 0 from (rank \d)", str(deadlock)
)
arrows = [(waiting, awaited, text) for waiting, text, awaited in waits]
picture = render.draw_graph([[f"rank {rank}"] for rank in range(4)], arrows)
render.show_picture(
    picture, " -> ".join(["rank 0", "rank 3", "rank 2", "rank 1", "rank 0"])
)
assert dict(arrow[:2] for arrow in arrows) == {
    f"rank {rank}": f"rank {(rank - 1) % 4}" for rank in range(4)
}

# %% [markdown]
# The arrows form a cycle: follow them from any rank, and you come back to it. From
# lesson 05 on you use a function, the *verifier*, that finds deadlocks before a program
# runs. It searches for such cycles.
#
# ## A message that is never sent
#
# The most common deadlock is smaller: a rank waits for a message that is never sent, or
# that was sent with a different tag. Often the sender has already finished.


# %%
def confuse_tags(group):
    if group.rank == 0:
        group.send(np.array(1.0), 1, tag=1)
    else:
        group.recv(0, tag=7)


try:
    spawn(confuse_tags, num_ranks=2)
except MessageError as error:
    deadlock = error
print(f"{deadlock.code}: {deadlock}".replace("; ", ";\n    "))
assert deadlock.code == "deadlock"
assert str(deadlock) == (
    "All ranks are blocked: rank 1 waits for a message with tag 7 from rank 0; "
    "rank 0 has returned; "
    "a message from rank 0 to rank 1 with tag 1 is never received."
)

# %% [markdown]
# ## Fixing the ring
#
# One fix is to call `isend` first, as in the ring above. Another is to let neighbours
# do opposite things: even ranks send first, odd ranks receive first. This works even if
# a `send` waits until its message is received, which is the case for large messages
# between processes (lesson 07).


# %%
def ring_by_turns(group):
    after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    if group.rank % 2 == 0:
        group.send(np.array(group.rank), after)
        return int(group.recv(before))
    received = int(group.recv(before))
    group.send(np.array(group.rank), after)
    return received


heard = spawn(ring_by_turns, num_ranks=4)
print(heard)
assert heard == [3, 0, 1, 2]

# %% [markdown]
# ## Sums over all ranks
#
# Often each rank has an array, and every rank needs the sum of all arrays. This
# operation is an **all-reduce**. It can be built from sends and receives: every rank
# sends its array to rank 0, which adds the arrays in rank order and sends the sum back
# to all ranks.


# %%
def all_reduce_by_hand(group, array):
    if group.rank == 0:
        total = array
        for source in range(1, group.size):
            total = total + group.recv(source)
        for destination in range(1, group.size):
            group.send(total, destination)
        return total
    group.send(array, 0)
    return group.recv(0)


def add_up(group):
    mine = np.array([group.rank + 1.0, 10.0 * group.rank])
    return all_reduce_by_hand(group, mine).tolist(), group.all_reduce(mine).tolist()


sums = spawn(add_up, num_ranks=4)
for rank, (by_hand, built_in) in enumerate(sums):
    print(f"rank {rank}: by hand {by_hand}, built in {built_in}")
assert sums == [([10.0, 60.0], [10.0, 60.0])] * 4

# %% [markdown]
# Why in rank order, and not in the order in which the messages arrive? Every addition
# rounds, so the order affects the last digit, and the order of arrival is random:

# %%
print(0.1 + 0.2 + 0.3, "is not", 0.3 + 0.2 + 0.1)
assert 0.1 + 0.2 + 0.3 != 0.3 + 0.2 + 0.1

# %% [markdown]
# `group.all_reduce` always adds in pairs, here (rank 0 + rank 1) + (rank 2 + rank 3), so
# every run gives the same bits.
#
# ## The same between processes
#
# MPI, the Message Passing Interface, is the standard for messages between processes, on
# one machine or on a cluster. Instead of calling `spawn`, the program calls
# `init_process_group()` to get its group, and the command `mpirun -n 2` starts the
# program twice. The program below sends around a ring of two ranks and then waits for a
# message that is never sent.
#
# Between processes no single rank sees all the waits, so a rank cannot distinguish a
# deadlock from a slow partner. Instead, each wait has a time limit: 300 seconds by
# default, one second here. The code of the error is then `timeout`. A rank that reaches
# its time limit asks all others what they are doing, and the error shows their answers.

# %%
PROGRAM = """
import numpy as np
from minipipe import init_process_group
from minipipe.errors import MessageError

with init_process_group(timeout=1.0) as group:
    other = 1 - group.rank
    sending = group.isend(np.array(group.rank), other)
    received = group.recv(other)
    sending.wait()
    heard = group.all_gather(received)  # every rank gets the arrays of all ranks
    if group.rank == 0:
        for rank, number in enumerate(heard):
            print(f"rank {rank} heard from rank {number}")
        try:
            group.recv(1, tag=7)
        except MessageError as error:
            print(f"{error.code}: {error}")
    group.barrier()  # wait until every rank has arrived
"""

# %% [markdown]
# The next cell runs `mpirun` as you would in a terminal.

# %%
mpirun = shutil.which("mpirun", path=Path(sys.executable).parent) or shutil.which(
    "mpirun"
)

if mpirun is None or find_spec("mpi4py") is None:
    print("This cell needs MPI: pip install -e '.[mpi]'. Continue with the next cell.")
else:
    command = [mpirun, "-n", "2", sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False
    )
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        r"rank 0 heard from rank 1\n"
        r"rank 1 heard from rank 0\n"
        r"timeout: Rank 0 has waited 1\.\d s, since [\d:]+, for a message with "
        r"tag 7 from rank 1\.\n"
        r"rank  process .* doing\n"
        r"   0  \d+ \S+ .* waits 1\.\d s for a message with tag 7 from rank 1\n"
        r"   1  \d+ \S+ .* waits 1\.\d s for a barrier from rank 0\n"
        r"Rank 0 has waited longest, for a message with tag 7 from rank 1: never "
        r"sent, or .*\n",
        done.stdout,
    )

# %% [markdown]
# Rank 1 waits as well: it has already reached the barrier, and will never send the
# message that rank 0 waits for.
#
# Only rank 0 prints in this program. If several processes print at the same time, their
# lines get mixed up, so one rank prints for all.

# %% [markdown]
# ## The same in PyTorch
#
# `torch.distributed` has the same calls. `recv` writes into a tensor, which must have
# the right shape, and `all_reduce` replaces its argument by the sum. A *backend*
# carries the messages: `"gloo"` on CPUs, `"nccl"` on GPUs.
#
# Save this program as `messages.py`:
#
# ```python
# import torch
# import torch.distributed as dist
#
# dist.init_process_group("gloo")
# if dist.get_rank() == 0:
#     dist.send(torch.tensor([1.5, 2.5]), dst=1)
# else:
#     received = torch.empty(2)
#     dist.recv(received, src=0)
# total = torch.ones(2)
# dist.all_reduce(total)
# print(f"rank {dist.get_rank()}: the sum is {total.tolist()}")  # [2.0, 2.0]
# dist.destroy_process_group()
# ```
#
# `torchrun` starts the processes, as `mpirun` does here:
#
# ```text
# torchrun --nproc-per-node 2 messages.py
# ```

# %% [markdown]
# ## What you have learnt
#
# - Ranks have no variables in common. They exchange messages with `send`, `isend` and
#   `recv`, and use tags to distinguish them.
# - Ranks deadlock if their waits form a cycle, or if a message is never sent.
# - An all-reduce gives every rank the sum. Added in rank order, it has the same bits in
#   every run.
#
# ## Exercise
#
# 1. How many messages does `all_reduce_by_hand` send for 4 ranks, and how many of them
#    start or end at rank 0? What does that mean for a thousand ranks?
# 2. Give `ring_by_turns` to 3 ranks. Ranks 2 and 0 are neighbours, and both are even.
#    Does it hang? Would it hang if `send` waited for its `recv`?
# 3. The coursework task for this lesson is `03_all_reduce`: the sum over all ranks,
#    using only messages to the next rank.
#
# <details>
# <summary>Answers</summary>
#
# 1. Six: three to rank 0 and three from rank 0, so all of them start or end there. With
#    a thousand ranks it would receive and send 999 arrays, one after the other, while
#    the others wait. In the ring of the coursework task, no rank has more messages than
#    the others.
#
# ```python
# sent = []
#
#
# class Counting:
#     """A group that notes each message."""
#
#     def __init__(self, group):
#         self.rank, self.size, self.recv, self.group = (
#             group.rank,
#             group.size,
#             group.recv,
#             group,
#         )
#
#     def send(self, array, destination):
#         sent.append((self.rank, destination))
#         self.group.send(array, destination)
#
#
# spawn(lambda group: all_reduce_by_hand(Counting(group), np.ones(2)), num_ranks=4)
# assert len(sent) == 2 * 3 and all(0 in pair for pair in sent)
# ```
#
# 2. It does not hang. Ranks 2 and 0 both send first, but rank 1 receives first. Suppose
#    that each `send` waits for its `recv`. Rank 0 sends to rank 1, which receives at
#    once, so rank 0 continues and receives from rank 2. Rank 1 then sends to rank 2,
#    which is receiving by now. In a ring, a single rank that receives first breaks the
#    cycle.
#
# ```python
# heard = spawn(ring_by_turns, num_ranks=3)
# assert heard == [2, 0, 1]
#
#
# class Blocking:
#     """A group whose sends wait until the receiver has answered."""
#
#     def __init__(self, group):
#         self.rank, self.size, self.group = group.rank, group.size, group
#
#     def send(self, array, destination):
#         self.group.send(array, destination)
#         self.group.recv(destination, tag=1)
#
#     def recv(self, source):
#         array = self.group.recv(source)
#         self.group.send(np.array(0), source, tag=1)
#         return array
#
#
# assert spawn(lambda group: ring_by_turns(Blocking(group)), num_ranks=3) == [2, 0, 1]
# ```
#
# </details>
#
# Next, `04_cut_the_model.py`: a network with its first half on one rank and its second
# half on another.
