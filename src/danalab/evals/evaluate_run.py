"""`danalab eval --tasks`, `--core`, `--lm-eval`: a run on tasks that it answers as a chat, or on in-context tasks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from danalab.chat.answers import ModelEngine
from danalab.chat.conversations import ChatFormat
from danalab.chat.formats import PlainFormat, TemplateFormat, format_of, own_template
from danalab.chat.rewards import Scorer
from danalab.chat.tasks import TEST, make_task
from danalab.data.tokenizers import Tokenizer
from danalab.errors import UserError
from danalab.evals.in_context import InContextResult, evaluate_in_context, read_suite
from danalab.evals.task_scores import AnswerSettings, Score, TaskResult, evaluate_task, mean_score
from danalab.models.decoder import Decoder
from danalab.train.config.run_spec import recorded_dtype
from danalab.train.run.open import open_run
from danalab.train.system.device import autocast_context, autocast_dtype, choose_device


@dataclass(frozen=True)
class ChatEvaluation:
    """Scores of a run on tasks."""

    step: int
    tasks: list[TaskResult]
    mean: Score
    """Mean of the centred scores, where 0 is as good as random answers; its error is that of the problems."""

    @property
    def calls(self) -> Score | None:
        """Share of answers that call a tool, over all problems that need one."""
        called = [share for task in self.tasks for share in task.called]
        return Score.of(called) if called else None


@dataclass(frozen=True)
class CoreEvaluation:
    """Scores of a run on in-context tasks."""

    step: int
    tasks: list[InContextResult]
    core: Score
    """Mean of the centred accuracies."""


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
) -> ChatEvaluation:
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
    opened = _open(folder, step, device)
    own = format_of(Path(folder), opened.tokenizer)
    chat = ChatFormat(opened.tokenizer) if isinstance(own, PlainFormat) else own  # marks even where they mean nothing
    with opened.autocast(), ModelEngine(opened.model, chat, max_batch_size=batch_size)() as engine:
        results: list[TaskResult] = []
        for task in made:
            for result in evaluate_task(engine, chat, task, settings, scorer=scorer):
                report(result)
                results.append(result)
    return ChatEvaluation(opened.step, results, mean_score([result.centred for result in results]))


def evaluate_core(
    folder: str | Path,
    suite: str | Path,
    *,
    limit: int | None = None,
    step: int | None = None,
    device: str | None = None,
    report: Callable[[InContextResult], None] = lambda result: None,
) -> CoreEvaluation:
    """Score a run on `limit` questions of each in-context task of a folder in DCLM's format; `report` gets results."""
    if limit is not None and limit < 1:
        raise UserError(f"--limit {limit}: must be at least 1")
    tasks, opened = read_suite(suite), _open(folder, step, device)
    results = []
    for task in tasks:
        result = evaluate_in_context(opened.model, opened.tokenizer, task, limit=limit, autocast=opened.autocast)
        report(result)
        results.append(result)
    return CoreEvaluation(opened.step, results, mean_score([result.centred for result in results]))


def harness_format(run: str | Path, tokenizer: Tokenizer) -> TemplateFormat:
    """The format for lm-eval's harness, which renders to text first: a run's own template, else our marks as one."""
    own = format_of(Path(run), tokenizer)
    return own if isinstance(own, TemplateFormat) else TemplateFormat(tokenizer, own_template(tokenizer))


class _Opened(NamedTuple):
    model: Decoder
    tokenizer: Tokenizer
    step: int
    autocast: Callable[[], Any]


def _open(folder: str | Path, step: int | None, device: str | None) -> _Opened:
    run, chosen = open_run(folder), choose_device(device)
    tokenizer = run.tokenizer
    loaded = run.load_model(step, chosen)
    autocast = autocast_context(autocast_dtype(recorded_dtype(run.config), chosen), chosen)
    return _Opened(loaded.model.eval(), tokenizer, loaded.step, autocast)
