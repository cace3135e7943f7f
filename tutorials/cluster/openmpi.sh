#!/usr/bin/env bash
# Two machines of your own, Open MPI: bash tutorials/cluster/openmpi.sh
# Before: ssh to each without a password; Python, minipipe and this folder at the same path on each.
set -euo pipefail
hosts=${HOSTS:-tutorials/cluster/hosts.openmpi}
ranks=${RANKS:-8}

export MINIPIPE_TIMEOUT=${MINIPIPE_TIMEOUT:-300} # seconds that a rank waits for another
# Several ranks for each layer: bash tutorials/cluster/openmpi.sh --tensor 2, with a multiple of 2 slots in each line of
# the hostfile. More threads for a rank: init_process_group(blas_threads=2), and --map-by slot:PE=2.
# --map-by slot: ranks 0 to 3 on the first host. -x hands a variable on: Open MPI does so only when told.
# With several networks, name the one to use: --mca btl_tcp_if_include eth0.
launch=(mpirun --hostfile "$hosts" -n "$ranks" --map-by slot --bind-to core -x MINIPIPE_TIMEOUT)
"${launch[@]}" python tutorials/cluster/where.py "$@"
"${launch[@]}" python tutorials/train.py "$@"
