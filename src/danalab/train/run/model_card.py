"""The model card (README.md) of an exported model: what it is, how it was trained, how to load it."""

import json
from typing import Any

from danalab.train.run.open import Run


def model_card(run: Run, step: int, class_name: str) -> str:
    """Markdown with front matter for the Hugging Face hub.

    Args:
        step: of the checkpoint that was exported.
        class_name: in `transformers`.
    """
    name = json.dumps(run.path.resolve().name)  # quoted: any name is a valid YAML string then
    trust = ", trust_remote_code=True" if class_name.startswith("Danalab") else ""
    rows = "\n".join(f"| {key} | {value} |" for key, value in _facts(run, step).items() if value is not None)
    return f"""---
library_name: transformers
pipeline_tag: text-generation
model_name: {name}
tags:
- danalab
- {run.model_config.arch}
---

# {run.path.resolve().name}

{_kind(run)}

| | |
|---|---|
{rows}

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("FOLDER"{trust})  # {class_name}
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
```

Token ids from the tokenizer's size up to `vocab_size` are padding and appear in no text.
"""


def _kind(run: Run) -> str:
    if run.config.get("stage", "pretraining") == "pretraining":
        return "A base model, trained with danalab: it continues text and does not follow instructions."
    return "Trained with danalab on conversations: ask by `tokenizer.apply_chat_template`. It is not made safe."


def _facts(run: Run, step: int) -> dict[str, Any]:
    model, config = run.model_config, run.config.get("config", {})
    dataset, plan = run.config.get("dataset", {}), run.config.get("plan", {})
    summary = run.summary or {}
    facts: dict[str, Any] = {
        "architecture": f"{model.arch}: {model.n_layers} layers, d_model {model.d_model}, {model.n_heads} heads of "
        f"{model.head_dim} ({model.kv_heads} for keys and values), mlp {model.mlp_dim}",
        "parameters": _count(run.config.get("params")),
        "vocabulary, context": f"{model.vocab_size:,}, {model.seq_len:,} tokens",
    }
    if "imported_from" in run.config:
        return facts | {"imported from": run.config["imported_from"].get("name")}
    peak = "" if config["lr"] is None else f", peak learning rate {config['lr']:.4g}"
    steps = _count(run.config.get("steps"))
    facts |= {
        "optimizer": f"{config['opt']}{peak}, schedule {config['scheduler']}",
        "trained on": dataset.get("tokenizer") and f"{_last(dataset.get('path'))} (tokenizer {dataset['tokenizer']})",
        "step": f"{step:,}" if steps is None else f"{step:,} of {steps}",
        "tokens per step": _count(run.config.get("tokens_per_step")),
        "FLOPs per token": _count(plan.get("flops_per_token")),
    }
    if summary.get("step") == step:
        for key, unit in (("val/loss", "nats per token"), ("val/bpb", "bits per byte")):
            if summary.get(key) is not None:
                facts[key.replace("val/", "validation ")] = f"{summary[key]:.4f} {unit}"
    versions = run.config.get("versions", {})
    return facts | {"made with": ", ".join(f"{key} {value}" for key, value in versions.items() if value is not None)}


def _count(value: Any) -> str | None:
    return f"{value:,}" if isinstance(value, (int, float)) else None


def _last(path: Any) -> str:
    return str(path).rstrip("/").rsplit("/", 1)[-1]
