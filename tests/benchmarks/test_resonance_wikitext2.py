"""The comparison on WikiText-2 tries every model alike, and says what its seeds allow to be said."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from bench import resonance_wikitext2
from bench.resonance_wikitext2 import Settings, measure

from danalab.sweep.grid import Cell
from danalab.train.config.resolve import resolve

BEST = {"resonance": 4e-3, "no-mixer": 2e-3, "attention": 8e-3}


@pytest.fixture
def result(monkeypatch, tmp_path, capsys):
    """What is found where a run's loss is 4, more off its model's best rate, a tenth more with each seed."""
    made = {}

    def sweep(folder, cells, **_):
        for cell in cells:
            settings = cell.settings
            name = cell.name.split("-lr")[0]
            loss = 4 + 0.1 * settings["seed"] + abs(settings["lr"] - BEST.get(name, 4e-3)) + (name == "no-mixer") / 2
            curve = folder / f"{cell.name}.jsonl"
            folder.mkdir(exist_ok=True)
            curve.write_text(json.dumps({"step": 1, "tokens": 4096, "val/loss": loss}) + "\n")
            made[cell.name] = {"name": cell.name, "seed": settings["seed"], "final_loss": loss, "curve": curve.name,
                               "params": 7, "settings": {**settings, "init": "drawn"}}  # fmt: skip
        return SimpleNamespace(rows=list(made.values()))

    monkeypatch.setattr(resonance_wikitext2, "run_sweep", sweep)
    found = measure(Settings(Path("d"), tmp_path / "runs", lrs=(2e-3, 4e-3, 8e-3), variants=True), print)
    return SimpleNamespace(found=found, made=made, said=capsys.readouterr().out)


def test_each_model_has_as_many_trials_and_its_best_rate_meets_the_other_seeds(result):
    models = Counter(name.split("-lr")[0] for name in result.made)
    assert models == {"resonance": 5, "no-mixer": 5, "attention": 5, "learned-positions": 3, "convolution-of-4": 3,
                      "phases-at-0.1-of-the-rate": 3}  # fmt: skip
    assert {name: model["lr"] for name, model in result.found["models"].items()} == {
        "resonance": 4e-3, "no mixer": 2e-3, "attention": 8e-3}  # fmt: skip
    assert "attention  best at 0.008 (an end of what was tried)" in result.said
    assert "resonance  best at 0.004\n" in result.said


def test_seeds_that_go_up_and_down_together_leave_a_difference_that_is_known_exactly(result):
    ours = result.found["models"]["resonance"]
    assert ours["mean"] == pytest.approx(4.1)
    assert ours["sd"] == pytest.approx(0.1)
    assert ours["interval"] == pytest.approx([4.1 - 4.3027 * 0.1 / 3**0.5, 4.1 + 4.3027 * 0.1 / 3**0.5], abs=1e-4)
    over = result.found["resonance_minus"]["no mixer"]
    assert [over["mean"], *over["interval"]] == pytest.approx([-0.5] * 3)


def test_the_models_are_of_one_size_and_see_the_same_tokens(result, tmp_path):
    class Words:
        vocab_size = least_vocab_size = 4096
        sequence_length, name, tokenizer_name, eos_id = None, "words", "words", 4087

    cells = [row["settings"] for row in result.made.values() if row["seed"] == 0]
    plans = [resolve(Cell("run", {**own, "init": None}).config(tmp_path), Words()).plan for own in cells]
    sizes = {one.exact_params for own, one in zip(cells, plans, strict=True) if not own.get("learned_positions")}
    assert len(sizes) == 4
    assert max(sizes) / min(sizes) < 1.01
    assert {one.tokens for one in plans} == {result.found["tokens"]}
    by_seed = {(row["seed"], row["settings"]["data_seed"]) for row in result.made.values()}
    assert by_seed == {(0, 1337), (1, 1338), (2, 1339)}
