#!/usr/bin/env bash
# PBS, two nodes with four ranks each: qsub tutorials/cluster/pbs.sh
#PBS -N minipipe
#PBS -l select=2:ncpus=4:mpiprocs=4
#PBS -l walltime=00:10:00
#PBS -j oe
# Tensor parallelism: qsub -v OPTIONS="--tensor 2" tutorials/cluster/pbs.sh, with a multiple
# of 2 as mpiprocs.
# More threads for each rank: init_process_group(blas_threads=2) and ncpus=8:mpiprocs=4.
# GPUs: add :ngpus=4 above and --device gpu to OPTIONS. A rank takes the GPU with its number
# on the node.
set -eo pipefail
cd "$PBS_O_WORKDIR" # the folder in which qsub was called

module load python openmpi # the names that "module avail" shows on your cluster
source .venv/bin/activate

export MINIPIPE_TIMEOUT=300 # seconds that a rank waits for another one
ranks=$(wc -l <"$PBS_NODEFILE") # the file has a line for each rank, with its host
# An mpirun built for PBS needs neither option. MPICH takes -f "$PBS_NODEFILE", and -genvlist
# instead of -x.
launch=(mpirun --hostfile "$PBS_NODEFILE" -n "$ranks" -x MINIPIPE_TIMEOUT)
"${launch[@]}" python tutorials/cluster/where.py $OPTIONS
"${launch[@]}" python tutorials/train.py $OPTIONS
