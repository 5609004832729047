#!/usr/bin/env bash
#SBATCH --job-name=enoki-adana-dNone
#SBATCH --requeue
#SBATCH --signal=TERM@300
#SBATCH --open-mode=append
#SBATCH --output=/work/wt/train/danalab/slurm/enoki-adana-dNone.log
#SBATCH --time=24:00:00
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=32G
#SBATCH --gpus-per-node=1
set -euo pipefail

cd /work/wt/train/danalab

# ---- requeue ----

# shellcheck shell=bash
# One training job under SLURM that is requeued while steps remain.
#
#   danalab_job COMMAND...     COMMAND starts `danalab train`, which prints its summary with --json
#
# The job ends when the run is finished. It is requeued with the same resources after a preemption or the warning of the
# time limit (REQUEUE of signals.py: checkpointed; 143: SIGTERM before training could handle it) and where --iterations-to-run
# left steps. It is not requeued after an error, nor after three jobs in a row without a step. Outside SLURM the command
# runs once.

danalab_job() {
    if [[ -z ${SLURM_JOB_ID:-} ]]; then
        echo "danalab: not a SLURM job: the command runs once" >&2
        "$@"
        return
    fi
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}
    echo "danalab: job $SLURM_JOB_ID, restart ${SLURM_RESTART_COUNT:-${DANALAB_RESTARTS:-0}}, $(date)" >&2
    local outcome child code=0
    outcome=$(mktemp)
    # srun forwards signals to all ranks; SLURM sends its warning to them directly. --wait: if a rank dies, the others end.
    srun --wait=60 "$@" --json >"$outcome" </dev/null &
    child=$!
    trap 'kill -TERM "$child" 2>/dev/null || true' TERM USR1
    wait "$child" || code=$?
    while kill -0 "$child" 2>/dev/null; do # a trapped signal ended the wait, not the training
        code=0
        wait "$child" || code=$?
    done
    trap - TERM USR1
    local status step
    status=$(_danalab_field status "$outcome")
    step=$(_danalab_field step "$outcome")
    step=${step:-unknown}
    cat "$outcome"
    rm -f "$outcome"
    case $code/$status in
        85/* | 143/*) _danalab_again "$step" ;;
        0/stopped) _danalab_again "$step" ;;
        0/finished) echo "danalab: finished at step $step" >&2 ;;
        *)
            echo "danalab: ended with exit code $code (${status:-no summary}): not requeued" >&2
            return "$((code == 0 ? 1 : code))"
            ;;
    esac
}

# The value of a field of the summary, which is one JSON object on a line of its own.
_danalab_field() {
    sed -n "s/^{.*\"$1\": \"\{0,1\}\([^\",}]*\).*/\1/p" "$2" | tail -n 1
}

_danalab_again() {
    local id=$SLURM_JOB_ID record last=- idle=0
    [[ -z ${SLURM_ARRAY_TASK_ID:-} ]] || id=${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}
    record=${DANALAB_PROGRESS_FOLDER:-$PWD}/.danalab-progress-${DANALAB_FIRST_JOB:-$id}
    [[ ! -f $record ]] || read -r last idle <"$record"
    if [[ $1 == "$last" ]]; then idle=$((idle + 1)); else idle=0; fi
    echo "$1 $idle" >"$record"
    if ((idle >= 3)); then
        echo "danalab: three jobs in a row ended at step $1: not requeued" >&2
        return 1
    fi
    echo "danalab: step $1: requeued" >&2
    scontrol requeue "$id" && return 0
    echo "danalab: scontrol requeue was refused: a new job is submitted in place of this one" >&2
    local options=(--job-name="${SLURM_JOB_NAME:-danalab}")
    [[ -z ${SLURM_JOB_ACCOUNT:-} ]] || options+=(--account="$SLURM_JOB_ACCOUNT")
    [[ -z ${SLURM_JOB_PARTITION:-} ]] || options+=(--partition="$SLURM_JOB_PARTITION")
    [[ -z ${SLURM_JOB_NUM_NODES:-} ]] || options+=(--nodes="$SLURM_JOB_NUM_NODES")
    [[ -z ${SLURM_NTASKS_PER_NODE:-} ]] || options+=(--ntasks-per-node="$SLURM_NTASKS_PER_NODE")
    [[ -z ${SLURM_GPUS_PER_NODE:-} ]] || options+=(--gpus-per-node="$SLURM_GPUS_PER_NODE")
    [[ -z ${SLURM_CPUS_PER_TASK:-} ]] || options+=(--cpus-per-task="$SLURM_CPUS_PER_TASK")
    [[ -z ${SLURM_MEM_PER_NODE:-} ]] || options+=(--mem="$SLURM_MEM_PER_NODE")
    [[ -z ${SLURM_ARRAY_TASK_ID:-} ]] || options+=(--array="$SLURM_ARRAY_TASK_ID")
    local limit
    limit=$(squeue --noheader --jobs "$SLURM_JOB_ID" --format %l 2>/dev/null | tr -d ' ') || limit=
    [[ -z $limit ]] || options+=(--time="$limit")
    DANALAB_FIRST_JOB=${DANALAB_FIRST_JOB:-$id} DANALAB_RESTARTS=$((${DANALAB_RESTARTS:-0} + 1)) \
        sbatch "${options[@]}" "$DANALAB_SCRIPT" ${DANALAB_ARGUMENTS[@]+"${DANALAB_ARGUMENTS[@]}"}
}

export DANALAB_PROGRESS_FOLDER=/work/wt/train/danalab/slurm
DANALAB_SCRIPT=/work/wt/train/danalab/slurm/enoki-adana-dNone.sh
DANALAB_ARGUMENTS=()

run=(--name enoki-adana-dNone)
danalab_job /work/wt/train/danalab/.venv/bin/python -m danalab train "${run[@]}"
