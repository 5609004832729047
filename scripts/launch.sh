#!/usr/bin/env bash
# Start a training run with the flags of the original launcher: underscores, its names, its intervals.
#
#   bash scripts/launch.sh --arch enoki --opt adana --heads 3
#   bash scripts/launch.sh --arch enoki --opt adana --heads 12 --nproc 4 --distributed_backend fsdp --acc_steps 2
#   bash scripts/launch.sh --arch enoki --opt adana --heads 3 --dry      # print the command, run nothing
#
# It calls `danalab train` on FineWeb 100BT, as the original; --dataset NAME is other data. Where they are not prepared, the
# error says what to type. A flag that isn't listed here is passed on. Settings of the machine (DATASETS_DIR,
# RESULTS_BASE_FOLDER, WANDB_*, TIKTOKEN_CACHE_DIR, HF_HOME) come from the environment, else from scripts/config.local.
set -euo pipefail
# shellcheck source=scripts/config.sh
source "$(dirname "${BASH_SOURCE[0]}")/config.sh"

fail() {
    echo "launch.sh: error: $*" >&2
    exit 2
}

dry=no arch=enoki opt=adana checkpointing=no every=1 wandb=${WANDB_API_KEY:+yes} data=(--data fineweb_100)
# The original's intervals come first; a later flag wins.
arguments=(--eval-interval 115 --log-interval 50 --ckpt-interval 1000)
add() { arguments+=("$@"); } # a flag of `danalab train`, with its value where it has one
while (($#)); do
    flag=$1
    shift
    [[ $flag == --* ]] || fail "unexpected argument '$flag'"
    value=() # a flag that another one follows, or nothing, is a switch
    if [[ $flag == --*=* ]]; then
        value=("${flag#*=}")
        flag=${flag%%=*}
    elif (($#)) && [[ $1 != --* ]]; then
        value=("$1")
        shift
    fi
    name=${flag//_/-}
    case $name in
        --arch | --opt | --wandb-group | --dataset | --gamma-3-factor | --wd-ts-const | --init-scheme | \
            --latest-ckpt-interval | --permanent-ckpt-interval | --z-loss-coeff | --distributed-backend | \
            --checkpoint-every-n)
            ((${#value[@]})) || fail "$flag needs a value"
            ;;
    esac
    case $name in
        --dry) dry=yes ;;
        --arch) arch=${value[0]} ;;
        --opt) opt=${value[0]} ;;
        --no-wandb) wandb=no ;;
        --wandb-offline) wandb=yes && add --wandb-mode offline ;;
        --wandb-group)
            RESULTS_BASE_FOLDER=$RESULTS_BASE_FOLDER/${value[0]}
            export WANDB_RUN_GROUP=${value[0]}
            ;;
        --distributed-backend)
            [[ ${value[0]} != nccl ]] || value=(ddp)
            add "$name" "${value[0]}"
            ;;
        --dataset) data=(--data "${value[0]}") ;;
        --data | --data-path | --config) # a file may name the data
            data=()
            add "$name" ${value[@]+"${value[@]}"}
            ;;
        --gamma-3-factor) add --gamma3 "${value[0]}" ;;
        --wd-ts-const) add --wd-ts "${value[0]}" ;;
        --init-scheme) add --init "${value[0]}" ;;
        --latest-ckpt-interval) add --ckpt-interval "${value[0]}" ;;
        --permanent-ckpt-interval) add --keep-every "${value[0]}" ;;
        --z-loss-coeff) add --z-loss "${value[0]}" ;;
        --activation-checkpointing) # the original's is a switch, with the blocks it is for in a flag of its own
            if ((${#value[@]})); then add "$name" "${value[0]}"; else checkpointing=yes; fi
            ;;
        --checkpoint-every-n) every=${value[0]} ;;
        *) add "$name" ${value[@]+"${value[@]}"} ;;
    esac
done
[[ $wandb != yes ]] || add --wandb # as in the original, a key turns it on
[[ $checkpointing == no ]] || add --activation-checkpointing "every-n:$every"
[[ $checkpointing == yes || $every == 1 ]] || fail "--checkpoint_every_n $every needs --activation_checkpointing"

danalab=${DANALAB:-$DANALAB_HOME/.venv/bin/danalab}
[[ -x $danalab ]] || danalab=danalab
command=("$danalab" train --arch "$arch" --opt "$opt" ${data[@]+"${data[@]}"} "${arguments[@]}")
if [[ $dry == yes ]]; then
    printf '%q ' "DATASETS_DIR=$DATASETS_DIR" "RESULTS_BASE_FOLDER=$RESULTS_BASE_FOLDER" "${command[@]}"
    echo
else
    exec "${command[@]}"
fi
