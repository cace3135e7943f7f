"""Show on which hosts the ranks of a job run. Start it exactly as you will start the training:

    mpirun -f hosts.mpich -n 8 python tutorials/cluster/where.py

Ranks with neighbouring numbers exchange messages; they belong on the same host where possible. With the options of the
training, such as ``--tensor 2 --replicas 2``, it shows the coordinates of each rank on the grid, too.
"""

import argparse
import json
import os
import socket
import sys

import numpy as np

from minipipe import Grid, init_process_group
from minipipe.errors import MinipipeError, counted

LINE = 8192  # bytes, more than one rank has to tell


def role_of(group, tensor, replicas):
    """Return what this rank is on the grid; nothing where no ranks share a layer. Collective."""
    if tensor == 1:
        return ""
    pipeline = max(1, group.size // (tensor * replicas))
    grid = Grid(group, pipeline=pipeline, data=replicas, tensor=tensor)
    return grid.roles[group.name()]


def facts_of(group):
    """Return where this rank is: its host, its number there, and the cores that it may use."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    return {"host": socket.gethostname(), "local_rank": group.local_rank, "cores": cores}


def gather(group, facts):
    """Return the facts of every rank, on every rank."""
    line = json.dumps(facts).encode().ljust(LINE)
    return [json.loads(bytes(told)) for told in group.all_gather(np.frombuffer(line, np.uint8))]


def report(ranks):
    """Print a line for each rank, and a warning for each host that has fewer cores than ranks."""
    print("rank  host                  rank there  cores")
    for rank, told in enumerate(ranks):
        line = f"{rank:4}  {told['host']:20}  {told['local_rank']:10}  {len(told['cores']):5}  {told['role']}"
        print(line.rstrip())
    hosts = dict.fromkeys(told["host"] for told in ranks)
    print(f"{counted(len(ranks), 'rank')} on {counted(len(hosts), 'host')}")
    for host in hosts:
        there = [told["cores"] for told in ranks if told["host"] == host]
        cores = set().union(*there)
        if len(there) > len(cores):
            print(f"{host}: {len(there)} ranks share {counted(len(cores), 'core')}; start fewer there")


def main():
    parser = argparse.ArgumentParser(description="Show on which hosts the ranks of a job run.")
    for name in ("--tensor", "--replicas"):
        parser.add_argument(name, type=int, default=1, help="as for the training")
    options, _ = parser.parse_known_args()  # the other options are those of the training
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
