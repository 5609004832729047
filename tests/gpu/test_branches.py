"""Every place in the package where a GPU takes another way is run by a test of a GPU, which a CPU can run, too."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from _tooling.gpu_branches import TABLE, branches
from danalab_bench.gpu_check import SECTIONS

TESTS = Path(__file__).parents[1]


def test_every_branch_of_a_gpu_has_a_test_or_a_section_of_the_check():
    """After a change: `python docs/_tooling/gpu_branches.py` says how to fill the table."""
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    assert list(table) == [each.key for each in branches()]
    assert [key for key, names in table.items() if not names] == []


def test_the_tests_and_sections_that_are_named_exist():
    known = {f"gpu-check: {name}" for name in SECTIONS}
    for file in TESTS.rglob("*.py"):
        known |= set(re.findall(r"^ *def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE))
    named = {name for names in json.loads(TABLE.read_text(encoding="utf-8")).values() for name in names}
    assert sorted(named - known) == []


def test_a_new_branch_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from _tooling import gpu_branches

    (tmp_path / "new.py").write_text(
        "import torch\nKIND = {'cpu': 1, 'cuda': 2}\n\ndef f(x):\n"
        "    if x.is_cuda and x.ndim:\n        torch.cuda.synchronize()\n"
        "    y = x.to('cpu', non_blocking=x.is_cuda)\n    return 1 if x.device.type == 'cuda' else y\n"
    )
    monkeypatch.setattr(gpu_branches, "SOURCE", tmp_path)
    monkeypatch.setattr(gpu_branches, "ANNEXES", tmp_path / "annexes")
    assert [each.key for each in branches()] == [
        "new.py::: {'cpu': 1, 'cuda': 2}",
        "new.py::f: x.is_cuda and x.ndim",
        "new.py::f: torch.cuda.synchronize()",
        "new.py::f: x.is_cuda",
        "new.py::f: x.device.type == 'cuda'",
    ]
