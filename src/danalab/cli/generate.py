"""Sample text from a run, or from a model in Hugging Face format."""

import sys
from dataclasses import dataclass
from typing import Literal

from danalab.cli._shared.model_flags import ModelFlags, stages_of
from danalab.errors import printable
from danalab.train.config.flags import Answer, Count, JsonFlags, Natural, setting


@dataclass(frozen=True, kw_only=True)
class Flags(ModelFlags, JsonFlags):
    prompt: str = setting("", "Text to continue; empty: start a new document.")
    max_tokens: int | None = setting(
        None,
        "Tokens to add at most; default 128, or as many as fit in the model's context.",
        aliases=("max-new-tokens",),
    )
    temperature: float = setting(0.8, "Divides the logits; 0 takes the most likely token.")
    top_k: int = setting(0, "Sample among the k most likely tokens; 0: all.")
    top_p: float = setting(1.0, "Sample among the most likely tokens that together have this probability.")
    stop: tuple[str, ...] = setting((), "Strings that end the text; they are not part of it.")
    samples: Count = setting(1, "Number of continuations.")
    seed: Natural = setting(0, "Same seed, same text; sample i uses seed + i.")
    device: str = setting("cpu", "Device to decode on: cpu, cuda or cuda:N.")
    weight_dtype: Literal["float32", "bfloat16", "int8"] | None = setting(
        None,
        "Number format of matrices while decoding on a CPU; smaller is faster and less exact; "
        "default the model's.",
    )


def run(flags: Flags) -> Answer | None:
    """Sample text from a run or an exported model: the prompt and its continuation, streamed to standard output."""
    from danalab.inference.request import SamplingParameters

    names = ("max_tokens", "temperature", "top_k", "top_p", "stop")
    settings = {name: getattr(flags, name) for name in names}
    # The settings are checked before a model is read.
    sampling = [SamplingParameters(seed=flags.seed + i, **settings) for i in range(flags.samples)]
    from danalab.train.run.exchange import open_text_generator

    run = flags.run and stages_of(flags.run)[-1]
    source = (run, flags.from_, flags.step, flags.tokenizer, flags.device)
    generator = open_text_generator(*source, weight_dtype=flags.weight_dtype)
    if flags.json:
        continued = generator.complete(flags.prompt, sampling)
        samples = [{"text": text, "tokens": tokens} for text, tokens in continued]
        where = {"run": flags.run and str(flags.run), "from": flags.from_ and str(flags.from_)}
        return Answer({**where, "step": generator.step, "prompt": flags.prompt, "samples": samples}, [])
    for i in range(flags.samples):
        print(flags.prompt, end="", flush=True)
        for piece in generator.stream(flags.prompt, seed=flags.seed + i, **settings):
            print(printable(piece) if sys.stdout.isatty() else piece, end="", flush=True)
        print("\n" if flags.samples > 1 else "")
    return None


VERBS = {"generate": (Flags, run)}
