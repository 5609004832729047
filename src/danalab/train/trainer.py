"""The training loop of all stages.

    batch -> micro-batches -> gradient norm, clip -> finite? -> update -> schedule -> row; evaluate; save; stop?

All ranks make the same steps and the same decisions; rank 0 writes.
The step of a trainer is the number of steps made: batch k (from 0) is used by the step that makes it k + 1.
"""

import contextlib
import copy
import gc
import logging
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from danalab.optim import build_optimizer, settings_of
from danalab.optim.schedules import Schedule
from danalab.train.callbacks.base import Callback
from danalab.train.checkpoint import tensors
from danalab.train.checkpoint.saver import Saver
from danalab.train.config.train_config import TrainConfig
from danalab.train.parallel.strategy import ParallelStrategy
from danalab.train.run.logbook import Logbook
from danalab.train.stage import Stage
from danalab.train.step.average import WeightAverage
from danalab.train.step.finite_guard import FiniteGuard, NonFiniteError
from danalab.train.step.gradients import CurvatureEstimator, GradientStep, LossScale, StepResult, update_norm
from danalab.train.step.loss import TrainingBatch
from danalab.train.system.device import explain_errors, random_state, restore_random_state
from danalab.train.system.signals import StopRequest

log = logging.getLogger(__name__)
GC_INTERVAL = 1000
"""Steps between Python's garbage collections."""


class OptimizerDriver:
    """Wraps an optimizer for the training loop."""

    def __init__(self, optimizer: torch.optim.Optimizer, name: str = ""):
        """`name`: in `danalab.optim.OPTIMIZERS`, or an address."""
        self.optimizer: Any = optimizer
        self.name = name
        self.switches = callable(getattr(optimizer, "train", None)) and callable(
            getattr(optimizer, "eval", None)
        )
        """Whether it evaluates at other weights than it trains."""
        for group in optimizer.param_groups:
            # In the group, so that checkpoints have it; the schedule multiplies it.
            group.setdefault("peak_lr", float(group["lr"]))
        self.parameters: list[Tensor] = [p for group in optimizer.param_groups for p in group["params"]]

    @classmethod
    def build(
        cls,
        resolved: TrainConfig,
        model: nn.Module,
        make: Callable[..., torch.optim.Optimizer] = build_optimizer,
    ) -> "OptimizerDriver":
        """The run's optimizer for `model` on its device, by a strategy's own `make`; UserError: it cannot run here."""
        name = resolved.opt
        optimizer = make(name, model, lr=resolved.lr, **resolved.settings_of_optimizer(settings_of(name)))
        for group in optimizer.param_groups:
            if group.get("decay_bound") is not None:
                group["decay_bound"] = resolved.decay_bound
        return cls(optimizer, name)

    def set_rate(self, factor: float) -> None:
        """Set the learning rate of the next step to `factor` x peak."""
        for group in self.optimizer.param_groups:
            lr = group["peak_lr"] * factor
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr

    def train(self) -> None:
        """Switch to the weights that are trained; before the first step and after a checkpoint was loaded."""
        if self.switches:
            self.optimizer.train()

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Switch to the weights that are evaluated and saved (schedule-free has others); they come back bit for bit."""
        if self.switches:
            self.optimizer.eval()
        try:
            yield
        finally:
            self.train()

    def scalars(self) -> dict[str, float]:
        """`optim/*`: coefficients of the last step, means over the state (a pass over it)."""
        values: dict[str, Any] = {}
        for name in ("coefficients", "collect_stats"):
            ask = getattr(self.optimizer, name, None)
            if callable(ask):
                answer: Any = ask()
                values.update(answer)
        values.pop("lr", None)
        return {f"optim/{name}": float(value) for name, value in values.items()}


@dataclass(eq=False)
class Trainer:
    """One run, from its current step to its end or a stop. `danalab.train.job.build_trainer` makes one."""

    spec: TrainConfig
    stage: Stage
    model: nn.Module
    driver: OptimizerDriver
    schedule: Schedule
    """0-based step -> factor of the peak learning rate."""
    gradients: GradientStep
    guard: FiniteGuard
    logbook: Logbook
    saver: Saver
    strategy: ParallelStrategy
    device: torch.device
    stop: StopRequest
    callbacks: list[Callback] = field(default_factory=list)
    """Called in this order."""
    curvature: CurvatureEstimator | None = None
    """Estimates of the curvature, for optimizers that use them."""
    loss_scale: LossScale | None = None
    """Scale of the loss in float16; that of `gradients`."""
    average: WeightAverage | None = None
    """Average of the weights, if the run keeps one."""
    step: int = 0

    def __post_init__(self) -> None:
        self.world, self.time = self.strategy.world, self.logbook.time
        self.batches = self.stage.batches
        self.batches.attach(self.model)
        self._first_step, self._factor = self.step, 1.0
        self._before: list[torch.Tensor] = []  # weights before the update of a logged step
        self._last: StepResult | None = None
        # Copies: an evaluator may keep its last result.
        self._evaluators_of_average = [copy.copy(evaluator) for evaluator in self.stage.evaluators]

    # ---- the loop ----

    def fit(self) -> str:
        """Train; returns "finished", "stopped" or "interrupted". In each case the last step is checkpointed.

        Raises:
            NonFiniteError: see `FiniteGuard`; the summary is written, checkpoints stay as they are.
        """
        self._first_step = self.step
        self.logbook.open(self.step)
        self.model.train()
        self.driver.train()
        batches = self.batches.iterate(self.step)
        with self.stop:
            gc.disable()  # ranks that collect at different times would delay each other
            try:
                self._start_callbacks()
                self._finish_pending_row()
                self.time.start()
                while (status := self._why_end()) is None:
                    start = time.perf_counter()
                    batch = next(batches)
                    self.time.interval["data_wait"] += time.perf_counter() - start
                    logged = self.spec.is_logged(self.step + 1)
                    result = self._make_step(batch, logged)
                    if self.step == self._first_step + 1:
                        self.world.set_collective_timeout(self.spec.collective_timeout)
                    self.strategy.after_step(self.step)
                    if logged:
                        self._record(result)
                    if self.spec.is_saved(self.step):
                        self.time.interval["save_wait"] += self.save()
                    if self.step % GC_INTERVAL == 0:
                        gc.collect()
                return self._end(status)
            except NonFiniteError as error:
                if self.world.is_main:
                    log.error("%s", error)
                self.driver.optimizer.zero_grad()
                self.saver.drain()
                self._add_loss()
                self.logbook.write_summary(self.step, "nonfinite", self.guard.skipped)
                raise
            finally:
                gc.enable()
                self.logbook.close()
                for callback in self.callbacks:
                    callback.close()
                if isinstance(batches, Generator):
                    batches.close()  # ends a thread that reads ahead

    def _make_step(self, batch: TrainingBatch, logged: bool) -> StepResult:
        number = self.step + 1
        with explain_errors(min(self.gradients.micro_batch, len(batch)), batch.inputs.shape[1]):
            if self.curvature is not None:
                self.curvature.before_step(self.step, batch)
            result = self.gradients(batch)
            made = self.guard.allows(number, result)
            self._factor = self.schedule(self.step)
            self.driver.set_rate(self._factor)
            if logged:
                self._before = [p.detach().clone() for p in self.driver.parameters]
            if made:
                self.driver.optimizer.step()
                if self.average is not None:
                    self.average.update()
        self.driver.optimizer.zero_grad()
        self._last = result
        self.step += 1
        self.time.interval["steps"] += 1
        return result

    def _start_callbacks(self) -> None:
        """Rank 0 first: where it cannot reach a mirror of its metrics, all ranks end."""

        def start() -> None:
            for callback in self.callbacks:
                callback.on_start(self.step)

        self.world.compute_on_rank0(start)
        if not self.world.is_main:
            start()

    def _why_end(self) -> str | None:
        if self.step >= self.spec.last_step:
            return "finished"
        if self._is_stopped():
            return "interrupted"
        best, patience = self.logbook.best_step, self.spec.patience
        if patience and self.step - best >= patience * self.spec.eval_interval:
            if self.world.is_main:
                log.info("step %d: no better evaluation since step %d: the run ends", self.step, best)
            return "finished"
        limit = self.spec.iterations_to_run
        return "stopped" if limit is not None and self.step - self._first_step >= limit else None

    def _is_stopped(self) -> bool:
        """Whether any rank received a stop signal. Collective, so that all stop at the same step."""
        return self.stop.agreed(self.world.agree)

    def _end(self, status: str) -> str:
        self.save(wait=True)
        if status == "finished" and not self._evaluate(final=True):
            status = "interrupted"  # the next job repeats the evaluation
        self.logbook.write_summary(self.step, status, self.guard.skipped)
        return status

    # ---- rows ----

    def _record(self, result: StepResult) -> None:
        """Write the row of the step that was just made, with an evaluation where one is due."""
        before, self._before = self._before, []
        moved = float(update_norm(before, self.driver.parameters))
        row = self.logbook.row(self.step, result, moved, self.guard.skipped)
        rate = {"lr": self.spec.lr * self._factor}
        row |= self.stage.loss.scalars() | rate | self.driver.scalars() | self.strategy.scalars()
        self.logbook.pending = row
        if self.spec.is_evaluated(self.step):
            self._finish_pending_row()
        else:
            self.logbook.write_pending()

    def _finish_pending_row(self) -> None:
        """Evaluate and write the row that waits for it; a stop during the evaluation leaves it to the next job."""
        if self.logbook.pending is not None and self._evaluate(final=False):
            is_best = self.logbook.is_best()
            self.logbook.write_pending()
            if is_best and (self.spec.keep_best or self.spec.patience):
                self.time.interval["save_wait"] += self.save(best=True)

    def _evaluate(self, *, final: bool) -> bool:
        """Evaluate, for the row that waits or for the summary; False where a stop came first."""
        with self.time.leaving_out(), self.driver.evaluating():
            if not self._run_evaluators(self.stage.evaluators, final):
                return False
            if self.average is not None and self.average.count:
                with self.average.in_place():
                    if not self._run_evaluators(self._evaluators_of_average, final, "_average"):
                        return False
            if not final:
                with self.strategy.evaluating():
                    for callback in self.callbacks:
                        callback.on_evaluated(self.step)
        return True

    def _run_evaluators(self, evaluators: Sequence[Any], final: bool, suffix: str = "") -> bool:
        with self.strategy.evaluating():
            for evaluator in evaluators:
                metrics = evaluator.evaluate(self.model, self.step, self._is_stopped, final=final)
                if metrics is None:
                    return False
                self.logbook.add_evaluation({name + suffix: value for name, value in metrics.items()})
        return True

    # ---- checkpoints ----

    def save(self, *, wait: bool = False, best: bool = False) -> float:
        """Checkpoint this step, as the best one too; the seconds training stood still.

        NonFiniteError, nothing saved: weights are not finite.
        """
        self.time.tick()
        self._add_loss()
        with self.driver.evaluating():
            self.guard.check_weights(self.step)
            state, meta = tensors.state_of(self.model, self.driver.optimizer), self._meta()
            if self.average is not None:
                state["average"], meta["average"] = self.average.stored(), self.average.state_dict()
            return self.saver.save(
                self.step, self.strategy.stored(state), meta, before=self.logbook.sync, best=best, wait=wait
            )

    def _add_loss(self) -> None:
        """Note the loss of the last step, which may have no row, for the summary."""
        if self._last is not None:
            self.logbook.add_loss(float(self._last.loss))

    def _meta(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "tokens": self.stage.consumption.tokens(self.step),
            "config": self.spec.as_dict(),
            "model": self.spec.model.as_dict(),
            "random": random_state(),
            "guard": {"skipped": self.guard.skipped, "in_a_row": self.guard.in_a_row},
            "loss_scale": None if self.loss_scale is None else asdict(self.loss_scale),
            "loss": self.stage.loss.state_dict(),
            "batches": self.batches.state_dict(),
            "callbacks": {callback.name: callback.state_dict() for callback in self.callbacks},
            **self.logbook.state_dict(),
        }

    def restore(self, meta: dict[str, Any]) -> None:
        """Restore everything of a checkpoint but its tensors."""
        self.step = meta["step"]
        self.logbook.load_state_dict(meta)
        self.guard.skipped, self.guard.in_a_row = meta["guard"]["skipped"], meta["guard"]["in_a_row"]
        if self.loss_scale is not None and meta.get("loss_scale") is not None:
            vars(self.loss_scale).update(meta["loss_scale"])
        self.stage.loss.load_state_dict(meta["loss"])
        self.batches.load_state_dict(meta["batches"])
        for callback in self.callbacks:
            if callback.name in meta["callbacks"]:
                callback.load_state_dict(meta["callbacks"][callback.name])
        restore_random_state(meta["random"])
