"""Statistics of tau, the estimated frequency of gradients of a coordinate, written to .npz files at evaluations.

Tau spans orders of magnitude and its tails matter, so order statistics are taken at geometrically spaced ranks from
both ends (1.1^k - 1), together with quantiles.
"""

import io
import math
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from danalab.errors import UserError
from danalab.files import write_atomically
from danalab.train.callbacks.base import Callback, CallbackContext
from danalab.train.parallel.strategy import ParallelStrategy

QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
FIRST_EVALUATION = 10


class TauStatistics(Callback):
    """Writes `tau-step-STEP.npz` at evaluations number 10, 20, 40, 80, ... and at the last step.

    The number of an evaluation is step / eval_interval, so a resumed run writes the same files. Arrays in a file, for
    each parameter NAME with tau: `NAME:shape`, `NAME:ranks`, `NAME:smallest`, `NAME:largest`
    (order statistics at those ranks from either end), `NAME:quantiles` (at `QUANTILES`, in the file as `quantiles`).
    """

    name = "tau"

    def __init__(
        self,
        folder: Path,
        named_parameters: Iterable[tuple[str, Tensor]],
        optimizer: torch.optim.Optimizer,
        strategy: ParallelStrategy,
        *,
        eval_interval: int,
        last_step: int,
        writes: bool = True,
    ):
        """Args:
            folder: destination of the files.
            strategy: gathers the optimizer's state.
            eval_interval: steps between evaluations; 0: only at the last step.
            writes: whether this rank writes; the others take part in gathering.
        Raises:
            UserError: the optimizer has no tau.
        """
        self._names = {id(p): name for name, p in named_parameters}
        self._all_tau = partial(strategy.whole_states, optimizer, "tau")
        if next(self._all_tau(), None) is None:
            raise UserError(
                f"--collect-tau-stats: {type(optimizer).__name__} keeps no tau; dana-star and dana-star-mk4 do"
            )
        self._folder, self._writes = folder, writes
        self._interval, self._last = eval_interval, last_step

    @classmethod
    def build(cls, context: CallbackContext) -> "TauStatistics":
        context.require_float32_moments("--collect-tau-stats")
        return cls(
            context.folder / "tau",
            context.model.named_parameters(),
            context.optimizer,
            context.strategy,
            eval_interval=context.spec.evaluation.eval_interval or 0,
            last_step=context.spec.iterations,
            writes=context.writes,
        )

    def is_due(self, step: int) -> bool:
        """Whether the evaluation after `step` steps writes a file."""
        if step == self._last:
            return True
        if not self._interval or step % self._interval:
            return False
        times, rest = divmod(step // self._interval, FIRST_EVALUATION)
        return rest == 0 and times > 0 and times & (times - 1) == 0

    def on_evaluated(self, step: int) -> None:
        if not self.is_due(step):
            return
        arrays: dict[str, np.ndarray] = {"step": np.asarray(step), "quantiles": np.asarray(QUANTILES)}
        found = {id(p): order_statistics(tau) for p, tau in self._all_tau() if self._writes}
        if self._writes:
            for p, name in self._names.items():
                arrays |= {f"{name}:{key}": value for key, value in found.get(p, {}).items()}
            self._folder.mkdir(parents=True, exist_ok=True)
            content = io.BytesIO()
            np.savez_compressed(content, **arrays)  # pyright: ignore[reportArgumentType]
            write_atomically(self._folder / f"tau-step-{step:08d}.npz", content.getvalue())


def order_statistics(tau: Tensor) -> dict[str, np.ndarray]:
    """Order statistics of one parameter's tau at ranks unique(floor(1.1^k)) - 1 from both ends, and quantiles."""
    values = np.sort(tau.detach().float().cpu().numpy().ravel())
    n = values.size
    count = math.ceil(math.log(n) / math.log(1.1)) + 1 if n > 1 else 1
    ranks = np.unique(np.minimum((1.1 ** np.arange(count)).astype(np.int64), n)) - 1
    return {
        "shape": np.asarray(tuple(tau.shape)),
        "ranks": ranks,
        "smallest": values[ranks],
        "largest": values[::-1][ranks],
        "quantiles": np.quantile(values, QUANTILES),
    }


def read_tau_statistics(file: Path) -> tuple[int, dict[str, dict[str, np.ndarray]]]:
    """(step, {parameter: {shape, ranks, smallest, largest, quantiles}}) of a file."""
    found: dict[str, dict[str, np.ndarray]] = {}
    try:
        with np.load(file, allow_pickle=False) as arrays:
            for key in arrays.files:
                name, colon, what = key.rpartition(":")
                if colon:
                    found.setdefault(name, {})[what] = arrays[key]
            return int(arrays["step"]), found
    except Exception as error:  # a damaged file may raise almost anything
        raise UserError(f"{file}: not a file of tau statistics: {error}") from error
