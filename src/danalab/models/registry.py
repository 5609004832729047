"""The architectures by name, without torch: the class that builds one is imported when it is asked for.

A new architecture is one file with a subclass of `Decoder`, one entry here, and one in `danalab.scaling.architectures`,
which says what it is made of.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from danalab.registry import Registry
from danalab.scaling.architectures import STRUCTURES, Structure

if TYPE_CHECKING:
    from danalab.models.decoder import Decoder


@dataclass(frozen=True)
class Architecture:
    """What is known of an architecture before it is built."""

    name: str
    summary: str
    """One line for people."""
    home: str
    """Where its class lives: `module:Class`."""
    norm: str
    """Norm that it uses when the configuration names none: "layernorm" or "rmsnorm"."""

    init: str = "scaled-gpt"
    """Initialisation where nobody says otherwise."""

    @property
    def structure(self) -> Structure:
        """What it is made of; where the configuration does not say otherwise, the model is built so."""
        return STRUCTURES.get(self.name)

    def load(self) -> type[Decoder]:
        """The class; imports torch."""
        module, _, name = self.home.partition(":")
        return getattr(import_module(module), name)


MODELS: Registry[Architecture] = Registry("architecture")


def _add(architecture: Architecture, *aliases: str) -> None:
    MODELS.add(architecture.name, architecture, *aliases)


_add(
    Architecture(
        name="enoki",
        summary="GPT-3-like: rotary, QK-LayerNorm, pre-LayerNorm, GELU, untied head; head_dim 64",
        home="danalab.models.enoki:Enoki",
        norm="layernorm",
    ),
    "diloco",
)
_add(
    Architecture(
        name="qwen3",
        summary="rotary, QK-RMSNorm, pre-RMSNorm, SwiGLU, gated attention, untied head; head_dim 128",
        home="danalab.models.qwen3:Qwen3",
        norm="rmsnorm",
    )
)
_add(
    Architecture(
        name="qwen3next",
        summary="qwen3 with 8 experts and a shared one in place of each mlp; --full-attention-interval 4: the gated "
        "delta rule in place of attention in three layers of four",
        home="danalab.models.qwen3next:Qwen3Next",
        norm="rmsnorm-1p",
    ),
    "qwen3-next",
)
_add(
    Architecture(
        name="gpt",
        summary="GPT-2: learned positions, pre-LayerNorm, GELU (tanh), biases, head tied to the embedding; head_dim 64",
        home="danalab.models.gpt:GPT",
        norm="layernorm",
    ),
    "base",
    "gpt2",
)
_add(
    Architecture(
        name="llama",
        summary="rotary, pre-RMSNorm, SwiGLU, grouped queries, untied head; head_dim 128",
        home="danalab.models.llama:Llama",
        norm="rmsnorm",
    )
)
_add(
    Architecture(
        name="moe",
        summary="enoki with experts in place of each mlp: 8, of which a token sees 2; the others take --n-experts, too",
        home="danalab.models.moe.model:Moe",
        norm="layernorm",
    )
)
_add(
    Architecture(
        name="resonance",
        summary="gated banks of damped oscillators by the FFT (no attention), pre-RMSNorm, SwiGLU, tied head; --size",
        home="danalab.models.resonance.model:Resonance",
        norm="rmsnorm",
        # Scaled by 1/sqrt(d), a tied head begins by predicting the token that it has just read, at sqrt(d) logits.
        init="karpathy-gpt2",
    )
)
