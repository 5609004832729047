#!/usr/bin/env bash
# What one GPU can answer in four commands of at most nine minutes each (docs/gpu.md). Each is independent and goes on
# where it was stopped; nothing is installed, unless the folder `wheels` has packages that the machine lacks.
#
#   scripts/gpu_day.sh check|ladder|horizon|long [FOLDER]    results in FOLDER/NAME.json; default gpu-day, or $OUT,
#                                                            which then begins with what gpu-day has
#   scripts/gpu_day.sh ladder FOLDER --estimate              what would be run, and its minutes
#   scripts/gpu_day.sh ladder FOLDER --device cpu --small    a dry run
#   PYTHON=python3.12 scripts/gpu_day.sh ...                 another interpreter than .venv/bin/python or python3
set -u
folder=$PWD
cd "$(dirname "$0")/.." || exit 2
python=${PYTHON:-}
[ -n "$python" ] || { [ -x .venv/bin/python ] && python=.venv/bin/python; } || python=python3
path=$PWD/src:$PWD/bench:$PWD/tests
if [ -d wheels ]; then
    site=${TMPDIR:-/tmp}/danalab-wheels
    "$python" -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$site" wheels/*.whl || exit 2
    path=$path:$site
fi
export PYTHONPATH=$path${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
needed="annotated_types, cachetools, jinja2, matplotlib, pydantic, rich, safetensors, tiktoken, tokenizers, yaml"
missing=$("$python" -c "import $needed" 2>&1) || {
    echo "gpu-day: ${missing##*$'\n'}; packages that a machine lacks go into the folder wheels: docs/gpu.md" >&2
    exit 2
}
case ${2:-} in
"" | -*) [ -z "${OUT:-}" ] || cp -n gpu-day/*.json "$OUT" 2>/dev/null ;;
/*) ;;
*) set -- "$1" "$folder/$2" "${@:3}" ;;
esac
exec timeout --kill-after=10 "${LIMIT:-540}" "$python" -m danalab_bench.gpu_day "$@"
