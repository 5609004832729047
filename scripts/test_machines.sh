#!/usr/bin/env bash
# The tests that compute, as on other processors: `make test-machines`. Each line chooses the kernels that numpy's and
# torch's libraries would take there. The machine must have the instructions itself. Nehalem is qemu's (Debian's package
# qemu-user), a processor without AVX: what a process computes there itself, against the reference.
#   scripts/test_machines.sh [NAME ...]    # haswell zen skylake old nehalem; all by default
set -euo pipefail
cd "$(dirname "$0")/.."

declare -A machines=(
    [haswell]="OPENBLAS_CORETYPE=Haswell ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_CBWR=AVX2 OMP_NUM_THREADS=1"
    [zen]="OPENBLAS_CORETYPE=Zen ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 OMP_NUM_THREADS=2"
    [skylake]="OPENBLAS_CORETYPE=SkylakeX OMP_NUM_THREADS=2"
    [old]="OPENBLAS_CORETYPE=Prescott ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE OMP_NUM_THREADS=1"
    [nehalem]="DANALAB_TARGET=x86-64-v2 OMP_NUM_THREADS=1"
)
golden=(tests/optim/test_golden.py tests/optim/test_muon_golden.py tests/optim/test_newton_schulz.py)
tests=()
for room in optim models theory inference distributed; do
    [ ! -d "tests/$room" ] || tests+=("tests/$room")
done

if [ $# = 0 ]; then
    set -- haswell zen skylake old nehalem
fi
for name in "$@"; do
    [ -n "${machines[$name]:-}" ] || { echo "unknown machine '$name'; known: ${!machines[*]}" >&2; exit 2; }
    if [ "$name" = skylake ] && ! grep -q avx512f /proc/cpuinfo; then
        echo "== $name: left out, this processor has no AVX-512"
        continue
    fi
    echo "== $name: ${machines[$name]}"
    # shellcheck disable=SC2086
    if [ "$name" != nehalem ]; then
        env ${machines[$name]} .venv/bin/python -m pytest -q -n auto --maxprocesses 4 "${tests[@]}"
    elif command -v qemu-x86_64 >/dev/null; then  # -n 0: a worker would be a process beside qemu
        env ${machines[$name]} qemu-x86_64 -cpu Nehalem .venv/bin/python -m pytest -q -n 0 --timeout 1000 "${golden[@]}"
    else
        echo "left out, there is no qemu-x86_64"
    fi
done
