"""`danalab eval --lm-eval`: evaluates a run's model on tasks of EleutherAI's evaluation harness, by the harness.

Source: Gao et al. 2024, the language model evaluation harness; its package is lm-eval.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from danalab.errors import MissingExtra, UserError, first_line, nearest
from danalab.files import read_yaml
from danalab.train.config.run_spec import recorded_dtype
from danalab.train.run.open import open_run
from danalab.train.system.device import autocast_context, autocast_dtype, choose_device

if TYPE_CHECKING:
    from danalab.data.tokenizers import Tokenizer
    from danalab.train.evaluation.lm_eval_adapter import ConversationFormat


@dataclass(frozen=True)
class HarnessResult:
    """The result."""

    step: int
    tasks: dict[str, dict[str, Any]]
    """Task -> metric (such as "acc") -> value; standard errors likewise."""
    samples: dict[str, int]
    """Task -> number of documents."""
    num_fewshot: dict[str, int]
    """Task -> examples before each question."""
    version: str
    """Version of the harness."""


def evaluate_tasks(
    folder: str | Path,
    tasks: list[str],
    *,
    step: int | None = None,
    num_fewshot: int | None = None,
    limit: int | None = None,
    batch_size: int | None = None,
    device: str | None = None,
    chat: "Callable[[Tokenizer], ConversationFormat] | None" = None,
) -> HarnessResult:
    """Evaluate a checkpoint on tasks, in the number format of its training. MissingExtra: lm-eval is not installed.

    Args:
        tasks: names of the harness, or paths of YAML files that define a task.
        num_fewshot: examples before each question; default the task's.
        limit: only the first documents of each task.
        chat: makes the format of conversations in which the tasks are asked; default plain text.
    """
    if find_spec("lm_eval") is None:
        raise MissingExtra("lm_eval", "--lm-eval")
    for flag, value, low in (("--num-fewshot", num_fewshot, 0), ("--limit", limit, 1), ("--batch-size", batch_size, 1)):
        if value is not None and value < low:
            raise UserError(f"{flag} {value}: must be {'at least 1' if low else '0 or more'}")
    run = open_run(folder)
    tokenizer = run.tokenizer
    names, manager = _find(tasks)
    import lm_eval

    from danalab.train.evaluation.lm_eval_adapter import HarnessModel

    config, chosen = run.config["config"], choose_device(device)
    loaded = run.load_model(step, chosen)
    autocast = autocast_context(autocast_dtype(recorded_dtype(run.config), chosen), chosen)
    model = HarnessModel(
        loaded.model,
        tokenizer,
        batch_size=batch_size or config["batch_size"],
        device=chosen,
        autocast=autocast,
        chat=None if chat is None else chat(tokenizer),
    )
    try:
        evaluate: Any = lm_eval.simple_evaluate  # its decorator hides its arguments from type checkers
        output = evaluate(
            model=model,
            tasks=names,
            task_manager=manager,
            num_fewshot=num_fewshot,
            limit=limit,
            apply_chat_template=chat is not None,
            bootstrap_iters=1000,
            log_samples=False,
        )
    except UserError:
        raise
    except (OSError, ValueError, ImportError) as error:  # mostly data that can be neither read nor downloaded
        raise UserError(f"--lm-eval {','.join(tasks)}: the harness says: {first_line(error)}") from error
    results = {task: _plain(values) for task, values in output["results"].items()}
    samples = {task: int(counts["effective"]) for task, counts in output.get("n-samples", {}).items()}
    shots = {task: int(count) for task, count in output.get("n-shot", {}).items()}
    return HarnessResult(loaded.step, results, samples, shots, lm_eval.__version__)


def _find(tasks: list[str]) -> tuple[list[str], Any]:
    if not tasks:
        raise UserError("--lm-eval: name at least one task, or the path of a YAML file that defines one")
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from lm_eval.tasks import TaskManager

    files = {task: Path(task) for task in tasks if task.endswith((".yaml", ".yml"))}
    for file in files.values():
        if not file.is_file():
            raise UserError(f"--lm-eval {file}: there is no such file")
    folders: list[str | Path] = [*sorted({file.parent.resolve() for file in files.values()})]
    manager = TaskManager(include_path=folders or None, include_defaults=len(files) < len(tasks))
    names = [_name_in(files[task]) if task in files else task for task in tasks]
    for name in names:
        if name not in manager.all_tasks:
            raise UserError(f"--lm-eval {name}: no such task{nearest(name, manager.all_tasks)}; `lm-eval ls tasks` "
                            "lists them, and a path of a YAML file can replace a name")  # fmt: skip
    return names, manager


def _name_in(file: Path) -> str:
    try:
        described = read_yaml(file, own_tags=True)
    except UserError as error:
        raise UserError(f"--lm-eval {error}") from error
    name = described.get("task") if isinstance(described, dict) else None
    if not isinstance(name, str):
        raise UserError(f"--lm-eval {file}: defines no task (its YAML has no 'task: NAME')")
    return name


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Numbers by metric, without the name of the default filter ("none")."""
    return {
        key.removesuffix(",none"): value
        for key, value in values.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
