"""The kernels on processors that this machine is not."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from danalab.inference.native_decoding import LIBRARY as DECODER
from danalab.native_library import FLAGS, OWN_THREADS, compiler, instruction_sets
from danalab.optim.kernels import LIBRARY as OPTIMIZER

TESTS = Path(__file__).parents[1]
DRIVER = "inference/kernels_driver.cpp"
LIBRARIES = (DECODER, OPTIMIZER)
CXX = [*(flag for flag in FLAGS if flag != "-shared"), *OWN_THREADS]
CXX += [f"-I{folder}" for folder in {path.parent for library in LIBRARIES for path in library.sources}]


def build(target: list[str], tmp_path: Path) -> Path:
    path = tmp_path / "driver"
    subprocess.run([*target, *CXX, str(TESTS / DRIVER), "-o", str(path)], check=True)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", instruction_sets())
def test_the_drivers_checks_hold_here(name: str, tmp_path: Path):
    path = build([compiler() or "c++", f"-march={name}"], tmp_path)
    subprocess.run([path], check=True)


@pytest.mark.slow
def test_the_drivers_checks_hold_on_arm(tmp_path: Path):
    cxx, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
    if cxx is None or emulator is None:
        pytest.skip(
            "needs aarch64-linux-gnu-g++ and qemu-aarch64 (apt install g++-aarch64-linux-gnu qemu-user)"
        )
    subprocess.run([emulator, build([cxx, "-static"], tmp_path)], check=True)


@pytest.mark.slow
def test_the_kernels_compile_for_avx512(tmp_path: Path):
    for library in LIBRARIES:
        command = [compiler() or "c++", *CXX, "-march=x86-64-v4", "-c", str(library.sources[0])]
        subprocess.run([*command, "-o", str(tmp_path / "object")], check=True)
