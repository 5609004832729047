"""Cautious and scaled weight decay: the papers' formulas, in every class and back end that decays weights directly.

The oracle needs only the step u that the same optimizer makes without decay: w' = w - lr (u + lambda 1[u w > 0] w).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from danalab.errors import UserError
from danalab.optim import build_optimizer, list_optimizers, optimizer_spec
from danalab.optim.step.state_dict import LATER

NAMES = [name for name in list_optimizers() if "cautious_decay" in optimizer_spec(name).settings]
ELEMENTWISE = [name for name in NAMES if optimizer_spec(name).elementwise and not name.startswith("snoo")]
INDEPENDENT = [name for name in ELEMENTWISE if optimizer_spec(name).decay == "independent"]
HYBRIDS = [name for name in NAMES if not optimizer_spec(name).elementwise]
EXACT = {"ns_dtype": "float64"}
LR, DECAY, SHARE = 0.01, 0.02, 0.5
BACKENDS: dict[str, dict[str, Any]] = {
    "eager": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "automatic": {},
    "fused": {"fused": True},
}


def start() -> Tensor:
    w = torch.randn(6, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    w[0, 0] = 0.0
    w[1] *= 1e-200  # a product of weight and step underflows here, and their signs agree all the same
    return w


def weights_after(name: str, steps: int = 3, lr_share: float = 1.0, **settings: Any) -> list[Tensor]:
    """The weights before and after each step; the learning rate is `lr_share` of its peak."""
    p = nn.Parameter(start())
    optimizer = build_optimizer(name, [p], lr=LR, **settings)
    for group in optimizer.param_groups:
        group["lr"] = LR * lr_share
    found = [p.detach().clone()]
    for step in range(steps):
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(50 + step), dtype=torch.float64)
        optimizer.step()
        found.append(p.detach().clone())
    return found


def decays(name: str) -> dict[str, Any]:
    """Settings of a decay of DECAY a step at the peak learning rate."""
    independent = optimizer_spec(name).decay == "independent"
    return {"weight_decay": DECAY if independent else DECAY / LR}


def test_every_decoupled_decay_of_ours_has_both_options():
    missing = {name for name in list_optimizers() if optimizer_spec(name).decay == "independent"} - set(NAMES)
    assert not missing
    assert {"ademamix", "muon", "d-muon", "manau"} <= set(NAMES)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_cautious_decay_is_that_of_the_paper(name, backend):
    how = {**BACKENDS[backend], "cautious_decay": True}
    # Gradients do not depend on the weights, so the step of each time is that of the optimizer without decay.
    free, found = weights_after(name, **BACKENDS[backend]), weights_after(name, **how, **decays(name))
    for before, after, w, want in zip(free, free[1:], found, found[1:], strict=False):
        step = before - after
        assert torch.allclose(want, w - step - torch.where(step.sign() * w > 0, DECAY * w, 0.0), rtol=1e-12, atol=1e-14)
    assert not torch.equal(found[-1], weights_after(name, **BACKENDS[backend], **decays(name))[-1])


@pytest.mark.parametrize("name", HYBRIDS)
@pytest.mark.parametrize("matrix", [True, False])
def test_cautious_decay_of_matrices_and_of_the_rest_is_that_of_the_paper(name, matrix):
    def run(**settings: Any) -> list[Tensor]:
        p = nn.Parameter(start())
        group = {"params": [p], "use_muon": matrix}
        settings |= {"aux_lr": LR} | {
            key: value for key, value in EXACT.items() if key in optimizer_spec(name).settings
        }
        settings |= {"betas": (0.0, 0.95)} if name == "sf-normuon" else {}  # it trains the weights that decay
        optimizer = build_optimizer(name, [group], lr=LR, **settings)
        found = [p.detach().clone()]
        for step in range(3):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(50 + step), dtype=torch.float64)
            optimizer.step()
            found.append(p.detach().clone())
        return found

    free, found = run(), run(cautious_decay=True, **decays(name))
    for before, after, w, want in zip(free, free[1:], found, found[1:], strict=False):
        step = before - after
        assert torch.allclose(want, w - step - torch.where(step.sign() * w > 0, DECAY * w, 0.0), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", INDEPENDENT)
def test_a_switch_in_mid_run_takes_effect_in_the_next_step(name):
    ends = []
    for backend in ({"fused": True}, {"fused": False, "foreach": False}):
        p = nn.Parameter(start())
        optimizer = build_optimizer(name, [p], lr=LR, weight_decay=DECAY, **backend)
        for step in range(6):
            optimizer.param_groups[0]["cautious_decay"] = step in (3, 4)
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(50 + step), dtype=torch.float64)
            optimizer.step()
        ends.append(p.detach())
    assert torch.allclose(*ends, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_scaled_decay_follows_the_learning_rate_once_more(name):
    scaled = weights_after(name, lr_share=SHARE, scaled_decay=True, **decays(name))
    smaller = {"weight_decay": decays(name)["weight_decay"] * SHARE}
    assert torch.allclose(scaled[-1], weights_after(name, lr_share=SHARE, **smaller)[-1], rtol=1e-14, atol=0)
    plain = [weights_after(name, scaled_decay=on, **decays(name))[-1] for on in (True, False)]
    assert torch.equal(*plain)  # at the peak both are the same


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", INDEPENDENT)
def test_back_ends_agree_on_cautious_decay_in_lower_precision(name, dtype):
    ends = []
    for backend in BACKENDS.values():
        p = nn.Parameter(start().to(dtype))
        optimizer = build_optimizer(name, [p], lr=LR, weight_decay=DECAY, cautious_decay=True, **backend)
        for step in range(3):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(50 + step)).to(dtype)
            optimizer.step()
        ends.append(p.detach().float())
    for end in ends[1:]:
        assert torch.allclose(end, ends[0], rtol=2e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-6)


def test_a_state_of_an_optimizer_without_the_options_still_loads():
    p = nn.Parameter(start())
    optimizer = build_optimizer("adana", [p], lr=LR, weight_decay=DECAY, cautious_decay=True)
    saved = optimizer.state_dict()
    for group in saved["param_groups"]:
        for name in LATER:
            group.pop(name, None)
    optimizer.load_state_dict(saved)
    p.grad = torch.ones_like(p)
    optimizer.step()
    assert torch.isfinite(p).all()


def test_the_options_are_switches():
    for name in ("cautious_decay", "scaled_decay"):
        with pytest.raises(UserError, match=name):
            build_optimizer("adana", [nn.Parameter(start())], **{name: 0.5})
