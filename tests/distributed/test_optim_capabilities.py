"""The table of optimizers and parallel modes is what the code does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from danalab.benchmarks.capabilities import EPSILON, render
from danalab.errors import UserError
from danalab.optim import list_optimizers, optimizer_spec
from danalab.optim.sharding import MODES, require_supported, why_not
from distributed.capabilities import RANKS, measure

ROOT = Path(__file__).parents[2]

ONE_OF_EACH = ["adamw", "adana", "auto-dana", "snoo-dana", "muon", "sophia", "soap", "prodigy", "lamb", "sf-adamw"]
"""Of each way to step: torch's, ours, measured, around another, matrices, Hessian, owned, sums, norms, switched."""


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    return json.loads((ROOT / "bench" / "results" / "optim_capabilities.json").read_text())


def check(mode: str, names: list[str]) -> None:
    for name, cell in measure(mode, names).items():
        if "refused" in cell:
            continue
        assert isinstance(cell["step"], float), cell["step"]
        assert isinstance(cell["reload"], float), cell["reload"]
        assert cell["step"] <= EPSILON, f"{name} with {mode}: steps differ from one process by {cell['step']:g}"
        assert cell["reload"] <= EPSILON, f"{name} with {mode}: after a checkpoint by {cell['reload']:g}"


@pytest.mark.parametrize("mode", MODES)
def test_steps_and_checkpoints_are_those_of_one_process(mode):
    pytest.importorskip("pytorch_optimizer")
    check(mode, ONE_OF_EACH)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_steps_and_checkpoints_of_all_optimizers_are_those_of_one_process(mode):
    check(mode, list_optimizers())


def test_the_table_names_every_optimizer_and_every_mode(table):
    assert list(table["optimizers"]) == list_optimizers()
    assert table["ranks"] == {mode: list(ranks) for mode, ranks in RANKS.items()}
    assert all(list(cells) == list(MODES) for cells in table["optimizers"].values())


def test_the_table_refuses_what_the_code_refuses_and_passes_the_rest(table):
    for name, cells in table["optimizers"].items():
        for mode, cell in cells.items():
            assert cell.get("refused") == why_not(optimizer_spec(name), mode)
            assert cell.get("refused") or max(cell["step"], cell["reload"]) <= EPSILON


def test_the_page_is_what_the_measurements_say(table):
    assert (ROOT / "docs" / "optimizer-capabilities.md").read_text() == render(table)


def test_what_cannot_be_exact_is_refused_in_a_line_that_says_where_it_can():
    with pytest.raises(UserError, match=r"'prodigy' cannot be used with zero .*use single or ddp or fsdp") as caught:
        require_supported("prodigy", "zero")
    assert "\n" not in str(caught.value)
    for name in list_optimizers():
        require_supported(name, "single")
        require_supported(name, "ddp")


def test_unknown_modes_are_answered_with_the_nearest():
    with pytest.raises(UserError, match="did you mean 'fsdp'"):
        require_supported("adana", "fdsp")
