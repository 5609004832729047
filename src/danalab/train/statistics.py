"""Statistics of training, written beside metrics.jsonl.

    Dynamics         dynamics.jsonl   norms of weights, gradients and updates of each parameter, angular updates
    TauStatistics    tau/*.npz        order statistics of tau, the estimated frequency of a coordinate's gradients

With W, W' the weights before and after an update and D = W' - W: a matrix is flattened to rows (neurons) x the rest;
angles are between W and W' as vectors [rad]; rows are summarised by the mean of their angles. Tau spans orders of
magnitude, so its order statistics are taken at geometrically spaced ranks from both ends (1.1^k - 1).
"""

import io
import math
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from danalab.errors import UserError
from danalab.files import write_atomically
from danalab.optim.tensor_shard import whole_of
from danalab.train.callbacks.base import Callback, CallbackContext
from danalab.train.run.metrics import MetricsFile

EPS = 1e-12


class Dynamics(Callback):
    """Writes `dynamics.jsonl`, a row each logged step: `{"step": ..., "PARAMETER/norm": ..., ...}`.

    Two and more dimensions: norm, grad_norm, update_norm, relative_update = |D|/|W|, angular_update,
    neuron_angular_update (mean over rows), grad_alignment = cos(gradient, W) (not with zero, whose gradients are in
    parts), histogram (of |W| / rms). Fewer: rms, grad_rms, update_rms.
    Costs a copy of the weights during the logged steps.
    """

    name = "dynamics"

    def __init__(self, context: CallbackContext):
        super().__init__(context)
        self._parameters = [(name, p) for name, p in context.model.named_parameters() if p.requires_grad]
        self._before: list[Tensor] = []
        self._row: dict[str, Any] = {}
        self._file: MetricsFile | None = None

    def on_start(self, step: int) -> None:
        """A resumed run goes on in the same file, without the rows past its step."""
        if self.context.writes:
            self._file = MetricsFile(self.context.folder / "dynamics.jsonl", step)

    def before_update(self, step: int) -> None:
        if not self.context.spec.is_logged(step):
            return
        self._row = {}
        self._before = [p.detach().clone() for _, p in self._parameters]
        strategy = self.context.strategy
        norms = dict(zip(map(id, strategy.parameters), strategy.gradient_norms().tolist(), strict=True))
        for name, p in self._parameters:
            if p.ndim >= 2:
                self._row[f"{name}/grad_norm"] = norms[id(p)]
                if p.grad is not None:
                    g, w = (whole_of(each).double().flatten() for each in (p.grad, p.detach()))
                    lengths = torch.linalg.vector_norm(g) * torch.linalg.vector_norm(w)
                    self._row[f"{name}/grad_alignment"] = float(g @ w / (lengths + EPS))
            else:
                self._row[f"{name}/grad_rms"] = norms[id(p)] / math.sqrt(p.numel())

    def after_update(self, step: int) -> None:
        if not self.context.spec.is_logged(step):
            return
        for (name, p), before in zip(self._parameters, self._before, strict=True):
            old, new = whole_of(before).double(), whole_of(p.detach()).double()
            self._row |= {f"{name}/{key}": value for key, value in update_statistics(old, new).items()}
        self._before = []  # frees the memory
        if self._file is not None:
            self._file.write({"step": step, **dict(sorted(self._row.items()))})

    def on_skip(self, step: int) -> None:
        self._before = []

    def sync(self) -> None:
        if self._file is not None:
            self._file.sync()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def update_statistics(old: Tensor, new: Tensor) -> dict[str, Any]:
    """Statistics of the update of one parameter; see the module's docstring. `old`, `new`: equal shapes, float64."""
    update = new - old
    if old.ndim < 2:
        return {"rms": _rms(new), "update_rms": _rms(update)}
    norm, moved = float(torch.linalg.vector_norm(old)), float(torch.linalg.vector_norm(update))
    rows = angles(old.flatten(1), new.flatten(1))
    return {
        "norm": float(torch.linalg.vector_norm(new)),
        "update_norm": moved,
        "relative_update": (moved + EPS) / (norm + EPS),
        "angular_update": float(angles(old.flatten()[None], new.flatten()[None])[0]),
        "neuron_angular_update": float(rows.mean()),
        "histogram": histogram(new),
    }


def histogram(weights: Tensor) -> list[int]:
    """Number of weights by log2(|w| / rms): 16 bins of width 1 from -12 to 4; the outer bins include the rest."""
    scale = (weights.abs() / (_rms(weights) + EPS)).log2().nan_to_num(-12).clamp(-12, 4 - 1e-6)
    # Not torch.histc, which has no deterministic kernel for GPUs.
    return torch.bincount((scale.flatten().floor() + 12).long(), minlength=16).tolist()


def angles(a: Tensor, b: Tensor) -> Tensor:
    """Angle between rows [rad], float64 [rows]; 0 for a row of zeros.

    2 atan2(|a/|a| - b/|b||, |a/|a| + b/|b||), which unlike the arc cosine is accurate at the small angles of a training
    step (W. Kahan).
    """
    a = torch.nn.functional.normalize(a, dim=1, eps=EPS)
    b = torch.nn.functional.normalize(b, dim=1, eps=EPS)
    apart, together = torch.linalg.vector_norm(a - b, dim=1), torch.linalg.vector_norm(a + b, dim=1)
    return 2 * torch.atan2(apart, together)


def _rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt())


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
