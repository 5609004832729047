"""What a person says about a model, to train it or to plan it. None means automatic. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class ModelFlags:
    """Architecture and size; the docstring below each field is its help on the command line."""

    arch: str = "enoki"
    """Architecture: enoki, qwen3, qwen3next, gpt (alias base), llama, moe or resonance."""
    heads: int | None = None
    """Attention heads; all dimensions follow from them by the architecture's rule."""
    size: str | None = None
    """Size of a resonance model, which has no heads: small, medium, large or xlarge; what is explicit wins."""
    d_model: int | None = None
    """Explicit width, with --n-layers and --n-heads, in place of --heads; also --model-dim."""
    n_layers: int | None = None
    """Explicit depth [blocks]; also --num-layers."""
    n_heads: int | None = None
    """Explicit number of attention heads; resonance: of groups that share frequencies, default 8."""
    num_frequencies: int | None = None
    """resonance: damped oscillators of all groups; default 8 a group."""
    mixer: Literal["oscillators", "none"] | None = None
    """resonance: none leaves the oscillators out, a control that hears no earlier token; default oscillators."""
    learned_positions: bool | None = None
    """resonance: add a learned vector for each position, 32768 at most; default no (gpt has them always)."""
    conv_width: int = 0
    """resonance: causal convolution of each channel over so many tokens before the oscillators; 4 is usual, 0 none."""
    head_dim: int | None = None
    """Explicit width of a head; default d_model / n_heads."""
    mlp_dim: int | None = None
    """Explicit hidden width of the mlp; default 4 d_model (enoki, gpt), 3 d_model (qwen3), 8/3 d_model (llama)."""
    n_kv_heads: int | None = None
    """Key and value heads, each shared by n_heads / n_kv_heads query heads; default as many as query heads."""
    attention_gate: bool | None = None
    """Gate attention's output elementwise; default as the architecture (qwen3 does)."""
    tied_head: bool | None = None
    """One matrix for embedding and head; default as the architecture (gpt has)."""
    n_experts: int | None = None
    """Experts in place of each mlp, of any architecture with attention; default 8 (moe, qwen3next), the others none."""
    top_k: int | None = None
    """Experts that each token is sent to; default 2."""
    expert_dim: int | None = None
    """Hidden width of an expert; default mlp_dim (qwen3next: a third of it)."""
    n_shared_experts: int | None = None
    """Experts that every token passes as well; default 0 (qwen3next: 1)."""
    shared_expert_gate: bool | None = None
    """Gate the shared experts' output by sigmoid(w . x); default no (qwen3next: yes)."""
    decoder_sparse_step: int = 1
    """Every so many layers one has experts (those whose number from 1 it divides); the others have a dense mlp."""
    mlp_only_layers: tuple[int, ...] = ()
    """Layers (from 0) that have a dense mlp all the same: 0 5 11."""
    full_attention_interval: int | None = None
    """qwen3next: every so many layers one has attention, the others the gated delta rule; 4 as published, default 1."""
