#!/usr/bin/env bash
# Start a training run with the flags of the original launcher: underscores, its names, its defaults.
#
#   bash scripts/launch.sh --arch enoki --opt adana --heads 3
#   bash scripts/launch.sh --arch enoki --opt adana --heads 3 --dry      # print the command, run nothing
#
# It calls `danalab train`; a flag that isn't listed here is passed on. Settings of the machine (DATASETS_DIR,
# RESULTS_BASE_FOLDER, TIKTOKEN_CACHE_DIR, HF_HOME) come from scripts/config.local, see config.local.example.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [[ -f "$here/config.local" ]]; then
    set -a
    # shellcheck source=/dev/null
    source "$here/config.local"
    set +a
fi

fail() { echo "launch.sh: error: $*" >&2; exit 2; }

dry=no
arch=enoki opt=adana
arguments=()
while (($#)); do
    flag=$1
    shift
    value=
    if [[ $flag == --*=* ]]; then
        value=${flag#*=}
        flag=${flag%%=*}
        set -- "$value" "$@"
    fi
    name=${flag//_/-}
    case $name in
        --dry) dry=yes ;;
        # switches: no value follows
        --no-compile | --no-auto-resume | --auto-resume) arguments+=("$name") ;;
        --no-wandb) ;;  # metrics.jsonl is always written; no tracker is on unless asked for
        --wandb-offline) fail "--wandb_offline: this build writes metrics.jsonl only" ;;
        --*)
            (($#)) || fail "$flag needs a value"
            value=$1
            shift
            case $name in
                --arch) arch=$value ;;
                --opt) opt=$value ;;
                --nproc) [[ $value == 1 ]] || fail "--nproc $value: this build trains in one process" ;;
                --distributed-backend)
                    [[ $value == single || $value == nccl ]] || fail "--distributed_backend $value: this build trains in one process" ;;
                --wandb-group) export RESULTS_BASE_FOLDER="${RESULTS_BASE_FOLDER:-runs}/$value" ;;
                --dataset) arguments+=(--data "$value") ;;
                --gamma-3-factor) arguments+=(--gamma3 "$value") ;;
                --wd-ts-const) arguments+=(--wd-ts "$value") ;;
                --init-scheme) arguments+=(--init "$value") ;;
                --latest-ckpt-interval) arguments+=(--ckpt-interval "$value") ;;
                --permanent-ckpt-interval) arguments+=(--keep-every "$value") ;;
                --z-loss-coeff) arguments+=(--z-loss "$value") ;;
                *) arguments+=("$name" "$value") ;;
            esac
            ;;
        *) fail "unexpected argument '$flag'" ;;
    esac
done

danalab=${DANALAB:-$here/../.venv/bin/danalab}
[[ -x $danalab ]] || danalab=danalab
command=("$danalab" train --arch "$arch" --opt "$opt" "${arguments[@]}")
if [[ $dry == yes ]]; then
    printf '%q ' "${command[@]}"
    echo
else
    exec "${command[@]}"
fi
