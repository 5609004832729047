"""The library of kernels.cpp, loaded through ctypes."""

import ctypes
import functools
from pathlib import Path

from danalab.native_library import NativeLibrary

_FOLDER = Path(__file__).parent

LIBRARY = NativeLibrary(
    name="optim",
    purpose="the fused optimizer kernels",
    setting="fused=True",
    instead="fused=False",
    sources=tuple(_FOLDER / name for name in ("kernels.cpp", "kernels_formats.h", "kernels_star.h")),
)

KERNELS = ("adana", "dana_star", "adamw_decaying_wd", "ademamix", "dana", "sign_dana", "auto_dana")
"""Rules that have a kernel; the functions of kernels.cpp have the same names."""


@functools.cache
def library() -> ctypes.CDLL:
    """The compiled kernels, built when they are not in the cache; UserError: as `NativeLibrary.load`."""
    loaded = LIBRARY.load()
    for rule in KERNELS:
        function = getattr(loaded, rule)
        function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int), None
    loaded.advance.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
    loaded.advance.restype = ctypes.c_int
    return loaded
