"""Settings of what is trained: model, data, optimizer, loss, schedule, batch and length. None means automatic.

Needs no torch.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from danalab.errors import UserError
from danalab.scaling.optimizers import DELTA, KAPPA, OMEGA
from danalab.train.config.fields import (
    Count,
    Ge,
    Lt,
    Natural,
    NonNegative,
    PathText,
    Positive,
    Section,
    flag,
    setting,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Section):
    """Architecture and size."""

    title: ClassVar[str] = "model"

    arch: str = setting("enoki", main=True, aliases=("model",))
    """Architecture: enoki, qwen3, qwen3next, gpt (alias base), llama, moe or resonance."""
    heads: Count | None = setting(None, kind="input", main=True)
    """Number of attention heads; all dimensions follow from it by the architecture's rule."""
    size: str | None = setting(None, kind="input")
    """Size of a resonance model, which has no heads: small, medium, large or xlarge; explicit dimensions win."""
    d_model: Count | None = setting(None, aliases=("model-dim", "n-embd"))
    """Width, with --n-layers and --n-heads, instead of --heads."""
    n_layers: Count | None = setting(None, aliases=("num-layers", "n-layer"))
    """Number of blocks."""
    n_heads: Count | None = setting(None, aliases=("n-head",))
    """Number of attention heads; resonance: of groups that share frequencies, default 8."""
    num_frequencies: Count | None = None
    """resonance: damped oscillators of all groups; default 8 per group."""
    mixer: Literal["oscillators", "none"] | None = None
    """resonance: none removes the oscillators, a control that cannot see earlier tokens; default oscillators."""
    learned_positions: bool | None = None
    """resonance: add a learned vector for each position, 32768 at most; default no (gpt always has them)."""
    conv_width: Natural = 0
    """resonance: causal convolution of each channel over this number of tokens before the oscillators; 4 is usual,
    0 none."""
    head_dim: Count | None = setting(None, aliases=("qkv-dim",))
    """Width of a head; default d_model / n_heads."""
    mlp_dim: Count | None = setting(None, aliases=("mlp-hidden-dim",))
    """Hidden width of the MLP; default 4 d_model (enoki, gpt), 3 d_model (qwen3), 8/3 d_model (llama)."""
    n_kv_heads: Count | None = None
    """Key and value heads, each shared by n_heads / n_kv_heads query heads; default one for each query head."""
    attention_gate: bool | None = setting(None, aliases=("elementwise-attn-output-gate",))
    """Gate attention's output elementwise; default as the architecture (qwen3 does)."""
    tied_head: bool | None = setting(None, aliases=("weight-tying",))
    """One matrix for embedding and head; default as the architecture (gpt has)."""
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Probability that a feature of the embedding, or of what an attention or MLP adds, is 0 in a training step."""
    n_experts: Count | None = setting(None, aliases=("moe-num-experts",))
    """Experts instead of each MLP, of any architecture with attention; default 8 (moe, qwen3next), else none."""
    top_k: Count | None = None
    """Experts that each token is sent to; default 2."""
    expert_dim: Count | None = None
    """Hidden width of an expert; default mlp_dim (qwen3next: a third of it)."""
    n_shared_experts: Natural | None = None
    """Experts that every token also passes; default 0 (qwen3next: 1)."""
    shared_expert_gate: bool | None = None
    """Gate the shared experts' output by sigmoid(w . x); default no (qwen3next: yes)."""
    decoder_sparse_step: Count = 1
    """Interval of layers with experts (those whose number, from 1, it divides); the others have a dense MLP."""
    mlp_only_layers: tuple[Natural, ...] = ()
    """Layers (from 0) that always have a dense MLP: 0 5 11."""
    full_attention_interval: Count | None = None
    """qwen3next: interval of layers with attention, the others have the gated delta rule; 4 as published, default 1."""


@dataclass(frozen=True, kw_only=True)
class SeedSettings(Section):
    """Random numbers."""

    title: ClassVar[str] = "initial weights"

    seed: Annotated[int, Ge(0), Lt(2**64)] = setting(0, main=True)
    """Seed of the initial weights, of dropout, and of what a stage draws from its model."""


@dataclass(frozen=True, kw_only=True)
class StartSettings(SeedSettings):
    """The state at step 0."""

    init: str | None = setting(None, aliases=("init-scheme",))
    """Initial weights: scaled-gpt, karpathy-gpt2 or standard; default scaled-gpt (resonance: karpathy-gpt2)."""
    init_from: Path | None = setting(None)
    """Start from the weights of a run, a checkpoint or a model in Hugging Face format; the step is 0."""
    init_optimizer: bool = False
    """Load the optimizer's moments and step counts of --init-from, too; its settings are this run's."""


@dataclass(frozen=True, kw_only=True)
class SequenceSettings(Section):
    """Vocabulary and context."""

    title: ClassVar[str] = "data"

    vocab_size: Count | None = None
    """Vocabulary of the model [tokens]; default the data's, padded."""
    seq_len: Count | None = setting(None, main=True, aliases=("max-seq-len", "sequence-length"))
    """Context length [tokens]; default 2048, or the length of the sequences of pre-tokenised arrays."""
    context_len: Count | None = None
    """Context that the model can read [tokens], where it is longer than --seq-len; default --seq-len."""


@dataclass(frozen=True, kw_only=True)
class DataSettings(SequenceSettings):
    """Source of the tokens."""

    title: ClassVar[str] = "data"

    data: PathText | None = setting(None, kind="data", main=True, aliases=("data-path", "dataset"))
    """Data folder, or the name of a source, looked up in $DATASETS_DIR or ./datasets; a:0.7,b:0.3 mixes. Default with
    --heads or --size the corpus of that rule, FineWeb (resonance: FineWeb-Edu); else Python's own files, stdlib."""
    tokenizer: PathText | None = setting(None, kind="data")
    """Tokenizer, where --data is the name of a source; default the source's."""
    document_mask: bool = False
    """Attention is limited to the token's own document, where positions restart (needs the end-of-text id)."""
    array_cache_gib: NonNegative = setting(4.0, kind="execution")
    """Memory for .pt and .npz arrays; the least recently used is dropped first [GiB]. .npy needs none."""
    data_seed: Natural = 1337
    """Seed of the order of the data."""


SHARED_SETTINGS = {
    "kappa": f"The Dana family's damping exponent; default {KAPPA:g}.",
    "delta": f"The Dana family's averaging window: beta(t) = 1 - delta / (delta + t); default {DELTA:g}.",
    "omega": f"Weight-decay strength, as in omega / t; default that of --rules, else {OMEGA:g}.",
    "clipsnr": "Bound of the damped momentum's signal-to-noise ratio; default 2, for the optimizers that clip.",
    "gamma3": "Scale of the Dana family's momentum term; default 1.",
    "beta1": "First of the optimizer's betas, AdamW's rate of the first moment; default as `danalab optim list --opt` "
    "shows.",
    "beta2": "Second of the optimizer's betas, AdamW's rate of the second moment; default as there. adana and its "
    "clipped and tau variants: a constant rate instead of beta(t).",
}
"""Settings of optimizers that are flags and keys whatever the optimizer, with their help: the laws of scaling need the
first three, and the others have one name for several optimizers. Their values are in `optimizer_settings`."""

_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "kappa": (lambda x: 0 <= x <= 1, "from 0 to 1"),
    "delta": (lambda x: x > 0, "above 0"),
    **dict.fromkeys(("omega", "clipsnr", "gamma3"), (lambda x: x >= 0, "not negative")),
    **dict.fromkeys(("beta1", "beta2"), (lambda x: 0 <= x < 1, "at least 0 and below 1")),
}

RESERVED = {"horizon": "the run's length is --iterations"}
"""Settings of optimizers that a run sets itself."""


def _finite(name: str, value: Any) -> float:
    """A value of a shared setting."""
    within, words = _RANGES[name]
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number):
        raise UserError(f"{flag(name)} is {value!s:.100}; it must be a number")
    if not (math.isfinite(number) and within(number)):
        raise UserError(f"{flag(name)} is {value}; it must be {words}")
    return number


def shared_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """The shared settings of a run that were given, numbers; None, or the default of the laws, for the others."""
    usual = {**dict.fromkeys(SHARED_SETTINGS), "kappa": KAPPA, "delta": DELTA}
    read = {name: _finite(name, given[name]) for name in SHARED_SETTINGS if given.get(name) is not None}
    return usual | read


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings(Section):
    """Optimizer, learning rate and weight decay."""

    title: ClassVar[str] = "optimizer"
    folded: ClassVar[Mapping[str, str]] = dict.fromkeys(SHARED_SETTINGS, "optimizer_settings")

    opt: PathText = setting("adana", main=True)
    """Optimizer; `danalab optim list` shows them."""
    lr: Positive | None = setting(None, main=True)
    """Peak learning rate; default by the fitted law, times --lr-multiplier."""
    lr_multiplier: NonNegative = setting(1.0, kind="input")
    """Factor on the fitted law's learning rate; has no effect on an explicit --lr."""
    horizon_law: Literal["measured", "none"] = setting("measured", kind="input")
    """Correction of rate and decay for more than 20 tokens per parameter: measured, by the optimizer's exponent, or
    none. Has no effect on an explicit --lr and the laws of --rules."""
    rules: Path | None = setting(None, kind="input")
    """File of laws, decays and dimensions instead of the built-in ones; `danalab report --rules FILE` writes one."""
    phase_lr_factor: Positive = 1.0
    """resonance: factor on the learning rate of the oscillators' phases."""
    weight_decay: float | None = None
    """Default omega / wd_ts (independent of the learning rate) or omega / (lr iterations) (coupled: adamw)."""
    wd_ts: float | None = setting(None, aliases=("wd-ts-const",))
    """Time scale of the decaying weight decay [steps]; default iterations / wd-ts-divisor."""
    wd_ts_divisor: Positive = 10.0
    """Divisor of the default time scale: iterations / wd-ts-divisor, if --wd-ts isn't given."""
    decay_bound: NonNegative | None = None
    """Largest weight decay, times the peak learning rate; 0: no bound. Default 2 for log-time optimizers,
    1 for others, 0 with --weight-decay."""
    optimizer_settings: dict[str, Any] = setting(factory=dict)
    """Further settings of the optimizer, by name; on the command line each is a flag of its own."""

    def check(self) -> None:
        """Write the optimizer's settings as JSON has them: a run is compared with its config.json."""
        super().check()
        settings = {
            name.replace("-", "_"): list(value) if isinstance(value, tuple) else value
            for name, value in self.optimizer_settings.items()
        }
        for name in SHARED_SETTINGS:
            if settings.get(name) is None:
                settings.pop(name, None)
            else:
                settings[name] = _finite(name, settings[name])
        object.__setattr__(self, "optimizer_settings", dict(sorted(settings.items())))

    @property
    def kappa(self) -> float:
        """The Dana family's damping exponent, for which the laws of the learning rate are fitted."""
        return self.optimizer_settings.get("kappa", KAPPA)

    @property
    def delta(self) -> float:
        """The Dana family's averaging window."""
        return self.optimizer_settings.get("delta", DELTA)

    @property
    def omega(self) -> float | None:
        """Strength of weight decay, as in omega / t; None: automatic."""
        return self.optimizer_settings.get("omega")


@dataclass(frozen=True, kw_only=True)
class LossSettings(Section):
    """The loss that is minimised."""

    title: ClassVar[str] = "loss"

    grad_clip: NonNegative = 0.5
    """Largest Euclidean norm of the gradient; 0: no clipping."""
    z_loss: NonNegative = setting(1e-4, aliases=("z-loss-coeff",))
    """Weight of mean(logsumexp^2) in the minimised loss; never part of a reported loss."""
    hoyer_loss: NonNegative = 0.0
    """Weight of the mean of |e|_1 / |e|_2 over embedded tokens, to make them sparse; never part of a reported loss."""
    renormalise: bool | None = None
    """Divide the weights of a token's experts by their sum; default yes."""
    load_balance_loss: float | None = None
    """Weight of the load-balancing loss, which is 1 where experts are used evenly; default 0.01."""
    router_z_loss: float | None = None
    """Weight of mean(logsumexp^2) of the routers' logits; default 0.001."""
    router_entropy_loss: float | None = None
    """Weight of minus the entropy of the mean routing distribution [nats]; default 0."""


@dataclass(frozen=True, kw_only=True)
class ScheduleSettings(Section):
    """The schedule's name and settings."""

    title: ClassVar[str] = "schedule"

    scheduler: str = "cos_inf"
    """Learning-rate schedule: cos, linear, cos_inf, cos_restarts, wsd, powerlaw or none."""
    div_factor: float | None = None
    """Warm-up starts at peak / div_factor; default 100."""
    final_div_factor: float | None = None
    """The end is at peak / (div_factor final_div_factor): cos, linear (default 1), cos_inf and cos_restarts
    (default 0.1)."""
    cos_inf_steps: int | None = None
    """cos_inf: constant tail [steps]; default 0."""
    cycles: int | None = None
    """cos_restarts: cosines, each from the peak; default 4."""
    cycle_factor: float | None = None
    """cos_restarts: length of a cycle over that of the one before; default 1."""
    final_lr_scale: float | None = setting(None, aliases=("wsd-final-lr-scale",))
    """wsd: learning rate at the end, as a share of the peak; default 0."""
    fract_decay: float | None = setting(None, aliases=("wsd-fract-decay",))
    """wsd: share of the run that decays; default 0.1."""
    decay_type: str | None = None
    """wsd: linear (default), cosine, exp, mirror_cosine, square or sqrt."""
    power: float | None = None
    """powerlaw: exponent; default -0.5."""
    time_scale: float | None = None
    """powerlaw: time scale [steps]; default 1."""
    init_value: float | None = None
    """powerlaw: factor at the end of the warm-up; default 1."""
    saturation_value: float | None = None
    """powerlaw: bound of the factor; default 0 from below (power < 0) or 1 from above."""

    def scheduler_settings(self) -> dict[str, Any]:
        """The settings that were given, for `danalab.optim.get_schedule`."""
        names = [field.name for field in fields(ScheduleSettings) if field.name != "scheduler"]
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


DEFAULT_BATCH = 32


@dataclass(frozen=True, kw_only=True)
class BatchSettings(Section):
    """Batch and length of the run."""

    title: ClassVar[str] = "batch and length"

    batch_size: Count | None = setting(None, kind="execution", main=True)
    """Sequences of one micro-batch on one rank; default 32, or a divisor of --global-batch."""
    acc_steps: Count | None = setting(None, kind="execution", aliases=("gradient-accumulation",))
    """Micro-batches in a step; default 1, or the number that --global-batch needs."""
    global_batch: Count | None = None
    """Sequences in a step, over all ranks and micro-batches; default batch-size x ranks x acc-steps."""
    iterations: Count | None = setting(None, main=True)
    """Length of the run [steps]; default by --tokens-per-param."""
    epochs: Positive | None = setting(None, kind="input")
    """Length of the run in passes over the data, instead of --iterations."""
    tokens_per_param: NonNegative = setting(20.0, kind="input")
    """Length of the run where --iterations isn't given [tokens/parameter]."""
    horizon_basis: Literal["total", "non-emb"] = setting("total", kind="input")
    """Parameters that --tokens-per-param counts."""
    warmup_steps: Natural | None = None
    """Warm-up [steps]; default iterations / 50; in short runs iterations / 10, up to 4."""

    def batch_sizes(self, world_size: int) -> tuple[int, int, int]:
        """(micro-batch, micro-batches per step, global batch), where global = micro x ranks x accumulation."""
        if self.global_batch is None:
            batch_size, acc_steps = self.batch_size or DEFAULT_BATCH, self.acc_steps or 1
            return batch_size, acc_steps, batch_size * acc_steps * world_size
        total = self.global_batch
        if total % world_size:
            raise UserError(f"--global-batch {total} is not divisible by the {world_size} ranks")
        local = total // world_size
        batch_size = self.batch_size
        if batch_size is None:
            if self.acc_steps is None:
                batch_size = next(size for size in range(min(DEFAULT_BATCH, local), 0, -1) if local % size == 0)
            elif local % self.acc_steps:
                raise UserError(
                    f"--acc-steps {self.acc_steps} must divide --global-batch {total} on {world_size} ranks"
                )
            else:
                batch_size = local // self.acc_steps
        if local % batch_size:
            raise UserError(
                f"--global-batch {total} is not divisible by --batch-size {batch_size} x {world_size} ranks"
            )
        acc_steps = local // batch_size
        if self.acc_steps not in (None, acc_steps):
            raise UserError(
                f"--global-batch {total} = --batch-size {batch_size} x {world_size} ranks x {acc_steps}, "
                f"not --acc-steps {self.acc_steps}; leave one of them out"
            )
        return batch_size, acc_steps, total

    def steps_of_epochs(self, n_tokens: int | None, seq_len: int, global_batch: int) -> int:
        """floor(epochs x sequences / global batch), of data with `n_tokens` tokens in an epoch, None: not known."""
        epochs = self.epochs or 0.0
        if n_tokens is None:
            raise UserError(f"--epochs {epochs:g}: the number of tokens is not known before the data are prepared")
        steps = int(epochs * (n_tokens // seq_len) / global_batch)
        if steps < 1:
            raise UserError(f"--epochs {epochs:g}: {n_tokens:,} tokens are less than one step")
        if self.iterations not in (None, steps):
            raise UserError(f"--epochs {epochs:g} is {steps} steps, not --iterations {self.iterations}; give one")
        return steps
