"""The compiled library of step.cpp, and drawing tokens by it."""

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from danalab.inference.request import RequestState
from danalab.inference.sampling import uniform
from danalab.optim.step.backends import native_library
from danalab.optim.step.backends.native_library import NativeLibrary

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
    """The compiled step, built when it is not in the cache; UserError: no compiler, or its result cannot be loaded."""
    loaded = LIBRARY.load()
    loaded.step.argtypes, loaded.step.restype = (*[ctypes.c_void_p] * 3, ctypes.c_int), None
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    loaded.draw.argtypes = (pointer, *[count] * 3, *[pointer] * 4, ctypes.c_int)
    loaded.draw.restype = None
    loaded.sizes.argtypes, loaded.sizes.restype = (ctypes.c_void_p,), None
    return loaded


class NativeSampler:
    """Draws the next tokens of `plain` sequences (`RequestState`); a row's token depends on it alone."""

    def __init__(self, slots: int):
        self._library = library()
        self._temperatures, self._logprobs = np.zeros(slots, dtype=np.float32), np.zeros(slots, dtype=np.float32)
        self._points, self._tokens = np.zeros(slots, dtype=np.float64), np.zeros(slots, dtype=np.int32)
        arrays = self._temperatures, self._points, self._tokens, self._logprobs
        self._addresses = [array.ctypes.data for array in arrays]

    def __call__(self, logits_NV: Tensor, sequences: Sequence[RequestState]) -> tuple[list[int], list[float]]:
        """(tokens, log-probabilities) for rows of float32 logits; -1 and NaN where the logits are not finite."""
        count = len(sequences)
        tiny = torch.finfo(torch.float32).tiny
        for row, sequence in enumerate(sequences):
            temperature = sequence.parameters.temperature
            self._temperatures[row] = max(temperature, tiny) if temperature else 0.0
            if temperature:
                self._points[row] = uniform(sequence.seed, sequence.drawn)
        self._library.draw(
            logits_NV.data_ptr(), logits_NV.stride(0), logits_NV.shape[1], count, *self._addresses,
            torch.get_num_threads(),
        )  # fmt: skip
        return self._tokens[:count].tolist(), self._logprobs[:count].tolist()
