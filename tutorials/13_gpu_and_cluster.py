# %% [markdown]
# # 13 · On a GPU, and on a cluster
#
# Everything so far ran on the processors of one machine. This lesson takes the same programs to a GPU, and to several
# machines connected by a network. The programs hardly change. Costs, requirements and
# failures do, so most of this lesson is about checking first.
#
# It runs anywhere. If there is no GPU it says so, and it submits nothing to any cluster.

# %%
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

import minipipe
from minipipe import Costs, Pipeline, init_process_group, nn, optim, render, schedules, simulate, spawn, verify
from minipipe.autograd import backend
from minipipe.errors import LaunchError, MinipipeError

# %% [markdown]
# ## What is available
#
# Run `minipipe info` first on any new machine. It reports which MPI is loaded, whether CuPy (NumPy for GPUs) can see a
# GPU, and which route messages would take. Here we use `--json` to get the report as data.

# %%
command = [sys.executable, "-m", "minipipe", "info", "--json"]
environment = {**os.environ, "PYTHONPATH": str(Path(minipipe.__file__).parent.parent)}
facts = json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout)
for name, value in facts.items():
    print(f"{name:13} {value}")
assert {"minipipe", "python", "numpy", "blas", "cores", "mpi4py", "mpi", "gpu", "gpu messages"} <= facts.keys()
assert facts["cores"] >= 1

# %% [markdown]
# ## One argument for a GPU
#
# After `pip install -e '.[gpu]'` (CuPy for CUDA 12), all it takes is `Pipeline(…, device="gpu")`, or `--device gpu` for
# the training programs. Parameters, activations and the optimiser's state then stay on the GPU. On a machine with
# several GPUs each rank takes its own; if there are more ranks than GPUs, they share.

# %%
try:
    backend.module_for("gpu")
    device = "gpu"
except LaunchError as error:
    device = "cpu"
    print(error)
    assert error.code == "no-gpu"


def two_steps(device):
    """Return the losses of two training steps, and the array module of the parameters."""
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
# (Bit-equality is promised for any number of ranks on the *same* kind of device. A GPU adds in a different order from a
# CPU, so between the two only the leading digits agree.)
#
# Two things are different behind the scenes:
#
# - **A GPU works asynchronously.** Python only queues work for it, and would measure how long the queueing takes. So
#   each action waits for the GPU before its end is recorded, and timelines stay accurate.
# - **Messages.** MPI moves bytes in the memory of processes, but a GPU has its own memory. A *CUDA-aware* MPI reads the
#   payload from the GPU directly. Otherwise minipipe copies it through host memory, using pinned buffers: memory that
#   the operating system may not move, and that a GPU can therefore access at full speed. Both work; `gpu messages`
#   above says which one is used.
#
# ## Slow links
#
# Between machines there is a network. Sending a message takes its **latency**, however short the message is, plus the
# size divided by the **bandwidth**. Take a transformer with four stages. If a microbatch is one text of 512 positions,
# each a vector of 1024 numbers of 4 bytes, a message is 2 MiB. Let the forward of a stage take 20 ms, and I and W as
# long again each. The figures for the links are typical, to the order of magnitude.

# %%
MIB = 2**20
SIZE = 512 * 1024 * 4
assert SIZE == 2 * MIB
LINKS = {  # latency in seconds, bandwidth in bytes per second
    "one machine": (2e-6, 10e9),
    "100 Gbit/s": (2e-6, 12.5e9),
    "10 Gbit/s": (30e-6, 1.25e9),
    "1 Gbit/s": (100e-6, 0.125e9),
}


def over(link, schedule, message_size=SIZE, hosts=None):
    """Return the timeline of a schedule on four ranks connected by this link."""
    latency, bandwidth = LINKS[link]
    share = 0.020 * 4 / schedule.num_stages
    return simulate(
        schedule,
        Costs(share, share, share, latency, bandwidth, message_size=message_size, unit="s", hosts=hosts),
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
# A fast network is as good as a single machine. With a slow one the ranking changes. 1F1B, which holds few
# microbatches, waits for nearly every message (lesson 07), and ZB-V sends too many messages. What helps is to have more
# microbatches in flight, as `eager-1f1b` and `zb-h2` do, at the price of memory.

# %%
plain, eager = (over("1 Gbit/s", schedules.build(name, 4, 16)) for name in ("1f1b", "eager-1f1b"))
render.show(plain, eager)
print(f"1f1b {1000 * plain.makespan:.0f} ms, eager {1000 * eager.makespan:.0f} ms, ", end="")
print(f"which hold {plain.peak_activations[0]} and {eager.peak_activations[0]} microbatches on rank 0")
assert round(1000 * plain.makespan) == 1613 and round(1000 * eager.makespan) == 1241
assert (plain.peak_activations[0], eager.peak_activations[0]) == (4, 7)

# %% [markdown]
# Here a message takes 17 ms, and a stage works for 60 ms on each microbatch, so the link can keep up. If it cannot, it
# is the slowest stage of all. By default the simulator does not notice, because it lets any number of messages overlap.
# Tell it which rank is on which host, and messages share the links between the hosts, as they do in a cluster:

# %%
one_f_one_b, zb_v = (schedules.build(name, 4, 16) for name in ("1f1b", "zb-v"))
alone, shared = {}, {}
for schedule in (one_f_one_b, zb_v):
    alone[schedule.name] = round(1000 * over("1 Gbit/s", schedule).makespan)
    shared[schedule.name] = round(1000 * over("1 Gbit/s", schedule, hosts=(0, 1, 2, 3)).makespan)
    print(f"{schedule.name:5} {alone[schedule.name]} ms, or {shared[schedule.name]} ms where messages share links")
assert alone == {"1f1b": 1613, "zb-v": 1254}
assert shared == {"1f1b": 1613, "zb-v": 1494}

# %% [markdown]
# 1F1B has one message at a time on a link; on a V activations and gradients of two stages meet there. Without a
# simulator check by hand: *size / bandwidth* must be well below the time of a stage. A GPU that computes ten times as
# fast needs a link that is ten times as fast.
#
# ## Neighbours on the same machine
#
# Not every cut has to cross the network. With two machines and two ranks on each, put neighbouring stages side by side:
# ranks 0 and 1 on the first machine, 2 and 3 on the second. Then only one of the three cuts is slow. If the ranks
# alternate between the machines (0 and 2 on the first, 1 and 3 on the second), all three are.

# %%
block = over("1 Gbit/s", one_f_one_b, message_size=[0, SIZE, 0, 0])  # by stage: the size of its activation
cyclic = over("1 Gbit/s", one_f_one_b, message_size=[SIZE, SIZE, SIZE, 0])
print(f"side by side {1000 * block.makespan:.0f} ms, in turn {1000 * cyclic.makespan:.0f} ms")
assert (round(1000 * block.makespan), round(1000 * cyclic.makespan)) == (1411, 1613)

# %% [markdown]
# If you can choose where the slow cut goes, put it where little data passes: after a layer with a narrow output rather
# than before it.
#
# ## How many microbatches
#
# More microbatches make the bubble smaller and each message shorter. But every action has a fixed cost, however small
# its arrays are: running Python, starting the GPU. Let that be half a millisecond, and divide one batch (32 MiB of
# messages, 320 ms of work for each of F, I and W on each stage) into more and more microbatches.

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
# Beyond 32 there is no further gain, and 16 are nearly as good. That is four for each stage, in line with the rule of
# thumb from lesson 05.
#
# ## A job for Slurm
#
# Most clusters allocate their machines ("nodes") with a program called Slurm. You write a shell script whose comments
# say what you need and whose commands say what to do, and `sbatch` queues it. Here is one for two nodes with four ranks
# on each.

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
    """Return the options that a job passes to Slurm."""
    lines = [line.removeprefix("#SBATCH --") for line in job.splitlines() if line.startswith("#SBATCH --")]
    return dict(line.split("=", 1) for line in lines)


options = options_of(JOB)
num_ranks = int(options["nodes"]) * int(options["ntasks-per-node"])
assert num_ranks == 8 and options["distribution"] == "block"

# %% [markdown]
# Line by line:
#
# - `ntasks-per-node` is the number of ranks on a node. `cpus-per-task=1` gives each rank one core, because each rank
#   computes with one BLAS thread. (BLAS is the library that multiplies matrices; by default it would use all cores for
#   each rank.)
# - `distribution=block` puts neighbouring ranks side by side.
# - `module load` makes the cluster's own Python and MPI available. Their names vary: `module avail` lists them.
# - `srun` starts the ranks. minipipe recognises from the environment that it is one of several; the program is the
#   same.
# - For GPUs, add `#SBATCH --gpus-per-node=4`, and pass `--device gpu` to the program.
#
# Before the first job, run the following once on the login node. Note what is missing: the extra `[mpi]`. It would
# install an MPI that knows nothing about the cluster's network. Instead, mpi4py is compiled against the MPI that the
# module has loaded.

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
# A job can wait for an hour and then fail in its first second. Much of it can be checked here and now. Is it a valid
# shell script? Is the schedule legal for that many ranks? Does each of them get any parameters? Thread ranks answer the
# last question; only the network is missing.

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
# `mpirun` can start ranks on other machines by itself. It needs `ssh` access to them without a password, and Python,
# minipipe and your program at the same path on each. It reads the machines from a *host file*: one line for each
# machine, with the number of ranks that it can take. The two families of MPI use different formats.

# %%
HOSTS = {"first.example.org": 4, "second.example.org": 4}
mpich = "\n".join(f"{host}:{slots}" for host, slots in HOSTS.items())
open_mpi = "\n".join(f"{host} slots={slots}" for host, slots in HOSTS.items())
print(f"MPICH:    mpirun -f hosts -n 8 python tutorials/train.py\n{mpich}\n")
print(f"Open MPI: mpirun --hostfile hosts -n 8 python tutorials/train.py\n{open_mpi}")
assert sum(HOSTS.values()) == num_ranks

# %% [markdown]
# The folder `cluster` beside this lesson has these host files, and scripts for MPICH, Open MPI, Slurm and PBS. Each
# script first runs `where.py`, which shows on which host every rank runs.
#
# ## When it hangs
#
# Work from the bottom up, and stop at the first thing that is wrong.
#
# 1. **Do the machines start anything?** Try `srun hostname`, or `mpirun -f hosts -n 8 hostname`. You should see eight
#    lines with the right names.
# 2. **Do the ranks find each other?** Start the smallest program in the README: it prints the number of ranks. If each
#    rank says that it is alone, or an error says that mpi4py belongs to another MPI, then mpi4py was compiled against a
#    different MPI from the one that starts the ranks. `minipipe info` says which.
# 3. **Do small messages get through but not large ones?** Then a firewall is in the way, or MPI is using a network that
#    it should not use (a virtual one, say). Ask the administrators of the cluster which interface to use.
# 4. **Does every rank make the same calls?** `pipeline.step`, `evaluate` and `predict` are collective: every rank must
#    call them. Calling one of them under `if group.rank == 0:` is the most common mistake of all.
# 5. **Is it just slow?** Running more ranks than cores, or more BLAS threads than cores, is many times slower.
#    `minipipe info` counts the cores that a rank may use.
#
# And wait for the error message. No rank of minipipe waits for ever: after a time limit
# (`init_process_group(timeout=…)`, in seconds) it ends all ranks and says which rank was waiting for what. Here is the
# fourth mistake on thread ranks, where a deadlock is detected at once.


# %%
def train_with_a_mistake(group):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=2)
    samples = np.ones((4, 8), np.float32)
    pipeline.step(samples, samples)
    if group.rank == 0:  # the mistake: only rank 0 prints it, but every rank has to compute it
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
# 1. Your network: how long does a message take? Use `mpirun` to start two ranks that send an array back and forth a
#    hundred times (lesson 03), once with 8 bytes and once with 8 MiB. The first run gives the latency, the second the
#    bandwidth. Enter them in `LINKS`.
# 2. With the 1 Gbit/s link, does `eager-1f1b` gain from 32 microbatches of half the size and half the time?
# 3. Write the job for one node with two GPUs and two ranks, and check it as above.
# 4. If you have not done it yet: the coursework task `14_puzzle`, a schedule under a memory limit, against par.
#    (`minipipe coursework DIR` creates your copy.)
#
# Next, `14_means.py`: texts of unequal length, and a mistake that no error message reports.
