#!/usr/bin/env bash
# Everything that needs a GPU, in under nine minutes: the tests of tests/gpu, those of the Triton kernel in Triton's
# interpreter, then `danalab bench gpu`. Installs nothing. Without a GPU: the part of the tests that a CPU can run, and a
# line that says what is missing.
#
#   scripts/gpu_check.sh [RESULT.json]      default bench/results/gpu_NAME.json
#   PYTHON=python3.12 scripts/gpu_check.sh  another interpreter than .venv/bin/python or python3
#   TESTS_ONLY=1 ...                        no benchmark
#   QUICK=1 ...                             a dry run on a CPU: the tests of one file, tiny sizes
set -u
cd "$(dirname "$0")/.." || exit 2
start=$SECONDS
readonly limit=530       # seconds of everything
readonly tests_limit=200 # seconds of the tests

python=${PYTHON:-}
[ -n "$python" ] || { [ -x .venv/bin/python ] && python=.venv/bin/python; } || python=python3
export PYTHONPATH="src:tests:bench${PYTHONPATH:+:$PYTHONPATH}"

found=$("$python" - <<'PROBE'
import importlib.util
import re

needed = "torch numpy pytest rich yaml tokenizers tiktoken safetensors matplotlib annotated_types pydantic " \
    "typing_extensions jinja2 cachetools"
missing = [name for name in needed.split() if importlib.util.find_spec(name) is None]
if missing:
    print("missing", *missing)
else:
    import torch

    print("cpu", torch.__version__) if not torch.cuda.is_available() else print(
        "gpu", re.sub("[^a-z0-9]+", "_", torch.cuda.get_device_name().lower().removeprefix("nvidia ")).strip("_")
    )
PROBE
) || exit 2
read -r kind detail <<<"$found"

run_tests() { # SECONDS MARKS PATH...; without the project's options, some of which need plug-ins
    local seconds=$1
    shift
    timeout --kill-after=10 "$seconds" "$python" -m pytest -q -rs -o addopts= --import-mode=importlib \
        -p no:cacheprovider -m "$@"
}
readonly kernel_tests=tests/optim/step/backends/test_triton.py

case $kind in
missing)
    echo "gpu-check: packages are missing: $detail (pip install them, or name another PYTHON)"
    exit 2
    ;;
cpu)
    if [ -n "${QUICK:-}" ]; then
        run_tests 300 "not gpu and not slow" tests/gpu/test_decoding.py || exit 1
        [ -z "${TESTS_ONLY:-}" ] || exit 0
        exec "$python" -m danalab bench gpu --device cpu --quick --seconds 900 --output "${1:-build/gpu_quick.json}"
    fi
    run_tests 1800 "not gpu and not slow" tests/gpu $kernel_tests || exit 1
    echo "gpu-check: torch $detail sees no CUDA device: only the CPU's part of the tests was run, nothing was timed"
    exit 0
    ;;
esac

failed=0
run_tests "$tests_limit" gpu tests/gpu || failed=1
run_tests 60 "not slow" $kernel_tests || failed=1
[ -z "${TESTS_ONLY:-}" ] || exit $failed
seconds=$((limit - (SECONDS - start)))
"$python" -m danalab bench gpu --seconds "$((seconds < 350 ? seconds : 350))" \
    --output "${1:-bench/results/gpu_$detail.json}" || failed=1
echo "gpu-check: $((SECONDS - start)) s, $([ $failed = 0 ] && echo "all passed" || echo "something failed: see above")"
exit $failed
