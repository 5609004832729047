"""The compiled library of step.cpp."""

import ctypes
import functools
from pathlib import Path

from danalab.optim.backends import native_library
from danalab.optim.backends.native_library import NativeLibrary

_FOLDER = Path(__file__).parent
_THREADS = Path(native_library.__file__).with_name("threads.h")

LIBRARY = NativeLibrary(
    name="decode",
    purpose="the decoding kernels",
    setting="the native back end",
    instead='backend="eager"',
    sources=(_FOLDER / "step.cpp", *sorted(_FOLDER.glob("*.h")), _THREADS),
)


@functools.cache
def library() -> ctypes.CDLL:
    """The compiled step, built when it is not in the cache.

    Raises:
        UserError: there is no compiler, it fails, or its result cannot be kept or loaded.
    """
    loaded = LIBRARY.load()
    loaded.step.argtypes, loaded.step.restype = (*[ctypes.c_void_p] * 3, ctypes.c_int), None
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    loaded.draw.argtypes = (pointer, *[count] * 3, *[pointer] * 4, ctypes.c_int)
    loaded.draw.restype = None
    loaded.sizes.argtypes, loaded.sizes.restype = (ctypes.c_void_p,), None
    return loaded
