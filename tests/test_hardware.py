"""Cores that a process may use: affinity, quotas of cgroups, and the threads that follow from them."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from danalab import hardware


@pytest.mark.parametrize(
    ("membership", "files", "cores"),
    [
        ("0::/\n", {}, math.inf),
        ("0::/\n", {"cpu.max": "max 100000\n"}, math.inf),
        ("0::/\n", {"cpu.max": "250000 100000\n"}, 2.5),
        ("0::/a/b\n", {"a/cpu.max": "100000 100000\n", "a/b/cpu.max": "300000 100000\n"}, 1),
        ("0::/host/path/of/a/container\n", {"cpu.max": "400000 100000\n"}, 4),
        ("0::/../../x\n", {"cpu.max": "400000 100000\n"}, 4),
        ("4:memory:/m\n3:cpu,cpuacct:/j\n0::/\n",
         {"cpu,cpuacct/j/cpu.cfs_quota_us": "600000\n", "cpu,cpuacct/j/cpu.cfs_period_us": "100000\n"}, 6),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, math.inf),
        ("0::/\n", {"cpu.max": "damaged\n"}, math.inf),
    ],
)  # fmt: skip
def test_the_smallest_quota_above_a_process_counts(tmp_path, membership, files, cores):
    (tmp_path / "cgroup").write_text(membership)
    for name, text in files.items():
        file = tmp_path / "fs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert min(hardware._quotas(tmp_path / "cgroup", tmp_path / "fs"), default=math.inf) == cores
    assert hardware._quotas(tmp_path / "absent", tmp_path / "fs") == []


@pytest.mark.parametrize(("quota", "cores"), [(8.0, 8), (0.5, 1), (2.5, 2), (100.0, 8)])
def test_cores_are_those_of_affinity_and_quota_at_least_one(monkeypatch, quota, cores):
    monkeypatch.setattr(hardware, "_allowed_cores", lambda: 8)
    monkeypatch.setattr(hardware, "_quotas", lambda groups, root: [30.0, quota])
    assert hardware.available_cores() == cores


def test_a_quota_limits_threads_unless_the_user_chose_them(monkeypatch):
    monkeypatch.setattr(hardware, "_allowed_cores", lambda: 8)
    monkeypatch.setattr(hardware, "available_cores", lambda: 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    hardware.limit_threads()
    assert (os.environ["OMP_NUM_THREADS"], hardware.chosen_threads()) == ("5", "5")
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setenv("DANALAB_THREADS", "")
    hardware.limit_threads()
    assert (os.environ["OMP_NUM_THREADS"], hardware.chosen_threads()) == ("2", None)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_affinity_counts_wherever_cores_are_counted():
    script = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n" \
             "from danalab.hardware import available_cores; print(available_cores())"  # fmt: skip
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
        == "1\n"
    )
    source = Path(hardware.__file__).parents[1]
    users = [file for file in source.rglob("*.py") if "cpu_count" in file.read_text("utf-8")]
    assert users == [Path(hardware.__file__)]
