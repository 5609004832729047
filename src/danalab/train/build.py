"""Builds a trainer from a `TrainConfig`."""

from typing import cast

import torch
from torch import nn

from danalab.data import Dataset
from danalab.errors import UserError
from danalab.models.decoder import require_memory
from danalab.tables import load
from danalab.train.callbacks.base import Callback, CallbackContext
from danalab.train.checkpoint import tensors
from danalab.train.checkpoint.saver import Saver, local_folder
from danalab.train.config.train_config import TrainConfig
from danalab.train.parallel.strategy import strategy_of
from danalab.train.parallel.world import World
from danalab.train.pretraining import pretraining
from danalab.train.run.folder import RunFolder
from danalab.train.run.logbook import Logbook
from danalab.train.stage import MakeStage
from danalab.train.step.average import WeightAverage
from danalab.train.step.finite_guard import FiniteGuard
from danalab.train.step.gradients import GradientStep, LossScale
from danalab.train.step.optimizer_driver import CurvatureEstimator, OptimizerDriver
from danalab.train.system.device import (
    autocast_context,
    autocast_dtype,
    choose_device,
    require_compiler,
    seed_everything,
    set_numerics,
)
from danalab.train.system.signals import StopRequest
from danalab.train.trainer import Trainer


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
        require_compiler(device)
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
    curvature = CurvatureEstimator(gradients, driver, seed=spec.seed, vocab_size=spec.model.vocab_size)
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
        keep_steps=spec.kept_steps(),
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
    ("sample_prompts", "danalab.train.callbacks.console:TextSamples"),
    ("log_dynamics", "danalab.train.statistics:Dynamics"),
    ("collect_tau_stats", "danalab.train.statistics:TauStatistics"),
    ("tensorboard", "danalab.train.trackers:TensorBoardMirror"),
    ("wandb", "danalab.train.trackers:WandbMirror"),
]
"""(the setting that asks for a callback, or None: every run has it; its class), in the order of their calls."""


def make_callbacks(context: CallbackContext) -> list[Callback]:
    """The callbacks that the run's settings ask for, on this rank."""
    kinds = [load(address) for name, address in CALLBACKS if name is None or getattr(context.spec, name)]
    return [kind(context) for kind in kinds if context.writes or not kind.rank0_only]
