"""`danalab eval --lm-eval`: a run on tasks of EleutherAI's evaluation harness, through its Hugging Face export.

Source: Gao et al. 2024, the language model evaluation harness; its package is lm-eval.
"""

import logging
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from danalab.chat.formats import template_of
from danalab.errors import UserError, first_line, import_extra, nearest
from danalab.files import read_yaml
from danalab.train.run.exchange import export_run
from danalab.train.system.device import choose_device


@dataclass(frozen=True)
class HarnessResult:
    """The result."""

    step: int
    tasks: dict[str, dict[str, float]]
    """Task -> metric (such as "acc") -> value; standard errors likewise."""
    samples: dict[str, int]
    """Task -> number of documents."""
    num_fewshot: dict[str, int]
    """Task -> examples before each question."""
    version: str
    """Version of the harness."""


def evaluate_tasks(
    run: str | Path,
    tasks: list[str],
    *,
    step: int | None = None,
    num_fewshot: int | None = None,
    limit: int | None = None,
    batch_size: int | None = None,
    device: str | None = None,
    chat: bool = False,
) -> HarnessResult:
    """Evaluate a checkpoint on tasks, names of the harness or paths of YAML files that define one.

    `chat`: ask in the format of conversations. UserError: what the harness says, e.g. that it has no such task.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    harness = import_extra("lm_eval", "--lm-eval")
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    names, manager = _found(tasks)
    with tempfile.TemporaryDirectory(prefix="danalab-") as folder:
        exported = export_run(run, Path(folder) / "model", step=step, chat_template=template_of(run))
        model = {
            "pretrained": exported["folder"],
            "trust_remote_code": exported["remote_code"],
            "dtype": "float32",
        }
        try:
            found: Any = harness.simple_evaluate(
                model="hf",
                model_args=model,
                tasks=names,
                task_manager=manager,
                num_fewshot=num_fewshot,
                limit=limit,
                batch_size=batch_size or 16,
                device=str(choose_device(device)),
                apply_chat_template=chat,
                bootstrap_iters=1000,
                log_samples=False,
            )
        except (
            OSError,
            ValueError,
            KeyError,
            ImportError,
        ) as error:  # mostly an unknown task, or data it cannot get
            raise UserError(f"--lm-eval {','.join(tasks)}: the harness says: {first_line(error)}") from error
    results = {
        task: {key.removesuffix(",none"): value for key, value in values.items() if isinstance(value, float)}
        for task, values in found["results"].items()
    }  # ",none": no filter
    samples = {task: int(counts["effective"]) for task, counts in found.get("n-samples", {}).items()}
    shots = {task: int(count) for task, count in found.get("n-shot", {}).items()}
    return HarnessResult(exported["step"], results, samples, shots, harness.__version__)


def _found(tasks: list[str]) -> tuple[list[str], Any]:
    """(names of the tasks, the harness's manager, which also knows those of YAML files)."""
    from lm_eval.tasks import TaskManager

    files = {task: Path(task) for task in tasks if task.endswith((".yaml", ".yml"))}
    folders: list[str | Path] = [*sorted({file.parent.resolve() for file in files.values()})]
    manager = TaskManager(include_path=folders or None, include_defaults=len(files) < len(tasks))
    names = [read_yaml(files[task], own_tags=True).get("task") if task in files else task for task in tasks]
    for task, name in zip(tasks, names, strict=True):
        if name not in manager.all_tasks:
            raise UserError(f"--lm-eval {task}: no such task{nearest(str(name), manager.all_tasks)}")
    return names, manager
