"""What to train on data of this size: models at 20 tokens a parameter, hours on named GPUs, the commands. Estimates."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from typing import Any

from danalab.data.tokenizers.base import padded
from danalab.data.validation.result import Validation
from danalab.errors import UserError
from danalab.scaling import plan
from danalab.scaling.estimates import accelerator_hours

TOKENS_PER_PARAM = 20.0
MFU = 0.4
_ARCH, _OPT = "enoki", "adana"
_HEADS = (2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48)
_SHOWN = 3
_GPUS = ("H100", "A100", "L40S")
_TOKENS_PER_STEP = 1 << 16


@dataclass(frozen=True)
class Size:
    """One model for these data."""

    heads: int
    parameters: int
    tokens: int
    """That it wants, at 20 a parameter."""
    epochs: float
    """How often it would see the data."""
    hours: dict[str, float]
    """By GPU, one of each, at 40% of its peak. Estimates."""
    command: str


@dataclass(frozen=True)
class Advice:
    """What to do with valid data."""

    prepare: list[str]
    """Commands that come first."""
    sizes: list[Size]
    """Models that fit, smallest first; or the smallest there is, when none does."""
    fits: bool

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        note = f"estimates: {TOKENS_PER_PARAM:g} tokens a parameter, {MFU:.0%} of peak, one GPU"
        return {**asdict(self), "note": note}

    def as_text(self) -> str:
        """For people."""
        if not self.sizes:
            return "RECOMMENDATIONS: too few tokens for one step of any model"
        lines = [f"RECOMMENDATIONS (estimates: {TOKENS_PER_PARAM:g} tokens a parameter, {MFU:.0%} of peak, one GPU)"]
        if not self.fits:
            lines.append("No size fits these data; the smallest would see them more than once:")
        for size in self.sizes:
            hours = ", ".join(f"{name} {_duration(value)}" for name, value in size.hours.items())
            lines.append(
                f"  {_ARCH} --heads {size.heads}: {size.parameters / 1e6:,.1f}M parameters, "
                f"{size.tokens / 1e9:,.2f}B tokens ({size.epochs:.2f} epochs): {hours}"
            )
        lines += ["Commands:", *(f"  {command}" for command in [*self.prepare, self.sizes[-1].command])]
        return "\n".join(lines)


def advise(result: Validation, *, divided: bool) -> Advice:
    """Models for what `result` has found; `divided`: it has its splits already."""
    data = result.path
    prepare = []
    if result.layout == "arrays" and not divided:
        data = f"{result.path.rstrip('/')}-split"
        prepare = [f"danalab data split {shlex.quote(result.path)} --output-path {shlex.quote(data)}"]
    seq_len = result.sequence_length - 1 if result.sequence_length else 2048
    sizes = [size for heads in _HEADS if (size := _size(result, heads, seq_len, data)) is not None]
    fitting = [size for size in sizes if size.epochs <= 1][-_SHOWN:]
    return Advice(prepare, fitting or sizes[:1], bool(fitting))


def _size(result: Validation, heads: int, seq_len: int, data: str) -> Size | None:
    batch = max(1, _TOKENS_PER_STEP // seq_len)
    vocab_size = padded(result.vocab_size)
    try:
        planned = plan(_ARCH, _OPT, heads, seq_len=seq_len, batch_size=batch, vocab_size=vocab_size)
    except UserError:
        return None  # its horizon is shorter than a step
    hours = accelerator_hours(float(planned.flops), MFU)
    command = (
        f"danalab train --arch {_ARCH} --opt {_OPT} --heads {heads} --data {shlex.quote(data)} "
        f"--seq-len {seq_len} --batch-size {batch} --vocab-size {vocab_size}"
    )
    return Size(
        heads,
        planned.exact_params,
        planned.tokens,
        planned.tokens / max(result.total_tokens, 1),
        {name: hours[name] for name in _GPUS},
        command,
    )


def _duration(hours: float) -> str:
    if hours < 1:
        return f"{hours * 60:.1f} min"
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"
