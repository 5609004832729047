"""What the kernels are compiled for, and with which compilers."""

from __future__ import annotations

import platform
import re

import pytest
import torch

from danalab import native_library
from danalab.errors import UserError
from danalab.optim import DanaStarMK4
from danalab.optim.step.backends import kernel_library
from optim.step.backends.test_fused import params
from targets import TARGETS, WIDE, compiled_for


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("x86-64-v7", r"unknown DANALAB_TARGET 'x86-64-v7' \(did you mean 'x86-64-v4'\?\); known: native, x86-64-v2"),
        ("x86-64-v3", "DANALAB_TARGET=x86-64-v3: this CPU does not have its instructions; use native or x86-64-v2$"),
    ],
)
def test_a_target_that_cannot_be_used_is_one_line(target, message, monkeypatch):
    monkeypatch.setenv("DANALAB_TARGET", target)
    monkeypatch.setattr(native_library, "instruction_sets", lambda: ["x86-64-v2"])
    with pytest.raises(UserError, match=message) as caught:
        kernel_library.LIBRARY.load()
    assert "\n" not in str(caught.value)


def test_the_target_is_part_of_the_name(monkeypatch):
    monkeypatch.delenv("DANALAB_TARGET", raising=False)
    assert kernel_library.LIBRARY.path().name.startswith("optim-native-")
    for target in native_library.instruction_sets():
        monkeypatch.setenv("DANALAB_TARGET", target)
        assert kernel_library.LIBRARY.path().name.startswith(f"optim-{target}-")


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="looks for x86's instruction")
def test_the_kernels_request_what_later_blocks_read():
    """GCC drops a request without a word where it takes the function for one without effect."""
    kernel_library.library()
    code = kernel_library.LIBRARY.path().read_bytes()
    requests = [place for place in re.finditer(rb"\x0f\x18.", code, re.DOTALL) if place[0][2] >> 3 & 7 == 1]
    assert len(requests) > 100


def steps(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        made = params([(301, 257), (5,)])
        optimizer = DanaStarMK4(made, lr=0.1, fused=True)
        for _ in range(2):
            optimizer.step()
    finally:
        torch.set_num_threads(before)
    return torch.cat([p.detach().flatten() for p in made])


@pytest.mark.slow
def test_a_compiler_without_openmp_makes_kernels_with_threads_of_their_own(monkeypatch, tmp_path):
    want = steps(threads=1)
    limited = tmp_path / "c++"
    limited.write_text(
        '#!/bin/sh\nfor flag; do [ "$flag" != -fopenmp ] || { echo "error: no OpenMP" >&2; exit 1; }; done\n'
        f'exec {native_library.compiler()} "$@"\n'
    )
    limited.chmod(0o755)
    monkeypatch.setenv("CXX", str(limited))
    monkeypatch.setenv("DANALAB_CACHE", str(tmp_path / "cache"))
    kernel_library.library.cache_clear()
    try:
        assert torch.equal(steps(threads=3), want)
    finally:
        kernel_library.library.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("target", [target for target in TARGETS if target != WIDE])
def test_kernels_of_every_target_agree_with_the_equations_and_with_themselves(target):
    with compiled_for(target):
        found = steps(threads=1)
        assert torch.equal(steps(threads=2), found)
    want = steps(threads=1)
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-6)
