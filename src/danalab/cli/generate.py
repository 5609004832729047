"""Sample text from a run, or from a model in Hugging Face format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from danalab.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Flags:
    run: Path | None = None
    """Run folder; an unfinished run will do."""
    from_: Annotated[Path | None, arg(name="from")] = None
    """Folder in Hugging Face format, in place of --run: what danalab export wrote, or another that import takes."""
    prompt: str = ""
    """Text to continue; empty: start a new document."""
    step: int | None = None
    """Checkpoint [steps]; default the newest that verifies."""
    tokenizer: str | None = None
    """Name (gpt2, bytes) or path of the tokenizer that made the run's data; default the one that the folder keeps."""
    max_tokens: int | None = None
    """How many tokens to add at most; default 128, or what the model's context leaves room for."""
    temperature: float = 0.8
    """0 takes the likeliest token each time."""
    top_k: int = 0
    """Sample among the k likeliest tokens; 0: all."""
    top_p: float = 1.0
    """Sample among the likeliest tokens that make up this share of the probability."""
    samples: int = 1
    """How many continuations."""
    seed: int = 0
    """Same seed, same text; sample i takes seed + i."""
    interactive: bool = False
    """Ask for prompts until an empty line or the end of input; --prompt is left aside."""
    json: bool = False
    """Print one JSON object on standard output instead of streaming the text."""


def run(flags: Flags) -> None:
    """Sample text from a run or an exported model: the prompt and its continuation, streamed to standard output."""
    import json

    if flags.samples < 1:
        raise UserError(f"--samples {flags.samples}: must be at least 1")
    if not abs(flags.seed) + flags.samples < 2**63:
        raise UserError(f"--seed {flags.seed}: must be below 2^63")
    sampler = _sampler(flags)
    settings = {"temperature": flags.temperature, "top_k": flags.top_k, "top_p": flags.top_p}
    if flags.json:
        samples = [
            sampler.sample(flags.prompt, flags.max_tokens, seed=flags.seed + i, **settings).as_dict()
            for i in range(flags.samples)
        ]
        where = {"run": str(flags.run), "step": sampler.step} if flags.run is not None else {"from": str(flags.from_)}
        print(json.dumps({**where, "prompt": flags.prompt, "samples": samples}))
        return
    for prompt in _prompts(flags):
        for i in range(flags.samples):
            print(prompt, end="", flush=True)
            for piece in sampler.stream(prompt, flags.max_tokens, seed=flags.seed + i, **settings):
                print(piece, end="", flush=True)
            print("\n" if flags.samples > 1 else "")


def _sampler(flags: Flags):
    from danalab.train.run.sampling import Sampler

    if flags.from_ is None and flags.run is not None:
        return Sampler.open(flags.run, flags.step, flags.tokenizer)
    if flags.from_ is None or flags.run is not None:
        raise UserError("give either --run (a run folder) or --from (a folder in Hugging Face format)")
    if flags.step is not None:
        raise UserError(f"--step {flags.step}: --from has one model and no checkpoints; leave it out")
    return Sampler.open_huggingface(flags.from_, flags.tokenizer)


def _prompts(flags: Flags):
    if not flags.interactive:
        yield flags.prompt
        return
    while True:
        try:
            prompt = input("> ")
        except EOFError:
            return
        if not prompt:
            return
        yield prompt
