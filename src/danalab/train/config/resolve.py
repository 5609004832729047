"""From a configuration to a complete `RunSpec`: automatic values follow from the scaling rules, explicit ones win.

Needs no torch, so that `danalab train --print-config` is quick.
"""

import os
import re
from dataclasses import replace
from pathlib import Path

from danalab.data.vocabulary import Vocabulary
from danalab.errors import UserError
from danalab.models.config import ModelConfig
from danalab.scaling import Plan, flops_per_token, plan
from danalab.scaling.architectures import ARCHITECTURES
from danalab.scaling.learning_rate import OPTIMIZERS, decay_lr
from danalab.scaling.plan import OMEGA
from danalab.scaling.shape import EXPERT_SETTINGS, RESONANCE_SETTINGS, ROUTER_SETTINGS
from danalab.train.config.batch_schedule import BatchSchedule
from danalab.train.config.fields import flag
from danalab.train.config.model_size import model_dimensions
from danalab.train.config.optimizer_settings import checked_settings
from danalab.train.config.rules import Rules, read_rules
from danalab.train.config.run_name import default_name
from danalab.train.config.run_spec import RunSpec
from danalab.train.config.train_config import TrainConfig

DEFAULT_BATCH = 32
DEFAULT_SEQ_LEN = 2048
DEFAULT_EVAL_INTERVAL = 200
LARGEST_AUTOMATIC_DECAY = 0.5
"""Largest share of a weight that an automatic weight decay takes in the first step; in runs of a few steps the rule,
omega / t, would take more than the whole weight."""

_DILOCO = {"diloco_steps": 500, "diloco_lr": 0.7, "diloco_momentum": 0.9, "diloco_patience": 600.0}
"""As in the paper, arXiv 2311.08105."""

_OLD_NAME = (
    "--arch diloco is an old name of enoki: the model is an enoki; DiLoCo training, of any architecture, is "
    "--distributed-backend diloco"
)


def resolve(config: TrainConfig, dataset: Vocabulary, world_size: int = 1, device_type: str | None = None) -> RunSpec:
    """Fill in all automatic values.

    Args:
        dataset: gives the vocabulary.
        world_size: data-parallel ranks.
        device_type: cpu or cuda, where the run is trained; default that of --device, else cpu.
    Raises:
        UserError: settings that are impossible or contradict each other.
    """
    if config.optimizer_settings:
        config = replace(config, optimizer_settings=checked_settings(config))
    notes = [_OLD_NAME] if config.arch.lower() == "diloco" else []
    idle = [
        flag(f"wandb_{name}") for name in ("project", "entity", "group", "mode") if getattr(config, f"wandb_{name}")
    ]
    if idle and not config.wandb:
        notes.append(f"{', '.join(idle)} without --wandb: nothing goes to Weights & Biases")
    if config.distributed_backend == "diloco":
        given = {name: getattr(config, name) for name in _DILOCO}
        config = replace(config, **{name: _DILOCO[name] if it is None else it for name, it in given.items()})
    config = replace(config, seq_len=config.seq_len or _seq_len(dataset))
    if config.document_mask and dataset.eos_id is None:
        raise UserError(f"--document-mask: the id that ends a document of {dataset.name} is unknown; leave it out")
    if config.document_mask and config.compile and ARCHITECTURES.get(config.arch).oscillators:
        raise UserError(f"--compile: not with --document-mask for {config.arch}, which sorts documents by length")
    if config.context_len is not None and config.context_len < (config.seq_len or 0):
        raise UserError(f"--context-len {config.context_len}: must be at least --seq-len, {config.seq_len}")
    _check_phases(config)
    batch_size, acc_steps, global_batch = _batch(config, world_size)
    vocab_size = _vocab_size(config, dataset)
    if config.epochs is not None:
        config = replace(config, iterations=_steps_of_epochs(config, dataset, global_batch))
    planned = _plan(config, vocab_size, batch_size, acc_steps, global_batch, world_size)
    batches = BatchSchedule.of(global_batch, planned.seq_len, config.batch_ramp, config.seq_len_ramp)
    if batches.batch.stages and config.iterations is None:  # more steps, for as many tokens
        steps = max(1, batches.batch.steps_within(planned.steps * global_batch))
        planned = _plan(replace(config, iterations=steps), vocab_size, batch_size, acc_steps, global_batch, world_size)
    fitted_at = re.search(r"at batch (\d+)", planned.lr_source)
    if config.lr is None and fitted_at and int(fitted_at[1]) != global_batch:
        notes.append(
            f"the learning-rate law was fitted at another batch than {global_batch} sequences ({planned.lr_source}): "
            "its rate is an extrapolation; try --lr-multiplier"
        )
    planned, about_decay = checked_decay(planned, config.weight_decay)
    notes += about_decay
    if config.extend_to is not None and config.extend_to < planned.steps:
        raise UserError(f"--extend-to {config.extend_to}: the run has {planned.steps} steps already")
    model = ModelConfig(
        planned.arch,
        planned.d_model,
        planned.n_layers,
        planned.n_heads,
        planned.head_dim,
        planned.mlp_dim,
        vocab_size,
        config.context_len or planned.seq_len,
        attention_gate=config.attention_gate,
        n_kv_heads=config.n_kv_heads,
        tied_head=config.tied_head,
        dropout=config.dropout,
        num_frequencies=planned.num_frequencies,
        mixer=config.mixer,
        full_attention_interval=config.full_attention_interval,
        **{name: getattr(config, name) for name in (*EXPERT_SETTINGS, *RESONANCE_SETTINGS)},
        **{name: value for name in ROUTER_SETTINGS if (value := getattr(config, name)) is not None},
    )
    if model.sparsity is None:
        for name in ("expert_parallel", *ROUTER_SETTINGS):
            if getattr(config, name) not in (None, False if name == "expert_parallel" else None):
                raise UserError(f"{flag(name)}: {config.arch} has no experts here; give --n-experts, too")
    if not batches.is_constant:
        flops = batches.flops(planned.steps, lambda length: flops_per_token(model, length))
        planned = replace(planned, tokens=batches.tokens(planned.steps), flops=flops)
    filled = replace(
        config,
        arch=planned.arch,
        opt=planned.opt,
        batch_size=batch_size,
        acc_steps=acc_steps,
        global_batch=global_batch,
        vocab_size=vocab_size,
        d_model=planned.d_model,
        n_layers=planned.n_layers,
        n_heads=planned.n_heads,
        head_dim=planned.head_dim,
        mlp_dim=planned.mlp_dim,
        num_frequencies=planned.num_frequencies,
        n_experts=planned.n_experts,
        top_k=planned.top_k,
        expert_dim=planned.expert_dim,
        n_shared_experts=planned.n_shared_experts,
        init=config.init or model.architecture.init,
        iterations=planned.steps,
        eval_interval=_eval_interval(config.eval_interval, planned.steps),
        warmup_steps=planned.warmup,
        lr=planned.lr,
        omega=planned.omega,
        weight_decay=planned.weight_decay,
        wd_ts=planned.wd_ts,
    )
    run_dir = config.run_dir or _default_folder() / (config.name or default_name(filled, config, dataset.name))
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
        lr_source=planned.lr_source,
        device_type=device_type,
        dtype=config.dtype or ("bfloat16" if on_gpu else "float32"),
        compile=compiles if config.compile is None else config.compile,
        backend=config.usual_backend(world_size),
        automatic=frozenset(name for name, value in config.as_dict().items() if value is None),
        notes=tuple(notes),
    )
    resolved.schedule()  # refuses settings that do not fit, before anything is written
    if (jump := resolved.jump()) is not None:
        resolved = replace(resolved, notes=(*resolved.notes, jump))
    return resolved


def _check_phases(config: TrainConfig) -> None:
    factor = config.phase_lr_factor
    if factor != 1 and (not ARCHITECTURES.get(config.arch).oscillators or config.mixer == "none"):
        what = "--mixer none" if config.mixer == "none" else f"--arch {config.arch}"
        raise UserError(f"--phase-lr-factor {factor}: {what} has no phases; leave it out")


def _batch(config: TrainConfig, world_size: int) -> tuple[int, int, int]:
    """(micro-batch, micro-batches a step, global batch), where global = micro x ranks x accumulation."""
    if config.global_batch is None:
        batch_size, acc_steps = config.batch_size or DEFAULT_BATCH, config.acc_steps or 1
        return batch_size, acc_steps, batch_size * acc_steps * world_size
    total = config.global_batch
    if total % world_size:
        raise UserError(f"--global-batch {total} is not divisible by the {world_size} ranks")
    local = total // world_size
    batch_size = config.batch_size
    if batch_size is None:
        if config.acc_steps is None:
            batch_size = next(size for size in range(min(DEFAULT_BATCH, local), 0, -1) if local % size == 0)
        elif local % config.acc_steps:
            raise UserError(
                f"--global-batch {total} on {world_size} ranks is not divisible by --acc-steps {config.acc_steps}"
            )
        else:
            batch_size = local // config.acc_steps
    if local % batch_size:
        raise UserError(f"--global-batch {total} is not divisible by --batch-size {batch_size} x {world_size} ranks")
    acc_steps = local // batch_size
    if config.acc_steps not in (None, acc_steps):
        raise UserError(
            f"--global-batch {total} = --batch-size {batch_size} x {world_size} ranks x {acc_steps}, "
            f"not --acc-steps {config.acc_steps}; leave one of them out"
        )
    return batch_size, acc_steps, total


def _steps_of_epochs(config: TrainConfig, dataset: Vocabulary, global_batch: int) -> int:
    """floor(epochs x sequences / global batch)."""
    n_tokens = getattr(dataset, "n_tokens", None)
    if n_tokens is None:
        raise UserError(f"--epochs {config.epochs:g}: the number of tokens is not known before the data are prepared")
    assert config.epochs is not None
    assert config.seq_len is not None
    steps = int(config.epochs * (n_tokens // config.seq_len) / global_batch)
    if steps < 1:
        raise UserError(f"--epochs {config.epochs:g}: {n_tokens:,} tokens are less than one step")
    if config.iterations not in (None, steps):
        raise UserError(
            f"--epochs {config.epochs:g} is {steps} steps, not --iterations {config.iterations}; leave one out"
        )
    return steps


def _eval_interval(chosen: int | None, steps: int) -> int:
    """Short runs are evaluated at least ten times, so that they can be compared."""
    return chosen if chosen is not None else max(1, min(DEFAULT_EVAL_INTERVAL, steps // 10))


def _seq_len(dataset: Vocabulary) -> int:
    whole = dataset.sequence_length
    return DEFAULT_SEQ_LEN if whole is None else whole - 1


def _vocab_size(config: TrainConfig, dataset: Vocabulary) -> int:
    if config.vocab_size is None:
        return dataset.vocab_size
    if config.vocab_size < dataset.least_vocab_size:
        raise UserError(
            f"--vocab-size {config.vocab_size}: the tokens of {dataset.name} need {dataset.least_vocab_size}; "
            "leave it out"
        )
    return config.vocab_size


def _plan(
    config: TrainConfig, vocab_size: int, batch_size: int, acc_steps: int, global_batch: int, world_size: int
) -> Plan:
    rules = Rules() if config.rules is None else read_rules(config.rules)
    dims = model_dimensions(config, vocab_size, rules.size(config.arch))
    omega = config.omega
    if omega is None:
        omega = rules.omega(config.arch, OPTIMIZERS.canonical(config.opt))

    def make(lr: float | None) -> Plan:
        return plan(
            config.arch,
            config.opt,
            config.heads if dims is None else None,
            dims=dims,
            seq_len=config.seq_len or DEFAULT_SEQ_LEN,
            context_len=config.context_len,
            batch_size=batch_size,
            acc_steps=acc_steps,
            world_size=world_size,
            global_batch=global_batch,
            vocab_size=vocab_size,
            attention_gate=config.attention_gate,
            tied_head=config.tied_head,
            n_kv_heads=config.n_kv_heads,
            kappa=config.kappa,
            delta=config.delta,
            omega=OMEGA if omega is None else omega,
            tokens_per_param=config.tokens_per_param,
            horizon_basis=config.horizon_basis,
            iterations=config.iterations,
            warmup_steps=config.warmup_steps,
            lr=lr,
            weight_decay=config.weight_decay,
            wd_ts=config.wd_ts,
            wd_ts_divisor=config.wd_ts_divisor,
            settings={
                name: getattr(config, name)
                for name in (*EXPERT_SETTINGS, *RESONANCE_SETTINGS, "full_attention_interval")
            },
        )

    planned = make(config.lr)
    if config.lr is not None:
        return planned
    lr, source = planned.lr, planned.lr_source
    if (found := rules.law(planned.arch, planned.opt, global_batch)) is not None:
        law, source = found
        lr = law(planned.non_emb_params)
    if config.lr_multiplier != 1:
        lr, source = lr * config.lr_multiplier, f"{source}, times {config.lr_multiplier:g}"
    if lr != planned.lr:  # planned again: a coupled weight decay depends on the learning rate
        planned = replace(make(lr), lr_source=source)
    return planned


def checked_decay(planned: Plan, given: float | None) -> tuple[Plan, list[str]]:
    """Refuse an explicit weight decay that flips signs in the first step; limit an automatic one (`given` is None).

    Returns:
        The plan, and a note where the weight decay was limited.
    """
    independent = OPTIMIZERS.get(planned.opt) == "independent"
    factor = 1.0
    if not independent:
        factor = decay_lr(
            planned.arch, planned.opt, planned.lr, planned.non_emb_params, planned.kappa, planned.global_batch
        )
    elif planned.wd_ts is not None:
        factor = 1 / (1 + 1 / planned.wd_ts)
    first = planned.weight_decay * factor
    if given is not None and first > 1:
        what = f"and --wd-ts {planned.wd_ts:g} " if planned.wd_ts is not None else ""
        times = "independent of the learning rate" if independent else f"times the learning rate, {factor:g}"
        raise UserError(
            f"--weight-decay {planned.weight_decay:g} {what}takes {first:g} of each weight in the first step "
            f"(it is {times}); it must stay below 1, and 4 / wd_ts is usual"
        )
    if given is None and first > LARGEST_AUTOMATIC_DECAY:
        held = LARGEST_AUTOMATIC_DECAY / factor
        note = f"weight decay {held:.4g} in place of {planned.weight_decay:.4g}: the run has only {planned.steps} steps"
        return replace(planned, weight_decay=held), [note]
    return planned, []


def _default_folder() -> Path:
    return Path(os.environ.get("RESULTS_BASE_FOLDER") or "runs")
