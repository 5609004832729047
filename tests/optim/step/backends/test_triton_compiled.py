"""The Triton kernel as machine code of GPUs that are not here: no spills, and the bytes that the rule needs."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch

from danalab.optim.step.backends.kernel_library import KERNELS
from danalab_bench.gpu_roofline import GPUS, bound, compile_kernel, expected_bytes, line

pytest.importorskip("triton", reason="Triton is not installed: pip install 'danalab[triton]'")
MODULE = "danalab.optim.step.backends.triton_kernel"


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not interpreted; other tests find the module as it is on this machine."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    importlib.import_module(MODULE)


@pytest.mark.sample(3)
@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rule", KERNELS)
def test_the_kernel_spills_nothing_and_moves_the_bytes_of_its_rule_once(rule, dtype, gpu):
    kernel = compile_kernel(rule, GPUS[gpu].capability, dtype)
    assert kernel.spilled_bytes == 0
    assert (kernel.loaded, kernel.stored) == expected_bytes(rule, dtype)
    assert (kernel.loaded_masked, kernel.stored_masked) == expected_bytes(rule, dtype)
    assert kernel.scalar_loads < 40, "for a program of 1024 elements"
    found = bound(kernel, GPUS[gpu])
    assert found["bound_by"] == "memory", found["headroom"]
    assert 0.8 < found["share_of_bandwidth"] <= 1
    assert f"{found['bytes_per_parameter']:.0f} bytes/parameter" in line({"gpu": gpu, **vars(kernel), **found})


def test_adana_moves_seven_words_of_each_parameter_as_adamw_does():
    assert expected_bytes("adana", torch.float32) == (16, 12)
    assert expected_bytes("dana_star", torch.float32) == (20, 16)
