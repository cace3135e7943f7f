#!/usr/bin/env bash
# Slurm, two nodes with four ranks on each: sbatch tutorials/cluster/slurm.sh
#SBATCH --job-name=minipipe
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=1
#SBATCH --distribution=block
#SBATCH --time=00:10:00
#SBATCH --output=%x-%j.out
# For GPUs: #SBATCH --gpus-per-node=4, and --device gpu for the program: a rank takes that of its number on the node.
# Several ranks for each layer: sbatch tutorials/cluster/slurm.sh --tensor 2, with a multiple of 2 tasks for each node.
# More threads for a rank: init_process_group(blas_threads=2), and --cpus-per-task=2, for srun as well.
set -eo pipefail

module load python openmpi # as "module avail" calls them on your cluster
source .venv/bin/activate

export MINIPIPE_TIMEOUT=300 # seconds that a rank waits for another
srun --cpu-bind=cores python tutorials/cluster/where.py "$@"
srun --cpu-bind=cores --kill-on-bad-exit=1 python tutorials/train.py "$@"
