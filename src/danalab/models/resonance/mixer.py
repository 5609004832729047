"""The mixer of a resonance block, in place of attention: a gated bank of oscillators.

    v = W_v h,  g = W_g h;   y = W_out [ SiLU(g) * bank(v) ]

With conv_width > 0, v first passes a short causal convolution of each channel.

The bank is linear and time-invariant; the gate makes the output depend on the content (and, as a product of two
oscillations, contains their sum and difference frequencies). With the mixer "none" there is no bank, and y = v: a
control in which each token sees only itself.

Shapes: B batch, L length, D model dimension, R modes of a channel.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from danalab.models.cache import ConvState, OscillatorState
from danalab.models.config import ModelConfig
from danalab.models.layers.linear import Linear
from danalab.models.layers.short_convolution import ShortConvolution
from danalab.models.resonance.oscillators import OscBank


class Resonator(nn.Module):
    """See the module. Has the interface of `Attention`."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        d = config.d_model
        self.v = Linear(d, d)
        self.g = Linear(d, d)
        self.conv = ShortConvolution(d, config.conv_width) if config.conv_width else None
        self.bank = OscBank(d, config.n_heads, config.modes, config.seq_len) if config.modes else None
        self.out = Linear(d, d, role="residual")

    def forward(
        self,
        x_BLD: Tensor,
        rotary: Tensor | None = None,
        state: ConvState | None = None,
        starts: Tensor | None = None,
    ) -> Tensor:
        """Args:
        x: [B, L, D].
        rotary: ignored; oscillators need no positions.
        state: of earlier calls, or None.
        starts: where each token's document starts in the row, or None; not with a state.
        """
        v = self.v(x_BLD)
        if self.conv is not None:
            v = self.conv(v, None if state is None else state.past((v,), self.conv.size - 1)[0], starts)
        if self.bank is None:
            y = v
        else:
            y = self._continue(self.bank, v, state) if isinstance(state, OscillatorState) else self.bank(v, starts)
        g = self.g(x_BLD)
        return self.out(F.silu(g) * y.to(g.dtype))

    def _continue(self, bank: OscBank, v_BLD: Tensor, state: OscillatorState) -> Tensor:
        before = bank.new_state(state.batch, v_BLD) if state.memory is None else state.memory
        if v_BLD.shape[1] == 1:
            y, after = bank.step(v_BLD[:, 0], before)
            y = y.unsqueeze(1)
        else:
            y, after = bank.prefill(v_BLD, before)
        state.memory = after.detach()
        return y

    def new_state(self, batch: int, max_len: int) -> ConvState:
        """Oscillators at rest for `batch` sequences; the state has the same size for every `max_len`."""
        return ConvState(batch) if self.bank is None else OscillatorState(batch)
