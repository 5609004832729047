"""Experts compile without a graph break, and keep or make again what checkpointing says, without counting twice."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from danalab.models import ModelConfig, build_model
from danalab.models.decoder import Decoder
from danalab.models.moe.mixture import router_losses, weighted

CONFIG = ModelConfig("qwen3", 16, 2, 2, 8, 24, 31, 12, n_experts=4, n_shared_experts=1, load_balance_loss=0.3)
TOKENS = torch.randint(0, 31, (3, 12), generator=torch.Generator().manual_seed(0))


def passed(model: Decoder) -> tuple[dict[str, Tensor], list[Tensor]]:
    """(losses of the routers, gradients)."""
    model.zero_grad()
    ce, _ = model(TOKENS, TOKENS.roll(-1, 1))
    losses = router_losses(model.take_routing())
    (ce + weighted(model.config, losses)).backward()
    grads = [parameter.grad for parameter in model.parameters()]
    return {name: loss.detach() for name, loss in losses.items()}, [
        grad for grad in grads if grad is not None
    ]


@pytest.mark.parametrize("mode", ["full", "every-n:2", "selective"])
def test_checkpointing_changes_no_loss_and_no_gradient(mode):
    model = build_model(CONFIG, seed=3)
    plain = passed(model)
    model.set_activation_checkpointing(mode)
    again = passed(model)
    assert plain[0] == again[0]
    assert all(torch.equal(one, other) for one, other in zip(plain[1], again[1], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("mode", [pytest.param("none", marks=pytest.mark.slow), "full"])
def test_compiled_blocks_have_no_graph_break_and_the_losses_and_gradients_of_eager_ones(mode):
    torch.compiler.reset()
    model = build_model(CONFIG, seed=3)
    eager = passed(model)
    model.set_activation_checkpointing(mode)
    for block in model.blocks:
        block.compile(backend="aot_eager", fullgraph=True)
    compiled = passed(model)
    for name, loss in eager[0].items():
        torch.testing.assert_close(compiled[0][name], loss, rtol=1e-5, atol=1e-6)
    for one, other in zip(compiled[1], eager[1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
