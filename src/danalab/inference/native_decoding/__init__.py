"""The native back end: one C++ call computes a step, for every architecture, on the CPU.

A row's result depends on its own sequence only, bit by bit (step.cpp): this back end is batch invariant at no cost.
"""

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from danalab import native_library
from danalab.errors import UserError, nearest
from danalab.inference.native_decoding.layout import KINDS, STRUCTS, BatchStruct, NativeWeights
from danalab.inference.request import RequestState
from danalab.inference.sampling import DrawnTokens, uniform
from danalab.inference.scheduler import BlockPool, Chunk
from danalab.models.decoder import Decoder
from danalab.native_library import NativeLibrary

_FOLDER = Path(__file__).parent
_SHARED = [Path(native_library.__file__).with_name(name) for name in ("threads.h", "vectors.h")]

LIBRARY = NativeLibrary(
    name="decode",
    purpose="the decoding kernels",
    setting="the native back end",
    instead='backend="eager"',
    sources=(_FOLDER / "step.cpp", *sorted(_FOLDER.glob("*.h")), *_SHARED),
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
        self._temperatures, self._logprobs = (np.zeros(slots, dtype=np.float32) for _ in range(2))
        self._points, self._tokens = np.zeros(slots, dtype=np.float64), np.zeros(slots, dtype=np.int32)
        arrays = self._temperatures, self._points, self._tokens, self._logprobs
        self._addresses = [array.ctypes.data for array in arrays]

    def __call__(self, logits_NV: Tensor, sequences: Sequence[RequestState]) -> DrawnTokens:
        """Tokens for rows of float32 logits; -1 and NaN where the logits are not finite."""
        count = len(sequences)
        tiny = torch.finfo(torch.float32).tiny
        for row, sequence in enumerate(sequences):
            temperature = sequence.parameters.temperature
            self._temperatures[row] = max(temperature, tiny) if temperature else 0.0
            if temperature:
                self._points[row] = uniform(sequence.seed, sequence.drawn)
        self._library.draw(
            logits_NV.data_ptr(),
            logits_NV.stride(0),
            logits_NV.shape[1],
            count,
            *self._addresses,
            torch.get_num_threads(),
        )
        return DrawnTokens(self._tokens[:count].tolist(), self._logprobs[:count].tolist(), [()] * count)


PRODUCTS_PER_THREAD = 500_000
"""Multiply-adds of a step that are worth one more thread."""


class NativeBackend:
    """Computes steps of one model on the CPU, of up to `rows` tokens of `slots` sequences; UserError: it cannot here.

    `weight_dtype`: of the copies of matrices.
    """

    def __init__(
        self, model: Decoder, pool: BlockPool | None, slots: int, rows: int, weight_dtype: str | None
    ):
        if weight_dtype is not None and weight_dtype not in KINDS:
            hint = nearest(weight_dtype, KINDS)
            raise UserError(f"unknown weight_dtype '{weight_dtype}'{hint}; known: {', '.join(KINDS)}")
        obstacle = why_not(model)
        if obstacle is not None:
            raise UserError(f"the native back end needs {obstacle}")
        self._library = library()
        sizes = (ctypes.c_int64 * (len(STRUCTS) + 2))()
        self._library.sizes(sizes)
        assert sizes[:-2] == [ctypes.sizeof(each) for each in STRUCTS], "layout.py and model.h differ"
        self._panel, self._lanes = sizes[-2:]  # outputs of a panel, floats of a vector
        self.sampler = NativeSampler(slots)
        self._model, self._pool, self._slots, self._rows = model, pool, slots, rows
        self._dtype = weight_dtype or str(model.head_weight.dtype).removeprefix("torch.")
        self.reuses = pool is not None and not model.config.linear_attention
        self.reload()
        width = 1 if pool is None else pool.blocks_for(model.config.seq_len)
        self._arrays = {
            name: np.zeros(rows, dtype=np.int32) for name in ("tokens", "positions", "sequence_of")
        }
        self._arrays |= {name: np.zeros(slots + 1, dtype=np.int32) for name in ("first", "slots", "outputs")}
        self._tables = np.zeros((slots, width), dtype=np.int32)
        self._known: list[tuple[list[int], int]] = [
            ([], 0)
        ] * slots  # blocks in the table's row, and how many
        self._logits = torch.empty(slots, self._layout.vocab_width)
        self._batch = BatchStruct(
            **{name: array.ctypes.data for name, array in self._arrays.items()},
            tables=self._tables.ctypes.data,
            table_width=width,
            logits=self._logits.data_ptr(),
        )

    def reload(self) -> None:
        """Copy the model's present weights."""
        sizes = self._dtype, self._slots, self._rows
        with torch.no_grad():
            self._layout = NativeWeights(self._panel, self._lanes, self._model, self._pool, *sizes)

    def run(self, chunks: Sequence[Chunk]) -> tuple[Tensor, list[RequestState]]:
        """Compute the chunks; returns logits [N, V] and the sequences whose next token they give."""
        tokens, positions, owners = list[int](), list[int](), list[int]()
        first, outputs, ready = [0], [], []
        for number, (sequence, length) in enumerate(chunks):
            start = sequence.computed
            end = start + length
            tokens += sequence.tokens[start:end]
            positions += range(start, end)
            owners += [number] * length
            first.append(len(tokens))
            if end == len(sequence.tokens):
                outputs.append(first[-1] - 1)
                ready.append(sequence)
            known, count = self._known[sequence.slot]
            blocks = sequence.blocks
            if known is not blocks:
                count = 0
            if count < len(blocks):
                self._tables[sequence.slot, count : len(blocks)] = blocks[count:]
                self._known[sequence.slot] = (blocks, len(blocks))
        arrays, rows, n = self._arrays, len(tokens), len(chunks)
        slots = [chunk.sequence.slot for chunk in chunks]
        values = {
            "tokens": tokens,
            "positions": positions,
            "sequence_of": owners,
            "first": first,
            "slots": slots,
            "outputs": outputs,
        }
        for name, value in values.items():
            arrays[name][: len(value)] = value
        batch = self._batch
        batch.rows, batch.sequences, batch.n_outputs = rows, n, len(outputs)
        layout = self._layout
        self._library.step(
            ctypes.addressof(layout.model),
            ctypes.addressof(batch),
            ctypes.addressof(layout.buffers),
            min(torch.get_num_threads(), 1 + rows * layout.products // PRODUCTS_PER_THREAD),
        )
        return self._logits[: len(outputs), : self._model.config.vocab_size], ready


def why_not(model: Decoder) -> str | None:
    """What a model lacks for this back end; None: nothing."""
    weight = model.head_weight
    if weight.device.type != "cpu":
        return f"a model on the CPU: this one is on {weight.device}"
    if weight.dtype not in (torch.float32, torch.bfloat16):
        return f"float32 or bfloat16 weights: got {str(weight.dtype).removeprefix('torch.')}"
    if any(type(parameter) is not torch.nn.Parameter for parameter in model.parameters()):
        return "a whole model: the parameters of this one are sharded"
    return None
