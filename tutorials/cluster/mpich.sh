#!/usr/bin/env bash
# Two machines of your own, MPICH or Intel MPI: bash tutorials/cluster/mpich.sh
# Before: ssh to each without a password; Python, minipipe and this folder at the same path on each.
set -euo pipefail
hosts=${HOSTS:-tutorials/cluster/hosts.mpich}
ranks=${RANKS:-8}

export MINIPIPE_TIMEOUT=${MINIPIPE_TIMEOUT:-300} # seconds that a rank waits for another; mpirun hands it on
# With several networks, name the one to use: export UCX_NET_DEVICES=eth0, or FI_TCP_IFACE=eth0 with libfabric.
# Several ranks for each layer: bash tutorials/cluster/mpich.sh --tensor 2, with a multiple of 2 ranks in each line of
# the hostfile. More threads for a rank: init_process_group(blas_threads=2), and mpirun -bind-to core:2.
mpirun -f "$hosts" -n "$ranks" python tutorials/cluster/where.py "$@"
mpirun -f "$hosts" -n "$ranks" python tutorials/train.py "$@"
