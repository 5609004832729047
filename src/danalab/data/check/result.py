"""The result of a validation: plain values, the streaming count of ids behind them, and what to train on the data."""

from __future__ import annotations

import itertools
import shlex
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np

from danalab.data.dataset import Finding
from danalab.data.tokenizers.base import padded
from danalab.errors import UserError
from danalab.scaling import plan
from danalab.scaling.dimensions import resonance_dimensions
from danalab.scaling.hardware import accelerator_hours

_WIDTH = 80
_COUNT_TOKENS = 1 << 19  # they stay in cache when widened


@dataclass
class Validation:
    """The result; counts cover the readable files."""

    path: str
    layout: str
    """arrays, shards, bare, download or none."""
    file_format: str
    """Suffixes of the files."""
    num_files: int
    vocab_size: int
    errors: list[Finding] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    """Number of sequences of each readable file; of documents, for a stream."""
    sequence_length: int | None = None
    """Tokens per sequence; None for documents."""
    total_tokens: int = 0
    unique_tokens: int = 0
    avg_token_value: float = 0.0
    min_id: int | None = None
    max_id: int | None = None

    @property
    def valid(self) -> bool:
        return not self.errors

    @property
    def total_sequences(self) -> int:
        return sum(self.sequences)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        facts = asdict(self)
        sequences = facts.pop("sequences")
        per_file = sequences[0] if len(set(sequences)) == 1 else sequences
        totals = {"sequences_per_file": per_file, "total_sequences": self.total_sequences}
        return {"valid": self.valid, **totals, **facts}

    def as_text(self) -> str:
        """The table for people."""
        length = "that of each document" if self.sequence_length is None else f"{self.sequence_length:,}"
        rows = [f"Files: {self.num_files}"]
        if self.layout != "download":  # text, which has no tokens yet
            rows += [
                f"Total sequences: {self.total_sequences:,}",
                f"Sequence length: {length}",
                f"Total tokens: {self.total_tokens:,} ({self.total_tokens / 1e9:.2f}B)",
                f"Vocab size: {self.vocab_size:,}",
                f"Unique tokens: {self.unique_tokens:,}",
                f"Avg token value: {self.avg_token_value:.2f}",
            ]
        bad_files = len({finding.file for finding in self.errors})
        head = "✓ Valid: True" if self.valid else f"✗ Valid: False ({bad_files:,} bad file(s))"
        line = "=" * _WIDTH
        mark = "✓" if self.valid else " "
        return "\n".join([line, "VALIDATION RESULTS", line, head, *(f"{mark} {row}" for row in rows), line])


class IdCounts:
    """Counts of the ids in [0, vocab_size)."""

    def __init__(self, vocab_size: int):
        self.vocab_size = vocab_size
        self.counts = np.zeros(vocab_size, np.int64)
        self.low: int | None = None
        """Smallest id, including those outside of the vocabulary."""
        self.high: int | None = None

    def add(self, ids: np.ndarray) -> np.ndarray | None:
        """Count ids of any shape; returns the positions of those outside of the vocabulary, or None."""
        flat = ids.reshape(-1)
        if not len(flat):
            return None
        low, high = int(flat.min()), int(flat.max())
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)
        outside = None
        if low < 0 or high >= self.vocab_size:
            wrong = (flat < 0) | (flat >= self.vocab_size)
            outside = np.flatnonzero(wrong)
            flat = flat[~wrong]
        for start in range(0, len(flat), _COUNT_TOKENS):
            part = flat[start : start + _COUNT_TOKENS].astype(np.intp)
            counted = np.bincount(part)
            self.counts[: len(counted)] += counted
        return outside

    @property
    def unique(self) -> int:
        """Number of distinct ids."""
        return int(np.count_nonzero(self.counts))

    @property
    def mean(self) -> float:
        """Mean id; 0 without ids."""
        total = int(self.counts.sum())
        # Python's integers: counts x ids may exceed 2^63
        return sum(int(i) * int(self.counts[i]) for i in np.flatnonzero(self.counts)) / total if total else 0.0


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
        size(f"enoki --heads {heads}", f"--batch-size {batch}", heads=heads, batch_size=batch, vocab_size=vocab_size)
        for heads in _HEADS
    ]
    resonance = [
        size(
            f"resonance --size {name}", f"--batch-size {batch} --acc-steps {accumulation}",
            dims=resonance_dimensions(name, vocab_size=vocab_size), batch_size=batch, acc_steps=accumulation,
        )
        for name, (batch, accumulation) in _RESONANCE_BATCH.items()
    ]  # fmt: skip
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


def _size(result: Validation, data: str, seq_len: int, model: str, batch: str, **settings: Any) -> ModelSize | None:
    try:
        planned = plan(model.split()[0], _OPT, seq_len=seq_len, **settings)
    except UserError:
        return None  # fewer tokens than one step
    if 2 * planned.tokens_per_step > result.total_tokens:
        return None  # without the validation part, the data may not fill one batch
    hours = accelerator_hours(float(planned.flops), MFU)
    command = (
        f"danalab train --arch {model} --opt {_OPT} --data {shlex.quote(data)} "
        f"--seq-len {planned.seq_len} {batch} --vocab-size {planned.vocab_size}"
    )
    return ModelSize(
        model,
        settings.get("heads"),
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
