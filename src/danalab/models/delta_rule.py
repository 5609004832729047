"""The gated delta rule in place of attention, as in Qwen3-Next, with a state of constant size.

A matrix S decays by e^g and stores, at each key, a share b of the error of its value:

    S_t = e^(g_t) S_{t-1} + k_t (b_t (v_t - e^(g_t) S_{t-1}^T k_t))^T,      o_t = S_t^T q_t

    q, k, v = silu(conv(W_q x)), silu(conv(W_k x)), silu(conv(W_v x));    q = q / |q| / sqrt(K),  k = k / |k|
    b = sigmoid(W_b x),    g = -A softplus(W_g x + dt)                      for each value head
    y = W_out [ norm(o) * silu(W_z x) ]

The convolutions carry the order of tokens; there is no rotary embedding.

By chunks of C tokens, with G_i the sum of g up to token i of its chunk, D_ij = e^(G_i - G_j) for j <= i, else 0, and
A = (1 + tril_{<}(diag(b) (D * K K^T)))^-1 diag(b), the writes of a chunk are V' = A V - A diag(e^G) K S:

    O = diag(e^G) Q S + (D * Q K^T) V',     S <- e^(G_C) S + (diag(e^(G_C - G)) K)^T V'

Only S is passed between chunks, so that time is linear in T: `delta_scan` is this sequential part, two products per
chunk, as one operation with its gradient. The compiler does not unroll its loop, and autograd has one node for it.
Sources: S. Yang et al. 2024, arXiv 2412.06464 (gated delta rule), 2406.06484 (the chunked form); the block of
Qwen3-Next as in the `transformers` library.

Shapes: B batch, T tokens, D model dimension, N key heads, H = N R value heads, K key features, V value features,
n chunks of C.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import register_flop_formula

from danalab.models.cache import RecurrentState
from danalab.models.config import CHUNK, ModelConfig
from danalab.models.layers.basic import Linear, Norm
from danalab.models.layers.precision import full_precision, is_plain_inference
from danalab.models.shards import assign, local_shard

_MIN_SQUARE = 1e-6  # added to a key's squared length, so that the gradient at zero is finite


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
        """Draw in place: A uniform in (0, 16], softplus(dt) log-uniform in [0.001, 0.1]; the median time constant is
        about 16 tokens."""

        def uniform(low: float, high: float) -> Tensor:
            return torch.rand(self.A_log.shape, generator=generator, dtype=torch.float64) * (high - low) + low

        times = uniform(math.log(1e-3), math.log(1e-1)).exp()
        with torch.no_grad():
            assign(self.A_log, uniform(16.0, 0.0).log())
            assign(self.dt_bias, times + (-torch.expm1(-times)).log())  # the inverse of softplus


class GatedDeltaNet(nn.Module):
    """The gated delta rule in place of attention, with the interface of `Attention`."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        shape = config.linear_attention
        assert shape is not None
        d = config.d_model
        keys, values = shape.key_heads * shape.key_dim, shape.value_heads * shape.value_dim
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
        self.norm = Norm(shape.value_dim, config.norm_eps)
        self.out = Linear(values, d, role="residual")

    @property
    def head_norms(self) -> tuple[nn.Module, ...]:
        """See `Attention.head_norms`."""
        return (self.norm,)

    def forward(
        self,
        x_BTD: Tensor,
        rotary: Tensor | None = None,
        state: RecurrentState | None = None,
        starts_BT: Tensor | None = None,
    ) -> Tensor:
        """[B, T, D]; arguments as of `Attention.forward`, of which `rotary` is ignored."""
        mapped = self.query(x_BTD), self.key(x_BTD), self.value(x_BTD)
        z, write, a = self.z(x_BTD), self.write(x_BTD), self.forget(x_BTD)
        with full_precision(x_BTD):
            past = None if state is None else state.past(mapped, self.query_conv.size - 1)
            filters = self.query_conv, self.key_conv, self.value_conv
            heads = []
            for at, (each, conv) in enumerate(zip(mapped, filters, strict=True)):
                y = F.silu(conv(each, None if past is None else past[at], starts_BT))
                y = y.to(torch.promote_types(y.dtype, torch.float32))
                heads.append(y.unflatten(-1, (-1, self.value_dim if at == 2 else self.key_dim)))
            q, k, v = _unit(heads[0]) * self.key_dim**-0.5, _unit(heads[1]), heads[2]
            g, b = self.forgetting(a), torch.sigmoid(write.to(v.dtype))
            o, after = gated_delta_rule(q, k, v, g, b, state and state.memory, starts_BT)
            if state is not None:
                state.memory = after.detach()
            # Normalised in float32 before rounding: the norm amplifies small values.
            y = self.norm(o) * F.silu(z.to(o.dtype).unflatten(-1, (-1, self.value_dim)))
        return self.out(y.flatten(-2).to(z.dtype))

    def new_state(self, max_len: int) -> RecurrentState:
        """An empty state, of the same size for every `max_len`."""
        return RecurrentState()


class ShortConvolution(nn.Module):
    """A causal filter for each channel, y_t = sum_{lag < size} w_lag x_{t - lag}; weight [C, size], the lag 0 last."""

    role = "convolution"

    def __init__(self, channels: int, size: int):
        super().__init__()
        self.size = size
        self.weight = nn.Parameter(torch.empty(channels, size))

    def forward(
        self, x_BTC: Tensor, past_BPC: Tensor | None = None, starts_BT: Tensor | None = None
    ) -> Tensor:
        """[B, T, C], in the wider dtype of x and the weights.

        Args:
            past: the size - 1 vectors before x, [B, size - 1, C]; None: zeros.
            starts: where each token's document starts in the row, [B, T]; inputs before it count as zeros. None: the
                row is one document.
        """
        weight, length = local_shard(self.weight), x_BTC.shape[1]
        if past_BPC is None:
            past_BPC = x_BTC.new_zeros(x_BTC.shape[0], self.size - 1, x_BTC.shape[2])
        x = torch.cat((past_BPC, x_BTC), dim=1).to(torch.promote_types(x_BTC.dtype, weight.dtype))
        weight = weight.to(x.dtype)
        position = torch.arange(length, device=x.device)
        # Shifted copies: faster on CPUs than a grouped conv1d, and the compiler fuses them.
        y = x[:, self.size - 1 :] * weight[:, -1]
        for lag in range(1, self.size):
            first = self.size - 1 - lag
            lagged = x[:, first : first + length]
            if starts_BT is not None:
                lagged = lagged.masked_fill((position - starts_BT < lag).unsqueeze(-1), 0.0)
            y = torch.addcmul(y, lagged, weight[:, first])
        return y

    def draw(self, generator: torch.Generator) -> None:
        """Normal, in place, with variance 1 / size, which preserves the variance of white noise."""
        values = torch.empty(self.weight.shape, dtype=torch.float32)
        with torch.no_grad():
            assign(self.weight, values.normal_(0.0, self.size**-0.5, generator=generator))


def _unit(x: Tensor) -> Tensor:
    """Normalised to length 1 (less for tiny vectors) over the last dimension."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _MIN_SQUARE)


CHUNK_ON_CPU = 32
"""Tokens of a chunk; on accelerators `CHUNK`. Longer chunks need more arithmetic in larger products."""


def gated_delta_rule(
    q_BTNK: Tensor,
    k_BTNK: Tensor,
    v_BTHV: Tensor,
    g_BTH: Tensor,
    b_BTH: Tensor,
    state_BHKV: Tensor | None = None,
    starts_BT: Tensor | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """(o [B, T, H, V], the state after T tokens [B, H, K, V]), in the dtype of the arguments, by chunks.

    Args:
        q, k: [B, T, N, K]; keys of length 1 at most, otherwise the state may grow without bound.
        v: [B, T, H, V] with H = R N value heads: heads R h to R h + R - 1 share key head h.
        g: logarithm of the decay factor, [B, T, H], at most 0. b: share of the error that is stored, [B, T, H], 0 to 1.
        state: after earlier tokens, [B, H, K, V]; None: zeros.
        starts: where each token's document starts in the row, int64 [B, T]; the state is reset there. None: the row is
            one document. Not together with a state.
        chunk: C, which affects the result by rounding only; None: a fast value for the device.
    """
    batch, length, heads, value_dim = v_BTHV.shape
    key_heads, key_dim = k_BTNK.shape[2:]
    chunk = min(chunk or (CHUNK_ON_CPU if v_BTHV.device.type == "cpu" else CHUNK), length)
    chunks = -(-length // chunk)

    def by_chunk(x: Tensor, groups: int) -> Tensor:  # [B, T, groups x ., ...] -> [n, B, groups, ., C, ...]
        x = F.pad(x, (0, 0) * (x.ndim - 2) + (0, chunks * chunk - length))
        x = x.unflatten(2, (groups, -1)).unflatten(1, (chunks, chunk))
        return x.movedim((1, 2), (0, 4)).contiguous()

    q, k, v = (by_chunk(x, key_heads) for x in (q_BTNK, k_BTNK, v_BTHV))
    # A decay below the square of the rounding error is zero in effect. Without this bound one such token would make the
    # cumulative sums so large that their differences lose all digits.
    g_BTH = g_BTH.clamp(min=2 * math.log(torch.finfo(g_BTH.dtype).eps))
    total = _running_sum(by_chunk(g_BTH, key_heads))
    share = by_chunk(b_BTH, key_heads)
    between = total.unsqueeze(-1) - total.unsqueeze(-2)
    from_start, to_end = total.exp(), (total[..., -1:] - total).exp()
    ahead = torch.ones(chunk, chunk, dtype=torch.bool, device=v.device).triu(1)
    if starts_BT is not None:
        apart, begun, left = _documents(starts_BT, chunks, chunk)
        ahead = ahead | apart
        from_start, to_end = from_start.masked_fill(begun, 0.0), to_end.masked_fill(left, 0.0)
    # Masked before exp: above the diagonal exp would overflow, and infinity times 0 gives NaN gradients.
    between = between.masked_fill(ahead, -torch.inf).exp()

    system = share.unsqueeze(-1) * between * (k @ k.mT)
    one = torch.eye(chunk, dtype=system.dtype, device=system.device)
    inverse = torch.linalg.solve_triangular(system, one, upper=False, unitriangular=True)
    written = inverse * share.unsqueeze(-2)
    u = written @ v
    w = (written * from_start.unsqueeze(-2)) @ k
    before = v.new_zeros(batch, heads, key_dim, value_dim) if state_BHKV is None else state_BHKV
    u, w, kept = (x.flatten(1, 3) for x in (u, w, to_end.unsqueeze(-1) * k))
    values, states = delta_scan(u, w, kept, from_start[..., -1].flatten(1), before.flatten(0, 1))
    o = (between * (q @ k.mT)).flatten(1, 3) @ values + (from_start.unsqueeze(-1) * q).flatten(1, 3) @ states[
        :-1
    ]
    o_BTHV = o.unflatten(1, (batch, heads)).permute(1, 0, 3, 2, 4).flatten(1, 2)
    return o_BTHV[:, :length], states[-1].unflatten(0, (batch, heads))


def _running_sum(x: Tensor) -> Tensor:
    """The cumulative sum along the last dimension."""
    if not torch.are_deterministic_algorithms_enabled():
        return x.cumsum(-1)
    # torch's cumulative sum has no deterministic kernel for GPUs; float64, as products of float32 may be TensorFloat32.
    ones = torch.ones(x.shape[-1], x.shape[-1], dtype=torch.float64, device=x.device)
    return (x.double() @ ones.triu()).to(x.dtype)


def _documents(starts_BT: Tensor, chunks: int, chunk: int) -> tuple[Tensor, Tensor, Tensor]:
    """Masks of document boundaries, to be broadcast over heads: (between tokens i and j of a chunk [n, B, 1, 1, C, C],
    between the state before the chunk and token i, between token i and the state after it [n, B, 1, 1, C])."""
    beyond = chunks * chunk - starts_BT.shape[1]
    starts = torch.cat((starts_BT, starts_BT[:, -1:].expand(-1, beyond)), dim=1)
    starts = starts.unflatten(1, (chunks, chunk)).transpose(0, 1)[:, :, None, None]
    first = chunk * torch.arange(chunks, device=starts.device).reshape(-1, 1, 1, 1, 1)
    return starts.unsqueeze(-1) != starts.unsqueeze(-2), starts >= first, starts != starts[..., -1:]


def delta_scan(u: Tensor, w: Tensor, k: Tensor, decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """(v [n, M, C, V], S [n + 1, M, K, V]: the state before each chunk, and the last one).

    u: [n, M, C, V]; w, k: [n, M, C, K]; d: [n, M]; S_0: [M, K, V].
    """
    return (_compute if is_plain_inference() else scan_op)(u, w, k, decay, state)


def _compute(u: Tensor, w: Tensor, k: Tensor, decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    chunks = u.shape[0]
    v, states = torch.empty_like(u), state.new_empty(chunks + 1, *state.shape)
    states[0] = state
    for i in range(chunks):
        torch.baddbmm(u[i], w[i], states[i], alpha=-1, out=v[i])
        torch.mul(states[i], decay[i, :, None, None], out=states[i + 1])
        states[i + 1].baddbmm_(k[i].mT, v[i])
    return v, states


scan_op = torch.library.custom_op("danalab::delta_scan", _compute, mutates_args=())


@torch.library.custom_op("danalab::delta_scan_backward", mutates_args=())
def delta_scan_backward(
    grad_v: Tensor, grad_states: Tensor, w: Tensor, k: Tensor, decay: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients (of every v [n, M, C, V], of every S [n + 1, M, K, V]) including their effect on later chunks."""
    of_v, of_states = torch.empty_like(grad_v), torch.empty_like(grad_states)
    of_states[-1] = grad_states[-1]
    for i in reversed(range(grad_v.shape[0])):
        after = of_states[i + 1]
        torch.baddbmm(grad_v[i], k[i], after, out=of_v[i])
        torch.addcmul(grad_states[i], after, decay[i, :, None, None], out=of_states[i])
        of_states[i].baddbmm_(w[i].mT, of_v[i], alpha=-1)
    return of_v, of_states


scan_op.register_fake(
    lambda u, w, k, decay, state: (torch.empty_like(u), state.new_empty(u.shape[0] + 1, *state.shape))
)
delta_scan_backward.register_fake(
    lambda v, states, w, k, decay: (torch.empty_like(v), torch.empty_like(states))
)


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    _, w, k, decay, _ = inputs
    ctx.save_for_backward(w, k, decay, *output)


def _backward(ctx: Any, grad_v: Tensor, grad_states: Tensor) -> tuple[Tensor, ...]:
    w, k, decay, v, states = ctx.saved_tensors
    of_v, of_states = delta_scan_backward(grad_v.contiguous(), grad_states.contiguous(), w, k, decay)
    before, after = states[:-1], of_states[1:]
    return of_v, -(of_v @ before.mT), v @ after.mT, (after * before).sum((-2, -1)), of_states[0]


scan_op.register_autograd(_backward, setup_context=_keep)


@register_flop_formula([torch.ops.danalab.delta_scan, torch.ops.danalab.delta_scan_backward])
def _flops(u_shape: Any, other_shape: Any, *rest: Any, **kwargs: Any) -> int:
    """FLOPs for torch's counter: two products of C x K x V, forward and back alike."""
    chunks, heads, tokens, values = u_shape
    return 4 * chunks * heads * tokens * values * rest[0][-1]
