"""Signal-to-noise ratio of the momentum of each parameter, and how often it is clipped.

For the Dana family, whose step has a damped momentum A = T^(1-kappa) |m|/r, clipped to `clipsnr` by some.
"""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from danalab.optim import optimizer_spec
from danalab.optim.core.stats import signal_sums
from danalab.train.callbacks.base import CallbackContext, RowsCallback
from danalab.train.parallel.strategy import ParallelStrategy

FILE = "signal.jsonl"
STATES = ("exp_avg", "exp_avg_sq", "tau")
MEANS = ("snr", "damped", "clipped", "tau", "kappa", "effective_time")


class SignalToNoise(RowsCallback):
    """Writes `signal.jsonl`, a row each logged step: `{"step": ..., "PARAMETER/snr": ..., "PARAMETER/clipped": ...}`.

    Means over a parameter's coordinates, of the state after the step: those of `optim.core.stats.collect` that the
    optimizer has. Takes a pass over the state in logged steps.
    """

    name = "signal"

    def __init__(
        self,
        file: Path,
        named_parameters: Iterable[tuple[str, Tensor]],
        optimizer: Any,
        strategy: ParallelStrategy,
        *,
        writes: bool = True,
    ):
        """Args:
        optimizer: of the Dana family.
        strategy: gathers the optimizer's state.
        """
        super().__init__(file, writes=writes)
        self._names = {id(p): name for name, p in named_parameters}
        self._optimizer, self._whole_states = optimizer, partial(strategy.whole_states, optimizer)
        self._states = [name for name in STATES if next(self._whole_states(name), None) is not None]

    @classmethod
    def build(cls, context: CallbackContext) -> "SignalToNoise | None":
        """For log-time optimizers that keep the second moment, without which there is no such ratio."""
        if not optimizer_spec(context.spec.plan.opt).log_time:
            return None
        context.require_float32_moments("--log-dynamics")
        named, writes = context.model.named_parameters(), context.writes
        made = cls(context.folder / FILE, named, context.optimizer, context.strategy, writes=writes)
        return made if "exp_avg_sq" in made._states else None

    @torch.no_grad()
    def after_update(self, step: int, logged: bool) -> None:
        if not logged:
            return
        groups = {id(p): group for group in self._optimizer.param_groups for p in group["params"]}
        t = torch.as_tensor(float(self._optimizer.coefficients()["t"]))
        row: dict[str, float] = {}
        for found in zip(*map(self._whole_states, self._states), strict=True):
            p = found[0][0]
            state = dict(zip(self._states, (value for _, value in found), strict=True))
            sums = signal_sums({"step": t, **state}, groups[id(p)])
            row |= {f"{self._names[id(p)]}/{key}": float(sums[key]) / p.numel() for key in MEANS if key in sums}
        self.write({"step": step, **dict(sorted(row.items()))})
