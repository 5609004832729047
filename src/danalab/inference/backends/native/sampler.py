"""Sampling without truncation, in C++."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from danalab.inference.backends.native.library import library
from danalab.inference.request import RequestState
from danalab.inference.sampling import uniform


class NativeSampler:
    """Draws the next tokens of `plain` sequences (`danalab.inference.request`); a row's token depends on it alone."""

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
