#!/usr/bin/env bash
# Two machines of your own, MPICH or Intel MPI: bash tutorials/cluster/mpich.sh
# Needs ssh without a password, and Python, minipipe and this folder at the same path on both.
set -euo pipefail
hosts=${HOSTS:-tutorials/cluster/hosts.mpich}
ranks=${RANKS:-8}

export MINIPIPE_TIMEOUT=${MINIPIPE_TIMEOUT:-300} # seconds; mpirun passes the variable on
# If the hosts have several networks, choose one: export UCX_NET_DEVICES=eth0, or
# FI_TCP_IFACE=eth0 with libfabric.
# Tensor parallelism: bash tutorials/cluster/mpich.sh --tensor 2. Each line of the hostfile
# then needs a multiple of 2 ranks.
# More threads for each rank: init_process_group(blas_threads=2) and mpirun -bind-to core:2.
mpirun -f "$hosts" -n "$ranks" python tutorials/cluster/where.py "$@"
mpirun -f "$hosts" -n "$ranks" python tutorials/train.py "$@"
