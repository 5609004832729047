"""Rollouts: groups of answers of the current model to the problems of a step, as a batch source of the trainer.

    problem g of step s    position s x problems + g of the mixture          (a function of the seed)
    answer i of it         sampled with seed (seed, s, g, i)                 (not of ranks or batches)

The model samples from its whole distribution, without top-k and top-p: what is sampled is what is trained. The order of
problems does not depend on the number of ranks.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from danalab.chat.answers import ModelEngine, SampledAnswer, answer_all, sampling_seed
from danalab.chat.conversations import ChatFormat, Conversation
from danalab.chat.rewards import Scorer
from danalab.chat.tasks import TaskMixture
from danalab.errors import UserError
from danalab.inference import Request, SamplingParameters
from danalab.post.advantages import group_advantages
from danalab.post.rows import TrainedAnswer, pack_answers
from danalab.train.parallel.world import World
from danalab.train.stage import BatchSource
from danalab.train.step.batch import Batch

log = logging.getLogger(__name__)

COUNTS = ("answers", "reward", "squares", "tokens", "truncated", "calls", "groups", "silent", "long", "trained")
"""Sums over the answers of a step; silent: groups whose rewards are all equal; long: problems without space; trained:
tokens with a loss."""


@dataclass(frozen=True)
class RolloutSettings:
    """How problems are answered and answers are valued."""

    problems: int
    """Problems of a step, on all ranks."""
    samples: int
    """Answers to each problem."""
    max_tokens: int
    """Limit on an answer."""
    temperature: float = 1.0
    divide_by_std: bool = False
    """Advantages are divided by the deviation of the group's rewards."""
    mask_truncated: bool = False
    """Answers that were cut off are not trained on; they count in the mean of their group."""
    seed: int = 0
    batch_size: int = 64
    """Answers that a rank computes at the same time."""


class Rollouts(BatchSource):
    """Batches of answers, made by the model as it is when they are asked for."""

    def __init__(
        self,
        mixture: TaskMixture,
        chat: ChatFormat,
        scorer: Scorer,
        settings: RolloutSettings,
        *,
        seq_len: int,
        world: World,
        autocast: Callable[[], AbstractContextManager[Any]],
        reference: nn.Module | None = None,
    ):
        """Args:
            seq_len: the model's context.
            autocast: makes the context of forward computations.
            reference: the model of the KL penalty.

        Raises:
            UserError: the problems of a step cannot be divided among the ranks.
        """
        if settings.problems % world.dp_size:
            raise UserError(f"--problems {settings.problems}: not divisible by the {world.dp_size} ranks")
        self._mixture, self._chat, self._scorer, self._settings = mixture, chat, scorer, settings
        self._seq_len, self._world, self._autocast, self._reference = seq_len, world, autocast, reference
        self._engine: ModelEngine | None = None
        self._totals: dict[str, float] = dict.fromkeys(("steps", "tokens", "empty"), 0.0)
        self._last: dict[str, float] = {}

    def attach(self, model: nn.Module) -> None:
        """See `BatchSource.attach`."""
        self._engine = ModelEngine(model, self._chat, max_batch_size=self._settings.batch_size)

    def batch(self, step: int) -> Batch:
        """The answers of this rank to its part of the problems of a step; groups without signal are left out.

        Collective.

        Raises:
            UserError: a reward misbehaves, or no problem leaves space for an answer.
        """
        counts: dict[str, float] = dict.fromkeys(COUNTS, 0.0)
        answers = self._answers(step, counts)
        summed = self._world.sums([counts[name] for name in COUNTS])
        self._note(dict(zip(COUNTS, summed, strict=True)))
        batch = pack_answers(answers, self._chat.bos)
        if self._reference is not None:
            self._add_reference(batch)
        return batch

    def _answers(self, step: int, counts: dict[str, float]) -> list[TrainedAnswer]:
        settings, per_rank = self._settings, self._settings.problems // self._world.dp_size
        first = self._world.dp_rank * per_rank
        problems, requests = [], list[Request]()
        for group in range(first, first + per_rank):
            problem = self._mixture[step * settings.problems + group].problem
            prompt = self._chat.render_prompt(Conversation.of(problem.prompt()))
            space = self._seq_len - len(prompt)
            counts["long"] += space < 1
            if space < 1:
                continue
            problems.append((problem, prompt))
            requests += [
                Request(
                    prompt,
                    SamplingParameters(
                        max_tokens=min(settings.max_tokens, space),
                        temperature=settings.temperature,
                        seed=sampling_seed(settings.seed, step, group, sample),
                    ),
                )
                for sample in range(settings.samples)
            ]
        assert self._engine is not None
        with self._engine() as engine, self._autocast():
            answers = answer_all(engine, self._chat, requests)
        asked = [problem for problem, _ in problems for _ in range(settings.samples)]
        texts = [answer.text(self._chat) for answer in answers]
        rewards = self._scorer.score_all(zip(asked, texts, strict=True))
        found: list[TrainedAnswer] = []
        for number, (_, prompt) in enumerate(problems):
            group = slice(number * settings.samples, (number + 1) * settings.samples)
            found += self._trained(prompt, answers[group], rewards[group], counts)
        return found

    def _trained(
        self, prompt: list[int], answers: list[SampledAnswer], rewards: list[float], counts: dict[str, float]
    ) -> list[TrainedAnswer]:
        """The answers of one group that teach something; adds to the counts."""
        counts["groups"] += 1
        counts["answers"] += len(answers)
        counts["reward"] += sum(rewards)
        counts["squares"] += sum(reward**2 for reward in rewards)
        counts["tokens"] += sum(len(answer.tokens) for answer in answers)
        counts["truncated"] += sum(not answer.finished for answer in answers)
        counts["calls"] += sum(answer.calls for answer in answers)
        advantages = group_advantages(rewards, divide_by_std=self._settings.divide_by_std)
        kept = [
            TrainedAnswer(prompt, answer, advantage)
            for answer, advantage in zip(answers, advantages, strict=True)
            if answer.finished or not self._settings.mask_truncated
        ]
        if not any(each.advantage for each in kept):
            counts["silent"] += 1
            return []
        counts["trained"] += sum(sum(each.answer.drawn) for each in kept)
        return kept

    def _add_reference(self, batch: Batch) -> None:
        from danalab.post.policy_loss import target_log_probs

        assert self._reference is not None
        device = next(self._reference.parameters()).device
        rows = []
        with torch.no_grad(), self._autocast():
            for row in range(len(batch)):
                logits = self._reference(batch.inputs[row : row + 1].to(device))[..., : self._chat.n_ids]
                scaled = logits.float() / self._settings.temperature
                rows.append(target_log_probs(scaled, batch.targets[row : row + 1].to(device)).cpu())
        batch.extra["reference_log_probs"] = torch.cat(rows)

    def _note(self, counts: Mapping[str, float]) -> None:
        """Keep what a row of metrics shows of a step."""
        if not counts["groups"]:
            raise UserError(
                f"no problem of the step leaves space for an answer in the context of {self._seq_len} tokens"
            )
        n = counts["answers"]
        mean = counts["reward"] / n
        self._totals["steps"] += 1
        self._totals["tokens"] += counts["tokens"]
        if counts["trained"] == 0 and not self._totals["empty"] and self._world.is_main:
            log.warning(
                "no update: the answers of each group earned the same, %.3g on average; where that stays, take easier "
                "tasks, more --samples, or a reward with degrees", mean,
            )  # fmt: skip
        self._totals["empty"] += counts["trained"] == 0
        self._last = {
            "rl/reward": mean,
            "rl/reward_std": max(0.0, counts["squares"] / n - mean**2) ** 0.5,
            "rl/answer_length": counts["tokens"] / n,
            "rl/truncated": counts["truncated"] / n,
            "rl/tool_calls": counts["calls"] / n,
            "rl/groups_without_signal": counts["silent"] / counts["groups"],
            "rl/problems_too_long": counts["long"],
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
        return {"problems": list(range(first, first + self._settings.problems)), "seed": self._settings.seed}

    def state_dict(self) -> dict[str, Any]:
        """The totals; problems and seeds are functions of the step."""
        return dict(self._totals)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`."""
        self._totals = {name: float(state[name]) for name in self._totals}
