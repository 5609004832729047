"""From the settings as given to the settings in full: the paper's recipe, in its order.

tokens per step = global batch x seq_len         steps   = floor(20 x total parameters / tokens per step)
warmup         = `warmup_steps`                  lr      = a (b + P)^d, see `danalab.scaling.learning_rate`
weight decay    = omega / wd_ts, wd_ts = steps / 10     independent: times the schedule, not the peak lr
                = omega / (lr x steps)                  coupled: AdamW and most others; Manau also has wd_ts = steps
                  at most `largest_decay` x the peak lr, in both cases

Source: arXiv 2602.05298, appendix on the scaling ladder; Hoffmann et al. 2022 for the horizon.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from danalab.data.vocabulary import Vocabulary
from danalab.errors import UserError
from danalab.files import environment_path
from danalab.models.architectures import architecture
from danalab.models.config import GPT2_VOCAB, ModelConfig
from danalab.optimizer_facts import OMEGA, canonical_name, facts_of
from danalab.optimizer_facts import warmup_steps as usual_warmup
from danalab.scaling.learning_rate import (
    decay_factor,
    largest_decay,
    law_rate,
)
from danalab.train.config.rules import Rules, read_rules
from danalab.train.config.train_config import FIXED_BATCH, TrainConfig, default_name
from danalab.train.config.train_config import settings_of as settings_of_model

DEFAULT_SEQ_LEN = 2048
DEFAULT_INTERVAL, LEAST_EVALUATIONS = 200, 10
DEFAULT_BATCHES, LEAST_BATCHES = 64, 2


def resolve(
    given: TrainConfig, data: Vocabulary, ranks: int = 1, device_type: str | None = None
) -> TrainConfig:
    """The record with every None filled in for `ranks` data-parallel ranks; UserError: impossible settings.

    `device_type`: cpu or cuda, where the run is trained; default that of --device, else cpu.
    """
    rules = Rules() if given.rules is None else read_rules(given.rules)
    opt = canonical_name(given.opt)
    seq_len = given.seq_len or (data.sequence_length or DEFAULT_SEQ_LEN + 1) - 1
    batch_size, acc_steps, global_batch = given.batch_sizes(ranks)

    # The model: dimensions from heads, vocabulary from the data.
    config = replace(
        given,
        given=given,
        arch=architecture(given.arch).name,
        **rules.sizes(given),
        opt=opt,
        seq_len=seq_len,
        context_len=given.context_len or seq_len,
        vocab_size=given.vocab_size or data.vocab_size,
        data=given.source,
        init=given.init or architecture(given.arch).init,
        batch_size=batch_size,
        acc_steps=acc_steps,
        global_batch=global_batch,
        distributed_backend=given.usual_backend(ranks),
    )
    model = config.model

    # Steps from tokens per parameter, the rate from the law, weight decay from omega.
    per_epoch = getattr(data, "tokens_per_epoch", None)
    steps = given.steps_of_epochs(per_epoch and per_epoch(seq_len), seq_len, global_batch)
    if steps is None:
        steps = horizon(model, config.tokens_per_step, given.tokens_per_param, given.horizon_basis)
    warmup = usual_warmup(steps) if given.warmup_steps is None else given.warmup_steps
    lr, source = given.lr, "given"
    if lr is None:
        lr, source = rules.rate(config) or law_rate(
            model.arch, opt, model.non_emb_params, given.kappa, config.tokens_per_step
        )
        lr *= given.lr_multiplier
        source += "" if given.lr_multiplier == 1 else f", times {given.lr_multiplier:.3g}"
    omega = next(each for each in (given.omega, rules.omega(model.arch, opt), OMEGA) if each is not None)
    bound = given.decay_bound
    if bound is None:
        bound = largest_decay(opt) if given.weight_decay is None else 0.0
    rate = lr * decay_factor(model.arch, opt, model.non_emb_params, given.kappa, global_batch)
    decay, wd_ts = decay_of(opt, omega, steps, rate, given.weight_decay, given.wd_ts, given.wd_ts_divisor)
    if bound and facts_of(opt).decay == "coupled":
        decay = min(decay, bound)
    on_gpu = (device_type or (given.device or "cpu")).startswith("cuda")
    config = replace(
        config,
        iterations=steps,
        warmup_steps=warmup,
        lr=lr,
        lr_source=source,
        omega=omega,
        weight_decay=decay,
        wd_ts=wd_ts,
        decay_bound=bound,
        dtype=given.dtype or ("bfloat16" if on_gpu else "float32"),
        # torch.compile generates no code for the oscillators' complex numbers.
        compile=(on_gpu and not model.architecture.oscillators) if given.compile is None else given.compile,
        **evaluation_sizes(given, steps * global_batch, steps),
    )
    runs = environment_path("RESULTS_BASE_FOLDER") or Path("runs")
    run_dir = given.run_dir or runs / (given.name or default_name(config, data.name))
    check_resolved(config, data)
    return replace(config, run_dir=run_dir, name=given.name or run_dir.name, notes=tuple(remarks(config)))


def plan(
    arch: str,
    opt: str,
    heads: int | None = None,
    *,
    model: ModelConfig | None = None,
    vocab_size: int = GPT2_VOCAB,
    seq_len: int = DEFAULT_SEQ_LEN,
    world_size: int = 1,
    **settings: Any,
) -> TrainConfig:
    """A run as `danalab train` would resolve it, for data of `vocab_size` tokens on `world_size` ranks.

    Args:
        heads: size by the architecture's rule; or `model`, whose sizes are taken.
        settings: fields of `danalab.train.TrainConfig`, such as global_batch, iterations, tokens_per_param, lr.
    Raises:
        UserError: unknown names, an impossible size or horizon, a warmup as long as the run.
    """
    size = {"arch": arch, "heads": heads} if model is None else settings_of_model(model)
    given = TrainConfig(opt=opt, **size, seq_len=seq_len, **settings)
    data = Vocabulary("", "", vocab_size, least_vocab_size=1, eos_id=None)
    return resolve(given, data, world_size)


def horizon(model: ModelConfig, tokens_per_step: int, tokens_per_param: float, basis: str) -> int:
    """Number of steps that see `tokens_per_param` tokens for each parameter of the `basis` ("total" or "non-emb")."""
    params = model.total_params if basis == "total" else model.non_emb_params
    steps = int(tokens_per_param * params / tokens_per_step)
    if steps < 1:
        raise UserError(
            f"{tokens_per_param:g} tokens a parameter are {tokens_per_param * params:.3g} tokens, "
            f"less than one step of {tokens_per_step}; use a smaller batch or give --iterations"
        )
    return steps


def decay_of(
    opt: str,
    omega: float,
    steps: int,
    rate: float,
    weight_decay: float | None = None,
    wd_ts: float | None = None,
    wd_ts_divisor: float = 10.0,
) -> tuple[float, float | None]:
    """(weight decay, its time scale in steps) by the optimizer's rule; `rate`: lr x `decay_factor`."""
    facts = facts_of(opt)
    if facts.decay == "independent":
        wd_ts = wd_ts if wd_ts is not None else max(1, int(steps / wd_ts_divisor))
        return (omega / wd_ts if weight_decay is None else weight_decay), wd_ts
    if wd_ts is not None and not facts.decay_falls:
        raise UserError(f"--wd-ts: the weight decay of {opt} is constant; use adamw-decaying-wd")
    weight_decay = omega / (rate * steps) if weight_decay is None else weight_decay
    return weight_decay, (wd_ts or float(steps)) if facts.decay_falls else None


def evaluation_sizes(given: TrainConfig, sequences: int, steps: int) -> dict[str, int]:
    """Interval and sizes of evaluations, which by default take at most a quarter of a run of so many `sequences`.

    Training on a sequence costs three forward passes, so they may read as many: half of them amid the run, half at its
    end.
    """
    interval, fixed, final = given.eval_interval, given.eval_batches, given.final_eval_batches
    budget = max(1, sequences // (2 * FIXED_BATCH))
    if interval is None:
        least = -(-steps // max(1, budget // LEAST_BATCHES))
        interval = max(1, least, min(DEFAULT_INTERVAL, steps // LEAST_EVALUATIONS))
    if fixed is None:
        evaluations = -(-steps // interval) if interval else 1
        fixed = max(1, min(DEFAULT_BATCHES, budget // evaluations))
    if final is None:
        final = max(fixed, budget) if fixed else 0
    return {"eval_interval": interval, "eval_batches": fixed, "final_eval_batches": final}


def check_resolved(config: TrainConfig, data: Vocabulary) -> None:
    """Refuse what contradicts the data, the model or the length of the run."""
    from danalab.optim import settings_of  # imports torch

    given, warmup, steps = config.given, config.warmup_steps, config.iterations
    if not 0 <= warmup < steps:
        raise UserError(
            f"--warmup-steps is {warmup}; it must lie in 0..{steps - 1}: the run has {steps} steps"
        )
    if config.document_mask and data.eos_id is None:
        raise UserError(
            f"--document-mask: the id that ends a document of {data.name} is unknown; leave it out"
        )
    if config.document_mask and config.compile and config.model.architecture.oscillators:
        raise UserError(
            f"--compile: not with --document-mask for {config.arch}, which sorts documents by length"
        )
    if config.context_len < config.seq_len:
        raise UserError(
            f"--context-len is {config.context_len}; it must be at least --seq-len, {config.seq_len}"
        )
    if config.vocab_size < data.least_vocab_size:
        raise UserError(
            f"--vocab-size {given.vocab_size}: {data.name} needs {data.least_vocab_size}; leave it out"
        )
    if config.last_step < config.iterations:
        raise UserError(f"--extend-to {config.extend_to}: the run has {config.iterations} steps already")
    if (
        given.weight_decay
        and facts_of(config.opt).decay == "independent"
        and not config.decay_bound
        and config.wd_ts
    ):
        first = given.weight_decay / (1 + 1 / config.wd_ts)
        if first > 1:
            omega = given.weight_decay * config.lr * config.wd_ts
            raise UserError(
                f"--weight-decay {given.weight_decay:g} and --wd-ts {config.wd_ts:g} take {first:g} of each weight in "
                "the first step (independent of the learning rate); it must stay below 1. The "
                f"original code has omega / (lr x wd_ts): give --omega {omega:g} instead"
            )
    # Refuse settings of schedule and optimizer that do not fit before anything is written.
    config.schedule()
    config.settings_of_optimizer(settings_of(config.opt))


def remarks(config: TrainConfig) -> list[str]:
    """Notes about a run, for the log and `danalab plan`."""
    given, notes = config.given, []
    decay = given.weight_decay or 0
    if (
        decay > 0.01
        and facts_of(config.opt).decay == "independent"
        and not (given.wd_ts or given.decay_bound)
    ):
        notes.append(
            f"--weight-decay {decay:g} takes {decay:.0%} of each weight in a step, at any learning rate; "
            "without it the decay is bounded by the rate"
        )
    return notes
