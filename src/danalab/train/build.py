"""A run's parts put together: model, optimizer, batches, evaluation, checkpoints, and the trainer that has them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from danalab.data import Dataset
from danalab.data.order.batches import Batches
from danalab.errors import UserError
from danalab.train.callbacks.registry import make_callbacks
from danalab.train.callbacks.spikes import SpikeMonitor
from danalab.train.checkpoint.local_disk import local_folder
from danalab.train.checkpoint.saver import Retention, Saver
from danalab.train.config.run_spec import RunSpec
from danalab.train.evaluation.evaluator import FIXED_BATCH, Evaluator
from danalab.train.parallel.diloco.setup import worker_of
from danalab.train.parallel.registry import make_strategy
from danalab.train.parallel.world import World
from danalab.train.run.folder import RunFolder
from danalab.train.step.loss_scale import LossScale
from danalab.train.step.optimizer_driver import OptimizerDriver
from danalab.train.system.device import autocast_dtype, choose_device, require_compiler, set_numerics
from danalab.train.system.rng import seed_everything
from danalab.train.system.signals import StopRequest
from danalab.train.trainer import Trainer

log = logging.getLogger(__name__)


def build_trainer(
    resolved: RunSpec,
    dataset: Dataset,
    folder: RunFolder,
    stop: StopRequest | None = None,
    world: World = World.single(),  # noqa: B008 - frozen
) -> Trainer:
    """A trainer at step 0 with freshly drawn weights; the folder is locked by the caller. Collective.

    Raises:
        UserError: the device, number format, compiler or validation split is not there.
    """
    config = resolved.config
    stop = StopRequest() if stop is None else stop
    is_worker = world.layout.backend == "diloco"
    strategy = worker_of(resolved, folder, world, stop) if is_worker else make_strategy(world)
    device = choose_device(config.device)
    set_numerics(config.deterministic)
    seed_everything(config.seed)
    compute_dtype = autocast_dtype(resolved.dtype, device)
    autocast = _autocast(compute_dtype, device)
    model = strategy.build_model(resolved.model, init=config.init, seed=config.seed, device=device)
    model.set_activation_checkpointing(config.activation_checkpointing)
    model.document_token = dataset.eos_id if config.document_mask else None
    model.phase_lr_factor = config.phase_lr_factor
    if resolved.compile:
        require_compiler(device)
        for block in model.blocks:
            cast(nn.Module, block).compile()  # in place: names of parameters stay as they are
    strategy.wrap(model, compute_dtype)
    driver = OptimizerDriver.build(resolved, model, strategy.make_optimizer)
    batches = dataset.batches(
        seed=config.data_seed,
        global_batch=resolved.batches.batch,
        seq_len=resolved.seq_len,
        length=resolved.batches.length,
        packing=config.packing,
        rank=world.dp_rank,
        world_size=world.dp_size,
    )
    if world.is_main and (packing := batches.report()) is not None:
        log.info("packing: %s", packing)
    val = dataset.open_split("val")
    val.check_vocab(resolved.model.vocab_size)
    evaluator = Evaluator(
        val.sequential(resolved.seq_len),
        _keep_tokenizer(val, folder, world),
        batch_size=config.batch_size or 1,
        n_fixed=config.eval_batches * FIXED_BATCH,
        autocast=autocast,
        device=device,
        world=World.single() if is_worker else world,
    )
    saver = Saver(
        folder.store,
        retention=Retention(config.keep_last, config.keep_every, config.kept_steps()),
        asynchronous=config.async_checkpoint,
        world=world,
        local_folder=local_folder(config.local_ckpt_dir, folder.path, rank=world.rank),
    )
    return Trainer(
        resolved,
        model,
        driver,
        PinnedBatches(batches) if device.type == "cuda" else batches,
        evaluator,
        folder,
        saver,
        autocast=autocast,
        device=device,
        stop=stop,
        strategy=strategy,
        loss_scale=LossScale(device) if compute_dtype == torch.float16 else None,
        callbacks=[SpikeMonitor(), *make_callbacks(resolved, folder, model, driver.optimizer, strategy)],
    )


class PinnedBatches:
    """Batches in page-locked memory, which a GPU copies beside its work."""

    def __init__(self, batches: Batches):
        self.windows = batches.windows
        self._batches = batches

    def iterate(self, start_step: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """See `BatchSource.iterate`."""
        return self._batches.iterate(start_step, pin_memory=True)


def _autocast(dtype: torch.dtype | None, device: torch.device) -> Callable[[], Any]:
    if dtype is None:
        return contextlib.nullcontext
    return partial(torch.autocast, device.type, dtype=dtype)


def _keep_tokenizer(dataset: Dataset, folder: RunFolder, world: World) -> Any:
    """Copy the tokenizer into the run folder; returns its table of bytes, or None where there is no tokenizer."""
    try:
        if world.is_main and not (folder.tokenizer_folder / "tokenizer.json").is_file():
            dataset.tokenizer.save(folder.tokenizer_folder)
        return dataset.token_bytes
    except UserError as error:
        if world.is_main:
            log.warning("no bits per byte, and no text from this run: %s", error)
        return None
