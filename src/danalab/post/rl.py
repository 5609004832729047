"""`danalab rl`: from flags to a stage of the trainer."""

import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from danalab.chat.conversations import ChatFormat
from danalab.chat.rewards import Scorer
from danalab.chat.tasks import TEST, make_task
from danalab.data import Dataset
from danalab.data.tokenizers import load_tokenizer
from danalab.errors import UserError
from danalab.evals.answered import AnswerSettings, TaskEvaluator
from danalab.models import ModelConfig, build_model
from danalab.post.policy_loss import PolicyLoss
from danalab.post.policy_losses import OBJECTIVES, Clip
from danalab.post.rl_settings import PolicyFlags, RlConfig, RlFlags, RolloutFlags
from danalab.post.rollouts import Rollouts, RolloutSettings
from danalab.post.sft import optimizer_of
from danalab.post.start import extend_tokenizer, with_vocabulary
from danalab.post.task_data import TaskDataset
from danalab.scaling.shape import ROUTER_SETTINGS
from danalab.train.checkpoint import tensors
from danalab.train.config.run_spec import RunSpec
from danalab.train.parallel.world import World
from danalab.train.run.exchange import MODEL_FLAGS
from danalab.train.run.folder import RunFolder
from danalab.train.run.open import open_run
from danalab.train.run.resume import read_meta
from danalab.train.run.tokenizer import keep_tokenizer
from danalab.train.stage import Consumption, Stage, StageKind
from danalab.train.step.router_balance import RouterBalance

WITHOUT_WHOLE_MODEL = ("fsdp", "diloco")
WITH_SAMPLING = 4 / 3
"""FLOPs of sampling and training over those of training: one more forward pass."""


def configure(flags: RlFlags) -> RlConfig:
    """The configuration of a run that starts from `flags.run`, with its model, tokenizer and optimizer.

    Raises:
        UserError: not a run, or one without a tokenizer or checkpoint; ranks that do not hold the whole model.
    """
    if flags.distributed_backend in WITHOUT_WHOLE_MODEL or flags.expert_parallel:
        what = "--expert-parallel" if flags.expert_parallel else flags.distributed_backend
        raise UserError(f"danalab rl: not with {what}: each rank samples from a whole model; take ddp or zero")
    base = open_run(flags.run)
    run_dir = flags.run_dir or Path(os.path.normpath(f"{flags.run}-rl"))
    start, model, tokenizer = with_vocabulary(base, run_dir)
    routers = () if model.sparsity is None else ROUTER_SETTINGS
    own = {field.name for field in fields(RlConfig)}
    given = {field.name: getattr(flags, field.name) for field in fields(flags) if field.name in own}
    return RlConfig(
        **{name: getattr(model, name) for name in (*MODEL_FLAGS, *routers)}
        | {name: value for name, value in given.items() if value is not None}
        | optimizer_of(flags, base)
        | {
            "data": "\n".join(flags.task),
            "tokenizer": str(tokenizer),
            "init_from": start,
            "run_dir": run_dir,
            "seq_len": model.seq_len,
            "document_mask": True,
            "global_batch": flags.problems * flags.samples,
        }
    )


def _open(config: RlConfig) -> Dataset:
    assert config.tokenizer is not None
    assert config.seq_len is not None
    chat = ChatFormat(extend_tokenizer(load_tokenizer(config.tokenizer)))
    return TaskDataset(
        tuple(config.data.split("\n")) if config.data else (),
        chat,
        seed=config.data_seed,
        row_tokens=config.samples * config.seq_len,
        reward=config.reward or "",
    )


def _stage(
    spec: RunSpec,
    dataset: Dataset,
    folder: RunFolder,
    world: World,
    device: torch.device,
    autocast: Callable[[], Any],
) -> Stage:
    assert isinstance(dataset, TaskDataset)
    settings, policy = spec.section(RolloutFlags), spec.section(PolicyFlags)
    keep_tokenizer(dataset, folder, world)
    chat = dataset.chat
    scorer = Scorer(settings.reward, seconds=settings.reward_seconds, ranks=world.size)
    rollouts = Rollouts(
        dataset.mixture,
        chat,
        scorer,
        RolloutSettings(
            problems=settings.problems,
            samples=settings.samples,
            max_tokens=settings.max_answer,
            temperature=settings.temperature,
            divide_by_std=policy.advantage_std,
            mask_truncated=policy.mask_truncated,
            seed=spec.data.data_seed,
            batch_size=settings.rollout_batch,
        ),
        seq_len=spec.model.seq_len,
        world=world,
        autocast=autocast,
        reference=_reference(spec.start.init_from, chat, device) if policy.kl else None,
    )
    objective = OBJECTIVES.get(policy.policy_loss)
    clip = Clip(
        objective.clip.low if policy.clip_low is None else policy.clip_low,
        objective.clip.high if policy.clip_high is None else policy.clip_high,
    )
    loss = PolicyLoss(
        objective,
        clip=clip,
        kl=policy.kl,
        n_ids=chat.n_ids,
        max_tokens=settings.max_answer,
        temperature=settings.temperature,
        scalars=rollouts.scalars,
        balance=None if spec.model.sparsity is None else RouterBalance(spec.model, device),
    )
    per_step, flops_per_token = settings.problems * settings.samples, spec.plan.flops / spec.plan.tokens
    consumption = Consumption(
        rollouts.tokens,
        lambda step: per_step * step,
        lambda step: rollouts.tokens(step) * flops_per_token * WITH_SAMPLING,
    )
    return Stage(rollouts, loss, consumption, _evaluators(settings, dataset, world, scorer))


def _evaluators(settings: RolloutFlags, dataset: TaskDataset, world: World, scorer: Scorer) -> list[TaskEvaluator]:
    """Test problems of the tasks."""
    if not settings.eval_problems:
        return []
    tasks = [make_task(text, split=TEST)[0] for text in dataset.specifications]
    answers = AnswerSettings(limit=settings.eval_problems, max_tokens=settings.max_answer)
    return [TaskEvaluator(dataset.chat, tasks, answers, world, scorer)]


def _reference(start: Path | None, chat: ChatFormat, device: torch.device) -> nn.Module:
    """The model that the run starts from, for the KL penalty."""
    assert start is not None
    checkpoint = next(RunFolder(start).store.usable(lambda bad: None), None)
    if checkpoint is None:
        raise UserError(f"--kl: {start}, the run that this one starts from, has no checkpoint any more")
    model = build_model(ModelConfig.from_dict(read_meta(checkpoint)["model"]), device=device)
    tensors.read(checkpoint, model)
    model.document_token = chat.bos
    return model.eval().requires_grad_(False)


RL = StageKind("rl", _open, _stage)
"""`danalab rl`."""
