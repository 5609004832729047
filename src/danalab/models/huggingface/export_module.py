"""Models without a class in `transformers`: the export contains a class of ours beside the weights.

The file is `remote/modeling_*.py`; `from_pretrained(FOLDER, trust_remote_code=True)` runs it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from danalab.errors import UserError
from danalab.models.config import ModelConfig

MODEL_TYPE = "danalab"
ARCHITECTURES = ("enoki", "moe", "qwen3", "llama", "resonance")
"""Architectures that our modules compute, with any of their options."""


def module_file(config: ModelConfig) -> Path:
    """The file with this model's class."""
    name = "modeling_danalab_resonance.py" if config.arch == "resonance" else "modeling_danalab.py"
    return Path(__file__).parent / "remote" / name


def in_module(config: ModelConfig) -> bool:
    """Whether our class computes this model's function."""
    plain = config.rotated == config.head_dim and config.norm_kind != "rmsnorm-1p"
    return config.arch in ARCHITECTURES and plain


def module_settings(config: ModelConfig) -> dict[str, Any]:
    """config.json for our class; the weights keep their names."""
    stem, name = module_file(config).stem, "DanalabResonance" if config.arch == "resonance" else "Danalab"
    return {
        "architectures": [f"{name}ForCausalLM"],
        "model_type": MODEL_TYPE,
        "auto_map": {"AutoConfig": f"{stem}.{name}Config", "AutoModelForCausalLM": f"{stem}.{name}ForCausalLM"},
        "d_model": config.d_model,
        "n_layers": config.n_layers,
        "mlp_dim": config.mlp_dim,
        "vocab_size": config.vocab_size,
        "seq_len": config.seq_len,
        "norm": config.norm_kind,
        "norm_eps": config.norm_eps,
        "residual_scale": config.residual_scale,
        "tie_word_embeddings": config.tied,
        "use_cache": True,
        "danalab_model": config.as_dict(),
        **(_oscillator_settings(config) if config.arch == "resonance" else _attention_settings(config)),
    }


def _attention_settings(config: ModelConfig) -> dict[str, Any]:
    return {
        "n_heads": config.n_heads,
        "n_kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "attention_gate": config.gated,
        "qk_norm": config.qk_normed,
        "swiglu": config.architecture.mlp_matrices == 3,
        "rope_base": config.rope_theta,
        **_expert_settings(config),
    }


def _expert_settings(config: ModelConfig) -> dict[str, Any]:
    sparsity = config.sparsity
    if sparsity is None:
        return {}
    return {
        "n_experts": sparsity.n_experts,
        "experts_per_token": sparsity.top_k,
        "expert_dim": sparsity.expert_dim,
        "shared_dim": sparsity.shared_dim,
        "shared_gate": sparsity.shared_gate,
        "renormalise": config.renormalise,
        "sparse_layers": list(sparsity.layers),
    }


def _oscillator_settings(config: ModelConfig) -> dict[str, Any]:
    from danalab.models.resonance import oscillators

    return {
        "groups": config.n_heads,
        "modes": config.modes,
        "conv_width": config.conv_width,
        "learned_positions": config.learns_positions,
        "largest_quality": oscillators.MAX_QUALITY,
        "largest_nu": oscillators.MAX_NU,
        "least_damping": oscillators.MIN_DAMPING,
    }


def from_module(described: Mapping[str, Any]) -> ModelConfig:
    """The configuration of an exported model."""
    model = described.get("danalab_model")
    if not isinstance(model, dict):
        raise UserError("config.json of a danalab model has no 'danalab_model'")
    return ModelConfig.from_dict(model)
