"""A job of training from configuration to summary: open the data, choose a resume point, build, fit."""

import logging
import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from danalab.data import Dataset
from danalab.errors import UserError
from danalab.files import write_json
from danalab.hardware import available_cores, chosen_threads
from danalab.models.decoder import require_memory
from danalab.tables import load
from danalab.train.callbacks.base import Callback, CallbackContext
from danalab.train.callbacks.console import ConsoleProgress, log_to_stderr
from danalab.train.checkpoint import tensors
from danalab.train.checkpoint.saver import Saver, local_folder
from danalab.train.config.resolve import resolve
from danalab.train.config.train_config import MOST_EPOCHS, REPEATED, TrainConfig
from danalab.train.parallel.launcher import launch
from danalab.train.parallel.layout import check_parallel, data_parallel_size, find_place, layout_of
from danalab.train.parallel.strategy import strategy_of
from danalab.train.parallel.world import World, joined, report_lost_ranks
from danalab.train.pretraining import pretraining
from danalab.train.run.folder import RunFolder
from danalab.train.run.logbook import Logbook
from danalab.train.run.resume import ResumePoint, choose_resume_point, run_record
from danalab.train.stage import MakeStage, stage_kind
from danalab.train.step.average import WeightAverage
from danalab.train.step.finite_guard import FiniteGuard, NonFiniteError
from danalab.train.step.gradients import CurvatureEstimator, GradientStep, LossScale
from danalab.train.system.device import (
    allow_many_files,
    autocast_context,
    autocast_dtype,
    choose_device,
    device_type,
    seed_everything,
    set_numerics,
)
from danalab.train.system.signals import NONFINITE, StopRequest
from danalab.train.trainer import OptimizerDriver, Trainer

log = logging.getLogger(__name__)


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
    trainer = build_trainer(spec, dataset, folder, stop, world, stage_kind(spec).make)
    if source is not None:
        source.load(trainer, world)
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


def _announce(spec: TrainConfig, dataset: Dataset, trainer: Trainer) -> None:
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


# ---- the trainer of a run ----


def build_trainer(
    spec: TrainConfig,
    dataset: Dataset,
    folder: RunFolder,
    stop: StopRequest | None = None,
    world: World = World(),  # noqa: B008 - frozen
    make_stage: MakeStage = pretraining,
) -> Trainer:
    """A trainer at step 0 with new weights, in a folder that the caller has locked. Collective."""
    stop = StopRequest() if stop is None else stop
    strategy = strategy_of(world.layout.backend)(world, spec)
    device = choose_device(spec.device)
    needed = spec.memory_gib(spec.batch_size, world.size, recompute=True)
    require_memory(int(needed * 2**30), device, "training with this model, micro-batch and context")
    set_numerics(spec.deterministic)
    seed_everything(spec.seed)
    compute_dtype = autocast_dtype(spec.dtype, device)
    autocast = autocast_context(compute_dtype, device)
    model = strategy.build_model(spec.model, init=spec.init, seed=spec.seed, device=device)
    model.set_activation_checkpointing(spec.activation_checkpointing)
    model.document_token = dataset.eos_id if spec.document_mask else None
    if spec.compile:
        for block in model.blocks:
            cast(nn.Module, block).compile()  # in place: names of parameters stay as they are
    strategy.wrap(model, compute_dtype)
    if spec.model.dropout:  # other masks for other data
        seed_everything(spec.seed + world.dp_rank)
    driver = OptimizerDriver.build(spec, model, strategy.make_optimizer)
    stage = make_stage(spec, dataset, folder, world, device, autocast)
    loss_scale = LossScale() if compute_dtype == torch.float16 else None
    gradients = GradientStep(
        model,
        driver.parameters,
        micro_batch=spec.batch_size,
        seq_len=spec.seq_len,
        grad_clip=spec.grad_clip,
        loss=stage.loss,
        autocast=autocast,
        strategy=strategy,
        loss_scale=loss_scale,
    )
    curvature = CurvatureEstimator(
        gradients, driver.optimizer, seed=spec.seed, vocab_size=spec.model.vocab_size
    )
    names = tensors.parameter_names(model, driver.optimizer)
    guard = FiniteGuard(
        spec.on_nonfinite,
        folder.nonfinite_file,
        lambda step: stage.batches.describe(step - 1),
        dict(zip(names, driver.parameters, strict=True)),
        world,
    )
    callbacks = make_callbacks(
        CallbackContext(spec, folder.path, model, driver.optimizer, strategy, stage.consumption)
    )
    logbook = Logbook(spec, folder, stage.consumption, callbacks, device, world)
    saver = Saver(
        folder.store,
        keep_last=spec.keep_last,
        keep_every=spec.keep_every,
        asynchronous=spec.async_checkpoint,
        world=world,
        local_folder=local_folder(spec.local_ckpt_dir, folder.path, rank=world.rank),
    )
    if spec.ema is not None and driver.switches:
        raise UserError(f"--ema {spec.ema:g}: {spec.opt} averages the weights itself; leave it out")
    average = None if spec.ema is None else WeightAverage(model, spec.ema)
    return Trainer(
        spec,
        stage,
        model,
        driver,
        spec.schedule(),
        gradients,
        guard,
        logbook,
        saver,
        strategy,
        device,
        stop,
        callbacks,
        curvature,
        loss_scale,
        average,
    )


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
