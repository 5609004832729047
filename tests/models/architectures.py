"""A tiny configuration of each architecture of the registry, for tests that hold for all of them."""

from __future__ import annotations

from typing import Any

from danalab.errors import UserError
from danalab.models import ModelConfig
from danalab.models.architectures import ARCHITECTURES

VOCAB, LENGTH = 61, 24
SHAPE: dict[str, Any] = {
    "d_model": 32, "n_layers": 2, "n_heads": 4, "head_dim": 8, "mlp_dim": 48, "vocab_size": VOCAB, "seq_len": LENGTH,
}  # fmt: skip

SWITCHES: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped": {"n_kv_heads": 2},
    "wide-heads": {"head_dim": 12, "n_kv_heads": 2},
    "gated": {"attention_gate": True},
    "tied": {"tied_head": True},
    "untied": {"tied_head": False},
    "experts": {"n_experts": 4, "top_k": 2, "expert_dim": 24},
    "shared-expert": {
        "n_experts": 4,
        "n_shared_experts": 1,
        "shared_expert_gate": True,
        "decoder_sparse_step": 2,
    },
    "linear-attention": {"n_layers": 4, "full_attention_interval": 4},
}
"""What an architecture may be asked for; those that refuse are left out."""


def tiny(arch: str, **changes: Any) -> ModelConfig:
    """The smallest model of an architecture that shows everything."""
    return ModelConfig(arch, **{**SHAPE, **changes})


def _variants() -> dict[str, ModelConfig]:
    found = {}
    for arch in ARCHITECTURES:
        for name, changes in SWITCHES.items():
            try:
                config = tiny(arch, **changes)
            except UserError:
                continue
            structure = config.architecture
            default = {"tied_head": structure.tied_head, "attention_gate": structure.attention_gate}
            if not changes or any(default.get(key) != value for key, value in changes.items()):
                found[f"{arch}-{name}"] = config
    return found


VARIANTS = _variants()
"""Name -> configuration: every architecture with each switch that it has."""


def is_dense_attention(config: ModelConfig) -> bool:
    """Whether a token's numbers are computed alike, to the last bit, whatever comes after it.

    Transforms of whole rows, chunks of a recurrence, and products over all tokens of an expert are causal, too, but the
    order of their sums depends on the whole row.
    """
    structure = config.architecture
    return not (
        structure.oscillators
        or (structure.n_experts if config.n_experts is None else config.n_experts)
        or config.full_attention_interval
    )
