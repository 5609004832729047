"""Train a model, or continue a run by a stage: `danalab train`, `mid`, `sft`, `rl`; the same command resumes each."""

import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from danalab.post.settings import MidConfig, MidFlags, RlFlags, SftConfig, SftFlags
from danalab.train.config.flags import Answer, names_of
from danalab.train.config.train_config import TrainConfig

if TYPE_CHECKING:
    from danalab.data.vocabulary import Vocabulary

StageFlags = MidFlags | SftFlags | RlFlags


def run(flags: TrainConfig | StageFlags) -> Answer | int:
    """Train a model, or a run further by a stage, into a run folder; the same command resumes it."""
    from danalab.train.system.signals import StopRequest

    with StopRequest() as stop:  # before the imports below, which take seconds
        from danalab.train.callbacks.console import log_to_stderr
        from danalab.train.run.folder import RunFolder
        from danalab.train.run.metrics import write_curve
        from danalab.train.trainer import run_training

        log_to_stderr()
        outcome = run_training(_configuration(flags), stop)
    if not outcome.is_main:
        return outcome.exit_code
    if outcome.summary.get("step"):
        write_curve(outcome.folder, RunFolder(outcome.folder).read_config()["config"]["vocab_size"])
    print(ending(outcome.summary, outcome.folder), file=sys.stderr)
    return Answer({**outcome.summary, "run": str(outcome.folder)}, [], outcome.exit_code)


VERBS = {"train": (TrainConfig, run), "mid": (MidFlags, run), "sft": (SftFlags, run), "rl": (RlFlags, run)}


def resolved_config(flags: TrainConfig | StageFlags) -> dict[str, Any]:
    """The resolved configuration, for --print-config; nothing is written."""
    return resolved_run(flags).as_dict()


def resolved_run(flags: TrainConfig | StageFlags, vocabulary: "Vocabulary | None" = None) -> TrainConfig:
    """The run that a job with these flags would train, on data of a `vocabulary` (default its own); writes nothing."""
    from danalab.data import vocabulary_of
    from danalab.train.config.resolve import resolve
    from danalab.train.parallel.layout import check_parallel, data_parallel_size, find_place, layout_of

    config = _configuration(flags)
    if vocabulary is None and config is flags:
        vocabulary = vocabulary_of(config.source, config.tokenizer)
    elif vocabulary is None:
        from danalab.train.stage import stage_kind

        vocabulary = stage_kind(config).open_data(config)
    place, layout = find_place(os.environ), layout_of(config, os.environ)
    ranks = (config.nproc or 1) if place is None else place.size
    spec = resolve(config, vocabulary, ranks=data_parallel_size(layout.shape(ranks)))
    check_parallel(spec, layout, ranks)
    return spec


def _configuration(flags: TrainConfig | StageFlags) -> TrainConfig:
    if isinstance(flags, RlFlags):
        from danalab.post.rl import configure as configure_rl

        return configure_rl(flags)
    if isinstance(flags, (MidFlags, SftFlags)):
        from danalab.post.sft import configure

        return configure(flags, MidConfig if isinstance(flags, MidFlags) else SftConfig)
    return _as_it_began(flags)


def _as_it_began(flags: TrainConfig) -> TrainConfig:
    """The run in --run-dir as its command gave it, changed by the flags here, where they give no size."""
    from danalab.train.run.folder import RunFolder

    sized = flags.heads or flags.size or None not in (flags.d_model, flags.n_layers, flags.n_heads)
    folder = None if flags.run_dir is None else RunFolder(flags.run_dir)
    if sized or folder is None or not folder.config_file.is_file():
        return flags
    saved, usual = folder.read_config(), TrainConfig()
    if saved.get("stage") != "pretraining":
        return flags
    left = [
        name
        for name in names_of(TrainConfig, "run", "input", "data", "execution")
        if getattr(flags, name) == getattr(usual, name)
    ]
    return replace(flags, **{name: value for name, value in saved["given"].items() if name in left})


def ending(summary: dict[str, Any], folder: Path) -> str:
    """The last lines of a run: how it ended, where it is, and how it goes on."""
    words = [f"{summary.get('status')} at step {summary.get('step')} of {summary.get('iterations')}"]
    if summary.get("train/loss") is not None:
        words.append(f"train loss {summary['train/loss']:.4f}")
    if summary.get("val/loss") is not None:
        about = [] if summary.get("val/bpb") is None else [f"{summary['val/bpb']:.4f} bits/byte"]
        if (
            share := summary.get("val/share")
        ) is not None:  # evaluations before the last one read less, and so differ
            part = f"{share:.1%} of the validation split; --final-eval-batches 0: all"
            about.append(f"over {'the whole validation split' if share >= 1 else part}")
        words.append(f"val loss {summary['val/loss']:.4f}" + (f" ({', '.join(about)})" if about else ""))
    words += [
        f"{key} {summary[key]:.3f}"
        for key in summary
        if key.startswith("task/") and not key.endswith("_error")
    ]
    if summary.get("tokens_per_second"):
        words.append(f"{summary['tokens_per_second']:,.0f} tok/s")
    status, lines = summary.get("status"), [", ".join(words)]
    if (best := summary.get("best_step")) and best != summary.get("step"):
        lines.append(f"best evaluation: val loss {summary['best_loss']:.4f} at step {best}")
    if summary.get("diverged"):
        lines.append("warning: the run diverged (loss worse than random guessing); try a smaller --lr")
    quoted = shlex.quote(str(folder))
    goes_on = "; the same command continues it" if status in ("interrupted", "stopped") else ""
    if status == "finished" and not summary.get("diverged"):
        goes_on = f"; try danalab generate --run {quoted}, or danalab compare {quoted} ANOTHER"
    return "\n".join([*lines, f"results in {folder}{goes_on}"])
