"""From a configuration to a complete `RunSpec`, in eight pure steps. Needs no torch: `--print-config` is quick.

    data -> batch -> model -> budget -> rate -> decay -> evaluation -> execution

Automatic values follow from the scaling rules; explicit ones win. Sizes of batches and of evaluations are computed
beside their settings, in `experiment` and `execution`; laws and horizons in `danalab.scaling`.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from danalab.data.vocabulary import Vocabulary
from danalab.errors import UserError
from danalab.files import environment_path
from danalab.models.config import ModelConfig, checkpointing_rule
from danalab.scaling import Dimensions, dimensions, explicit_dimensions
from danalab.scaling.architectures import ARCHITECTURES
from danalab.scaling.dimensions import check_resonance, if_resonance
from danalab.scaling.learning_rate import PeakRate, at_horizon, decay_lr
from danalab.scaling.optimizers import canonical_name, facts_of
from danalab.scaling.plan import OMEGA, OptimizerPlan, TrainingBudget, budget_of, decay_of, horizon_of, law_rate
from danalab.scaling.shape import EXPERT_SETTINGS, RESONANCE_SETTINGS, ROUTER_SETTINGS
from danalab.train.config.experiment import ModelSettings
from danalab.train.config.fields import flag
from danalab.train.config.rules import Rules, SizeRule, read_rules
from danalab.train.config.run_spec import Execution, RunBudget, RunSpec, checked_settings
from danalab.train.config.train_config import TrainConfig, default_name

DEFAULT_SEQ_LEN = 2048
LARGEST_AUTOMATIC_DECAY = 0.5
"""Largest share of a weight that an automatic weight decay takes in the first step; in runs of a few steps the rule,
omega / t, would take more than the whole weight."""
NUMBERS = ("d_model", "n_layers", "n_heads", "head_dim", "mlp_dim")
MODEL_FLAGS = (
    "arch", *NUMBERS, "vocab_size", "seq_len", "n_kv_heads", "attention_gate", "tied_head", "num_frequencies", "mixer",
    "full_attention_interval", *EXPERT_SETTINGS, *RESONANCE_SETTINGS,
)  # fmt: skip
"""Settings of a run that describe its model, apart from those of a router."""


def resolve(config: TrainConfig, dataset: Vocabulary, world_size: int = 1, device_type: str | None = None) -> RunSpec:
    """Fill in all automatic values for `world_size` data-parallel ranks; UserError: impossible or contradicting ones.

    `device_type`: cpu or cuda, where the run is trained; default that of --device, else cpu.
    """
    rules = Rules() if config.rules is None else read_rules(config.rules)
    given = replace(config, optimizer_settings=checked_settings(config))
    seq_len, vocab_size = choose_data(given, dataset)
    batch_size, acc_steps, global_batch = given.batch_sizes(world_size)
    dims, model = choose_model(given, vocab_size, seq_len, rules)
    budget = choose_budget(given, dataset, dims, seq_len, global_batch)
    peak, f = choose_rate(given, dims, budget, rules)
    chosen, notes = choose_decay(given, dims, budget, peak, f, rules)
    evaluation = given.evaluation_sizes(budget.steps * global_batch, budget.steps)
    whole = RunBudget(**vars(budget), batch_size=batch_size, acc_steps=acc_steps, **evaluation)
    parts: dict[str, Any] = {"given": given, "model": model, "budget": whole, "optimizer": chosen}
    spec = RunSpec(**parts, execution=choose_execution(given, model, chosen, whole, dataset, world_size, device_type))
    spec.schedule()  # refuses settings that do not fit, before anything is written
    return replace(spec, notes=(*_remarks(spec), *notes, *filter(None, [spec.jump()])))


# ---- data ----


def choose_data(given: TrainConfig, dataset: Vocabulary) -> tuple[int, int]:
    """(tokens of a training sequence, vocabulary of the model)."""
    seq_len = given.seq_len or ((dataset.sequence_length or DEFAULT_SEQ_LEN + 1) - 1)
    if given.document_mask and dataset.eos_id is None:
        raise UserError(f"--document-mask: the id that ends a document of {dataset.name} is unknown; leave it out")
    if given.context_len is not None and given.context_len < seq_len:
        raise UserError(f"--context-len is {given.context_len}; it must be at least --seq-len, {seq_len}")
    if given.vocab_size is not None and given.vocab_size < dataset.least_vocab_size:
        name, least = dataset.name, dataset.least_vocab_size
        raise UserError(f"--vocab-size {given.vocab_size}: {name} needs {least}; leave it out")
    return seq_len, given.vocab_size or dataset.vocab_size


# ---- model ----


def choose_model(given: TrainConfig, vocab_size: int, seq_len: int, rules: Rules) -> tuple[Dimensions, ModelConfig]:
    """The model, as the scaling rules see it and as it is built."""
    dims = model_dimensions(given, vocab_size, rules.size(given.arch))
    names = (*EXPERT_SETTINGS, *RESONANCE_SETTINGS, "full_attention_interval")
    own: dict[str, Any] = {name: getattr(given, name) for name in names}
    own |= {name: value for name in ("attention_gate", "tied_head") if (value := getattr(given, name)) is not None}
    dims = replace(dims, seq_len=given.context_len or seq_len, **own)
    check_resonance(dims)
    dims = dims.resolved()
    described: dict[str, Any] = {name: getattr(given, name) for name in (*MODEL_FLAGS, "dropout")}
    described |= {name: getattr(dims, name) for name in ("arch", *NUMBERS, "vocab_size", "seq_len", "num_frequencies")}
    described |= {name: value for name in ROUTER_SETTINGS if (value := getattr(given, name)) is not None}
    model = ModelConfig(**described)
    if given.phase_lr_factor != 1 and (model.mixer == "none" or not model.architecture.oscillators):
        what = "--mixer none" if model.mixer == "none" else f"--arch {given.arch}"
        raise UserError(f"--phase-lr-factor {given.phase_lr_factor}: {what} has no phases; leave it out")
    for name in ROUTER_SETTINGS:
        if model.sparsity is None and getattr(given, name) is not None:
            raise UserError(f"{flag(name)}: {given.arch} has no experts here; give --n-experts, too")
    if model.sparsity is None and given.expert_parallel:
        raise UserError(f"--expert-parallel: {given.arch} has no experts here; give --n-experts, too")
    return dims, model


def model_dimensions(settings: ModelSettings, vocab_size: int, rule: SizeRule | None = None) -> Dimensions:
    """Explicit dimensions, or those of --heads by a rule of --rules or of the architecture."""
    given = {name: getattr(settings, name) for name in NUMBERS}
    if settings.heads is not None:
        keys = settings.n_kv_heads
        by_rule = (
            dimensions(settings.arch, settings.heads, vocab_size, keys)
            if rule is None
            else rule.dimensions(settings.heads, vocab_size, keys)
        )
        for name in ("size", "num_frequencies", "mixer"):
            if getattr(settings, name) is not None:
                raise UserError(f"{flag(name)} {getattr(settings, name)}: not with --heads; leave one of the two out")
        for name, value in given.items():
            if value not in (None, getattr(by_rule, name)):  # a resolved configuration has both, and they agree
                raise UserError(
                    f"--heads {settings.heads} decides all dimensions: {flag(name)} is {getattr(by_rule, name)}, "
                    f"not {value}; leave one of the two out"
                )
        return by_rule
    dims = if_resonance(settings.arch, settings.size, settings.num_frequencies, vocab_size, settings.mixer, **given)
    if dims is not None:
        return dims
    if settings.d_model is None or settings.n_layers is None or settings.n_heads is None:
        raise UserError("give a size: --heads 4, or --d-model 64 --n-layers 2 --n-heads 1")
    return explicit_dimensions(settings.arch, **given, vocab_size=vocab_size, n_kv_heads=settings.n_kv_heads)


# ---- budget ----


def choose_budget(
    given: TrainConfig, dataset: Vocabulary, dims: Dimensions, seq_len: int, global_batch: int
) -> TrainingBudget:
    """Steps, warm-up, tokens and FLOPs of the run."""
    asked = given
    if given.epochs is not None:
        tokens = getattr(dataset, "tokens_per_epoch", None)
        asked = replace(given, iterations=given.steps_of_epochs(tokens and tokens(seq_len), seq_len, global_batch))
    budget = budget_of(asked, dims, seq_len, global_batch)
    if given.extend_to is not None and given.extend_to < budget.steps:
        raise UserError(f"--extend-to {given.extend_to}: the run has {budget.steps} steps already")
    return budget


# ---- learning rate ----


def choose_rate(given: TrainConfig, dims: Dimensions, nominal: TrainingBudget, rules: Rules) -> tuple[PeakRate, float]:
    """(peak learning rate: as given, by --rules, or by the fitted law; the horizon f that weight decay follows)."""
    if given.lr is not None:
        return PeakRate(given.lr, "given"), 1.0
    opt, f = canonical_name(given.opt), 1.0
    fitted = rules.law(given.arch, opt, nominal.global_batch, given.kappa)
    if fitted is not None:
        law, source = fitted
        peak = PeakRate(law(dims.non_emb_params), source, law.batch)
    else:
        if given.horizon_law == "measured":
            f = horizon_of(dims, nominal, given.horizon_basis)
        peak = at_horizon(law_rate(dims, opt, given.kappa, nominal.tokens_per_step), opt, f)
    if given.lr_multiplier != 1:
        source = f"{peak.source}, times {given.lr_multiplier:g}"
        peak = replace(peak, lr=peak.lr * given.lr_multiplier, source=source)
    return peak, f


# ---- weight decay ----


def choose_decay(
    given: TrainConfig, dims: Dimensions, budget: TrainingBudget, peak: PeakRate, f: float, rules: Rules
) -> tuple[OptimizerPlan, list[str]]:
    """(optimizer with its weight decay, notes). An automatic decay is limited; a given one must not flip signs."""
    opt = canonical_name(given.opt)
    asked = given if given.omega is not None else replace(given, omega=rules.omega(given.arch, opt))
    chosen, independent = decay_of(asked, dims, budget, peak, f), facts_of(opt).decay == "independent"
    factor = 1.0
    if not independent:
        factor = decay_lr(dims.arch, opt, peak.lr, dims.non_emb_params, chosen.kappa, budget.global_batch)
    elif chosen.decay_bound:
        return chosen, []
    elif chosen.wd_ts is not None:
        factor = 1 / (1 + 1 / chosen.wd_ts)
    first = chosen.weight_decay * factor
    if given.weight_decay is not None and first > 1:
        what = f"and --wd-ts {chosen.wd_ts:g} " if chosen.wd_ts is not None else ""
        times = "independent of the learning rate" if independent else f"times the learning rate, {factor:g}"
        raise UserError(
            f"--weight-decay {chosen.weight_decay:g} {what}takes {first:g} of each weight in the first step "
            f"(it is {times}); it must stay below 1, and {OMEGA:g} / wd_ts is usual"
        )
    if given.weight_decay is None and first > LARGEST_AUTOMATIC_DECAY:
        held = LARGEST_AUTOMATIC_DECAY / factor
        note = f"weight decay {held:.4g} instead of {chosen.weight_decay:.4g}: the run has only {budget.steps} steps"
        return replace(chosen, weight_decay=held), [note]
    return chosen, []


# ---- execution ----


def choose_execution(
    given: TrainConfig, model: ModelConfig, chosen: OptimizerPlan, budget: TrainingBudget, dataset: Vocabulary,
    world_size: int, device_type: str | None,
) -> Execution:  # fmt: skip
    """Device, number format, compiler, ranks, and the run folder."""
    checkpointing_rule(given.activation_checkpointing)
    oscillates = model.architecture.oscillators
    if given.document_mask and given.compile and oscillates:
        raise UserError(f"--compile: not with --document-mask for {given.arch}, which sorts documents by length")
    device_type = device_type or (given.device or "cpu").partition(":")[0]
    on_gpu = device_type == "cuda"
    run_dir = given.run_dir
    if run_dir is None:
        name = given.name or default_name(given, model, chosen, budget, dataset.name)
        run_dir = (environment_path("RESULTS_BASE_FOLDER") or Path("runs")) / name
    return Execution(
        run_dir=run_dir,
        name=given.name or run_dir.name,
        device_type=device_type,
        dtype=given.dtype or ("bfloat16" if on_gpu else "float32"),
        # torch.compile generates no code for the oscillators' complex numbers.
        compile=(on_gpu and not oscillates) if given.compile is None else given.compile,
        backend=given.usual_backend(world_size),
    )


# ---- notes ----


def _remarks(spec: RunSpec) -> list[str]:
    given, planned = spec.given, spec.plan
    old = ARCHITECTURES.get(given.arch).old_names.get(given.arch.lower())
    notes = [] if old is None else [f"--arch {given.arch.lower()} is {old}"]
    idle = [flag(f"wandb_{key}") for key in ("project", "entity", "group", "mode") if getattr(given, f"wandb_{key}")]
    if idle and not given.wandb:
        notes.append(f"{', '.join(idle)} without --wandb: nothing goes to Weights & Biases")
    if planned.lr_law_batch not in (None, planned.global_batch) and planned.lr_batch_factor == 1:
        notes.append(
            f"the learning-rate law was fitted at another batch than {planned.global_batch} sequences "
            f"({planned.lr_source}): its rate here is not measured; try --lr-multiplier"
        )
    return notes
