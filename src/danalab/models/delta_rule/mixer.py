"""The gated delta rule in place of attention, as in Qwen3-Next, with a state of constant size.

    q, k, v = silu(conv(W_q x)), silu(conv(W_k x)), silu(conv(W_v x));    q = q / |q| / sqrt(K),  k = k / |k|
    b = sigmoid(W_b x),    g = -A softplus(W_g x + dt)                      for each value head
    y = W_out [ norm(rule(q, k, v, g, b)) * silu(W_z x) ]

The convolutions carry the order of tokens; there is no rotary embedding. Sources: arXiv 2412.06464;
the block of Qwen3-Next as in the `transformers` library.

Shapes: B batch, T tokens, D model dimension, N key heads, H value heads, K key features, V value features.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from danalab.models.cache import MatrixState
from danalab.models.config import ModelConfig
from danalab.models.delta_rule.rule import delta_step, gated_delta_rule
from danalab.models.layers.basic import Linear, RMSNorm
from danalab.models.layers.precision import full_precision
from danalab.models.layers.short_convolution import ShortConvolution
from danalab.models.parallel.shards import assign, local_shard

_MIN_SQUARE = 1e-6  # added to a key's squared length, so that the gradient at zero is finite
_TIMES = (1e-3, 1e-1)
_MAX_RATE = 16.0


class DecayGate(nn.Module):
    """g = -A softplus(a + dt) <= 0, the logarithm of each head's decay factor. A and dt are learned, A as A_log."""

    role = "decay"

    def __init__(self, heads: int):
        super().__init__()
        self.A_log = nn.Parameter(torch.empty(heads))
        self.dt_bias = nn.Parameter(torch.empty(heads))

    def forward(self, a_BTH: Tensor) -> Tensor:
        """g [B, T, H], at least in float32."""
        a = a_BTH.to(torch.promote_types(a_BTH.dtype, torch.float32))
        rate, dt = (local_shard(weight).to(a.dtype) for weight in (self.A_log, self.dt_bias))
        return -rate.exp() * F.softplus(a + dt)

    def draw(self, generator: torch.Generator) -> None:
        """In place: A uniform in (0, 16], softplus(dt) log-uniform in [0.001, 0.1]; the median time constant is about
        16 tokens."""

        def uniform(low: float, high: float) -> Tensor:
            return torch.rand(self.A_log.shape, generator=generator, dtype=torch.float64) * (high - low) + low

        times = uniform(math.log(_TIMES[0]), math.log(_TIMES[1])).exp()
        with torch.no_grad():
            assign(self.A_log, uniform(_MAX_RATE, 0.0).log())
            assign(self.dt_bias, times + (-torch.expm1(-times)).log())  # the inverse of softplus


class GatedDeltaNet(nn.Module):
    """The gated delta rule in place of attention, with the interface of `Attention`."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        shape = config.linear_attention
        assert shape is not None
        d, keys, values = config.d_model, shape.key_width, shape.value_width
        self.key_dim, self.value_dim = shape.key_dim, shape.value_dim
        self.query = Linear(d, keys)
        self.key = Linear(d, keys)
        self.value = Linear(d, values)
        self.z = Linear(d, values)
        self.write = Linear(d, shape.value_heads)
        # `forget` and `forgetting` (decay) are names in checkpoints.
        self.forget = Linear(d, shape.value_heads)
        self.query_conv = ShortConvolution(keys, shape.conv_size)
        self.key_conv = ShortConvolution(keys, shape.conv_size)
        self.value_conv = ShortConvolution(values, shape.conv_size)
        self.forgetting = DecayGate(shape.value_heads)
        self.norm = RMSNorm(shape.value_dim, config.norm_eps)
        self.out = Linear(values, d, role="residual")

    def forward(
        self,
        x_BTD: Tensor,
        rotary: Tensor | None = None,
        state: MatrixState | None = None,
        starts_BT: Tensor | None = None,
    ) -> Tensor:
        """[B, T, D]; arguments as of `Attention.forward`, of which `rotary` is ignored."""
        mapped = self.query(x_BTD), self.key(x_BTD), self.value(x_BTD)
        z, write, a = self.z(x_BTD), self.write(x_BTD), self.forget(x_BTD)
        with full_precision(x_BTD):
            past = None if state is None else state.past(mapped, self.query_conv.size - 1)
            q, k, v = self._heads(mapped, past, starts_BT)
            g, b = self.forgetting(a), torch.sigmoid(write.to(v.dtype))
            o = self._rule(q, k, v, g, b, state, starts_BT)
            # Normalised in float32 before rounding: the norm amplifies small values.
            y = self.norm(o) * F.silu(z.to(o.dtype).unflatten(-1, (-1, self.value_dim)))
        return self.out(y.flatten(-2).to(z.dtype))

    def _heads(
        self, mapped: tuple[Tensor, ...], past: tuple[Tensor, ...] | None, starts: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(q, k [B, T, N, K], v [B, T, H, V]), at least in float32."""
        filters = self.query_conv, self.key_conv, self.value_conv
        heads = []
        for at, (x, conv) in enumerate(zip(mapped, filters, strict=True)):
            y = F.silu(conv(x, None if past is None else past[at], starts))
            y = y.to(torch.promote_types(y.dtype, torch.float32))
            heads.append(y.unflatten(-1, (-1, self.value_dim if at == 2 else self.key_dim)))
        q, k, v = heads
        return _unit(q) * self.key_dim**-0.5, _unit(k), v

    def _rule(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, state: MatrixState | None, starts: Tensor | None
    ) -> Tensor:
        if state is None:
            return gated_delta_rule(q, k, v, g, b, starts_BT=starts)[0]
        before = state.memory
        if before is None:
            before = v.new_zeros(*v.shape[:1], v.shape[2], self.key_dim, self.value_dim)
        if v.shape[1] > 1:
            o, after = gated_delta_rule(q, k, v, g, b, before)
        else:
            o, after = delta_step(q[:, 0], k[:, 0], v[:, 0], g[:, 0], b[:, 0], before)
            o = o.unsqueeze(1)
        state.memory = after.detach()
        return o

    def new_state(self, batch: int, max_len: int) -> MatrixState:
        """An empty state for `batch` sequences, of the same size for every `max_len`."""
        return MatrixState(batch)


def _unit(x: Tensor) -> Tensor:
    """Normalised to length 1 (less for tiny vectors) over the last dimension."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _MIN_SQUARE)
