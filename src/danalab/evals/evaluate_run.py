"""`danalab eval --core` and `--lm-eval`: a run on in-context tasks, and its format for lm-eval's harness."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from danalab.chat.formats import TemplateFormat, format_of, own_template
from danalab.chat.task_scores import Score, mean_score, open_model
from danalab.data.tokenizers import Tokenizer
from danalab.errors import UserError
from danalab.evals.in_context import InContextResult, evaluate_in_context, read_suite


@dataclass(frozen=True)
class CoreEvaluation:
    """Scores of a run on in-context tasks."""

    step: int
    tasks: list[InContextResult]
    core: Score
    """Mean of the centred accuracies."""


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
    tasks, opened = read_suite(suite), open_model(folder, step, device)
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
