"""The costs that advice is based on: layers measured with microbatches of several sizes, and messages.

No time of a layer is interpolated: each number of microbatches that is weighed is measured. A batch is measured in
microbatches of 1, 1/2, 1/4 … of it, one of each size, which takes little longer than the whole batch.

Messages are measured between the ranks at hand or between ranks that mpirun starts. Ping-pong gives the bandwidth.
Latency, overhead and cores are those of a small pipeline over all ranks, because working ranks poll for messages
between actions and may share cores.

``mpirun -n 4 python -m minipipe.tuning.cost_model`` prints the result as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import NamedTuple

import numpy as np

from minipipe.comm import ProcessGroup, init_process_group, spawn
from minipipe.comm.job.host import find_mpirun
from minipipe.comm.job.host import num_ranks as ranks_of_launcher
from minipipe.errors import LaunchError
from minipipe.execution.batch import Batch
from minipipe.execution.executor import Executor
from minipipe.execution.objective import BatchObjective
from minipipe.execution.plan import Plan, build_stages
from minipipe.execution.samples import Samples, split_microbatches
from minipipe.nn import Linear, MSELoss, Sequential
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.fitting import fit_messages
from minipipe.tuning.layers import MeasuredLayers
from minipipe.tuning.stages import crowded_hosts, measure_costs

_SIZES, _REPEATS = (1 << 10, 1 << 18), 40  # bytes; the cost is a line through these two
_WIDTH, _SAMPLES, _MICROBATCHES, _STEPS = 64, 16, 16, 10  # of the small pipeline: a layer on each rank
_THREADS, _MPI = "thread ranks", "MPI ranks"


class Messages(NamedTuple):
    """The costs of messages, and of the bookkeeping between two actions.

    Attributes
    ----------
    latency : float
        Seconds of an empty message, from the send until it is received.
    bandwidth : float
        Bytes per second.
    overhead : float
        Seconds of a rank between two actions.
    cores : float, optional
        Where ranks outnumber the cores of one host, the share of the cores that they get.
    measured_on : str
        Which ranks were measured.

    Examples
    --------
    >>> Messages(latency=2e-5, bandwidth=1e9).overhead
    0.0
    """

    latency: float = 0.0
    bandwidth: float = float("inf")
    overhead: float = 0.0
    cores: float | None = None
    measured_on: str = "assumed"


class CostModel(NamedTuple):
    """The measured costs of a model and of messages, from which the costs of any plan follow.

    Attributes
    ----------
    layers : mapping of int to MeasuredLayers
        By the number of microbatches.
    num_samples : int
        In the batch.
    messages : Messages
    waited : float
        The share of the time that the process wanted a core and had none, because of other programs, while the layers
        were measured. Known on Linux only; elsewhere 0.

    Examples
    --------
    >>> CostModel({}, num_samples=64, messages=Messages()).samples_of(microbatches=5)
    13
    """

    layers: Mapping[int, MeasuredLayers]
    num_samples: int
    messages: Messages
    waited: float = 0.0

    def samples_of(self, microbatches: int) -> int:
        """Return the samples of the largest microbatch."""
        return -(-self.num_samples // microbatches)

    def costs(self, plan: Plan, recompute: bool) -> Costs:
        """Return the costs of a plan's stages: sums over layers, and messages.

        Each layer was measured as a stage of its own, so the sum counts the bookkeeping of a stage, some 30 µs for F, I
        and W, for each of its layers. The ranks race the best choices, which do not depend on it.

        Parameters
        ----------
        plan : Plan
        recompute : bool
        """
        layers, messages = self.layers[plan.schedule.num_microbatches], self.messages._asdict()
        del messages["measured_on"]
        return replace(layers.costs(plan.partition, plan.placement, recompute), **messages)


# -- measuring messages ------------------------------------------------------------------------------------------------


def measure_messages(group: ProcessGroup, measured_on: str) -> Messages:
    """Measure messages between neighbours, one pair after another, and then in a small pipeline over all ranks.

    Collective. Rank 0 returns the result of all pairs, the others an empty one.

    Parameters
    ----------
    group : ProcessGroup
    measured_on : str
        For the result.
    """
    samples = np.array([sample for rank in range(group.size - 1) for sample in _pair(group, rank)]).reshape(-1, 2)
    gathered = group.all_gather(samples, what="the times of messages, which are measured for schedule='auto',")
    at_work, hosts = _costs_at_work(group), crowded_hosts(group, np)
    if group.rank:
        return Messages()
    latency, bandwidth = fit_messages([(size, time) for own in gathered for size, time in own.tolist()])
    all_cores = hosts.cores[0] if hosts is not None and len(hosts.cores) == 1 else None
    cores = at_work.cores if isinstance(at_work.cores, float) else all_cores
    return Messages(max(latency, at_work.latency), bandwidth, at_work.overhead, cores, measured_on)


def _pair(group: ProcessGroup, first: int) -> list[tuple[float, float]]:
    """Send arrays to the next rank and back; return, on the first rank of the pair, (bytes, seconds of one message)."""
    group.barrier()
    second, found = first + 1, []
    for size in _SIZES if group.rank in (first, second) else ():
        array, times = np.zeros(size, np.uint8), []
        for _ in range(_REPEATS):
            start = perf_counter()
            if group.rank == first:
                group.send(array, second)
                group.recv(second)
            else:
                group.send(group.recv(first), first)
            times.append((perf_counter() - start) / 2)
        # The lower quartile: another program on the core makes some messages late.
        found += [(float(size), sorted(times)[_REPEATS // 4])] if group.rank == first else []
    group.barrier()
    return found


def _costs_at_work(group: ProcessGroup) -> Costs:
    """Return the costs of a pipeline with small layers, one on each rank. Collective."""
    model = Sequential(*(Linear(_WIDTH, _WIDTH) for _ in range(group.size)))
    plan = Plan(model, num_ranks=group.size, num_microbatches=_MICROBATCHES)
    stages = build_stages(plan, group.rank, seed=0)
    ones = Samples([np.ones((_MICROBATCHES * _SAMPLES, _WIDTH), np.float32)])
    slices, objective = split_microbatches(ones.num_samples, _MICROBATCHES), BatchObjective(MSELoss())
    objective.begin(slices, ones)
    batch = Batch("measure_costs", slices, ones, objective, 0, 0, 0, is_cut=False, inputs_require_grad=False)
    make_executor = partial(Executor, stages=stages, group=group, xp=np)
    return measure_costs(make_executor, plan.program, batch, _STEPS, warns=False)  # advice says how busy it was


def messages_of_this_machine(num_ranks: int) -> Messages:
    """Measure messages between ranks that mpirun starts or, where there is no mpirun, between thread ranks.

    Local; starts processes. The result says which ranks were measured.

    Parameters
    ----------
    num_ranks : int

    Raises
    ------
    LaunchError
        Code ``no-launcher``, when mpirun cannot start the ranks.
    """
    command = find_mpirun()
    if command is None or ranks_of_launcher(os.environ) != 1:  # or this process is a rank, which cannot start others
        return spawn(lambda group: measure_messages(group, _THREADS), num_ranks)[0]
    program = [command, "-n", str(num_ranks), sys.executable, "-m", "minipipe.tuning.cost_model"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no error message"])[-1]
        raise LaunchError("no-launcher", f"{command} -n {num_ranks} cannot start ranks to measure messages: {said}")
    return Messages(**json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Measure as one rank of a job; rank 0 prints."""
    with init_process_group() as group:
        found = measure_messages(group, _MPI)
        if group.rank == 0:
            print(json.dumps(found._asdict()))


if __name__ == "__main__":
    main()
