"""Steps whose loss or gradient is not finite are not made, and weights that are not finite are not saved."""

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
class FiniteGuard:
    """Reads the finite checks and acts by `mode`: "stop" or "skip". All ranks read the same and decide the same."""

    mode: str
    report: Path
    """File that describes the step that ended the run."""
    describe: Callable[[int], dict[str, Any]]
    """Number of a step -> description of its batch, for the report."""
    parameters: dict[str, Tensor]
    """Those of the optimizer by name, in its order."""
    world: World = field(default_factory=World)
    skipped: int = 0
    """Skipped steps in total; part of checkpoints."""
    in_a_row: int = 0

    def allows(self, step: int, result: StepResult) -> bool:
        """Whether a step's update is made.

        NonFiniteError: by mode "stop", after 10 skips in a row, or where the weights themselves are not finite.
        """
        if result.empty:
            return False
        if result.finite:
            self.in_a_row = 0
            return True
        loss, norm = float(result.loss), float(result.grad_norm)
        what = f"step {step}: loss {loss}, gradient norm {norm}"
        if result.scale is not None and result.scale > 1 and math.isfinite(loss):
            if self.world.is_main:  # float16 looks for its scale
                log.info("%s: float16 overflow at scale %g; step skipped, scale halved", what, result.scale)
            return False
        norms = zip(self.parameters, torch.isfinite(result.norms).tolist(), strict=True)
        report = {
            "step": step,
            "loss": str(loss),
            "grad_norm": str(norm),
            "parameters": [name for name, is_finite in norms if not is_finite],
            **self.describe(step),
        }
        if self.mode == "stop":
            self._write(report)
            raise NonFiniteError(f"{what}: not finite; the update was not made. Report: {self.report}")
        self.check_weights(step)  # skipping would not help
        self.skipped += 1
        self.in_a_row += 1
        if self.in_a_row >= MAX_SKIPS_IN_A_ROW:
            self._write(report)
            raise NonFiniteError(
                f"{what}: not finite for the {self.in_a_row}th step in a row; report: {self.report}"
            )
        if self.world.is_main:
            log.warning(
                "%s: not finite; step skipped (%d in all, %d in a row)", what, self.skipped, self.in_a_row
            )
        return False

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

    def _write(self, report: dict[str, Any]) -> None:
        if self.world.is_main:
            write_json(self.report, report)
