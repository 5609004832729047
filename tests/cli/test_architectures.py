"""Every architecture by the command line: planned, trained, evaluated, sampled."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from danalab.cli.app import main
from danalab.models.architectures import ARCHITECTURES
from danalab.train.run.open import open_run
from text_data import prepare_texts


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sentence = "the quick brown fox jumps over the lazy dog. "
    return prepare_texts(tmp_path_factory.mktemp("data"), sentence * 200, "a lazy fox. " * 60)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("arch", "more"),
    [
        *((arch, []) for arch in ARCHITECTURES),
        ("base", ["--no-tied-head"]),
        ("llama", ["--n-kv-heads", "2"]),
        ("qwen3", ["--n-kv-heads", "1", "--no-attention-gate"]),
        ("qwen3next", ["--mlp-only-layers", "0", "--n-layers", "2", "--n-experts", "4"]),
        (
            "qwen3next",
            ["--full-attention-interval", "2", "--n-layers", "2", "--n-kv-heads", "2", "--document-mask"],
        ),
        ("resonance", ["--document-mask"]),
        ("moe", ["--n-experts", "4", "--top-k", "2", "--mlp-dim", "24"]),
        ("gpt", ["--n-experts", "3", "--top-k", "1", "--n-shared-experts", "1", "--expert-dim", "16"]),
    ],
)
def test_a_tiny_run_trains_evaluates_and_speaks(capsys, tmp_path, data, arch, more):
    run = str(tmp_path / "run")
    sizes = ["--d-model", "32", "--n-layers", "1", "--n-heads", "4", "--seq-len", "32", "--batch-size", "4"]
    steps = ["--iterations", "3", "--eval-batches", "1"]
    assert main(["train", "--arch", arch, *sizes, *more, *steps, "--data", str(data), "--run-dir", run]) == 0
    config = open_run(run).config
    assert config["params"] == config["plan"]["exact_params"]
    capsys.readouterr()
    assert main(["eval", "--run", run, "--json"]) == 0
    assert 0 < json.loads(capsys.readouterr().out)["loss"] < 20
    assert main(["generate", "--run", run, "--prompt", "the", "--max-tokens", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"][0]["tokens"] <= 5


def test_plan_takes_grouped_queries(capsys):
    assert main(["plan", "--arch", "qwen3", "--heads", "4", "--n-kv-heads", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_kv_heads"] == 2
    assert main(["plan", "--arch", "qwen3", "--heads", "4", "--n-kv-heads", "3"]) == 2
    assert "--n-kv-heads 3 does not divide the 4 heads" in capsys.readouterr().err


def test_a_run_goes_on_by_its_folder_alone(tmp_path, data, capsys):
    folder = ["train", "--run-dir", str(tmp_path / "run")]
    sizes = ["--d-model", "32", "--n-layers", "1", "--n-heads", "1", "--seq-len", "32", "--batch-size", "2"]
    steps = ["--iterations", "4", "--eval-interval", "0", "--data", str(data)]
    assert main([*folder, *sizes, *steps, "--iterations-to-run", "2"]) == 0
    assert main(folder) == 0
    assert "finished at step 4 of 4" in capsys.readouterr().err
    for other, said in [
        (["--lr", "1"], r"settings \(--lr: \S+ there, 1 here\); repeat its command"),
        (["--set", "eps=1e-7"], r"\(--set: {} there, {'eps': 1e-07} here\)"),
        (["--iterations", "8"], r"\(--iterations: 4 there, 8 here\); give --extend-to 8"),
        ([*sizes[2:], "--d-model", "64", *steps], r"\(--d-model: 32 there, 64 here\); repeat"),
    ]:
        assert main([*folder, *other]) == 2
        assert re.search(said, capsys.readouterr().err)
    assert main([*folder, "--extend-to", "6"]) == 0
    record = tmp_path / "run" / "config.json"
    record.write_text(re.sub(r'"fingerprint": "\w+', '"fingerprint": "ab', record.read_text()))
    assert main(folder) == 2
    assert re.search(r"\(data: \S+ changed since\); restore its data to continue", capsys.readouterr().err)


@pytest.mark.slow
def test_a_run_with_experts_tells_of_their_use_and_goes_on_where_it_was(tmp_path, data):
    sizes = [
        "--d-model",
        "32",
        "--n-layers",
        "2",
        "--n-heads",
        "4",
        "--mlp-dim",
        "24",
        "--mlp-only-layers",
        "0",
    ]
    steps = ["--iterations", "6", "--log-interval", "1", "--eval-batches", "1", "--data", str(data)]
    common = ["train", "--arch", "moe", *sizes, "--seq-len", "32", *steps]
    assert main([*common, "--batch-size", "8", "--run-dir", str(tmp_path / "whole")]) == 0
    parts = [*common, "--global-batch", "8", "--batch-size", "2", "--run-dir", str(tmp_path / "parts")]
    assert main([*parts, "--iterations-to-run", "3"]) == 0
    assert main(parts) == 0
    whole, cut = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("whole", "parts")
    )
    assert [row["step"] for row in cut] == [1, 2, 3, 4, 5, 6]
    for one, other in zip(whole, cut, strict=True):
        assert 0 <= one["moe/min_load"] <= 1 <= one["moe/max_load"] <= 8
        for name in ("train/loss", "grad_norm", "moe/load_balance", "moe/router_z", "moe/router_entropy"):
            assert other[name] == pytest.approx(one[name], rel=2e-5), name


def test_plan_counts_experts_and_learns_at_the_size_that_is_active(capsys):
    plans = {}
    for arch, more in (
        ("enoki", []),
        ("moe", []),
        ("moe", ["--n-experts", "64"]),
        ("qwen3", ["--n-experts", "8"]),
    ):
        assert main(["plan", "--arch", arch, "--heads", "8", "--json", *more]) == 0
        plans[(arch, *more)] = json.loads(capsys.readouterr().out)
    dense, few, many = plans["enoki",], plans["moe",], plans["moe", "--n-experts", "64"]
    assert (few["n_experts"], few["top_k"], few["expert_dim"]) == (8, 2, dense["mlp_dim"])
    assert dense["exact_params"] < few["active_params"] < few["exact_params"] < many["exact_params"]
    assert many["lr"] == pytest.approx(few["lr"], rel=0.01)
    assert "used for moe" in few["lr_source"]
    assert many["steps"] == pytest.approx(few["steps"], rel=0.01)
    assert (
        plans["qwen3", "--n-experts", "8"]["active_params"]
        < plans["qwen3", "--n-experts", "8"]["exact_params"]
    )
    assert main(["plan", "--arch", "moe", "--heads", "8"]) == 0
    assert "2 of 8, 2048 wide, in 6 layers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--n-experts", "0"], "--n-experts 0: must be at least 1"),
        (["--n-experts", "4", "--top-k", "5"], "--top-k 5: a token can be sent to 1..4 of the 4 experts"),
        (["--top-k", "0"], "--top-k 0"),
        (["--mlp-only-layers", "2"], "--mlp-only-layers must be among the layers 0..1"),
        (["--mlp-only-layers", "0", "1"], "leave some of them with experts"),
        (["--decoder-sparse-step", "0"], "--decoder-sparse-step 0"),
        (["--expert-dim", "0"], "--expert-dim 0"),
        (["--n-shared-experts", "-1"], "--n-shared-experts -1"),
        (["--load-balance-loss", "-1"], "--load-balance-loss -1: must be"),
        (["--expert-parallel"], "there is only one rank"),
        (["--expert-parallel", "--nproc", "2", "--distributed-backend", "zero"], "fsdp or ddp, not zero"),
        (
            ["--expert-parallel", "--nproc", "3", "--global-batch", "3"],
            "8 experts cannot be divided among 3 ranks",
        ),
        (
            ["--expert-dim", "25", "--nproc", "2", "--distributed-backend", "fsdp", "--tp-size", "2"],
            "--tp-size 2 does not divide the model's expert_dim 25",
        ),
        (["--arch", "enoki", "--top-k", "2"], "--top-k: is for models with --n-experts"),
        (["--arch", "enoki", "--router-z-loss", "0.1"], "--router-z-loss: is for models with --n-experts"),
        (
            ["--arch", "resonance", "--n-experts", "2"],
            "--n-experts: is for models with attention, not resonance",
        ),
    ],
    ids=" ".join,
)
def test_experts_that_cannot_be_are_refused_in_one_line(capsys, tmp_path, data, more, message):
    sizes = ["--d-model", "32", "--n-layers", "2", "--n-heads", "4", "--seq-len", "32", "--iterations", "3"]
    where = ["--data", str(data), "--run-dir", str(tmp_path / "run")]
    assert main(["train", "--arch", "moe", *sizes, *where, *more]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert message in said[-1]
    assert not (tmp_path / "run").exists() or not list((tmp_path / "run").glob("*.json*"))


def test_plan_says_which_layers_of_qwen3next_have_the_delta_rule(capsys):
    assert main(["plan", "--arch", "qwen3next", "--heads", "4", "--full-attention-interval", "4"]) == 0
    said = capsys.readouterr().out
    assert "4 heads of 128 in 2 layers and the delta rule in 6" in said
    assert "fitted for adana on qwen3" in said
    assert main(["plan", "--arch", "enoki", "--heads", "4", "--full-attention-interval", "4"]) == 2
    assert "enoki has attention in every layer; qwen3next can have" in capsys.readouterr().err


def test_qwen3next_has_the_active_size_of_qwen3_and_its_learning_rate(capsys):
    plans = {}
    for arch in ("qwen3", "qwen3next"):
        assert main(["plan", "--arch", arch, "--heads", "4", "--json"]) == 0
        plans[arch] = json.loads(capsys.readouterr().out)
    assert plans["qwen3next"]["active_params"] == pytest.approx(plans["qwen3"]["exact_params"], rel=0.001)
    assert plans["qwen3next"]["lr"] == pytest.approx(plans["qwen3"]["lr"], rel=0.01)
    assert plans["qwen3next"]["exact_params"] > 1.3 * plans["qwen3"]["exact_params"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--arch", "enokki", "--heads", "3"], "unknown architecture 'enokki' (did you mean 'enoki'?)"),
        (
            ["--arch", "llama", "--d-model", "32", "--n-layers", "1", "--n-heads", "3"],
            "--n-heads 3 does not divide",
        ),
        (
            ["--arch", "llama", "--d-model", "32", "--n-layers", "1", "--n-heads", "2", "--head-dim", "7"],
            "must be even",
        ),
        (["--arch", "resonance", "--size", "huge"], "unknown --size 'huge'"),
        (["--arch", "gpt", "--size", "small"], "--size small: only with --arch resonance"),
        (["--arch", "gpt", "--d-model", "32"], "give a size"),
    ],
)
def test_a_shape_that_cannot_be_is_refused_in_one_line(capsys, tmp_path, data, words, message):
    assert main(["train", *words, "--data", str(data), "--run-dir", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err.strip()
    assert message in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_prompt_that_leaves_no_room_is_refused_in_one_line(capsys, tmp_path, data):
    run = str(tmp_path / "run")
    sizes = ["--d-model", "16", "--n-layers", "1", "--n-heads", "1", "--seq-len", "16", "--batch-size", "4"]
    steps = ["--iterations", "1", "--warmup-steps", "0", "--eval-batches", "1"]
    assert main(["train", *sizes, *steps, "--data", str(data), "--run-dir", run]) == 0
    capsys.readouterr()
    assert main(["generate", "--run", run, "--prompt", "the quick brown fox", "--json"]) == 2
    assert "seq_len 16" in capsys.readouterr().err
    assert main(["generate", "--run", str(tmp_path / "none"), "--prompt", "x"]) == 2
    assert "not a run folder" in capsys.readouterr().err
