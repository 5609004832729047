"""The learning rate of an optimizer on a problem of one's own: short runs by factors of 2, until the best lies inside.

rates to try  ->  a run each  ->  best at an edge: half of it, or twice  ->  ...  ->  FoundRate(lr, losses)
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from danalab.errors import UserError
from danalab.optim.catalogue import OPTIMIZERS, Relative, Usual
from danalab.optim.registry import build_optimizer, optimizer_spec
from danalab.optim.run_length import OMEGA, warmup_steps
from danalab.optim.schedules import get_schedule, lr_scheduler


@dataclass(frozen=True)
class FoundRate:
    """The result of a search."""

    lr: float
    """The rate with the least loss."""
    losses: dict[float, float]
    """Rate -> loss at the end of its run, infinite where it diverged; by rate."""
    at_edge: bool
    """Whether the best is the outermost that was tried, because `most` runs were made."""


def find_lr(
    make_model: Callable[[], nn.Module],
    batches: Sequence[Any],
    opt: str = "adana",
    *,
    loss: Callable[[nn.Module, Any], Tensor] | None = None,
    evaluate: Callable[[nn.Module], float] | None = None,
    rates: Sequence[float] | None = None,
    clip: float | None = 1.0,
    most: int = 9,
    **settings: Any,
) -> FoundRate:
    """Train a fresh model at three rates, and at further ones by factors of 2 while the best is the outermost.

    Each run has a warm-up, a cosine to a tenth of the peak, and the same torch seed. Optimizers that take omega have
    weight decay for a run of this length, unless `settings` say otherwise.

    Args:
        make_model: makes a model with fresh weights.
        batches: one for each step, the same in every run; their number is the length of the run [steps].
        opt: name of the optimizer; see `list_optimizers`.
        loss: of a model on a batch. None: the cross-entropy of `model(inputs)` [..., classes], where a batch is
            (inputs, targets).
        evaluate: what is compared, lower is better. None: the mean loss of the last tenth of the steps.
        rates: to begin with, two or more. None: those of `rates_to_try`.
        clip: largest norm of the gradients; None: not clipped.
        most: runs at most.
        settings: of the optimizer.
    Raises:
        UserError: no batches, fewer than two rates, an unknown optimizer or setting, or all rates diverge.
    """
    steps, spec = len(batches), optimizer_spec(opt)
    if steps < 1:
        raise UserError("find_lr: there are no batches; it needs one for each step of a run")
    if spec.closure or spec.hessian:
        raise UserError(f"find_lr: {spec.name} needs more than gradients for its step; compare runs of a trainer")
    rates = sorted(rates_to_try(spec.name) if rates is None else rates)
    if len(rates) < 2 or rates[0] <= 0:
        raise UserError(f"find_lr: rates is {list(rates)}; it must be two or more positive numbers")
    if not {"omega", "weight_decay"} & settings.keys() and "omega" in spec.settings:
        settings = {"omega": OMEGA, "horizon": steps, **settings}

    def run(lr: float) -> float:
        torch.manual_seed(0)
        model = make_model()
        optimizer = build_optimizer(spec.name, model, lr=lr, **settings)
        scheduler = lr_scheduler(optimizer, get_schedule("cos_inf", steps, min(warmup_steps(steps), steps - 1)))
        recent: list[float] = []
        for batch in batches:
            value = _cross_entropy(model, batch) if loss is None else loss(model, batch)
            value.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            recent = [*recent, float(value.detach())][-max(1, steps // 10) :]
            if not math.isfinite(recent[-1]):
                return math.inf
        end = sum(recent) / len(recent) if evaluate is None else float(evaluate(model))
        return end if math.isfinite(end) else math.inf

    losses: dict[float, float] = {}
    with torch.random.fork_rng():
        for lr in rates[:most]:
            losses[lr] = run(lr)
        while len(losses) < most:
            further = rounded(min(losses) / 2) if min(losses.values()) == math.inf else next_rate(losses)
            if further is None:
                break
            losses[further] = run(further)
    best = min(sorted(losses), key=losses.__getitem__)
    if math.isinf(losses[best]):
        raise UserError(
            f"find_lr: {spec.name} diverges at every rate from {min(losses):g} to {max(losses):g}; give rates"
        )
    return FoundRate(best, {lr: losses[lr] for lr in sorted(losses)}, best in (min(losses), max(losses)))


def _cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    inputs, targets = batch
    return nn.functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())


def rates_to_try(opt: str) -> tuple[float, ...]:
    """Three learning rates to begin with on a small model: measured, or by those of the optimizer it is relative to."""
    row = OPTIMIZERS.get(opt)
    if row.rates is not None:
        return row.rates
    if isinstance(row.rate, Relative):
        return tuple(row.rate.factor * lr for lr in rates_to_try(row.rate.of))
    centre = row.rate.lr if isinstance(row.rate, Usual) else 1e-3
    return centre / 2, centre, 2 * centre


def next_rate(tried: Mapping[float, float], *, refine: bool = False) -> float | None:
    """The next rate: beyond the outermost where that is best, at the distance of its neighbour.

    `tried`: rate -> final loss, two or more. With `refine`, where the best lies inside, the geometric mean of it and
    its better neighbour; otherwise None, as where all diverged.
    """
    if not tried or min(tried.values()) == math.inf:
        return None
    best, neighbour, is_outermost = _best_pair(tried)
    if is_outermost:
        return rounded(best**2 / neighbour)
    between = rounded(math.sqrt(best * neighbour))
    return between if refine and between not in tried else None


def next_exponent(tried: Mapping[float, float]) -> float:
    """The next rate by the rule of `next_rate` with `refine`, as the exponent of a spacing: 0, 1 or -1, and so on.

    `tried`: exponent -> final loss. Where all diverged, one below the least.
    """
    if not tried:
        return 0.0
    if min(tried.values()) == math.inf:
        return min(tried) - 1
    if len(tried) == 1:
        return max(tried) + 1
    best, neighbour, is_outermost = _best_pair(tried)
    return 2 * best - neighbour if is_outermost else (best + neighbour) / 2


def _best_pair(tried: Mapping[float, float]) -> tuple[float, float, bool]:
    """The best, its better neighbour, and whether the best is the outermost."""
    known = sorted(tried)
    best = min(range(len(known)), key=lambda i: tried[known[i]])
    beside = [known[i] for i in (best - 1, best + 1) if 0 <= i < len(known)]
    return known[best], min(beside, key=tried.__getitem__), len(beside) == 1


def rounded(rate: float) -> float:
    """Four significant digits: enough for a rate, and short in names of runs."""
    return float(f"{rate:.4g}")
