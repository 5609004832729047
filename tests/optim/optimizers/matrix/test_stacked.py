"""Stacked matrices of experts: orthogonalised one by one, and everything of their kind decayed."""

from __future__ import annotations

import pytest
import torch

from danalab.models import ModelConfig, build_model
from danalab.optim import build_optimizer
from danalab.optim.optimizers.kinds import parameter_kinds

CONFIG = ModelConfig("moe", 16, 2, 2, 8, 24, 31, 12, n_experts=4, n_shared_experts=1, shared_expert_gate=True)


@pytest.mark.parametrize("name", ["muon", "d-muon", "manau"])
def test_a_stack_is_stepped_as_its_matrices_would_be(name):
    draw = torch.Generator().manual_seed(0)
    stack = torch.nn.Parameter(torch.randn(3, 8, 12, generator=draw))
    apart = [torch.nn.Parameter(matrix.detach().clone()) for matrix in stack]
    together = build_optimizer(name, [{"params": [stack], "kind": "experts"}], lr=0.02)
    single = build_optimizer(name, [{"params": apart, "kind": "matrix"}], lr=0.02)
    for _ in range(3):
        stack.grad = torch.randn(3, 8, 12, generator=draw)
        for matrix, grad in zip(apart, stack.grad, strict=True):
            matrix.grad = grad.clone()
        together.step()
        single.step()
    torch.testing.assert_close(stack.detach(), torch.stack([matrix.detach() for matrix in apart]), rtol=0, atol=1e-6)


def test_experts_and_routers_have_kinds_of_their_own():
    kinds = parameter_kinds(build_model(CONFIG, device="meta"))
    assert kinds["blocks.0.mlp.experts.up.weight"] == kinds["blocks.0.mlp.experts.down.weight"] == "experts"
    assert kinds["blocks.0.mlp.router.map.weight"] == kinds["blocks.0.mlp.shared_gate.weight"] == "router"
    assert kinds["blocks.0.mlp.shared.up.weight"] == "matrix"


@pytest.mark.parametrize("name", ["muon", "adamuon", "adana"])
def test_routers_are_never_orthogonalised_and_all_that_is_decayed_stays_decayed(name):
    model = build_model(CONFIG)
    optimizer = build_optimizer(name, model, lr=1e-2, weight_decay=0.1)
    names = {id(p): n for n, p in model.named_parameters()}
    for group in optimizer.param_groups:
        for p in group["params"]:
            if ".router." in names[id(p)]:
                assert not group.get("use_muon")
                assert group["weight_decay"] > 0
            if ".experts." in names[id(p)]:
                assert group.get("use_muon", True) is (name != "adamuon")
                assert group["weight_decay"] > 0
