"""Show the host of every rank of a job. Start it exactly as you will start the
training:

    mpirun -f hosts.mpich -n 8 python tutorials/cluster/where.py

Neighbouring ranks exchange messages and should be on one host. With options of the
training such as ``--tensor 2 --replicas 2``, it also shows the coordinates of each rank
on the device mesh.
"""

import argparse
import json
import os
import socket
import sys

import numpy as np

from minipipe import Grid, init_process_group
from minipipe.errors import MinipipeError, counted

LINE = 8192  # bytes, more than the description of a rank takes


def role_of(group, tensor, replicas):
    """Return the role of this rank on the device mesh, or "" without tensor
    parallelism. Collective.
    """
    if tensor == 1:
        return ""
    pipeline = max(1, group.size // (tensor * replicas))
    grid = Grid(group, pipeline=pipeline, data=replicas, tensor=tensor)
    return grid.roles[group.name()]


def facts_of(group):
    """Return the host of this rank, its number on that host, and the cores that it may
    use.
    """
    cores = (
        sorted(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else list(range(os.cpu_count() or 1))
    )
    return {
        "host": socket.gethostname(),
        "local_rank": group.local_rank,
        "cores": cores,
    }


def gather(group, facts):
    """Return what every rank told about itself, on every rank. Collective."""
    line = json.dumps(facts).encode().ljust(LINE)
    return [
        json.loads(bytes(told))
        for told in group.all_gather(np.frombuffer(line, np.uint8))
    ]


def report(ranks):
    """Print a line for each rank, and a warning for each host with fewer cores than
    ranks.
    """
    print("rank  host                  rank there  cores")
    for rank, told in enumerate(ranks):
        line = (
            f"{rank:4}  {told['host']:20}  {told['local_rank']:10}  "
            f"{len(told['cores']):5}  {told['role']}"
        )
        print(line.rstrip())
    hosts = dict.fromkeys(told["host"] for told in ranks)
    print(f"{counted(len(ranks), 'rank')} on {counted(len(hosts), 'host')}")
    for host in hosts:
        there = [told["cores"] for told in ranks if told["host"] == host]
        cores = set().union(*there)
        if len(there) > len(cores):
            print(
                f"{host}: {len(there)} ranks share "
                f"{counted(len(cores), 'core')}; start fewer there"
            )


def main():
    parser = argparse.ArgumentParser(
        description="Show the host of every rank of a job."
    )
    for name in ("--tensor", "--replicas"):
        parser.add_argument(name, type=int, default=1, help="as for the training")
    options, _ = parser.parse_known_args()  # other options belong to the training
    with init_process_group() as group:
        role = role_of(group, options.tensor, options.replicas)
        ranks = gather(group, {**facts_of(group), "role": role})
        if group.rank == 0:
            report(ranks)


if __name__ == "__main__":
    try:
        main()
    except MinipipeError as error:
        sys.exit(f"where.py: {error}")
