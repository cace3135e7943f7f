# %% [markdown]
# # 13 · On a GPU, and on a cluster
#
# In this lesson you take the same programs to a GPU and to several machines. The
# programs hardly change, but costs, requirements and failures do, so much of the lesson
# is about checks before a run.
#
# Part one is about a GPU: how the processor and the GPU wait for each other, and what
# this does to times and messages. Part two is about a cluster: slow links, a job for
# Slurm, and what to do when a job hangs.
#
# The lesson runs anywhere. If there is no GPU it says so, and it submits nothing to a
# cluster. **No time in it was measured on a GPU or on a network.** All times are
# typical to the order of magnitude, and go into the simulator.

# %%
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

import minipipe
from minipipe import (
    Costs,
    Pipeline,
    Schedule,
    init_process_group,
    nn,
    optim,
    render,
    schedules,
    simulate,
    spawn,
    verify,
)
from minipipe.core.autograd import backend
from minipipe.errors import LaunchError, MinipipeError

# %% [markdown]
# # Part one: a GPU
#
# ## What this machine has
#
# On any new machine, run `minipipe info` first. It reports which MPI is loaded, whether
# CuPy (NumPy for GPUs) can see a GPU, and which route messages would take. Here
# `--json` returns the report as data.

# %%
command = [sys.executable, "-m", "minipipe", "info", "--json"]
environment = {**os.environ, "PYTHONPATH": str(Path(minipipe.__file__).parent.parent)}
report = json.loads(
    subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
)
for name, value in report.items():
    print(f"{name:13} {value}")
assert {
    "minipipe",
    "python",
    "numpy",
    "blas",
    "cores",
    "mpi4py",
    "mpi",
    "gpu",
    "gpu messages",
} <= report.keys()
assert report["cores"] >= 1

# %% [markdown]
# ## One argument for a GPU
#
# Install CuPy with `pip install -e '.[gpu]'` for CUDA 12, or `'.[gpu13]'` for CUDA 13;
# `minipipe info` says which one fits the driver. Then a GPU takes one
# argument: `Pipeline(…, device="gpu")`, or `--device gpu` for the training programs.
# Parameters, activations and the state of the optimiser stay on the GPU. On a machine
# with several GPUs each rank takes its own; if there are more ranks than GPUs, they
# share.
#
# A rank runs ahead of its GPU. If it reads a number, it waits, and then the GPU waits
# for more work. So a step reads its losses together, at its end, and labels are checked
# on the host. Products are in float32; `minipipe.gpu.allow_tf32()` lets tensor cores
# round their operands to TF32, several times as fast, with errors of about 1e-3.

# %%
try:
    backend.module_for("gpu")
    device = "gpu"
except LaunchError as error:
    device = "cpu"
    print(error)
    assert error.code == "unavailable"


def two_steps(device):
    """Return the losses of two training steps, and the array module of the parameters."""
    generator = np.random.default_rng(seed=0)
    samples = generator.standard_normal((32, 16)).astype(np.float32)
    model = nn.Sequential(
        nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 16)
    )
    with init_process_group() as group:
        pipeline = Pipeline(
            model, group, loss=nn.MSELoss(), num_microbatches=4, device=device
        )
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
# (Bit-equality is promised for any number of ranks on the *same* kind of device. A GPU
# adds in a different order from a CPU, so between the two only the leading digits
# agree.)
#
# ## The GPU works like another rank
#
# A GPU is a separate processor with its own memory. Python runs on the CPU, which is
# called the **host** here. When Python calls `a @ b` for two arrays on the GPU, the
# host does not multiply. It puts a job, the **kernel**, into a queue of the GPU and
# continues at once: the call is **asynchronous**. The queue is called a **stream**. A
# GPU runs the kernels of a stream one after another, in the order of the queue.
#
# Host and stream behave like two ranks of a pipeline: each has a list of actions, and
# the second waits for the first. So let the simulator draw them. Rank 0 is the host,
# and a launch takes it 5 µs, which is one unit of the picture. Rank 1 is the stream,
# and a kernel takes 20 µs.


# %%
def host_and_stream(kernel, launch=5, count=8):
    """Return the timeline of some kernels, in units of a launch: rank 0 launches them, rank 1 runs them."""
    schedule = replace(
        schedules.build("forward-only", 2, count), name=f"kernels of {kernel} µs"
    )
    return simulate(schedule, Costs(forward=[1, kernel / launch]))


large = host_and_stream(kernel=20)
render.show(large)
launched, ended = 5 * large.spans[0][-1].end, 5 * large.makespan
print(
    f"the host finishes its launches after {launched:g} µs, the GPU finishes "
    f"after {ended:g} µs"
)
assert (launched, ended) == (8 * 5, 5 + 8 * 20)

# %% [markdown]
# Two things follow.
#
# **Time.** A program that reads the clock before and after these eight calls measures
# 40 µs, the time to *launch* them. To time the computation it must wait until the
# stream is empty, which is called to **synchronise**: then it reads 165 µs. Or it puts
# **events** into the stream: the GPU notes the time when it comes to one, and the host
# reads the times later. `minipipe` puts one between two actions, so measured timelines
# show computation and not launches, and the host does not wait.
#
# **Errors** and **values** arrive late. A kernel that fails raises its error in some
# later call. Code that looks at a number, such as `float(x)` or `if x > 0:`,
# synchronises implicitly. A training loop that prints the loss of every step waits for
# the GPU in every step.
#
# ## Small kernels
#
# The host launches kernels at its own pace, however small they are. If a kernel is
# shorter than its launch, the GPU waits for the host:

# %%
small = host_and_stream(kernel=2)
render.show(small)
ended, busy = 5 * small.makespan, 8 * 2 / (5 * small.makespan)
print(
    f"the GPU is busy {busy:.0%} of {ended:g} µs; a GPU twice as fast would "
    f"finish after {8 * 5 + 1} µs"
)
assert abs(ended - (8 * 5 + 2)) < 1e-9 and round(100 * busy) == 38

# %% [markdown]
# A faster GPU would not help. That is why microbatches must not be too small on a GPU,
# even less so than on a CPU: a launch costs the same for one row as for a thousand.
#
# There are two remedies. A **fused kernel** does the work of several: NumPy's calls for
# a GELU would be 34 kernels, and `minipipe` has one. A **CUDA graph** launches a whole
# list of kernels at once: a compiled step, in lesson 17, runs each F, B or W as one
# graph.
#
# ## Synchronise rarely
#
# Waiting has a cost as well. If the host waits for each kernel before it launches the
# next one, launch and kernel no longer overlap. If it waits once after eight kernels,
# most of the overlap remains. (`minipipe` waits before each message that leaves, and
# once at the end of a step, for the loss.)

# %%
waits = {
    kernel: (8 * (5 + kernel), round(5 * host_and_stream(kernel).makespan))
    for kernel in (20, 2)
}
for kernel, (each, once) in waits.items():
    print(
        f"kernels of {kernel:2} µs: {each} µs if the host waits for each kernel, "
        f"{once} µs if it waits once"
    )
assert waits == {20: (200, 165), 2: (56, 42)}

# %% [markdown]
# ## Copies in their own stream
#
# An activation that goes to another rank may have to leave the memory of the GPU. This
# is a copy over a bus that is slower than GPU memory. Copies go into a stream like
# kernels. In *one* stream a copy and a kernel never run at the same time. In two
# streams they do, because GPUs have separate hardware for copies. Then the copy of an
# activation must wait for the kernel that computes it. An *event* does this: one stream
# records it and the other waits for it. It plays the part of SEND and RECV between
# ranks: a data dependency.
#
# Let each of four microbatches take a computation of 60 µs and a copy of 30 µs. Stage 0
# is the computation and stage 1 the copy; a stream is a rank, and a unit is 10 µs:

# %%
one_stream = Schedule.from_text(
    "rank 0: 0F0 1F0 0F1 1F1 0F2 1F2 0F3 1F3", name="one stream"
)
two_streams = Schedule.from_text(
    "rank 0: 0F0 0F1 0F2 0F3 \n rank 1: 1F0 1F1 1F2 1F3", name="two streams"
)
work = Costs(forward=[6, 3])
one, two = simulate(one_stream, work), simulate(two_streams, work)
render.show(one, two)
print(
    f"{10 * one.makespan:g} µs in one stream, {10 * two.makespan:g} µs in two: "
    "all copies but the last are hidden"
)
assert one.makespan == 4 * (6 + 3) == 36
assert two.makespan == 4 * 6 + 3 == 27

# %% [markdown]
# This is called **overlap of copy and compute**. It has a condition: the memory on the
# host must be **pinned**, which means that the operating system may not move it to
# another place or to disk. The GPU can read and write pinned memory by itself, at full
# speed, while the host works on. From ordinary memory the driver first copies to a
# pinned buffer, and the host waits. Pinned memory is scarce, because nothing else can
# use it.
#
# ## Messages between GPUs
#
# MPI moves bytes between the memory of processes. There are two ways from one GPU to
# another:
#
# - **Staging.** Copy the array to pinned memory of the host, send that, and copy the
#   received bytes to the other GPU. This works with every MPI.
# - **Device arrays.** A *CUDA-aware* MPI takes the array on the GPU as it is, and moves
#   it over the best route: within a machine from GPU to GPU, between machines often
#   past the host's memory.
#
# In both cases the stream must be synchronised before MPI gets the memory, because MPI
# does not know about streams. It would send the current bytes, perhaps before the
# kernel has written the new ones. The result would be wrong numbers, and only
# sometimes. The other direction needs the same care: before MPI receives into memory
# that a kernel may still read. `gpu messages` above says which way `minipipe` takes
# here.
#
# ## What minipipe leaves out
#
# | | here | in a framework made for speed |
# |---|---|---|
# | streams | two: computation, copies of the batch | several: computation, copies, each direction of messages |
# | waiting | before each message, and once in a step | only where a value is needed; events between streams |
# | a copy and a computation of one rank | overlap for the batch, not for messages | overlap |
# | messages | MPI: device arrays or pinned staging | NCCL, itself a kernel in a stream |
# | launches | each operation by itself, or a CUDA graph for each action (`compile=True`) | CUDA graphs |
#
# So a rank of minipipe gives up most of the overlap within itself. The overlap
# *between* ranks, which this course is about, remains: while one rank waits for its
# GPU, the others work. Two more differences protect bit-equality, and a third protects you:
#
# - If indices repeat, threads of a GPU add in an order that differs from run to run. So
#   a kernel adds up the gradient of an embedding, or of an index, in a fixed order, the
#   CPU's.
# - Dropout draws the CPU's random numbers: another kernel computes NumPy's Philox, in
#   which each number follows from its place and a key.
# - NumPy raises an error for an index out of range; CuPy silently takes another
#   element. So ids and labels are checked on the host, before they are copied.
#
# # Part two: a cluster
#
# ## Slow links
#
# Machines are connected by a network. A message takes its **latency**, however short it
# is, plus its size divided by the **bandwidth**. Take a transformer with four stages.
# If a microbatch is one text of 512 positions, and each position is a vector of 1024
# numbers of 4 bytes, a message has 2 MiB. Let the forward of a stage take 20 ms, and I
# and W 20 ms each. The figures of the links are typical, to the order of magnitude.

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
    seconds = 0.020 * 4 / schedule.num_stages  # of F, of I and of W
    times = (seconds, seconds, seconds, latency, bandwidth)
    costs = Costs(*times, message_size=message_size, unit="s", hosts=hosts)
    return simulate(schedule, costs)


NAMES = ("gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2", "zb-v")
print(f"{'bubble in %':14}", *(f"{name:>10}" for name in NAMES), "   a message")
table, message_ms = {}, {}
for link, (latency, bandwidth) in LINKS.items():
    message_ms[link] = 1000 * (latency + SIZE / bandwidth)
    table[link] = [
        round(100 * over(link, schedules.build(name, 4, 16)).bubble_fraction, 1)
        for name in NAMES
    ]
    print(
        f"{link:14}",
        *(f"{bubble:10}" for bubble in table[link]),
        f"  {message_ms[link]:6.2f} ms",
    )
assert table == {
    "one machine": [15.9, 16.2, 15.9, 6.1, 5.9, 3.3],
    "100 Gbit/s": [15.9, 16.1, 15.9, 6.1, 5.9, 3.2],
    "10 Gbit/s": [16.5, 19.2, 16.5, 7.7, 6.4, 5.2],
    "1 Gbit/s": [22.7, 40.5, 22.7, 28.0, 10.3, 23.4],
}
assert [round(ms, 2) for ms in message_ms.values()] == [0.21, 0.17, 1.71, 16.88]

# %% [markdown]
# A fast network is as good as a single machine. A slow one changes the ranking. 1F1B,
# which holds few microbatches, waits for nearly every message (lesson 07), and ZB-V
# sends too many messages. The remedy is to have more microbatches in flight, as
# `eager-1f1b` and `zb-h2` do, at the price of memory:

# %%
plain, eager = (
    over("1 Gbit/s", schedules.build(name, 4, 16)) for name in ("1f1b", "eager-1f1b")
)
render.show(plain, eager)
for timeline in (plain, eager):
    held = timeline.peak_activations[0]
    print(
        f"{timeline.name:10} {1000 * timeline.makespan:.0f} ms, holds {held} "
        "microbatches on rank 0"
    )
assert round(1000 * plain.makespan) == 1613 and round(1000 * eager.makespan) == 1241
assert (plain.peak_activations[0], eager.peak_activations[0]) == (4, 7)

# %% [markdown]
# ## Messages that share a link
#
# Here a message takes 17 ms and a stage works for 60 ms on each microbatch, so the link
# can keep up. If it cannot, it becomes the slowest stage. By default the simulator does
# not see this, because it lets any number of messages overlap. Tell it which rank is on
# which host. Then messages share the links between the hosts, as they do in a cluster:

# %%
one_f_one_b, zb_v = (schedules.build(name, 4, 16) for name in ("1f1b", "zb-v"))
alone, shared = {}, {}
for schedule in (one_f_one_b, zb_v):
    alone[schedule.name] = round(1000 * over("1 Gbit/s", schedule).makespan)
    shared[schedule.name] = round(
        1000 * over("1 Gbit/s", schedule, hosts=(0, 1, 2, 3)).makespan
    )
    print(
        f"{schedule.name:5} {alone[schedule.name]} ms, or "
        f"{shared[schedule.name]} ms if messages share the links"
    )
assert alone == {"1f1b": 1613, "zb-v": 1254}
assert shared == {"1f1b": 1613, "zb-v": 1494}

# %% [markdown]
# 1F1B has one message at a time on a link. In a V, activations and gradients of two
# stages meet on it. You can also check by hand: *size / bandwidth* must be well below
# the time of a stage. A GPU that computes ten times as fast needs a link that is ten
# times as fast.
#
# ## Neighbours on the same machine
#
# Not every stage boundary has to cross the network. With two machines and two ranks on
# each, put neighbouring stages side by side: ranks 0 and 1 on the first machine, 2 and
# 3 on the second. Then only one of the three boundaries is slow. If the ranks alternate
# between the machines (0 and 2 on the first, 1 and 3 on the second), all three are
# slow.

# %%
# by stage: the size of its activation
block = over("1 Gbit/s", one_f_one_b, message_size=[0, SIZE, 0, 0])
cyclic = over("1 Gbit/s", one_f_one_b, message_size=[SIZE, SIZE, SIZE, 0])
print(
    f"side by side {1000 * block.makespan:.0f} ms, alternating "
    f"{1000 * cyclic.makespan:.0f} ms"
)
assert (round(1000 * block.makespan), round(1000 * cyclic.makespan)) == (1411, 1613)

# %% [markdown]
# If you can choose the slow boundary, put it where little data passes: after a layer
# with a narrow output, for example.
#
# ## How many microbatches
#
# More microbatches make the bubble smaller and each message shorter. But every action
# has a fixed cost, however small its arrays are: running Python, and launching kernels.
# Let this be half a millisecond, and divide one batch (32 MiB of messages, 320 ms of
# work for each of F, I and W on each stage) into more and more microbatches.

# %%
times = {}
for m in (2, 4, 8, 16, 32, 64, 128, 256):
    action = 0.320 / m + 0.0005
    latency, bandwidth = LINKS["10 Gbit/s"]
    costs = Costs(
        action,
        action,
        action,
        latency=latency,
        bandwidth=bandwidth,
        message_size=32 * MIB / m,
        unit="s",
    )
    times[m] = round(1000 * simulate(schedules.one_f_one_b(4, m), costs).makespan)
    print(f"{m:4} microbatches {times[m]:5} ms {'#' * round(times[m] / 50)}")
assert list(times.values()) == [2488, 1758, 1391, 1216, 1148, 1150, 1226, 1412]
assert min(times, key=times.get) == 32

# %% [markdown]
# Beyond 32 there is no further gain, and 16 are nearly as good. That is four for each
# stage, as the rule of thumb of lesson 05 says.
#
# ## A job for Slurm
#
# Most clusters allocate their machines ("nodes") with a program called Slurm. You write
# a shell script whose comments say what you need and whose commands say what to run,
# and `sbatch` queues it. Here is one for two nodes with four ranks on each.

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
    lines = [
        line.removeprefix("#SBATCH --")
        for line in job.splitlines()
        if line.startswith("#SBATCH --")
    ]
    return dict(line.split("=", 1) for line in lines)


options = options_of(JOB)
num_ranks = int(options["nodes"]) * int(options["ntasks-per-node"])
assert num_ranks == 8 and options["distribution"] == "block"

# %% [markdown]
# Line by line:
#
# - `ntasks-per-node` is the number of ranks on a node. `cpus-per-task=1` gives each
#   rank one core, because each rank computes with one BLAS thread. (BLAS is the library
#   that multiplies matrices; by default it would use all cores for each rank.)
# - `distribution=block` puts neighbouring ranks side by side.
# - `module load` makes the cluster's Python and MPI available. Their names vary:
#   `module avail` lists them.
# - `srun` starts the ranks. minipipe recognises from the environment that it is one of
#   several; the program is the same.
# - For GPUs, add `#SBATCH --gpus-per-node=4`, and pass `--device gpu` to the program.
#
# ## Set up once
#
# Before the first job, run the following on the login node. The extra `[mpi]` is
# missing on purpose: it would install an MPI that knows nothing about the cluster's
# network. Instead, mpi4py is compiled against the MPI that the module has loaded.

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
# A job can wait for an hour and then fail in its first second. Much of it can be
# checked now. Is it a valid shell script? Is the schedule legal for that many ranks?
# Does each rank get any parameters? Thread ranks answer the last question; only the
# network is missing.

# %%
bash = shutil.which("bash")
for text in (JOB, SETUP) if bash else ():
    checked = subprocess.run(
        [bash, "-n"], input=text, text=True, capture_output=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
print(
    "bash accepts both scripts"
    if bash
    else "there is no bash here to check the scripts"
)

schedule = schedules.build("1f1b", num_ranks, 32)
verify(schedule)


def rehearse(group):
    layers = [layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.ReLU())]
    pipeline = Pipeline(
        nn.Sequential(*layers), group, loss=nn.MSELoss(), schedule=schedule
    )
    samples = np.ones((64, 64), np.float32)
    return pipeline.step(samples, samples), len(list(pipeline.parameters()))


results = spawn(rehearse, num_ranks=num_ranks)
print(
    f"{num_ranks} thread ranks ran a step, and agree on the loss: "
    f"{len({loss for loss, _ in results}) == 1}"
)
assert len({loss for loss, _ in results}) == 1 and all(
    count > 0 for _, count in results
)

# %% [markdown]
# ## Several machines without Slurm
#
# `mpirun` can start ranks on other machines by itself. It needs `ssh` access to them
# without a password, and Python, minipipe and your program at the same path on each. It
# reads the machines from a *host file*: one line for each machine, with the number of
# ranks that it can take. The two families of MPI use different formats.

# %%
HOSTS = {"first.example.org": 4, "second.example.org": 4}
mpich = "\n".join(f"{host}:{slots}" for host, slots in HOSTS.items())
open_mpi = "\n".join(f"{host} slots={slots}" for host, slots in HOSTS.items())
print(f"MPICH:    mpirun -f hosts -n 8 python tutorials/train.py\n{mpich}\n")
print(f"Open MPI: mpirun --hostfile hosts -n 8 python tutorials/train.py\n{open_mpi}")
assert sum(HOSTS.values()) == num_ranks

# %% [markdown]
# The folder `cluster` beside this lesson has these host files, and scripts for MPICH,
# Open MPI, Slurm and PBS. Each script first runs `where.py`, which shows on which host
# every rank runs.
#
# ## The same job with torchrun
#
# PyTorch starts one launcher, `torchrun`, on each node, and the launcher starts the
# ranks. minipipe needs no launcher on each node: `srun` or `mpirun` starts all ranks
# directly. The commands compare like this, for two nodes with four ranks on each:
#
# ```bash
# # minipipe under Slurm: 8 tasks, 4 on each node
# srun --nodes=2 --ntasks-per-node=4 --cpu-bind=cores python tutorials/train.py
#
# # PyTorch under Slurm: 1 task on each node, which starts 4 ranks
# HEAD=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
# srun --nodes=2 --ntasks-per-node=1 torchrun --nnodes 2 --nproc-per-node 4 \
#     --rdzv_backend c10d --rdzv_endpoint $HEAD:29500 train.py
#
# # PyTorch without Slurm: on each of the two machines
# torchrun --nnodes 2 --nproc-per-node 4 \
#     --rdzv_backend c10d --rdzv_endpoint first.example.org:29500 train.py
# ```
#
# In the program, `init_process_group()` takes the rank and the number of ranks from the
# launcher in both. PyTorch's `torch.distributed.init_process_group("nccl")` reads them
# from the variables `RANK` and `WORLD_SIZE`, which torchrun sets; minipipe asks MPI.
# [Coming from PyTorch](site/coming-from-pytorch.md) continues from here.
#
# ## When it hangs
#
# Work from the bottom up, and stop at the first problem.
#
# 1. **Do the machines start anything?** Try `srun hostname`, or
#    `mpirun -f hosts -n 8 hostname`. You should see eight lines with the right names.
# 2. **Do the ranks find each other?** Start the smallest program in the README: it
#    prints the number of ranks. If each rank says that it is alone, or an error says
#    that mpi4py belongs to another MPI, then mpi4py was compiled against a different
#    MPI from the one that starts the ranks. `minipipe info` says which.
# 3. **Do small messages arrive but not large ones?** Then a firewall is in the way, or
#    MPI uses a network that it should not use (a virtual one, say). Ask the
#    administrators of the cluster which interface to use.
# 4. **Does every rank make the same calls?** `pipeline.step`, `evaluate` and `predict`
#    are collective: every rank must call them. Calling one of them under
#    `if group.rank == 0:` is the most common mistake of all.
# 5. **Is it just slow?** Running more ranks than cores, or more BLAS threads than
#    cores, is many times slower. `minipipe info` counts the cores that a rank may use.
#
# And wait for the error message. No rank of minipipe waits for ever: after a time limit
# (`init_process_group(timeout=…)`, in seconds) it ends all ranks and says which rank
# waited for which other. Here is the fourth mistake on thread ranks, which detect a
# deadlock at once.


# %%
def train_with_a_mistake(group):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=2)
    samples = np.ones((4, 8), np.float32)
    pipeline.step(samples, samples)
    # the mistake: only rank 0 prints it, but every rank has to compute it
    if group.rank == 0:
        return pipeline.evaluate(samples, samples)
    return None


try:
    spawn(train_with_a_mistake, num_ranks=2)
except MinipipeError as error:
    complaint = error
print(complaint)
assert (
    complaint.code == "deadlock"
    and "pipeline.evaluate(), which every rank must call" in str(complaint)
)

# %% [markdown]
# ## What you have learnt
#
# - A GPU runs behind the host, like a second rank. Wait for it rarely, and give it
#   large kernels.
# - Slow links favour schedules with more microbatches in flight and fewer messages. Put
#   neighbouring stages on the same machine.
# - Check a job before you queue it: the script, the schedule, and a step on thread
#   ranks.
#
# ## Exercise
#
# 1. In `two_streams`, let a copy take 90 µs instead of 30, as over a slow bus. Which
#    formula of lesson 12 gives the makespan? What would a third stream for copies
#    change?
# 2. Your network: how long does a message take? Use `mpirun` to start two ranks that
#    send an array back and forth a hundred times (lesson 03), once with 8 bytes and
#    once with 8 MiB. The first run gives the latency, the second the bandwidth. Enter
#    them in `LINKS`.
# 3. With the 1 Gbit/s link, does `eager-1f1b` gain from 32 microbatches of half the
#    size and half the time?
# 4. Write the job for one node with two GPUs and two ranks, and check it as above.
# 5. If you have not done it yet: the coursework task `14_puzzle`, a schedule under a
#    memory limit, against par. (`minipipe coursework DIR` creates your copy.)
#
# <details>
# <summary>Answers</summary>
#
# 1. GPipe's formula with a slowest stage: the first microbatch passes through both, 60
#    + 90, and each further one comes 90 later: 420 µs. The copies are the slowest
#    stage, so the computation waits. A third stream helps only if there is hardware for
#    two copies at once; over one bus they would share its bandwidth.
#
# ```python
# assert 10 * simulate(two_streams, Costs(forward=[6, 9])).makespan == 60 + 90 + 3 * 90 == 420
# ```
#
# 2. This is the program. With `mpirun` and `init_process_group` it measures your
#    network; on two thread ranks, as below, it only shows that it works.
#
# ```python
# from time import perf_counter
#
#
# def there_and_back(group, num_bytes, count=100):
#     """Return the seconds of one message of this size: half of a trip there and back."""
#     array, other = np.zeros(num_bytes, np.uint8), 1 - group.rank
#     group.barrier()
#     begin = perf_counter()
#     for _ in range(count):
#         if group.rank == 0:
#             group.send(array, other)
#         array = group.recv(other)
#         if group.rank == 1:
#             group.send(array, other)
#     return (perf_counter() - begin) / count / 2
#
#
# short = spawn(lambda group: there_and_back(group, 8), num_ranks=2)[0]
# long = spawn(lambda group: there_and_back(group, 8 * MIB, count=5), num_ranks=2)[0]
# LINKS["two threads"] = short, 8 * MIB / long
# assert 0 < short < long
# ```
#
# 3. Yes: 1,101 ms instead of 1,241. Twice as many microbatches make the bubble smaller,
#    and half the size halves the time of a message. 1F1B also gains, and stays behind:
#    its 1,491 ms are mostly waits.
#
# ```python
# latency, bandwidth = LINKS["1 Gbit/s"]
# halved = Costs(0.010, 0.010, 0.010, latency, bandwidth, message_size=SIZE / 2, unit="s")
# times = [round(1000 * simulate(schedules.build(name, 4, 32), halved).makespan) for name in ("1f1b", "eager-1f1b")]
# assert times == [1491, 1101]
# ```
#
# 4. One node, two tasks on it, two GPUs, and `--device gpu`.
#
# ```python
# with_gpus = JOB.replace("--nodes=2", "--nodes=1").replace("--ntasks-per-node=4", "--ntasks-per-node=2")
# with_gpus = with_gpus.replace("#SBATCH --cpus", "#SBATCH --gpus-per-node=2\n#SBATCH --cpus")
# with_gpus = with_gpus.replace("train.py", "train.py --device gpu")
# options = options_of(with_gpus)
# assert int(options["nodes"]) * int(options["ntasks-per-node"]) == int(options["gpus-per-node"]) == 2
# if bash:
#     assert subprocess.run([bash, "-n"], input=with_gpus, text=True, check=False).returncode == 0
# ```
#
# </details>
#
# Next, `14_means.py`: texts of unequal length, and a mistake that raises no error.
