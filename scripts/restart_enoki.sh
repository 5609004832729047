#!/usr/bin/env bash
# A run of the enoki ladder as a SLURM job that is requeued until its last step, after preemptions and time limits.
#
#   sbatch --account=ACCOUNT --time=12:00:00 scripts/restart_enoki.sh --opt adana --heads 12 --name h12
#   sbatch ... scripts/restart_enoki.sh --opt adana --heads 12 --iterations_to_run 5000     # in jobs of 5000 steps
#
# Submit it from the repository. Flags are those of scripts/launch.sh; resources on sbatch's command line win over the
# lines below, and are kept when the job is requeued. More GPUs: --gpus-per-node=4 --ntasks-per-node=4 for
# sbatch, with --distributed_backend ddp (or zero, fsdp) for the run.
#SBATCH --job-name=danalab-enoki
#SBATCH --requeue
#SBATCH --signal=TERM@300
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
#SBATCH --time=24:00:00
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=32G
set -euo pipefail

# SLURM runs a copy of this file; the repository is where it was submitted, or $DANALAB_HOME.
home=${DANALAB_HOME:-${SLURM_SUBMIT_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)}}
if [[ ! -f $home/scripts/launch.sh ]]; then
    echo "restart_enoki.sh: error: no scripts/launch.sh in $home; submit from the repository, or set DANALAB_HOME" >&2
    exit 2
fi
# shellcheck source=scripts/config.sh
source "$home/scripts/config.sh"
# shellcheck source=src/danalab/train/system/slurm_job.sh
source "$home/src/danalab/train/system/slurm_job.sh"

# Submitted instead of this job if SLURM refuses to requeue it.
DANALAB_SCRIPT=$home/scripts/restart_enoki.sh
DANALAB_ARGUMENTS=("$@")
danalab_job bash "$home/scripts/launch.sh" --arch enoki "$@"
