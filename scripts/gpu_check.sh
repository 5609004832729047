#!/usr/bin/env bash
# What a GPU must show, on a machine with Python, torch for CUDA and no network (docs/gpu.md).
#
#   scripts/gpu_check.sh [FILE] [--seconds 470]             the check: tests, then speed; rows in FILE, default
#                                                           bench/results/gpu/check.json, or $OUT/check.json
#   scripts/gpu_check.sh --dry-run                          every line of it on a CPU, in two minutes
#   scripts/gpu_check.sh shakespeare TEXT [FOLDER] ...      the second call: ADana and AdamW on characters
#   scripts/gpu_check.sh wheels [FOLDER]                    on a machine with a network: the packages that torch lacks,
#                                                           for Python 3.12 on Linux, into build/wheels
#   PYTHON=python3.12 scripts/gpu_check.sh ...              another interpreter than .venv/bin/python or python3
#
# Where a package is missing, the wheels in build/wheels are installed into a temporary folder.
set -u
folder=$PWD
cd "$(dirname "$0")/.." || exit 2
python=${PYTHON:-}
[ -n "$python" ] || { [ -x .venv/bin/python ] && python=.venv/bin/python; } || python=python3
readonly wheels=build/wheels
# What danalab imports apart from torch, and what runs the tests.
readonly packages="numpy rich pyyaml tokenizers tiktoken safetensors annotated-types pydantic typing-extensions jinja2
    cachetools regex pytest pytest-xdist hypothesis"
probe() { # what is missing, if anything is
    missing=$("$python" -c "import annotated_types, cachetools, hypothesis, jinja2, numpy, pydantic, pytest, regex
import rich, safetensors, tiktoken, tokenizers, torch, typing_extensions, yaml" 2>&1)
}

if [ "${1:-}" = wheels ]; then
    # shellcheck disable=SC2086
    exec "$python" -m pip download -q --only-binary=:all: --python-version 3.12 --implementation cp --abi cp312 --abi abi3 \
        --abi none --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 \
        --platform manylinux2014_x86_64 --platform manylinux_2_5_x86_64 --platform manylinux1_x86_64 \
        --constraint constraints.txt -d "${2:-$wheels}" $packages
fi
export PYTHONPATH=$PWD/src:$PWD/bench${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
if ! probe && ls $wheels/*.whl >/dev/null 2>&1; then
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    "$python" -m pip install -q --no-index --no-deps --no-compile --target "$site" $wheels/*.whl || exit 2
    export PYTHONPATH=$site:$PYTHONPATH
fi
probe || {
    echo "gpu-check: ${missing##*$'\n'}; \`scripts/gpu_check.sh wheels\` collects what a machine without a network lacks" >&2
    exit 2
}
absolute() { case $1 in /*) echo "$1" ;; *) echo "$folder/$1" ;; esac; }
if [ "${1:-}" = shakespeare ]; then
    [ $# -ge 2 ] || { echo "gpu-check: shakespeare needs the path of the text: scripts/gpu_check.sh shakespeare TEXT" >&2; exit 2; }
    set -- "$(absolute "$2")" "${@:3}"
    case ${2:-} in "" | -*) out=${OUT:-bench/results/gpu} && set -- "$1" "$out" "${@:2}" ;; *) set -- "$1" "$(absolute "$2")" "${@:3}" ;; esac
    "$python" -m danalab_bench.gpu_shakespeare "$@"
    exit
fi
case " $* " in *" --dry-run "*) out=build/gpu_dry_run.json ;; *) out=${OUT:-bench/results/gpu}/check.json ;; esac
case ${1:-} in "" | -*) ;; *) out=$(absolute "$1") && shift ;; esac
"$python" -m danalab bench gpu --output "$out" "$@"
