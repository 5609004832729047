"""scripts/launch.sh: the original launcher's flags become those of `danalab train`."""

from __future__ import annotations

import subprocess
from pathlib import Path

from danalab.cli._shared.flags import parse
from danalab.train.config.train_config import TrainConfig

SCRIPT = Path(__file__).parents[2] / "scripts" / "launch.sh"


def launch(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


def parsed(*arguments: str) -> TrainConfig:
    words = launch(*arguments, "--dry").stdout.split()
    return parse(TrainConfig, words[words.index("train") + 1 :], prog="train", description="").flags


def test_the_original_spellings_are_understood():
    config = parsed(
        "--arch", "qwen3", "--opt", "dana-star-mk4", "--heads", "6", "--batch_size", "8", "--acc_steps", "4",
        "--gamma_3_factor", "0.5", "--latest_ckpt_interval=100", "--permanent_ckpt_interval", "1000", "--no_wandb",
        "--z_loss_coeff", "1e-3", "--init_scheme", "KarpathyGPT2", "--no_compile", "--no_auto_resume", "--nproc", "1",
    )  # fmt: skip
    assert (config.arch, config.opt, config.heads) == ("qwen3", "dana-star-mk4", 6)
    assert (config.batch_size, config.acc_steps, config.gamma3, config.z_loss) == (8, 4, 0.5, 1e-3)
    assert (config.ckpt_interval, config.keep_every, config.init) == (100, 1000, "KarpathyGPT2")
    assert (config.compile, config.auto_resume) == (False, False)


def test_enoki_and_adana_are_the_defaults():
    config = parsed("--heads", "3")
    assert (config.arch, config.opt) == ("enoki", "adana")


def test_arrangements_of_ranks_and_trackers_are_passed_on():
    words = launch("--heads", "3", "--nproc", "4", "--distributed_backend", "nccl", "--wandb_offline", "--dry").stdout
    assert "--nproc 4 --distributed-backend ddp --wandb --wandb-mode offline" in words


def test_the_original_intervals_hold_unless_others_are_given():
    config = parsed("--heads", "3", "--eval_interval", "7")
    assert (config.eval_interval, config.log_interval, config.ckpt_interval) == (7, 50, 1000)


def test_activation_checkpointing_is_a_switch_with_a_flag_for_its_blocks():
    assert parsed("--heads", "3", "--activation_checkpointing").activation_checkpointing == "every-n:1"
    assert parsed("--checkpoint_every_n", "2", "--activation_checkpointing").activation_checkpointing == "every-n:2"
    assert parsed("--activation-checkpointing", "selective").activation_checkpointing == "selective"
    assert "needs --activation_checkpointing" in launch("--checkpoint_every_n", "2", "--dry").stderr


def test_what_cannot_be_meant_is_refused_before_anything_starts():
    for arguments, words in (((("--opt",)), "--opt needs a value"), (("stray",), "unexpected argument")):
        done = launch(*arguments)
        assert done.returncode == 2
        assert words in done.stderr
