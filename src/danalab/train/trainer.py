"""The loop. Everything that trains goes through it; what differs is the batch source, whose targets carry the mask.

    batch -> micro-batches -> global norm, clip -> finite? -> update -> schedule -> row; evaluate; save; stop?

With several ranks all of them go through the same steps and decide the same; rank 0 writes.
The step of a trainer is the number of steps that were made: batch k (from 0) is seen by the step that makes it k + 1.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from danalab.train.callbacks.base import Callback
from danalab.train.checkpoint import tensors
from danalab.train.checkpoint.saver import Saver
from danalab.train.config.run_spec import RunSpec
from danalab.train.evaluation.evaluator import Evaluation, Evaluator
from danalab.train.parallel.strategy import ParallelStrategy
from danalab.train.parallel.world import World
from danalab.train.run.folder import RunFolder
from danalab.train.run.logbook import Logbook
from danalab.train.run.stopwatch import Stopwatch
from danalab.train.step.curvature import Curvature
from danalab.train.step.finite_guard import FiniteGuard, NonFiniteError
from danalab.train.step.gradients import GradientStep, StepResult, UpdateNorm
from danalab.train.step.loss_scale import LossScale
from danalab.train.step.memory_check import check_memory
from danalab.train.step.optimizer_driver import OptimizerDriver
from danalab.train.step.router_balance import RouterBalance
from danalab.train.system.errors import explain_errors
from danalab.train.system.memory import GarbageCollector
from danalab.train.system.rng import random_state, restore_random_state
from danalab.train.system.signals import StopRequest

log = logging.getLogger(__name__)


class BatchSource(Protocol):
    """Where batches come from: any step's batch, whatever came before."""

    def iterate(self, start_step: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """(inputs, targets) from a step on, int64 [sequences, length]; a target of -1 carries no loss."""
        ...


class Trainer:
    """One run, from whatever step it is at to its end or a stop."""

    def __init__(
        self,
        resolved: RunSpec,
        model: nn.Module,
        driver: OptimizerDriver,
        batches: BatchSource,
        evaluator: Evaluator,
        folder: RunFolder,
        saver: Saver,
        *,
        autocast: Callable[[], Any],
        device: torch.device,
        stop: StopRequest,
        strategy: ParallelStrategy | None = None,
        loss_scale: LossScale | None = None,
        callbacks: Sequence[Callback] = (),
    ):
        """Args:
        batches: this rank's part of each batch.
        folder: locked by the caller.
        autocast: makes the context manager of forward computations.
        strategy: among which ranks; default one process alone.
        loss_scale: for float16.
        callbacks: told of updates, rows and the end, in this order.
        """
        config = resolved.config
        self.resolved, self.config = resolved, config
        self.model, self.driver, self.batches, self.evaluator = model, driver, batches, evaluator
        self.folder, self.saver, self.device, self.stop = folder, saver, device, stop
        self.callbacks = list(callbacks)
        self.strategy = strategy or ParallelStrategy(World.single())
        self.world = self.strategy.world
        self.step = 0
        self.time = Stopwatch()
        self.logbook = Logbook(resolved, folder, self.time, self.callbacks, device, self.world)
        self._first_step = 0
        self._schedule = resolved.schedule()
        self._kept_steps = config.kept_steps()
        self._balance = None if resolved.model.sparsity is None else RouterBalance(resolved.model, device)
        self._gradients = GradientStep(
            model,
            driver.parameters,
            micro_batch=config.batch_size or 1,
            seq_len=resolved.seq_len,
            grad_clip=config.grad_clip,
            z_loss=config.z_loss,
            hoyer_loss=config.hoyer_loss,
            autocast=autocast,
            strategy=self.strategy,
            loss_scale=loss_scale,
            balance=self._balance,
        )
        self._loss_scale = loss_scale
        self._curvature = Curvature(
            model,
            self._gradients,
            driver,
            seed=config.seed,
            vocab_size=resolved.model.vocab_size,
            micro_batch=config.batch_size or 1,
            autocast=autocast,
            strategy=self.strategy,
            device=device,
        )
        names = tensors.parameter_names(model, driver.optimizer)
        self.guard = FiniteGuard(
            config.on_nonfinite, folder.nonfinite_file, self._describe_batch, names, writes=self.world.is_main
        )
        self._update_norm = UpdateNorm(driver.parameters)
        self._evaluated_at: int | None = None

    # ---- the loop ----

    def fit(self) -> str:
        """Train; returns "finished", "stopped" or "interrupted". In each case the last step is checkpointed.

        Raises:
            NonFiniteError: by `on_nonfinite`; the summary is written, checkpoints stay as they are.
        """
        config = self.config
        self._go_to(self.strategy.begin(self.step))
        self._first_step = self.step
        self.logbook.open(self.step)
        self.model.train()
        self.driver.train()
        batches = self.batches.iterate(self.step)
        with self.stop, GarbageCollector(config.gc_interval) as garbage:
            try:
                self._start_callbacks()
                if self.device.type == "cuda" and self.step < self.resolved.iterations:
                    self._try_memory()
                self._finish_pending_row()
                self.time.start()
                while (status := self._why_end()) is None:
                    start = time.perf_counter()
                    inputs, targets = next(batches)
                    self.time.interval.data_wait += time.perf_counter() - start
                    logged = self._is_logged(self.step + 1)
                    result, lr = self._make_step(inputs, targets, logged)
                    if self.step == self._first_step + 1:
                        self.world.set_collective_timeout(config.collective_timeout)
                    ahead = self.strategy.after_step(self.step, result.loss)
                    if logged:
                        self._record(result, lr)
                    if ahead != self.step:
                        batches = self._jump(batches, ahead)
                    if self._is_saved(self.step):
                        self.time.interval.save_wait += self.save()
                    self.saver.poll()
                    garbage.after_step(self.step)
                return self._end(status)
            except NonFiniteError as error:
                if self.world.is_main:
                    log.error("%s", error)
                self.driver.zero_grad()
                self.saver.drain()
                self.logbook.write_summary(self.step, "nonfinite", self.guard.skipped)
                raise
            finally:
                self.logbook.close()
                for callback in self.callbacks:
                    callback.close()
                if isinstance(batches, Generator):
                    batches.close()  # ends the thread that reads ahead

    def _go_to(self, step: int) -> None:
        """Be at another step, which others have reached."""
        if step != self.step:
            self.step, self.logbook.pending = step, None

    def _jump(self, batches: Iterator[tuple[Tensor, Tensor]], step: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches from another step on."""
        if isinstance(batches, Generator):
            batches.close()
        self._go_to(step)
        return self.batches.iterate(step)

    def _try_memory(self) -> None:
        peak = check_memory(
            self._gradients,
            self.driver,
            micro_batch=self.config.batch_size or 1,
            seq_len=self.resolved.seq_len,
            device=self.device,
            state_share=self.strategy.state_share,
        )
        if self.world.is_main:
            has = torch.cuda.get_device_properties(self.device).total_memory / 2**30
            log.info("memory: a step needs up to %.1f of %.1f GiB", peak, has)

    def _make_step(self, inputs: Tensor, targets: Tensor, measured: bool) -> tuple[StepResult, float]:
        """One update, from batch to weights; returns what it saw and the learning rate that it used."""
        with explain_errors(min(self.config.batch_size or 1, inputs.shape[0]), inputs.shape[1]):
            self._curvature.before_step(self.step, inputs, targets)
            result = self._gradients(inputs, targets)
            if not result.finite.is_cuda:
                self.guard.check(self.step + 1, result)
            lr = self.driver.set_lr(self._schedule(self.step))
            for callback in self.callbacks:
                callback.before_update(self.step + 1, measured)
            if measured:
                self._update_norm.before()
            self.driver.step(result.finite)
            if result.finite.is_cuda:
                self.guard.check(self.step + 1, result)
            for callback in self.callbacks:
                callback.after_update(self.step + 1, measured)
        self.driver.zero_grad()
        self.step += 1
        self.time.interval.steps += 1
        return result, lr

    def _start_callbacks(self) -> None:
        """Rank 0 first: where one of its mirrors can't be reached, all ranks end."""

        def start() -> None:
            for callback in self.callbacks:
                callback.on_start(self.step)

        self.world.compute_on_rank0(start)
        if not self.world.is_main:
            start()

    def _why_end(self) -> str | None:
        if self.step >= self.resolved.iterations and not self.strategy.pending:
            return "finished"
        if self._is_stopped():
            return "interrupted"
        limit = self.config.iterations_to_run
        return "stopped" if limit is not None and self.step - self._first_step >= limit else None

    def _is_stopped(self) -> bool:
        """Whether a rank was told to stop. Collective, so that all of them stop at the same step."""
        return self.stop.agreed(self.world.agree)

    def _end(self, status: str) -> str:
        self.guard.settle()
        self.save(wait=True)
        if status == "finished":
            done = self.evaluator.covers_all and self._evaluated_at == self.step
            if not done and self._evaluate(self.evaluator.full) is None:
                status = "interrupted"  # the next job makes up for it
        self.logbook.write_summary(self.step, status, self.guard.skipped)
        return status

    # ---- rows ----

    def _is_logged(self, step: int) -> bool:
        return step % self.config.log_interval == 0 or step == 1 or self._is_evaluated(step)

    def _is_evaluated(self, step: int) -> bool:
        every = self.config.eval_interval
        return step == self.resolved.iterations or bool(every and step % every == 0)

    def _is_saved(self, step: int) -> bool:
        every = self.config.ckpt_interval
        return bool(every and step % every == 0) or step in self._kept_steps

    def _record(self, result: StepResult, lr: float) -> None:
        """Write the row of the step that was just made, evaluated where it is time."""
        update_norm = self._update_norm.after()
        row = {
            **self.logbook.row(self.step, result, lr, update_norm, self.guard.skipped),
            **({} if self._balance is None else self._balance.scalars()),
            **self.driver.scalars(),
            **self.strategy.scalars(),
        }
        if self._is_evaluated(self.step):
            self.logbook.pending = row
            self._finish_pending_row()
        else:
            self.logbook.write(row)

    def _finish_pending_row(self) -> None:
        """Evaluate and write the row that waits for it; a stop on the way leaves it to the next job."""
        if self.logbook.pending is None:
            return
        evaluation = self._evaluate(self.evaluator.fixed)
        if evaluation is not None:
            for callback in self.callbacks:
                callback.on_evaluated(self.step)
            self.logbook.write_pending(evaluation)

    def _evaluate(self, how: Callable[..., Evaluation | None]) -> Evaluation | None:
        with self.time.leaving_out(), self.driver.evaluating(), self.strategy.evaluating():
            evaluation = how(self.model, self._is_stopped)
        if evaluation is not None:
            self._evaluated_at = self.step
            self.logbook.evaluated(evaluation)
        return evaluation

    def _describe_batch(self, step: int) -> dict[str, Any]:
        windows = getattr(self.batches, "windows", None)
        found: Any = windows(step - 1) if callable(windows) else None
        return {
            "windows": None if found is None else [int(window) for window in found],
            "data_seed": self.config.data_seed,
            "seq_len": self.resolved.seq_len,
        }

    # ---- checkpoints ----

    def save(self, *, wait: bool = False) -> float:
        """Checkpoint this step; returns the seconds that training was held up."""
        self.guard.settle()
        self.time.tick()
        with self.driver.evaluating():
            values, optimizer = tensors.collect(self.model, self.driver.optimizer)
            stored = self.strategy.stored(values)
            meta = {**self._meta(), "optimizer": optimizer}
            return self.saver.save(self.step, stored, meta, before=self._sync_rows, wait=wait)

    def _sync_rows(self) -> None:
        """Rows up to a checkpoint are on the disk before it is: whoever goes on from it writes the later ones only."""
        self.logbook.sync()
        for callback in self.callbacks:
            callback.sync()

    def _meta(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "tokens": self.resolved.batches.tokens(self.step),
            "sequences": self.resolved.batches.sequences(self.step),
            "config": self.config.as_dict(),
            "model": self.resolved.model.as_dict(),
            "random": random_state(),
            "guard": {"skipped": self.guard.skipped, "in_a_row": self.guard.in_a_row},
            "loss_scale": None if self._loss_scale is None else self._loss_scale.state_dict(),
            "experts": None if self._balance is None else self._balance.state_dict(),
            "callbacks": {callback.name: callback.state_dict() for callback in self.callbacks},
            "sharing": self.strategy.state_dict(),
            **self.logbook.state_dict(),
        }

    def restore(self, meta: dict[str, Any]) -> None:
        """Take up the place of a checkpoint, whose tensors have been loaded."""
        self.step = meta["step"]
        self.logbook.load_state_dict(meta)
        self.guard.skipped, self.guard.in_a_row = meta["guard"]["skipped"], meta["guard"]["in_a_row"]
        if self._loss_scale is not None and meta.get("loss_scale") is not None:
            self._loss_scale.load_state_dict(meta["loss_scale"])
        if self._balance is not None and meta.get("experts") is not None:
            self._balance.load_state_dict(meta["experts"])
        for callback in self.callbacks:
            if callback.name in meta["callbacks"]:
                callback.load_state_dict(meta["callbacks"][callback.name])
        restore_random_state(meta["random"])
