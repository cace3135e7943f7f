# %% [markdown]
# # 03 · Ranks and messages
#
# From here on several workers share the work. This lesson has no network in it: only workers, what they say to each
# other, and how they come to wait for each other for ever. You will do that on purpose, because everybody does it by
# accident sooner or later.

# %%
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from minipipe import spawn
from minipipe.errors import MessageError

# %% [markdown]
# ## A rank
#
# A **rank** is a worker with a memory of its own. All ranks run the same program; what tells them apart is a number,
# also called the rank: 0, 1, 2, … The ranks together are a **group**; it is the object through which they talk.
#
# On a cluster each rank is a process, perhaps on another machine. In a notebook it is handier to have them as threads
# of one process: `spawn` runs a function once on each rank, and returns what they returned, in their order.


# %%
def introduce(group):
    return f"I am rank {group.rank} of {group.size}"


introductions = spawn(introduce, num_ranks=4)
print("\n".join(introductions))
assert introductions == [f"I am rank {rank} of 4" for rank in range(4)]

# %% [markdown]
# Threads could look into each other's variables. Processes cannot, so we never do: whatever one rank wants to know of
# another must come in a **message**. Then the same program runs on both.
#
# ## Send and receive
#
# `send` names the rank that the array is for, `recv` the rank that it comes from. Both must happen: a message is only
# delivered if somebody receives it. `recv` waits until the message is there. (In the list that comes out, the first
# item is what rank 0 returned, and the second what rank 1 did.)


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
# When one rank sends another several messages, they arrive in their order. To take them in another order, or simply to
# be sure which is which, give each a number, its **tag**: `recv` takes the next message with *that* tag.


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
# Now everybody talks at once. Each rank sends its number to the next one, and the last one to the first:
#
#     ┌─→ rank 0 ──→ rank 1 ──→ rank 2 ──→ rank 3 ─┐
#     └────────────────────────────────────────────┘
#
# `isend` begins to send and returns at once ("i" for immediate); what it returns is waited for later, when the array
# may be changed again.


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
# What if each rank first receives, and only then sends? Rank 0 waits for rank 3, which waits for rank 2, which waits
# for rank 1, which waits for rank 0. Nobody will ever send. That is a **deadlock**. With bare threads or bare MPI the
# program simply stands still, and tells you nothing.
#
# Here all waits are known, so minipipe sees at once that none of them can end, and raises an error. Its `code` is for
# programs, its sentence for you: who waits for what, and from whom.


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
    assert f"rank {rank} waits for a message with tag 0 from rank {(rank - 1) % 4}" in str(deadlock)

# %% [markdown]
# ## A quieter one
#
# The commonest deadlock is smaller: somebody waits for a message that was never meant to be sent, or bears another tag.
# The sender has long gone.


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
print(f"{deadlock.code}: {deadlock}")
assert deadlock.code == "deadlock"
assert str(deadlock) == "No rank can go on: rank 1 waits for a message with tag 7 from rank 0; rank 0 has returned."

# %% [markdown]
# ## Mending it
#
# `isend` first, as in the ring above, is one way. Another is to let neighbours do opposite things: ranks of even number
# send first, those of odd number receive first. It works even where a `send` waits until somebody receives it, as large
# messages do between processes. Lesson 07 is about those.


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
# ## Adding up over ranks
#
# Often each rank has an array, and all want the sum: that is called an **all-reduce**. From sends and receives: all
# send theirs to rank 0, which adds them in the order of ranks and sends the sum to all.


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
# Why in the order of ranks, and not simply in the order in which the messages arrive? Because every addition rounds,
# the order shows in the last digit, and which message comes first is chance. `group.all_reduce` always adds
# rank 0 + rank 1 + …, so every run gives the same bits.

# %%
print(0.1 + 0.2 + 0.3, "is not", 0.3 + 0.2 + 0.1)
assert 0.1 + 0.2 + 0.3 != 0.3 + 0.2 + 0.1

# %% [markdown]
# ## The same between processes
#
# MPI (the Message Passing Interface) is what clusters use to start processes and to carry their messages. Instead of
# `spawn`, the program asks `init_process_group()` for its group, and `mpirun -n 2` starts it twice. The program below
# sends round a ring of two, and then waits for a message that nobody sends.
#
# Between processes nobody sees all the waits, so a deadlock cannot be told from a slow partner. Each wait has a time
# limit instead: 300 seconds unless you say otherwise, here half a second. The error then has the code `timeout`.

# %%
PROGRAM = """
import numpy as np
from minipipe import init_process_group
from minipipe.errors import MessageError

with init_process_group() as group:
    other = 1 - group.rank
    sending = group.isend(np.array(group.rank), other)
    received = group.recv(other)
    sending.wait()
    heard = group.all_gather(received)  # every rank gets what every rank gives
    if group.rank == 0:
        for rank, number in enumerate(heard):
            print(f"rank {rank} heard from rank {number}")
        try:
            group.recv(1, tag=7, timeout=0.5)
        except MessageError as error:
            print(f"{error.code}: {error}")
    group.barrier()  # nobody passes before all have come
"""

# %% [markdown]
# To run it, this lesson starts `mpirun` as you would in a terminal, where an MPI is installed.

# %%
mpirun = shutil.which("mpirun", path=Path(sys.executable).parent) or shutil.which("mpirun")

if mpirun is None or find_spec("mpi4py") is None:
    print("There is no MPI here (pip install -e '.[mpi]' brings one), so this cell has nothing to run; read on.")
else:
    command = [mpirun, "-n", "2", sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        r"rank 0 heard from rank 1\n"
        r"rank 1 heard from rank 0\n"
        r"timeout: Rank 0 has waited 0.5 s, since [\d:]+, for a message with tag 7 from rank 1\. .*\n",
        done.stdout,
    )

# %% [markdown]
# In this program only rank 0 prints. Processes that print at the same moment get into each other's lines, so one speaks
# for all.
#
# ## Exercise
#
# 1. How many messages does `all_reduce_by_hand` send, for 4 ranks, and how many of them begin or end at rank 0? What
#    does that mean for a thousand ranks?
# 2. Give `ring_by_turns` to 3 ranks. Ranks 2 and 0 are neighbours and both even. Does it stand still? Would it, if
#    `send` waited for its `recv`?
# 3. The coursework task that belongs here is `03_all_reduce`: the sum over all ranks, by messages to the next rank
#    only.
#
# Next, `04_cut_the_model.py`: a network whose first half is on one rank, and its second half on another.
