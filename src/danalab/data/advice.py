"""What to train on data that are valid: sizes of models, their time, and the commands."""

from __future__ import annotations

import itertools
import shlex
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from danalab.data.layout import Validation
from danalab.data.tokenizers.base import padded
from danalab.errors import UserError
from danalab.hardware import accelerator_hours
from danalab.models.config import ModelConfig, resonance_sizes
from danalab.scaling import plan

TOKENS_PER_PARAM = 20.0
MFU = 0.4
_NOTE = f"estimates: {TOKENS_PER_PARAM:g} tokens per parameter, {MFU:.0%} of peak, one GPU"
_OPT = "adana"
_HEADS = (2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48)
_SHOWN = 3
_LONG_CONTEXT = 8192  # sequence length from which the command trains a resonance model
_GPUS = ("H100", "A100", "L40S")
_TOKENS_PER_STEP = 1 << 16
_RESONANCE_BATCH = {"small": (4, 8), "medium": (4, 8), "large": (2, 16), "xlarge": (1, 32)}
"""Size -> (micro-batch, accumulation steps): a starting point for 32k tokens per sequence."""


@dataclass(frozen=True)
class ModelSize:
    """One model for these data."""

    model: str
    """Its flags."""
    heads: int | None
    parameters: int
    tokens: int
    """20 per parameter."""
    epochs: float
    """Passes over the data."""
    hours: dict[str, float]
    """Estimated hours on one GPU of each kind, at 40% of its peak."""
    command: str


@dataclass(frozen=True)
class Advice:
    """Recommendations for valid data."""

    prepare: list[str]
    """Commands to run first."""
    sizes: list[ModelSize]
    """Models that fit, smallest first, resonance before enoki; if none does, the smallest one."""
    fits: bool
    smallest_resonance: ModelSize | None = None
    """The smallest one, for arrays (the data of long contexts) where `sizes` has no resonance model."""
    recommended: ModelSize | None = None
    """The model of the printed command: the largest of `sizes`; for long contexts, a resonance model."""

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "note": _NOTE}

    def as_text(self) -> str:
        if not self.sizes:
            return "RECOMMENDATIONS: too few tokens for one step of any model"
        lines = [f"RECOMMENDATIONS ({_NOTE})"]
        if not self.fits:
            lines.append("No size fits these data; the smallest would see them more than once:")
        lines += map(_line, self.sizes)
        commands = [*self.prepare, (self.recommended or self.sizes[-1]).command]
        if self.smallest_resonance is not None:
            lines += [
                "For long contexts: the smallest named resonance model would see these data more than once "
                "(--model-dim and --num-layers make smaller ones):",
                _line(self.smallest_resonance),
            ]
            if self.smallest_resonance is not self.recommended:
                commands.append(f"{self.smallest_resonance.command}    # or this")
        lines += ["Commands:", *(f"  {command}" for command in commands)]
        return "\n".join(lines)


def _line(size: ModelSize) -> str:
    hours = ", ".join(f"{name} {_duration(value)}" for name, value in size.hours.items())
    return (
        f"  {size.model}: {size.parameters / 1e6:,.1f}M parameters, "
        f"{size.tokens / 1e9:,.2f}B tokens ({size.epochs:.2f} epochs): {hours}"
    )


def advise(result: Validation, *, divided: bool) -> Advice:
    """Recommendations for a valid result. `divided`: the data have train/ and val/ already."""
    data = result.path
    prepare = []
    if result.layout == "arrays" and not divided:
        data = f"{result.path.rstrip('/')}-split"
        prepare = [f"danalab data split {shlex.quote(result.path)} --output-path {shlex.quote(data)}"]
    seq_len = result.sequence_length - 1 if result.sequence_length else 2048
    vocab_size, batch = padded(result.vocab_size), max(1, _TOKENS_PER_STEP // seq_len)
    size = partial(_size, result, data, seq_len)
    enoki = [
        size(
            f"enoki --heads {heads}",
            f"--batch-size {batch}",
            heads=heads,
            batch_size=batch,
            vocab_size=vocab_size,
        )
        for heads in _HEADS
    ]
    resonance = [
        size(
            f"resonance --size {name}",
            f"--batch-size {batch} --acc-steps {accumulation}",
            model=ModelConfig(
                arch="resonance", **resonance_sizes(name), vocab_size=vocab_size, seq_len=seq_len
            ),
            batch_size=batch,
            acc_steps=accumulation,
        )
        for name, (batch, accumulation) in _RESONANCE_BATCH.items()
    ]
    families = [[each for each in family if each is not None] for family in (resonance, enoki)]
    fitting = [each for family in families for each in [s for s in family if s.epochs <= 1][-_SHOWN:]]
    shown = fitting or sorted(itertools.chain(*families), key=lambda each: each.tokens)[:1]
    least = next(iter(families[0]), None)
    if result.layout != "arrays" or any(each in shown for each in families[0]):
        least = None
    recommended = shown[-1] if shown else None
    if result.layout == "arrays" and seq_len >= _LONG_CONTEXT:
        recommended = next((each for each in shown[::-1] if each in families[0]), least) or recommended
    return Advice(prepare, shown, bool(fitting), least, recommended)


def _size(
    result: Validation, data: str, seq_len: int, words: str, batch: str, **settings: Any
) -> ModelSize | None:
    try:
        planned = plan(words.split()[0], _OPT, seq_len=seq_len, **settings)
    except UserError:
        return None  # fewer tokens than one step
    if 2 * planned.tokens_per_step > result.total_tokens:
        return None  # without the validation part, the data may not fill one batch
    hours = accelerator_hours(float(planned.flops), MFU)
    command = (
        f"danalab train --arch {words} --opt {_OPT} --data {shlex.quote(data)} "
        f"--seq-len {planned.seq_len} {batch} --vocab-size {planned.model.vocab_size}"
    )
    return ModelSize(
        words,
        settings.get("heads"),
        planned.model.exact_params,
        planned.tokens,
        planned.tokens / max(result.total_tokens, 1),
        {name: hours[name] for name in _GPUS},
        command,
    )


def _duration(hours: float) -> str:
    if hours < 1:
        return f"{hours * 60:.1f} min"
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"
