"""One record: `train`, `plan`, a sweep, a SLURM script and the original's spelling of a command line give the same."""

from __future__ import annotations

import shlex
from dataclasses import fields

import pytest
import yaml

from danalab.cli.app import main
from danalab.cli.plan import Flags
from danalab.experiments.cells import expand, read_grid
from danalab.train.config.flags import parse
from danalab.train.config.train_config import TrainConfig

COMMANDS = [
    ("--heads 4", ""),
    ("--heads 4 --lr 1e-3", "--heads 4 --lr=0.001"),
    ("--arch enoki --heads 6 --opt adana", "--scaling_rule enoki --heads 6 --opt adana"),
    ("--arch qwen3 --heads 2 --opt adamw --omega 4", "--model qwen3 --heads 2 --opt adamw --omega 4.0"),
    ("--d-model 64 --n-layers 2 --n-heads 1", "--n_embd 64 --n_layer 2 --n_head 1"),
    ("--d-model 384 --head-dim 64 --n-heads 6 --n-layers 4 --mlp-dim 1536",
     "--n_embd 384 --qkv_dim 64 --n_head 6 --n_layer 4 --mlp_hidden_dim 1536"),
    ("--heads 4 --seq-len 512", "--heads 4 --sequence_length 512"),
    ("--heads 4 --data fineweb-100bt", "--heads 4 --dataset fineweb-100bt"),
    ("--heads 4 --data a:0.7,b:0.3 --tokenizer gpt2", ""),
    ("--heads 4 --batch-size 8 --acc-steps 4", "--heads 4 --batch_size 8 --acc_steps 4"),
    ("--heads 4 --global-batch 512", ""),
    ("--heads 4 --iterations 1e3 --warmup-steps 20", "--heads 4 --iterations 1000 --warmup_steps 20"),
    ("--heads 4 --epochs 1.5", ""),
    ("--heads 4 --tokens-per-param 10 --horizon-basis non-emb", ""),
    ("--heads 4 --opt dana-star-mk4 --kappa 0.75 --delta 4 --clipsnr 2",
     "--heads 4 --opt dana-star-mk4 --kappa 0.75 --delta 4 --clipsnr 2.0"),
    ("--heads 4 --gamma3 0.5 --wd-ts 100", "--heads 4 --gamma_3_factor 0.5 --wd_ts_const 100"),
    ("--heads 4 --weight-decay 0.1", "--heads 4 --wd_decaying --weight_decay 0.1"),
    ("--heads 4 --decay-bound 3 --wd-ts-divisor 5", ""),
    ("--heads 4 --opt adamw --beta1 0.9 --beta2 0.95", "--heads 4 --opt adamw --beta1 0.9 --beta2 0.95"),
    ("--heads 4 --opt ademamix --set alpha=5", "--heads 4 --opt ademamix --adema_alpha 5"),
    ("--heads 4 --opt muon --set ns_method=polar-express eps=1e-9", ""),
    ("--heads 4 --opt adamw --set betas=0.9,0.95", ""),
    ("--heads 4 --opt muon", "--heads 4 --opt muon --muon_ns_steps 5"),
    ("--heads 4 --lr-multiplier 0.5", ""),
    ("--heads 4 --scheduler wsd --fract-decay 0.2 --final-lr-scale 0.1",
     "--heads 4 --scheduler wsd --wsd_fract_decay 0.2 --wsd_final_lr_scale 0.1"),
    ("--heads 4 --scheduler cos_inf --cos-inf-steps 10 --div-factor 50",
     "--heads 4 --scheduler cos_inf --cos_inf_steps 10 --div_factor 50"),
    ("--heads 4 --grad-clip 1 --z-loss 0", "--heads 4 --grad_clip 1.0 --z_loss_coeff 0.0"),
    ("--heads 4 --dropout 0.1 --seed 3 --data-seed 7", "--heads 4 --dropout 0.1 --seed 3 --data_seed 7"),
    ("--arch moe --heads 4 --expert-parallel", "--model moe_expert_parallel --heads 4"),
    ("--heads 4 --n-experts 8", "--heads 4 --moe"),
    ("--heads 4 --n-experts 4 --top-k 1 --mlp-only-layers 0 2", ""),
    ("--arch qwen3next --heads 2 --full-attention-interval 2", ""),
    ("--arch resonance --size small --opt adamw --mixer none", ""),
    ("--heads 4 --init standard --tied-head", "--heads 4 --init_scheme standard --weight_tying True"),
    ("--heads 4 --dtype float32 --no-compile", "--heads 4 --no_amp --compile False"),
    ("--heads 4 --dtype bf16 --device cuda", "--heads 4 --dtype bfloat16 --device cuda"),
    ("--heads 4 --activation-checkpointing every-n:2", "--heads 4 --activation_checkpointing --checkpoint_every_n 2"),
    ("--heads 4 --distributed-backend ddp", "--heads 4 --distributed_backend nccl"),
    ("--heads 4 --distributed-backend diloco --diloco-steps 50", ""),
    ("--heads 4 --ckpt-interval 100 --keep-every 500",
     "--heads 4 --latest_ckpt_interval 100 --permanent_ckpt_interval 500"),
    ("--heads 4 --eval-interval 50 --eval-batches 8 --wandb --wandb-project p",
     "--heads 4 --eval_interval 50 --eval_batches 8 --wandb --wandb_project p"),
]  # fmt: skip
"""Command lines, each with the original's spelling where there is one."""


def record(config: TrainConfig) -> dict:
    """All fields; a sweep and a job script choose the run's folder and name."""
    return {name: value for name, value in config.as_dict().items() if name not in ("run_dir", "name")}


def as_yaml(words: list[str]) -> str:
    """The keys and values of a command line."""
    settings, key = {}, ""
    for word in words:
        if word.startswith("--"):
            key = word[2:].replace("-", "_")
            settings[key] = []
        else:
            settings[key].append(word)
    chosen = {
        name: values if len(values) > 1 else values[0] if values else True
        for name, values in settings.items()
    }
    for name in [name for name in chosen if name.startswith("no_")]:
        chosen[name[3:]] = not chosen.pop(name)
    for word in settings.get("set", ()):
        name, _, value = word.partition("=")
        chosen[name] = [float(each) for each in value.split(",")] if "," in value else value
    chosen.pop("set", None)
    if "mlp_only_layers" in chosen:
        chosen["mlp_only_layers"] = settings["mlp_only_layers"]
    return yaml.safe_dump({"runs": [chosen]})


@pytest.mark.parametrize(("line", "original"), COMMANDS, ids=[line for line, _ in COMMANDS])
def test_every_door_gives_the_same_record(line, original, tmp_path, capsys):
    words = line.split()
    expected = record(parsed(words))
    planned = parse(Flags, words, "danalab plan")
    assert (
        record(TrainConfig(**{each.name: getattr(planned, each.name) for each in fields(TrainConfig)}))
        == expected
    )
    if original:
        assert record(parsed(original.split())) == expected
    (tmp_path / "sweep.yaml").write_text(as_yaml(words))
    fixed, grid, runs = read_grid(tmp_path / "sweep.yaml")
    [cell] = expand(grid, fixed, runs)
    assert record(cell.config(tmp_path)) == expected
    assert main(["slurm", "--log-dir", str(tmp_path), "--dry-run", "--", *words]) == 0
    script = capsys.readouterr().out
    [run] = [text for text in script.splitlines() if text.startswith("run=(")]
    assert record(parsed(shlex.split(run[len("run=(") : -1]))) == expected


def parsed(words: list[str]) -> TrainConfig:
    return parse(TrainConfig, words, "danalab train")
