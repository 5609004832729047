"""Runs of one optimizer on a small problem: the search for its learning rate, and more seeds at the best.

Every optimizer gets the same number of trials, starting at its usual learning rate for a model of the problem's size:
first by factors of 4 until the best lies between two others, then between the best and its better neighbour.
"""

import math
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import torch

from danalab.errors import UserError
from danalab.experiments.problems import Objective, SmallProblem
from danalab.files import finite
from danalab.optim import build_optimizer, get_schedule, lr_scheduler, settings_of
from danalab.optim.schedules import Schedule
from danalab.processes import end_with_starter, hidden_main
from danalab.scaling import learning_rate
from danalab.scaling.learning_rate import slow_momentum
from danalab.scaling.rate_search import next_exponent

SPACING = 4.0
"""Factor between the first learning rates."""
POINTS = 24
"""Measurements along a run."""
CLIP = 1.0
"""Largest norm of the gradient on problems where the loss is bounded below by its entropy."""


@dataclass(frozen=True)
class ProblemRun:
    """One run from start to end."""

    opt: str
    lr: float
    """Peak learning rate."""
    seed: int
    loss: float
    """The last measurement; infinite where the run diverged."""
    steps: tuple[int, ...]
    losses: tuple[float, ...]
    """Measurements after `steps` steps, the first before any."""
    ms_per_step: float
    """The whole step on one thread, model and data included [ms]."""


@dataclass(frozen=True)
class Result:
    """The result of one optimizer on one problem."""

    problem: str
    opt: str
    trials: tuple[ProblemRun, ...]
    """The search, in the order of the learning rates."""
    best: tuple[ProblemRun, ...]
    """The best trial, and its repetitions with other seeds."""

    @property
    def losses(self) -> list[float]:
        """Last measurements of the best, one per seed."""
        return [run.loss for run in self.best]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without infinities."""
        return {
            "problem": self.problem,
            "optimizer": self.opt,
            "lr": self.best[0].lr,
            "losses": [finite(loss) for loss in self.losses],
            "ms_per_step": self.best[0].ms_per_step,
            "trials": [{"lr": run.lr, "loss": finite(run.loss)} for run in self.trials],
            "curves": [{"seed": run.seed, "steps": run.steps, "losses": run.losses} for run in self.best],
        }


@contextmanager
def workers(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Processes of one thread each that end with this one."""
    with hidden_main():
        pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_start_worker)
        try:
            yield pool
        finally:
            pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    end_with_starter()
    torch.set_num_threads(1)


def search(problem: SmallProblem, opt: str, *, trials: int = 6, seeds: int = 1) -> Result:
    """Tune `opt` on `problem` in `trials` runs with seed 0, and repeat the best with `seeds` - 1 others."""
    start = usual_lr(opt, problem)
    tried: dict[float, ProblemRun] = {}
    for _ in range(trials):
        exponent = next_exponent({key: run.loss for key, run in tried.items()})
        tried[exponent] = train(problem, opt, start * SPACING**exponent, 0, {})
    best = min(tried.values(), key=lambda run: run.loss)
    if not math.isfinite(best.loss):
        raise UserError(f"{opt} diverges on '{problem.name}' at every learning rate from {start:g} down")
    more = [train(problem, opt, best.lr, seed, {}) for seed in range(1, seeds)]
    return Result(problem.name, opt, tuple(tried[key] for key in sorted(tried)), (best, *more))


def train(problem: SmallProblem, opt: str, lr: float, seed: int, settings: Mapping[str, Any]) -> ProblemRun:
    """One run; ends early, with an infinite loss, where a number is not finite."""
    task = problem.make(seed)
    settings = {**settings_for(opt, problem.steps, problem.omega), **settings}
    optimizer = build_optimizer(opt, task.model, lr=lr, **settings)
    warmup = problem.steps // 20
    is_schedule_free = hasattr(optimizer, "eval")
    kind, only_warmup = ("wsd", {"fract_decay": 0.0}) if is_schedule_free else ("cos_inf", {})
    schedule = get_schedule(kind, problem.steps, warmup, **only_warmup)
    clip = None if problem.log else CLIP
    # Measured evenly on a logarithmic axis at first, then evenly in steps; the last step is among them.
    early = [round(problem.steps ** (k / (POINTS / 2))) for k in range(POINTS // 2)]
    late = [round(problem.steps * k / (POINTS / 2)) for k in range(1, POINTS // 2 + 1)]
    outcome = descend(
        task, optimizer, schedule, problem.steps, clip, sorted({max(1, at) for at in early + late})
    )
    return ProblemRun(opt, lr, seed, *outcome)


def descend(
    task: Objective,
    optimizer: torch.optim.Optimizer,
    schedule: Schedule,
    steps: int,
    clip: float | None,
    marks: Collection[int],
) -> tuple[float, tuple[int, ...], tuple[float, ...], float]:
    """Train, and measure before the first step and after those in `marks`.

    Returns:
        The last measurement, infinite where one was not finite, which ends the run; the steps after which it was
        measured, and the measurements; and the time of a whole step, model and data included [ms].
    """
    scheduler = lr_scheduler(optimizer, schedule)
    modes: Any = (
        optimizer if hasattr(optimizer, "eval") else None
    )  # schedule-free: measured weights are others
    measured, losses, took = [0], [task.measure()], 0.0
    for step in range(1, steps + 1):
        began = time.perf_counter()
        if modes is not None:
            modes.train()
        task.loss().backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(task.model.parameters(), clip)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        took += time.perf_counter() - began
        if step in marks:
            if modes is not None:
                modes.eval()
            measured.append(step)
            losses.append(task.measure())
            if not math.isfinite(losses[-1]) or losses[-1] > 1e3 * losses[0] + 1e3:
                return math.inf, tuple(measured), tuple(losses), 1e3 * took / step
    return losses[-1], tuple(measured), tuple(losses), 1e3 * took / steps


def usual_lr(opt: str, problem: SmallProblem) -> float:
    """The first learning rate of the search: that of `danalab plan` for a model of the problem's size."""
    params = sum(p.numel() for p in problem.make(0).model.parameters())
    return learning_rate("enoki", opt, params)


def settings_for(opt: str, steps: int, omega: float) -> dict[str, Any]:
    """Settings that depend on the length of the run, by the ladder's rules: decay and AdEMAMix's slow momentum."""
    known = settings_of(opt)
    slow = slow_momentum(steps) if "beta3_warmup" in known else {}
    decays = omega and not {"omega", "weight_decay"}.isdisjoint(known)
    return {**slow, **({"omega": omega, "horizon": steps} if decays else {})}
