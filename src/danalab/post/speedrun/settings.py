"""Settings of a speedrun, which are its flags, and presets, which have the settings of its stages. Need no torch.

Scores are of test problems, which no stage trains on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Lt

from danalab.train.config.flags import Count, JsonFlags, PathText, Section, setting


@dataclass(frozen=True, kw_only=True)
class SpeedrunConfig(Section, JsonFlags):
    """Settings of a speedrun."""

    preset: Literal["cpu-tiny", "gpu-small", "gpu-d12"] = setting(
        "cpu-tiny",
        "Sizes of everything: cpu-tiny takes minutes on two cores and no network; gpu-small an "
        "hour, gpu-d12 hours on a GPU.",
    )
    out: Path = setting(
        Path("speedrun"),
        "Folder for everything; the same command continues after an interruption.",
        kind="job",
    )
    opt: PathText | None = setting(
        None, "Optimizer of all stages, at its default learning rate; default the preset's."
    )
    seed: Annotated[int, Ge(0), Lt(2**63)] = setting(
        0, "Seed of the weights, of the order of all data, and of the sampling."
    )
    text: tuple[Path, ...] = setting(
        (), "Text files or folders, of several documents, for the base run instead of the preset's corpus."
    )
    chats: tuple[PathText, ...] = setting(
        (), "Further conversations for mid-training and fine-tuning: FILE.jsonl, or tasks."
    )
    nproc: Count | None = setting(None, "Processes on this machine, one for each GPU.", kind="job")
    trust_model_code: bool = setting(
        False,
        "Run model-written programs even where they can't be sandboxed, with the permissions "
        "of your account.",
        kind="job",
    )
    device: str | None = setting(None, "cpu, cuda or cuda:N; default cuda where there is one.", kind="job")


@dataclass(frozen=True)
class Preset:
    """What a speedrun does."""

    source: str
    """Corpus of the base run."""
    tokenizer: str
    opt: str
    """Optimizer of all stages; --opt names another."""
    base: Mapping[str, Any]
    mid: Mapping[str, Any]
    sft: Mapping[str, Any]
    rl: Mapping[str, Any]
    tasks: tuple[str, ...]
    """Tasks that are scored after each stage."""
    problems: int
    """Test problems of each task."""
    max_answer: int
    """Limit on an answer [tokens]."""
    minutes: Mapping[str, float]
    """Expected share of each step in the time, in minutes of the machine that it was measured on."""
    lr_multiplier: float = 1.0
    """Times the default rate in the base run with `opt`."""
    optimizer_settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `opt`."""
    source_settings: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `danalab.data.prepare`."""


_SUMS, _WHO, _TALK = "arithmetic:max=149,operations=+-*,calculator=true", "identity", "dialogue:turns=4"
_LARGER_SUMS = "arithmetic:max=199,operations=+-*,calculator=true"
"""More than fine-tuning shows: reinforcement learning has something to add."""

PRESETS: dict[str, Preset] = {
    "cpu-tiny": Preset(
        source="stdlib",
        tokenizer="bpe-1024",
        opt="dana-muon",
        lr_multiplier=0.72,     # 0.016: 240 steps are a fortieth of the law's horizon
        optimizer_settings={"aux_lr_factor": 1.0, "normalise": None},  # base loss 3.748
        base={
            "arch": "qwen3", "attention_gate": False, "d_model": 128, "n_layers": 4, "n_heads": 4, "seq_len": 512,
            "batch_size": 4, "iterations": 240, "eval_interval": 100, "eval_batches": 1, "log_interval": 20,
            "ckpt_interval": 100,
        },
        mid={
            "data": (f"{_SUMS},size=6000", f"{_WHO}:size=400", f"{_TALK},size=1500"), "replay_share": 0.2,
            "global_batch": 4,
            "eval_interval": 100, "eval_batches": 1, "log_interval": 20, "ckpt_interval": 100,
        },
        sft={
            "data": (f"{_SUMS},size=8000", f"{_WHO}:size=1200", f"{_TALK},size=1300"), "global_batch": 4,
            "eval_interval": 100, "eval_batches": 1, "log_interval": 20, "ckpt_interval": 100,
        },
        rl={
            "task": (_LARGER_SUMS, "dialogue:ask=3,weight=0.25"), "problems": 16, "samples": 8, "max_answer": 32,
            "iterations": 80,
            "eval_interval": 0, "eval_problems": 64, "log_interval": 10, "ckpt_interval": 50, "lr_fraction": 0.05,
            "rollout_batch": 128,
        },
        tasks=(_LARGER_SUMS, _WHO, "dialogue"),
        problems=400,
        max_answer=32,
        minutes={"data": 0.1, "base": 1.5, "mid": 1.2, "sft": 0.9, "rl": 0.6, "scores": 0.25},
    ),
    "gpu-small": Preset(
        source="fineweb-edu",
        tokenizer="bpe-16384",
        opt="adana",
        source_settings={"max_tokens": 400_000_000},
        base={
            "arch": "qwen3", "attention_gate": False, "heads": 6, "seq_len": 1024, "global_batch": 128,
            "batch_size": 32, "iterations": 3000, "eval_interval": 500, "log_interval": 20, "ckpt_interval": 500,
        },
        mid={"data": ("gsm8k", "arc", "mmlu", "smoltalk:size=40000", "spelling:size=20000", "counting:size=20000",
                      f"{_TALK},size=20000", f"{_WHO}:size=1000"),
             "replay_share": 0.3, "log_interval": 20},
        sft={"data": ("gsm8k", "arc", "smoltalk:size=10000", "spelling:size=5000", "counting:size=5000",
                      "arithmetic:size=20000", f"{_TALK},size=10000", f"{_WHO}:size=1000"), "log_interval": 10},
        rl={"task": ("gsm8k", "arithmetic:weight=0.5"), "problems": 32, "samples": 16, "iterations": 200,
            "eval_interval": 50},
        tasks=("gsm8k", "arc", "arithmetic", "spelling", "counting", _WHO, "dialogue"),
        problems=400,
        max_answer=256,
        minutes={"data": 15, "base": 30, "mid": 6, "sft": 4, "rl": 15, "scores": 4},
    ),
    "gpu-d12": Preset(
        source="fineweb-edu",
        tokenizer="bpe-32768",
        opt="adana",
        source_settings={"max_tokens": 2_500_000_000},
        base={
            "arch": "qwen3", "attention_gate": False, "heads": 12, "seq_len": 2048, "global_batch": 256,
            "batch_size": 16, "iterations": 4500, "eval_interval": 500, "log_interval": 20, "ckpt_interval": 500,
        },
        mid={"data": ("gsm8k", "arc", "mmlu", "smoltalk:size=400000", "spelling:size=50000", "counting:size=50000",
                      f"{_TALK},size=40000", f"{_WHO}:size=1000"),
             "replay_share": 0.3, "log_interval": 20},
        sft={"data": ("gsm8k", "arc", "mmlu", "smoltalk:size=100000", "spelling:size=10000", "counting:size=10000",
                      "arithmetic:size=40000", f"{_TALK},size=20000", f"{_WHO}:size=1000"), "log_interval": 10},
        rl={"task": ("gsm8k",), "problems": 64, "samples": 16, "iterations": 400, "eval_interval": 50},
        tasks=("gsm8k", "arc", "mmlu", "humaneval", "arithmetic", "spelling", "counting", _WHO, "dialogue"),
        problems=400,
        max_answer=256,
        minutes={"data": 90, "base": 300, "mid": 15, "sft": 12, "rl": 60, "scores": 15},
    ),
}  # fmt: skip
