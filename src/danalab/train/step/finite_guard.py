"""What is not finite never reaches weights or moments.

The check itself is a tensor made with the step (`StepResult.finite`), honoured by the optimizer on its device. Here is
what follows from it on the host: on a CPU at once, on a GPU one step later, so that nothing waits for the device.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from danalab.files import write_json
from danalab.train.step.gradients import StepResult

log = logging.getLogger(__name__)

MOST_SKIPS_IN_A_ROW = 10


class NonFiniteError(ArithmeticError):
    """Training stopped at a loss or gradient that is not finite."""


@dataclass
class _Seen:
    step: int
    loss: Tensor
    grad_norm: Tensor
    finite: Tensor
    norms: Tensor
    scale: Tensor | None
    ready: Any = None


@dataclass
class FiniteGuard:
    """Reads the finite checks and acts by `mode`: "stop" or "skip"."""

    mode: str
    report: Path
    """Where to write what was seen."""
    describe: Callable[[int], dict[str, Any]]
    """Step -> what its batch was, for the report."""
    names: list[str]
    """Of the parameters that have gradients, in the optimizer's order."""
    writes: bool = True
    """Whether this rank is the one that writes and speaks; all ranks see and decide the same."""
    skipped: int = 0
    """Steps skipped in all; part of checkpoints."""
    in_a_row: int = 0
    _pending: _Seen | None = field(default=None, repr=False)

    def check(self, step: int, result: StepResult) -> None:
        """Look at a step's result; on a GPU at the previous one's.

        Raises:
            NonFiniteError: by mode "stop", or after 10 skips in a row.
        """
        seen = _Seen(step, result.loss, result.grad_norm, result.finite, result.norms, result.scale)
        if result.finite.is_cuda:
            seen.finite = result.finite.to("cpu", non_blocking=True)
            seen.ready = torch.cuda.Event()
            seen.ready.record()
            seen, self._pending = self._pending, seen
            if seen is None:
                return
            seen.ready.synchronize()
        self._act(seen)

    def settle(self) -> None:
        """Look at what is still outstanding; call before saving, so that nothing poisoned goes unnoticed."""
        seen, self._pending = self._pending, None
        if seen is not None:
            seen.ready.synchronize()
            self._act(seen)

    def _act(self, seen: _Seen) -> None:
        if bool(seen.finite):
            self.in_a_row = 0
            return
        loss, norm = float(seen.loss), float(seen.grad_norm)
        what = f"step {seen.step}: loss {loss}, gradient norm {norm}"
        if seen.scale is not None and float(seen.scale) > 1 and math.isfinite(loss):
            if self.writes:  # float16's way of finding its scale
                log.info("%s: beyond float16 at loss scale %g; step not made, scale halved", what, float(seen.scale))
            return
        if self.mode == "stop":
            self._write(seen, loss, norm)
            raise NonFiniteError(f"{what}: not finite; the update was not made. What was seen: {self.report}")
        self.skipped += 1
        self.in_a_row += 1
        if self.in_a_row >= MOST_SKIPS_IN_A_ROW:
            self._write(seen, loss, norm)
            raise NonFiniteError(
                f"{what}: not finite for the {self.in_a_row}th step in a row; giving up. What was seen: {self.report}"
            )
        if self.writes:
            log.warning("%s: not finite; step skipped (%d in all, %d in a row)", what, self.skipped, self.in_a_row)

    def _write(self, seen: _Seen, loss: float, norm: float) -> None:
        if not self.writes:
            return
        finite = torch.isfinite(seen.norms).tolist()
        found = {
            "step": seen.step,
            "loss": str(loss),
            "grad_norm": str(norm),
            "parameters": [name for name, ok in zip(self.names, finite, strict=True) if not ok],
            **self.describe(seen.step),
        }
        write_json(self.report, found)
