"""One pre-norm block, x <- x + c attention(norm(x)); x <- x + c mlp(norm(x)), and its activation checkpointing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from danalab.errors import UserError, nearest
from danalab.models.cache import State
from danalab.models.config import ModelConfig
from danalab.models.delta_rule.mixer import GatedDeltaNet
from danalab.models.layers.attention import Attention
from danalab.models.layers.basic import make_norm
from danalab.models.moe.router import Routing
from danalab.models.resonance.mixer import Resonator

CHECKPOINTING = ("none", "full", "every-n:K", "selective")

_aten = torch.ops.aten
# Costly to compute again, and small beside what lies between them: the products, and attention's output.
_SAVED_OPS = [
    _aten.mm.default,
    torch.ops.danalab.grouped_linear.default,
    torch.ops.danalab.gated_hidden.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
]


class Block(nn.Module):
    """Norm, attention (or what stands in its place), norm, MLP around a residual stream.

    Checkpointing is inside `forward`, so that a block may be compiled or sharded after it is set.
    """

    def __init__(self, config: ModelConfig, attention: Attention | GatedDeltaNet | Resonator, mlp: nn.Module):
        super().__init__()
        self.attention_norm = make_norm(config, config.d_model)
        self.attention: Any = attention  # each takes the state that it made
        self.mlp_norm = make_norm(config, config.d_model)
        self.mlp = mlp
        self.residual_scale = config.residual_scale
        self.checkpointing = "none"

    def forward(
        self, x_BLD: Tensor, rotary_L1P2: Tensor | None, state: State | None = None, starts_BL: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Routing]:
        """[B, L, D]; where the MLP is made of experts, also what their router's losses need.

        Returned, not kept: so it holds under compilation, sharding and checkpointing, where side effects may be lost
        or happen twice.

        Args: x [B, L, D]; rotary, state, starts: see `Attention.forward`.
        """
        if self.checkpointing == "none" or state is not None or not torch.is_grad_enabled():
            return self._compute(x_BLD, rotary_L1P2, state, starts_BL)
        settings: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
        if self.checkpointing == "selective":
            settings["context_fn"] = partial(create_selective_checkpoint_contexts, _SAVED_OPS)
        return checkpoint(self._compute, x_BLD, rotary_L1P2, None, starts_BL, **settings)

    def _compute(
        self, x: Tensor, rotary: Tensor | None, state: State | None, starts: Tensor | None
    ) -> Tensor | tuple[Tensor, Routing]:
        x = self._add(x, self.attention(self.attention_norm(x), rotary, state, starts))
        update = self.mlp(self.mlp_norm(x))
        if isinstance(update, tuple):
            update, routing = update
            return self._add(x, update), routing
        return self._add(x, update)

    def _add(self, x: Tensor, update: Tensor) -> Tensor:
        return x + update if self.residual_scale == 1.0 else x.add(update, alpha=self.residual_scale)


def checkpointing_rule(mode: str) -> Callable[[int], str]:
    """For each layer's index, how its block keeps activations: "none", "full" or "selective".

    Args:
        mode: "none"; "full" (keep only each block's input); "every-n:K" (so for blocks 0, K, 2K, ...); "selective"
            (keep products and attention outputs, compute the rest again).
    Raises:
        UserError: any other mode.
    """
    if mode in ("none", "full", "selective"):
        return lambda layer: mode
    name, _, count = mode.partition(":")
    if name == "every-n" and count.isdigit() and int(count) > 0:
        return lambda layer: "full" if layer % int(count) == 0 else "none"
    hint = nearest(mode, CHECKPOINTING)
    raise UserError(f"unknown activation checkpointing '{mode}'{hint}; known: {', '.join(CHECKPOINTING)} (K >= 1)")
