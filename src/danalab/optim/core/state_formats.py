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
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from danalab.errors import UserError, nearest

FORMATS = ("float32", "bf16+8", "8bit")

BLOCK = 256
"""Values with a common scale."""
HEADROOM = 1.25
"""A new scale, relative to the largest value: it serves for many steps, and every change of scale rounds all values."""
SHRINK = 0.5
"""Share of its scale below which the largest value gets a new scale."""
_POWER = {"exp_avg": 2, "exp_avg_sq": 4}
"""Powers of the codes; 2 for others."""
_SIGNED = ("exp_avg",)

State = dict[str, Any]


def check_format(owner: str, state_dtype: Any) -> None:
    """Refuse an unknown format."""
    if state_dtype not in FORMATS:
        raise UserError(
            f"{owner}: state_dtype is {state_dtype!r}{nearest(str(state_dtype), FORMATS)}, must be one of"
            f" {', '.join(FORMATS)}"
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


def state_tensors(name: str, p: Tensor, state_dtype: str) -> dict[str, Tensor]:
    """Key -> zeros, of the moment `name` of a parameter; DTensors for a DTensor."""

    def zeros(like: Tensor, dtype: torch.dtype) -> Tensor:
        # zeros_like, not zeros: a DTensor parameter has DTensor moments, and strides are kept.
        return torch.zeros_like(like, dtype=dtype, memory_format=torch.preserve_format)

    if state_dtype == "bf16+8":
        return {f"{name}_high": zeros(p, torch.bfloat16), f"{name}_low": zeros(p, torch.uint8)}
    if state_dtype == "8bit":
        blocks = -(-p.shape[-1] // BLOCK)
        codes = torch.int8 if name in _SIGNED else torch.uint8
        return {f"{name}_codes": zeros(p, codes), f"{name}_scale": zeros(p.detach()[..., :blocks], torch.float32)}
    return {name: zeros(p, torch.float64 if p.dtype == torch.float64 else torch.float32)}


def state_keys(name: str, state_dtype: str) -> tuple[str, ...]:
    """Keys of the tensors of `state_tensors`."""
    endings = {"bf16+8": ("_high", "_low"), "8bit": ("_codes", "_scale")}.get(state_dtype, ("",))
    return tuple(name + ending for ending in endings)


def state_shapes(name: str, p: Tensor, state_dtype: str) -> dict[str, tuple[int, ...]]:
    """Key -> shape of the tensors of `state_tensors`."""
    found = dict.fromkeys(state_keys(name, state_dtype), tuple(p.shape))
    if state_dtype == "8bit":
        found[f"{name}_scale"] = (*p.shape[:-1], -(-p.shape[-1] // BLOCK))
    return found


def decode(state: Mapping[str, Tensor], name: str) -> Tensor:
    """The moment `name` from a state of local tensors: itself where it is float32 or float64, else a new tensor."""
    if name in state:
        return state[name]
    if f"{name}_high" in state:
        high, low = state[f"{name}_high"].view(torch.int16), state[f"{name}_low"]
        return high.to(torch.int32).bitwise_left_shift_(16).add_(low.to(torch.int32), alpha=256).view(torch.float32)
    codes, scale = state[f"{name}_codes"].float(), state[f"{name}_scale"]
    values = codes.abs().div_(_levels(name)).pow_(_POWER.get(name, 2))
    if name in _SIGNED:
        values.copysign_(codes)
    return values.mul_(_spread(scale, codes.shape[-1]))


def encode(state: Mapping[str, Tensor], name: str, value: Tensor, seed: int) -> None:
    """Store the moment `name` in a state of local tensors, rounded at random."""
    if name in state:
        if state[name] is not value:
            state[name].copy_(value)
        return
    generator = torch.Generator(value.device).manual_seed(seed)
    if f"{name}_high" in state:
        high, low = split(value, torch.randint(0, 256, value.shape, generator=generator, device=value.device))
        state[f"{name}_high"].copy_(high)
        state[f"{name}_low"].copy_(low)
        return
    noise = torch.rand(value.shape, generator=generator, device=value.device)
    scale = state[f"{name}_scale"]
    scale.copy_(next_scale(_largest(value), scale))
    state[f"{name}_codes"].copy_(codes_of(value, _spread(scale, value.shape[-1]), name, noise))


def split(value: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """A float32 tensor as bfloat16 and the next 8 bits; `noise` from 0 to 255 is added to the bits that are lost."""
    bits = value.view(torch.int32)
    bits = torch.where(torch.isfinite(value), bits + noise.to(torch.int32), bits).bitwise_right_shift_(8)
    low = bits.bitwise_and(255).to(torch.uint8)
    return bits.bitwise_right_shift_(8).to(torch.int16).view(torch.bfloat16), low


def codes_of(value: Tensor, scale: Tensor, name: str, noise: Tensor) -> Tensor:
    """The code of each value: the upper one of two where `noise` in [0, 1) is below the value's place between them."""
    levels, power = _levels(name), _POWER.get(name, 2)
    share = (value.abs() / scale).nan_to_num_(0.0)  # 0 / 0
    below = share.pow(1 / power).mul_(levels).floor_().clamp_(0, levels - 1)
    low, high = (below / levels).pow_(power), ((below + 1) / levels).pow_(power)
    codes = below.add_((share - low) / (high - low) > noise)
    if name == "exp_avg_sq":
        codes = torch.where(share > 0, codes.clamp_min_(1), codes)
    return codes.copysign_(value) if name in _SIGNED else codes


def next_scale(largest: Tensor, scale: Tensor) -> Tensor:
    """The scales of blocks whose largest values are `largest`, given the scales so far."""
    fits = (largest <= scale) & (largest > SHRINK * scale)
    return torch.where(fits, scale, HEADROOM * largest)


def seed_of(t: int, index: int, place: int) -> int:
    """Seed of the noise of moment number `place` of parameter `index` in step t."""
    return (t * 0x9E3779B97F4A7C15 + (8 * index + place) * 0xBF58476D1CE4E5B9) % 2**63


def _levels(name: str) -> int:
    return 127 if name in _SIGNED else 255


def _largest(value: Tensor) -> Tensor:
    """Largest absolute value of each block [..., blocks]."""
    columns = value.shape[-1]
    blocks = -(-columns // BLOCK)
    if blocks == 1:
        return value.abs().amax(dim=-1, keepdim=True)
    padded = F.pad(value.abs(), (0, blocks * BLOCK - columns))
    return padded.unflatten(-1, (blocks, BLOCK)).amax(dim=-1)


def _spread(scale: Tensor, columns: int) -> Tensor:
    """The scale of each value: of its block."""
    return scale if scale.shape[-1] == 1 else scale.repeat_interleave(BLOCK, dim=-1)[..., :columns]
