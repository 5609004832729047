"""Sample text from a run, or from a model in Hugging Face format."""

import json
import sys
from dataclasses import asdict, dataclass
from typing import Literal

from danalab.cli._shared.model_flags import ModelFlags
from danalab.cli._shared.options import JsonFlags
from danalab.errors import UserError, printable
from danalab.train.config.fields import setting


@dataclass(frozen=True, kw_only=True)
class Flags(JsonFlags, ModelFlags):
    prompt: str = ""
    """Text to continue; empty: start a new document."""
    max_tokens: int | None = setting(None, aliases=("max-new-tokens",))
    """Tokens to add at most; default 128, or as many as fit in the model's context."""
    temperature: float = 0.8
    """Divides the logits; 0 takes the most likely token."""
    top_k: int = 0
    """Sample among the k most likely tokens; 0: all."""
    top_p: float = 1.0
    """Sample among the most likely tokens that together have this probability."""
    min_p: float = 0.0
    """Sample among the tokens that have at least this share of the largest probability."""
    repetition_penalty: float = 1.0
    """Positive logits of tokens that occurred are divided by it, negative ones multiplied; 1: none."""
    stop: tuple[str, ...] = ()
    """Strings that end the text; they are not part of it."""
    samples: int = 1
    """Number of continuations."""
    seed: int = 0
    """Same seed, same text; sample i uses seed + i."""
    device: str = "cpu"
    """Device to decode on: cpu, cuda or cuda:N."""
    weight_dtype: Literal["float32", "bfloat16", "int8"] | None = None
    """Number format of matrices while decoding on a CPU; smaller is faster and less exact; default the model's."""
    interactive: bool = False
    """Ask for prompts until an empty line or the end of input; ignores --prompt."""


def run(flags: Flags) -> None:
    """Sample text from a run or an exported model: the prompt and its continuation, streamed to standard output."""
    from danalab.inference.request import SamplingParameters

    if flags.samples < 1:
        raise UserError(f"--samples {flags.samples}: must be at least 1")
    if not abs(flags.seed) + flags.samples < 2**63:
        raise UserError(f"--seed {flags.seed}: must be below 2^63")
    names = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "stop")
    settings = {name: getattr(flags, name) for name in names}
    SamplingParameters(**settings)  # raises before a model is loaded
    from danalab.serve.chat_model import open_text_generator

    source = flags.source()
    generator = open_text_generator(
        *source, flags.step, flags.tokenizer, flags.device, weight_dtype=flags.weight_dtype
    )
    if flags.json:
        parameters = [SamplingParameters(seed=flags.seed + i, **settings) for i in range(flags.samples)]
        samples = [
            asdict(each) for each in generator.complete_all([flags.prompt] * flags.samples, parameters)
        ]
        run, folder = source
        where = {"run": str(run), "step": generator.step} if run is not None else {"from": str(folder)}
        print(json.dumps({**where, "prompt": flags.prompt, "samples": samples}))
        return
    for prompt in _prompts(flags):
        for i in range(flags.samples):
            print(prompt, end="", flush=True)
            for piece in generator.stream(prompt, seed=flags.seed + i, **settings):
                print(printable(piece) if sys.stdout.isatty() else piece, end="", flush=True)
            print("\n" if flags.samples > 1 else "")


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
