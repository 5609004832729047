"""Evaluate a run on its validation split."""

from dataclasses import dataclass
from pathlib import Path

from danalab.cli._shared.options import Positional
from danalab.cli._shared.run_argument import required_run


@dataclass(frozen=True, kw_only=True)
class Flags:
    folder: Positional[Path | None] = None
    """Run folder, finished or not."""
    run: Path | None = None
    """Run folder, in place of the first argument."""
    step: int | None = None
    """Checkpoint [steps]; default the newest that verifies."""
    split: str = "val"
    """Split of the data: val or train."""
    data: Path | None = None
    """Data folder; default the one that the run was trained on."""
    batch_size: int | None = None
    """Sequences at a time, which changes no result; default the run's micro-batch."""
    device: str | None = None
    """cpu, cuda or cuda:N; default cuda where there is one."""
    lm_eval: str | None = None
    """Evaluate on tasks of the lm-eval harness in place of a split: TASK,TASK, or paths of YAML files that define
    one."""
    num_fewshot: int | None = None
    """lm-eval: examples in front of each question; default the task's."""
    limit: int | None = None
    """lm-eval: only the first documents of each task."""
    json: bool = False
    """Print one JSON object on standard output."""


def run(flags: Flags) -> None:
    """Evaluate a run's model on every window of a split: nats a token, perplexity, bits per byte, and by position."""
    import dataclasses
    import json

    from danalab.errors import UserError
    from danalab.train.callbacks.console import log_to_stderr
    from danalab.train.evaluation.evaluate_run import evaluate_run

    log_to_stderr()
    run = required_run(flags.folder, flags.run, "eval")
    if flags.lm_eval is not None:
        _on_tasks(flags, run)
        return
    for name in ("num_fewshot", "limit"):
        if (value := getattr(flags, name)) is not None:
            raise UserError(f"--{name.replace('_', '-')} {value}: only with --lm-eval")
    result = evaluate_run(
        run,
        step=flags.step,
        split=flags.split,
        data=flags.data,
        batch_size=flags.batch_size,
        device=flags.device,
    )
    if flags.json:
        print(json.dumps({"run": str(run), **dataclasses.asdict(result)}))
        return
    bpb = "" if result.bpb is None else f", {result.bpb:.4f} bits per byte"
    bpb += f", accuracy {result.accuracy:.2%}"
    print(
        f"{run}, step {result.step}, {result.split}: {result.loss:.4f} nats a token "
        f"(perplexity {result.perplexity:.2f}){bpb}, over {result.tokens:,} tokens"
    )
    if len(result.by_position) > 1:
        print("by position in the window (the effect of more context):")
        for part in result.by_position:
            print(f"  {part.start:>7,} to {part.end - 1:>7,}  {part.loss:.4f}")


def _on_tasks(flags: Flags, run: Path) -> None:
    import dataclasses
    import json

    from danalab.errors import UserError
    from danalab.train.evaluation.lm_eval import evaluate_tasks

    assert flags.lm_eval is not None
    if flags.data is not None:
        raise UserError(f"--data {flags.data}: the tasks of --lm-eval have their own; leave one of the two out")
    result = evaluate_tasks(
        run,
        [task.strip() for task in flags.lm_eval.split(",") if task.strip()],
        step=flags.step,
        num_fewshot=flags.num_fewshot,
        limit=flags.limit,
        batch_size=flags.batch_size,
        device=flags.device,
    )
    if flags.json:
        print(json.dumps({"run": str(run), **dataclasses.asdict(result)}))
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
