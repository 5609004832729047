"""Rollouts: groups of answers of the current model to the problems of a step, as a batch source of the trainer.

    problem g of step s    position s x problems + g of the mixture          (a function of the seed)
    answer i of it         sampled with seed (seed, s, g, i)                 (not of ranks or batches)

The model samples from its whole distribution, without top-k and top-p: what is sampled is what is trained. The order of
problems does not depend on the number of ranks.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from danalab.chat.answers import AnsweredProblem, AnswerSettings, ModelEngine, SampledAnswer, answer_problems
from danalab.chat.marks import ChatFormat
from danalab.chat.rewards import Scorer
from danalab.chat.tasks import TaskMixture
from danalab.errors import UserError
from danalab.post.dataset import best_fit
from danalab.post.policy_losses import target_log_probs
from danalab.post.settings import RlConfig
from danalab.train.parallel.world import World
from danalab.train.stage import BatchSource
from danalab.train.step.loss import IGNORED, TrainingBatch

log = logging.getLogger(__name__)

EPSILON = 1e-6
REFERENCE_TOKENS = 4096
"""Positions that the reference computes at the same time."""


class Rollouts(BatchSource):
    """Batches of answers, made by the model as it is when they are asked for; `reference`: of the KL penalty."""

    def __init__(
        self,
        mixture: TaskMixture,
        chat: ChatFormat,
        scorer: Scorer,
        settings: RlConfig,
        world: World,
        autocast: Callable[[], AbstractContextManager[Any]],
        reference: nn.Module | None,
    ):
        if settings.problems % world.dp_size:
            raise UserError(f"--problems {settings.problems}: not divisible by the {world.dp_size} ranks")
        self._mixture, self._chat, self._scorer, self._settings = mixture, chat, scorer, settings
        self._world, self._autocast, self._reference = world, autocast, reference
        self._answers = AnswerSettings(
            samples=settings.samples, temperature=settings.temperature, max_tokens=settings.max_answer
        )
        self._engine: ModelEngine | None = None
        self._totals: dict[str, float] = dict.fromkeys(("steps", "tokens", "empty"), 0.0)
        self._last: dict[str, float] = {}

    def attach(self, model: nn.Module) -> None:
        self._engine = ModelEngine(model, self._chat, max_batch_size=self._settings.rollout_batch)

    def batch(self, step: int) -> TrainingBatch:
        """The answers of this rank to its part of the problems of a step. Collective.

        Groups without signal are left out, unless a KL penalty acts on them; the loss counts them. UserError: a reward
        misbehaves, or no problem leaves space for an answer.
        """
        settings = self._settings
        answered = self._answered(step)
        groups = [each for each in answered if each is not None]
        trained = [
            [
                TrainedAnswer(group.prompt, answer, advantage)
                for answer, advantage in zip(
                    group.answers,
                    group_advantages(group.rewards, divide_by_std=settings.advantage_std),
                    strict=True,
                )
                if answer.finished or not settings.mask_truncated
            ]
            for group in groups
        ]
        answers = [answer for each in groups for answer in each.answers]
        rewards = [reward for each in groups for reward in each.rewards]
        counts = {
            "answers": len(answers),
            "reward": sum(rewards),
            "squares": sum(reward**2 for reward in rewards),
            "tokens": sum(len(answer.tokens) for answer in answers),
            "truncated": sum(not answer.finished for answer in answers),
            "calls": sum(answer.calls for answer in answers),
            "groups": len(groups),
            "no_signal": sum(not any(each.advantage for each in group) for group in trained),  # equal rewards
            "too_long": answered.count(None),  # the prompt leaves no space for an answer
        }
        summed = self._world.sums(list(map(float, counts.values())))
        self._note(dict(zip(counts, summed, strict=True)))
        taught = [
            each
            for group in trained
            if self._reference is not None or any(one.advantage for one in group)
            for each in group
        ]
        batch = pack_answers(taught, self._chat.bos, sampled=len(answers))
        if self._reference is not None:
            device = next(self._reference.parameters()).device
            together, parts = max(1, REFERENCE_TOKENS // batch.inputs.shape[1]), []
            with torch.no_grad(), self._autocast():
                for start in range(0, len(batch), together):
                    part = batch.rows(slice(start, start + together)).to(device)
                    logits = self._reference(part.inputs)[..., : self._chat.n_ids].float()
                    parts.append(target_log_probs(logits / settings.temperature, part.targets).cpu())
            batch.extra["reference_log_probs"] = torch.cat(parts)
        return batch

    def _answered(self, step: int) -> list[AnsweredProblem | None]:
        settings, per_rank = self._settings, self._settings.problems // self._world.dp_size
        first = self._world.dp_rank * per_rank
        groups, start = range(first, first + per_rank), step * settings.problems
        # The keys seed the sampling: any number of ranks draws the same answers.
        problems = {(settings.data_seed, step, group): self._mixture[start + group] for group in groups}
        assert self._engine is not None
        with self._engine() as engine, self._autocast():
            return answer_problems(engine, self._chat, self._scorer, problems, self._answers)

    def _note(self, counts: Mapping[str, float]) -> None:
        """Keep what a row of metrics shows of a step."""
        if not counts["groups"]:
            context = self._settings.seq_len
            raise UserError(
                f"no problem of the step leaves space for an answer in a context of {context} tokens"
            )
        n = counts["answers"]
        mean = counts["reward"] / n
        self._totals["steps"] += 1
        self._totals["tokens"] += counts["tokens"]
        is_empty = counts["no_signal"] == counts["groups"]
        if is_empty and not self._totals["empty"] and self._world.is_main:
            log.warning(
                "no signal: within each group all rewards are equal, %.3g on average; if this persists, use easier "
                "tasks, more --samples, or a graded reward",
                mean,
            )
        self._totals["empty"] += is_empty
        self._last = {
            "rl/reward": mean,
            "rl/reward_std": max(0.0, counts["squares"] / n - mean**2) ** 0.5,
            "rl/answer_length": counts["tokens"] / n,
            "rl/truncated": counts["truncated"] / n,
            "rl/tool_calls": counts["calls"] / n,
            "rl/groups_without_signal": counts["no_signal"] / counts["groups"],
            "rl/problems_too_long": counts["too_long"],
            "rl/steps_without_signal": self._totals["empty"],
        }

    def scalars(self) -> dict[str, float]:
        """rl/*: the rewards and lengths of the last step's answers, over all ranks."""
        return dict(self._last)

    def tokens(self, step: int) -> int:
        """Tokens of the answers of `step` steps, over all ranks; before the last step from the mean."""
        return round(self._totals["tokens"] * step / max(1.0, self._totals["steps"]))

    def describe(self, step: int) -> dict[str, Any]:
        """The positions of the step's problems in the mixture."""
        first = step * self._settings.problems
        return {
            "problems": list(range(first, first + self._settings.problems)),
            "seed": self._settings.data_seed,
        }

    def state_dict(self) -> dict[str, Any]:
        """The totals; problems and seeds are functions of the step."""
        return dict(self._totals)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._totals = {name: float(state[name]) for name in self._totals}


def group_advantages(rewards: Sequence[float], *, divide_by_std: bool = False) -> list[float]:
    """r - mean(r), perhaps over std(r) + 1e-6 (sample deviation); equal rewards give exactly 0: they teach nothing."""
    if max(rewards) == min(rewards):
        return [0.0] * len(rewards)
    mean = statistics.fmean(rewards)
    scale = statistics.stdev(rewards) + EPSILON if divide_by_std else 1.0
    return [(reward - mean) / scale for reward in rewards]


class TrainedAnswer(NamedTuple):
    """An answer with its advantage."""

    prompt: list[int]
    answer: SampledAnswer
    advantage: float


def pack_answers(
    answers: Sequence[TrainedAnswer], bos: int, length: int | None = None, *, sampled: int | None = None
) -> TrainingBatch:
    """A batch for the policy loss: answers with their prompts, of which the drawn tokens are targets.

        row      bos question assistant_start a b | bos question assistant_start c | bos bos
        target   -   -        a               b e | -   -        c               e | -   -    e: the end of the answer

    Each target has old_log_probs, advantages, and sequence, the index of its answer in the row; each row has answers,
    their number. Without answers there is one row without targets, so that every rank has something to compute.

    Args:
        bos: fills the rest of a row.
        length: of a row; default the longest answer with its prompt.
        sampled: answers that were sampled, of which some teach nothing and are left out; the first row counts them.
    """
    lengths = np.array([len(each.prompt) + len(each.answer.tokens) - 1 for each in answers], np.int64)
    width = max(length or 0, int(lengths.max(initial=1)))
    owner = best_fit(lengths, width)
    shape = (int(owner.max(initial=0)) + 1, width)
    inputs, targets = torch.full(shape, bos), torch.full(shape, IGNORED)
    old, advantages = torch.zeros(shape), torch.zeros(shape)
    sequence = torch.zeros(shape, dtype=torch.int64)
    ends, count = [0] * shape[0], [0] * shape[0]
    for each, row, size in zip(answers, owner.tolist(), lengths.tolist(), strict=True):
        span = slice(ends[row], ends[row] + size)
        said = slice(span.stop - len(each.answer.tokens), span.stop)
        tokens = torch.tensor(each.prompt + each.answer.tokens)
        inputs[row, span] = tokens[:-1]
        drawn = torch.tensor(each.answer.drawn)
        targets[row, said] = torch.tensor(each.answer.tokens).where(drawn, IGNORED)
        old[row, said] = torch.tensor(each.answer.log_probs)
        advantages[row, span] = each.advantage
        sequence[row, span] = count[row]
        ends[row] += size
        count[row] += 1
    counts = torch.tensor(count, dtype=torch.float32)
    # Losses that divide by the number of answers count those without signal, too.
    counts[0] += (len(answers) if sampled is None else sampled) - len(answers)
    extra = {"old_log_probs": old, "advantages": advantages, "sequence": sequence, "answers": counts}
    return TrainingBatch(inputs, targets, extra=extra)
