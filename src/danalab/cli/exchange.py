"""`danalab export` and `import`: models in Hugging Face format."""

from dataclasses import asdict, dataclass
from pathlib import Path

from danalab.cli._shared.model_flags import RunFlags
from danalab.cli._shared.options import JsonFlags, Positional
from danalab.train.config.fields import Dtype


@dataclass(frozen=True, kw_only=True)
class ExportFlags(JsonFlags, RunFlags):
    out: Path
    """New folder for config.json, model.safetensors, tokenizer and model card."""
    step: int | None = None
    """Checkpoint [steps]; default the newest that verifies."""
    dtype: Dtype = "float32"
    """Number format of the weights: float32, bfloat16 or float16 (also fp32, bf16, fp16)."""


def export_model(flags: ExportFlags) -> None:
    """Write a run's model for Hugging Face transformers, with its tokenizer and chat template."""
    from danalab.chat.formats import template_of
    from danalab.train.callbacks.console import log_to_stderr
    from danalab.train.run.exchange import TOOL, export_run

    log_to_stderr()
    run = flags.required_run("export")
    template = template_of(run)
    done = export_run(run, flags.out, step=flags.step, dtype=flags.dtype, chat_template=template)
    if flags.print_json({**asdict(done), "folder": str(done.folder)}):
        return
    print(
        f"{done.arch} of {done.params:,} parameters, step {done.step}, tokenizer {done.tokenizer or 'none'}"
    )
    if template is not None:
        print(TOOL)
    trust = " with trust_remote_code=True" if done.remote_code else ""
    print(f"in {done.folder}: AutoModelForCausalLM.from_pretrained loads it{trust}")


@dataclass(frozen=True, kw_only=True)
class ImportFlags(JsonFlags):
    source: Positional[Path]
    """Folder with config.json and .safetensors files: GPT-2, Llama, Qwen3 or Qwen3-Next."""
    out: Path
    """New run folder."""


def import_model(flags: ImportFlags) -> None:
    """Make a run folder of a model in Hugging Face format, for generate, chat, serve, eval, train."""
    from danalab.train.callbacks.console import log_to_stderr
    from danalab.train.run.exchange import import_folder

    log_to_stderr()
    done = import_folder(flags.source, flags.out)
    if not flags.print_json({**asdict(done), "folder": str(done.folder)}):
        print(
            f"{done.arch} of {done.params:,} parameters, tokenizer {done.tokenizer or 'none'}; run in {done.folder}"
        )


VERBS = {"export": (ExportFlags, export_model), "import": (ImportFlags, import_model)}
