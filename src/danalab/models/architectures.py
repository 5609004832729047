"""Architectures whose layers are annexes: qwen3next, with the gated delta rule, and resonance, with oscillators.

qwen3next has the active size of qwen3; resonance has named sizes (`danalab.scaling.dimensions`).
"""

from dataclasses import replace

from danalab.errors import UserError
from danalab.scaling.architectures import ARCHITECTURES, Architecture


def _no_heads(heads: int) -> int:
    raise UserError(f"--heads {heads}: resonance has none; give --size, or --model-dim and --num-layers")


_ROWS = (
    # Sources: Qwen3-Next as in the `transformers` library; arXiv 2412.06464 (gated delta rule).
    replace(
        ARCHITECTURES.get("qwen3"),
        name="qwen3next",
        aliases=("qwen3-next",),
        summary="qwen3 with 8 experts and a shared one instead of each MLP; --full-attention-interval 4: the gated "
        "delta rule instead of attention in three layers of four",
        norm="rmsnorm-1p",
        n_experts=8,
        n_shared_experts=1,
        shared_expert_gate=True,
        expert_dim=lambda mlp_dim: max(1, mlp_dim // 3),
        linear_mixer_class="danalab.models.delta_rule:GatedDeltaNet",
    ),
    Architecture(
        name="resonance",
        summary="gated banks of damped oscillators by the FFT (no attention), pre-RMSNorm, SwiGLU, tied head; --size",
        head_dim=64,
        n_layers=_no_heads,
        mlp_dim=lambda d: 64 * round(8 * d / 192) or 64,
        activation="swiglu",
        norm="rmsnorm",
        mixer_class="danalab.models.resonance.mixer:Resonator",
        # Scaled by 1/sqrt(d), a tied head would start by predicting the token it has just read, at sqrt(d) logits.
        init="karpathy-gpt2",
        qk_norm=False,
        tied_head=True,
        oscillators=True,
    ),
)
for _row in _ROWS:
    ARCHITECTURES.add(_row.name, _row, *_row.aliases)
