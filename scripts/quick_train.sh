#!/usr/bin/env bash
# From a folder of pre-tokenised arrays to a trained resonance model: validate, split, train.
#
#   bash scripts/quick_train.sh PATH {small,medium,large,xlarge,small-32k,large-32k,xlarge-32k} [--dry-run] [flags of danalab train ...]
#
# The arrays must hold GPT-2's token ids, which is checked; the model has GPT-2's vocabulary.
# --dry-run validates and splits, prints the configuration of the training, and trains nothing.
# A step has 32 sequences; 4, 2 or 1 of them, by the size, are computed at once. --batch-size and --acc-steps change that,
# and --activation-checkpointing full needs less memory. A run that does not fit is refused before its first step.
# The split is written once beside the data, to PATH-split, and reused; OUTPUT_PATH names another place.
# Exit codes: 1 invalid data, 2 other errors, else that of the training.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
fail() { echo "quick_train.sh: error: $*" >&2; exit 2; }

(($# >= 2)) || fail "usage: quick_train.sh PATH SIZE [flags of danalab train ...]"
data=${1%/} size=$2
shift 2
dry=()
if [[ ${1-} == --dry-run ]]; then
    dry=(--print-config)
    shift
fi
case $size in # sequences of a micro-batch
    small | medium | small-32k) batch=4 ;;
    large | large-32k) batch=2 ;;
    xlarge | xlarge-32k) batch=1 ;;
    *) fail "unknown size '$size': known are small, medium, large, xlarge, small-32k, large-32k, xlarge-32k" ;;
esac
[[ -d $data ]] || fail "$data: no such folder"

danalab=${DANALAB:-$here/../.venv/bin/danalab}
[[ -x $danalab ]] || danalab=danalab
split=${OUTPUT_PATH:-$data-split}

echo "1/3 validating $data" >&2
"$danalab" data validate "$data"

echo "2/3 splitting into $split" >&2
if [[ -f $split/split.json ]]; then
    source=$(cd "$data" && pwd -P)
    grep -qF "\"source\": \"$source\"" "$split/split.json" ||
        fail "$split: is the split of other data; remove it, or set OUTPUT_PATH"
    echo "$split is there already" >&2
else
    "$danalab" data split "$data" --output-path "$split" --val-ratio "${VAL_RATIO:-0.01}"
fi

echo "3/3 training the resonance model, size $size" >&2
run=(--arch resonance --size "$size" --data "$split" --vocab-size 50304)
memory=()
case " $* " in
    *--batch[-_]* | *--acc[-_]* | *--global[-_]* | *--gradient[-_]*) ;; # the user has decided
    *)
        memory=(--batch-size "$batch" --acc-steps "$((32 / batch))")
        ;;
esac
exec "$danalab" train "${run[@]}" ${memory[@]+"${memory[@]}"} "$@" ${dry[@]+"${dry[@]}"}
