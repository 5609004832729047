"""Number formats of an optimizer's moments: float32, or fewer bytes with rounding at random.

    float32    4 bytes
    bf16+8     3 bytes: the first 24 bits of float32, a bfloat16 and 8 further bits of its mantissa
    8bit       1 byte: a code for each value, and a float32 scale for each block of 256 values of a row

A logarithmic-time average moves by delta / (delta + t) of its distance to the gradient, at t = 1e5 by 8e-5: rounded to
nearest, bfloat16 and 8-bit numbers would never change again. Rounded up or down at random, with the probabilities that
make the mean exact, they follow. The noise depends on the step count and the parameter's place only.

Codes are dense near zero: m = scale sign(c) (|c| / 127)^2, v = scale (c / 255)^4, tau = scale (c / 255)^2. A second
moment that is not zero gets a code of at least 1, so that its root is not less than 1 / 255^2 of the largest of its
block. Parameters of less than two dimensions keep float32.

With either format of fewer bytes, a bfloat16 parameter has 8 further bits of its mantissa in the state, too (`REST`).

`backends/kernels_formats.h` computes the same bits, but for one code in a million: roots are rounded differently there.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from danalab.errors import UserError, nearest

FORMATS = ("float32", "bf16+8", "8bit")

REST = "param_low"
"""Key of the further bits of a parameter."""

OF_ROWS = {"row_moment": 1, "row_moment_of_stack": 2}
"""Moments with one float32 value for each row -> leading dimensions of the parameter that they have; the rest is 1."""

BLOCK = 256
"""Values with a common scale."""
HEADROOM = 1.25
"""A new scale, relative to the largest value: it serves for many steps, and every change of scale rounds all values."""
SHRINK = 0.5
"""Share of its scale below which the largest value gets a new scale."""
_SIGNED = ("exp_avg",)
_FOURTH_POWER = ("exp_avg_sq",)  # moments whose codes are roots of the fourth order; those of others are square roots
_NOISE_BITS = {"exp_avg": 16, "exp_avg_sq": 0}
"""First of the 16 bits of an element's noise that round a moment; 8 for others."""
_SMALLEST = torch.finfo(torch.float32).tiny

State = dict[str, Any]


def check_format(owner: str, state_dtype: Any) -> None:
    """Refuse an unknown format."""
    if state_dtype not in FORMATS:
        raise UserError(
            f"{owner}: state_dtype is {state_dtype!r}{nearest(str(state_dtype), FORMATS)}; known: {', '.join(FORMATS)}"
        )


def format_of(group: Mapping[str, Any], p: Tensor) -> str:
    """The format of the moments of a parameter of the group."""
    state_dtype = group.get("state_dtype", "float32")
    return "float32" if state_dtype == "8bit" and p.ndim < 2 else state_dtype


def require_format(owner: str, name: str, p: Tensor, state_dtype: str) -> None:
    """Refuse a parameter whose moments cannot have the format."""
    if state_dtype != "float32" and p.dtype == torch.float64:
        raise UserError(f"{owner}: state_dtype {state_dtype} is for float32 and 16-bit parameters, {name} is float64")
    last_is_cut = any(getattr(place, "dim", None) == p.ndim - 1 for place in getattr(p, "placements", ()))
    if state_dtype == "8bit" and p.ndim > 1 and last_is_cut:
        raise UserError(
            f"{owner}: state_dtype 8bit: tensor parallelism cuts the rows of {name}, and with them the blocks that have"
            " a scale; use bf16+8"
        )


def stored_tensors(moments: Sequence[str], p: Tensor, state_dtype: str) -> dict[str, Tensor]:
    """Key -> zeros, of all that is stored for a parameter beside its step count; DTensors for a DTensor."""

    def zeros(like: Tensor, dtype: torch.dtype) -> Tensor:
        # zeros_like, not zeros: a DTensor parameter has DTensor moments, and strides are kept.
        return torch.zeros_like(like, dtype=dtype, memory_format=torch.preserve_format)

    tensors: dict[str, Tensor] = {}
    for name in moments:
        if name in OF_ROWS:
            tensors[name] = _zero_rows(p, OF_ROWS[name])
        elif state_dtype == "bf16+8":
            tensors |= {f"{name}_high": zeros(p, torch.bfloat16), f"{name}_low": zeros(p, torch.uint8)}
        elif state_dtype == "8bit":
            blocks = -(-p.shape[-1] // BLOCK)
            codes = torch.int8 if name in _SIGNED else torch.uint8
            scales = zeros(p.detach()[..., :blocks], torch.float32)
            tensors |= {f"{name}_codes": zeros(p, codes), f"{name}_scale": scales}
        else:
            tensors[name] = zeros(p, torch.float64 if p.dtype == torch.float64 else torch.float32)
    if has_rest(p, state_dtype):
        tensors[REST] = zeros(p, torch.uint8)
    return tensors


def _row_shape(shape: Sequence[int], dims: int) -> tuple[int, ...]:
    return (*shape[:dims], *(1,) * (len(shape) - dims))


def _zero_rows(p: Any, dims: int) -> Tensor:
    dtype, mesh = torch.float64 if p.dtype == torch.float64 else torch.float32, getattr(p, "device_mesh", None)
    own = p.detach() if mesh is None else p.detach().to_local()
    zeros = own.new_zeros(_row_shape(own.shape, dims), dtype=dtype)
    if mesh is None:
        return zeros
    from torch.distributed.tensor import DTensor, Replicate  # not at the top: it takes long to import

    whole = torch.empty(_row_shape(p.shape, dims), device="meta")
    placements = [Replicate() if getattr(each, "dim", 0) >= dims else each for each in p.placements]
    return DTensor.from_local(zeros, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride())


def stored_shapes(moments: Sequence[str], p: Tensor, state_dtype: str) -> dict[str, tuple[int, ...]]:
    """Key -> shape of `stored_tensors`; parts of a moment are neighbours."""
    shape = tuple(p.shape)
    endings: dict[str, tuple[int, ...]] = {"": shape}
    if state_dtype == "bf16+8":
        endings = {"_high": shape, "_low": shape}
    elif state_dtype == "8bit":
        endings = {"_codes": shape, "_scale": (*shape[:-1], -(-shape[-1] // BLOCK))}
    shapes = {name + ending: size for name in moments if name not in OF_ROWS for ending, size in endings.items()}
    shapes |= {name: _row_shape(shape, dims) for name, dims in OF_ROWS.items() if name in moments}
    return {**shapes, REST: shape} if has_rest(p, state_dtype) else shapes


def has_rest(p: Tensor, state_dtype: str) -> bool:
    """Whether the state holds further bits of the parameter."""
    return state_dtype != "float32" and p.dtype == torch.bfloat16


def decode(state: Mapping[str, Tensor], name: str) -> Tensor:
    """The moment `name` from a state of local tensors: itself where it is float32 or float64, else a new tensor."""
    if name in state:
        return state[name]
    if f"{name}_high" in state:
        return join(state[f"{name}_high"], state[f"{name}_low"])
    codes, scale = state[f"{name}_codes"].float(), state[f"{name}_scale"]
    values = codes.mul_(1 / _levels(name))
    values = values.mul_(values.abs())
    if name in _FOURTH_POWER:
        values.mul_(values)
    return values.mul_(_spread(scale, codes.shape[-1]))


def encode(state: Mapping[str, Tensor], name: str, value: Tensor, noise: Tensor) -> None:
    """Store the moment `name` in a state of local tensors, rounded at random by 32-bit noise (`element_noise`)."""
    bits = noise.bitwise_right_shift(_NOISE_BITS.get(name, 8)).bitwise_and_(0xFFFF)
    if name in state:
        if state[name] is not value:
            state[name].copy_(value)
    elif f"{name}_high" in state:
        high, low = split(value, bits.bitwise_right_shift_(8))
        state[f"{name}_high"].copy_(high)
        state[f"{name}_low"].copy_(low)
    else:
        scale = state[f"{name}_scale"]
        scale.copy_(next_scale(_largest(value), scale))
        state[f"{name}_codes"].copy_(codes_of(value, _spread(scale, value.shape[-1]), name, bits))


def join(high: Tensor, low: Tensor) -> Tensor:
    """float32 from a bfloat16 and the next 8 bits."""
    bits = high.view(torch.int16).to(torch.int32).bitwise_left_shift_(16)
    return bits.add_(low.to(torch.int32), alpha=256).view(torch.float32)


def split(value: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """A float32 tensor as bfloat16 and the next 8 bits; `noise` from 0 to 255 is added to the bits that are lost."""
    bits = value.view(torch.int32)
    bits = torch.where(torch.isfinite(value), bits + noise.to(torch.int32), bits).bitwise_right_shift_(8)
    low = bits.bitwise_and(255).to(torch.uint8)
    return bits.bitwise_right_shift_(8).to(torch.int16).view(torch.bfloat16), low


def codes_of(value: Tensor, scale: Tensor, name: str, noise: Tensor) -> Tensor:
    """The code of each value: the upper of two where the noise (0 to 65535) is below the value's place between them."""
    levels, fourth = _levels(name), name in _FOURTH_POWER
    # A scale below the normal numbers has no inverse.
    share = (value.abs() * torch.where(scale >= _SMALLEST, scale.reciprocal(), 0.0)).nan_to_num_(0.0)
    powered = share * float(levels ** (4 if fourth else 2))
    square = powered.sqrt() if fourth else powered  # of the code
    below = square.sqrt().clamp_(max=levels - 1).floor_()
    # (square - below^2) / (2 below + 1) or, of fourth powers, (square^2 - below^4) / ((below + 1)^4 - below^4)
    excess, gap = square - below * below, 2 * below + 1
    if fourth:
        excess, gap = excess * (square + below * below), gap * (2 * below * below + 2 * below + 1)
    codes = below.add_(excess > (noise + 0.5) * 2.0**-16 * gap)
    if fourth:
        codes = torch.where(share > 0, codes.clamp_min(1), codes)
    return codes.copysign_(value) if name in _SIGNED else codes


def next_scale(largest: Tensor, scale: Tensor) -> Tensor:
    """The scales of blocks whose largest values are `largest`, given the scales so far."""
    fits = (largest <= scale) & (largest > SHRINK * scale)
    return torch.where(fits, scale, HEADROOM * largest)


def _levels(name: str) -> int:
    return 127 if name in _SIGNED else 255


def _largest(value: Tensor) -> Tensor:
    columns = value.shape[-1]
    blocks = -(-columns // BLOCK)
    if blocks == 1:
        return value.abs().amax(dim=-1, keepdim=True)
    padded = F.pad(value.abs(), (0, blocks * BLOCK - columns))
    return padded.unflatten(-1, (blocks, BLOCK)).amax(dim=-1)


def _spread(scale: Tensor, columns: int) -> Tensor:
    """The scale of each value: of its block."""
    return scale if scale.shape[-1] == 1 else scale.repeat_interleave(BLOCK, dim=-1)[..., :columns]
