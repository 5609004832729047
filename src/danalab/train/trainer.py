"""A job of training: open the data, choose where to resume, build the trainer, run its loop. The same for all stages.

    batch -> micro-batches -> gradient norm, clip -> finite? -> update -> schedule -> row; evaluate; save; stop?

All ranks make the same steps and the same decisions; rank 0 writes.
The step of a trainer is the number of steps made: batch k (from 0) is used by the step that makes it k + 1.
"""

import contextlib
import copy
import gc
import logging
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

from danalab.data import Dataset
from danalab.errors import UserError
from danalab.files import write_json
from danalab.hardware import available_cores, chosen_threads
from danalab.models.decoder import require_memory
from danalab.optim import build_optimizer, settings_of
from danalab.tables import load
from danalab.train.callbacks.base import Callback, CallbackContext
from danalab.train.callbacks.console import ConsoleProgress, log_to_stderr
from danalab.train.checkpoint import tensors
from danalab.train.checkpoint.saver import Saver, local_folder
from danalab.train.checkpoint.store import read_meta
from danalab.train.config.resolve import resolve
from danalab.train.config.train_config import MOST_EPOCHS, REPEATED, TrainConfig
from danalab.train.parallel.launcher import launch
from danalab.train.parallel.layout import check_parallel, data_parallel_size, find_place, layout_of
from danalab.train.parallel.strategy import strategy_of
from danalab.train.parallel.world import World, joined, report_lost_ranks
from danalab.train.pretraining import pretraining
from danalab.train.run.folder import RunFolder
from danalab.train.run.logbook import Logbook
from danalab.train.run.metrics import read_rows, write_rows
from danalab.train.run.resume import ResumePoint, choose_resume_point, run_record
from danalab.train.stage import MakeStage, stage_kind
from danalab.train.step.average import WeightAverage
from danalab.train.step.finite_guard import FiniteGuard, NonFiniteError
from danalab.train.step.gradients import CurvatureEstimator, GradientStep, LossScale, StepResult, update_norm
from danalab.train.step.loss import TrainingBatch
from danalab.train.system.device import (
    allow_many_files,
    autocast_context,
    autocast_dtype,
    choose_device,
    device_type,
    explain_errors,
    random_state,
    restore_random_state,
    seed_everything,
    set_numerics,
)
from danalab.train.system.signals import NONFINITE, StopRequest

log = logging.getLogger(__name__)
GC_INTERVAL = 1000
"""Steps between Python's garbage collections."""


# ---- a job ----


@dataclass(frozen=True)
class TrainingOutcome:
    """How a job ended."""

    folder: Path
    """The run folder."""
    status: str
    """finished, stopped, interrupted or nonfinite."""
    exit_code: int
    """One of `danalab.train.system.signals.ORDERLY`."""
    summary: dict[str, Any]
    """summary.json, on rank 0."""
    is_main: bool = True
    """Whether this process reports to the console."""


def run_training(config: TrainConfig, stop: StopRequest | None = None) -> TrainingOutcome:
    """Train as the command line does; returns however training ends.

    With `config.nproc` it starts that many processes and waits for them. Under torchrun or srun it is one of many
    processes, which all return the same; the summary is complete on rank 0. `stop`: of a caller that listens for
    signals already. UserError: bad settings, data or checkpoints. LostRankError: a rank died or stopped answering.
    """
    stop = StopRequest() if stop is None else stop
    if config.nproc is not None and find_place(os.environ) is None:
        return _launch(config, stop)
    allow_many_files()
    layout = layout_of(config, os.environ)
    with (
        joined(layout, device_type(config.device)) as world,
        report_lost_ranks(world),
        stop,
        ExitStack() as keep,
    ):
        if not world.is_main:
            logging.getLogger("danalab").setLevel(logging.ERROR)
        spec = world.compute_on_rank0(lambda: _settle(config, world, keep))
        folder = RunFolder(spec.run_dir)
        dataset = stage_kind(config).open_data(spec)
        spec, source = world.compute_on_rank0(partial(choose_resume_point, spec, dataset, folder))
        if source is not None and source.finished:
            if world.is_main:
                log.info(
                    "%s: already finished at step %d; --extend-to continues it", folder.path, source.step
                )
            summary = folder.read_summary() or {}
            return TrainingOutcome(folder.path, "finished", 0, summary, world.is_main)
        if stop.agreed(world.agree):  # the next job starts from the same place
            summary = {
                "status": "interrupted",
                "step": source.step if source else 0,
                "iterations": spec.last_step,
            }
            return TrainingOutcome(folder.path, "interrupted", stop.exit_code, summary, world.is_main)
        return _run(spec, dataset, folder, source, world, stop)


def _launch(config: TrainConfig, stop: StopRequest) -> TrainingOutcome:
    """Check the configuration once for all processes; then start them."""
    assert config.nproc is not None
    layout = layout_of(config, {})
    shape = layout.shape(config.nproc)
    spec, _ = _resolve(config, data_parallel_size(shape))
    check_parallel(spec, layout, config.nproc)
    folder = RunFolder(spec.run_dir)
    end = launch(config, config.nproc, device_type(config.device), stop, _train_rank)
    status = {0: "finished", NONFINITE: "nonfinite"}.get(end, "interrupted")
    # A stop before the first step leaves no summary.
    summary = {
        "status": status,
        **(folder.read_summary() or {"step": 0, "iterations": spec.last_step}),
    }
    return TrainingOutcome(folder.path, summary["status"], end, summary)


def _train_rank(config: TrainConfig, stop: StopRequest) -> int:
    """What a process that the launcher started does."""
    if chosen_threads() is None:
        torch.set_num_threads(max(1, available_cores() // int(os.environ["LOCAL_WORLD_SIZE"])))
    log_to_stderr()
    if os.environ["RANK"] != "0":
        logging.getLogger("danalab").setLevel(logging.ERROR)
    return run_training(config, stop).exit_code


def _settle(config: TrainConfig, world: World, keep: ExitStack) -> TrainConfig:
    """The resolved run; its folder is locked while `keep` is open. On rank 0 for all."""
    spec, dataset = _resolve(config, world.dp_size)
    dataset.check_vocab(spec.model.vocab_size)
    check_parallel(spec, world.layout, world.size)
    keep.enter_context(RunFolder(spec.run_dir).locked())
    stage_kind(config).prepare(config)
    return spec


def _resolve(config: TrainConfig, ranks: int) -> tuple[TrainConfig, Dataset]:
    """The run and its data. What is wrong with the settings shows before data are prepared, which can take hours."""
    folder = None if config.run_dir is None else RunFolder(config.run_dir)
    if folder is not None and folder.config_file.is_file():
        with suppress(UserError):  # a damaged one is refused where the run is resumed
            began = folder.read_config()["config"]
            if config.data is None and began.get("data"):
                config = replace(config, data=began["data"])
    kind, device = stage_kind(config), device_type(config.device)
    if config.epochs is None and (vocabulary := kind.expected_vocabulary(config)) is not None:
        resolve(config, vocabulary, ranks, device)
    dataset = kind.open_data(config)
    return resolve(config, dataset, ranks, device), dataset


def _run(
    spec: TrainConfig,
    dataset: Dataset,
    folder: RunFolder,
    source: ResumePoint | None,
    world: World,
    stop: StopRequest,
) -> TrainingOutcome:
    trainer = Trainer(spec, dataset, folder, stop, world, stage_kind(spec).make)
    if source is not None:
        trainer.load(source)
    if world.is_main:
        write_json(folder.config_file, run_record(spec, dataset, trainer.device, world))
        folder.summary_file.unlink(missing_ok=True)
        folder.nonfinite_file.unlink(missing_ok=True)
        _announce(spec, dataset, trainer)
        trainer.callbacks.append(ConsoleProgress(spec.last_step, trainer.step))
    try:
        status = trainer.fit()
    except NonFiniteError:
        status = "nonfinite"
    summary = (folder.read_summary() or {}) if world.is_main else {}
    if status == "interrupted" and stop.signal is not None and world.is_main:
        log.info("%s: stopped by %s at step %d, checkpointed", folder.path, stop.signal.name, trainer.step)
    code = {"interrupted": stop.exit_code, "nonfinite": NONFINITE}.get(status, 0)
    return TrainingOutcome(folder.path, status, code, summary, world.is_main)


def _announce(spec: TrainConfig, dataset: Dataset, trainer: "Trainer") -> None:
    world = trainer.world
    for note in spec.notes:
        log.info("%s", note)
    log.info("run %s on %s", spec.run_dir, trainer.device)
    log.info("data %s: %s tokens, %s", dataset.path, f"{dataset.n_tokens:,}", dataset.tokenizer_name)
    log.info(
        "model %s: %d layer%s, d_model %d, %d %s; %s parameters",
        spec.arch,
        spec.model.n_layers,
        "s" * (spec.model.n_layers > 1),
        spec.model.d_model,
        spec.model.n_heads,
        "head" + "s" * (spec.model.n_heads > 1)
        if not spec.model.architecture.oscillators
        else f"groups, {spec.model.num_frequencies} frequencies",
        f"{spec.model.exact_params:,}",
    )
    log.info(
        "global batch %d = batch %d x %d rank%s x %d accumulation; %s tokens a step",
        spec.global_batch,
        spec.batch_size,
        world.dp_size,
        "s" * (world.dp_size > 1),
        spec.global_batch // (spec.batch_size * world.dp_size),
        f"{spec.tokens_per_step:,}",
    )
    if world.size > 1:
        shape = " x ".join(f"{name} {size}" for name, size in world.layout.shape(world.size).items())
        log.info("%s on %d ranks: %s", world.layout.backend, world.size, shape)
    log.info(
        "%s, peak lr %.4g (%s), %s over %d steps, warmup %d",
        spec.opt,
        spec.lr,
        spec.lr_source,
        spec.scheduler,
        spec.last_step,
        spec.warmup_steps,
    )
    log.info("resuming at step %d" if trainer.step else "starting at step %d", trainer.step)
    epochs = spec.tokens(spec.last_step) / dataset.tokens_per_epoch(spec.seq_len)
    if epochs > 1:
        log.info("training for %.1f epochs%s", epochs, f"; {REPEATED}" if epochs > MOST_EPOCHS else "")


# ---- a run ----


class Trainer:
    """One run, from its current step to its end or a stop."""

    def __init__(
        self,
        spec: TrainConfig,
        dataset: Dataset,
        folder: RunFolder,
        stop: StopRequest | None = None,
        world: World = World(),  # noqa: B008 - frozen
        make_stage: MakeStage = pretraining,
    ):
        """New weights, step 0, in a folder that the caller has locked. Collective. UserError: too little memory."""
        self.spec, self.world, self.step = spec, world, 0
        self.stop = StopRequest() if stop is None else stop
        self.strategy = strategy_of(world.layout.backend)(world, spec)
        self.device = device = choose_device(spec.device)
        dtype = autocast_dtype(spec.dtype, device)
        self.model = model = self._new_model(dtype, dataset)
        self.driver = OptimizerDriver.build(spec, model, self.strategy.make_optimizer)
        if spec.ema is not None and self.driver.switches:
            raise UserError(f"--ema {spec.ema:g}: {spec.opt} averages the weights itself; leave it out")
        self.average = None if spec.ema is None else WeightAverage(model, spec.ema)
        self.schedule = spec.schedule()
        """0-based step -> factor of the peak learning rate."""

        autocast = autocast_context(dtype, device)
        self.stage = make_stage(spec, dataset, folder, world, device, autocast)
        self.batches = self.stage.batches
        self.batches.attach(model)
        self.loss_scale = LossScale() if dtype == torch.float16 else None
        self.gradients = GradientStep(
            model,
            self.driver.parameters,
            micro_batch=spec.batch_size,
            seq_len=spec.seq_len,
            grad_clip=spec.grad_clip,
            loss=self.stage.loss,
            autocast=autocast,
            strategy=self.strategy,
            loss_scale=self.loss_scale,
        )
        self.curvature = CurvatureEstimator(
            self.gradients, self.driver.optimizer, seed=spec.seed, vocab_size=spec.model.vocab_size
        )
        names = tensors.parameter_names(model, self.driver.optimizer)
        self.guard = FiniteGuard(
            spec.on_nonfinite,
            folder.nonfinite_file,
            lambda step: self.batches.describe(step - 1),
            dict(zip(names, self.driver.parameters, strict=True)),
            world,
        )

        self.callbacks = make_callbacks(
            CallbackContext(
                spec, folder.path, model, self.driver.optimizer, self.strategy, self.stage.consumption
            )
        )
        """Called in this order."""
        self.logbook = Logbook(spec, folder, self.stage.consumption, self.callbacks, device, world)
        self.time = self.logbook.time
        self.saver = Saver(
            folder.store,
            keep_last=spec.keep_last,
            keep_every=spec.keep_every,
            asynchronous=spec.async_checkpoint,
            world=world,
            local_folder=local_folder(spec.local_ckpt_dir, folder.path, rank=world.rank),
        )
        self._first_step, self._factor = 0, 1.0
        self._before: list[torch.Tensor] = []  # weights before the update of a logged step
        self._last: StepResult | None = None
        # Copies: an evaluator may keep its last result.
        self._evaluators_of_average = [copy.copy(evaluator) for evaluator in self.stage.evaluators]

    def _new_model(self, dtype: torch.dtype | None, dataset: Dataset) -> nn.Module:
        """The model on its device, as the strategy has it; UserError: it does not fit."""
        spec, world = self.spec, self.world
        needed = spec.memory_gib(spec.batch_size, world.size, recompute=True)
        require_memory(int(needed * 2**30), self.device, "training with this model, micro-batch and context")
        set_numerics(spec.deterministic)
        seed_everything(spec.seed)
        model = self.strategy.build_model(spec.model, init=spec.init, seed=spec.seed, device=self.device)
        model.set_activation_checkpointing(spec.activation_checkpointing)
        model.document_token = dataset.eos_id if spec.document_mask else None
        if spec.compile:
            for block in model.blocks:
                cast(nn.Module, block).compile()  # in place: names of parameters stay as they are
        self.strategy.wrap(model, dtype)
        if spec.model.dropout:  # other masks for other data
            seed_everything(spec.seed + world.dp_rank)
        return model

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

    def load(self, point: ResumePoint) -> None:
        """Go on from a resume point. Collective. UserError: it is another model's."""
        source, own, world = point.source, point.own, self.world
        meta: dict[str, Any] = read_meta(source) if point.is_checkpoint else {}
        if not point.is_checkpoint:
            self._load_export(source)
        elif point.weights_only or meta.get("imported"):
            self.strategy.read(source, self.model, None, keep_settings=True)
        else:
            self.strategy.read(source, self.model, self.driver.optimizer, keep_settings=not own)
            self._restore(meta)
            if self.average is not None:
                self.average.restore(source, meta.get("average"))
            if own:
                self.saver.committed = self.step
            elif world.is_main:  # with the rows of the other run
                rows = read_rows(
                    RunFolder(source.resolve().parent.parent).metrics_file, passes_over_broken=True
                )
                write_rows(self.logbook.metrics_file, rows, self.step)
        if world.is_main:
            log.info("resumes from %s" if self.step else "weights of %s, from step 0", source)

    def _load_export(self, path: Path) -> None:
        """The weights of a model in Hugging Face format."""
        from danalab.train.run.exchange import read_model

        try:
            weights = read_model(path).state_dict()
            set_model_state_dict(self.model, weights, options=StateDictOptions(full_state_dict=True))
        except (RuntimeError, KeyError) as error:
            raise UserError(
                f"--init-from {path}: another model: {' '.join(str(error).split())[:300]}"
            ) from error
        self.strategy.reset()

    def _restore(self, meta: dict[str, Any]) -> None:
        """Everything of a checkpoint but its tensors."""
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
        states: list[dict[str, Any]] = meta.get("random_by_rank") or [meta["random"]]
        if len(states) == self.world.size:
            restore_random_state(states[self.world.rank])
        elif self.world.is_main:  # other ranks than before keep their seeds
            restore_random_state(states[0])


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


CALLBACKS = [
    (None, "danalab.train.callbacks.console:SpikeMonitor"),
    ("collect_tau_stats", "danalab.train.statistics:TauStatistics"),
    ("tensorboard", "danalab.train.trackers:TensorBoardMirror"),
    ("wandb", "danalab.train.trackers:WandbMirror"),
]
"""(the setting that asks for a callback, or None: every run has it; its class), in the order of their calls."""


def make_callbacks(context: CallbackContext) -> list[Callback]:
    """The callbacks that the run's settings ask for, on this rank."""
    kinds = [load(address) for name, address in CALLBACKS if name is None or getattr(context.spec, name)]
    return [kind(context) for kind in kinds if context.writes or not kind.rank0_only]
