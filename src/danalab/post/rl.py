"""`danalab rl`: a run answers tasks, and answers that earn more than their group become more likely.

tasks -> problems -> groups of answers by the engine -> rewards -> advantages -> rows -> policy loss -> one update
TaskDataset, `chat.tasks`     `rollouts`, `chat.answers`, `chat.rewards`       `rollouts`  PolicyLoss, `policy_losses`
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import nn

from danalab.chat.answers import AnswerSettings
from danalab.chat.marks import ChatFormat
from danalab.chat.rewards import Scorer
from danalab.chat.task_scores import TaskEvaluator
from danalab.chat.tasks import TEST, TaskMixture, make_task
from danalab.data import Dataset
from danalab.data.tokenizers import load_tokenizer
from danalab.errors import UserError
from danalab.models import build_model
from danalab.models.config import ModelConfig
from danalab.post.dataset import ChatDataset
from danalab.post.policy_losses import (
    OBJECTIVES,
    Clip,
    PolicyObjective,
    Tokens,
    kl_penalty,
    log_probs_and_entropy,
)
from danalab.post.rollouts import Rollouts
from danalab.post.settings import RlConfig, RlFlags
from danalab.post.sft import continued, extend_tokenizer, prepare_start
from danalab.train.checkpoint import tensors
from danalab.train.config.train_config import TrainConfig
from danalab.train.parallel.world import World
from danalab.train.run.folder import RunFolder, keep_tokenizer
from danalab.train.run.resume import read_meta
from danalab.train.stage import Consumption, Stage, StageKind
from danalab.train.step.loss import IGNORED, Loss, LossTerms, RouterBalance, TrainingBatch

WITH_SAMPLING = 4 / 3
"""FLOPs of sampling and training over those of training: one more forward pass."""
HASHED = 2000
"""Problems of a task that its fingerprint covers, evenly spaced."""


def configure(flags: RlFlags) -> RlConfig:
    """The configuration of a run that starts from `flags.run`; UserError: ranks that do not hold the whole model."""
    if flags.expert_parallel or flags.distributed_backend in ("fsdp", "diloco"):
        what = "--expert-parallel" if flags.expert_parallel else flags.distributed_backend
        raise UserError(
            f"danalab rl: not with {what}: each rank samples from a whole model; take ddp or zero"
        )
    _, settings = continued(flags, RlConfig, "rl", flags.task)
    return RlConfig(**{**settings, "global_batch": flags.problems * flags.samples})


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
    spec: TrainConfig,
    dataset: Dataset,
    folder: RunFolder,
    world: World,
    device: torch.device,
    autocast: Callable[[], Any],
) -> Stage:
    assert isinstance(dataset, TaskDataset)
    settings = spec
    assert isinstance(settings, RlConfig)
    keep_tokenizer(dataset, folder, world)
    chat = dataset.chat
    scorer = Scorer(settings.reward, ranks=world.size, trusts_model_code=settings.trust_model_code)
    reference = _reference(spec.init_from, chat, device) if settings.kl else None
    rollouts = Rollouts(dataset.mixture, chat, scorer, settings, world, autocast, reference)
    objective = OBJECTIVES[settings.policy_loss]
    bounds = {"low": settings.clip_low, "high": settings.clip_high}
    clip = objective.clip._replace(**{name: value for name, value in bounds.items() if value is not None})
    loss = PolicyLoss(
        objective,
        clip=clip,
        kl=settings.kl,
        n_ids=chat.n_ids,
        max_tokens=settings.max_answer,
        temperature=settings.temperature,
        scalars=rollouts.scalars,
        balance=None if spec.model.sparsity is None else RouterBalance(spec.model, device),
    )
    flops_per_token = spec.flops_per_token
    consumption = Consumption(
        rollouts.tokens,
        lambda step: rollouts.tokens(step) * flops_per_token * WITH_SAMPLING,
    )
    evaluators = []
    if settings.eval_problems:
        tasks = [make_task(text, split=TEST)[0] for text in dataset.specifications]
        answers = AnswerSettings(limit=settings.eval_problems, max_tokens=settings.max_answer)
        evaluators.append(TaskEvaluator(chat, tasks, answers, world, scorer))
    return Stage(rollouts, loss, consumption, evaluators)


def _reference(start: Path | None, chat: ChatFormat, device: torch.device) -> nn.Module:
    """The model that the run started from, for the KL penalty: its copy, since the base run may have gone on."""
    assert start is not None
    checkpoint = RunFolder(start).store.newest()
    model = build_model(ModelConfig.from_dict(read_meta(checkpoint)["model"]), device=device)
    tensors.read(checkpoint, model)
    model.document_token = chat.bos
    return model.eval().requires_grad_(False)


class PolicyLoss(Loss):
    """The policy gradient as a loss of the trainer; its metrics are means over the active tokens of the global batch.

    The mask is that of the targets: an answer's tokens, with the one that ends it, and without the output of tools.
    Batches are those of `pack_answers`, with reference_log_probs where a KL penalty is set.

    entropy     of the policy [nats]
    clip_share  share of the tokens where the clip acts
    mismatch    mean of |log p - log p of the engine that sampled| [nats]
    kl          estimate of KL(policy || reference) [nats], with a KL penalty

    Args:
        clip: in place of the objective's.
        kl: weight of the penalty.
        n_ids: ids from here on (padding of the vocabulary) are never sampled and have no probability.
        max_tokens: limit on an answer.
        temperature: of the sampling; the policy is softmax(logits / temperature).
        scalars: further entries of a row.
        balance: the router's losses, for a model with experts.
    """

    def __init__(
        self,
        objective: PolicyObjective,
        *,
        clip: Clip | None = None,
        kl: float = 0.0,
        n_ids: int,
        max_tokens: int,
        temperature: float = 1.0,
        scalars: Callable[[], dict[str, float]] = dict,
        balance: RouterBalance | None = None,
    ):
        self._objective, self._clip, self._kl = objective, clip or objective.clip, kl
        self._n_ids, self._max_tokens, self._temperature = n_ids, max_tokens, temperature
        self._scalars, self.balance = scalars, balance
        self.metrics = ("entropy", "clip_share", "mismatch", *(("kl",) if kl else ()))

    def denominators(self, batch: TrainingBatch) -> list[float]:
        """(active tokens, answers that were sampled, positions)."""
        mask = batch.targets != IGNORED
        return [float(mask.sum()), float(batch.extra["answers"].sum()), float(mask.numel())]

    def __call__(self, model: Any, part: TrainingBatch, totals: Sequence[float]) -> LossTerms:
        """See `Loss.__call__`."""
        active = totals[0] or 1.0
        logits = model(part.inputs)[..., : self._n_ids]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / self._temperature
        log_probs, entropy = log_probs_and_entropy(logits, part.targets)
        mask = part.targets != IGNORED
        old = part.extra["old_log_probs"]
        tokens = Tokens(log_probs, old, part.extra["advantages"], mask, part.extra["sequence"])
        total = self._objective.total(totals[0], totals[1], self._max_tokens)
        loss, clipped = self._objective(tokens, total, self._clip)
        metrics = {
            "entropy": entropy.where(mask, 0.0).sum() / active,
            "clip_share": clipped.sum() / active,
            "mismatch": tokens.log_ratio.detach().abs().sum() / active,
        }
        if self._kl:
            penalty = kl_penalty(log_probs, part.extra["reference_log_probs"], mask)
            loss = loss + self._kl * self._objective.reduce(penalty, tokens, total)
            metrics["kl"] = penalty.detach().sum() / active
        reported = loss.detach()
        if (
            self.balance is not None and totals[0]
        ):  # without answers the experts' use in the step before counts on
            loss = loss + self.balance.loss(model.take_routing(), totals[2])
        return LossTerms(loss, reported, metrics)

    def scalars(self) -> dict[str, float]:
        """Rewards and lengths of the rollouts, and moe/*."""
        return {**self._scalars(), **super().scalars()}


class TaskDataset(ChatDataset):
    """Problems of tasks; `n_tokens` counts a pass over all, as if every row of an answer had `row_tokens` positions.

    `reward`: of all problems, or empty; a file counts by its content. UserError: no task, or malformed data.
    """

    def __init__(
        self, specifications: tuple[str, ...], chat: ChatFormat, *, seed: int, row_tokens: int, reward: str
    ):
        made = [make_task(text) for text in specifications]
        if not made:
            raise UserError(
                "no task: give --task arithmetic, a FILE.jsonl, or another; docs/rl.md lists them"
            )
        self.tasks = [task for task, _ in made]
        self.mixture = TaskMixture(self.tasks, [weight for _, weight in made], seed=seed)
        self.specifications = specifications
        file = Path(reward.rpartition(":")[0] if ".py:" in reward else reward)
        if reward and file.is_file():
            reward = hashlib.sha256(file.read_bytes()).hexdigest() + reward.rpartition(":")[2]
        identity = f"tasks 1\n{chat.tokenizer.fingerprint}\n{reward}"
        for (task, weight), text in zip(made, specifications, strict=True):
            digest = hashlib.sha256(f"{task.name} {len(task)}".encode())
            for position in np.unique(np.linspace(0, len(task) - 1, HASHED).astype(np.int64)).tolist():
                problem = task.problem(position)
                digest.update(repr((problem, problem.history)).encode(errors="backslashreplace"))
            identity += f"{text.partition(':')[0]}\n{weight}\n{digest.hexdigest()}\n"
        super().__init__(specifications, "train", chat, identity.encode(), self._no_split)
        self.n_tokens = sum(map(len, self.tasks)) * row_tokens

    @property
    def size(self) -> str:
        return f"{sum(map(len, self.tasks)):,} problems"

    def _no_split(self, split: str) -> NoReturn:
        raise UserError(f"{self.path}: tasks have no split '{split}'; give split=... to a task")


RL = StageKind("rl", _open, _stage, prepare_start)
"""`danalab rl`."""
