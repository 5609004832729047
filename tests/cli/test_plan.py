"""`danalab plan` describes the run that `danalab train` would train with the same flags."""

from __future__ import annotations

import dataclasses
import json
import shlex
from itertools import cycle

import pytest
import yaml

from danalab.cli.app import main
from danalab.cli.plan import Flags
from danalab.train.config.train_config import TrainConfig

SIZES = [
    "--arch enoki --heads 3", "--arch qwen3 --heads 2", "--arch gpt --heads 2", "--arch llama --heads 1",
    "--arch moe --heads 2", "--arch qwen3next --heads 2 --full_attention_interval 2", "--arch resonance --size small",
    "--d-model 64 --n-layers 2 --n-heads 1", "--model diloco --heads 2", "--scaling_rule qwen3 --heads 1",
]  # fmt: skip
OPTS = [
    "adana",
    "adamw",
    "dana-star-mk4",
    "muon",
    "lion",
    "prodigy --lr 0.5",
    "sgd",
    "ademamix",
    "sophia",
    "snoo",
]
MORE = [
    "", "--iterations 500", "--batch-size 4 --acc-steps 2", "--global-batch 512", "--lr 1e-3 --lr-multiplier 2",
    "--seq-len 64 --context-len 128", "--tokens-per-param 100", "--horizon-basis non-emb", "--omega 2 --kappa 0.75",
    "--vocab-size 512", "--nproc 4 --distributed-backend fsdp --tp-size 2", "--nproc 2 --distributed-backend ddp",
    "--epochs 3 --seq-len 32 --batch-size 2", "--run-dir elsewhere --wandb", "--warmup-steps 2 --scheduler wsd",
    "--activation-checkpointing every-n:2", "--ema 0.9", "--decay-bound 0 --grad-clip 1",
    "--extend-to 100000 --seed 3", "--wd-ts-divisor 5 --z-loss 0 --dropout 0.1",
]  # fmt: skip
SHARED = (
    "arch", "opt", "d_model", "n_layers", "n_heads", "head_dim", "mlp_dim", "vocab_size", "seq_len",
    "omega", "lr", "weight_decay", "wd_ts", "decay_bound", "kappa", "delta", "global_batch", "batch_size", "acc_steps",
)  # fmt: skip
"""Facts that both print."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    rows = (json.dumps({"text": f"document {i} of some text"}) for i in range(2000))
    (folder / "text.jsonl").write_text("\n".join(rows))
    words = ["--input", str(folder / "text.jsonl"), "--val-fraction", "0.1", "--tokenizer", "bytes"]
    assert main(["data", "prepare", "text", *words, "--out", str(folder / "small")]) == 0
    return folder


def both(words: list[str], capsys) -> tuple[int, int, str, str]:
    """Exit codes, and what is printed: by plan as JSON, by train as YAML; errors in their places."""
    capsys.readouterr()
    codes, texts = [], []
    for command in (["plan", *words, "--json"], ["train", *words, "--print-config"]):
        codes.append(main(command))
        said = capsys.readouterr()
        texts.append(said.err if codes[-1] else said.out)
    return *codes, *texts


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_plan_and_train_agree_over_sixty_configurations(step, place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    sources = ("small", "fineweb-100bt", "stdlib", "stdlib --tokenizer gpt2", "c4")
    data = cycle(["", *(f"--data {source}" for source in sources)])
    agreed = 0
    for number in range(0, 60, step):
        chosen = [SIZES[number % 10], next(data), "--opt " + OPTS[number * 7 % 10], MORE[number * 3 % 20]]
        words = shlex.split(" ".join(chosen))
        plan_code, train_code, planned, trained = both(words, capsys)
        assert plan_code == train_code, (words, planned, trained)
        if plan_code:
            assert planned == trained, words
            continue
        plan, run = json.loads(planned), yaml.safe_load(trained)
        assert (plan["steps"], plan["warmup"]) == (run["iterations"], run["warmup_steps"]), words
        assert {name: plan[name] for name in SHARED} == {name: run[name] for name in SHARED}, words
        agreed += 1
    assert agreed >= 45 // step


def test_plan_takes_every_flag_of_train_and_the_configuration_that_it_prints(place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    ours, theirs = ({field.name for field in dataclasses.fields(flags)} for flags in (Flags, TrainConfig))
    assert theirs <= ours
    words = (
        "--heads 2 --data small --distributed_backend nccl --nproc 2 --wsd_fract_decay 0.2 --scheduler wsd"
    )
    _, _, planned, trained = both(words.split(), capsys)
    (place / "run.yaml").write_text(trained)
    assert main(["plan", "--config", "run.yaml", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    before = json.loads(planned)
    assert {**again, "lr_source": ""} == {**before, "lr_source": ""}


def test_what_train_refuses_plan_refuses(place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    for words in (
        "--heads 2 --data smal", "--heads 2 --data small --tokenizer gpt2", "--heads 2 --nproc 3 --global-batch 32",
        "--heads 2 --data small --vocab-size 10", "--heads 2 --activation-checkpointing most",
        "--heads 2 --data small --extend-to 1", "--heads 2 --nproc 3 --distributed-backend fsdp --tp-size 2",
        "--heads 2 --data stdlib --epochs 1",
    ):  # fmt: skip
        plan_code, train_code, planned, trained = both(words.split(), capsys)
        assert (plan_code, train_code) == (2, 2), words
        assert planned == trained


def test_data_that_are_not_prepared_yet_are_named(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DATASETS_DIR", raising=False)
    for words, named in (
        ("--heads 3", "fineweb-100bt-gpt2 (gpt2, 50,304 tokens): not prepared yet"),
        (
            "--d-model 64 --n-layers 2 --n-heads 1",
            "stdlib-bpe-4096 (bpe-4096, 4,096 tokens): not prepared yet",
        ),
        ("--arch resonance --size small", "fineweb-edu-gpt2 (gpt2, 50,304 tokens): not prepared yet"),
        ("--heads 3 --data c4", "c4-gpt2 (gpt2, 50,304 tokens): not prepared yet"),
    ):
        assert main(["plan", *words.split()]) == 0
        assert named in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_sharding_and_recomputation_need_less_memory(capsys):
    def memory(words: str) -> float:
        assert main(["plan", "--heads", "12", "--nproc", "4", *words.split(), "--json"]) == 0
        return json.loads(capsys.readouterr().out)["memory_gib"]

    usual, alternate, all_blocks = (
        memory(words)
        for words in ("", "--activation-checkpointing every-n:2", "--activation-checkpointing full")
    )
    assert (
        usual > alternate > all_blocks > memory("--activation-checkpointing full --distributed-backend zero")
    )
    assert usual > memory("--activation-checkpointing selective") > all_blocks
    assert memory("--distributed-backend zero") > memory("--distributed-backend fsdp")


def test_a_size_by_rule_is_the_published_run_and_says_what_to_type_without_its_data(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DATASETS_DIR", raising=False)
    for words in (
        "--heads 3",
        "--arch enoki --opt adana --heads 3 --data fineweb_100",
    ):  # as the launcher has it
        plan_code, train_code, planned, trained = both(words.split(), capsys)
        run = yaml.safe_load(trained)
        assert (plan_code, train_code, json.loads(planned)["steps"], run["iterations"]) == (0, 0, 6165, 6165)
        assert (run["vocab_size"], run["kappa"]) == (50304, 0.85)
        assert main(["train", *words.split()]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert (
            "run danalab data prepare fineweb-100bt --tokenizer gpt2 --out datasets/fineweb-100bt-gpt2"
            in error
        )
        assert "--data stdlib" in error
    assert not list(tmp_path.iterdir())


def test_the_device_is_one_of_torchs_and_may_be_elsewhere(capsys):
    assert main(["plan", "--heads", "2", "--device", "10"]) == 2
    assert "--device 10: cpu, cuda, cuda:N or mps is expected" in capsys.readouterr().err
    assert main(["plan", "--heads", "2", "--device", "cuda:0"]) == 0
