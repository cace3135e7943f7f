#!/usr/bin/env bash
# Slurm, two nodes with four ranks each: sbatch tutorials/cluster/slurm.sh
#SBATCH --job-name=minipipe
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=1
#SBATCH --distribution=block
#SBATCH --time=00:10:00
#SBATCH --output=%x-%j.out
# GPUs: add #SBATCH --gpus-per-node=4, and --device gpu to both programs. A rank takes the GPU
# with its number on the node.
# Tensor parallelism: sbatch tutorials/cluster/slurm.sh --tensor 2, with a multiple of 2 tasks
# on each node.
# More threads for each rank: init_process_group(blas_threads=2), and --cpus-per-task=2 above
# and for srun.
set -eo pipefail

module load python openmpi # the names that "module avail" shows on your cluster
source .venv/bin/activate

export MINIPIPE_TIMEOUT=300 # seconds that a rank waits for another one
srun --cpu-bind=cores python tutorials/cluster/where.py "$@"
srun --cpu-bind=cores --kill-on-bad-exit=1 python tutorials/train.py "$@"
