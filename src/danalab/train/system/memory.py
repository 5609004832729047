"""Memory of the process: allocator settings, the peak, garbage collection."""

import ctypes
import gc
import platform
import resource
import sys

import torch


def tune_malloc() -> bool:
    """Make glibc keep freed memory; returns whether it does.

    By default each buffer of the size of the logits goes back to the kernel and is paged in again, which takes up to
    half of the time with large vocabularies.
    """
    if not sys.platform.startswith("linux") or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL("libc.so.6").mallopt
    trim_threshold, top_pad, mmap_max, arena_max = -1, -2, -4, -8
    settings = {mmap_max: 0, trim_threshold: 2**31 - 1, top_pad: 256 << 20, arena_max: 1}
    return all(mallopt(option, value) for option, value in settings.items())


def peak_memory_gib(device: torch.device) -> float:
    """Peak memory so far [GiB]: allocated on a GPU, resident for a CPU process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)


class GarbageCollector:
    """Runs Python's garbage collector every `interval` steps only, so that ranks do not delay each other."""

    def __init__(self, interval: int):
        """`interval` [steps]; 0: Python's default."""
        self._interval = interval

    def __enter__(self) -> "GarbageCollector":
        self._was_enabled = gc.isenabled()
        if self._interval:
            gc.disable()
        return self

    def after_step(self, step: int) -> None:
        if self._interval and step % self._interval == 0:
            gc.collect()

    def __exit__(self, *_: object) -> None:
        if self._interval and self._was_enabled:
            gc.enable()
