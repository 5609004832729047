"""Flags of the original training code, as they stand in its guide."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from danalab.errors import UserError
from danalab.train.config.flags import parse
from danalab.train.config.resolve import resolve
from danalab.train.config.train_config import TrainConfig
from train.config.test_config import Words


def config(words: str) -> TrainConfig:
    return parse(TrainConfig, words.split(), "danalab train")


def test_the_direct_command_of_the_guide_is_read_whole(monkeypatch):
    monkeypatch.setenv("DATASETS_DIR", "before")
    found = config(
        "--config_format base --model enoki --scaling_rule enoki --n_embd 384 --qkv_dim 64 --n_head 6 --n_layer 4 "
        "--mlp_hidden_dim 1536 --sequence_length 2048 --dataset fineweb_100 --datasets_dir /data --batch_size 32 "
        "--acc_steps 1 --dropout 0.0 --weight_tying False --wd_decaying --opt adana --lr 1e-3 --weight_decay 0.1 "
        "--distributed_backend gloo --iterations 1000 --activation_checkpointing --checkpoint_every_n 2 --compile "
        "--z_loss_coeff 0.0001 --init_scheme ScaledGPT --latest_ckpt_interval 1000 --no_wandb --dtype bfloat16"
    )
    assert (found.arch, found.head_dim, found.tied_head, found.mlp_dim) == ("enoki", 64, False, 1536)
    assert (found.activation_checkpointing, found.distributed_backend) == ("every-n:2", "ddp")
    import os

    assert os.environ["DATASETS_DIR"] == "/data"


def test_other_forms_become_ours():
    experts = config("--model moe_expert_parallel")
    assert (experts.arch, experts.expert_parallel) == ("moe", True)
    assert config("--scaling_rule=qwen3 --heads 6").arch == "qwen3"
    assert config("--scaling_rule=none --n_embd 64 --n_layer 2 --n_head 1").arch == "enoki"
    assert config("--moe").n_experts == 8
    assert config("--moe --moe_num_experts 4").n_experts == 4
    assert config("--adema_alpha 5").optimizer_settings == {"alpha": 5}
    assert config("--no_amp").dtype == "float32"
    assert config("--dropout 0.1").dropout == 0.1


def test_a_value_that_would_change_the_result_is_refused():
    with pytest.raises(UserError, match="--checkpoint_every_n 2: needs"):
        config("--checkpoint_every_n 2")


def test_all_unknown_flags_are_named_at_once():
    with pytest.raises(UserError, match=r"unknown flags --liger-loss .*, --full-eval-at .*--help-all"):
        config("--liger_loss --full_eval_at 3 --heads 3")


@dataclass
class Data(Words):
    def tokens_per_epoch(self, seq_len: int) -> int:
        return 320 * seq_len


def test_epochs_are_steps_by_sequences_and_global_batch():
    assert resolve(TrainConfig(heads=4, epochs=3, global_batch=32), Data()).iterations == 30
    assert resolve(TrainConfig(heads=4, epochs=0.5, global_batch=32), Data()).iterations == 5
    with pytest.raises(UserError, match="--epochs 3 is 30 steps, not --iterations 7"):
        resolve(TrainConfig(heads=4, epochs=3, iterations=7, global_batch=32), Data())
    with pytest.raises(UserError, match="less than one step"):
        resolve(TrainConfig(heads=4, epochs=0.01), Data())
    with pytest.raises(UserError, match="not known before the data are prepared"):
        resolve(TrainConfig(heads=4, epochs=1), Words())
