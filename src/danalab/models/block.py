"""One pre-norm block, x <- x + c mixer(norm(x)); x <- x + c mlp(norm(x)), and its activation checkpointing."""

from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from danalab.models.cache import State
from danalab.models.config import ModelConfig
from danalab.models.delta_rule.mixer import GatedDeltaNet
from danalab.models.layers.basic import Dropout, make_norm
from danalab.models.moe.mixture import Routing, make_mlp

_aten = torch.ops.aten
# Expensive to recompute, and small compared with the rest: matrix products and the output of attention.
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
    """The block of index `layer`: norm, mixer (attention or its replacement), norm, MLP around a residual stream.

    Checkpointing is inside `forward`, so that a block may be compiled or sharded after it is set.
    """

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        self.attention_norm = make_norm(config, config.d_model)
        self.attention = make_mixer(config, layer)  # the mixer's name in checkpoints, whatever it is
        self.mlp_norm = make_norm(config, config.d_model)
        self.mlp = make_mlp(config, layer)
        self.residual_scale = config.residual_scale
        self.dropout = Dropout(config.dropout)
        self.checkpointing = "none"

    @property
    def mixer(self) -> Any:  # each kind takes the state that it made
        """Attention, the delta rule, or oscillators."""
        return self.attention

    def forward(
        self, x_BLD: Tensor, rotary_L1P2: Tensor | None, state: State | None = None, starts_BL: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Routing]:
        """[B, L, D]; with experts, also the sums that their router's losses need.

        These are returned, not stored: under compilation, sharding and checkpointing side effects may be lost or
        happen twice. For `rotary`, `state` and `starts` see `Attention.forward`.
        """
        if self.checkpointing == "none" or state is not None or not torch.is_grad_enabled():
            return self._compute(x_BLD, rotary_L1P2, state, starts_BL)
        settings: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": self.dropout.probability > 0}
        if self.checkpointing == "selective":
            settings["context_fn"] = partial(create_selective_checkpoint_contexts, _SAVED_OPS)
        return checkpoint(self._compute, x_BLD, rotary_L1P2, None, starts_BL, **settings)

    def _compute(
        self, x: Tensor, rotary: Tensor | None, state: State | None, starts: Tensor | None
    ) -> Tensor | tuple[Tensor, Routing]:
        x = self._add(x, self.mixer(self.attention_norm(x), rotary, state, starts))
        update = self.mlp(self.mlp_norm(x))
        if isinstance(update, tuple):
            update, routing = update
            return self._add(x, update), routing
        return self._add(x, update)

    def _add(self, x: Tensor, update: Tensor) -> Tensor:
        update = self.dropout(update)
        return x + update if self.residual_scale == 1.0 else x.add(update, alpha=self.residual_scale)


def make_mixer(config: ModelConfig, layer: int) -> nn.Module:
    """Attention, or what the architecture has in its place in the block of index `layer`."""
    linear = config.linear_attention
    if linear is not None and layer in linear.layers:
        return GatedDeltaNet(config)
    module, _, name = config.architecture.mixer_class.partition(":")
    return getattr(import_module(module), name)(config)
