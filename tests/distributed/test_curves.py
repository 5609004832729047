"""However a run is shared among ranks, its loss curve is that of one process."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest
import torch

from danalab.train.parallel.layout import RankLayout
from distributed.curves import STEPS, Case, curve, curves
from distributed.ranks import run_ranks

DDP, ZERO, FSDP = RankLayout("ddp"), RankLayout("zero"), RankLayout("fsdp")
TENSOR, HYBRID = RankLayout("fsdp", tp_size=2), RankLayout("fsdp", replicas=2)
PAIRS = [("enoki", "adana"), ("qwen3", "adamw"), ("qwen3", "d-muon")]


@lru_cache
def alone(arch: str, opt: str, steps: int) -> torch.Tensor:
    return curve(Case(arch, opt, steps=steps))


def check(ranks: int, cases: list[Case]) -> None:
    for found in (results := run_ranks(curves, ranks, cases, seconds=240.0)):
        for case, one, first in zip(cases, found, results[0], strict=True):
            assert torch.equal(one, first), f"ranks differ: {case}"
    for case, found in zip(cases, results[0], strict=True):
        expected = alone(case.arch, case.opt, case.steps)
        error = ((found - expected) / expected).abs()
        assert error[:, 0].max() < 1e-5, f"loss: {case}"
        assert error[0, 1] < 1e-6, f"gradient norm of the first step: {case}"
        assert error[:, 1].max() < 2e-5, f"gradient norm: {case}"
        assert error[:, 2].max() < 2e-4, f"update norm: {case}"


@pytest.mark.slow
@pytest.mark.parametrize("layout", [DDP, ZERO, FSDP, TENSOR], ids=["ddp", "zero", "fsdp", "tensor-parallel"])
def test_two_ranks_make_the_curve_of_one(layout):
    check(2, [Case(arch, opt, layout) for arch, opt in PAIRS])


@pytest.mark.slow
def test_a_tied_head_biases_and_learned_positions_are_shared_in_every_mode():
    layouts = (DDP, ZERO, FSDP, TENSOR)
    check(
        2,
        [*(Case("gpt", "adana", layout) for layout in layouts), Case("gpt", "d-muon", FSDP, 2, "selective")],
    )


@pytest.mark.slow
def test_accumulation_and_activation_checkpointing_change_nothing_on_two_ranks():
    first = Case("enoki", "adana")
    cases = [replace(first, layout=layout, micro_batch=2) for layout in (DDP, ZERO, FSDP)]
    cases += [
        replace(first, layout=FSDP, micro_batch=2, checkpointing=mode) for mode in ("full", "selective")
    ]
    cases += [replace(first, layout=DDP, checkpointing="every-n:2")]
    check(2, cases)


@pytest.mark.slow
def test_four_ranks_make_the_curve_of_one():
    check(4, [Case("enoki", "adana", layout) for layout in (DDP, ZERO, HYBRID, TENSOR)])


@pytest.mark.slow
@pytest.mark.parametrize("opt", ["adana", "adamw", "d-muon", "dana-star-mk4"])
@pytest.mark.parametrize("arch", ["enoki", "qwen3"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_every_arrangement_makes_the_curve_of_one(ranks, arch, opt):
    layouts = [DDP, ZERO, FSDP, TENSOR] + ([HYBRID] if ranks == 4 else [])
    ways = [(8, "none"), (1, "none"), (8, "full"), (8, "selective")]
    check(ranks, [Case(arch, opt, layout, *way, steps=20) for layout in layouts for way in ways])


@pytest.mark.slow
@pytest.mark.parametrize("layout", [DDP, ZERO, FSDP, TENSOR], ids=["ddp", "zero", "fsdp", "tensor-parallel"])
def test_compiled_blocks_make_the_curve_of_one(layout):
    check(2, [Case("enoki", "adana", layout, compiled=True)])


@pytest.mark.slow
def test_bfloat16_products_stay_near_float32_in_every_mode():
    cases = [Case("enoki", "adamw", layout) for layout in (FSDP, TENSOR)]
    for found in run_ranks(curves, 2, cases, torch.bfloat16)[0]:
        assert ((found[:, 0] - alone("enoki", "adamw", STEPS)[:, 0]).abs() < 5e-3).all()
