"""The plan of a run by the scaling rules: dimensions, batch, length, learning rate, weight decay, evaluations."""

from dataclasses import replace

from danalab.data.vocabulary import Vocabulary
from danalab.errors import UserError
from danalab.models.parametrization import BASE_D_MODEL, BASE_N_LAYERS, multiples
from danalab.optim.catalogue import OPTIMIZERS
from danalab.scaling import Dimensions, Plan, dimensions, explicit_dimensions, plan
from danalab.scaling.learning_rate import PeakRate, decay_lr
from danalab.scaling.resonance import if_resonance
from danalab.scaling.shape import EXPERT_SETTINGS, RESONANCE_SETTINGS
from danalab.train.config.execution import EvaluationSettings
from danalab.train.config.experiment import ModelSettings
from danalab.train.config.fields import flag
from danalab.train.config.rules import Rules, SizeRule, read_rules
from danalab.train.config.train_config import TrainConfig

DEFAULT_BATCH = 32
DEFAULT_SEQ_LEN = 2048
LARGEST_AUTOMATIC_DECAY = 0.5
"""Largest share of a weight that an automatic weight decay takes in the first step; in runs of a few steps the rule,
omega / t, would take more than the whole weight."""

MODEL_FLAGS = (
    "arch", "d_model", "n_layers", "n_heads", "head_dim", "mlp_dim", "vocab_size", "seq_len", "n_kv_heads",
    "attention_gate", "tied_head", "num_frequencies", "mixer", "full_attention_interval", *EXPERT_SETTINGS,
    *RESONANCE_SETTINGS, "parametrization", "base_d_model", "base_n_layers",
)  # fmt: skip
"""Settings of a run that describe its model, apart from those of a router."""
MODEL_SETTINGS = (*EXPERT_SETTINGS, *RESONANCE_SETTINGS, "full_attention_interval")
PLAN_SETTINGS = ("context_len", "attention_gate", "tied_head", "n_kv_heads", "kappa", "delta", "tokens_per_param",
             "horizon_basis", "iterations", "warmup_steps", "weight_decay", "wd_ts", "wd_ts_divisor",
             "decay_bound")  # fmt: skip
"""Settings that `plan` takes as they are."""


def batch_sizes(config: TrainConfig, world_size: int) -> tuple[int, int, int]:
    """(micro-batch, micro-batches per step, global batch), where global = micro x ranks x accumulation."""
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
            raise UserError(f"--acc-steps {config.acc_steps} must divide --global-batch {total} on {world_size} ranks")
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


def steps_of_epochs(config: TrainConfig, dataset: Vocabulary, global_batch: int) -> int:
    """floor(epochs x sequences / global batch)."""
    tokens_per_epoch = getattr(dataset, "tokens_per_epoch", None)
    if tokens_per_epoch is None:
        raise UserError(f"--epochs {config.epochs:g}: the number of tokens is not known before the data are prepared")
    assert config.epochs is not None
    assert config.seq_len is not None
    n_tokens = tokens_per_epoch(config.seq_len)
    steps = int(config.epochs * (n_tokens // config.seq_len) / global_batch)
    if steps < 1:
        raise UserError(f"--epochs {config.epochs:g}: {n_tokens:,} tokens are less than one step")
    if config.iterations not in (None, steps):
        raise UserError(f"--epochs {config.epochs:g} is {steps} steps, not --iterations {config.iterations}; give one")
    return steps


def plan_run(config: TrainConfig, vocab_size: int, global_batch: int, tokens: int | None = None) -> Plan:
    """Size, length, learning rate and weight decay: explicit ones, else those of the rules, else of the fitted laws.

    `tokens`: of the run, where smaller batches come first.
    """
    rules = Rules() if config.rules is None else read_rules(config.rules)
    dims = model_dimensions(config, vocab_size, rules.size(config.arch))
    omega, opt = config.omega, OPTIMIZERS.canonical(config.opt)
    if omega is None:
        omega = rules.omega(config.arch, opt)
    fitted = rules.law(config.arch, opt, global_batch, config.kappa)

    def make(lr: float | PeakRate | None, rate_size: float = 1.0) -> Plan:
        return plan(
            config.arch,
            config.opt,
            config.heads if dims is None else None,
            dims=dims,
            seq_len=config.seq_len or DEFAULT_SEQ_LEN,
            global_batch=global_batch,
            vocab_size=vocab_size,
            omega=omega,
            horizon_law="none" if fitted else config.horizon_law,
            tokens=tokens,
            lr=lr,
            rate_size=rate_size,
            settings={name: getattr(config, name) for name in MODEL_SETTINGS},
            optimizer_settings=config.optimizer_settings,
            **{name: getattr(config, name) for name in PLAN_SETTINGS},
        )

    planned = make(config.lr)
    if config.lr is not None:
        return planned
    rate_size = _base_size(config, planned)
    if rate_size != 1:
        planned = make(None, rate_size)
    peak = planned.peak
    if fitted is not None:
        law, source = fitted
        peak = PeakRate(law(rate_size * planned.non_emb_params), source, law.batch)
    if config.lr_multiplier != 1:
        source = f"{peak.source}, times {config.lr_multiplier:g}"
        peak = replace(peak, lr=peak.lr * config.lr_multiplier, source=source)
    if peak.lr != planned.lr:  # planned again: a coupled weight decay depends on the learning rate
        planned = make(peak)
    return planned


def _base_size(config: TrainConfig, planned: Plan) -> float:
    """Parameters of the base model of --parametrization over those of the model, embeddings apart."""
    if config.parametrization == "standard":
        return 1.0
    layers = (config.base_n_layers or BASE_N_LAYERS) if config.parametrization == "completep" else None
    m, n = multiples(planned.d_model, planned.n_layers, config.base_d_model or BASE_D_MODEL, layers)
    return 1 / (m * m * n)


def checked_decay(planned: Plan, given: float | None) -> tuple[Plan, list[str]]:
    """(plan, note). Limits an automatic weight decay (`given` None); refuses a given one that flips signs at once."""
    independent = OPTIMIZERS.get(planned.opt).decay == "independent"
    factor = 1.0
    if not independent:
        factor = decay_lr(
            planned.arch, planned.opt, planned.lr, planned.non_emb_params, planned.kappa, planned.global_batch
        )
    elif planned.decay_bound:
        return planned, []
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


NUMBERS = ("d_model", "n_layers", "n_heads", "head_dim", "mlp_dim")


def model_dimensions(settings: ModelSettings, vocab_size: int, rule: SizeRule | None = None) -> Dimensions | None:
    """Explicit dimensions, or those of --heads by a rule; None where --heads decides by the architecture's."""
    given = {name: getattr(settings, name) for name in NUMBERS}
    if settings.heads is None:
        dims = if_resonance(settings.arch, settings.size, settings.num_frequencies, vocab_size, settings.mixer, **given)
        if dims is not None:
            return dims
    else:
        ruled = None if rule is None else rule.dimensions(settings.heads, vocab_size, settings.n_kv_heads)
        _agree_with_heads(settings, ruled or dimensions(settings.arch, settings.heads, vocab_size))
        return ruled
    if settings.d_model is None or settings.n_layers is None or settings.n_heads is None:
        raise UserError("give a size: --heads 4, or --d-model 64 --n-layers 2 --n-heads 1")
    return explicit_dimensions(
        settings.arch, settings.d_model, settings.n_layers, settings.n_heads, settings.head_dim, settings.mlp_dim,
        vocab_size, settings.n_kv_heads,
    )  # fmt: skip


def _agree_with_heads(settings: ModelSettings, by_rule: Dimensions) -> None:
    for name in ("size", "num_frequencies", "mixer"):
        if getattr(settings, name) is not None:
            raise UserError(f"{flag(name)} {getattr(settings, name)}: not with --heads; leave one of the two out")
    for name in NUMBERS:
        # A resolved configuration has both, and they agree.
        if getattr(settings, name) not in (None, getattr(by_rule, name)):
            raise UserError(
                f"--heads {settings.heads} decides all dimensions: {flag(name)} is {getattr(by_rule, name)}, "
                f"not {getattr(settings, name)}; leave one of the two out"
            )


DEFAULT_INTERVAL, LEAST_EVALUATIONS = 200, 10
DEFAULT_BATCHES, LEAST_BATCHES = 64, 4
SHARE = 0.25
"""Time of all evaluations during a run but the last, as a share of the time of training, at most."""
FIXED_BATCH = 32
"""Sequences in one of `--eval-batches`; a constant, so that the fixed set does not depend on the batch."""


def evaluation_settings(settings: EvaluationSettings, sequences: int, steps: int) -> dict[str, int]:
    """Interval and sizes of evaluations. A forward pass of one of the run's `sequences` is a third of its training."""
    interval, fixed, final = settings.eval_interval, settings.eval_batches, settings.final_eval_batches
    if interval is None:
        interval = max(1, min(DEFAULT_INTERVAL, steps // LEAST_EVALUATIONS))
    if fixed is None:
        evaluations = steps // interval if interval else 1
        share = 3 * SHARE * sequences / max(evaluations, 1)
        fixed = max(LEAST_BATCHES, min(DEFAULT_BATCHES, int(share / FIXED_BATCH)))
    if final is None:
        final = max(fixed, -(-sequences // FIXED_BATCH)) if fixed else 0
    return {"eval_interval": interval, "eval_batches": fixed, "final_eval_batches": final}
