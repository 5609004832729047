"""Order statistics of tau, the estimated frequency of a coordinate's gradients, in tau/*.npz of the run folder.

Tau spans orders of magnitude, so its order statistics are taken at geometrically spaced ranks from both ends
(1.1^k - 1).
"""

import io
import math
from functools import partial

import numpy as np
from torch import Tensor

from danalab.errors import UserError
from danalab.files import write_atomically
from danalab.train.callbacks.base import Callback, CallbackContext

QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
FIRST_EVALUATION = 10


class TauStatistics(Callback):
    """Writes `tau-step-STEP.npz` at evaluations number 10, 20, 40, 80, ... and at the last step.

    The number of an evaluation is step / eval_interval, so a resumed run writes the same files. Arrays in a file, for
    each parameter NAME with tau: `NAME:shape`, `NAME:ranks`, `NAME:smallest`, `NAME:largest`
    (order statistics at those ranks from either end), `NAME:quantiles` (at `QUANTILES`, in the file as `quantiles`).
    """

    name = "tau"

    def __init__(self, context: CallbackContext):
        super().__init__(context)
        if any(group.get("stochastic_rounding") == "moments" for group in context.optimizer.param_groups):
            raise UserError(
                "--collect-tau-stats reads float32 moments; leave stochastic_rounding=moments out"
            )
        self._all_tau = partial(context.strategy.whole_states, context.optimizer, "tau")
        if next(self._all_tau(), None) is None:
            optimizer = type(context.optimizer).__name__
            raise UserError(f"--collect-tau-stats: {optimizer} keeps no tau; dana-star and dana-star-mk4 do")

    def is_due(self, step: int) -> bool:
        """Whether the evaluation after `step` steps writes a file."""
        interval = self.context.spec.eval_interval
        if step == self.context.spec.last_step:
            return True
        if not interval or step % interval:
            return False
        times, rest = divmod(step // interval, FIRST_EVALUATION)
        return rest == 0 and times > 0 and times & (times - 1) == 0

    def on_evaluated(self, step: int) -> None:
        if not self.is_due(step):
            return
        arrays: dict[str, np.ndarray] = {"step": np.asarray(step), "quantiles": np.asarray(QUANTILES)}
        by_parameter = {id(p): order_statistics(tau) for p, tau in self._all_tau() if self.context.writes}
        if self.context.writes:
            for name, p in self.context.model.named_parameters():
                arrays |= {f"{name}:{key}": value for key, value in by_parameter.get(id(p), {}).items()}
            folder = self.context.folder / "tau"
            folder.mkdir(parents=True, exist_ok=True)
            content = io.BytesIO()
            np.savez_compressed(content, **arrays)  # pyright: ignore[reportArgumentType]
            write_atomically(folder / f"tau-step-{step:08d}.npz", content.getvalue())


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
