"""Validation: pure cross-entropy in nats a token, and bits per byte, over windows that never change.

    val/loss = sum of nats / targets         val/bpb = sum of nats on text / (ln 2 x bytes of the targets)

Specials (end of document) have no bytes and are left out of bits per byte, as in the literature. Regularisers never
enter. The windows do not depend on the micro-batch; sums are taken in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from danalab.models.loss import chunked_cross_entropy
from danalab.train.step import IGNORED


@dataclass(frozen=True)
class Evaluation:
    """The result of one pass."""

    loss: float
    """Cross-entropy [nats a token]."""
    bpb: float | None
    """Bits per byte; None where the bytes of the tokens are not known."""
    tokens: int
    """Targets that were predicted."""


class Evaluator:
    """Evaluates a model on the windows of a split."""

    def __init__(
        self,
        windows: Any,
        token_bytes: np.ndarray | None,
        *,
        batch_size: int,
        n_fixed: int,
        autocast: Callable[[], Any],
        device: torch.device,
    ):
        """Args:
        windows: `len(windows)` and `windows[i:j]` -> (inputs, targets), int64 [j - i, length].
        token_bytes: raw bytes of each id, 0 for specials; None: unknown.
        batch_size: sequences at a time; changes speed and memory, not the result.
        n_fixed: windows of the fixed set, evenly spread over the split; 0 or too many: all.
        """
        self._windows = windows
        self._bytes = None if token_bytes is None else torch.from_numpy(np.asarray(token_bytes))
        self._batch_size = batch_size
        self._autocast = autocast
        self._device = device
        total = len(windows)
        self.n_fixed = total if n_fixed == 0 else min(n_fixed, total)
        self.covers_all = self.n_fixed == total
        self._fixed = [i * total // self.n_fixed for i in range(self.n_fixed)]

    def fixed(self, model: nn.Module, should_stop: Callable[[], bool] = bool) -> Evaluation | None:
        """Evaluate on the fixed set; None where `should_stop` became true on the way."""
        if self.covers_all:
            return self.full(model, should_stop)
        return self._run(model, self.n_fixed, self._fixed_batch, should_stop)

    def full(self, model: nn.Module, should_stop: Callable[[], bool] = bool) -> Evaluation | None:
        """Evaluate on every window of the split."""
        return self._run(model, len(self._windows), lambda start, end: self._windows[start:end], should_stop)

    def _fixed_batch(self, start: int, end: int) -> tuple[Tensor, Tensor]:
        rows = [self._windows[i : i + 1] for i in self._fixed[start:end]]
        return torch.cat([inputs for inputs, _ in rows]), torch.cat([targets for _, targets in rows])

    @torch.no_grad()
    def _run(
        self,
        model: nn.Module,
        count: int,
        batch: Callable[[int, int], tuple[Tensor, Tensor]],
        should_stop: Callable[[], bool],
    ) -> Evaluation | None:
        was_training = model.training
        model.eval()
        try:
            text = torch.zeros((), dtype=torch.float64, device=self._device)
            other = torch.zeros((), dtype=torch.float64, device=self._device)
            tokens = n_bytes = 0
            for start in range(0, count, self._batch_size):
                if should_stop():
                    return None
                inputs, targets = batch(start, min(start + self._batch_size, count))
                tokens += int((targets != IGNORED).sum())
                special = torch.zeros_like(targets, dtype=torch.bool)
                if self._bytes is not None:
                    lengths = self._bytes[targets.clamp(min=0)].where(targets != IGNORED, 0)
                    n_bytes += int(lengths.sum())
                    special = (lengths == 0) & (targets != IGNORED)
                on_text, on_other = self._sums(model, inputs, targets, special)
                text += on_text
                other += on_other
        finally:
            model.train(was_training)
        nats, text_nats = float(text + other), float(text)
        bpb = text_nats / (math.log(2) * n_bytes) if n_bytes else None
        return Evaluation(nats / max(tokens, 1), bpb, tokens)

    def _sums(
        self, model: Any, inputs: Tensor, targets: Tensor, special_BL: Tensor
    ) -> tuple[Tensor | float, Tensor | float]:
        """(nats on text, nats on specials): the head runs twice only on the few positions of specials."""
        inputs, targets = inputs.to(self._device), targets.to(self._device)
        has_special = bool(special_BL.any())
        special = special_BL.to(self._device)
        with self._autocast():
            hidden = model.hidden(inputs)
            weight = model.head_weight
            on_text, _ = chunked_cross_entropy(hidden, weight, targets.masked_fill(special, IGNORED), valid_count=1.0)
            if not has_special:
                return on_text, 0.0
            on_other, _ = chunked_cross_entropy(hidden[special], weight, targets[special], valid_count=1.0)
        return on_text, on_other
