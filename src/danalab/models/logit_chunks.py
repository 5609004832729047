"""Logits of a large vocabulary, chunk by chunk of rows, and what the loss computes from those of a chunk.

Shapes: R rows, C rows of a chunk, D model dimension, V vocabulary.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from danalab.models.parallel.vocabulary import VocabularyShard

# Rows of a chunk, bounded by its logits. CPU: large enough for efficient matrix products, small enough for the passes
# between them to stay in cache where the vocabulary allows it. Accelerators: matrix products must be large.
_CPU_ROWS, _CPU_ENTRIES = 256, 1 << 24
_ACCELERATOR_ENTRIES = 1 << 26


def exponentials_of(
    logits_CV: Tensor, targets_C: Tensor, shard: VocabularyShard | None, ce_C: Tensor, lse_C: Tensor
) -> tuple[Tensor, Tensor]:
    """(exp(logits - their row's maximum), made in place, and its row sums [C]) over the whole vocabulary.

    Writes the rows' cross-entropy and logsumexp.
    """
    picked = target_logits(logits_CV, targets_C, shard)
    highest = logits_CV.amax(-1)
    if shard is not None:
        shard.highest(highest)
    exponentials = logits_CV.sub_(highest.unsqueeze(1)).exp_()
    total = exponentials.sum(-1)
    if shard is not None:
        total, picked = shard.add(torch.stack((total, picked)))
    torch.add(highest, total.log(), out=lse_C)
    torch.sub(lse_C, picked, out=ce_C)
    return exponentials, total


def accumulate(total_VD: Tensor, grad_CV: Tensor, h_CD: Tensor) -> None:
    if grad_CV.dtype == total_VD.dtype:
        total_VD.addmm_(grad_CV.T, h_CD)
    else:
        total_VD.add_(grad_CV.T @ h_CD)


def empty_results(rows: Tensor) -> tuple[Tensor, Tensor]:
    dtype = torch.float64 if rows.dtype == torch.float64 else torch.float32
    ce = torch.empty(rows.shape[0], dtype=dtype, device=rows.device)
    return ce, torch.empty_like(ce)


def target_logits(logits_CV: Tensor, targets_C: Tensor, shard: VocabularyShard | None) -> Tensor:
    """The targets' logits; with a sharded head, 0 for those of other ranks."""
    if shard is None:
        return logits_CV.gather(1, targets_C.unsqueeze(1)).squeeze(1)
    targets_C, own = shard.local(targets_C)
    return logits_CV.gather(1, targets_C.unsqueeze(1)).squeeze(1).where(own, 0)


def at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def logit_chunks(rows: Tensor, weight: Tensor, shard: VocabularyShard | None) -> Iterator[tuple[slice, Tensor]]:
    """Yield (slice of rows, their logits [C, V] in float32 or more, which may be overwritten)."""
    buffer = None
    # Ranks with shards of the head must use the same chunks, also if the last shard is shorter.
    for chunk in _chunks(rows, weight.shape[0] if shard is None else shard.widest):
        h = rows[chunk]
        # One buffer for all chunks, without an allocation for each.
        buffer = torch.mm(h, weight.T) if buffer is None else torch.mm(h, weight.T, out=buffer[: h.shape[0]])
        yield chunk, at_least_float32(buffer)


def _chunks(rows: Tensor, vocab_size: int) -> list[slice]:
    if rows.device.type == "cpu":
        size = min(_CPU_ENTRIES // vocab_size, max(_CPU_ROWS, _CPU_ROWS * 4096 // vocab_size))
    else:
        size = _ACCELERATOR_ENTRIES // vocab_size
    size = max(size, 1)
    return [slice(start, start + size) for start in range(0, rows.shape[0], size)]
