"""A job of training, from the verb's flags to its summary on the terminal."""

import os
from collections.abc import Callable
from typing import Any

from danalab.post.settings import FinetuneSettings, MidConfig, SftConfig
from danalab.train.config.train_config import TrainConfig


def run_job(configure: Callable[[], TrainConfig], *, as_json: bool) -> int:
    """Train by the configuration that `configure` makes; returns the exit code."""
    import json
    import sys

    from danalab.train.system.signals import StopRequest

    with StopRequest() as stop:  # before the imports below, which take seconds
        from danalab.train.callbacks.console import log_to_stderr
        from danalab.train.job import run_training

        log_to_stderr()
        outcome = run_training(configure(), stop)
    if not outcome.is_main:
        return outcome.exit_code
    if as_json:
        print(json.dumps({**outcome.summary, "run": str(outcome.folder)}))
    else:
        _print_summary(outcome.summary, str(outcome.folder), sys.stderr)
    return outcome.exit_code


def finetuning(flags: FinetuneSettings, kind: type[SftConfig | MidConfig]) -> TrainConfig:
    """The configuration of a run that continues `flags.run` on conversations."""
    from danalab.post.sft import configure

    return configure(flags, kind)


def resolved_stage(configure: Callable[[], TrainConfig]) -> dict[str, Any]:
    """The resolved configuration of a stage that continues a run, for --print-config; nothing is written."""
    from danalab.data.formats import scan_cache
    from danalab.train.config.resolve import resolve
    from danalab.train.parallel.layout import data_parallel_ranks
    from danalab.train.stage import stage_kind

    with scan_cache.read_only():
        config = configure()
        dataset = stage_kind(config).open_data(config)
        return resolve(config, dataset, world_size=data_parallel_ranks(config, os.environ)).config.as_dict()


def _print_summary(summary: dict[str, Any], folder: str, file: Any) -> None:
    words = [f"{summary.get('status')} at step {summary.get('step')} of {summary.get('iterations')}"]
    for key, unit in (("train/loss", ""), ("val/loss", ""), ("val/bpb", " bits/byte")):
        if summary.get(key) is not None:
            words.append(f"{key.replace('/', ' ')} {summary[key]:.4f}{unit}")
    if summary.get("val/share", 1) < 1:
        words[-1] += f" (over {summary['val/share']:.1%} of the validation split; --final-eval-batches 0: all)"
    words += [f"{key} {summary[key]:.3f}" for key in summary if key.startswith("task/") and not key.endswith("_error")]
    if summary.get("tokens_per_second"):
        words.append(f"{summary['tokens_per_second']:,.0f} tok/s")
    print(", ".join(words), file=file)
    print(f"results in {folder}", file=file)
