"""The mixer of a resonance block, in place of attention: a gated bank of damped oscillators, one filter per channel.

    v = W_v h,  g = W_g h;   y = W_out [ SiLU(g) * bank(v) ]

    gamma = e^nu,   omega = pi sigmoid(theta),   lambda = e^(-gamma + i omega),   beta = sqrt(1 - e^(-2 gamma))
    k_d(tau) = sum_r A_dr beta_r e^(-gamma_r tau) cos(omega_r tau + phi_dr),   A = e^a,   tau = 0, 1, ...
    y_d(t)   = d_d u_d(t) + sum_{tau=0}^{t} k_d(tau) u_d(t - tau)                           (training: by the FFT)
    s_t      = lambda s_{t-1} + u_t,   y_t = d u_t + Re sum_r A beta e^(i phi) s_t           (decoding: O(D R) a token)

The bank is linear and time-invariant; the gate makes the output depend on the content (and, as a product of two
oscillations, contains their sum and difference frequencies). With the mixer "none" there is no bank, and y = v: a
control in which each token sees only itself. The poles are shared by the channels of a group; magnitudes and phases are
each channel's own. beta makes the energy of a mode's response independent of its damping.
Sources: S4D (arXiv 2206.11893), LRU (arXiv 2303.06349).

Shapes: B batch, T tokens, D channels, G groups of C = D / G channels, R modes of a channel.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from danalab.models.cache import RecurrentState
from danalab.models.config import ModelConfig
from danalab.models.layers.basic import Linear
from danalab.models.layers.precision import full_precision
from danalab.models.resonance import convolution
from danalab.models.shards import assign, local_shard

MAX_QUALITY = 32.0
"""Bound of omega / (2 gamma): with less damping, gradients grow with the lag, and float32 cannot resolve the phase
omega tau before the oscillation has decayed."""
MIN_DAMPING = 1e-6
"""|lambda| < 1 in float32."""
MAX_NU = 4.0
"""At this value nothing is left after one step; e^nu of larger ones may overflow."""
PREFILL_CHUNK = 4096


class Resonator(nn.Module):
    """The gated bank in place of attention, with the interface of `Attention`."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        d = config.d_model
        self.v = Linear(d, d)
        self.g = Linear(d, d)
        self.bank = OscBank(d, config.n_heads, config.modes, config.seq_len) if config.modes else None
        self.out = Linear(d, d, role="residual")

    def forward(
        self,
        x_BLD: Tensor,
        rotary: Tensor | None = None,
        state: RecurrentState | None = None,
        starts: Tensor | None = None,
    ) -> Tensor:
        """[B, L, D]; arguments as of `Attention.forward`, of which `rotary` is ignored."""
        v = self.v(x_BLD)
        if self.bank is None:
            y = v
        elif state is None:
            y = self.bank(v, starts)
        else:
            before = self.bank.new_state(v) if state.memory is None else state.memory
            if v.shape[1] == 1:
                y, after = self.bank.step(v[:, 0], before)
                y = y.unsqueeze(1)
            else:
                y, after = self.bank.prefill(v, before)
            state.memory = after.detach()
        g = self.g(x_BLD)
        return self.out(F.silu(g) * y.to(g.dtype))

    def new_state(self, max_len: int) -> RecurrentState:
        """An empty state, of the same size for every `max_len`."""
        return RecurrentState()


class OscBank(nn.Module):
    """The bank of oscillators: `forward` for whole sequences, `prefill` and `step` for decoding with a state.

    Args:
        dim: D. groups: G, which divides D. modes: R.
        train_len: the longest sequence in training [tokens], which sets the longest time constants.
    """

    role = "oscillator"

    def __init__(self, dim: int, groups: int, modes: int, train_len: int):
        super().__init__()
        self.groups, self.modes, self.train_len = groups, modes, train_len
        self.nu = nn.Parameter(torch.empty(groups, modes))
        self.theta = nn.Parameter(torch.empty(groups, modes))
        self.weight = ComplexWeight(dim, modes)
        self.d = nn.Parameter(torch.empty(dim))

    # ---- the filter ----

    def damping_and_frequency(self, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """(gamma, omega) [G, R] in [nepers per token] and [radians per token].

        For all parameters 0 < omega < pi, and gamma is finite, at least 1 / (4 train_len) and at least
        omega / (2 `MAX_QUALITY`).
        """
        omega = math.pi * torch.sigmoid(local_shard(self.theta).to(dtype))
        floor = max(1 / (4 * self.train_len), MIN_DAMPING)
        least = (omega / (2 * MAX_QUALITY)).clamp(min=floor)
        return torch.maximum(local_shard(self.nu).to(dtype).clamp(max=MAX_NU).exp(), least), omega

    def kernel(self, length: int, dtype: torch.dtype | None = None) -> Tensor:
        """k [D, T] at the lags 0 to `length` - 1."""
        gamma, omega = self.damping_and_frequency(dtype)
        lags = torch.arange(length, device=gamma.device, dtype=gamma.dtype)
        envelope, angle = (-gamma.unsqueeze(-1) * lags).exp(), omega.unsqueeze(-1) * lags
        c = self.amplitudes(gamma)
        return (c.real @ (envelope * angle.cos()) - c.imag @ (envelope * angle.sin())).flatten(0, 1)

    def amplitudes(self, gamma: Tensor) -> Tensor:
        """A beta e^(i phi), complex [G, C, R]."""
        beta = (-torch.expm1(-2 * gamma)).sqrt()
        return self.weight(gamma.dtype).unflatten(0, (gamma.shape[0], -1)) * beta.unsqueeze(1)

    # ---- whole sequences ----

    def forward(self, u_BTD: Tensor, starts_BT: Tensor | None = None) -> Tensor:
        """y [B, T, D], at least in float32 also under autocast: half precision is too coarse for transforms.

        `starts`: where each token's document starts in the row, [B, T]; None: a row is one document.
        """
        dtype = self._dtype(u_BTD)
        with full_precision(u_BTD):
            gamma, omega = self.damping_and_frequency(dtype)
            bank = local_shard(self.d).to(dtype), gamma, omega, self.amplitudes(gamma)
            if starts_BT is None:
                return convolution.chunked_bank_convolution(u_BTD.to(dtype), *bank)
            lengths = convolution.document_lengths(starts_BT)
            return convolution.convolve_apart(
                u_BTD.to(dtype), lengths, lambda u: convolution.chunked_bank_convolution(u, *bank)
            )

    def _dtype(self, u: Tensor) -> torch.dtype:
        return torch.promote_types(torch.promote_types(u.dtype, self.nu.dtype), torch.float32)

    # ---- decoding ----

    def new_state(self, like: Tensor) -> Tensor:
        """Oscillators at rest: zeros, complex [B, D, R], on the device of `like` and in its precision or better."""
        shape = (like.shape[0], local_shard(self.d).shape[0], self.modes)
        return torch.zeros(shape, dtype=self._dtype(like).to_complex(), device=like.device)

    def step(self, u_BD: Tensor, state_BDR: Tensor) -> tuple[Tensor, Tensor]:
        """One token: (y [B, D], the next state [B, D, R]); cost and memory are independent of the length."""
        dtype = self._dtype(u_BD)
        with full_precision(u_BD):
            gamma, omega = self.damping_and_frequency(dtype)
            poles = torch.polar((-gamma).exp(), omega).repeat_interleave(u_BD.shape[1] // gamma.shape[0], 0)
            u = u_BD.to(dtype)
            state = poles * state_BDR + u.unsqueeze(-1)
            output = (self.amplitudes(gamma).flatten(0, 1) * state).sum(-1).real
            return output + local_shard(self.d).to(dtype) * u, state

    def prefill(self, u_BTD: Tensor, state_BDR: Tensor, chunk: int = PREFILL_CHUNK) -> tuple[Tensor, Tensor]:
        """T tokens after `state`: (y [B, T, D], the next state), `chunk` tokens at a time, which bounds memory.

        y of a chunk is its own convolution plus the output of the state, Re C lambda^(t+1) S. Then
        S <- lambda^Q S + sum_{j<Q} lambda^(Q-1-j) u_j.
        """
        dtype = self._dtype(u_BTD)
        outputs = []
        with full_precision(u_BTD):
            gamma, omega = self.damping_and_frequency(dtype)
            c = self.amplitudes(gamma)
            state = state_BDR.unflatten(1, (gamma.shape[0], -1))
            for u in u_BTD.to(dtype).split(chunk, dim=1):
                length = u.shape[1]
                lags = torch.arange(length + 1, device=u.device, dtype=dtype)
                powers = torch.polar((-gamma.unsqueeze(-1) * lags).exp(), omega.unsqueeze(-1) * lags)
                from_state = torch.einsum("bgcr,grt->btgc", c * state, powers[..., 1:]).real.flatten(2)
                own = (
                    convolution.causal_convolution(u, self.kernel(length, dtype))
                    + local_shard(self.d).to(dtype) * u
                )
                outputs.append(own + from_state)
                driven = u.unflatten(2, (gamma.shape[0], -1)).to(powers.dtype)
                driven = torch.einsum("btgc,grt->bgcr", driven, powers[..., :-1].flip(-1))
                state = powers[..., -1].unsqueeze(1) * state + driven
        return torch.cat(outputs, dim=1), state.flatten(1, 2)

    # ---- the first weights ----

    def draw(self, generator: torch.Generator) -> None:
        """A constant-Q bank, in place: log-spaced time constants, each with a few cycles or less, and random phases.

        tau in [1.5, train_len / 4] with a jitter of 30%; omega = min(2 pi c / tau, 0.95 pi) with c one of
        {0.05, 0.25, 0.5, 1, 2, 4}; A = sqrt(2 / R); d = 1. For white noise of standard deviation 1
        the output of the oscillators has about 1, at any length.
        """
        shape = self.nu.shape

        def uniform(low: float, high: float, shape: tuple[int, ...]) -> Tensor:
            return torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low

        longest = max(self.train_len / 4, 2 * 1.5)
        times = torch.logspace(math.log10(1.5), math.log10(longest), self.modes, dtype=torch.float64)
        times = times * uniform(-0.3, 0.3, shape).exp()
        cycles = torch.tensor((0.05, 0.25, 0.5, 1.0, 2.0, 4.0), dtype=torch.float64)
        cycles = cycles[torch.randint(len(cycles), shape, generator=generator)]
        omega = (2 * math.pi * cycles / times).clamp(max=0.95 * math.pi)
        values = {
            self.nu: -times.log(),
            self.theta: torch.logit(omega / math.pi),
            self.weight.a: torch.full(self.weight.a.shape, 0.5 * math.log(2 / self.modes)),
            self.weight.phi: uniform(-math.pi, math.pi, tuple(self.weight.phi.shape)),
            self.d: torch.ones(self.d.shape),
        }
        with torch.no_grad():
            for parameter, value in values.items():
                assign(parameter, value)


class ComplexWeight(nn.Module):
    """A table of complex numbers w = e^a e^(i phi), by magnitude and phase, learned independently.

    With g = dL/dw as torch defines it and m = |w|: dL/dm = Re(conj(g) w / m), dL/dphi = Im(g conj(w)).
    """

    role = "oscillator"

    def __init__(self, rows: int, columns: int):
        super().__init__()
        self.a = nn.Parameter(torch.empty(rows, columns))
        """Logarithm of the magnitude."""
        self.phi = nn.Parameter(torch.empty(rows, columns))

    def forward(self, dtype: torch.dtype | None = None) -> Tensor:
        """w, complex [rows, columns], from parameters in `dtype` (default their own)."""
        return torch.polar(local_shard(self.a).to(dtype).exp(), local_shard(self.phi).to(dtype))
