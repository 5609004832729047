"""A mixture is the weighted sum of the chosen experts, whatever their load; its products are one operation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from danalab.models import ModelConfig
from danalab.models.architectures import Activation
from danalab.models.moe.experts import MIN_ROWS, grouped_linear
from danalab.models.moe.mixture import MixtureOfExperts, Router


def mixture(activation: Activation, **changes) -> MixtureOfExperts:
    arch = "llama" if activation == "swiglu" else "enoki"
    config = ModelConfig(arch, 12, 1, 2, 6, 20, 31, 16, **{"n_experts": 6, "top_k": 2, **changes})
    layer = MixtureOfExperts(config).double()
    draw = torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, 0, 0.4, generator=draw)
    return layer


def by_hand(layer: MixtureOfExperts, x: Tensor) -> Tensor:
    """Expert by expert, each for the tokens that chose it."""
    flat = x.reshape(-1, x.shape[-1])
    p = F.softmax(flat @ layer.router.map.weight.T, dim=-1)
    weights, chosen = p.topk(layer.router.top_k)
    if layer.router.renormalise:
        weights = weights / weights.sum(-1, keepdim=True)
    total = torch.zeros_like(flat)
    experts = layer.experts
    for e in range(layer.router.n_experts):
        token, place = torch.where(chosen == e)
        up = flat[token] @ experts.up.weight[e].T
        hidden = F.gelu(up) if experts.gate is None else F.silu(flat[token] @ experts.gate.weight[e].T) * up
        said = hidden @ experts.down.weight[e].T * weights[token, place].unsqueeze(1)
        total = total.index_add(0, token, said)
    if layer.shared is not None:
        gate = 1.0 if layer.shared_gate is None else torch.sigmoid(layer.shared_gate(flat))
        total = total + gate * layer.shared(flat)
    return total.view(x.shape)


@pytest.mark.parametrize("activation", ["swiglu", "gelu"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"top_k": 1},
        {"top_k": 6},
        {"renormalise": False},
        {"n_shared_experts": 2, "shared_expert_gate": True},
    ],
    ids=str,
)
def test_it_is_the_sum_over_chosen_experts_with_its_gradients(activation, changes):
    layer = mixture(activation, **changes)
    x = torch.randn(
        2, 9, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    ).requires_grad_()
    found, expected = layer(x)[0], by_hand(layer, x)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    wrt, upstream = [x, *layer.parameters()], torch.randn(x.shape, dtype=torch.float64)
    ours, theirs = (torch.autograd.grad(y, wrt, upstream) for y in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


def test_no_token_is_dropped_when_all_choose_one_expert():
    layer = mixture("swiglu", top_k=1)
    with torch.no_grad():
        layer.router.map.weight.zero_()
        layer.router.map.weight[4] = 1.0
    x = torch.rand(2, 40, 12, dtype=torch.float64)
    y, routing = layer(x)
    assert routing.counts.tolist() == [0, 0, 0, 0, 80, 0]
    torch.testing.assert_close(y, by_hand(layer, x), rtol=0, atol=1e-12)
    y.sum().backward()
    assert layer.experts.up.weight.grad[0].count_nonzero() == 0


def test_weights_add_up_to_one_if_renormalised_and_else_to_their_probability():
    x = torch.randn(7, 12, generator=torch.Generator().manual_seed(0))
    for renormalise in (True, False):
        router = Router(12, 5, 3, renormalise=renormalise)
        torch.nn.init.normal_(router.map.weight, generator=torch.Generator().manual_seed(1))
        weights, chosen, routing = router(x)
        p = F.softmax(x @ router.map.weight.T, dim=-1)
        expected = p.gather(1, chosen)
        torch.testing.assert_close(
            weights, expected / expected.sum(1, keepdim=True) if renormalise else expected
        )
        torch.testing.assert_close(routing.probabilities, p.sum(0))
        assert int(routing.counts.sum()) == 21


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 2 * MIN_ROWS), min_size=1, max_size=6), st.integers(0, 2**16))
def test_grouped_products_are_each_groups_product_with_their_gradients(counts: list[int], seed: int):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(counts), 5, dtype=torch.float64, generator=draw).requires_grad_()
    weight = torch.randn(len(counts), 4, 5, dtype=torch.float64, generator=draw).requires_grad_()
    found = grouped_linear(x, weight, torch.tensor(counts))
    parts = [rows @ matrix.T for rows, matrix in zip(x.split(counts), weight, strict=True)]
    expected = torch.cat(parts)
    upstream = torch.randn(found.shape, dtype=torch.float64, generator=draw)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)
    ours, theirs = (torch.autograd.grad(y, (x, weight), upstream) for y in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_a_row_does_not_depend_on_how_many_others_its_expert_has():
    """To the bit with AVX2; MKL's kernels for older processors round the rows beyond a multiple of four differently."""
    wide = torch.backends.cpu.get_cpu_capability() != "DEFAULT"
    draw = torch.Generator().manual_seed(0)
    x, weight = torch.randn(200, 48, generator=draw), torch.randn(1, 64, 48, generator=draw)
    whole = grouped_linear(x, weight, torch.tensor([200]))
    for rows in (*range(1, MIN_ROWS + 2), 63, 64, 65, 199):
        part = grouped_linear(x[:rows], weight, torch.tensor([rows]))
        torch.testing.assert_close(part, whole[:rows], rtol=0, atol=0 if wide else 1e-5)


@pytest.mark.slow
def test_the_operations_pass_torchs_own_checks():
    x = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    counts = torch.tensor([2, 0, 5])
    torch.library.opcheck(torch.ops.danalab.grouped_linear.default, (x, weight, counts))
    torch.library.opcheck(torch.ops.danalab.grouped_outer.default, (x.detach(), x.detach(), counts))


def test_under_autocast_products_are_bfloat16_and_choices_are_not():
    layer = mixture("swiglu").float()
    x = torch.randn(2, 9, 12, generator=torch.Generator().manual_seed(1))
    exact, routing = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        rough, again = layer(x)
        assert layer.experts(x.reshape(-1, 12), torch.tensor([3] * 6)).dtype == torch.bfloat16
    assert torch.equal(routing.counts, again.counts)
    assert torch.equal(routing.probabilities, again.probabilities)
    torch.testing.assert_close(rough.float(), exact, rtol=0, atol=0.1)
