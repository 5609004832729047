"""`danalab bench resonance`: what it counts and compares; never how long anything took."""

from __future__ import annotations

import json

import numpy as np
import pytest

from danalab.cli.app import main
from danalab.models import build_model
from danalab.scaling import parameter_count
from danalab_bench.resonance import kept_bytes, loss_at, shapes, slope


@pytest.mark.parametrize("width", [32, 64, 96, 512, 1024])
def test_both_models_are_of_one_size(width):
    ours, theirs = (parameter_count(config) for config in shapes(width, 4, 4096, 1024).values())
    assert abs(ours / theirs - 1) < 0.05


def test_a_slope_is_the_exponent_of_a_power():
    lengths = [1024, 2048, 8192]
    assert slope([(n, 3e-6 * n) for n in lengths]) == pytest.approx(1)
    assert slope([(n, 3e-9 * n**2) for n in lengths]) == pytest.approx(2)
    assert slope([(5, 1.0)]) is None


def test_a_loss_between_two_points_lies_on_the_line_between_them():
    curve = [{"tokens": 10, "time": 1.0, "loss": 5.0}, {"tokens": 20, "time": 3.0, "loss": 4.0}]
    assert loss_at(curve, "tokens", 15) == pytest.approx(4.5)
    assert loss_at(curve, "time", 3.0) == loss_at(curve, "tokens", 99) == 4.0
    assert loss_at(curve, "time", 0.5) == 5.0


def test_what_decoding_keeps_does_not_grow_for_oscillators_and_does_for_attention():
    kept = {}
    for name, config in shapes(32, 2, 61, 100).items():
        model = build_model(config)
        for length in (10, 40):
            cache = model.new_cache(1, length + 1)
            model.hidden(model.token_embedding.weight.new_zeros(1, length).long(), cache)
            kept[name, length] = kept_bytes(cache)
    assert kept["resonance", 10] == kept["resonance", 40] > 0
    assert kept["attention", 10] < kept["attention", 40]


@pytest.mark.slow
def test_the_command_compares_speed_and_learning_and_draws_them(tmp_path, capsys):
    draw = np.random.default_rng(0)
    for split in ("train", "val"):
        (tmp_path / "data" / split).mkdir(parents=True)
        np.save(tmp_path / "data" / split / "ids.npy", draw.integers(0, 61, (40, 17)).astype(np.uint16))
    file = tmp_path / "new" / "result.json"
    arguments = ["--quick", "--lengths", "64", "128", "--steps", "2", "--seq-len", "16", "--rounds", "1"]
    code = main(["bench", "resonance", *arguments, "--data", str(tmp_path / "data"), "--output", str(file), "--json"])
    out = json.loads(capsys.readouterr().out)
    assert code == 0
    assert out == json.loads(file.read_text())
    assert out["speed"]["weights"] == "random: speed only"
    for name in ("resonance", "attention"):
        assert [row["tokens"] for row in out["speed"][name]["rows"]] == [64, 128]
        assert out["learning"]["models"][name]["loss_at_equal_tokens"] > 0
        assert out["learning"]["models"][name]["runs"][0]["curve"][-1]["tokens"] == out["learning"]["tokens"]
    assert file.with_suffix(".svg").read_text().count("<svg") == 1
    assert file.with_suffix(".png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lengths", "0"], "--lengths 0: must be at least 1"),
        (["--rounds", "0"], "--rounds 0: must be at least 1"),
        (["--lr", "0"], "--lr 0: must be more than 0"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(capsys, arguments, message):
    assert main(["bench", "resonance", *arguments]) == 2
    assert message in capsys.readouterr().err
