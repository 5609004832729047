"""Builds a trainer from a `RunSpec`."""

from typing import cast

import torch
from torch import nn

from danalab.data import Dataset
from danalab.train.callbacks.base import CallbackContext
from danalab.train.callbacks.registry import make_callbacks
from danalab.train.checkpoint import tensors
from danalab.train.checkpoint.local_disk import local_folder
from danalab.train.checkpoint.saver import Retention, Saver
from danalab.train.config.run_spec import RunSpec
from danalab.train.loop_settings import LoopSettings
from danalab.train.parallel.diloco.setup import worker_of
from danalab.train.parallel.registry import make_strategy
from danalab.train.parallel.world import World
from danalab.train.pretraining import pretraining
from danalab.train.run.folder import RunFolder
from danalab.train.run.logbook import Logbook
from danalab.train.stage import MakeStage
from danalab.train.step.curvature import Curvature
from danalab.train.step.finite_guard import FiniteGuard
from danalab.train.step.gradients import GradientStep
from danalab.train.step.loss_scale import LossScale
from danalab.train.step.memory_check import check_training_memory
from danalab.train.step.optimizer_driver import OptimizerDriver
from danalab.train.system.device import autocast_context, autocast_dtype, choose_device, require_compiler, set_numerics
from danalab.train.system.rng import seed_everything
from danalab.train.system.signals import StopRequest
from danalab.train.trainer import Trainer


def build_trainer(
    spec: RunSpec,
    dataset: Dataset,
    folder: RunFolder,
    stop: StopRequest | None = None,
    world: World = World.single(),  # noqa: B008 - frozen
    make_stage: MakeStage = pretraining,
) -> Trainer:
    """A trainer at step 0 with new weights; the folder is locked by the caller. Collective.

    Raises:
        UserError: the device, number format, compiler or validation split is not there.
    """
    execution, checkpoints = spec.execution, spec.checkpoints
    stop = StopRequest() if stop is None else stop
    strategy = worker_of(spec, folder, world, stop) if world.layout.backend == "diloco" else make_strategy(world)
    device = choose_device(execution.device)
    check_training_memory(spec, world, device)
    set_numerics(execution.deterministic)
    seed_everything(spec.loss.seed)
    compute_dtype = autocast_dtype(spec.dtype, device)
    autocast = autocast_context(compute_dtype, device)
    model = strategy.build_model(spec.model, init=spec.start.init, seed=spec.loss.seed, device=device)
    model.set_activation_checkpointing(execution.activation_checkpointing)
    model.document_token = dataset.eos_id if spec.data.document_mask else None
    model.phase_lr_factor = spec.optimizer.phase_lr_factor
    if spec.compile:
        require_compiler(device)
        for block in model.blocks:
            cast(nn.Module, block).compile()  # in place: names of parameters stay as they are
    strategy.wrap(model, compute_dtype)
    if spec.model.dropout:  # other masks for other data
        seed_everything(spec.loss.seed + world.dp_rank)
    driver = OptimizerDriver.build(spec, model, strategy.make_optimizer)
    stage = make_stage(spec, dataset, folder, world, device, autocast)
    loss_scale = LossScale(device) if compute_dtype == torch.float16 else None
    gradients = GradientStep(
        model,
        driver.parameters,
        micro_batch=spec.micro_batch,
        seq_len=spec.seq_len,
        grad_clip=spec.loss.grad_clip,
        loss=stage.loss,
        autocast=autocast,
        strategy=strategy,
        loss_scale=loss_scale,
    )
    curvature = Curvature(
        model, gradients, driver, seed=spec.loss.seed, vocab_size=spec.model.vocab_size, autocast=autocast,
        strategy=strategy, device=device,
    )  # fmt: skip
    names = tensors.parameter_names(model, driver.optimizer)
    guard = FiniteGuard(
        execution.on_nonfinite,
        folder.nonfinite_file,
        lambda step: stage.batches.describe(step - 1),
        dict(zip(names, driver.parameters, strict=True)),
        world,
    )
    callbacks = make_callbacks(CallbackContext(spec, folder.path, model, driver.optimizer, strategy))
    logbook = Logbook(
        folder, stage.consumption, callbacks, device, world,
        iterations=spec.iterations, params=spec.plan.exact_params, peak_tflops=execution.peak_tflops,
    )  # fmt: skip
    saver = Saver(
        folder.store,
        retention=Retention(checkpoints.keep_last, checkpoints.keep_every, checkpoints.kept_steps()),
        asynchronous=checkpoints.async_checkpoint,
        world=world,
        local_folder=local_folder(checkpoints.local_ckpt_dir, folder.path, rank=world.rank),
    )
    settings = LoopSettings(
        iterations=spec.iterations,
        iterations_to_run=spec.job.iterations_to_run,
        log_interval=spec.tracking.log_interval,
        eval_interval=spec.evaluation.eval_interval or 0,
        ckpt_interval=checkpoints.ckpt_interval,
        ckpt_steps=frozenset(checkpoints.kept_steps()),
        gc_interval=execution.gc_interval,
        collective_timeout=spec.parallel.collective_timeout,
    )
    return Trainer(
        settings, stage, model, driver, spec.schedule(), gradients, guard, logbook, saver, strategy, device, stop,
        callbacks, curvature, loss_scale, record={"config": spec.config.as_dict(), "model": spec.model.as_dict()},
    )  # fmt: skip
