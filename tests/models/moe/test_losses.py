"""The router's losses: Switch's formula, and a gradient that does not depend on how a batch is cut."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from danalab.models import ModelConfig, build_model
from danalab.models.moe.mixture import Router, Routing, Usage, router_losses, stacked, weighted


def routed(x: torch.Tensor, top_k: int = 1, n_experts: int = 5) -> tuple[Router, Routing]:
    router = Router(x.shape[1], n_experts, top_k)
    torch.nn.init.normal_(router.map.weight, generator=torch.Generator().manual_seed(1))
    return router, stacked([router(x)[2]])


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(64, 12, generator=torch.Generator().manual_seed(0))


def test_load_balance_is_switchs_formula(x):
    router, routing = routed(x)
    p = F.softmax(x @ router.map.weight.T, dim=-1)
    f = torch.bincount(p.argmax(-1), minlength=5) / 64
    losses = router_losses(routing)
    torch.testing.assert_close(losses["load_balance"], 5 * (f * p.mean(0)).sum())
    torch.testing.assert_close(losses["router_z"], (x @ router.map.weight.T).logsumexp(-1).square().mean())
    mean = p.mean(0)
    torch.testing.assert_close(losses["router_entropy"], (mean * mean.log()).sum())


@pytest.mark.parametrize("top_k", [1, 2, 5])
def test_even_use_gives_one_for_any_number_of_choices(top_k):
    counts = torch.full((1, 5), 8 * top_k)
    even = Routing(counts, torch.full((1, 5), 8.0), torch.zeros(1))
    assert float(router_losses(even)["load_balance"]) == pytest.approx(1.0)


def test_one_expert_for_all_gives_the_number_of_experts():
    routing = Routing(torch.tensor([[40, 0, 0, 0]]), torch.tensor([[40.0, 0, 0, 0]]), torch.zeros(1))
    assert float(router_losses(routing)["load_balance"]) == pytest.approx(4.0)
    assert float(router_losses(routing)["router_entropy"]) == pytest.approx(0.0)


@pytest.mark.parametrize("name", ["load_balance", "router_z", "router_entropy"])
def test_with_a_given_usage_parts_add_up_to_the_whole(x, name):
    router, whole = routed(x, top_k=2)
    usage = Usage.of(stacked([router(x.flip(1))[2]]))
    parts = [stacked([router(part)[2]]) for part in (x[:10], x[10:])]
    together = router_losses(whole, usage, 64)[name]
    summed = sum(router_losses(part, usage, 64)[name] for part in parts)
    torch.testing.assert_close(summed, together)
    ours, theirs = (torch.autograd.grad(loss, router.map.weight)[0] for loss in (summed, together))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", ["load_balance", "router_entropy"])
def test_with_its_own_usage_given_the_gradient_is_the_plain_formulas(x, name):
    router, routing = routed(x, top_k=2)
    plain = router_losses(routing)[name]
    given = router_losses(routing, Usage.of(routing), 64)[name]
    ours, theirs = (
        torch.autograd.grad(loss, router.map.weight, retain_graph=True)[0] for loss in (given, plain)
    )
    torch.testing.assert_close(given, plain)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)


def test_the_load_balance_loss_evens_out_a_lopsided_router(x):
    router, _ = routed(x, top_k=2)
    with torch.no_grad():
        router.map.weight[0] += 0.5 * x.mean(0) + 0.3 * x[:8].sum(0)
    before = Usage.of(stacked([router(x)[2]])).load.max()
    optimizer = torch.optim.Adam(router.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        router_losses(stacked([router(x)[2]]))["load_balance"].backward()
        optimizer.step()
    after = Usage.of(stacked([router(x)[2]])).load.max()
    assert float(after) < min(0.3, float(before))


CONFIG = ModelConfig(
    "moe", 16, 3, 2, 8, 24, 31, 12, n_experts=4, mlp_only_layers=(1,), router_entropy_loss=0.1
)


def test_a_model_tells_its_losses_once_a_pass_averaged_over_sparse_layers():
    model = build_model(CONFIG)
    tokens = torch.randint(0, 31, (2, 12), generator=torch.Generator().manual_seed(0))
    model(tokens, tokens)
    routing = model.take_routing()
    assert routing is not None
    assert routing.counts.shape == (2, 4)
    assert routing.counts.sum(1).tolist() == [48, 48]
    assert model.take_routing() is None


def test_without_gradients_nothing_is_kept():
    model = build_model(CONFIG)
    with torch.no_grad():
        model(torch.zeros(1, 4, dtype=torch.int64))
    assert model.take_routing() is None


def test_weights_of_zero_switch_losses_off():
    routing = Routing(torch.tensor([[3, 1]]), torch.tensor([[2.0, 2.0]], requires_grad=True), torch.ones(1))
    config = ModelConfig("moe", 16, 1, 2, 8, 24, 31, 12, load_balance_loss=0.0, router_z_loss=0.0)
    assert float(weighted(config, router_losses(routing))) == 0.0
