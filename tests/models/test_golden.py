"""Both models compute the golden function: hidden states, logits, losses, gradients, and every variant."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from danalab.models.loss import hoyer_penalty
from models.weights import canonical_arrays

MODELS = ["enoki_tiny", "qwen3_gated_tiny"]
DTYPES = [torch.float64, torch.float32]
LOSS_TOLERANCE = {torch.float64: 1e-10, torch.float32: 5e-6}
GRAD_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-5}

Load = Callable[..., Any]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_golden(load_golden: Load, name: str, dtype: torch.dtype):
    case = load_golden(name, dtype)
    logits = case.model(case.tensor("tokens"))
    assert logits.dtype == dtype
    atol = 1e-10 if dtype == torch.float64 else 2e-5
    torch.testing.assert_close(logits.double(), case.tensor("logits_f64"), rtol=0, atol=atol)


@pytest.mark.parametrize("name", MODELS)
def test_hidden_states_are_golden_after_every_block(load_golden: Load, name: str):
    case = load_golden(name, torch.float64)
    seen: list[Tensor] = []
    for module in (case.model.token_embedding, *case.model.blocks, case.model.final_norm):
        module.register_forward_hook(
            lambda module, args, output: seen.append(output[0] if isinstance(output, tuple) else output)
        )
    case.model(case.tensor("tokens"))
    names = ["embedding", "after_layer_0", "after_layer_1", "final_norm"]
    for state, where in zip(seen, names, strict=True):
        torch.testing.assert_close(state, case.tensor(f"hidden/{where}_f64"), rtol=0, atol=1e-10, msg=where)


@pytest.mark.parametrize("name", MODELS)
def test_rotary_table_is_golden_however_the_model_became_float64(load_golden: Load, name: str):
    case = load_golden(name, torch.float32)
    table = case.model.double().rotary.table.squeeze(1)
    torch.testing.assert_close(table[..., 0], case.tensor("rope/cos_f64"), rtol=0, atol=1e-14)
    torch.testing.assert_close(table[..., 1], case.tensor("rope/sin_f64"), rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_loss_and_all_gradients_are_golden(load_golden: Load, name: str, dtype: torch.dtype):
    case = load_golden(name, dtype)
    ce, lse2 = case.model(case.tensor("tokens"), case.tensor("targets"), z_loss=1e-4)
    want, atol = case.facts["exact_f64"], LOSS_TOLERANCE[dtype]
    assert ce.item() == pytest.approx(want["loss_ce"], abs=atol)
    assert lse2.item() == pytest.approx(want["z_term"], abs=10 * atol)
    (ce + 1e-4 * lse2).backward()
    grads = canonical_arrays(case.model, lambda parameter: parameter.grad)
    if "layers.0.attention.qkv.weight" in case.facts["grad_norms_total_f64"]:
        grads = _stacked(grads)
    assert set(grads) == set(case.facts["grad_norms_total_f64"])
    for key, grad in grads.items():
        golden = case.tensor(f"grads/{key}").to(dtype)
        atol = GRAD_TOLERANCE[dtype] * float(golden.abs().max())
        torch.testing.assert_close(
            grad, golden, rtol=0, atol=atol, msg=lambda text, key=key: f"{key}: {text}"
        )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_ignored_targets_are_golden_with_either_denominator(load_golden: Load, name: str, dtype: torch.dtype):
    case = load_golden(name, dtype)
    targets = case.tensor("targets").clone()
    targets[:, ::5] = -1
    tokens, want = case.tensor("tokens"), case.facts["exact_f64"]
    ce, lse2 = case.model(tokens, targets, z_loss=1e-4)
    atol = LOSS_TOLERANCE[dtype]
    assert (ce + 1e-4 * lse2).item() == pytest.approx(want["ignored_loss_total_logits_path"], abs=atol)
    ce, lse2 = case.model(tokens, targets, z_loss=1e-4, valid_count=targets.numel())
    assert (ce + 1e-4 * lse2).item() == pytest.approx(want["ignored_loss_total_chunked_path"], abs=atol)


CHANGES: dict[str, dict[str, Any]] = {
    "no_qk_norm": {"qk_norm": False},
    "residual_scalar_0.5": {"residual_scale": 0.5},
    "layernorm_instead_of_rmsnorm": {"norm": "layernorm"},
    "hoyer_coeff_0.01": {},
    "z_coeff_1e-2": {},
}
VARIANTS = [(name, variant) for name in MODELS for variant in CHANGES]
VARIANTS.remove(("enoki_tiny", "layernorm_instead_of_rmsnorm"))  # it has LayerNorms already


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_variants_are_golden(load_golden: Load, name: str, variant: str, dtype: torch.dtype):
    case = load_golden(name, dtype, **CHANGES[variant])
    want = case.facts["variants_f64"][variant]
    tokens, targets = case.tensor("tokens"), case.tensor("targets")
    ce, lse2 = case.model(tokens, targets)
    if variant.startswith("hoyer"):
        ce = ce + 0.01 * hoyer_penalty(case.model.token_embedding(tokens))
    z_loss = 1e-2 if variant.startswith("z_coeff") else 1e-4
    atol = LOSS_TOLERANCE[dtype]
    assert ce.item() == pytest.approx(want["loss_ce"], abs=atol)
    assert (ce + z_loss * lse2).item() == pytest.approx(want["loss_total"], abs=2 * atol)


@pytest.mark.parametrize("name", MODELS)
def test_parameter_kinds_give_the_golden_decay_groups(load_golden: Load, name: str):
    case = load_golden(name, torch.float32)
    kinds = case.model.parameter_kinds()
    assert set(kinds) == {name for name, _ in case.model.named_parameters()}

    ours: dict[str, set[str]] = {}
    for key, kind in kinds.items():
        ours.setdefault(kind, set()).add(_golden_name(key, stacked=name == "enoki_tiny"))
    assert ours["matrix"] | ours["head"] == set(case.facts["weight_decay_group"])
    assert ours["embedding"] | ours["vector"] == set(case.facts["no_weight_decay_group"])


@pytest.mark.parametrize("name", MODELS)
def test_number_of_parameters_is_golden(load_golden: Load, name: str):
    case = load_golden(name, torch.float32)
    assert case.model.num_parameters() == case.facts["n_parameters"]


@pytest.mark.parametrize("name", MODELS)
def test_plain_loss_of_the_logits_equals_the_chunked_loss(load_golden: Load, name: str):
    case = load_golden(name, torch.float64)
    tokens, targets = case.tensor("tokens"), case.tensor("targets")
    logits = case.model(tokens)
    ce, lse2 = case.model(tokens, targets)
    torch.testing.assert_close(
        ce, F.cross_entropy(logits.flatten(0, 1), targets.flatten()), rtol=0, atol=1e-12
    )
    torch.testing.assert_close(lse2, logits.logsumexp(-1).square().mean(), rtol=0, atol=1e-12)


def _stacked(arrays: dict[str, Tensor]) -> dict[str, Tensor]:
    """With q, k and v of each layer stacked as `attention.qkv`."""
    stacked = dict(arrays)
    for name in arrays:
        if name.endswith("attention.q.weight"):
            parts = [stacked.pop(name.replace(".q.", f".{part}.")) for part in "qkv"]
            stacked[name.replace(".q.", ".qkv.")] = torch.cat(parts)
    return stacked


def _golden_name(name: str, *, stacked: bool) -> str:
    name = name.replace("blocks.", "layers.").replace("attention.gate.", "attention.q.")
    return re.sub(r"attention\.[qkv]\.", "attention.qkv.", name) if stacked else name
