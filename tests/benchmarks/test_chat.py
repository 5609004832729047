"""bench/chat.py: the stored rows make the stored tables, and effects are paired."""

from __future__ import annotations

from itertools import product

import pytest
from bench import chat

from danalab.report.formats import as_markdown


def test_the_page_shows_the_effects_of_the_stored_rows():
    effects = chat.effects_table(chat.read_rows())
    assert effects is not None
    assert as_markdown(effects) in chat.PAGES["effects"].read_text(encoding="utf-8")


def test_the_page_shows_the_stored_rates():
    rows = chat.read_rates()
    assert as_markdown(chat.rates_table(rows)) in chat.PAGES["rates"].read_text(encoding="utf-8")
    tried = {(row["opt"], row["stage"], row["lr_fraction"]) for row in rows}
    assert len(tried) == len(rows) == 3 * sum(map(len, chat.FRACTIONS.values()))


def test_an_effect_is_the_mean_difference_where_all_else_is_equal():
    """Planted: the optimizer of fine-tuning adds 10 points of arithmetic, that of the base 20, a seed its number."""
    rows = []
    for seed in range(3):
        for base in ("adamw", "muon"):
            for sft in ("adamw", "muon"):
                arithmetic = 0.2 + 0.2 * (base == "muon") + 0.1 * (sft == "muon") + seed / 100
                scores = {"arithmetic": arithmetic, "identity": 1.0, "dialogue, turn 3": 0.5}
                end = {"text_loss": 7.0 - (sft == "muon") * seed, "scores": {k: {"mean": v} for k, v in scores.items()}}
                rows.append({"preset": "p", "opt": base, "sft_opt": sft, "rl_opt": "adamw", "seed": seed, "rl": end})
    rows.append({**rows[0], "rl_opt": "muon"})  # one seed of three: left out
    table = chat.effects_table(rows)
    assert table is not None
    cells = {line[0]: dict(zip(table[0][1:], line[1:], strict=True)) for line in table[1]}
    assert list(cells) == ["base and mid: muon - adamw", "sft: muon - adamw"]
    base, sft = cells.values()
    assert (base["choices"], base["seeds"]) == ("2", "3")
    assert base["arithmetic [points]"] == "+20.0 (+20.0 to +20.0)"
    assert sft["arithmetic [points]"] == "+10.0 (+10.0 to +10.0)"
    half = 4.303 / 3**0.5  # Student's t of two degrees of freedom; the seeds' effects are 0, -1 and -2
    low, high = sft["text loss [nats/token]"].partition("(")[2].rstrip(")").split(" to ")
    assert (float(low), float(high)) == pytest.approx((-1 - half, -1 + half), abs=0.01)


def test_the_bases_own_optimizer_is_compared_where_all_choices_were_made():
    """Planted: Muon at any stage adds 10 points, and fine-tuning by the base's own optimizer 5."""
    rows = []
    for seed in range(2):
        for opts in product(("adamw", "muon"), repeat=3):
            arithmetic = 0.1 * opts.count("muon") + 0.05 * (opts[0] == opts[1]) + seed / 100
            scores = {"arithmetic": arithmetic, "identity": 1.0, "dialogue, turn 3": 0.5}
            end = {"text_loss": 7.0, "scores": {k: {"mean": v} for k, v in scores.items()}}
            rows.append(dict(zip(chat.STAGE_OPTS, opts, strict=True)) | {"seed": seed, "rl": end})
    table = chat.effects_table(rows)
    assert table is not None
    cells = {line[0]: line[table[0].index("arithmetic [points]")] for line in table[1]}
    assert cells["sft: muon - adamw"].startswith("+10.0")
    assert cells["sft: the base's - another"] == "+5.0 (+5.0 to +5.0)"
    assert cells["rl: the base's - another"].startswith("+0.0")
    table = chat.effects_table(rows[1:])
    assert table is not None
    assert not any("another" in line[0] for line in table[1])


def test_runs_share_what_one_of_them_made(tmp_path):
    assert chat._folder(tmp_path, ("adamw", "adamw", "adamw"), 1).name == "adamw-1"
    assert chat._folder(tmp_path, ("adamw", "muon", "muon"), 1).name == "adamw-then-muon-1"
    assert chat._folder(tmp_path, ("adamw", "muon", "adamw"), 1).name == "adamw-then-muon-then-adamw-1"
    assert chat._folder(tmp_path, ("adamw", "adamw", "muon"), 1).name == "adamw-then-adamw-then-muon-1"
