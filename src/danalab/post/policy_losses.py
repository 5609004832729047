"""Policy-gradient losses as pure functions of tensors, by name.

    loss = sum over sequences i, tokens t of  mask_it w_i f_it / total                r = exp(log p - log p_old)

    name       f                                        w          total                            clip (low, high)
    dapo       -min(r A, clip(r) A)                     1          active tokens                    0.2, 0.28
    dr_grpo    -min(r A, clip(r) A)                     1          sequences x token limit          0.2, 0.2
    gspo       -min(s A, clip(s) A)                     1 / |o|    sequences                        3e-4, 4e-4
    cispo      -stop(clip(r)) A log p                   1          active tokens                    1, 4
    reinforce  -A log p                                 1          active tokens                    -

with s = exp(mean over the sequence's active tokens of log p - log p_old), |o| their number, and clip(x) = x limited to
[1 - low, 1 + high]. `total` counts the global batch, over all micro-batches and ranks: active tokens are those of the
numerator, sequences are all that were sampled, those of groups without signal included, which add nothing to the sum.
The option of a KL penalty adds beta (exp(d) - d - 1), d = log p_reference - log p, to f.

Sources: DAPO, arXiv 2503.14476, eq. 8; Dr. GRPO, arXiv 2503.20783; GSPO, arXiv 2507.18071, eq. 5; CISPO, MiniMax-M1,
arXiv 2506.13585, eq. 4 to 5; the penalty: Schulman 2020, "Approximating KL divergence", k3.
"""

from __future__ import annotations  # needs no torch: the command line reads the names

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

Normaliser = Literal["tokens", "sequences", "budget"]


class Clip(NamedTuple):
    """Bounds of the ratio, 1 - low and 1 + high."""

    low: float
    high: float


@dataclass(frozen=True)
class Tokens:
    """Tensors of shape [B, L], one entry per target."""

    log_probs: Tensor
    """Log-probabilities of the policy, with gradient."""
    old_log_probs: Tensor
    """Log-probabilities of the policy that sampled."""
    advantages: Tensor
    mask: Tensor
    """Bool: targets that count."""
    sequence: Tensor
    """Index of the sampled sequence within its row, int64; rows may be packed."""

    @property
    def log_ratio(self) -> Tensor:
        """log p - log p_old; 0 where masked, so that nothing overflows there."""
        return (self.log_probs - self.old_log_probs).where(self.mask, 0.0)

    def sequence_mean(self, values: Tensor) -> Tensor:
        """The mean of `values` over the active tokens of each token's sequence, [B, L]."""
        return self._sum(values * self.mask) / self.sequence_length

    @property
    def sequence_length(self) -> Tensor:
        """Active tokens of each token's sequence, at least 1, [B, L]."""
        return self._sum(self.mask.to(self.log_probs.dtype)).clamp(min=1)

    def _sum(self, values: Tensor) -> Tensor:
        length = values.shape[1]  # a row has no more sequences than tokens
        sums = values.new_zeros(len(values), length).scatter_add(1, self.sequence, values)
        return sums.gather(1, self.sequence)


TokenLoss = Callable[[Tokens, Clip], "tuple[Tensor, Tensor]"]
"""(tokens, clip) -> (f [B, L], whether the clip removes the token's gradient, or limits its weight, bool [B, L])."""


@dataclass(frozen=True)
class PolicyObjective:
    """A loss of the family."""

    tokens: TokenLoss
    normaliser: Normaliser
    clip: Clip
    """Default."""

    def __call__(self, tokens: Tokens, total: float, clip: Clip | None = None) -> tuple[Tensor, Tensor]:
        """(share of the loss of `total`, 0-dim, 0 without active tokens; where the clip acts, bool [B, L])."""
        values, clipped = self.tokens(tokens, clip or self.clip)
        return self.reduce(values, tokens, total), clipped & tokens.mask

    def reduce(self, values: Tensor, tokens: Tokens, total: float) -> Tensor:
        """sum of mask w values / total."""
        if self.normaliser == "sequences":
            values = values / tokens.sequence_length
        return values.where(tokens.mask, 0.0).sum() / max(total, 1.0)

    def total(self, active_tokens: float, sequences: float, max_tokens: int) -> float:
        """The divisor, from counts of the global batch: active tokens, sampled answers, and their limit of tokens."""
        return {"tokens": active_tokens, "sequences": sequences, "budget": sequences * max_tokens}[
            self.normaliser
        ]


def _clipped_ratio(tokens: Tokens, clip: Clip, *, of_sequence: bool = False) -> tuple[Tensor, Tensor]:
    log_ratio, advantages = tokens.log_ratio, tokens.advantages
    ratio = (tokens.sequence_mean(log_ratio) if of_sequence else log_ratio).exp()
    low, high = 1 - clip.low, 1 + clip.high
    acts = ((ratio < low) & (advantages < 0)) | ((ratio > high) & (advantages > 0))  # no gradient
    return -(ratio * advantages).minimum(ratio.clamp(low, high) * advantages), acts


def _clipped_weight(tokens: Tokens, clip: Clip) -> tuple[Tensor, Tensor]:
    ratio = tokens.log_ratio.detach().exp()
    weight = ratio.clamp(1 - clip.low, 1 + clip.high)
    return -weight * tokens.advantages * tokens.log_probs, weight != ratio


def _log_likelihood(tokens: Tokens, clip: Clip) -> tuple[Tensor, Tensor]:
    return -tokens.advantages * tokens.log_probs, tokens.mask.new_zeros(tokens.mask.shape)


OBJECTIVES = {
    "dapo": PolicyObjective(_clipped_ratio, "tokens", Clip(0.2, 0.28)),
    "dr_grpo": PolicyObjective(_clipped_ratio, "budget", Clip(0.2, 0.2)),
    "gspo": PolicyObjective(partial(_clipped_ratio, of_sequence=True), "sequences", Clip(3e-4, 4e-4)),
    "cispo": PolicyObjective(_clipped_weight, "tokens", Clip(1.0, 4.0)),
    "reinforce": PolicyObjective(_log_likelihood, "tokens", Clip(0.0, 0.0)),
}


def kl_penalty(log_probs: Tensor, reference_log_probs: Tensor, mask: Tensor) -> Tensor:
    """exp(d) - d - 1 with d = log p_reference - log p, 0 where masked: an estimate of KL(p || reference) [nats]."""
    difference = (reference_log_probs - log_probs).where(mask, 0.0)
    return difference.exp() - difference - 1


def target_log_probs(logits: Tensor, targets: Tensor) -> Tensor:
    """log softmax(logits [B, L, V]) of the targets [B, L]; of id 0 where these are negative."""
    return _log_probs(logits, targets, logits.logsumexp(-1))


def log_probs_and_entropy(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """(`target_log_probs`, the entropy of softmax(logits) without gradient), [B, L] [nats]."""
    normaliser, fixed = logits.logsumexp(-1), logits.detach()
    mean_logit = ((fixed - normaliser.detach()[..., None]).exp_() * fixed).sum(-1)
    return _log_probs(logits, targets, normaliser), normaliser.detach() - mean_logit


def _log_probs(logits: Tensor, targets: Tensor, normaliser: Tensor) -> Tensor:
    return logits.gather(-1, targets.clamp(min=0)[..., None])[..., 0] - normaliser
