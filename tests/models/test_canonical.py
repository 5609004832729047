from __future__ import annotations

from typing import Any

import pytest
import torch

from danalab.errors import UserError
from danalab.models import ModelConfig, build_model, load_canonical
from danalab.models.decoder import Decoder
from models.weights import canonical_arrays


def test_canonical_arrays_and_back_change_nothing(tiny: ModelConfig):
    model, other = build_model(tiny, seed=1), build_model(tiny, seed=2)
    load_canonical(other, canonical_arrays(model))
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_loading_is_in_place_and_accepts_numpy(tiny: ModelConfig):
    model, other = build_model(tiny, seed=1), build_model(tiny, seed=2)
    before = [parameter.data_ptr() for parameter in other.parameters()]
    load_canonical(other, {name: array.numpy() for name, array in canonical_arrays(model).items()})
    assert [parameter.data_ptr() for parameter in other.parameters()] == before
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_gate_rows_follow_their_heads_query_rows():
    model = build_model(ModelConfig("qwen3", 8, 1, 2, 4, 8, 11, 4))
    rows = canonical_arrays(model)["layers.0.attention.q.weight"].unflatten(0, (2, 2, 4))
    attention = model.blocks[0].attention
    assert torch.equal(rows[1, 0], attention.q.weight[4:])
    assert torch.equal(rows[1, 1], attention.gate.weight[4:])


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "missing": (
        {"final_norm.weight": None},
        r"weight 'final_norm.weight' has shape none, the model needs \[8\]",
    ),
    "unknown": (
        {"layers.0.mlp.upp.weight": torch.zeros(1)},
        r"'layers.0.mlp.upp.weight' has shape \[1\], the model needs none",
    ),
    "shape": (
        {"output_head.weight": torch.zeros(3, 8)},
        r"'output_head.weight' has shape \[3, 8\], the model needs \[11, 8\]",
    ),
    "stacked shape": (
        {f"layers.0.attention.{part}.weight": None for part in "qkv"}
        | {"layers.0.attention.qkv.weight": torch.zeros(23, 8)},
        r"'layers.0.attention.qkv.weight' has shape \[23, 8\], the model needs 24 rows",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_arrays_that_do_not_fit_are_refused_and_nothing_is_changed(case: str):
    changes, message = BAD[case]
    model = build_model(ModelConfig("enoki", 8, 1, 2, 4, 8, 11, 4))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    arrays = {name: torch.zeros_like(array) for name, array in canonical_arrays(model).items()} | changes
    with pytest.raises(UserError, match=message):
        load_canonical(model, {name: array for name, array in arrays.items() if array is not None})
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_a_gated_models_query_must_hold_the_gate_too():
    model: Decoder = build_model(ModelConfig("qwen3", 8, 1, 2, 4, 8, 11, 4))
    arrays = canonical_arrays(model)
    arrays["layers.0.attention.q.weight"] = torch.zeros(8, 8)
    with pytest.raises(UserError, match=r"has shape \[8, 8\], the model needs 16 rows"):
        load_canonical(model, arrays)
