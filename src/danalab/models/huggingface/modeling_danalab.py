"""danalab's rotary decoders (enoki; qwen3 and llama with all options, without experts) for transformers.

Loaded by trust_remote_code. Exports contain a copy of this file, so it needs only torch and transformers, not
danalab. Weights have danalab's own names and layouts. Shapes: B batch, L new positions, S all positions, D
model, N heads, H head dim.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DynamicCache, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

DEFAULTS: dict[str, Any] = {
    "d_model": 64,
    "n_layers": 1,
    "n_heads": 1,
    "n_kv_heads": 1,
    "head_dim": 64,
    "mlp_dim": 256,
    "vocab_size": 64,
    "seq_len": 64,
    "norm": "layernorm",
    "norm_eps": 1e-5,
    "attention_gate": False,
    "qk_norm": True,
    "swiglu": False,
    "rope_base": 10000.0,
    "residual_scale": 1.0,
}


class DanalabConfig(PretrainedConfig):
    """danalab's ModelConfig with every default filled in."""

    model_type = "danalab"
    attribute_map = {  # noqa: RUF012 - transformers reads it so
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "num_key_value_heads": "n_kv_heads",
        "max_position_embeddings": "seq_len",
    }

    def __init__(self, **settings: Any):
        for name, default in DEFAULTS.items():
            setattr(self, name, settings.pop(name, default))
        super().__init__(**settings)


class Norm(nn.Module):
    """LayerNorm or RMSNorm with a gain."""

    def __init__(self, config: DanalabConfig, dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps, self.centred = config.norm_eps, config.norm == "layernorm"

    def forward(self, x: Tensor) -> Tensor:
        if self.centred:
            return F.layer_norm(x, self.weight.shape, self.weight, None, self.eps)
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def rotate(x_BNLH: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (2j, 2j + 1) of features; cos and sin are float32 [B, 1, L, H / 2]."""
    even, odd = x_BNLH.float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1)
    return turned.flatten(-2).to(x_BNLH.dtype)


class Attention(nn.Module):
    """Causal attention of one block."""

    def __init__(self, config: DanalabConfig, layer: int):
        super().__init__()
        queries, keys = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
        self.layer, self.head_dim, self.grouped = layer, config.head_dim, queries != keys
        self.q = nn.Linear(config.d_model, queries, bias=False)
        self.k = nn.Linear(config.d_model, keys, bias=False)
        self.v = nn.Linear(config.d_model, keys, bias=False)
        self.gate = nn.Linear(config.d_model, queries, bias=False) if config.attention_gate else None
        self.out = nn.Linear(queries, config.d_model, bias=False)
        self.q_norm = Norm(config, config.head_dim) if config.qk_norm else nn.Identity()
        self.k_norm = Norm(config, config.head_dim) if config.qk_norm else nn.Identity()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, cache: Any) -> Tensor:
        q, k, v = (each(x).unflatten(-1, (-1, self.head_dim)) for each in (self.q, self.k, self.v))
        q, k, v = self.q_norm(q).transpose(1, 2), self.k_norm(k).transpose(1, 2), v.transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if cache is not None:
            k, v = cache.update(k, v, self.layer)
        y = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=self.grouped).transpose(1, 2).flatten(-2)
        return self.out(y if self.gate is None else y * torch.sigmoid(self.gate(x)))


class MLP(nn.Module):
    """GELU or SwiGLU."""

    def __init__(self, config: DanalabConfig):
        super().__init__()
        self.up = nn.Linear(config.d_model, config.mlp_dim, bias=False)
        self.gate = nn.Linear(config.d_model, config.mlp_dim, bias=False) if config.swiglu else None
        self.down = nn.Linear(config.mlp_dim, config.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)) if self.gate is None else F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, config: DanalabConfig, layer: int):
        super().__init__()
        self.attention_norm, self.attention = Norm(config, config.d_model), Attention(config, layer)
        self.mlp_norm = Norm(config, config.d_model)
        self.mlp = MLP(config)
        self.scale = config.residual_scale

    def forward(self, x: Tensor, *rest: Any) -> Tensor:
        x = x + self.scale * self.attention(self.attention_norm(x), *rest)
        return x + self.scale * self.mlp(self.mlp_norm(x))


class DanalabForCausalLM(PreTrainedModel, GenerationMixin):
    """The decoder with its head."""

    config_class = DanalabConfig
    _no_split_modules = ["Block"]  # noqa: RUF012 - transformers reads it so
    _tied_weights_keys = {"output_head.weight": "token_embedding.weight"}  # noqa: RUF012

    def __init__(self, config: DanalabConfig):
        super().__init__(config)
        self.token_embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.n_layers))
        self.final_norm = Norm(config, config.d_model)
        self.output_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.token_embedding

    def get_output_embeddings(self) -> nn.Module:
        return self.output_head

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        **unused: Any,
    ) -> CausalLMOutputWithPast:
        """Logits [B, L, V] of `input_ids` [B, L], continuing `past_key_values`; with labels also a loss."""
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache()
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        batch, length = input_ids.shape
        if attention_mask is None:
            attention_mask = input_ids.new_ones(batch, past + length)
        # Left padding shifts the first position; each query sees the tokens up to itself that are not padding.
        positions = (attention_mask.cumsum(1) - 1).clamp(min=0)[:, past:]
        ahead = torch.ones(length, past + length, dtype=torch.bool, device=input_ids.device).tril(past)
        mask = ahead & (attention_mask[:, None, None] > 0)
        mask = mask | torch.eye(length, past + length, dtype=torch.bool, device=input_ids.device).roll(
            past, 1
        )
        dim = self.config.head_dim
        exponents = torch.arange(0, dim, 2, dtype=torch.float64, device=input_ids.device) / dim
        angles = positions[:, None, :, None] * self.config.rope_base**-exponents
        x, cos, sin = self.token_embedding(input_ids), angles.cos().float(), angles.sin().float()
        for block in self.blocks:
            x = block(x, cos, sin, mask, past_key_values)
        logits = self.output_head(self.final_norm(x))
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)
