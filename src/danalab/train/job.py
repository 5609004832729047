"""`danalab train` from configuration to summary: open the data, decide what to go on from, build, fit."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from danalab.data import Dataset, open_dataset, resolve_dataset
from danalab.data.loader import Batches
from danalab.errors import UserError
from danalab.models import build_model
from danalab.train import runtime
from danalab.train.checkpoint.local_disk import local_folder
from danalab.train.checkpoint.saver import Retention, Saver
from danalab.train.config import TrainConfig
from danalab.train.console import ConsoleProgress
from danalab.train.driver import OptimizerDriver
from danalab.train.evaluation import Evaluator
from danalab.train.folder import RunFolder
from danalab.train.guard import NonFiniteError, SpikeMonitor
from danalab.train.resolve import Resolved, resolve
from danalab.train.resume import Source, choose_source, run_record
from danalab.train.trainer import Trainer

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

    Raises:
        UserError: bad settings, data or checkpoints.
    """
    if config.tune_malloc:
        runtime.tune_malloc()
    dataset = open_dataset(resolve_dataset(config.data, config.tokenizer))
    resolved = resolve(config, dataset)
    dataset.check_vocab(resolved.model.vocab_size)
    folder = RunFolder(resolved.run_dir)
    with folder.locked():
        resolved, source = choose_source(resolved, dataset, folder)
        if source is not None and source.finished:
            log.info("%s: finished at step %d already; --extend-to continues it", folder.path, source.step)
            return Outcome(folder.path, "finished", 0, folder.read_summary() or {})
        return _run(resolved, dataset, folder, source)


def _run(resolved: Resolved, dataset: Dataset, folder: RunFolder, source: Source | None) -> Outcome:
    stop = runtime.StopRequest()
    trainer = build_trainer(resolved, dataset, folder, stop)
    if source is not None:
        source.load(trainer)
    folder.write_config(run_record(resolved, dataset, trainer.device))
    folder.summary_file.unlink(missing_ok=True)
    folder.nonfinite_file.unlink(missing_ok=True)
    _announce(resolved, dataset, trainer)
    console = ConsoleProgress(resolved.iterations, trainer.step)
    trainer.callbacks.append(console)
    try:
        status = trainer.fit()
    except NonFiniteError:
        status = "nonfinite"
    finally:
        console.close()
    summary = folder.read_summary() or {}
    if status == "interrupted" and stop.signal is not None:
        log.info("%s: stopped by %s at step %d, checkpointed", folder.path, stop.signal.name, trainer.step)
    code = {"interrupted": stop.exit_code, "nonfinite": NONFINITE_EXIT_CODE}.get(status, 0)
    return Outcome(folder.path, status, code, summary)


def build_trainer(
    resolved: Resolved, dataset: Dataset, folder: RunFolder, stop: runtime.StopRequest | None = None
) -> Trainer:
    """A trainer at step 0 with freshly drawn weights; the folder is locked by the caller.

    Raises:
        UserError: the device, number format, compiler or validation split is not there.
    """
    config = resolved.config
    device = runtime.choose_device(config.device)
    runtime.set_numerics(config.deterministic)
    runtime.seed_everything(config.seed)
    autocast = _autocast(runtime.autocast_dtype(config.dtype, device), device)
    model = build_model(resolved.model, init=config.init, seed=config.seed, device=device)
    model.set_activation_checkpointing(config.activation_checkpointing)
    driver = OptimizerDriver.build(resolved, model)
    if config.compile if config.compile is not None else device.type == "cuda":
        runtime.require_compiler(device)
        for block in model.blocks:
            cast(nn.Module, block).compile()  # in place: names of parameters stay as they are
    batches = dataset.batches(seed=config.data_seed, global_batch=resolved.global_batch, seq_len=config.seq_len)
    val = open_dataset(dataset.path, "val")
    val.check_vocab(resolved.model.vocab_size)
    evaluator = Evaluator(
        val.sequential(config.seq_len),
        _keep_tokenizer(val, folder),
        batch_size=config.batch_size or 1,
        n_fixed=config.eval_batches * resolved.global_batch,
        autocast=autocast,
        device=device,
    )
    saver = Saver(
        folder.store,
        retention=Retention(config.keep_last, config.keep_every, config.kept_steps()),
        asynchronous=config.async_checkpoint,
        local_folder=local_folder(config.local_ckpt_dir, folder.path, rank=0),
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
        stop=stop or runtime.StopRequest(),
        callbacks=[SpikeMonitor()],
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


def _keep_tokenizer(dataset: Dataset, folder: RunFolder) -> Any:
    """Copy the tokenizer into the run folder; returns its table of bytes, or None where there is no tokenizer."""
    try:
        if not (folder.tokenizer_folder / "tokenizer.json").is_file():
            dataset.tokenizer.save(folder.tokenizer_folder)
        return dataset.token_bytes
    except UserError as error:
        log.warning("no bits per byte, and no text from this run: %s", error)
        return None


def _announce(resolved: Resolved, dataset: Dataset, trainer: Trainer) -> None:
    config, planned = resolved.config, resolved.plan
    for note in resolved.notes:
        log.info("%s", note)
    log.info("run %s on %s", resolved.run_dir, trainer.device)
    log.info("data %s: %s tokens, %s", dataset.path, f"{dataset.n_tokens:,}", dataset.tokenizer_name)
    log.info(
        "model %s: %d layers, d_model %d, %d heads; %s parameters",
        planned.arch, planned.n_layers, planned.d_model, planned.n_heads, f"{planned.exact_params:,}",
    )  # fmt: skip
    log.info(
        "global batch %d = batch %d x 1 rank x %d accumulation; %s tokens a step",
        resolved.global_batch, config.batch_size, config.acc_steps, f"{resolved.tokens_per_step:,}",
    )  # fmt: skip
    log.info(
        "%s, peak lr %.4g (%s), %s over %d steps, warm-up %d",
        planned.opt, planned.lr, resolved.lr_source, config.scheduler, resolved.iterations, planned.warmup,
    )  # fmt: skip
    log.info("from step %d", trainer.step)
    epochs = resolved.iterations * resolved.tokens_per_step / dataset.n_tokens
    if epochs > 1:
        log.info("the run sees its data %.1f times", epochs)
