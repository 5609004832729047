"""Make a run folder of a model in Hugging Face format."""
# ruff: noqa: N999 - the verb has this name

from dataclasses import dataclass
from pathlib import Path

from danalab.cli._shared.options import Positional


@dataclass(frozen=True, kw_only=True)
class Flags:
    source: Positional[Path]
    """Folder with config.json and .safetensors files: GPT-2, Llama or Qwen3."""
    out: Path
    """New run folder."""
    json: bool = False
    """Print one JSON object on standard output."""


def run(flags: Flags) -> None:
    """Make a run folder of a model in Hugging Face format, for generate, chat, serve, eval and train --resume-from."""
    import dataclasses
    import json

    from danalab.train.callbacks.console import log_to_stderr
    from danalab.train.run.exchange import import_folder

    log_to_stderr()
    done = import_folder(flags.source, flags.out)
    if flags.json:
        print(json.dumps({**dataclasses.asdict(done), "folder": str(done.folder)}))
        return
    print(f"{done.arch} of {done.params:,} parameters, tokenizer {done.tokenizer or 'none'}; run in {done.folder}")
