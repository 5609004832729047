"""scripts/launch.sh: the original launcher's flags become those of `danalab train`."""

from __future__ import annotations

import subprocess
from pathlib import Path

from danalab.cli.app import main
from danalab.train.config.flags import parse
from danalab.train.config.train_config import TrainConfig

SCRIPT = Path(__file__).parents[2] / "scripts" / "launch.sh"


def launch(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


def parsed(*arguments: str) -> TrainConfig:
    words = launch(*arguments, "--dry").stdout.split()
    return parse(TrainConfig, words[words.index("train") + 1 :], "x")


def test_the_original_spellings_are_understood():
    config = parsed(
        "--arch", "qwen3", "--opt", "dana-star-mk4", "--heads", "6", "--batch_size", "8", "--acc_steps", "4",
        "--gamma_3_factor", "0.5", "--latest_ckpt_interval=100", "--permanent_ckpt_interval", "1000", "--no_wandb",
        "--z_loss_coeff", "1e-3", "--init_scheme", "KarpathyGPT2", "--no_compile", "--no_auto_resume", "--nproc", "1",
    )  # fmt: skip
    assert (config.arch, config.opt, config.heads) == ("qwen3", "dana-star-mk4", 6)
    assert (config.batch_size, config.acc_steps, config.z_loss) == (8, 4, 1e-3)
    assert config.gamma3 == 0.5
    assert (config.ckpt_interval, config.keep_every, config.init) == (100, 1000, "KarpathyGPT2")
    assert (config.compile, config.auto_resume) == (False, False)


def test_enoki_and_adana_are_the_defaults():
    config = parsed("--heads", "3")
    assert (config.arch, config.opt) == ("enoki", "adana")


def test_it_plans_for_fineweb_and_says_what_to_type_where_it_is_not_there(tmp_path, monkeypatch, capsys):
    command = ["--arch", "enoki", "--opt", "adana", "--heads", "3"]
    assert "train --arch enoki --opt adana --data fineweb_100" in launch(*command, "--dry").stdout
    # A stand-in of `danalab` shows its words, and says how it ended; the command itself runs in this process.
    (tmp_path / "danalab").write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@"; exit 3\n')
    (tmp_path / "danalab").chmod(0o755)
    monkeypatch.setenv("DANALAB", str(tmp_path / "danalab"))
    monkeypatch.setenv("DATASETS_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("RESULTS_BASE_FOLDER", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    for more, code in (["--print-config"], 0), ([], 2):
        done = launch(*command, *more)
        assert done.returncode == 3
        assert main(done.stdout.splitlines()) == code
        said = capsys.readouterr()
        if code == 0:
            lines = {"iterations: 6165", "warmup_steps: 123", "vocab_size: 50304"}
            assert lines <= set(said.out.splitlines())
    (line,) = said.err.splitlines()
    assert said.out == ""
    assert "not prepared yet; run danalab data prepare fineweb-100bt --tokenizer gpt2" in line
    assert {file.name for file in tmp_path.iterdir()} == {"danalab"}


def test_other_data_are_taken_where_they_are_named():
    for words in (["--dataset", "c4"], ["--data", "c4"], ["--data_path=c4"]):
        assert parsed("--heads", "3", *words).data == "c4"
    assert "fineweb" not in launch("--config", "run.yaml", "--dry").stdout


def test_arrangements_of_ranks_and_trackers_are_passed_on():
    words = launch(
        "--heads", "3", "--nproc", "4", "--distributed_backend", "nccl", "--wandb_offline", "--dry"
    ).stdout
    assert "--nproc 4 --distributed-backend ddp --wandb-mode offline --wandb" in words


def test_a_key_of_weights_and_biases_turns_it_on(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "x")
    assert "--wandb" in launch("--heads", "3", "--dry").stdout.split()
    assert "--wandb" not in launch("--heads", "3", "--no_wandb", "--dry").stdout.split()


def test_the_original_intervals_hold_unless_others_are_given():
    config = parsed("--heads", "3", "--eval_interval", "7")
    assert (config.eval_interval, config.log_interval, config.ckpt_interval) == (7, 50, 1000)


def test_activation_checkpointing_is_a_switch_with_a_flag_for_its_blocks():
    assert parsed("--heads", "3", "--activation_checkpointing").activation_checkpointing == "every-n:1"
    assert (
        parsed("--checkpoint_every_n", "2", "--activation_checkpointing").activation_checkpointing
        == "every-n:2"
    )
    assert parsed("--activation-checkpointing", "selective").activation_checkpointing == "selective"
    assert "needs --activation_checkpointing" in launch("--checkpoint_every_n", "2", "--dry").stderr


def test_what_cannot_be_meant_is_refused_before_anything_starts():
    for arguments, words in (((("--opt",)), "--opt needs a value"), (("stray",), "unexpected argument")):
        done = launch(*arguments)
        assert done.returncode == 2
        assert words in done.stderr
