"""ZeRO with every optimizer: a run that resumes from a checkpoint is the run that was not interrupted."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from danalab.optim import DistributedMuonAdamW, list_optimizers, optimizer_spec
from danalab.optim.distributed import why_not
from danalab.optim.optimizers.base import RuleOptimizer
from danalab.train.checkpoint import tensors
from danalab.train.checkpoint.saver import Saver
from danalab.train.checkpoint.store import CheckpointStore
from danalab.train.parallel.layout import RankLayout
from danalab.train.parallel.world import join
from distributed.capabilities import build, difference, probe, steps, whole
from distributed.capabilities_page import EPSILON
from distributed.ranks import run_ranks
from slow_cases import slow

NAMES = [name for name in list_optimizers() if why_not(optimizer_spec(name), "zero") is None]
FAST = ("adana", "sophia", "soap")
"""Every element by itself, a Hessian besides, matrices with a basis: the fast suite's, on other numbers of ranks."""
OTHERS = tuple(name for name in NAMES if name not in FAST)
SAVED, END = 5, 12
"""Steps; SOAP has refreshed its basis several times by then."""


def interrupted(rank: int, ranks: int, folder: Path, names: tuple[str, ...]) -> dict[str, dict[str, Tensor]]:
    """Weights of each optimizer after all steps, without an interruption; a checkpoint on the way."""
    warnings.simplefilter("ignore")
    world, found = join(RankLayout("zero"), "cpu"), {}
    for name in names:
        model = probe()
        optimizer = build(name, model, "zero")
        steps(name, model, optimizer, "zero", range(SAVED), rank, ranks)
        saver = Saver(CheckpointStore(folder / name), world=world)
        saver.save(SAVED, tensors.state_of(model, optimizer), {}, wait=True)
        steps(name, model, optimizer, "zero", range(SAVED, END), rank, ranks)
        found[name] = whole(model)
    return found


def resumed(rank: int, ranks: int, folder: Path, names: tuple[str, ...]) -> dict[str, dict[str, Tensor]]:
    """Weights of each optimizer after the steps from its checkpoint on."""
    warnings.simplefilter("ignore")
    found = {}
    for name in names:
        model = probe()
        optimizer = build(name, model, "zero")
        path = CheckpointStore(folder / name).path(SAVED)
        tensors.read(path, model, optimizer)
        steps(name, model, optimizer, "zero", range(SAVED, END), rank, ranks)
        found[name] = whole(model)
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, ...]], dict[int, Any]]:
    """For some optimizers, 0: two ranks without an interruption; 1, 3 (and, slow, 2): as many from the checkpoint."""
    pytest.importorskip("pytorch_optimizer")

    @cache
    def of(names: tuple[str, ...]) -> dict[int, Any]:
        folder = tmp_path_factory.mktemp("zero")
        found = {0: run_ranks(interrupted, 2, folder, names, seconds=240.0)}
        after = (1, 3) if names == FAST else (1, 2, 3)
        return found | {ranks: run_ranks(resumed, ranks, folder, names, seconds=240.0) for ranks in after}

    return of


def is_equal(found: dict[str, Tensor], want: dict[str, Tensor]) -> bool:
    return all(torch.equal(found[name], p) for name, p in want.items())


@pytest.mark.parametrize("name", [*FAST, *slow(*OTHERS)])
def test_a_resumed_run_is_the_run_in_one(results, name):
    ends = results(FAST if name in FAST else OTHERS)
    want = ends[0][0][name]
    for ranks in [ranks for ranks in ends if ranks]:
        for found in ends[ranks]:
            # Of the package's own optimizers no bit depends on the number of ranks.
            if ranks == 2 or _is_ours(name):
                assert is_equal(found[name], want), f"{ranks} ranks differ by {difference(found[name], want):g}"
            assert difference(found[name], want) <= EPSILON


def _is_ours(name: str) -> bool:
    made = optimizer_spec(name).build
    return isinstance(made, type) and issubclass(made, RuleOptimizer)


def soap(rank: int, ranks: int, folder: Path, first: int) -> Tensor:
    """Weights after 12 steps on gradients that use all bits; products of column-major matrices differ in the last."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 20), nn.Linear(20, 7))
    optimizer = DistributedMuonAdamW(model, lr=0.01, optimizer="soap")
    store, world = CheckpointStore(folder), join(RankLayout("zero"), "cpu")
    if first:
        path = store.path(first)
        tensors.read(path, model, optimizer)
    for step in range(first, END):
        if step == SAVED and not first:
            Saver(store, world=world).save(SAVED, tensors.state_of(model, optimizer), {}, wait=True)
        generator = torch.Generator().manual_seed(step)
        for p in model.parameters():
            p.grad = torch.randn(p.shape, generator=generator)
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_soap_resumes_bitwise_although_its_bases_are_column_major(tmp_path, ranks):
    pytest.importorskip("pytorch_optimizer")
    want = run_ranks(soap, ranks, tmp_path, 0)
    assert all(map(torch.equal, run_ranks(soap, ranks, tmp_path, SAVED), want))
