"""Steps whose loss or gradient is not finite are not made, and weights that are not finite are not saved.

The finite check of a step is a tensor (`StepResult.finite`) that the optimizer reads on its device. The host reads it
at once on a CPU; on a GPU one step later, so that nothing waits for the device.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from danalab.files import write_json
from danalab.models.shards import local_shard as local
from danalab.train.parallel.world import World
from danalab.train.step.gradients import StepResult

log = logging.getLogger(__name__)

MAX_SKIPS_IN_A_ROW = 10


class NonFiniteError(ArithmeticError):
    """Training stopped at a loss, gradient or weight that is not finite."""


@dataclass
class _Seen:
    step: int
    result: StepResult
    finite: Tensor
    ready: Any = None


@dataclass
class FiniteGuard:
    """Reads the finite checks and acts by `mode`: "stop" or "skip". All ranks read the same and decide the same."""

    mode: str
    report: Path
    """File that describes the step that ended the run."""
    describe: Callable[[int], dict[str, Any]]
    """Number of a step -> description of its batch, for the report."""
    parameters: dict[str, Tensor]
    """Those of the optimizer by name, in its order."""
    world: World = field(default_factory=World.single)
    skipped: int = 0
    """Skipped steps in total; part of checkpoints."""
    in_a_row: int = 0
    _pending: _Seen | None = field(default=None, repr=False)

    def check(self, step: int, result: StepResult, *, wait: bool = False) -> list[tuple[int, bool]]:
        """Read a step's check; on a GPU the previous step's, and with `wait` this step's too.

        Returns (step, whether its update is made) of each check that was read. NonFiniteError: by mode "stop", after 10
        skips in a row, or where the weights themselves are not finite.
        """
        if result.empty:
            return [*self.settle(), (step, False)]
        if not result.finite.is_cuda:
            return [(step, self._act(_Seen(step, result, result.finite)))]
        checks = self.settle()
        self._pending = _Seen(step, result, result.finite.to("cpu", non_blocking=True), torch.cuda.Event())
        self._pending.ready.record()
        return checks + (self.settle() if wait else [])

    def settle(self) -> list[tuple[int, bool]]:
        """Read a check that is still outstanding; see `check`."""
        seen, self._pending = self._pending, None
        if seen is None:
            return []
        seen.ready.synchronize()
        return [(seen.step, self._act(seen))]

    def check_weights(self, step: int) -> None:
        """Refuse weights that are not finite, before they are saved; NonFiniteError names them. Collective."""
        names, values = list(self.parameters), [local(p.detach()) for p in self.parameters.values()]
        largest = torch._foreach_norm([v if v.numel() else v.new_zeros(1) for v in values], float("inf"))
        bad = [
            name
            for name, ok in zip(names, torch.isfinite(torch.stack(largest)).tolist(), strict=True)
            if not ok
        ]
        if not self.world.agree(int(bool(bad))):
            return
        self._write({"step": step, "parameters": bad})
        where = f": {bad[0]}" + (f" and {len(bad) - 1} more" if len(bad) > 1 else "") if bad else ""
        raise NonFiniteError(
            f"step {step}: weights are not finite{where}; they are not saved. A lower --lr may help; the run resumes "
            f"from its last checkpoint. Report: {self.report}"
        )

    def _act(self, seen: _Seen) -> bool:
        """Whether the update is made."""
        if bool(seen.finite):
            self.in_a_row = 0
            return True
        result = seen.result
        loss, norm = float(result.loss), float(result.grad_norm)
        what = f"step {seen.step}: loss {loss}, gradient norm {norm}"
        if result.scale is not None and float(result.scale) > 1 and math.isfinite(loss):
            if self.world.is_main:  # float16 looks for its scale
                log.info(
                    "%s: beyond float16 at loss scale %g; step not made, scale halved",
                    what,
                    float(result.scale),
                )
            return False
        bad = [
            name
            for name, ok in zip(self.parameters, torch.isfinite(result.norms).tolist(), strict=True)
            if not ok
        ]
        report = {"step": seen.step, "loss": str(loss), "grad_norm": str(norm), "parameters": bad}
        if self.mode == "stop":
            self._write({**report, **self.describe(seen.step)})
            raise NonFiniteError(f"{what}: not finite; the update was not made. Report: {self.report}")
        self.check_weights(seen.step)  # skipping would not help
        self.skipped += 1
        self.in_a_row += 1
        if self.in_a_row >= MAX_SKIPS_IN_A_ROW:
            self._write({**report, **self.describe(seen.step)})
            raise NonFiniteError(
                f"{what}: not finite for the {self.in_a_row}th step in a row; report: {self.report}"
            )
        if self.world.is_main:
            log.warning(
                "%s: not finite; step skipped (%d in all, %d in a row)", what, self.skipped, self.in_a_row
            )
        return False

    def _write(self, report: dict[str, Any]) -> None:
        if self.world.is_main:
            write_json(self.report, report)
