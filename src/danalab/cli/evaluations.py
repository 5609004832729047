"""`danalab eval --core` and `--lm-eval`: in-context tasks in DCLM's format, and tasks of the lm-eval harness."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from danalab.cli.eval import EVALUATIONS, Flags, print_result

if TYPE_CHECKING:
    from danalab.chat.formats import TemplateFormat
    from danalab.data.tokenizers import Tokenizer


def _on_core(flags: Flags, run: Path) -> None:
    from danalab.chat.in_context import InContextResult, evaluate_core

    def report(result: InContextResult) -> None:
        text = f"  {result.label:<32} {result.accuracy}  centred {result.centred}  ({result.accuracy.count} questions)"
        print(text, file=sys.stderr if flags.json else sys.stdout, flush=True)

    assert flags.core is not None
    result = evaluate_core(run, flags.core, limit=flags.limit, step=flags.step, device=flags.device, report=report)
    if print_result(flags, run, result):
        return
    print(f"{run}, step {result.step}: CORE {result.core} over {len(result.tasks)} tasks")


def _on_harness(flags: Flags, run: Path) -> None:
    from danalab.chat.harness import evaluate_tasks
    from danalab.chat.marks import CHAT_STAGES
    from danalab.train.run.open import open_run

    assert flags.lm_eval is not None
    is_chat = flags.chat if flags.chat is not None else open_run(run).config.get("stage") in CHAT_STAGES
    tasks = [task.strip() for task in flags.lm_eval.split(",") if task.strip()]
    settings = {name: getattr(flags, name) for name in ("step", "num_fewshot", "limit", "batch_size", "device")}
    result = evaluate_tasks(run, tasks, chat=partial(harness_format, run) if is_chat else None, **settings)
    if print_result(flags, run, result):
        return
    print(f"{run}, step {result.step}, lm-eval {result.version}")
    for task, values in result.tasks.items():
        for metric, value in values.items():
            name, _, filtered = metric.partition(",")
            if name.endswith("_stderr") or name == "sample_len":
                continue
            error = values.get(f"{name}_stderr" + (f",{filtered}" if filtered else ""))
            spread = "" if error is None else f" +- {error:.4f}"
            print(f"  {task:<24} {metric:<20} {value:.4f}{spread}")


def harness_format(run: str | Path, tokenizer: "Tokenizer") -> "TemplateFormat":
    """The format for the harness, which renders to text first: a run's own template, else our marks as one."""
    from danalab.chat.formats import TemplateFormat, format_of, own_template

    own = format_of(Path(run), tokenizer)
    return own if isinstance(own, TemplateFormat) else TemplateFormat(tokenizer, own_template(tokenizer))


EVALUATIONS.add("core", _on_core)
EVALUATIONS.add("lm_eval", _on_harness)
