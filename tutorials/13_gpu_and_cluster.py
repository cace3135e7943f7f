# %% [markdown]
# # 13 · On a GPU, and on a cluster
#
# Everything so far ran on one machine, on its processors. This lesson takes the same programs to a GPU, and to several
# machines with a network between them. Hardly anything changes in the program. What changes is what things cost, what
# has to be installed, and what can go wrong; so most of this lesson is about looking first.
#
# It runs anywhere. Where there is no GPU it says so, and it hands nothing in to any cluster.

# %%
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

import minipipe
from minipipe import Costs, Pipeline, backend, init_process_group, nn, optim, render, schedules, simulate, spawn, verify
from minipipe.errors import LaunchError, MinipipeError

# %% [markdown]
# ## What is there
#
# The first thing to do on a new machine. `minipipe info` tells which MPI is loaded, whether CuPy sees a GPU (CuPy is
# NumPy for GPUs), and which way messages would go. Here we ask with `--json`, to have it as data.

# %%
command = [sys.executable, "-m", "minipipe", "info", "--json"]
environment = {**os.environ, "PYTHONPATH": str(Path(minipipe.__file__).parent.parent)}
facts = json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout)
for name, value in facts.items():
    print(f"{name:13} {value}")
assert {"minipipe", "python", "numpy", "blas", "cores", "mpi4py", "mpi", "gpu", "gpu messages"} <= facts.keys()
assert facts["cores"] >= 1

# %% [markdown]
# ## One word for a GPU
#
# With `pip install -e '.[gpu]'` (CuPy for CUDA 12), `Pipeline(…, device="gpu")` is all there is to it, or
# `--device gpu` for the training programs. Parameters, activations and the optimiser's state then stay on the GPU. Of
# several GPUs in a machine each rank takes its own; where there are more ranks than GPUs they share.

# %%
try:
    backend.module_for("gpu")
    device = "gpu"
except LaunchError as error:
    device = "cpu"
    print(error)
    assert error.code == "no-gpu"


def two_steps(device):
    """Return the losses of two training steps, and the array module that holds the parameters."""
    generator = np.random.default_rng(seed=0)
    samples = generator.standard_normal((32, 16)).astype(np.float32)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 16))
    with init_process_group() as group:
        pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=4, device=device)
        optimiser = optim.SGD(pipeline.parameters(), learning_rate=0.1)
        losses = []
        for _ in range(2):
            losses.append(pipeline.step(samples, samples))
            optimiser.step()
        return losses, backend.array_module(next(pipeline.parameters()).data).__name__


losses, module = two_steps(device)
reference, _ = two_steps("cpu")
print(f"on the {device}, with {module}: loss {losses[0]:.6f}, then {losses[1]:.6f}")
assert module == {"cpu": "numpy", "gpu": "cupy"}[device]
assert losses[1] < losses[0] and np.allclose(losses, reference, rtol=1e-3)

# %% [markdown]
# (Equal bits are promised for any number of ranks on the *same* kind of device. A GPU adds in another order than a
# processor does, so between the two only the first digits agree.)
#
# Two things are different behind the scenes:
#
# - **A GPU is told what to do and does it later.** Python would measure how long the telling takes. So each action
#   waits for the GPU before its end is noted, and timelines remain true.
# - **Messages.** MPI moves bytes in the memory of processes, and a GPU has memory of its own. Where the MPI is
#   *CUDA-aware*, it fetches the bytes from the GPU itself. Otherwise minipipe copies them through the memory of the
#   host: pinned memory, that is, which the system may not move away, and which a GPU reads at full speed. Both work;
#   `gpu messages` above says which.
#
# ## Slow links
#
# Between two machines there is a network, and a message takes its **latency**, however short it is, and its size
# divided by the **bandwidth**. Take a transformer of four stages. A microbatch of one text of 512 positions, each a
# vector of 1024 numbers of 4 bytes, makes messages of 2 MiB. Let the forward of a stage take 20 ms, and I and W as
# much. The links are typical ones, to the order of magnitude.

# %%
MIB = 2**20
SIZE = 512 * 1024 * 4
assert SIZE == 2 * MIB
LINKS = {  # latency in seconds, bandwidth in bytes for each second
    "one machine": (2e-6, 10e9),
    "100 Gbit/s": (2e-6, 12.5e9),
    "10 Gbit/s": (30e-6, 1.25e9),
    "1 Gbit/s": (100e-6, 0.125e9),
}


def over(link, schedule, message_size=SIZE):
    """Return the timeline of a schedule whose four ranks have such a link between them."""
    latency, bandwidth = LINKS[link]
    share = 0.020 * 4 / schedule.num_stages
    return simulate(
        schedule,
        Costs(share, share, share, latency=latency, bandwidth=bandwidth, message_size=message_size, unit="s"),
    )


NAMES = ("gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2", "zb-v")
print(f"{'bubble in %':14}", *(f"{name:>10}" for name in NAMES), "   a message")
table, message_ms = {}, {}
for link, (latency, bandwidth) in LINKS.items():
    message_ms[link] = 1000 * (latency + SIZE / bandwidth)
    table[link] = [round(100 * over(link, schedules.build(name, 4, 16)).bubble_fraction, 1) for name in NAMES]
    print(f"{link:14}", *(f"{bubble:10}" for bubble in table[link]), f"  {message_ms[link]:6.2f} ms")
assert table == {
    "one machine": [15.9, 16.2, 15.9, 6.1, 5.9, 3.3],
    "100 Gbit/s": [15.9, 16.1, 15.9, 6.1, 5.9, 3.2],
    "10 Gbit/s": [16.5, 19.2, 16.5, 7.7, 6.4, 5.2],
    "1 Gbit/s": [22.7, 40.5, 22.7, 28.0, 10.3, 23.4],
}
assert [round(ms, 2) for ms in message_ms.values()] == [0.21, 0.17, 1.71, 16.88]

# %% [markdown]
# A fast network is as good as a machine's own memory. With a slow one the order is turned about: 1F1B, which holds few
# microbatches, waits for nearly every message (lesson 07), and ZB-V sends too many of them. What helps is to have more
# microbatches under way: `eager-1f1b` and `zb-h2`, for memory.

# %%
plain, eager = (over("1 Gbit/s", schedules.build(name, 4, 16)) for name in ("1f1b", "eager-1f1b"))
render.show(plain, eager)
print(f"1f1b {1000 * plain.makespan:.0f} ms, eager {1000 * eager.makespan:.0f} ms, ", end="")
print(f"which hold {plain.peak_activations[0]} and {eager.peak_activations[0]} microbatches on rank 0")
assert round(1000 * plain.makespan) == 1613 and round(1000 * eager.makespan) == 1241
assert (plain.peak_activations[0], eager.peak_activations[0]) == (4, 7)

# %% [markdown]
# Here a message takes 17 ms and a stage works 60 ms on each microbatch, so the link keeps up. If it did not, it would
# be the slowest stage of all, and the simulator would not notice: it lets any number of messages pass side by side. So
# divide by hand: *size / bandwidth* must be well below the time of a stage. A GPU that computes ten times as fast needs
# a link that is ten times as fast.
#
# ## Neighbours on the same machine
#
# Not every cut need cross the network. With two machines and two ranks on each, put neighbouring stages side by side:
# ranks 0 and 1 here, 2 and 3 there. Then one cut of three is slow. Dealt out in turn (0 and 2 here, 1 and 3 there), all
# three are.

# %%
one_f_one_b = schedules.one_f_one_b(num_ranks=4, num_microbatches=16)
block = over("1 Gbit/s", one_f_one_b, message_size=[0, SIZE, 0, 0])  # by stage: what it hands to the next
cyclic = over("1 Gbit/s", one_f_one_b, message_size=[SIZE, SIZE, SIZE, 0])
print(f"side by side {1000 * block.makespan:.0f} ms, in turn {1000 * cyclic.makespan:.0f} ms")
assert (round(1000 * block.makespan), round(1000 * cyclic.makespan)) == (1411, 1613)

# %% [markdown]
# And if you may choose where the slow cut falls, choose a place where little passes: behind a layer with a narrow
# output rather than in front of it.
#
# ## How many microbatches
#
# More microbatches make the bubble smaller, and each message shorter. But each action has a cost of its own, however
# small its arrays are: calling Python, starting the GPU. Let that be half a millisecond, and divide one batch (32 MiB
# of messages, 320 ms of work for each of F, I and W on each stage) into ever more parts.

# %%
times = {}
for m in (2, 4, 8, 16, 32, 64, 128, 256):
    action = 0.320 / m + 0.0005
    latency, bandwidth = LINKS["10 Gbit/s"]
    costs = Costs(action, action, action, latency=latency, bandwidth=bandwidth, message_size=32 * MIB / m, unit="s")
    times[m] = round(1000 * simulate(schedules.one_f_one_b(4, m), costs).makespan)
    print(f"{m:4} microbatches {times[m]:5} ms {'#' * round(times[m] / 50)}")
assert list(times.values()) == [2488, 1758, 1391, 1216, 1148, 1150, 1226, 1412]
assert min(times, key=times.get) == 32

# %% [markdown]
# From 32 on it gets no better, and 16 are nearly as good: four for each stage, which is where the rule of thumb comes
# from.
#
# ## A job for Slurm
#
# Most clusters give out their machines ("nodes") with a program called Slurm. You write a shell script that says in
# comments what you need, and in commands what to do; `sbatch` queues it. Here is one for two nodes with four ranks on
# each.

# %%
JOB = """\
#!/bin/bash
#SBATCH --job-name=minipipe
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=1
#SBATCH --distribution=block
#SBATCH --time=00:10:00
#SBATCH --output=%x-%j.out
set -eo pipefail

module load python openmpi
source .venv/bin/activate

srun --ntasks=1 python -m minipipe info
srun --cpu-bind=cores python tutorials/train.py --schedule 1f1b --microbatches 32
"""
print(JOB)


def options_of(job):
    """Return what a job asks of Slurm."""
    lines = [line.removeprefix("#SBATCH --") for line in job.splitlines() if line.startswith("#SBATCH --")]
    return dict(line.split("=", 1) for line in lines)


options = options_of(JOB)
num_ranks = int(options["nodes"]) * int(options["ntasks-per-node"])
assert num_ranks == 8 and options["distribution"] == "block"

# %% [markdown]
# Line by line:
#
# - `ntasks-per-node` is the number of ranks on a node. `cpus-per-task=1`: one core for each, as each rank computes with
#   one BLAS thread (BLAS is the library that multiplies matrices, and left alone it would take all cores for each
#   rank).
# - `distribution=block` puts neighbouring ranks side by side.
# - `module load` makes the cluster's own Python and MPI available. Their names differ: `module avail` lists them.
# - `srun` starts the ranks. minipipe sees from the environment that it is one of several; the program is the same.
# - With GPUs: add `#SBATCH --gpus-per-node=4`, and `--device gpu` to the program.
#
# Before that, once, on the login node. Note what is missing: the extra `[mpi]`. That would bring an MPI that knows
# nothing of the cluster's network. Instead mpi4py is compiled against the one that the module has loaded.

# %%
SETUP = """\
module load python openmpi
python3 -m venv .venv
source .venv/bin/activate
pip install -e .
pip install --no-binary mpi4py mpi4py
"""
print(SETUP)
assert "[mpi]" not in SETUP

# %% [markdown]
# ## Check before you queue
#
# A job may wait for an hour, to fail in its first second. Much can be checked here and now. Is it a shell script at
# all? Is the schedule legal for so many ranks? Do they have something to hold, each of them? Thread ranks answer the
# last question: all but the network is the same.

# %%
bash = shutil.which("bash")
for text in (JOB, SETUP) if bash else ():
    checked = subprocess.run([bash, "-n"], input=text, text=True, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr
print("the shell can read both scripts" if bash else "there is no bash here to check the scripts")

schedule = schedules.build("1f1b", num_ranks, 32)
verify(schedule)


def rehearse(group):
    layers = [layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.ReLU())]
    pipeline = Pipeline(nn.Sequential(*layers), group, loss=nn.MSELoss(), schedule=schedule)
    samples = np.ones((64, 64), np.float32)
    return pipeline.step(samples, samples), len(list(pipeline.parameters()))


results = spawn(rehearse, num_ranks=num_ranks)
print(f"{num_ranks} ranks rehearsed a step, and agree on the loss: {len({loss for loss, _ in results}) == 1}")
assert len({loss for loss, _ in results}) == 1 and all(count > 0 for _, count in results)

# %% [markdown]
# ## Several machines without Slurm
#
# `mpirun` can start ranks on other machines by itself, if you can log in to them with `ssh` without a password, and if
# Python, minipipe and your program are under the same path on each. It reads who they are from a *host file*: one line
# for each machine, with the number of ranks that fit. The two families of MPI write it differently.

# %%
HOSTS = {"first.example.org": 4, "second.example.org": 4}
mpich = "\n".join(f"{host}:{slots}" for host, slots in HOSTS.items())
open_mpi = "\n".join(f"{host} slots={slots}" for host, slots in HOSTS.items())
print(f"MPICH:    mpirun -f hosts -n 8 python tutorials/train.py\n{mpich}\n")
print(f"Open MPI: mpirun --hostfile hosts -n 8 python tutorials/train.py\n{open_mpi}")
assert sum(HOSTS.values()) == num_ranks

# %% [markdown]
# ## When it hangs
#
# Go from the bottom to the top, and stop at the first thing that is wrong.
#
# 1. **Do the machines start anything?** `srun hostname`, or `mpirun -f hosts -n 8 hostname`: eight lines, the right
#    names.
# 2. **Do the ranks find each other?** Start the smallest program of the README: it prints how many ranks there are. If
#    each says that it is alone, or an error says that mpi4py belongs to another MPI, then mpi4py was compiled against
#    another MPI than the one that starts the ranks. `minipipe info` says which.
# 3. **Do small messages pass, and large ones not?** Then a firewall, or a network that MPI should not use (a virtual
#    one, say), is in the way. Ask whoever runs the cluster which interface to use.
# 4. **Does every rank make the same calls?** `pipeline.step`, `evaluate` and `predict` are for all ranks. To have one
#    of them behind `if group.rank == 0:` is the most common mistake of all.
# 5. **Is it only slow?** More ranks than cores, or more BLAS threads than cores, are many times slower. `minipipe info`
#    counts the cores that a rank may use.
#
# And wait for the message. No rank of minipipe waits for ever: after a time (`init_process_group(timeout=…)`, in
# seconds) it ends all ranks and says who waited for what. Here is the fourth mistake, on thread ranks, where a deadlock
# is noticed at once.


# %%
def train_with_a_mistake(group):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=2)
    samples = np.ones((4, 8), np.float32)
    pipeline.step(samples, samples)
    if group.rank == 0:  # "only rank 0 is to print it": but all ranks must compute it
        return pipeline.evaluate(samples, samples)
    return None


try:
    spawn(train_with_a_mistake, num_ranks=2)
except MinipipeError as error:
    complaint = error
print(complaint)
assert complaint.code == "deadlock" and "pipeline.evaluate(), which every rank must call" in str(complaint)

# %% [markdown]
# ## Exercise
#
# 1. Your network: how long does a message take? `mpirun` two ranks that send an array to and fro a hundred times
#    (lesson 03), once with 8 bytes and once with 8 MiB. The first gives the latency, the second the bandwidth. Enter
#    them in `LINKS`.
# 2. With the 1 Gbit/s link, does it help `eager-1f1b` to have 32 microbatches, of half the size and half the time?
# 3. Write the job for one node with two GPUs and two ranks, and check it as above.
# 4. If it is still open: coursework task `14_puzzle`, a schedule under a memory limit, against par.
#    (`minipipe coursework DIR` makes your copy.)
#
# This was the last lesson. What comes next is yours: train something, draw it with `--trace`, and find out what your
# ranks are waiting for.
