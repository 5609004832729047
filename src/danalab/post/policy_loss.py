"""The policy gradient as a loss of the trainer.

The mask is that of the targets: an answer's tokens, with the one that ends it, and without the output of tools. Batches
carry, for each target: advantages, old_log_probs, sequence (index within the row), and reference_log_probs where a KL
penalty is set.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from danalab.post.policy_losses import Clip, PolicyObjective, Tokens, kl_penalty
from danalab.train.step.batch import IGNORED, Batch
from danalab.train.step.loss import Loss, LossTerms
from danalab.train.step.router_balance import RouterBalance


class PolicyLoss(Loss):
    """A policy-gradient loss; its metrics are means over the active tokens of the global batch.

    entropy     of the policy [nats]
    clip_share  share of the tokens where the clip acts
    mismatch    mean of |log p - log p of the engine that sampled| [nats]
    kl          estimate of KL(policy || reference) [nats], with a KL penalty
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
        """Args:
        clip: in place of the objective's.
        kl: weight of the penalty.
        n_ids: ids from here on (padding of the vocabulary) are never sampled and have no probability.
        max_tokens: limit on an answer.
        temperature: of the sampling; the policy is softmax(logits / temperature).
        scalars: further entries of a row.
        balance: the router's losses, for a model with experts.
        """
        self._objective, self._clip, self._kl = objective, clip or objective.clip, kl
        self._n_ids, self._max_tokens, self._temperature = n_ids, max_tokens, temperature
        self._scalars, self.balance = scalars, balance
        self.metrics = ("entropy", "clip_share", "mismatch", *(("kl",) if kl else ()))

    def denominators(self, batch: Batch) -> list[float]:
        """(active tokens, sequences with an active token, positions)."""
        mask = batch.targets != IGNORED
        empty = torch.zeros(mask.shape)
        sequences = Tokens(empty, empty, empty, mask, batch.extra["sequence"]).sequences
        return [float(mask.sum()), float(sequences), float(mask.numel())]

    def __call__(self, model: Any, part: Batch, totals: Sequence[float]) -> LossTerms:
        """See `Loss.__call__`."""
        active = totals[0] or 1.0
        log_probs, entropy = self._forward(model, part)
        mask = part.targets != IGNORED
        old = part.extra["old_log_probs"]
        tokens = Tokens(log_probs, old, part.extra["advantages"], mask, part.extra["sequence"])
        total = self._objective.total(totals[0], totals[1], self._max_tokens)
        loss, clipped = self._objective(tokens, total, self._clip)
        metrics = {
            "entropy": torch.where(mask, entropy, 0.0).sum() / active,
            "clip_share": clipped.sum() / active,
            "mismatch": tokens.log_ratio.detach().abs().sum() / active,
        }
        if self._kl:
            penalty = kl_penalty(log_probs, part.extra["reference_log_probs"], mask)
            loss = loss + self._kl * self._objective.reduce(penalty, tokens, total)
            metrics["kl"] = penalty.detach().sum() / active
        reported = loss.detach()
        if self.balance is not None and totals[0]:  # without answers the experts' use in the step before counts on
            loss = loss + self.balance.loss(model.take_routing(), totals[2])
        return LossTerms(loss, reported, metrics)

    def scalars(self) -> dict[str, float]:
        """Rewards and lengths of the rollouts, and moe/*."""
        return {**self._scalars(), **super().scalars()}

    def _forward(self, model: Any, part: Batch) -> tuple[Tensor, Tensor]:
        """(log-probability of each target, entropy), [B, L]."""
        logits = model(part.inputs)[..., : self._n_ids]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / self._temperature
        return target_log_probs(logits, part.targets), _entropy(logits.detach())


def target_log_probs(logits: Tensor, targets: Tensor) -> Tensor:
    """log softmax(logits [B, L, V]) of the targets [B, L]; of id 0 where these are `IGNORED`."""
    chosen = logits.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    return chosen - torch.logsumexp(logits, -1)


def _entropy(logits: Tensor) -> Tensor:
    log_probs = logits.log_softmax(-1)
    return -(log_probs.exp() * log_probs).sum(-1)
