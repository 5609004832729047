"""What to train on data that are valid: sizes of models, their time, and the commands."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from typing import Any

from danalab.data.tokenizers.base import padded
from danalab.data.validation import Validation, amount
from danalab.errors import UserError
from danalab.hardware import accelerator_hours, hours_in_words
from danalab.models.config import ModelConfig, resonance_sizes
from danalab.train.config.resolve import plan

TOKENS_PER_PARAM = 20.0
MFU = 0.4
_NOTE = f"estimates: {TOKENS_PER_PARAM:g} tokens per parameter, {MFU:.0%} of peak, one GPU"
_OPT = "adana"
_HEADS = (2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48)
_SHOWN = 3
_LONG_CONTEXT = 8192  # sequence length from which resonance models are advised
_GPUS = ("H100", "A100", "L40S")
_TOKENS_PER_STEP = 1 << 16
_FEW_TOKENS, _SHORT_CONTEXT = 100_000_000, 256  # below so many tokens, windows of a stream are short
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

    def __str__(self) -> str:
        hours = ", ".join(f"{name} {hours_in_words(value)}" for name, value in self.hours.items())
        words = f"{amount(self.parameters)} parameters, {amount(self.tokens)} tokens"
        return f"  {self.model}: {words} ({self.epochs:.2f} epochs): {hours}"


@dataclass(frozen=True)
class Advice:
    """Recommendations for valid data."""

    prepare: list[str]
    """Commands to run first."""
    sizes: list[ModelSize]
    """The largest models that see the data once at most, smallest first; if none does, the smallest of all."""

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "note": _NOTE}

    def as_text(self) -> str:
        if not self.sizes:
            return "too few tokens for a model of usual size; docs/your-own-text.md trains a small one"
        largest = self.sizes[-1]
        words = (
            "models for these data"
            if largest.epochs <= 1
            else "the smallest model sees these data more than once"
        )
        commands = [f"  {command}" for command in (*self.prepare, largest.command)]
        return "\n".join([f"{words} ({_NOTE}):", *map(str, self.sizes), "commands:", *commands])


def advise(result: Validation, *, divided: bool) -> Advice:
    """Recommendations for a valid result. `divided`: the data have train/ and val/ already."""
    data, prepare = result.path, []
    if result.layout == "arrays" and not divided:
        data = f"{result.path.rstrip('/')}-split"
        prepare = [f"danalab data split {shlex.quote(result.path)} --output-path {shlex.quote(data)}"]
    stream = 2048 if result.total_tokens >= _FEW_TOKENS else _SHORT_CONTEXT
    seq_len = result.sequence_length - 1 if result.sequence_length else stream
    shape: dict[str, Any] = {"vocab_size": padded(result.vocab_size), "seq_len": seq_len}
    sizes: list[ModelSize | None] = []
    if seq_len >= _LONG_CONTEXT:
        for name, (batch, accumulation) in _RESONANCE_BATCH.items():
            words = f"resonance --size {name}", f"--batch-size {batch} --acc-steps {accumulation}"
            model = ModelConfig("resonance", **resonance_sizes(name), **shape)
            settings = {"model": model, "batch_size": batch, "acc_steps": accumulation, "seq_len": seq_len}
            sizes.append(_size(result, data, *words, **settings))
    else:
        batch = max(1, _TOKENS_PER_STEP // seq_len)
        for heads in _HEADS:
            words = f"enoki --heads {heads}", f"--batch-size {batch}"
            sizes.append(_size(result, data, *words, heads=heads, batch_size=batch, **shape))
    possible = [size for size in sizes if size is not None]
    return Advice(prepare, [size for size in possible if size.epochs <= 1][-_SHOWN:] or possible[:1])


def _size(result: Validation, data: str, words: str, batch: str, **settings: Any) -> ModelSize | None:
    """None: the model would have fewer tokens than one step, or the data, without validation, fewer than a batch."""
    try:
        planned = plan(words.split()[0], _OPT, **settings)
    except UserError:
        return None
    tokens = planned.tokens(planned.iterations)
    if 2 * planned.tokens_per_step > result.total_tokens:
        return None
    hours = accelerator_hours(float(planned.flops(planned.iterations)), MFU)
    command = (
        f"danalab train --arch {words} --opt {_OPT} --data {shlex.quote(data)} "
        f"--seq-len {planned.seq_len} {batch} --vocab-size {planned.model.vocab_size}"
    )
    return ModelSize(
        words,
        settings.get("heads"),
        planned.model.exact_params,
        tokens,
        tokens / max(result.total_tokens, 1),
        {name: hours[name] for name in _GPUS},
        command,
    )
