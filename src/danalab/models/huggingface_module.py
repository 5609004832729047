"""Models that `transformers` has no class for, with a class of ours that travels with their weights.

An export holds `modeling_danalab.py` beside the weights; `from_pretrained(FOLDER, trust_remote_code=True)` runs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from danalab.errors import UserError
from danalab.models.config import ModelConfig

MODEL_TYPE = "danalab"
ARCHITECTURES = ("enoki", "qwen3", "llama")
"""Those whose function the module computes, with any of their switches."""
FILE = Path(__file__).with_name("modeling_danalab.py")
"""The module."""


def in_module(config: ModelConfig) -> bool:
    """Whether the module's class computes this model's function."""
    plain = config.sparsity is None and config.rotated == config.head_dim and config.norm_kind != "rmsnorm-1p"
    return config.arch in ARCHITECTURES and plain


def module_settings(config: ModelConfig) -> dict[str, Any]:
    """config.json for a model of the module's class; the weights keep their names."""
    return {
        "architectures": ["DanalabForCausalLM"],
        "model_type": MODEL_TYPE,
        "auto_map": {
            "AutoConfig": f"{FILE.stem}.DanalabConfig",
            "AutoModelForCausalLM": f"{FILE.stem}.DanalabForCausalLM",
        },
        "d_model": config.d_model,
        "n_layers": config.n_layers,
        "n_heads": config.n_heads,
        "n_kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "mlp_dim": config.mlp_dim,
        "vocab_size": config.vocab_size,
        "seq_len": config.seq_len,
        "norm": config.norm_kind,
        "norm_eps": config.norm_eps,
        "attention_gate": config.gated,
        "qk_norm": config.qk_normed,
        "swiglu": config.architecture.structure.mlp_matrices == 3,
        "rope_base": config.rope_theta,
        "residual_scale": config.residual_scale,
        "tie_word_embeddings": config.tied,
        "use_cache": True,
        "danalab_model": config.as_dict(),
    }


def from_module(described: Mapping[str, Any]) -> ModelConfig:
    """The configuration of an exported model.

    Raises:
        UserError: config.json does not say it.
    """
    model = described.get("danalab_model")
    if not isinstance(model, dict):
        raise UserError("config.json of a danalab model has no 'danalab_model'")
    return ModelConfig.from_dict(model)
