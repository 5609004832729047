"""Every architecture of the registry trains in every parallel mode as in one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from danalab.models.architectures import ARCHITECTURES
from danalab.train.config.train_config import TrainConfig
from danalab.train.run.metrics import read_rows
from danalab.train.trainer import run_training
from distributed.ranks import run_ranks

MODES = {
    "ddp": {"distributed_backend": "ddp"},
    "zero": {"distributed_backend": "zero"},
    "fsdp": {"distributed_backend": "fsdp"},
    "fsdp+tp": {"distributed_backend": "fsdp", "tp_size": 2},
    "diloco": {
        "distributed_backend": "diloco", "diloco_steps": 1, "diloco_lr": 1.0, "diloco_momentum": 0.0,
    },
}  # fmt: skip
CASES = {
    **{arch: {"arch": arch} for arch in ARCHITECTURES},
    "qwen3next-delta": {"arch": "qwen3next", "full_attention_interval": 2, "n_layers": 2},
}


def config(words: Path, run_dir: Path, **given: object) -> TrainConfig:
    """Three steps with an optimizer that treats matrices, tables and vectors apart."""
    values: dict[str, object] = {
        "opt": "d-muon", "data": str(words), "d_model": 16, "n_layers": 1, "n_heads": 2, "mlp_dim": 32,
        "seq_len": 16, "global_batch": 4, "iterations": 3, "lr": 1e-3, "weight_decay": 0.1, "log_interval": 1,
        "eval_batches": 1, "ckpt_interval": 0, "run_dir": run_dir,
    }  # fmt: skip
    return TrainConfig(**{**values, **given})  # type: ignore[arg-type]


def train_in(rank: int, size: int, words: Path, folder: Path, case: str, modes: list[str]) -> dict[str, str]:
    """Mode -> how it ended."""
    runs = {mode: config(words, folder / mode, **CASES[case], **MODES[mode]) for mode in modes}
    return {mode: run_training(run).status for mode, run in runs.items()}


BY_LAYER = ["fsdp", "fsdp+tp"]
"""Modes that cut a model layer by layer, each architecture in its own way; the others take any module as it is."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "modes"),
    [
        ("enoki", list(MODES)),
        ("resonance", BY_LAYER),
        *(pytest.param(case, BY_LAYER, marks=pytest.mark.slow) for case in ("moe", "qwen3next-delta")),
        *(pytest.param(case, list(MODES), marks=pytest.mark.slow) for case in CASES if case != "enoki"),
    ],
)
def test_every_mode_trains_it(words, tmp_path, case, modes):
    run_training(config(words, tmp_path / "one", **CASES[case]))
    alone = [row["train/loss"] for row in read_rows(tmp_path / "one" / "metrics.jsonl")]
    for outcomes in run_ranks(train_in, 2, words, tmp_path, case, modes, seconds=240):
        for mode, said in outcomes.items():
            assert said == "finished", mode
            if mode != "diloco":
                losses = [row["train/loss"] for row in read_rows(tmp_path / mode / "metrics.jsonl")]
                assert losses == pytest.approx(alone, rel=2e-5), mode
