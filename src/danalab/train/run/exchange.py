"""Runs and folders in Hugging Face format: export, import, and text generators of either.

danalab export RUN --out FOLDER       config, generation_config, weights, tokenizer, README.md (the model card)
danalab import FOLDER --out RUN       a run folder with one checkpoint, of step 0, the tokenizer and its chat template
"""

import json
import logging
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from danalab.data.tokenizers.chat_template import ChatTemplate, name_tokens, named_tokens
from danalab.errors import UserError
from danalab.files import fsync_path, read_json, write_atomically, write_json
from danalab.inference.generator import TextGenerator
from danalab.models import build_model
from danalab.models.decoder import materialise
from danalab.models.huggingface.convert import MODULE, from_huggingface, require_class, to_huggingface
from danalab.train.config.train_config import TrainConfig, settings_of
from danalab.train.run.folder import RunFolder
from danalab.train.run.open import Run, open_run
from danalab.train.system.device import choose_device, versions

if TYPE_CHECKING:
    from danalab.data.tokenizers import Tokenizer
    from danalab.models.decoder import Decoder

log = logging.getLogger(__name__)

WEIGHTS = "model.safetensors"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
TOOL = (
    "It calls a calculator: after `<|python_start|>EXPRESSION<|python_end|>` the program that generates has to stop, "
    "compute the expression, append `<|output_start|>RESULT<|output_end|>`, and go on; `danalab serve` and "
    "`danalab chat` do so. `generate` alone invents the result."
)
"""What an exported chat model needs."""


def export_run(
    source: str | Path,
    out: str | Path,
    *,
    step: int | None = None,
    dtype: str = "float32",
    chat_template: ChatTemplate | None = None,
) -> dict[str, Any]:
    """Write the model of a run for `transformers`, with its tokenizer and a model card; returns what was written.

    `dtype` of the weights is float32, bfloat16 or float16; `chat_template`: of a run trained on
    conversations, default an imported run's. UserError: `transformers` has no class for it, or a folder in use.
    """
    from safetensors.torch import save

    run, folder = open_run(source), new_folder(out)
    require_class(run.model_config)
    loaded = run.load_model(step)
    described, weights = to_huggingface(run.model_config, loaded.model.state_dict())
    tokenizer, template = None, chat_template or ChatTemplate.read(run.folder.tokenizer_folder)
    try:
        tokenizer = run.tokenizer
    except UserError as error:
        log.warning("exported without a tokenizer: %s", error)
    described["dtype"] = described["torch_dtype"] = dtype  # the first name is read from transformers 4.56 on
    names: dict[str, str] = {}
    special: dict[str, int] = {}
    if tokenizer is not None:
        end = tokenizer.eos
        names = {"bos_token": tokenizer.decode([tokenizer.bos_id]), "eos_token": end, "pad_token": end}
        names |= named_tokens(run.folder.tokenizer_folder)  # an imported model keeps those of its source
        known = tokenizer.specials
        special = {f"{name}_id": known[text] for name, text in names.items() if text in known}
        special.pop("unk_token_id", None)
    described |= special
    folder.mkdir(parents=True, exist_ok=True)
    stored = {name: tensor.detach().to(DTYPES[dtype]).contiguous() for name, tensor in weights.items()}
    write_atomically(folder / WEIGHTS, save(stored, metadata={"format": "pt"}))
    if "auto_map" in described:
        write_atomically(folder / MODULE.name, MODULE.read_bytes())
    if tokenizer is not None:
        tokenizer.save(folder)
        name_tokens(folder, {**names, "model_input_names": ["input_ids", "attention_mask"]})
    write_json(folder / "generation_config.json", {"_from_model_config": True, **special})
    if tokenizer is not None and template is not None:
        template.save(folder)
    card = model_card(run, loaded.step, described["architectures"][0], tokenizer is not None)
    write_atomically(folder / "README.md", card)
    write_json(folder / "config.json", described)  # last: a folder without it is not a model
    fsync_path(folder)
    trust = (
        "auto_map" in described
    )  # the folder has a class of ours, and from_pretrained needs trust_remote_code
    return _written(folder, loaded.model, loaded.step, tokenizer) | {"remote_code": trust}


def _written(folder: Path, model: "Decoder", step: int, tokenizer: "Tokenizer | None") -> dict[str, Any]:
    return {
        "folder": str(folder),
        "arch": model.config.arch,
        "params": model.num_parameters(),
        "step": step,
        "tokenizer": None if tokenizer is None else tokenizer.name,
    }


def import_folder(source: str | Path, out: str | Path) -> dict[str, Any]:
    """Make a run folder of a model in Hugging Face format, with a tokenizer of byte-level BPE and its chat template."""
    from danalab.data.tokenizers import load_tokenizer

    source, target = Path(source), RunFolder(new_folder(out))
    model = read_model(source)
    tokenizer = template = None
    try:
        tokenizer, template = load_tokenizer(source), ChatTemplate.read(source)
    except UserError as error:
        log.warning("the run has no tokenizer and cannot generate text: %s", error)
    config = model.config
    given = {"seq_len": config.seq_len, "batch_size": 1, "dtype": "float32", "run_dir": target.path}
    record = {
        "config": TrainConfig(**settings_of(config), **given).as_dict(),
        "model": config.as_dict(),
        "params": model.num_parameters(),
        "imported_from": {"path": str(source), "name": source.name},
        "versions": versions(),
    }
    with target.locked():
        if tokenizer is not None:
            tokenizer.save(target.tokenizer_folder)
            name_tokens(target.tokenizer_folder, named_tokens(source))
        if template is not None:
            template.save(target.tokenizer_folder)
        write_weights(model, target.path)
        write_json(target.config_file, record)
    return _written(target.path, model, 0, tokenizer)


def write_weights(model: "Decoder", folder: Path, step: int = 0) -> None:
    """Write a model as a checkpoint of a run folder, without an optimizer's state."""
    from danalab.train.checkpoint import tensors  # not at the top: generating text needs no torch.distributed

    meta = {"step": step, "imported": True, "model": model.config.as_dict()}
    state = tensors.state_of(model)
    RunFolder(folder).store.write(step, meta, lambda step_folder: tensors.write(state, step_folder))


def read_model(source: Path) -> "Decoder":
    """The model of a folder in Hugging Face format, in float32 on the CPU. UserError: none, unsupported or damaged."""
    if not (source / "config.json").is_file():
        raise UserError(f"{source}: not a model in Hugging Face format (no config.json)")
    described = read_json(source / "config.json")
    if not isinstance(described, dict):
        raise UserError(f"{source / 'config.json'}: malformed: an object is expected")
    if "model_type" not in described and "model" in described:
        raise UserError(
            f"{source}: a run folder, not a model in Hugging Face format; danalab export writes one"
        )
    config, weights = from_huggingface(described, _read_tensors(source))
    model = materialise(build_model(config, device="meta"), "cpu")
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()}, assign=True)
    return model


def _read_tensors(source: Path) -> dict[str, Tensor]:
    """The tensors of a folder in Hugging Face format, and those that safetensors knows as others by another name."""
    from safetensors import SafetensorError, safe_open

    weights: dict[str, Tensor] = {}
    for file in _weight_files(source):
        try:
            with safe_open(file, "pt") as stored:
                weights |= {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - not a dict
                aliases = {name: kept for name, kept in (stored.metadata() or {}).items() if kept in weights}
        except (SafetensorError, OSError) as error:
            raise UserError(f"{file}: cannot be read as safetensors: {error}") from error
        weights |= {name: weights[kept] for name, kept in aliases.items() if name not in weights}
    return weights


def _weight_files(source: Path) -> list[Path]:
    """The files of a model: those that its index names, which an older save may have left others beside; or all."""
    index = source / "model.safetensors.index.json"
    if index.is_file() and not (source / WEIGHTS).is_file():
        content = read_json(index)
        named = content.get("weight_map") if isinstance(content, dict) else None
        if not isinstance(named, dict) or not all(Path(str(name)).name == name for name in named.values()):
            raise UserError(
                f"{index}: malformed: a 'weight_map' of names of files in this folder is expected"
            )
        return [source / name for name in sorted(set(named.values()))]
    files = [source / WEIGHTS] if (source / WEIGHTS).is_file() else sorted(source.glob("*.safetensors"))
    if not files:
        raise UserError(f"{source}: no .safetensors file; save the model with save_pretrained")
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:4])
        raise UserError(
            f"{source}: {len(files)} weight files and no {WEIGHTS} or {index.name}: {names}; rename the one to import"
        )
    return files


def new_folder(path: str | Path) -> Path:
    """`path`, which must not exist or must be empty."""
    path = Path(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"--out {path}: exists; give the name of a new folder")
    return path


def model_card(run: Run, step: int, class_name: str, has_tokenizer: bool) -> str:
    """Markdown with front matter for the Hugging Face hub; `class_name` is that in `transformers`."""
    name = json.dumps(run.path.resolve().name)  # quoted: any name is a valid YAML string then
    kind = (
        "Trained with danalab on conversations: ask by `tokenizer.apply_chat_template`. It is not made safe."
    )
    kind += f"\n\n{TOOL}"
    if run.config.get("stage", "pretraining") == "pretraining":
        kind = "A base model, trained with danalab: it continues text and does not follow instructions."
    own = class_name.startswith("Danalab")
    trust = ", trust_remote_code=True" if own else ""
    note = ""
    if own:
        note = (
            f"\n`transformers` has no class for this model; `{MODULE.name}` beside the weights has one, and "
            "`trust_remote_code=True` runs that file. Without it a program asks before it runs it: type y.\n"
        )
    text = f"""tokenizer = AutoTokenizer.from_pretrained(folder{trust})
inputs = tokenizer("The", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=20)[0]))
"""
    if not has_tokenizer:  # ids of your own
        text = "import torch\n\nprint(model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=20))\n"
    rows = "\n".join(f"| {key} | {value} |" for key, value in _facts(run, step).items())
    return f"""---
library_name: transformers
pipeline_tag: text-generation
model_name: {name}
tags:
- danalab
- {run.model_config.arch}
---

# {run.path.resolve().name}

{kind}

| | |
|---|---|
{rows}

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "."  # this folder; from elsewhere its path, or its name on the hub
model = AutoModelForCausalLM.from_pretrained(folder{trust})  # {class_name}
{text}```
{note}
Token ids from the tokenizer's size up to `vocab_size` are padding and appear in no text.
"""


def _facts(run: Run, step: int) -> dict[str, Any]:
    model, record, summary = run.model_config, run.config, run.summary or {}
    facts: dict[str, Any] = {
        "architecture": f"{model.arch}: {model.n_layers} layers, d_model {model.d_model}, {model.n_heads} heads of "
        f"{model.head_dim} ({model.kv_heads} for keys and values), mlp {model.mlp_dim}",
        "parameters": f"{record['params']:,}",
        "vocabulary, context": f"{model.vocab_size:,}, {model.seq_len:,} tokens",
    }
    if "imported_from" in record:
        return facts | {"imported from": record["imported_from"].get("name")}
    config, dataset = record["config"], record["dataset"]
    facts |= {
        "optimizer": f"{config['opt']}, peak learning rate {config['lr']:.4g}, schedule {config['scheduler']}",
        "trained on": f"{PurePosixPath(dataset['path']).name} (tokenizer {dataset['tokenizer']})",
        "step": f"{step:,} of {record['steps']:,}, of {record['tokens_per_step']:,} tokens",
    }
    if summary.get("step") == step and summary.get("val/loss") is not None:
        facts["validation loss"] = f"{summary['val/loss']:.4f} nats per token"
    return facts


def open_text_generator(
    run: Path | None,
    huggingface: Path | None = None,
    step: int | None = None,
    tokenizer: str | None = None,
    device: str = "cpu",
    **engine: Any,
) -> TextGenerator:
    """The model of a run folder at `step`, default its newest checkpoint that verifies, or of a Hugging Face folder.

    The latter is an export of ours, or another that `danalab import` accepts. UserError: neither, both, or unreadable.
    """
    from danalab.data.tokenizers import load_tokenizer

    if run is not None and huggingface is None:
        opened = open_run(run)
        chosen = opened.tokenizer if tokenizer is None else load_tokenizer(tokenizer)
        loaded = opened.load_model(step, choose_device(device))
        return TextGenerator(loaded.model.eval(), chosen, loaded.step, **engine)
    if huggingface is None or run is not None:
        raise UserError("give either --run (a run folder) or --from (a folder in Hugging Face format)")
    if step is not None:
        raise UserError(f"--step {step}: --from has one model and no checkpoints; leave it out")
    model = read_model(huggingface)
    try:
        chosen = load_tokenizer(huggingface if tokenizer is None else tokenizer)
    except UserError as error:
        if tokenizer is not None:
            raise
        raise UserError(f"{error}; --tokenizer names the one that the model was trained with") from None
    return TextGenerator(model.to(choose_device(device)).eval(), chosen, **engine)
