"""danalab's resonance model for transformers: gated banks of damped oscillators, no attention.

Loaded by `transformers` with `trust_remote_code=True`; needs only torch and transformers. Weight names are danalab's
own, so its checkpoints load unchanged. Generation keeps a state of constant size.

    gamma = e^nu, omega = pi sigmoid(theta), lambda = e^(-gamma + i omega), C = e^a sqrt(1 - e^(-2 gamma)) e^(i phi)
    y(t) = d u(t) + sum_{tau=0}^{t} Re[C lambda^tau] u(t - tau)

Shapes: B batch, L length, D model dimension, G groups, R modes of a channel.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast


class DanalabResonanceConfig(PretrainedConfig):
    """danalab's ModelConfig of a resonance model with every default filled in."""

    model_type = "danalab"
    attribute_map = {  # noqa: RUF012 - transformers reads it so
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "groups",
        "max_position_embeddings": "seq_len",
    }

    def __init__(
        self, d_model: int = 64, n_layers: int = 1, groups: int = 8, modes: int = 8, mlp_dim: int = 192,
        vocab_size: int = 64, seq_len: int = 64, norm: str = "rmsnorm", norm_eps: float = 1e-5,
        residual_scale: float = 1.0, largest_quality: float = 32.0, largest_nu: float = 4.0,
        least_damping: float = 1e-6, conv_width: int = 0, learned_positions: bool = False, **more: Any,
    ):  # fmt: skip
        self.d_model, self.n_layers, self.groups, self.modes = d_model, n_layers, groups, modes
        self.mlp_dim, self.vocab_size, self.seq_len = mlp_dim, vocab_size, seq_len
        self.norm, self.norm_eps, self.residual_scale = norm, norm_eps, residual_scale
        self.largest_quality, self.largest_nu, self.least_damping = largest_quality, largest_nu, least_damping
        self.conv_width, self.learned_positions = conv_width, learned_positions
        super().__init__(**more)


class OscillatorState:
    """The state of each layer's oscillators, the last inputs of its convolution, and the number of tokens read."""

    is_compileable = False

    def __init__(self, n_layers: int):
        self.states: list[Tensor | None] = [None] * n_layers
        self.last: list[Tensor | None] = [None] * n_layers
        self.length = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Number of tokens read, padding included."""
        return self.length

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep the states of these rows (beam search)."""
        self.states, self.last = (
            [None if kept is None else kept[beam_idx.to(kept.device)] for kept in each]
            for each in (self.states, self.last)
        )


class Norm(nn.Module):
    """RMSNorm or LayerNorm with a gain."""

    def __init__(self, config: DanalabResonanceConfig):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.d_model))
        self.eps, self.centred = config.norm_eps, config.norm == "layernorm"

    def forward(self, x: Tensor) -> Tensor:
        if self.centred:
            return F.layer_norm(x, self.weight.shape, self.weight, None, self.eps)
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class MagnitudeAndPhase(nn.Module):
    """Logarithm of the magnitude, and phase, of each mode of each channel."""

    def __init__(self, config: DanalabResonanceConfig):
        super().__init__()
        self.a = nn.Parameter(torch.zeros(config.d_model, config.modes))
        self.phi = nn.Parameter(torch.zeros(config.d_model, config.modes))


class OscBank(nn.Module):
    """The oscillators of one layer, in float32 for every dtype of the model."""

    def __init__(self, config: DanalabResonanceConfig):
        super().__init__()
        self.nu = nn.Parameter(torch.zeros(config.groups, config.modes))
        self.theta = nn.Parameter(torch.zeros(config.groups, config.modes))
        self.weight = MagnitudeAndPhase(config)
        self.d = nn.Parameter(torch.ones(config.d_model))
        self.config = config

    def filter(self) -> tuple[Tensor, Tensor, Tensor]:
        """(gamma, omega) [G, R] and C, complex [D, R]."""
        config = self.config
        omega = math.pi * torch.sigmoid(self.theta.float())
        floor = max(1 / (4 * config.seq_len), config.least_damping)
        least = (omega / (2 * config.largest_quality)).clamp(min=floor)
        gamma = torch.maximum(self.nu.float().clamp(max=config.largest_nu).exp(), least)
        beta = (-torch.expm1(-2 * gamma)).sqrt().repeat_interleave(config.d_model // config.groups, 0)
        return gamma, omega, torch.polar(self.weight.a.float().exp() * beta, self.weight.phi.float())

    def forward(self, u: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """y [B, L, D] and the state after it [B, D, R], from the state before (None: at rest)."""
        u, length = u.float(), u.shape[1]
        gamma, omega, c = self.filter()
        lags = torch.arange(length + 1, device=u.device, dtype=torch.float32)
        powers = torch.polar((-gamma.unsqueeze(-1) * lags).exp(), omega.unsqueeze(-1) * lags)  # [G, R, L + 1]
        in_groups = c.unflatten(0, (powers.shape[0], -1))
        driven = torch.einsum(
            "blgc,grl->bgcr", u.unflatten(2, (powers.shape[0], -1)).to(powers.dtype), powers[..., :-1].flip(-1)
        )
        y = self.d.float() * u
        if length == 1:
            y = y + (in_groups * driven).sum(-1).real.flatten(1).unsqueeze(1)
        else:
            kernel = (in_groups @ powers[..., :-1]).real.flatten(0, 1)
            size = 2 * length  # enough for a linear convolution, without wrap-around
            spectrum = torch.fft.rfft(u.transpose(1, 2), size) * torch.fft.rfft(kernel, size)
            y = y + torch.fft.irfft(spectrum, size)[..., :length].transpose(1, 2)
        if state is not None:
            before = state.unflatten(1, (powers.shape[0], -1))
            y = y + torch.einsum("bgcr,grl->blgc", in_groups * before, powers[..., 1:]).real.flatten(2)
            driven = driven + powers[..., -1].unsqueeze(1) * before
        return y, driven.flatten(1, 2)


class Convolution(nn.Module):
    """Causal convolution of each channel; the last tap is the present token."""

    def __init__(self, config: DanalabResonanceConfig):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(config.d_model, config.conv_width))

    def forward(self, x: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
        """y [B, L, D] and the last inputs, from those before x (None: zeros)."""
        count = self.weight.shape[1] - 1
        x = torch.cat((x.new_zeros(x.shape[0], count, x.shape[2]) if before is None else before, x), 1)
        y = F.conv1d(x.transpose(1, 2), self.weight.unsqueeze(1), groups=x.shape[2]).transpose(1, 2)
        return y, x[:, x.shape[1] - count :]


class Resonator(nn.Module):
    """out(silu(g(x)) * bank(conv(v(x)))); without modes there is no bank, without a width no convolution."""

    def __init__(self, config: DanalabResonanceConfig):
        super().__init__()
        self.v = nn.Linear(config.d_model, config.d_model, bias=False)
        self.g = nn.Linear(config.d_model, config.d_model, bias=False)
        self.conv = Convolution(config) if config.conv_width else None
        self.bank = OscBank(config) if config.modes else None
        self.out = nn.Linear(config.d_model, config.d_model, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None, state: OscillatorState | None, layer: int) -> Tensor:
        y = v = self.v(x)
        if self.bank is not None:
            # Padding does not drive the oscillators.
            v = v if mask is None else v * mask
            if self.conv is not None:
                v, last = self.conv(v, None if state is None else state.last[layer])
                if state is not None:
                    state.last[layer] = last
            y, after = self.bank(v, None if state is None else state.states[layer])
            if state is not None:
                state.states[layer] = after
        return self.out(F.silu(self.g(x)) * y.to(x.dtype))


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: DanalabResonanceConfig):
        super().__init__()
        self.gate = nn.Linear(config.d_model, config.mlp_dim, bias=False)
        self.up = nn.Linear(config.d_model, config.mlp_dim, bias=False)
        self.down = nn.Linear(config.mlp_dim, config.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Pre-norm resonator and MLP."""

    def __init__(self, config: DanalabResonanceConfig, layer: int):
        super().__init__()
        self.attention_norm, self.attention = Norm(config), Resonator(config)
        self.mlp_norm, self.mlp = Norm(config), MLP(config)
        self.layer, self.scale = layer, config.residual_scale

    def forward(self, x: Tensor, mask: Tensor | None, state: OscillatorState | None) -> Tensor:
        x = x + self.scale * self.attention(self.attention_norm(x), mask, state, self.layer)
        return x + self.scale * self.mlp(self.mlp_norm(x))


class DanalabResonanceForCausalLM(PreTrainedModel, GenerationMixin):
    """The decoder with its head."""

    config_class = DanalabResonanceConfig
    _no_split_modules = ["Block"]  # noqa: RUF012 - transformers reads it so
    _tied_weights_keys = {"output_head.weight": "token_embedding.weight"}  # noqa: RUF012
    _is_stateful = True

    def __init__(self, config: DanalabResonanceConfig):
        super().__init__(config)
        self.token_embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.position_embedding = nn.Embedding(config.seq_len, config.d_model) if config.learned_positions else None
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.n_layers))
        self.final_norm = Norm(config)
        self.output_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.token_embedding

    def get_output_embeddings(self) -> nn.Module:
        return self.output_head

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # the state is not one of keys and values

    def prepare_inputs_for_generation(  # pyright: ignore[reportIncompatibleMethodOverride] - versions differ in it
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """Only the tokens that the state has not read yet."""
        read = 0 if past_key_values is None else past_key_values.get_seq_length()
        return {
            "input_ids": input_ids[:, read:],
            "past_key_values": past_key_values,
            "attention_mask": attention_mask,
            "use_cache": more.get("use_cache", True),
        }

    def positions(self, input_ids: Tensor, attention_mask: Tensor | None, past_key_values: Any) -> Tensor:
        """Positions of the tokens [B or 1, L], not counting the padding in the mask of all tokens so far.

        Raises:
            ValueError: a mask of another length, or texts longer than the table.
        """
        read = 0 if past_key_values is None else past_key_values.get_seq_length()
        length = input_ids.shape[1]
        if attention_mask is None:
            positions = torch.arange(read, read + length, device=input_ids.device).unsqueeze(0)
        elif attention_mask.shape[1] != read + length:
            raise ValueError(f"attention_mask has {attention_mask.shape[1]} tokens, expected {read} + {length}")
        else:
            positions = (attention_mask.long().cumsum(1) - 1).clamp(min=0)[:, read:]
        if int(positions.max()) >= self.config.seq_len:
            raise ValueError(f"{int(positions.max()) + 1} tokens are more than the model's {self.config.seq_len}")
        return positions

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
            past_key_values = OscillatorState(self.config.n_layers)
        x = self.token_embedding(input_ids)
        if self.position_embedding is not None:
            x = x + self.position_embedding(self.positions(input_ids, attention_mask, past_key_values))
        mask = None
        if attention_mask is not None:
            mask = attention_mask[:, -input_ids.shape[1] :, None].to(x.dtype)
        for block in self.blocks:
            x = block(x, mask, past_key_values)
        if past_key_values is not None:
            past_key_values.length += input_ids.shape[1]
        logits = self.output_head(self.final_norm(x))
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)
