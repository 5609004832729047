"""Steps and checkpoints of every optimizer in every parallel mode are those of one process, or are refused."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from danalab.errors import UserError
from danalab.optim import DistributedMuonAdamW, list_optimizers, optimizer_spec
from danalab.optim.distributed import MODES, require_supported
from distributed.capabilities import (
    SHAPES,
    STEPS,
    alone,
    build,
    measure,
    model_for,
    probe,
    second_part,
    steps,
    whole,
)
from distributed.ranks import run_ranks
from optimizer_kinds import ONE_OF_EACH

ROOT = Path(__file__).parents[2]


EPSILON = 1e-5


def check(mode: str, names: list[str]) -> None:
    for name, cell in measure(mode, names).items():
        if "refused" in cell:
            continue
        assert isinstance(cell["step"], float), cell["step"]
        assert isinstance(cell["reload"], float), cell["reload"]
        assert cell["step"] <= EPSILON, f"{name} with {mode}: steps differ from one process by {cell['step']:g}"
        assert cell["reload"] <= EPSILON, f"{name} with {mode}: after a checkpoint by {cell['reload']:g}"


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_steps_and_checkpoints_are_those_of_one_process(mode):
    pytest.importorskip("pytorch_optimizer")
    check(mode, ONE_OF_EACH)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_steps_and_checkpoints_of_all_optimizers_are_those_of_one_process(mode):
    check(mode, list_optimizers())


def test_matrices_whose_values_their_owner_has_freed_are_still_matrices_of_a_group():
    check("fsdp", ["muon-h"])


def test_what_cannot_be_exact_is_refused_in_a_line_that_says_where_it_can():
    with pytest.raises(UserError, match=r"'prodigy' cannot be used with zero .*use single or ddp or fsdp") as caught:
        require_supported(optimizer_spec("prodigy"), "zero")
    assert "\n" not in str(caught.value)
    for name in list_optimizers():
        require_supported(optimizer_spec(name), "single")
        require_supported(optimizer_spec(name), "ddp")


def test_unknown_modes_are_answered_with_the_nearest():
    with pytest.raises(UserError, match="did you mean 'fsdp'"):
        require_supported(optimizer_spec("adana"), "fdsp")


def save_in(rank: int, ranks: int, mode: str, names: list[str], folder: Path) -> None:
    warnings.simplefilter("ignore")
    for name in names:
        model = model_for(mode, ranks)
        optimizer = build(name, model, mode)
        steps(name, model, optimizer, mode, range(STEPS), rank, ranks)
        saved = {"optimizer": get_optimizer_state_dict(model, optimizer), "model": whole(model)}
        dcp.save(saved, checkpoint_id=folder / name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(("fsdp", 2), ("zero", 3), marks=pytest.mark.slow),
        (("zero", 2), ("fsdp", 2)),
        pytest.param(("fsdp+tp", 4), ("single", 1), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_checkpoint_of_one_mode_goes_on_in_another(before, after, tmp_path):
    pytest.importorskip("pytorch_optimizer")
    names = ["adamw", "soap", "muon", "snoo-dana", "lamb", "sf-adamw"]
    wants = {name: alone(name) for name in names}
    run_ranks(save_in, before[1], before[0], names, tmp_path)
    for found in run_ranks(second_part, after[1], after[0], wants, tmp_path):
        for name, difference in found.items():
            assert difference <= EPSILON, (name, difference)


class Few(nn.Module):
    """Two parameters, less than there are ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(9, 5)


def few_steps(rank: int, ranks: int, name: str) -> tuple[list[Tensor], Any]:
    torch.manual_seed(0)
    model = Few()
    optimizer = DistributedMuonAdamW(model, lr=0.01, optimizer=name)
    for step in range(3):
        for p in model.parameters():
            p.grad = torch.randint(-9, 9, p.shape, generator=torch.Generator().manual_seed(step)) / 8
        optimizer.step()
    saved = optimizer.state_dict()
    optimizer.load_state_dict(saved)
    return [p.detach().clone() for p in model.parameters()], saved["param_groups"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["lion", "soap", "sf-adamw", "sophia"])
def test_ranks_that_own_nothing_take_part(name):
    pytest.importorskip("pytorch_optimizer")
    [(want, groups)] = run_ranks(few_steps, 1, name)
    for found, found_groups in run_ranks(few_steps, 4, name):
        assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))
        assert found_groups == groups


def zero_rate(rank: int, ranks: int) -> list[float]:
    model = probe()
    optimizer = build("adana", model, "zero")
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    for name, p in model.named_parameters():
        p.grad = torch.zeros_like(p)
        if name == "embedding.weight":
            p.grad[0] = 1  # only in the slice of the first rank
    optimizer.step()
    return [float(state["step"]) for state in optimizer.state_dict()["state"].values()]


def test_clocks_of_slices_agree_where_the_learning_rate_is_zero_and_most_gradients_are():
    for clocks in run_ranks(zero_rate, 3):
        assert set(clocks) == {1.0}


def wrong_state(rank: int, ranks: int, mode: str) -> str:
    model = model_for(mode, ranks)
    optimizer = build("soap", model, mode)
    steps("soap", model, optimizer, mode, range(2), rank, ranks)
    saved = optimizer.state_dict()
    index = list(SHAPES).index("blocks.0.down.weight")
    entry = next(
        state for state in saved["state"].values() if tuple(state["exp_avg"].shape) == SHAPES["blocks.0.down.weight"]
    )
    entry["exp_avg_sq"] = torch.ones(index, index)
    before = whole(model)
    with pytest.raises(UserError) as caught:
        optimizer.load_state_dict(saved)
    assert all(torch.equal(p, before[name]) for name, p in whole(model).items())
    return str(caught.value)


@pytest.mark.parametrize("mode", ["zero", "fsdp"])
def test_all_ranks_refuse_the_state_that_one_of_them_cannot_use(mode):
    pytest.importorskip("pytorch_optimizer")
    messages = run_ranks(wrong_state, 3, mode)
    assert len(set(messages)) == 1
    assert "exp_avg_sq of parameter 'blocks.0.down.weight'" in messages[0]
