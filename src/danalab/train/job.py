"""`danalab train` from configuration to summary: open the data, decide what to go on from, build, fit."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from danalab.data import Dataset, open_data
from danalab.data.loader import Batches
from danalab.errors import UserError
from danalab.models.resonance.model import Resonance
from danalab.train import runtime
from danalab.train.checkpoint.local_disk import local_folder
from danalab.train.checkpoint.saver import Retention, Saver
from danalab.train.config import TrainConfig
from danalab.train.console import ConsoleProgress
from danalab.train.diloco.setup import as_worker, worker_of
from danalab.train.driver import OptimizerDriver
from danalab.train.evaluation import FIXED_BATCH, Evaluator
from danalab.train.failures import explained_loss
from danalab.train.folder import RunFolder
from danalab.train.guard import NonFiniteError, SpikeMonitor
from danalab.train.loss_scale import LossScale
from danalab.train.parallel.environment import find_place
from danalab.train.parallel.launcher import launch
from danalab.train.parallel.layout import check_sharing, data_parallel_size, layout_of
from danalab.train.parallel.sharing import share
from danalab.train.parallel.world import World, joined
from danalab.train.resolve import Resolved, resolve
from danalab.train.resume import Source, agree_on_source, run_record
from danalab.train.trainer import Trainer
from danalab.train.watch import watchers

log = logging.getLogger(__name__)

NONFINITE_EXIT_CODE = 3


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    folder: Path
    """The run folder."""
    status: str
    """finished, stopped, interrupted or nonfinite."""
    exit_code: int
    """0; 85 ("requeue me") after SIGTERM or SIGUSR1; 130 after SIGINT; 3 where a loss was not finite."""
    summary: dict[str, Any]
    """summary.json, on rank 0."""
    is_main: bool = True
    """Whether this process is rank 0, the one that reports."""


def train(config: TrainConfig) -> Path:
    """Train, or go on training, and return the run folder.

    Raises:
        UserError: bad settings, data or checkpoints.
        NonFiniteError: a loss or gradient was not finite, by `config.on_nonfinite`.
    """
    outcome = run_training(config)
    if outcome.status == "nonfinite":
        raise NonFiniteError(f"{outcome.folder}: training ended at a loss or gradient that is not finite")
    return outcome.folder


def run_training(config: TrainConfig) -> Outcome:
    """Train as the command line does: every way of ending is an outcome.

    With `config.nproc` it starts that many processes and waits for them; under torchrun or srun it is one of many, and
    all of them return the same. The outcome's summary is complete on rank 0.

    Raises:
        UserError: bad settings, data or checkpoints.
        LostRankError: a rank died or stopped answering.
    """
    if config.nproc is not None and find_place(os.environ) is None:
        return _launch(config)
    layout = layout_of(config, os.environ)
    with (
        joined(layout, runtime.device_type(config.device)) as world,
        explained_loss(world),
        runtime.StopRequest() as stop,
        contextlib.ExitStack() as keep,
    ):
        if not world.speaks:
            logging.getLogger("danalab").setLevel(logging.ERROR)
        resolved = world.first(lambda: _settle(config, world, keep))
        folder = folder_of(resolved, world)
        dataset = _open(config)
        resolved, source = agree_on_source(resolved, dataset, folder, world)
        if source is not None and source.finished:
            if world.is_main:
                log.info("%s: finished at step %d already; --extend-to continues it", folder.path, source.step)
            return Outcome(folder.path, "finished", 0, folder.read_summary() or {}, world.speaks)
        return _run(resolved, dataset, folder, source, world, stop)


def _launch(config: TrainConfig) -> Outcome:
    """Refuse here what every process would refuse; then start them."""
    assert config.nproc is not None
    layout = layout_of(config, {})
    shape = layout.shape(config.nproc)
    resolved = resolve(config, _open(config), world_size=data_parallel_size(shape))
    check_sharing(resolved, layout, config.nproc)
    end = launch(config, config.nproc, runtime.device_type(config.device))
    folder = RunFolder(resolved.run_dir)
    status = {0: "finished", NONFINITE_EXIT_CODE: "nonfinite"}.get(end, "interrupted")
    summary = folder.read_summary() or {}
    return Outcome(folder.path, summary.get("status", status), end, summary)


def _open(config: TrainConfig) -> Dataset:
    dataset = open_data(config.data, config.tokenizer)
    dataset.set_cache(int(config.array_cache_gib * 2**30))
    return dataset


def _settle(config: TrainConfig, world: World, keep: contextlib.ExitStack) -> Resolved:
    """The run, decided; its folder is locked for as long as `keep` is open. By rank 0 for all."""
    dataset = _open(config)
    resolved = resolve(config, dataset, world_size=world.dp_size)
    dataset.check_vocab(resolved.model.vocab_size)
    check_sharing(resolved, world.layout, world.size)
    keep.enter_context(folder_of(resolved, world).locked())
    return as_worker(resolved, world) if world.layout.backend == "diloco" else resolved


def folder_of(resolved: Resolved, world: World) -> RunFolder:
    """The run folder; of a DiLoCo worker but the first a folder in it."""
    return RunFolder(resolved.run_dir / "workers" / str(world.worker) if world.worker else resolved.run_dir)


def _run(
    resolved: Resolved,
    dataset: Dataset,
    folder: RunFolder,
    source: Source | None,
    world: World,
    stop: runtime.StopRequest,
) -> Outcome:
    if resolved.config.tune_malloc:
        runtime.tune_malloc()  # not before the data are there: one arena holds up the threads that tokenise
    trainer = build_trainer(resolved, dataset, folder, stop, world)
    if source is not None:
        source.load(trainer, world)
    if world.is_main:
        folder.write_config(run_record(resolved, dataset, trainer.device, world))
        folder.summary_file.unlink(missing_ok=True)
        folder.nonfinite_file.unlink(missing_ok=True)
        _announce(resolved, dataset, trainer)
        if world.speaks:
            sample = None if dataset.sequence_length is None else resolved.seq_len
            trainer.callbacks.append(ConsoleProgress(resolved.iterations, trainer.step, sample_tokens=sample))
    try:
        status = trainer.fit()
    except NonFiniteError:
        status = "nonfinite"
    summary = (folder.read_summary() or {}) if world.is_main else {}
    if status == "interrupted" and stop.signal is not None and world.is_main:
        log.info("%s: stopped by %s at step %d, checkpointed", folder.path, stop.signal.name, trainer.step)
    code = {"interrupted": stop.exit_code, "nonfinite": NONFINITE_EXIT_CODE}.get(status, 0)
    return Outcome(folder.path, status, code, summary, world.speaks)


def build_trainer(
    resolved: Resolved,
    dataset: Dataset,
    folder: RunFolder,
    stop: runtime.StopRequest | None = None,
    world: World = World.single(),  # noqa: B008 - frozen
) -> Trainer:
    """A trainer at step 0 with freshly drawn weights; the folder is locked by the caller. Collective.

    Raises:
        UserError: the device, number format, compiler or validation split is not there.
    """
    config = resolved.config
    stop = runtime.StopRequest() if stop is None else stop
    is_worker = world.layout.backend == "diloco"
    sharing = worker_of(resolved, folder, world, stop) if is_worker else share(world)
    device = runtime.choose_device(config.device)
    runtime.set_numerics(config.deterministic)
    runtime.seed_everything(config.seed)
    compute_dtype = runtime.autocast_dtype(config.dtype, device)
    autocast = _autocast(compute_dtype, device)
    model = sharing.build_model(resolved.model, init=config.init, seed=config.seed, device=device)
    model.set_activation_checkpointing(config.activation_checkpointing)
    model.document_token = dataset.eos_id if config.document_mask else None
    if isinstance(model, Resonance):
        model.phase_lr_factor = config.phase_lr_factor
    # The compiler makes no code for the complex numbers of oscillators, and warns that it may be slower than eager.
    usual = device.type == "cuda" and not resolved.model.architecture.structure.oscillators
    if usual if config.compile is None else config.compile:
        runtime.require_compiler(device)
        for block in model.blocks:
            cast(nn.Module, block).compile()  # in place: names of parameters stay as they are
    sharing.wrap(model, compute_dtype)
    driver = OptimizerDriver.build(resolved, model, sharing.make_optimizer)
    batches = dataset.batches(
        seed=config.data_seed,
        global_batch=resolved.pace.batch,
        seq_len=resolved.seq_len,
        length=resolved.pace.length,
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
        sharing=sharing,
        loss_scale=LossScale(device) if compute_dtype == torch.float16 else None,
        callbacks=[SpikeMonitor(), *watchers(resolved, folder, model, driver.optimizer, sharing)],
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


def _announce(resolved: Resolved, dataset: Dataset, trainer: Trainer) -> None:
    config, planned, world = resolved.config, resolved.plan, trainer.world
    for note in resolved.notes:
        log.info("%s", note)
    log.info("run %s on %s", resolved.run_dir, trainer.device)
    log.info("data %s: %s tokens, %s", dataset.path, f"{dataset.n_tokens:,}", dataset.tokenizer_name)
    log.info(
        "model %s: %d layers, d_model %d, %d %s; %s parameters",
        planned.arch, planned.n_layers, planned.d_model, planned.n_heads,
        "heads" if planned.num_frequencies is None else f"groups, {planned.num_frequencies} frequencies",
        f"{planned.exact_params:,}",
    )  # fmt: skip
    log.info(
        "global batch %d = batch %d x %d rank%s x %d accumulation; %s tokens a step",
        resolved.global_batch, config.batch_size, world.dp_size, "s" * (world.dp_size > 1), config.acc_steps,
        f"{resolved.tokens_per_step:,}",
    )  # fmt: skip
    if world.size > 1:
        shape = " x ".join(f"{name} {size}" for name, size in world.layout.shape(world.size).items())
        log.info("%s on %d ranks: %s", world.layout.backend, world.size, shape)
    log.info(
        "%s, peak lr %.4g (%s), %s over %d steps, warm-up %d",
        planned.opt, planned.lr, resolved.lr_source, config.scheduler, resolved.iterations, planned.warmup,
    )  # fmt: skip
    log.info("from step %d", trainer.step)
    epochs = resolved.pace.tokens(resolved.iterations) / dataset.n_tokens
    if epochs > 1:
        log.info("the run sees its data %.1f times", epochs)
