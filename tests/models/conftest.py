"""The golden models, built by us and holding the golden weights, and a tiny configuration for everything else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from danalab.models import ModelConfig, build_model, load_canonical
from danalab.models.decoder import Decoder


@dataclass
class GoldenModel:
    model: Decoder
    facts: dict[str, Any]
    arrays: dict[str, np.ndarray]

    def tensor(self, name: str) -> Tensor:
        return torch.from_numpy(self.arrays[name])


@pytest.fixture(scope="session")
def golden_index(golden: Path) -> dict[str, Any]:
    return json.loads((golden / "golden_index.json").read_text())


@pytest.fixture(scope="session")
def load_golden(golden: Path, golden_index: dict[str, Any]) -> Callable[..., GoldenModel]:
    """load_golden(name, dtype, **changes of the configuration)"""

    def load(name: str, dtype: torch.dtype, **changes: Any) -> GoldenModel:
        facts = golden_index["models"]["models"][name]
        with np.load(golden / facts["file"]) as file:
            arrays = dict(file)
        sizes = facts["config"]
        config = ModelConfig(
            arch=facts["architecture"],
            d_model=sizes["n_embd"],
            n_layers=sizes["n_layer"],
            n_heads=sizes["n_head"],
            head_dim=sizes["qkv_dim"],
            mlp_dim=sizes["mlp_hidden_dim"],
            vocab_size=sizes["vocab_size"],
            seq_len=sizes["sequence_length"],
            norm_eps=sizes["rmsnorm_eps"],
            attention_gate=sizes["elementwise_attn_output_gate"],
        )
        model = build_model(replace(config, **changes), dtype=dtype)
        weights = {
            key.removeprefix("weights/"): array for key, array in arrays.items() if key.startswith("weights/")
        }
        if not model.config.choice("qk_norm"):
            weights = {
                key: array for key, array in weights.items() if "q_norm" not in key and "k_norm" not in key
            }
        load_canonical(model, weights)
        return GoldenModel(model, facts, arrays)

    return load


@pytest.fixture(params=["enoki", "qwen3", "qwen3-grouped", "gpt", "llama-grouped", "moe"])
def tiny(request: pytest.FixtureRequest) -> ModelConfig:
    """A configuration of every kind of attention; the grouped ones have heads wider together than the model."""
    return ModelConfig(
        arch=request.param.removesuffix("-grouped"),
        d_model=32,
        n_layers=2,
        n_heads=4,
        head_dim=12 if request.param.endswith("grouped") else 8,
        mlp_dim=48,
        vocab_size=61,
        seq_len=24,
        n_kv_heads=2 if request.param.endswith("grouped") else None,
        n_experts=4 if request.param == "moe" else None,
    )
