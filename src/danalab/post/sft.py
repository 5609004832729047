"""`danalab sft` and `danalab mid`: a run continues on conversations, with pre-training's loss on packed rows.

    JSONL, tasks        `chat.dialects`, `chat.tasks`
    -> conversations    `chat.messages`
    -> ids, mask        `chat.marks`
    -> rows             `dataset`
    -> batches          `data.order.batches`, `train.pretraining`
    -> cross-entropy    `train.step.loss`

mid    every token is a target      rate constant, then linear to 0 in the last fifth
sft    the assistant's tokens are   0.8 of the run's rate, no weight decay, linear to 0 in the second half
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import torch

from danalab.chat.marks import ChatFormat, missing_specials
from danalab.data import Dataset, open_data
from danalab.data.tokenizers import load_tokenizer
from danalab.data.tokenizers.base import Tokenizer, padded
from danalab.errors import UserError
from danalab.files import read_json, sha256, write_json
from danalab.models import build_model
from danalab.models.decoder import Decoder
from danalab.optimizer_facts import canonical_name
from danalab.post.dataset import ConversationDataset, ReplayedDataset, split, tokenize
from danalab.post.settings import MidConfig, SftConfig, SftFlags
from danalab.train.checkpoint.store import MANIFEST
from danalab.train.config.train_config import OptimSettings, TrainConfig, settings_of
from danalab.train.parallel.layout import data_parallel_ranks
from danalab.train.parallel.world import World
from danalab.train.pretraining import pretraining
from danalab.train.run.exchange import write_weights
from danalab.train.run.folder import RunFolder
from danalab.train.run.open import Run, open_run
from danalab.train.stage import Stage, StageKind

log = logging.getLogger(__name__)

C = TypeVar("C", bound=SftConfig)


def configure(flags: SftFlags, kind: type[C]) -> C:
    """The configuration of a run that starts from `flags.run`, with its model, tokenizer and optimizer."""
    base, settings = continued(flags, kind, "mid" if issubclass(kind, MidConfig) else "sft", flags.data)
    context = settings["context_len"] = settings["seq_len"]
    settings["seq_len"] = flags.seq_len or context
    if settings["seq_len"] > context:
        raise UserError(f"--seq-len {flags.seq_len}: the context of {flags.run} is {context} tokens")
    if flags.iterations is None and flags.epochs is None:
        settings["epochs"] = 1.0
    config = kind(**settings)
    if (flags.batch_size, flags.acc_steps, flags.global_batch) == (None, None, None):
        config = replace(config, **_batch(config, base))
    return config


def _batch(config: Any, base: Run) -> dict[str, int]:
    """The base run's global batch, halved until the rows of an epoch fill it, and a micro-batch that divides it."""
    theirs, ranks = base.config["config"], data_parallel_ranks(config, os.environ)
    batch = theirs.get("global_batch") or theirs["batch_size"]
    rows = _open(config).n_tokens // config.seq_len
    # A batch larger than an epoch would be refused.
    while batch > rows and batch % 2 == 0 and batch // 2 % ranks == 0:
        batch //= 2
    local = max(1, batch // ranks)
    largest = min(theirs["batch_size"], local)
    return {"global_batch": batch, "batch_size": next(n for n in range(largest, 0, -1) if local % n == 0)}


def _open(config: SftConfig) -> Dataset:
    masked = not isinstance(config, MidConfig)
    assert config.tokenizer is not None
    assert config.seq_len is not None
    dataset = _conversations(
        tuple(config.data.split("\n")) if config.data else (),
        config.val_data,
        config.val_share,
        config.tokenizer,
        config.seq_len,
        masked,
    )
    if config.replay is not None:
        replay = open_data(config.replay)
        ours, theirs = dataset.tokenizer, replay.tokenizer
        if theirs.token_bytes()[: theirs.n_tokens].tolist() != ours.token_bytes()[: theirs.n_tokens].tolist():
            raise UserError(f"--replay {config.replay}: its tokens are of another tokenizer ({theirs.name})")
        return ReplayedDataset(dataset, replay, config.replay_share)
    return dataset


@lru_cache(maxsize=2)
def _conversations(
    data: tuple[str, ...],
    val_data: tuple[str, ...],
    val_share: float,
    tokenizer: str,
    seq_len: int,
    masked: bool,
) -> ConversationDataset:
    chat = ChatFormat(extend_tokenizer(load_tokenizer(tokenizer)))
    train = tokenize(data, chat)
    if val_data:
        val = tokenize(val_data, chat)
    else:
        train, val = split(train, val_share, b"validation")
    return ConversationDataset(
        data, {"train": train, "val": val}, "train", chat, seq_len=seq_len, masked=masked
    )


def _stage(
    spec: TrainConfig,
    dataset: Dataset,
    folder: RunFolder,
    world: World,
    device: torch.device,
    autocast: Callable[[], Any],
) -> Stage:
    if world.is_main:
        log.info("%s", dataset.packing)  # pyright: ignore[reportAttributeAccessIssue]
    return pretraining(spec, dataset, folder, world, device, autocast)


COPY, START = "base", "start.json"
"""Names in the run folder of a stage: a copy of the weights of its base run; which checkpoint it starts from."""


def continued(
    flags: Any, kind: type[TrainConfig], stage: str, words: tuple[str, ...]
) -> tuple[Run, dict[str, Any]]:
    """(the run `flags.run`, settings of a stage that continues it on the data `words`, with its tokenizer)."""
    base = open_run(flags.run)
    if not base.folder.tokenizer_folder.is_dir():
        raise UserError(f"{base.path}: the run has no tokenizer, so it cannot learn from conversations")
    run_dir = flags.run_dir or Path(os.path.normpath(f"{flags.run}-{stage}"))
    n_ids, model = ChatFormat(extend_tokenizer(base.tokenizer)).n_ids, base.model_config
    copies = model.vocab_size < n_ids or getattr(flags, "kl", 0.0) > 0  # by `prepare_start`
    if model.vocab_size < n_ids:
        model = replace(model, vocab_size=padded(n_ids))
    own = {field.name for field in fields(kind)}
    given = {field.name: getattr(flags, field.name) for field in fields(flags) if field.name in own}
    return base, {
        **settings_of(model),
        **{name: value for name, value in given.items() if value is not None},
        **optimizer_of(flags, base),
        "data": "\n".join(words),
        "tokenizer": str(base.folder.tokenizer_folder),
        "init_from": run_dir / COPY if copies else base.path,
        "run_dir": run_dir,
        "seq_len": model.seq_len,
        "document_mask": True,
    }


def prepare_start(config: TrainConfig) -> None:
    """Record the checkpoint that a stage starts from, and copy it where `continued` says so, with more rows.

    Until the stage has a checkpoint of its own it starts from the newest one of its base run: a copy of an older one is
    replaced. The caller holds the lock of the run folder. UserError: the base run has no usable checkpoint.
    """
    assert config.run_dir is not None
    assert config.tokenizer is not None
    folder, base = RunFolder(config.run_dir), open_run(Path(config.tokenizer).parent)
    if folder.store.steps():
        return
    checkpoint, target, record = base.folder.store.newest(), folder.path / COPY, folder.path / START
    start = {
        "run": os.path.relpath(base.path, folder.path),
        "checkpoint": checkpoint.name,
        "digest": sha256(checkpoint / MANIFEST),
    }
    is_made = target.is_dir() and record.is_file() and read_json(record) == start
    if config.init_from == target and not is_made:
        model = base.load_model(int(checkpoint.name.removeprefix("step-"))).model
        temporary = Path(tempfile.mkdtemp(dir=folder.path, prefix=".base-"))
        write_weights(extend_vocabulary(model, ChatFormat(extend_tokenizer(base.tokenizer)).n_ids), temporary)
        shutil.rmtree(target, ignore_errors=True)
        try:
            os.rename(temporary, target)
        except OSError:  # another worker was first
            shutil.rmtree(temporary)
    write_json(record, start)


def optimizer_of(flags: Any, base: Run) -> dict[str, Any]:
    """The optimizer with its settings and the learning rate: those of the base run where it is the same one."""
    theirs = base.config["config"]
    known = theirs.get("opt") if base.config.get("plan") else None
    opt = flags.opt or known or OptimSettings.opt
    settings: dict[str, Any] = {"opt": opt}
    same = known is not None and canonical_name(opt) == canonical_name(known)
    if same:
        for name in _TAKEN:
            if getattr(flags, name) == getattr(OptimSettings, name):
                settings[name] = theirs[name]
        settings["optimizer_settings"] = {**theirs["optimizer_settings"], **flags.optimizer_settings}
    if flags.lr is None and same:
        settings["lr"] = flags.lr_fraction * theirs["lr"]
    elif flags.lr is None:
        settings["lr_multiplier"] = flags.lr_fraction * flags.lr_multiplier
    return settings


_TAKEN = ("kappa", "delta", "omega", "clipsnr", "gamma3", "beta1", "beta2", "decay_bound")
"""Settings of the optimizer that do not follow from this run's length."""


def extend_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with all special tokens of conversations; its own ids stay. UserError: it cannot be extended."""
    missing = missing_specials(tokenizer)
    if not missing:
        return tokenizer
    from tokenizers import Tokenizer as Engine

    from danalab.data.tokenizers import BpeTokenizer

    if not isinstance(tokenizer, BpeTokenizer):
        raise UserError(
            f"tokenizer {tokenizer.name}: has no special token {missing[0]}, and none can be added"
        )
    engine = Engine.from_str(tokenizer.to_json())
    engine.add_special_tokens(missing)
    extended = BpeTokenizer(engine, tokenizer.name, eos=[tokenizer.eos])
    log.info(
        "tokenizer %s has no marks of conversations: %d special tokens are added, ids %d to %d",
        tokenizer.name,
        len(missing),
        tokenizer.n_tokens,
        extended.n_tokens - 1,
    )
    return extended


def extend_vocabulary(model: Decoder, n_ids: int) -> Decoder:
    """A model with rows for at least `n_ids` token ids; the same model where it has them.

    New rows of the embedding and of the head are the mean of the others, so that a new token is as likely as an average
    one and no logit is large (Hewitt 2021, "Initializing New Word Embeddings for Pretrained Language Models").
    """
    if model.config.vocab_size >= n_ids:
        return model
    old = model.config.vocab_size
    larger = build_model(replace(model.config, vocab_size=padded(n_ids)), device=model.head_weight.device)
    target = larger.state_dict()
    with torch.no_grad():
        for name, value in model.state_dict().items():
            target[name][: len(value)].copy_(value) if value.ndim else target[name].copy_(value)
            if value.ndim and len(target[name]) > len(value):
                target[name][old:] = value.mean(0)
    log.info(
        "the model has %d token ids instead of %d; new rows are the mean of the others", padded(n_ids), old
    )
    return larger


SFT = StageKind("sft", _open, _stage, prepare_start)
"""`danalab sft`."""
MID = StageKind("mid", _open, _stage, prepare_start)
"""`danalab mid`."""
