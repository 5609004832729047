"""Runs paths.py in a process that has a CUDA device made of nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(torch.version.cuda is not None, reason="torch was built with CUDA: tests/gpu is for a real device")
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_every_path_of_a_gpu_runs_on_fake_tensors(tmp_path):
    root, library = Path(torch.__file__).parent, tmp_path / "device.so"
    libraries = [f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{root / 'lib'}"]
    source = ["-std=c++20", "-shared", "-fPIC", f"-I{root / 'include'}", str(HERE / "device.cpp"), "-o", str(library)]
    subprocess.run(["g++", *source, *libraries], check=True)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", str(HERE / "paths.py")]
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    done = subprocess.run(command, env=environment, cwd=HERE.parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
