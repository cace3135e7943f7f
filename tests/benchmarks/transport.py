"""One-way latency of a message between two ranks, next to mpi4py's own, by size.

    mpirun -n 2 python tests/benchmarks/transport.py
    MPIR_CVAR_CH4_CMA_ENABLE=0 mpirun -n 2 python tests/benchmarks/transport.py     without cross-memory attach
    MPIR_CVAR_NOLOCAL=1 UCX_TLS=tcp,self mpirun -n 2 python tests/benchmarks/transport.py  over TCP

Two ranks pass an array back and forth; a message takes half of that. The contenders
take turns, and medians are shown:

    raw        mpi4py: Send and Recv, into arrays that are allocated once
    posted     mpi4py: the receive posted before the array is sent, and polled
    persistent mpi4py: as posted, with requests that are made once
    minipipe   group.isend and group.irecv, posted before the array is sent; a fresh array each time
    channel    group.send_channel and group.receive_channel, over two arrays that are allocated once

Aims: at 8 bytes at most 4 µs more than raw; at 64 KiB 1.2 and at 1 MiB 1.05 times as
long.
"""

import argparse
import json
import sys
import time
from statistics import median

import numpy as np
from mpi4py import MPI

from minipipe import init_process_group

SIZES = [8, 1 << 11, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22]


def raw(comm, other, array):
    into = np.empty_like(array)

    def ping():
        comm.Send(array, other)
        comm.Recv(into, other)

    def pong():
        comm.Recv(into, other)
        comm.Send(array, other)

    return ping, pong


def posted(comm, other, array):
    into = np.empty_like(array)

    def wait(request):
        while not request.Test():
            pass

    def ping():
        receive = comm.Irecv(into, other)
        send = comm.Isend(array, other)
        wait(receive)
        wait(send)

    def pong():
        wait(comm.Irecv(into, other))
        wait(comm.Isend(array, other))

    return ping, pong


def persistent(comm, other, array):
    sending = comm.Send_init(array, other)
    receiving = comm.Recv_init(np.empty_like(array), other)

    def start(request):
        request.Start()
        return request

    def wait(request):
        while not request.Test():
            pass

    def ping():
        start(receiving)
        start(sending)
        wait(receiving)
        wait(sending)

    def pong():
        wait(start(receiving))
        wait(start(sending))

    return ping, pong


def channel(group, other, array):
    sending = group.send_channel(array.shape, array.dtype, other)
    receiving = group.receive_channel(array.shape, array.dtype, other)

    def ping():
        receiving.start()
        sending.start()
        receiving.wait()
        sending.wait()

    def pong():
        receiving.start()
        receiving.wait()
        sending.start()
        sending.wait()

    return ping, pong


def ours(group, other, array):
    def ping():
        receive = group.irecv(other)
        send = group.isend(array, other)
        receive.wait()
        send.wait()

    def pong():
        group.irecv(other).wait()
        group.isend(array, other).wait()

    return ping, pong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="in bytes")
    parser.add_argument("--json", action="store_true")
    with init_process_group() as group:
        options = parser.parse_args()
        if group.size != 2:
            sys.exit(
                "Two ranks, please: mpirun -n 2 python tests/benchmarks/transport.py"
            )
        comm, other, report = MPI.COMM_WORLD.Dup(), 1 - group.rank, []
        for size in [size for size in SIZES if size <= options.largest]:
            array = np.zeros(size, np.uint8).view(np.float32)
            found = {
                "raw": raw(comm, other, array),
                "posted": posted(comm, other, array),
                "persistent": persistent(comm, other, array),
                "minipipe": ours(group, other, array),
                "channel": channel(group, other, array),
            }
            times = {name: [] for name in found}
            repeats = max(20, min(1000, (8 << 20) // size))
            for _ in range(options.rounds):
                for name, pair in found.items():
                    pass_on = pair[group.rank]
                    group.barrier()
                    pass_on()
                    start = time.perf_counter()
                    for _ in range(repeats):
                        pass_on()
                    times[name].append(
                        (time.perf_counter() - start) / repeats / 2 * 1e6
                    )
            report.append(
                {"bytes": size, **{name: median(t) for name, t in times.items()}}
            )
        if group.rank == 0 and options.json:
            print(json.dumps(report, indent=1))
        elif group.rank == 0:
            print(
                f"{'bytes':>10}"
                + "".join(f"{name:>12}" for name in (*found, "more", "/ raw"))
            )
            for row in report:
                more, ratio = row["minipipe"] - row["raw"], row["minipipe"] / row["raw"]
                figures = [*(row[name] for name in found), more, ratio]
                print(
                    f"{row['bytes']:10}"
                    + "".join(f"{figure:12.2f}" for figure in figures)
                )


if __name__ == "__main__":
    sys.exit(main())
