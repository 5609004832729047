"""The compiled kernels of each target that this CPU can run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from danalab.inference import native_decoding as decoder
from danalab.native_library import instruction_sets
from danalab.optim import kernels as optimizer

WIDE = "16-lanes"
"""The decoder's code for AVX-512, whose vectors the compiler splits for the CPU at hand."""
TARGETS = [*instruction_sets(), WIDE]


@contextmanager
def compiled_for(target: str) -> Iterator[None]:
    """Kernels for a target, in place of those for all instructions of the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        if target == WIDE:
            flags = ("-DDANALAB_LANES=16", "-Wno-psabi")
            patch.setattr(decoder, "LIBRARY", replace(decoder.LIBRARY, name="decode-wide", flags=flags))
        else:
            patch.setenv("DANALAB_TARGET", target)
        try:
            decoder.library.cache_clear(), optimizer.library.cache_clear()
            yield
        finally:
            decoder.library.cache_clear(), optimizer.library.cache_clear()
