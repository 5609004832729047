"""Names of runs: readable, and different for different runs. Needs no torch."""

import dataclasses
import hashlib
import json

from danalab.scaling.plan import OMEGA
from danalab.train.config.fields import names_of
from danalab.train.config.train_config import TrainConfig

_SHOWN = frozenset(
    {"arch", "opt", "d_model", "n_layers", "n_experts", "top_k", "full_attention_interval", "mixer",
     "learned_positions", "conv_width", "phase_lr_factor", "global_batch", "seq_len", "iterations", "lr", "seed",
     "scheduler", "kappa"}
)  # fmt: skip
"""Settings that stand in a name by themselves."""


def default_name(filled: TrainConfig, given: TrainConfig, data_name: str) -> str:
    """The name of a resolved run: its main settings, then a digest of all others that were given."""
    size = f"h{given.heads}" if given.heads is not None else f"d{filled.d_model}x{filled.n_layers}"
    if filled.n_experts is not None:
        size += f"-e{filled.n_experts}k{filled.top_k}"
    if (filled.full_attention_interval or 1) > 1:
        size += f"-a{filled.full_attention_interval}"
    if filled.mixer is not None:
        size += "-nomixer" if filled.mixer == "none" else f"-{filled.mixer}"
    if filled.learned_positions is not None:
        size += "-positions" if filled.learned_positions else "-nopositions"
    if filled.conv_width:
        size += f"-conv{filled.conv_width}"
    if filled.phase_lr_factor != 1:
        size += f"-phase{filled.phase_lr_factor:g}"
    words = [filled.arch, filled.opt, size, data_name, f"b{filled.global_batch}x{filled.seq_len}"]
    words += [f"i{filled.iterations}", f"lr{filled.lr:.3g}", f"s{filled.seed}"]
    if filled.scheduler != _DEFAULTS.scheduler:
        words.append(filled.scheduler)
    if filled.kappa != _DEFAULTS.kappa:
        words.append(f"k{filled.kappa:g}")
    names = names_of(TrainConfig, "run") - _SHOWN
    if given.lr is not None and float(f"{given.lr:.3g}") != given.lr:
        names |= {"lr"}
    if digest := digest_of(dataclasses.replace(given, omega=filled.omega), names):
        words.append(digest)
    return "-".join(words)


def digest_of(config: TrainConfig, names: frozenset[str]) -> str:
    """Eight characters that tell apart configurations with other values of `names`; empty where all are _DEFAULTS."""
    changed = {
        name: value
        for name, value in config.as_dict().items()
        if name in names and value is not None and getattr(config, name) != getattr(_DEFAULTS, name)
    }
    return hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:8] if changed else ""


_DEFAULTS = TrainConfig(omega=OMEGA)
