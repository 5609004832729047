#!/usr/bin/env bash
# The tests that compute, as on other processors: `make test-machines`. Each line chooses the kernels that numpy's and
# torch's libraries would take there. The machine must have the instructions itself.
#   scripts/test_machines.sh [NAME ...]    # haswell zen skylake old; all by default
set -euo pipefail
cd "$(dirname "$0")/.."

declare -A machines=(
    [haswell]="OPENBLAS_CORETYPE=Haswell ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 OMP_NUM_THREADS=1"
    [zen]="OPENBLAS_CORETYPE=Zen ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 OMP_NUM_THREADS=2"
    [skylake]="OPENBLAS_CORETYPE=SkylakeX OMP_NUM_THREADS=2"
    [old]="OPENBLAS_CORETYPE=Prescott ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 OMP_NUM_THREADS=1"
)
tests=()
for room in optim models theory inference distributed; do
    [ ! -d "tests/$room" ] || tests+=("tests/$room")
done

if [ $# = 0 ]; then
    set -- haswell zen skylake old
fi
for name in "$@"; do
    [ -n "${machines[$name]:-}" ] || { echo "unknown machine '$name'; known: ${!machines[*]}" >&2; exit 2; }
    if [ "$name" = skylake ] && ! grep -q avx512f /proc/cpuinfo; then
        echo "== $name: left out, this processor has no AVX-512"
        continue
    fi
    echo "== $name: ${machines[$name]}"
    # shellcheck disable=SC2086
    env ${machines[$name]} .venv/bin/python -m pytest -q -n auto --maxprocesses 4 "${tests[@]}"
done
