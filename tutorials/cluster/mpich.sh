#!/usr/bin/env bash
# Two machines of your own, MPICH or Intel MPI: bash tutorials/cluster/mpich.sh
# Before: ssh to each without a password; Python, minipipe and this folder at the same path on each.
set -euo pipefail
hosts=${HOSTS:-tutorials/cluster/hosts.mpich}
ranks=${RANKS:-8}

export MINIPIPE_TIMEOUT=${MINIPIPE_TIMEOUT:-300} # seconds that a rank waits for another; mpirun hands it on
# With several networks, name the one to use: export UCX_NET_DEVICES=eth0, or FI_TCP_IFACE=eth0 with libfabric.
mpirun -f "$hosts" -n "$ranks" python tutorials/cluster/where.py
mpirun -f "$hosts" -n "$ranks" python tutorials/train.py "$@"
