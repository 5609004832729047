"""`danalab sft` and `danalab mid`: a run continues on conversations, with pre-training's loss on packed rows.

    JSONL, tasks -> conversations -> ids, mask of the assistant's words -> rows -> cross-entropy of the targets
    `dataset`       `chat.conversations`                                   `dataset`   `train.pretraining`

mid    every token is a target      rate constant, then linear to 0 in the last fifth
sft    the assistant's tokens are   0.8 of the run's rate, no weight decay, linear to 0 in the second half
"""

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

import torch

from danalab.chat.conversations import ChatFormat
from danalab.data import Dataset, open_data
from danalab.data.tokenizers import load_tokenizer
from danalab.errors import UserError
from danalab.post.dataset import ConversationDataset, ReplayedDataset, tokenize
from danalab.post.settings import FinetuneSettings, MidConfig, SftConfig
from danalab.post.start import continued, extend_tokenizer, prepare_start
from danalab.train.config.run_spec import RunSpec
from danalab.train.parallel.layout import data_parallel_ranks
from danalab.train.parallel.world import World
from danalab.train.pretraining import pretraining
from danalab.train.run.folder import RunFolder
from danalab.train.run.open import Run
from danalab.train.stage import Stage, StageKind

log = logging.getLogger(__name__)

C = TypeVar("C", bound=SftConfig | MidConfig)


def configure(flags: FinetuneSettings, kind: type[C]) -> C:
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
    while batch > rows and batch % 2 == 0 and batch // 2 % ranks == 0:
        batch //= 2
    local = max(1, batch // ranks)
    largest = min(theirs["batch_size"], local)
    return {"global_batch": batch, "batch_size": next(n for n in range(largest, 0, -1) if local % n == 0)}


def _open(config: SftConfig | MidConfig) -> Dataset:
    masked = isinstance(config, SftConfig)
    assert config.tokenizer is not None
    assert config.seq_len is not None
    dataset = _conversations(
        tuple(config.data.split("\n")) if config.data else (), config.val_data, config.val_share, config.tokenizer,
        config.seq_len, masked, config.skip_bad_lines,
    )  # fmt: skip
    if isinstance(config, MidConfig) and config.replay is not None:
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
    skips: bool,
) -> ConversationDataset:
    chat = ChatFormat(extend_tokenizer(load_tokenizer(tokenizer)))
    train = tokenize(data, chat, skips=skips)
    if val_data:
        val = tokenize(val_data, chat, skips=skips)
    else:
        train, val = train.split(val_share, b"validation")
    return ConversationDataset(data, {"train": train, "val": val}, "train", chat, seq_len=seq_len, masked=masked)


def _stage(
    spec: RunSpec, dataset: Dataset, folder: RunFolder, world: World, device: torch.device, autocast: Callable[[], Any]
) -> Stage:
    if world.is_main:
        counts = dataset.counts  # pyright: ignore[reportAttributeAccessIssue]
        log.info("%s", counts)
    return pretraining(spec, dataset, folder, world, device, autocast)


SFT = StageKind("sft", _open, _stage, prepare_start)
"""`danalab sft`."""
MID = StageKind("mid", _open, _stage, prepare_start)
"""`danalab mid`."""
