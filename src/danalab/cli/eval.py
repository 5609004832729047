"""Evaluate a run: loss on a split, or scores on tasks."""

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from danalab.errors import UserError
from danalab.train.config.flags import Answer, Count, JsonFlags, PathText, Positional, flag, setting

DEFAULT_PROBLEMS = 200
"""Problems of each task, where --limit isn't given: generated tasks have no end."""


@dataclass(frozen=True, kw_only=True)
class Flags(JsonFlags):
    run: Positional[Path] = setting(help="Run folder, finished or not; also as --run.")
    step: int | None = setting(None, "Checkpoint [steps]; default the newest that verifies.")
    split: str = setting("val", "Split of the data: val or train.")
    data: Path | None = setting(None, "Data folder; default the one that the run was trained on.")
    batch_size: int | None = setting(
        None, "Sequences at a time, which changes no result; default the run's micro-batch."
    )
    device: str | None = setting(None, "cpu, cuda or cuda:N; default cuda where there is one.")
    tasks: tuple[PathText, ...] = setting(
        (),
        "Let the run answer the test problems of tasks as a chat, instead of a split: NAME or "
        "NAME:KEY=VALUE,..., or FILE.jsonl.",
    )
    samples: Count = setting(1, "tasks: answers to each problem, for pass@k; needs a temperature.")
    temperature: float = setting(0.0, "tasks: temperature of the answers; 0 takes the most likely token.")
    max_tokens: Count = setting(256, "tasks: limit on an answer.")
    reward: PathText | None = setting(
        None,
        "tasks: reward of all answers: exact, number, choice, code, or FILE.py:NAME; default that "
        "of each problem.",
    )
    trust_model_code: bool = setting(
        False,
        "tasks: run model-written programs even where they can't be sandboxed, with the "
        "rights of your account.",
    )
    seed: int = setting(0, "tasks: seed of the sampling.")
    show: int = setting(0, "tasks: print this number of problems of each task with their answers, at most 3.")
    core: Path | None = setting(
        None, "Evaluate on the in-context tasks of a folder in DCLM's format, instead of a split."
    )
    lm_eval: PathText | None = setting(
        None,
        "Evaluate on tasks of the lm-eval harness instead of a split: TASK,TASK, or paths of YAML "
        "files that define one.",
    )
    num_fewshot: int | None = setting(
        None, "lm-eval: examples in front of each question; default the task's."
    )
    chat: bool | None = setting(
        None,
        "lm-eval: ask in the format of conversations, ours or an imported run's own; default yes "
        "for runs of mid, sft and rl.",
    )
    limit: Count | None = setting(
        None, "tasks, core, lm-eval: only so many problems of each task; default for --tasks 200, else all."
    )


def run(flags: Flags) -> Answer:
    """Evaluate a run: its loss on every window of a split, or its scores on tasks."""
    from danalab.train.callbacks.console import log_to_stderr

    log_to_stderr()
    modes = [name for name in ("tasks", "core", "lm_eval") if getattr(flags, name) not in (None, ())]
    if len(modes) > 1:
        raise UserError(f"{' and '.join(map(flag, modes))}: one kind of evaluation at a time")
    (mode,) = modes or ["split"]
    for name, readers in _READ_BY.items():
        if mode not in readers and getattr(flags, name) != getattr(Flags, name, None):
            raise UserError(
                f"{flag(name)} has no effect on {flag(mode)}; it is for {', '.join(map(flag, readers))}"
            )
    result, lines = _EVALUATIONS[mode](flags)
    return Answer({"run": str(flags.run), **dataclasses.asdict(result)}, lines)


def _on_split(flags: Flags) -> tuple[Any, list[str]]:
    from danalab.train.evaluation import evaluate_run

    result = evaluate_run(
        flags.run,
        step=flags.step,
        split=flags.split,
        data=flags.data,
        batch_size=flags.batch_size,
        device=flags.device,
    )
    bpb = "" if result.bpb is None else f", {result.bpb:.4f} bits per byte"
    perplexity = f"{result.perplexity:.2f}" if result.perplexity < 1e6 else "above a million"
    line = (
        f"{flags.run}, step {result.step}, {result.split}: {result.loss:.4f} nats/token (perplexity "
        f"{perplexity}){bpb}, accuracy {result.accuracy:.2%}, over {result.tokens:,} tokens"
    )
    return result, [line]


def _on_tasks(flags: Flags) -> tuple[Any, list[str]]:
    from danalab.chat.answers import AnswerSettings
    from danalab.chat.task_scores import evaluate_chat

    limit = DEFAULT_PROBLEMS if flags.limit is None else flags.limit
    settings = AnswerSettings(
        limit=limit,
        samples=flags.samples,
        temperature=flags.temperature,
        max_tokens=flags.max_tokens,
        seed=flags.seed,
    )
    result = evaluate_chat(
        flags.run,
        flags.tasks,
        settings,
        reward=flags.reward,
        trusts_model_code=flags.trust_model_code,
        step=flags.step,
        device=flags.device,
        batch_size=flags.batch_size or 64,
    )
    scores = "mean reward, centred on random answers, pass@k; standard errors of the problems"
    lines = [f"{flags.run}, step {result.step}: {scores}"]
    for task in result.tasks:
        passes = "".join(
            f"  pass@{k} {score.mean:.4f}" for k, score in task.passes.items() if flags.samples > 1
        )
        notes = f"; {task.truncated:.0%} cut off" if task.truncated else ""
        notes += f"; {task.skipped} without space for an answer left out" if task.skipped else ""
        lines.append(
            f"  {task.task:<16} {task.score}  centred {task.centred}{passes}  ({task.score.count} problems, "
            f"{task.length:.1f} tokens an answer{notes})"
        )
        for each in task.examples[: flags.show]:
            question, said, reference = (
                " ".join(each[name].split()) for name in ("question", "answer", "reference")
            )
            lines += [f"    Q {question}", f"    A {said}"]
            lines.append(f"      reward {each['rewards'][0]:g}, reference {reference}")
    if len(result.tasks) > 1:
        lines.append(f"  {'mean, centred':<16} {result.mean}")
    return result, lines


def _on_core(flags: Flags) -> tuple[Any, list[str]]:
    from danalab.chat.in_context import InContextResult, evaluate_core

    def report(result: InContextResult) -> None:
        text = f"  {result.label:<32} {result.accuracy}  centred {result.centred}  ({result.accuracy.count} questions)"
        print(text, file=sys.stderr if flags.json else sys.stdout, flush=True)

    assert flags.core is not None
    result = evaluate_core(
        flags.run, flags.core, limit=flags.limit, step=flags.step, device=flags.device, report=report
    )
    return result, [f"{flags.run}, step {result.step}: CORE {result.mean} over {len(result.tasks)} tasks"]


def _on_harness(flags: Flags) -> tuple[Any, list[str]]:
    from danalab.chat.harness import evaluate_tasks
    from danalab.chat.marks import CHAT_STAGES
    from danalab.train.run.open import open_run

    assert flags.lm_eval is not None
    chat = flags.chat if flags.chat is not None else open_run(flags.run).config.get("stage") in CHAT_STAGES
    tasks = [task.strip() for task in flags.lm_eval.split(",") if task.strip()]
    result = evaluate_tasks(
        flags.run,
        tasks,
        chat=chat,
        step=flags.step,
        num_fewshot=flags.num_fewshot,
        limit=flags.limit,
        batch_size=flags.batch_size,
        device=flags.device,
    )
    lines = [f"{flags.run}, step {result.step}, lm-eval {result.version}"]
    for task, values in result.tasks.items():
        lines += [f"  {task:<24} {metric:<28} {value:.4f}" for metric, value in values.items()]
    return result, lines


_EVALUATIONS = {"split": _on_split, "tasks": _on_tasks, "core": _on_core, "lm_eval": _on_harness}
"""Kind of evaluation, by the flag that asks for it: flags -> (result, lines for people)."""

_READ_BY = {
    **dict.fromkeys(("split", "data"), ("split",)),
    **dict.fromkeys(("samples", "temperature", "max_tokens", "reward", "seed", "show"), ("tasks",)),
    "trust_model_code": ("tasks",),
    "batch_size": ("split", "tasks", "lm_eval"),
    **dict.fromkeys(("num_fewshot", "chat"), ("lm_eval",)),
    "limit": ("tasks", "core", "lm_eval"),
}
"""Setting -> the kinds of evaluation that read it, of those that not all of them do."""

VERBS = {"eval": (Flags, run)}
