"""The Triton kernel as machine code of GPUs that are not here: Triton needs no device to compile."""

from __future__ import annotations

import importlib
import re
import sys

import pytest
import torch

from danalab.optim.step.backends.kernel_library import KERNELS

triton = pytest.importorskip("triton", reason="Triton is not installed: pip install 'danalab[triton]'")
MODULE = "danalab.optim.step.backends.triton_kernel"
POINTERS = {"addresses": "*i64", "numbers": "*i64", "owners": "*i32", "scalars": "*fp32", "skip": "*i1"}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("rule", KERNELS)
def test_the_kernel_compiles_with_loads_and_stores_of_16_bytes(rule, capability, dtype, monkeypatch):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    module = importlib.import_module(MODULE)
    names, dtypes = module.update.arg_names, module.DTYPES
    values = {
        "RULE": rule, "CLIP": rule in ("adana", "dana_star"), "CAUTIOUS": True, "SKIPS": True, "ALIGNED": True,
        "PARAMETER": dtypes[dtype], "STATE": dtypes[torch.float32], "BLOCK": module.BLOCK,
    }  # fmt: skip
    kinds = {**POINTERS, "count": "i32", "columns": "i32"}
    source = ASTSource(
        fn=module.update,
        signature={name: kinds.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in values.items()},
    )
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": module.WARPS})
    moments = {"dana": 1, "sign_dana": 1, "dana_star": 3, "ademamix": 3}.get(rule, 2)
    for kind, least in (("ld", 2 + moments), ("st", 1 + moments)):
        assert len(re.findall(rf"{kind}\.global[.\w:]*\.v[24]", made.asm["ptx"])) >= least
    assert made.asm["cubin"]
