"""Scores on tasks: the model answers the problems of a task as a chat, and the reward scores each answer.

score     mean reward of an answer                pass@k    of n sampled answers, k = 1, 2, 4, ..., n
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from torch import nn

from danalab.chat.answers import AnsweredProblem, AnswerSettings, ModelEngine, answer_problems
from danalab.chat.formats import PlainFormat, TemplateFormat, format_of
from danalab.chat.marks import ChatFormat
from danalab.chat.rewards import Scorer
from danalab.chat.tasks import TEST, Problem, Task, make_task
from danalab.data.tokenizers import Tokenizer
from danalab.errors import UserError
from danalab.inference.engine import Engine
from danalab.models.decoder import Decoder
from danalab.train.parallel.world import World
from danalab.train.run.open import open_run
from danalab.train.system.device import autocast_context, autocast_dtype, choose_device

T = TypeVar("T")


@dataclass(frozen=True)
class TaskResult:
    """The result of one task."""

    task: str
    score: Score
    """Mean reward."""
    centred: Score
    """0: as good as random answers."""
    passes: dict[int, Score]
    """k -> pass@k; an answer is right where its reward is at least 1."""
    length: float
    """Mean number of tokens of an answer."""
    truncated: float
    """Share of the answers that were cut off."""
    skipped: int
    """Problems that leave no space for an answer in the model's context; they do not count."""
    examples: list[dict[str, Any]]
    """The first three problems: question, reference, answer (the first one), rewards."""

    @classmethod
    def of(cls, name: str, baseline: float, answered: Sequence[AnsweredProblem | None]) -> TaskResult:
        """Raises UserError if no problem was answered."""
        scored = _answered(name, answered)
        answers = [answer for each in scored for answer in each.answers]
        n = len(scored[0].rewards)
        ks = sorted({1 << power for power in range(n.bit_length())} | {n})
        score = Score.of([fmean(each.rewards) for each in scored])
        right = [sum(reward >= 1 for reward in each.rewards) for each in scored]
        return cls(
            name,
            score,
            score.centred(baseline),
            {k: Score.of([pass_at_k(n, count, k) for count in right]) for k in ks},
            fmean(len(answer.tokens) for answer in answers),
            fmean(not answer.finished for answer in answers),
            len(answered) - len(scored),
            [_example(each) for each in scored[:3]],
        )


def _answered(name: str, answered: Sequence[T | None]) -> list[T]:
    found = [each for each in answered if each is not None]
    if not found:
        raise UserError(f"task {name}: no problem leaves space for an answer in the model's context")
    return found


def _example(answered: AnsweredProblem) -> dict[str, Any]:
    problem = answered.problem
    before = [each.text for each in problem.history if each.role == "user"]
    return {
        "question": " ... ".join([*before, problem.question]),
        "reference": problem.answer,
        "answer": answered.texts[0],
        "rewards": answered.rewards,
    }


def evaluate_task(
    engine: Engine,
    chat: ChatFormat | TemplateFormat,
    task: Task,
    settings: AnswerSettings,
    *,
    scorer: Scorer | None = None,
) -> list[TaskResult]:
    """Answer the problems of a task and score the answers, turn by turn where they are conversations.

    An answer is a function of the seed, the task, the problem and the sample, whatever the batch, except for rounding.
    Before a later turn stands what the model itself has said, its first sample. UserError: no problem leaves space for
    an answer, or a reward misbehaves.
    """
    asked = _problems(task, settings)
    has_turns, results = any(problem.later for problem in asked.values()), list[TaskResult]()
    while asked:
        answered = answer_problems(engine, chat, scorer or Scorer(), asked, settings)
        turn = len(results) + 1
        if turn > 1 and not any(answered):
            break
        name = f"{task.name}, turn {turn}" if has_turns else task.name
        results.append(TaskResult.of(name, task.baseline, answered))
        asked = {
            (*key[:3], turn): each.problem.next_turn(chat.parse(each.answers[0].tokens))
            for key, each in zip(asked, answered, strict=True)
            if each is not None and each.problem.later
        }
    return results


def _problems(task: Task, settings: AnswerSettings, first: int = 0, step: int = 1) -> dict[Any, Problem]:
    """Every `step`-th problem, by its key for the seeds."""
    limit = len(task) if settings.limit is None else min(settings.limit, len(task))
    return {
        (settings.seed, task.name, position): task.problem(position) for position in range(first, limit, step)
    }


class TaskEvaluator:
    """Scores the model that is trained on tasks; an `Evaluator` of the trainer. Ranks share the problems.

    `settings` have a limit, since generated tasks are endless; `scorer`: of all answers, default each problem's reward.
    """

    def __init__(
        self,
        chat: ChatFormat,
        tasks: Sequence[Task],
        settings: AnswerSettings,
        world: World,
        scorer: Scorer | None = None,
    ):
        self._chat, self._tasks, self._settings, self._world = chat, tasks, settings, world
        self._scorer = scorer or Scorer()
        self._engine: ModelEngine | None = None

    def evaluate(
        self, model: nn.Module, step: int, should_stop: Callable[[], bool], *, final: bool
    ) -> dict[str, float | None] | None:
        """task/NAME and its standard error, task/NAME_error; of conversations the first turn."""
        metrics: dict[str, float | None] = {}
        self._engine = self._engine or ModelEngine(model, self._chat)
        world = self._world
        for task in self._tasks:
            if should_stop():
                return None
            asked = _problems(task, self._settings, world.dp_rank, world.dp_size)
            with self._engine() as engine:
                answered = answer_problems(engine, self._chat, self._scorer, asked, self._settings)
            means = [None if each is None else fmean(each.rewards) for each in answered]
            gathered = [mean for part in world.gather(means) for mean in part]
            score = Score.of(_answered(task.name, gathered))
            metrics |= {f"task/{task.name}": score.mean, f"task/{task.name}_error": score.error}
        return metrics


@dataclass(frozen=True)
class Score:
    """A mean over problems."""

    mean: float
    error: float | None
    """Standard error of the mean, the problems taken as a sample; None for a single one."""
    count: int
    """Number of problems."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Score:
        """The mean of at least one value."""
        count, mean = len(values), math.fsum(values) / len(values)
        if count == 1:
            return cls(mean, None, 1)
        variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
        return cls(mean, math.sqrt(variance / count), count)

    def centred(self, baseline: float) -> Score:
        """(mean - baseline) / (1 - baseline): 0 for random answers, 1 for right ones."""
        scale = 1 / (1 - baseline)
        error = None if self.error is None else self.error * scale
        return Score((self.mean - baseline) * scale, error, self.count)

    def __str__(self) -> str:
        return f"{self.mean:.4f}" + ("" if self.error is None else f" +- {self.error:.4f}")


def mean_score(scores: Sequence[Score]) -> Score:
    """The mean over tasks, with the error of their problems; which tasks there are is not taken as chance."""
    n = len(scores)
    errors = [score.error for score in scores if score.error is not None]
    error = math.sqrt(math.fsum(each**2 for each in errors)) / n if len(errors) == n else None
    return Score(math.fsum(score.mean for score in scores) / n, error, n)


def pass_at_k(samples: int, right: int, k: int) -> float:
    """Probability that one of k of n samples is right (c are), without bias: 1 - C(n - c, k) / C(n, k); k, c <= n.

    Source: Chen et al. 2021, arXiv 2107.03374, eq. 1.
    """
    return 1 - math.comb(samples - right, k) / math.comb(samples, k)


@dataclass(frozen=True)
class Evaluation:
    """Scores of a run on tasks."""

    step: int
    tasks: list[Any]
    """A `TaskResult` each, or an `InContextResult`."""
    mean: Score
    """Mean of the centred scores, where 0 is as good as random answers; its error is that of the problems."""


def evaluate_chat(
    folder: str | Path,
    tasks: Sequence[str],
    settings: AnswerSettings,
    *,
    reward: str | None = None,
    trusts_model_code: bool = False,
    step: int | None = None,
    device: str | None = None,
    batch_size: int = 64,
    report: Callable[[TaskResult], None] = lambda result: None,
) -> Evaluation:
    """Let a run answer the test problems of tasks, in our format of conversations or an imported model's own.

    Args:
        tasks: specifications, NAME[:KEY=VALUE,...]; those with a split have their test problems.
        settings: its limit also bounds generated tasks, which have no end of their own.
        reward: of all answers: a name or FILE.py:NAME; default that of each problem.
        trusts_model_code: whether programs of the model run where this system cannot isolate them.
        batch_size: answers that are computed at the same time.
        report: called with each result, as soon as there is one.
    Raises:
        UserError: no such run, checkpoint or task; the run has neither a chat template nor a tokenizer with marks of
            conversations; a reward that raises, hangs or gives no finite number.
    """
    if not tasks:
        raise UserError("--tasks: name at least one task")
    scorer = Scorer(reward, trusts_model_code=trusts_model_code)
    made = [make_task(text, split=TEST)[0] for text in tasks]
    model, tokenizer, found, autocast = open_model(folder, step, device)
    chat = format_of(Path(folder), tokenizer)
    if isinstance(chat, PlainFormat):
        chat = ChatFormat(tokenizer)  # marks even where they mean nothing
    with autocast(), ModelEngine(model, chat, max_batch_size=batch_size)() as engine:
        results: list[TaskResult] = []
        for task in made:
            for result in evaluate_task(engine, chat, task, settings, scorer=scorer):
                report(result)
                results.append(result)
    return Evaluation(found, results, mean_score([result.centred for result in results]))


def open_model(
    folder: str | Path, step: int | None, device: str | None
) -> tuple[Decoder, Tokenizer, int, Callable[[], Any]]:
    """(model, tokenizer, step, number format of the training) of a run's checkpoint, default the newest."""
    run, chosen = open_run(folder), choose_device(device)
    tokenizer = run.tokenizer
    loaded = run.load_model(step, chosen)
    autocast = autocast_context(autocast_dtype(run.config["config"]["dtype"], chosen), chosen)
    return loaded.model.eval(), tokenizer, loaded.step, autocast
