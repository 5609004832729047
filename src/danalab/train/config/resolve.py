"""From a configuration to a complete `RunSpec`: automatic values follow from the scaling rules, explicit ones win.

Needs no torch, so that `danalab train --print-config` is quick.
"""

import dataclasses
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from danalab.data.vocabulary import Vocabulary
from danalab.errors import UserError
from danalab.files import environment_path
from danalab.models.config import ModelConfig, checkpointing_rule
from danalab.optim.catalogue import OPTIMIZERS, short_name
from danalab.scaling import flops_per_token
from danalab.scaling.architectures import ARCHITECTURES
from danalab.scaling.plan import OMEGA
from danalab.scaling.shape import EXPERT_SETTINGS, ROUTER_SETTINGS
from danalab.train.config.fields import flag, names_of
from danalab.train.config.planning import (
    DEFAULT_SEQ_LEN,
    MODEL_FLAGS,
    batch_sizes,
    checked_decay,
    evaluation_settings,
    plan_run,
    steps_of_epochs,
)
from danalab.train.config.run_spec import BatchSchedule, RunSpec, checked_settings
from danalab.train.config.train_config import TrainConfig

_DILOCO = {"diloco_steps": 500, "diloco_lr": 0.7, "diloco_momentum": 0.9, "diloco_patience": 600.0}
"""As in the paper, arXiv 2311.08105."""

PLANNED_SETTINGS = (
    "arch", "opt", "d_model", "n_layers", "n_heads", "head_dim", "mlp_dim", "num_frequencies", "n_experts", "top_k",
    "expert_dim", "n_shared_experts", "lr", "omega", "weight_decay", "wd_ts", "decay_bound",
)  # fmt: skip
"""Settings that the plan decides."""

_OLD_NAME = (
    "--arch diloco is an old name of enoki: the model is an enoki; DiLoCo training, of any architecture, is "
    "--distributed-backend diloco"
)


def resolve(config: TrainConfig, dataset: Vocabulary, world_size: int = 1, device_type: str | None = None) -> RunSpec:
    """Fill in all automatic values for `world_size` data-parallel ranks; UserError: impossible or contradicting ones.

    `device_type`: cpu or cuda, where the run is trained; default that of --device, else cpu.
    """
    if config.optimizer_settings:
        config = replace(config, optimizer_settings=checked_settings(config))
    notes = [_OLD_NAME] if config.arch.lower() == "diloco" else []
    idle = [flag(f"wandb_{key}") for key in ("project", "entity", "group", "mode") if getattr(config, f"wandb_{key}")]
    if idle and not config.wandb:
        notes.append(f"{', '.join(idle)} without --wandb: nothing goes to Weights & Biases")
    if config.distributed_backend == "diloco":
        given = {name: getattr(config, name) for name in _DILOCO}
        config = replace(config, **{name: _DILOCO[name] if it is None else it for name, it in given.items()})
    config = replace(config, seq_len=config.seq_len or ((dataset.sequence_length or DEFAULT_SEQ_LEN + 1) - 1))
    if config.document_mask and dataset.eos_id is None:
        raise UserError(f"--document-mask: the id that ends a document of {dataset.name} is unknown; leave it out")
    if config.document_mask and config.compile and ARCHITECTURES.get(config.arch).oscillators:
        raise UserError(f"--compile: not with --document-mask for {config.arch}, which sorts documents by length")
    if config.context_len is not None and config.context_len < (config.seq_len or 0):
        raise UserError(f"--context-len {config.context_len}: must be at least --seq-len, {config.seq_len}")
    if config.phase_lr_factor != 1:
        what = "--mixer none" if config.mixer == "none" else f"--arch {config.arch}"
        if config.mixer == "none" or not ARCHITECTURES.get(config.arch).oscillators:
            raise UserError(f"--phase-lr-factor {config.phase_lr_factor}: {what} has no phases; leave it out")
    batch_size, acc_steps, global_batch = batch_sizes(config, world_size)
    vocab_size = dataset.vocab_size if config.vocab_size is None else config.vocab_size
    if config.vocab_size is not None and vocab_size < dataset.least_vocab_size:
        raise UserError(f"--vocab-size {vocab_size}: {dataset.name} needs {dataset.least_vocab_size}; leave it out")
    if config.epochs is not None:
        config = replace(config, iterations=steps_of_epochs(config, dataset, global_batch))
    planned = plan_run(config, vocab_size, global_batch)
    batches = BatchSchedule.of(global_batch, planned.seq_len, config.batch_ramp, config.seq_len_ramp)
    if batches.batch.stages and config.iterations is None:  # more steps, for as many tokens
        steps = max(1, batches.batch.steps_within(planned.steps * global_batch))
        planned = plan_run(replace(config, iterations=steps), vocab_size, global_batch, planned.tokens)
    if planned.lr_is_extrapolated:
        notes.append(
            f"the learning-rate law was fitted at another batch than {global_batch} sequences ({planned.lr_source}): "
            "its rate here is not measured; try --lr-multiplier"
        )
    planned, about_decay = checked_decay(planned, config.weight_decay)
    notes += about_decay
    if config.extend_to is not None and config.extend_to < planned.steps:
        raise UserError(f"--extend-to {config.extend_to}: the run has {planned.steps} steps already")
    filled = replace(
        config,
        batch_size=batch_size,
        acc_steps=acc_steps,
        global_batch=global_batch,
        vocab_size=vocab_size,
        iterations=planned.steps,
        warmup_steps=planned.warmup,
        **evaluation_settings(config, batches.sequences(planned.steps), planned.steps),
        **{name: getattr(planned, name) for name in PLANNED_SETTINGS},
    )
    described: dict[str, Any] = {name: getattr(filled, name) for name in (*MODEL_FLAGS, "dropout")}
    described |= {name: getattr(config, name) for name in EXPERT_SETTINGS}
    described |= {name: value for name in ROUTER_SETTINGS if (value := getattr(config, name)) is not None}
    model = ModelConfig(**{**described, "seq_len": config.context_len or planned.seq_len})
    if model.parametrization != "standard" and not OPTIMIZERS.get(planned.opt).adam_like:
        raise UserError(
            f"--parametrization {model.parametrization}: how the rate of {planned.opt} follows from width is not "
            "known; take an optimizer whose steps are like Adam's (adamw, adana, lion, ...), or leave it out"
        )
    if model.sparsity is None:
        for name in ("expert_parallel", *ROUTER_SETTINGS):
            if getattr(config, name) not in (None, False if name == "expert_parallel" else None):
                raise UserError(f"{flag(name)}: {config.arch} has no experts here; give --n-experts, too")
    if not batches.is_constant:
        flops = batches.flops(planned.steps, lambda length: flops_per_token(model, length))
        planned = replace(planned, tokens=batches.tokens(planned.steps), flops=flops)
    init = config.init or model.architecture.init
    filled = replace(filled, init=init, base_d_model=model.base_d_model, base_n_layers=model.base_n_layers)
    run_dir = config.run_dir
    if run_dir is None:
        name = config.name or default_name(filled, config, dataset.name)
        run_dir = (environment_path("RESULTS_BASE_FOLDER") or Path("runs")) / name
    filled = replace(filled, run_dir=run_dir, name=config.name or run_dir.name)
    device_type = device_type or (config.device or "cpu").partition(":")[0]
    on_gpu = device_type == "cuda"
    # torch.compile generates no code for the oscillators' complex numbers.
    compiles = on_gpu and not model.architecture.oscillators
    resolved = RunSpec(
        config=filled,
        model=model,
        plan=planned,
        run_dir=run_dir,
        device_type=device_type,
        dtype=config.dtype or ("bfloat16" if on_gpu else "float32"),
        compile=compiles if config.compile is None else config.compile,
        backend=config.usual_backend(world_size),
        automatic=frozenset(name for name, value in config.as_dict().items() if value is None),
        notes=tuple(notes),
    )
    resolved.schedule()  # refuses settings that do not fit, before anything is written
    checkpointing_rule(config.activation_checkpointing)
    if (jump := resolved.jump()) is not None:
        resolved = replace(resolved, notes=(*resolved.notes, jump))
    return resolved


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
    words = [filled.arch, short_name(filled.opt), size, data_name, f"b{filled.global_batch}x{filled.seq_len}"]
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
