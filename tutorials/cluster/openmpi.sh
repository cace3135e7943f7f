#!/usr/bin/env bash
# Two machines of your own, Open MPI: bash tutorials/cluster/openmpi.sh
# Needs ssh without a password, and Python, minipipe and this folder at the same path on both.
set -euo pipefail
hosts=${HOSTS:-tutorials/cluster/hosts.openmpi}
ranks=${RANKS:-8}

export MINIPIPE_TIMEOUT=${MINIPIPE_TIMEOUT:-300} # seconds that a rank waits for another one
# Tensor parallelism: bash tutorials/cluster/openmpi.sh --tensor 2. Each line of the hostfile
# then needs a multiple of 2 slots.
# More threads for each rank: init_process_group(blas_threads=2) and --map-by slot:PE=2.
# --map-by slot puts ranks 0 to 3 on the first host. -x passes a variable on to the ranks.
# If the hosts have several networks, choose one: --mca btl_tcp_if_include eth0.
launch=(mpirun --hostfile "$hosts" -n "$ranks" --map-by slot --bind-to core -x MINIPIPE_TIMEOUT)
"${launch[@]}" python tutorials/cluster/where.py "$@"
"${launch[@]}" python tutorials/train.py "$@"
