"""The meaning of keys in exported runs, for danalab and for other trainers.

The defaults are the keys of danalab itself and of the trainers that ADana was published with (n_embd, sequence_length,
gamma_3_factor, final-val/loss, ...). `--map OURS=THEIRS` names another key, `--fixed OURS=VALUE` sets a value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from danalab.errors import UserError, nearest
from danalab.ladder.wandb.files import PLACE, Export

METRICS = {
    "step": ("step", "iter", "_step", "Step", "trainer/global_step"),
    "tokens": ("tokens", "train/tokens", "tokens_seen"),
    "time": ("time", "_runtime"),
    "seconds_per_step": ("seconds_per_step", "iter_dt"),
    "val_loss": ("val/loss", "eval/loss", "val_loss", "eval_loss", "validation/loss"),
    "final_loss": ("final/val/loss", "final-val/loss", "final_val_loss"),
}
"""Metric of a history or summary -> possible keys; the first one present counts."""

SETTINGS = {
    "arch": ("arch", "model"),
    "opt": ("opt", "optimizer"),
    "seed": ("seed",),
    "data_seed": ("data_seed",),
    "lr": ("lr", "learning_rate", "max_lr"),
    "lr_multiplier": ("lr_multiplier",),
    "weight_decay": ("weight_decay",),
    "wd_ts": ("wd_ts",),
    "omega": ("omega",),
    "kappa": ("kappa",),
    "delta": ("delta",),
    "clipsnr": ("clipsnr",),
    "gamma3": ("gamma3", "gamma_3_factor"),
    "beta1": ("beta1",),
    "beta2": ("beta2",),
    "scheduler": ("scheduler",),
    "d_model": ("d_model", "n_embd", "hidden_size"),
    "n_layers": ("n_layers", "n_layer", "num_hidden_layers"),
    "n_heads": ("n_heads", "n_head", "num_attention_heads"),
    "head_dim": ("head_dim", "qkv_dim"),
    "mlp_dim": ("mlp_dim", "mlp_hidden_dim", "intermediate_size"),
    "n_kv_heads": ("n_kv_heads", "n_kv_head", "num_key_value_heads"),
    "attention_gate": ("attention_gate", "elementwise_attn_output_gate"),
    "vocab_size": ("vocab_size",),
    "seq_len": ("seq_len", "sequence_length", "block_size"),
    "batch_size": ("batch_size",),
    "acc_steps": ("acc_steps", "gradient_accumulation_steps"),
    "global_batch": ("global_batch",),
    "iterations": ("iterations", "max_iters", "max_steps"),
    "params": ("params", "total_params"),
    "non_emb_params": ("non_emb_params",),
    "world_size": ("world_size",),
    "device": ("device_name", "gpu"),
    "data": ("data", "dataset"),
}
"""Setting of a configuration -> possible keys."""

_WHOLE = (
    *("seed", "data_seed", "d_model", "n_layers", "n_heads", "head_dim", "mlp_dim", "n_kv_heads", "vocab_size"),
    *("seq_len", "batch_size", "acc_steps", "global_batch", "iterations", "params", "non_emb_params", "world_size"),
)

_REAL = (
    "lr",
    "lr_multiplier",
    "weight_decay",
    "wd_ts",
    "omega",
    "kappa",
    "delta",
    "clipsnr",
    "gamma3",
    "beta1",
    "beta2",
)


@dataclass(frozen=True)
class Keys:
    """Keys of the exports, by meaning."""

    names: Mapping[str, Sequence[str]] = field(default_factory=lambda: {**METRICS, **SETTINGS})
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Values for all runs, which override their own."""

    @classmethod
    def of(cls, mapped: Mapping[str, str], fixed: Mapping[str, Any]) -> "Keys":
        """The defaults with these replacements."""
        known = {**METRICS, **SETTINGS}
        for what, names, allowed in (("--map", mapped, known), ("--fixed", fixed, SETTINGS)):
            for name in names:
                if name not in allowed:
                    raise UserError(f"{what} {name}{nearest(name, allowed)}: known are {', '.join(allowed)}")
        return cls({**known, **{name: (key,) for name, key in mapped.items()}}, fixed)

    def find(self, name: str, values: Mapping[str, Any]) -> Any:
        """The value of the first key present; None without any."""
        return next((values[key] for key in self.names[name] if values.get(key) is not None), None)


def typed(name: str, value: Any, export: Export) -> Any:
    """A setting with its type."""
    kind = int if name in _WHOLE else float if name in _REAL else None
    if kind is None:
        return value
    try:
        found = float(value)
        if kind is float or found == int(found):
            return kind(found)
    except (TypeError, ValueError, OverflowError):
        pass
    raise UserError(f"{export.where or export.name}: run {export.name}: {name} is {value!r}, a number is expected")


def needed(settings: Mapping[str, Any], name: str, export: Export) -> Any:
    """A setting that every row needs."""
    if name not in settings:
        shown = name.replace("_", "-")
        raise UserError(
            f"run {export.name} ({export.where}): its configuration has none of the keys {', '.join(SETTINGS[name])}; "
            f"--map {shown}=KEY names another, --fixed {shown}=VALUE gives the value; the configurations come from a "
            "table or JSON of the runs"
        )
    return settings[name]


def number(keys: Keys, name: str, row: Mapping[str, Any]) -> float | None:
    """A value of a step."""
    for key in keys.names[name]:
        value = row.get(key)
        if value is None:
            continue
        try:
            return float(value)
        except (TypeError, ValueError):
            raise UserError(f"{row[PLACE]}, column '{key}': {value!r} is not a number") from None
    return None
