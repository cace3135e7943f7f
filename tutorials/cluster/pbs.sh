#!/usr/bin/env bash
# PBS, two nodes with four ranks on each: qsub tutorials/cluster/pbs.sh
#PBS -N minipipe
#PBS -l select=2:ncpus=4:mpiprocs=4
#PBS -l walltime=00:10:00
#PBS -j oe
# Several ranks for each layer: qsub -v OPTIONS="--tensor 2" tutorials/cluster/pbs.sh, with a multiple of 2 mpiprocs.
# More threads for a rank: init_process_group(blas_threads=2), and ncpus=8:mpiprocs=4.
# For GPUs: add :ngpus=4, and --device gpu to OPTIONS: a rank takes that of its number on the node.
set -eo pipefail
cd "$PBS_O_WORKDIR" # where qsub was called

module load python openmpi # as "module avail" calls them on your cluster
source .venv/bin/activate

export MINIPIPE_TIMEOUT=300 # seconds that a rank waits for another
ranks=$(wc -l <"$PBS_NODEFILE") # a line for each rank, with the name of its host
# An mpirun that was built for PBS needs neither option. MPICH: -f "$PBS_NODEFILE", and -genvlist in place of -x.
launch=(mpirun --hostfile "$PBS_NODEFILE" -n "$ranks" -x MINIPIPE_TIMEOUT)
"${launch[@]}" python tutorials/cluster/where.py $OPTIONS
"${launch[@]}" python tutorials/train.py $OPTIONS
