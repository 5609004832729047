#!/usr/bin/env bash
# A grid of runs: sizes x learning rates, one SLURM job each, or sequentially without sbatch.
#
#   bash scripts/sweep.sh --heads "6 8 12" --lr_multipliers "0.5 1 2" --opt adana -- --batch_size 32
#   bash scripts/sweep.sh ... --sbatch "--account=ACCOUNT --time=6:00:00"    # options for each job
#   bash scripts/sweep.sh ... --dry                                          # list the jobs, start none
#
# Flags after -- go to every run. Runs are named after their grid point, so that a restarted sweep resumes and skips
# finished runs.
set -euo pipefail
# shellcheck source=scripts/config.sh
source "$(dirname "${BASH_SOURCE[0]}")/config.sh"

fail() {
    echo "sweep.sh: error: $*" >&2
    exit 2
}

arch=enoki opt=adana heads="6" multipliers="1" options="" dry=no
while (($#)); do
    case ${1//_/-} in
        --dry) dry=yes ;;
        --help)
            sed -n '2,/^set /{ s/^# \{0,1\}//p; }' "${BASH_SOURCE[0]}"
            exit 0
            ;;
        --)
            shift
            break
            ;;
        --arch | --opt | --heads | --lr-multipliers | --sbatch)
            (($# > 1)) || fail "$1 needs a value"
            case ${1//_/-} in
                --arch) arch=$2 ;;
                --opt) opt=$2 ;;
                --heads) heads=$2 ;;
                --lr-multipliers) multipliers=$2 ;;
                --sbatch) options=$2 ;;
            esac
            shift
            ;;
        *) fail "unknown flag '$1' (flags of the runs follow --)" ;;
    esac
    shift
done
[[ -f $DANALAB_HOME/scripts/restart_$arch.sh ]] || fail "--arch $arch: there is no scripts/restart_$arch.sh"

read -r -a all_heads <<<"$heads"
read -r -a all_multipliers <<<"$multipliers"
read -r -a job_options <<<"$options"
failed=0
for head in "${all_heads[@]}"; do
    for multiplier in "${all_multipliers[@]}"; do
        name=$arch-$opt-h$head-lr$multiplier
        run=(--opt "$opt" --heads "$head" --lr_multiplier "$multiplier" --name "$name" "$@")
        if command -v sbatch >/dev/null; then
            job=(sbatch --job-name="$name" ${job_options[@]+"${job_options[@]}"} "$DANALAB_HOME/scripts/restart_$arch.sh" "${run[@]}")
        else
            job=(bash "$DANALAB_HOME/scripts/launch.sh" --arch "$arch" "${run[@]}")
        fi
        if [[ $dry == yes ]]; then
            printf '%q ' "${job[@]}"
            echo
        else
            "${job[@]}" || failed=$((failed + 1))
        fi
    done
done
((failed == 0)) || fail "$failed runs could not be started, or ended with an error"
