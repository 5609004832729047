"""`danalab optim` for people and for programs."""

from __future__ import annotations

import json

from danalab.cli.app import main
from danalab.optimizer_facts import FACTS, rates_to_try


def test_the_list_names_every_optimizer(capsys):
    assert main(["optim", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["optimizers"]
    assert {"adamw", "adana", "dana-mk4", "dana-star", "dana-star-mk4"} <= {spec["name"] for spec in listed}
    assert all(spec["learning_rates_to_try"] == [*rates_to_try(spec["name"])] for spec in listed)


def test_the_table_is_as_wide_as_the_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["optim", "list"]) == 0
    table = capsys.readouterr().out.split("\n\n")[0].splitlines()
    assert max(len(line) for line in table) == 100
    assert len(table) == len(FACTS) + 1


def test_one_optimizer_shows_its_settings_with_defaults(capsys):
    assert main(["optim", "list", "--opt", "dana_mk4"]) == 0
    shown = capsys.readouterr().out
    assert "clipsnr" in shown
    assert "0.85" in shown


def test_an_unknown_optimizer_offers_the_nearest(capsys):
    assert main(["optim", "list", "--opt", "adamww"]) == 2
    assert "did you mean 'adamw'" in capsys.readouterr().err
