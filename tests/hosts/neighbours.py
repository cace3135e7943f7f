"""Tell what a rank knows of its host, as a line of JSON. Run under mpirun."""

import json
import socket

from threadpoolctl import threadpool_info

from minipipe import init_process_group
from minipipe.comm.job.host import num_cores


def facts_of(group):
    """Return what a rank knows: its number here, whether its waits spin, and how it
    computes.
    """
    return {
        "rank": group.rank,
        "host": socket.gethostname(),
        "local_rank": group.local_rank,
        "cores": num_cores(),
        "spins": group.job.spins > 0,
        "blas_threads": max(
            blas["num_threads"]
            for blas in threadpool_info()
            if blas["user_api"] == "blas"
        ),
    }


if __name__ == "__main__":
    with init_process_group() as group:
        for rank in range(group.size):  # one after another, so that lines stay whole
            if rank == group.rank:
                print(json.dumps(facts_of(group)), flush=True)
            group.barrier()
