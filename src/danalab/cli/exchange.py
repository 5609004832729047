"""`danalab export` and `import`: models in others' formats."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from danalab.cli._shared.model_flags import RunFlags
from danalab.cli._shared.options import JsonFlags, Positional
from danalab.train.config.fields import Dtype


@dataclass(frozen=True, kw_only=True)
class ExportFlags(JsonFlags, RunFlags):
    out: Path
    """New folder for config.json, model.safetensors, tokenizer and model card, or for model.gguf and a Modelfile."""
    step: int | None = None
    """Checkpoint [steps]; default the newest that verifies."""
    dtype: Dtype = "float32"
    """Number format of the weights: float32, bfloat16 or float16 (also fp32, bf16, fp16)."""
    format: str = "huggingface"
    """huggingface, for transformers; gguf, for llama.cpp, Ollama and LM Studio (llama, and qwen3 without attention
    gate, as those of danalab speedrun); or a plug-in's."""
    quantize: Literal["f32", "f16", "q8_0"] | None = None
    """Number format of a GGUF file's matrices: f32, f16 (default) or q8_0, which has 8 bits and a scale for each 32."""


def export_model(flags: ExportFlags) -> None:
    """Write a run's model for Hugging Face transformers or as GGUF, with its tokenizer and chat template."""
    from danalab.chat.formats import template_of
    from danalab.train.callbacks.console import log_to_stderr
    from danalab.train.run.exchange import FORMATS, TOOL

    log_to_stderr()
    run = flags.required_run("export")
    template = template_of(run)
    form, settings = FORMATS.get(flags.format), {name: getattr(flags, name) for name in ("step", "dtype", "quantize")}
    done = form.export(run, flags.out, chat_template=template, **settings)
    if flags.print_json({**asdict(done), "folder": str(done.folder)}):
        return
    print(f"{done.arch} of {done.params:,} parameters, step {done.step}, tokenizer {done.tokenizer or 'none'}")
    if template is not None:
        print(TOOL)
    print(f"in {done.folder}: {form.usage(done)}")


@dataclass(frozen=True, kw_only=True)
class ImportFlags(JsonFlags):
    source: Positional[Path]
    """Folder with config.json and .safetensors files: GPT-2, Llama or Qwen3; or a GGUF file of Llama or Qwen3."""
    out: Path
    """New run folder."""


def import_model(flags: ImportFlags) -> None:
    """Make a run folder of a model in Hugging Face format or GGUF, for generate, chat, serve, eval, train."""
    from danalab.train.callbacks.console import log_to_stderr
    from danalab.train.run.exchange import FORMATS

    log_to_stderr()
    forms = map(FORMATS.get, reversed(FORMATS.names()))  # the first, Hugging Face's, takes all that no other does
    done = next(form for form in forms if form.recognises(flags.source)).load(flags.source, flags.out)
    if not flags.print_json({**asdict(done), "folder": str(done.folder)}):
        print(f"{done.arch} of {done.params:,} parameters, tokenizer {done.tokenizer or 'none'}; run in {done.folder}")


VERBS = {"export": (ExportFlags, export_model), "import": (ImportFlags, import_model)}
