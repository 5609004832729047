"""`danalab bench`: every verb runs at its smallest size, and compares what computes the same; never how fast."""

from __future__ import annotations

import json

import pytest
import torch

from danalab.cli.app import main
from danalab.errors import UserError
from danalab.models import ModelConfig, build_model
from danalab_bench import generate
from danalab_bench.peers import PlainModel
from danalab_bench.timing import interleaved, ratios


@pytest.mark.parametrize(
    "words",
    [
        "optim --sizes 0.02 --opts adana muon --threads 1",
        "checkpoint --sizes 0.1 --threads 1",
        pytest.param("generate --batches 1 --tokens 3 --requests 2 --threads 1", marks=pytest.mark.slow),
        pytest.param("train --heads 1 --threads 1", marks=pytest.mark.slow),
        pytest.param("data", marks=pytest.mark.slow),
    ],
    ids=lambda words: words.split()[0],
)
def test_a_verb_measures_and_writes_what_it_prints(words, tmp_path, capsys):
    file = tmp_path / "result.json"
    assert main(["bench", *words.split(), "--rounds", "1", "--json", "--output", str(file)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(file.read_text())
    assert printed["benchmark"] == words.split()[0]
    assert printed["machine"]["cpu"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("optim --sizes 1 --opts adanna", "adana"),
        ("optim --sizes 1 --opts torch.Adamm", "Adam"),
        ("optim --sizes 3", "--sizes 3: known are"),
        ("optim --sizes 1 --rounds 0", "at least 1"),
        ("checkpoint --folder nowhere", "no such folder"),
    ],
)
def test_bad_input_is_one_line(words, complaint, capsys):
    assert main(["bench", *words.split()]) == 2
    assert complaint in capsys.readouterr().err


def test_contenders_that_decode_different_tokens_are_not_compared(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("transformers")
    monkeypatch.setattr(
        generate, "CONFIG", ModelConfig("qwen3", 32, 1, 2, 16, 48, 61, 512, attention_gate=False)
    )
    monkeypatch.setattr(generate, "_generate", lambda theirs, prompts, tokens: [[0] * tokens] * len(prompts))
    with pytest.raises(UserError, match="danalab and transformers decode different tokens"):
        generate.measure([1], 3, 0, 1, print)


def test_the_loop_written_by_hand_trains_the_same_function():
    config = ModelConfig("enoki", 32, 2, 4, 8, 64, 50, 16)
    ours = build_model(config, seed=1)
    plain = PlainModel(32, 2, 4, 64, 50, 16)
    with torch.no_grad():
        names = dict(ours.named_parameters())
        plain.embedding.weight.copy_(next(p for name, p in names.items() if "embed" in name))
        plain.head.weight.copy_(ours.head_weight)
        for theirs, block in zip(plain.blocks, ours.blocks, strict=True):
            a = block.attention
            theirs.qkv.weight.copy_(torch.cat([a.q.weight, a.k.weight, a.v.weight]))
            theirs.out.weight.copy_(a.out.weight)
            weights = [p for p in block.mlp.parameters() if p.ndim == 2]
            theirs.up.weight.copy_(weights[0])
            theirs.down.weight.copy_(weights[1])
    tokens = torch.randint(50, (3, 17), generator=torch.Generator().manual_seed(0))
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    loss, _ = ours(inputs, targets)
    assert plain(inputs, targets).item() == pytest.approx(loss.item(), rel=1e-5)


def test_contenders_take_turns_and_a_ratio_is_taken_round_by_round():
    calls: list[str] = []
    work = {name: (lambda name=name: calls.append(name)) for name in "abc"}
    times = interleaved(work, 3, lambda job: (job(), 1.0)[1])
    assert "".join(calls) == "abcbcacab" * 2
    assert times == {name: [1.0] * 3 for name in "abc"}
    assert ratios([2.0, 8.0, 3.0], [1.0, 4.0, 3.0])["median"] == 2.0
