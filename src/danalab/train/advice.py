"""What to train on data that are valid: sizes of models, their time, and the commands."""

from __future__ import annotations

import shlex
from typing import Any

from danalab.data.tokenizers.base import padded
from danalab.data.validation import Validation, amount
from danalab.errors import UserError
from danalab.hardware import accelerator_hours, hours_in_words
from danalab.train.config.flags import flag
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
_RESONANCE_BATCH = {
    name: {"batch_size": batch, "acc_steps": 32 // batch}
    for name, batch in (("small", 4), ("medium", 4), ("large", 2), ("xlarge", 1))
}
"""A starting point for 32k tokens per sequence."""


def advise(result: Validation, *, divided: bool) -> dict[str, Any]:
    """Recommendations for a valid result, as --json has them. `divided`: the data have train/ and val/ already.

    "prepare": commands to run first. "sizes": the largest models that see the data once at most, smallest first; if
    none does, the smallest of all; hours are those on one GPU of each kind.
    """
    data, prepare = result.path, []
    if result.layout == "arrays" and not divided:
        data = f"{result.path.rstrip('/')}-split"
        prepare = [f"danalab data split {shlex.quote(result.path)} --output-path {shlex.quote(data)}"]
    stream = 2048 if result.total_tokens >= _FEW_TOKENS else _SHORT_CONTEXT
    seq_len = result.sequence_length - 1 if result.sequence_length else stream
    batch: dict[str, Any] = {"batch_size": max(1, _TOKENS_PER_STEP // seq_len)}
    choices: list[tuple[str, dict[str, Any], dict[str, Any]]]
    choices = [("enoki", {"heads": heads}, batch) for heads in _HEADS]
    if seq_len >= _LONG_CONTEXT:
        choices = [("resonance", {"size": name}, batch) for name, batch in _RESONANCE_BATCH.items()]
    sizes = []
    for arch, size, batch in choices:
        vocab_size = padded(result.vocab_size)
        try:
            planned = plan(arch, _OPT, vocab_size=vocab_size, seq_len=seq_len, **size, **batch)
        except UserError:  # fewer tokens than one step
            continue
        tokens = planned.tokens(planned.iterations)
        hours = accelerator_hours(float(planned.flops(planned.iterations)), MFU)
        model = f"{arch} {_words(size)}"
        command = f"danalab train --arch {model} --opt {_OPT} --data {shlex.quote(data)} --seq-len {seq_len}"
        if 2 * planned.tokens_per_step <= result.total_tokens:  # without validation, a batch is left
            sizes.append(
                {
                    "model": model,
                    "parameters": planned.model.exact_params,
                    "tokens": tokens,
                    "epochs": tokens / result.total_tokens,
                    "hours": {name: hours[name] for name in _GPUS},
                    "command": f"{command} {_words(batch)} --vocab-size {vocab_size}",
                }
            )
    once = [size for size in sizes if size["epochs"] <= 1]
    return {"prepare": prepare, "sizes": once[-_SHOWN:] or sizes[:1], "note": _NOTE}


def _words(settings: dict[str, Any]) -> str:
    return " ".join(f"{flag(name)} {value}" for name, value in settings.items())


def advice_text(advice: dict[str, Any]) -> str:
    """What `advise` found, for people."""
    sizes = advice["sizes"]
    if not sizes:
        return "too few tokens for a model of usual size; docs/your-own-text.md trains a small one"
    words = "the smallest model sees these data more than once"
    if sizes[-1]["epochs"] <= 1:
        words = "models for these data"
    lines = [f"{words} ({_NOTE}):"]
    for size in sizes:
        hours = ", ".join(f"{name} {hours_in_words(value)}" for name, value in size["hours"].items())
        counts = f"{amount(size['parameters'])} parameters, {amount(size['tokens'])} tokens"
        lines.append(f"  {size['model']}: {counts} ({size['epochs']:.2f} epochs): {hours}")
    commands = [*advice["prepare"], sizes[-1]["command"]]
    return "\n".join([*lines, "commands:", *(f"  {command}" for command in commands)])
