"""Write a run's model in Hugging Face format."""

from dataclasses import dataclass
from pathlib import Path

from danalab.cli._shared.model_flags import required_run
from danalab.cli._shared.options import Positional
from danalab.train.config.fields import Dtype


@dataclass(frozen=True, kw_only=True)
class Flags:
    folder: Positional[Path | None] = None
    """Run folder, finished or not."""
    run: Path | None = None
    """Run folder, in place of the first argument."""
    out: Path
    """New folder for config.json, model.safetensors, the tokenizer and the model card."""
    step: int | None = None
    """Checkpoint [steps]; default the newest that verifies."""
    dtype: Dtype = "float32"
    """Number format of the weights: float32, bfloat16 or float16 (also fp32, bf16, fp16)."""
    json: bool = False
    """Print one JSON object on standard output."""


def run(flags: Flags) -> None:
    """Write a run's model for Hugging Face transformers, with a class of ours if that has none for it."""
    import dataclasses
    import json

    from danalab.chat.formats import template_of
    from danalab.train.callbacks.console import log_to_stderr
    from danalab.train.run.exchange import export_run

    log_to_stderr()
    run = required_run(flags.folder, flags.run, "export")
    done = export_run(run, flags.out, step=flags.step, dtype=flags.dtype, chat_template=template_of(run))
    if flags.json:
        print(json.dumps({**dataclasses.asdict(done), "folder": str(done.folder)}))
        return
    print(f"{done.arch} of {done.params:,} parameters, step {done.step}, tokenizer {done.tokenizer or 'none'}")
    trust = " with trust_remote_code=True" if done.remote_code else ""
    print(f"in {done.folder}: AutoModelForCausalLM.from_pretrained loads it{trust}")
