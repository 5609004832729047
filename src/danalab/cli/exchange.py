"""`danalab export` and `import`: models in Hugging Face format."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from danalab.train.config.flags import Answer, Dtype, JsonFlags, Positional, setting


@dataclass(frozen=True, kw_only=True)
class ExportFlags(JsonFlags):
    run: Positional[Path] = setting(help="Run folder, finished or not; also as --run.")
    out: Path = setting(help="New folder for config.json, model.safetensors, tokenizer and model card.")
    step: int | None = setting(None, "Checkpoint [steps]; default the newest that verifies.")
    dtype: Dtype = setting(
        "float32", "Number format of the weights: float32, bfloat16 or float16 (also fp32, bf16, fp16)."
    )


def export_model(flags: ExportFlags) -> Answer:
    """Write a run's model for Hugging Face transformers, with its tokenizer and chat template."""
    from danalab.chat.formats import template_of
    from danalab.train.callbacks.console import log_to_stderr
    from danalab.train.run.exchange import TOOL, export_run

    log_to_stderr()
    template = template_of(flags.run)
    done = export_run(flags.run, flags.out, step=flags.step, dtype=flags.dtype, chat_template=template)
    trust = " with trust_remote_code=True" if done["remote_code"] else ""
    lines = [
        f"{_about(done)}, step {done['step']}",
        *([TOOL] if template is not None else []),
        f"in {done['folder']}: AutoModelForCausalLM.from_pretrained loads it{trust}",
    ]
    return Answer(done, lines)


def _about(done: dict[str, Any]) -> str:
    return f"{done['arch']} of {done['params']:,} parameters, tokenizer {done['tokenizer'] or 'none'}"


@dataclass(frozen=True, kw_only=True)
class ImportFlags(JsonFlags):
    source: Positional[Path] = setting(
        help="Folder with config.json and .safetensors files: GPT-2, Llama, Qwen3 or Qwen3-Next."
    )
    out: Path = setting(help="New run folder.")


def import_model(flags: ImportFlags) -> Answer:
    """Make a run folder of a model in Hugging Face format, for generate, chat, serve, eval, train."""
    from danalab.train.callbacks.console import log_to_stderr
    from danalab.train.run.exchange import import_folder

    log_to_stderr()
    done = import_folder(flags.source, flags.out)
    return Answer(done, [f"{_about(done)}; run in {done['folder']}"])


VERBS = {"export": (ExportFlags, export_model), "import": (ImportFlags, import_model)}
