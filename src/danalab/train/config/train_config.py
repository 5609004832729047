"""The record of a run: every setting, each with its default, range and help; the flags, YAML keys and config.json.

Four parts, each a data class: the model, the data, the optimizer with its schedule and length, the run itself. None
means automatic: `danalab.train.config.resolve` returns the same record with every None filled in. Needs no torch.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le, Lt

from danalab.errors import UserError
from danalab.models.architectures import architecture
from danalab.models.config import (
    ModelConfig,
    checkpointing_rule,
    explicit_sizes,
    flops_per_token,
    resonance_sizes,
    sizes_by_heads,
)
from danalab.optimizer_facts import DELTA, FACTS, KAPPA, OMEGA, facts_of, short_name
from danalab.scaling.learning_rate import slow_momentum
from danalab.scaling.optimizer_flops import optimizer_flops
from danalab.tables import word_of
from danalab.train.config.flags import (
    Auto,
    Count,
    Dtype,
    Finite,
    Natural,
    NonNegative,
    PathText,
    Positive,
    Section,
    flag,
    names_of,
    setting,
)

BUILT_IN_TEXT = "stdlib"
"""The source that needs neither network nor files."""
DEFAULT_BATCH = 32
FIXED_BATCH = 32
"""Sequences in one of `--eval-batches`; a constant, so that the fixed set does not depend on the batch."""
MOST_EPOCHS = 4
"""Passes over the data up to which repeated data are worth as much as new ones (Muennighoff et al. 2023)."""
REPEATED = f"above {MOST_EPOCHS} epochs repeated text helps less and less; take more text"
RESERVED = {"horizon": "the run's length is --iterations"}
"""Settings of optimizers that a run sets itself."""
_NUMBERS = ("d_model", "n_layers", "n_heads", "head_dim", "mlp_dim")


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Section):
    """Architecture, size and initial weights."""

    title: ClassVar[str] = "model"

    arch: str = setting(
        "enoki",
        "Architecture: enoki, qwen3, qwen3next, gpt (alias base), llama, moe or resonance.",
        main=True,
        aliases=("model",),
    )
    heads: Count | None = setting(
        None,
        "Number of attention heads; all dimensions follow from it by the architecture's rule.",
        kind="input",
        main=True,
    )
    size: str | None = setting(
        None,
        "Size of a resonance model, which has no heads: small, medium, large or xlarge; explicit dimensions win.",
        kind="input",
    )
    d_model: Auto[Count] = setting(
        None,
        "Width, with --n-layers and --n-heads, instead of --heads.",
        main=True,
        aliases=("model-dim", "n-embd"),
    )
    n_layers: Auto[Count] = setting(None, "Number of blocks.", main=True, aliases=("num-layers", "n-layer"))
    n_heads: Auto[Count] = setting(
        None,
        "Number of attention heads; resonance: of groups that share frequencies, default 8.",
        main=True,
        aliases=("n-head",),
    )
    head_dim: Auto[Count] = setting(None, "Width of a head; default d_model / n_heads.", aliases=("qkv-dim",))
    mlp_dim: Auto[Count] = setting(
        None,
        "Hidden width of the MLP; default 4 d_model (enoki, gpt), 3 d_model (qwen3), 8/3 d_model (llama).",
        aliases=("mlp-hidden-dim",),
    )
    vocab_size: Auto[Count] = setting(None, "Vocabulary of the model [tokens]; default the data's, padded.")
    context_len: Auto[Count] = setting(
        None,
        "Context that the model can read [tokens], where it is longer than --seq-len; default --seq-len.",
    )
    n_kv_heads: Count | None = setting(
        None,
        "Key and value heads, each shared by n_heads / n_kv_heads query heads; default one for each query head.",
    )
    attention_gate: bool | None = setting(
        None,
        "Gate attention's output elementwise; default as the architecture (qwen3 does).",
        aliases=("elementwise-attn-output-gate",),
    )
    tied_head: bool | None = setting(
        None,
        "One matrix for embedding and head; default as the architecture (gpt has).",
        aliases=("weight-tying",),
    )
    dropout: Annotated[float, Ge(0), Lt(1)] = setting(
        0.0,
        "Dropout probability for the embeddings and the attention and MLP outputs.",
    )
    num_frequencies: Count | None = setting(
        None, "resonance: damped oscillators of all groups; default 8 per group."
    )
    mixer: Literal["oscillators", "none"] | None = setting(
        None,
        "resonance: none removes the oscillators, a control that cannot see earlier tokens; default oscillators.",
    )
    learned_positions: bool | None = setting(
        None,
        "resonance: add a learned vector for each position, 32768 at most; default no (gpt always has them).",
    )
    n_experts: Count | None = setting(
        None,
        "Experts instead of each MLP, of any architecture with attention; default 8 (moe, qwen3next), else none.",
        aliases=("moe-num-experts",),
    )
    top_k: Count | None = setting(None, "Experts that each token is sent to; default 2.")
    expert_dim: Count | None = setting(
        None, "Hidden width of an expert; default mlp_dim (qwen3next: a third of it)."
    )
    n_shared_experts: Natural | None = setting(
        None, "Shared experts, used by every token; default 0 (qwen3next: 1)."
    )
    shared_expert_gate: bool | None = setting(
        None, "Gate the shared experts' output by sigmoid(w . x); default no (qwen3next: yes)."
    )
    decoder_sparse_step: Count = setting(
        1,
        "Interval of layers with experts (those whose number, from 1, it divides); the others have a dense MLP.",
    )
    mlp_only_layers: tuple[Natural, ...] = setting(
        (), "Layers (from 0) that always have a dense MLP: 0 5 11."
    )
    renormalise: bool = setting(True, "Divide the weights of a token's experts by their sum; default yes.")
    load_balance_loss: NonNegative = setting(
        0.01, "Weight of the load-balancing loss, which is 1 where experts are used evenly."
    )
    router_z_loss: NonNegative = setting(0.001, "Weight of mean(logsumexp^2) of the routers' logits.")
    router_entropy_loss: NonNegative = setting(
        0.0, "Weight of minus the entropy of the mean routing distribution [nats]."
    )
    full_attention_interval: Count | None = setting(
        None,
        "qwen3next: interval of layers with attention, the others have the gated delta rule; 4 as published, "
        "default 1.",
    )
    init: Auto[str] = setting(
        None,
        "Initial weights: scaled-gpt, karpathy-gpt2 or standard; default scaled-gpt (resonance: karpathy-gpt2).",
        aliases=("init-scheme",),
    )
    init_from: Path | None = setting(
        None,
        "Start from the weights of a run, a checkpoint or a model in Hugging Face format; the step is 0.",
    )
    model_extras: dict[str, Any] = setting(factory=dict, hidden=True)
    """Fields of the `ModelConfig` that have no flag, of a model that was imported."""

    def sizes(self) -> dict[str, Any]:
        """The model's dimensions as they were given, by the architecture's rule, or by the name of a size."""
        given = {name: getattr(self, name) for name in _NUMBERS}
        if architecture(self.arch).oscillators and self.heads is None:
            further = {"num_frequencies": self.num_frequencies, "mixer": self.mixer}
            return resonance_sizes(self.size, **given, **further)
        for name in ("size", "num_frequencies", "mixer"):
            if getattr(self, name) is not None:
                raise UserError(
                    f"{flag(name)} {getattr(self, name)}: only with --arch resonance, not {self.arch}"
                )
        if self.heads is not None:
            return self.without_contradiction(sizes_by_heads(self.arch, self.heads))
        if None in (self.d_model, self.n_layers, self.n_heads):
            raise UserError("give a size: --heads 4, or --d-model 64 --n-layers 2 --n-heads 1")
        return explicit_sizes(self.arch, **given)

    def without_contradiction(self, sizes: dict[str, Any]) -> dict[str, Any]:
        """`sizes`, which --heads gives; a dimension that was given, too, must be the same."""
        for name, value in sizes.items():
            if getattr(self, name) not in (None, value):
                raise UserError(
                    f"--heads {self.heads} decides all dimensions: {flag(name)} is {value}, not {getattr(self, name)}; "
                    "leave one of the two out"
                )
        return sizes

    @cached_property
    def model(self) -> ModelConfig:
        """The model, of a resolved record."""
        named = {name: getattr(self, name) for name in MODEL_FIELDS}
        return ModelConfig(**named, seq_len=self.context_len, **self.model_extras)  # pyright: ignore[reportArgumentType]


MODEL_FIELDS = {field.name for field in fields(ModelConfig)} & {field.name for field in fields(ModelSettings)}
"""Fields of a `ModelConfig` that are settings of a run; its seq_len is --context-len."""


def settings_of(model: ModelConfig) -> dict[str, Any]:
    """The settings of a run on an existing model."""
    further = {field.name: field.default for field in fields(ModelConfig) if field.name not in MODEL_FIELDS}
    extras = {name: getattr(model, name) for name, usual in further.items() if getattr(model, name) != usual}
    context = extras.pop("seq_len")
    return {name: getattr(model, name) for name in MODEL_FIELDS} | {
        "context_len": context,
        "model_extras": extras,
    }


@dataclass(frozen=True, kw_only=True)
class DataSettings(Section):
    """Source and order of the tokens."""

    title: ClassVar[str] = "data"

    seq_len: Auto[Count] = setting(
        None,
        "Context length [tokens]; default 2048, or the length of the sequences of pre-tokenised arrays.",
        main=True,
        aliases=("max-seq-len", "sequence-length", "block-size", "context-length"),
    )
    data: PathText | None = setting(
        None,
        "Data folder, or the name of a source, looked up in $DATASETS_DIR or ./datasets; a:0.7,b:0.3 mixes. "
        "Default with --heads or --size the corpus of that rule, FineWeb (resonance: FineWeb-Edu); else Python's own "
        "files, stdlib.",
        kind="data",
        main=True,
        aliases=("data-path", "dataset"),
    )
    tokenizer: PathText | None = setting(
        None, "Tokenizer, where --data is a source or text; default the source's.", kind="data", main=True
    )
    document_mask: bool = setting(
        False,
        "Limit attention to the token's own document and restart positions there (needs an end-of-text id).",
    )
    data_seed: Natural = setting(1337, "Seed of the order of the data.")


@dataclass(frozen=True, kw_only=True)
class ScheduleSettings(Section):
    """The learning-rate schedule."""

    title: ClassVar[str] = "optimizer"

    scheduler: PathText = setting(
        "cos_inf", "Learning-rate schedule: cos, linear, cos_inf, wsd, powerlaw, none or FILE.py:NAME."
    )
    div_factor: Finite | None = setting(None, "Warmup starts at peak / div_factor; default 100.")
    final_div_factor: Finite | None = setting(
        None,
        "The end is at peak / (div_factor final_div_factor): cos, linear (default 1), cos_inf (default 0.1).",
    )
    cos_inf_steps: int | None = setting(None, "cos_inf: constant tail [steps]; default 0.")
    final_lr_scale: Finite | None = setting(
        None,
        "wsd: learning rate at the end, as a share of the peak; default 0.",
        aliases=("wsd-final-lr-scale",),
    )
    fract_decay: Finite | None = setting(
        None, "wsd: share of the run that decays; default 0.1.", aliases=("wsd-fract-decay",)
    )
    decay_type: str | None = setting(
        None, "wsd: linear (default), cosine, exp, mirror_cosine, square or sqrt."
    )
    power: Finite | None = setting(None, "powerlaw: exponent; default -0.5.")
    time_scale: Finite | None = setting(None, "powerlaw: time scale [steps]; default 1.")
    init_value: Finite | None = setting(None, "powerlaw: factor at the end of the warmup; default 1.")
    saturation_value: Finite | None = setting(
        None, "powerlaw: bound of the factor; default 0 from below (power < 0) or 1 from above."
    )

    def scheduler_settings(self) -> dict[str, Any]:
        """The settings that were given, for `danalab.optim.get_schedule`."""
        names = [field.name for field in fields(ScheduleSettings) if field.name != "scheduler"]
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


@dataclass(frozen=True, kw_only=True)
class OptimSettings(ScheduleSettings):
    """Optimizer, schedule, loss, batch and length of the run."""

    title: ClassVar[str] = "optimizer"

    opt: PathText = setting(
        "adana", "Optimizer; `danalab optim list` shows them.", main=True, aliases=("optimizer",)
    )
    lr: Auto[Positive] = setting(
        None,
        "Peak learning rate; default by the fitted law, times --lr-multiplier.",
        main=True,
        aliases=("learning-rate",),
    )
    lr_multiplier: NonNegative = setting(
        1.0, "Factor on the default learning rate; has no effect on an explicit --lr.", kind="input"
    )
    rules: Path | None = setting(
        None,
        "File of laws, decays and dimensions instead of the built-in ones; `danalab report --rules FILE` writes one.",
        kind="input",
    )
    kappa: Finite = setting(KAPPA, "The Dana family's damping exponent.")
    delta: Positive = setting(DELTA, "The Dana family's averaging window: beta(t) = 1 - delta / (delta + t).")
    omega: Auto[NonNegative] = setting(
        None, f"Weight-decay strength, as in omega / t; default that of --rules, else {OMEGA:g}."
    )
    clipsnr: Positive | None = setting(
        None, "Bound of the damped momentum's signal-to-noise ratio; default 2, for the optimizers that clip."
    )
    gamma3: NonNegative | None = setting(
        None, "Scale of the Dana family's momentum term; default 1.", aliases=("gamma-3-factor",)
    )
    beta1: Annotated[float, Ge(0), Lt(1)] | None = setting(None, "First of the optimizer's betas.")
    beta2: Annotated[float, Ge(0), Lt(1)] | None = setting(None, "Second of the optimizer's betas.")
    weight_decay: Auto[NonNegative] = setting(
        None,
        "Default omega / wd_ts (independent of the learning rate) or omega / (lr iterations) (coupled: adamw).",
        main=True,
    )
    wd_ts: Positive | None = setting(
        None,
        "Time scale of the decaying weight decay [steps]; default iterations / wd-ts-divisor.",
        aliases=("wd-ts-const",),
    )
    wd_ts_divisor: Positive = setting(
        10.0, "Divisor of the default time scale: iterations / wd-ts-divisor, if --wd-ts isn't given."
    )
    decay_bound: Auto[NonNegative] = setting(
        None,
        "Largest weight decay, times the peak learning rate; 0: no bound. Default 2 for log-time optimizers, 1 "
        "for others, 0 with --weight-decay.",
    )
    optimizer_settings: dict[str, Any] = setting(
        help="Further settings of the optimizer: --set betas=0.9,0.95 eps=1e-10; `danalab optim list --opt NAME` lists "
        "them.",
        factory=dict,
    )

    grad_clip: NonNegative = setting(
        0.5, "Largest Euclidean norm of the gradient; 0: no clipping.", aliases=("max-grad-norm",)
    )
    z_loss: NonNegative = setting(
        1e-4,
        "Weight of mean(logsumexp^2) in the minimised loss; never part of a reported loss.",
        aliases=("z-loss-coeff",),
    )
    hoyer_loss: NonNegative = setting(
        0.0,
        "Weight of the mean of |e|_1 / |e|_2 over embedded tokens, to make them sparse; never part of a reported loss.",
    )

    batch_size: Auto[Count] = setting(
        None,
        "Sequences of one micro-batch on one rank; default 32, or a divisor of --global-batch.",
        kind="execution",
        main=True,
        aliases=("micro-batch-size", "device-batch-size", "per-device-train-batch-size"),
    )
    acc_steps: Auto[Count] = setting(
        None,
        "Micro-batches in a step; default 1, or the number that --global-batch needs.",
        kind="execution",
        aliases=("gradient-accumulation", "gradient-accumulation-steps", "grad-accum-steps"),
    )
    global_batch: Auto[Count] = setting(
        None, "Sequences in a step, over all ranks and micro-batches; default batch-size x ranks x acc-steps."
    )
    iterations: Auto[Count] = setting(
        None,
        "Length of the run [steps]; default by --tokens-per-param.",
        main=True,
        aliases=("steps", "max-iters", "max-steps", "num-iterations"),
    )
    epochs: Positive | None = setting(
        None,
        "Length of the run in passes over the data, instead of --iterations.",
        kind="input",
        main=True,
        aliases=("num-train-epochs", "num-epochs"),
    )
    tokens_per_param: NonNegative = setting(
        20.0, "Length of the run where --iterations isn't given [tokens/parameter].", kind="input"
    )
    horizon_basis: Literal["total", "non-emb"] = setting(
        "total", "Parameters that --tokens-per-param counts.", kind="input"
    )
    warmup_steps: Auto[Natural] = setting(
        None,
        "Warmup [steps]; default iterations / 50; in short runs iterations / 10, up to 4.",
        aliases=("warmup-iters",),
    )
    seed: Annotated[int, Ge(0), Lt(2**64)] = setting(
        0, "Seed for initialization, dropout and sampling.", main=True
    )

    def batch_sizes(self, ranks: int) -> tuple[int, int, int]:
        """(micro-batch, micro-batches per step, global batch), where global = micro x ranks x accumulation."""
        if self.global_batch is None:
            batch_size, acc_steps = self.batch_size or DEFAULT_BATCH, self.acc_steps or 1
            return batch_size, acc_steps, batch_size * acc_steps * ranks
        if self.global_batch % ranks:
            raise UserError(f"--global-batch {self.global_batch} is not divisible by the {ranks} ranks")
        local, rest = divmod(self.global_batch, ranks * (self.acc_steps or 1))
        batch_size = self.batch_size
        if batch_size is None:
            divisors = (size for size in range(min(DEFAULT_BATCH, local), 0, -1) if local % size == 0)
            batch_size = local if self.acc_steps else next(divisors, 1)
        acc_steps = self.acc_steps or max(1, local // batch_size)
        if rest or batch_size * acc_steps * ranks != self.global_batch:
            raise UserError(
                f"--global-batch {self.global_batch} is not --batch-size {batch_size} x {ranks} ranks x --acc-steps "
                f"{acc_steps}; leave one of them out"
            )
        return batch_size, acc_steps, self.global_batch

    def steps_of_epochs(self, n_tokens: int | None, seq_len: int, global_batch: int) -> int | None:
        """floor(epochs x sequences / global batch), of data with `n_tokens` tokens in an epoch, None: not known; or
        `iterations`."""
        if self.epochs is None:
            return self.iterations
        if n_tokens is None:
            raise UserError(
                f"--epochs {self.epochs:g}: the number of tokens is not known before the data are prepared"
            )
        steps = int(self.epochs * (n_tokens // seq_len) / global_batch)
        if steps < 1:
            raise UserError(f"--epochs {self.epochs:g}: {n_tokens:,} tokens are less than one step")
        if self.iterations not in (None, steps):
            raise UserError(
                f"--epochs {self.epochs:g} is {steps} steps, not --iterations {self.iterations}; give one"
            )
        return steps


@dataclass(frozen=True, kw_only=True)
class RunSettings(OptimSettings):
    """How a run is carried out: device, ranks, folder, checkpoints, evaluation, tracking. With `OptimSettings` these
    are the settings of every stage of training, whatever its model and data."""

    title: ClassVar[str] = "run"

    device: str | None = setting(
        None, "cpu, cuda, cuda:N or mps; default cuda where there is one.", kind="execution"
    )
    dtype: Auto[Dtype] = setting(
        None,
        "Number format of matrix products (parameters are float32); default bfloat16 on GPUs, float32 on CPU; "
        "float16: for older GPUs.",
    )
    compile: Auto[bool] = setting(
        None,
        "torch.compile of each block; default on for GPUs (resonance: off), off on CPU.",
        kind="execution",
    )
    activation_checkpointing: str = setting(
        "none",
        "Trade time for memory: none, full, every-n:K or selective.",
        kind="execution",
        alone="every-n:1",
    )
    deterministic: bool = setting(
        False,
        "Only deterministic kernels (GPUs; CPU runs are deterministic for a given number of threads).",
        kind="execution",
    )
    on_nonfinite: Literal["stop", "skip"] = setting(
        "stop",
        "A loss or gradient that isn't finite: end the run, or skip the step (at most 10 in a row).",
        kind="execution",
    )
    peak_tflops: Positive | None = setting(
        None, "Peak of one device [TFLOP/s], for the MFU; default by the GPU's name.", kind="execution"
    )

    nproc: Annotated[int, Ge(1), Le(1024)] | None = setting(
        None,
        "Processes on this machine, one for each GPU; leave it out under torchrun and srun, whose ranks join the run.",
        kind="execution",
        main=True,
    )
    distributed_backend: Auto[Literal["single", "ddp", "nccl", "gloo", "zero", "fsdp", "diloco"]] = setting(
        None,
        "single; ddp (aliases nccl, gloo): replicas; zero: also a sharded optimizer; fsdp: all sharded; diloco: "
        "workers that exchange weights only now and then. Default ddp with several ranks.",
        kind="execution",
        main=True,
    )
    tp_size: Count = setting(1, "fsdp: ranks for tensor parallelism.", kind="execution")
    expert_parallel: bool = setting(
        False,
        "ddp, fsdp (then the default): place whole experts on different ranks and send tokens to them.",
        kind="execution",
    )
    replicas: Count = setting(
        1, "fsdp: whole copies of the model, each sharded over the other ranks.", kind="execution"
    )
    collective_timeout: Annotated[float, Ge(1), Lt(math.inf)] = setting(
        600.0,
        "How long ranks wait for one that doesn't answer, after the first step (which may take half an hour) [s].",
        kind="execution",
    )
    diloco_steps: Count = setting(500, "diloco: steps of each worker between two outer steps.")
    diloco_lr: Positive = setting(0.7, "diloco: learning rate of the outer step.")
    diloco_momentum: Annotated[float, Ge(0), Lt(1)] = setting(
        0.9, "diloco: Nesterov momentum of the outer step."
    )

    run_dir: Auto[Path] = setting(
        None,
        "The run folder; default runs/NAME ($RESULTS_BASE_FOLDER/NAME where that is set).",
        kind="job",
        main=True,
        aliases=("output-dir", "out-dir"),
    )
    name: Auto[str] = setting(
        None, "Name of the run; default made of architecture, optimizer, size and schedule.", kind="job"
    )
    auto_resume: bool = setting(
        True,
        "Resume from the newest valid checkpoint of the run folder; default yes, --no-auto-resume refuses a "
        "folder that has any.",
        kind="job",
    )
    resume_from: Path | None = setting(
        None,
        "Resume from this checkpoint of this or another run: a step folder, or a run folder (its newest).",
        kind="job",
    )
    extend_to: Count | None = setting(
        None,
        "Total number of steps to which a shorter run is extended; cos_inf continues at its final rate.",
        kind="job",
        main=True,
    )
    iterations_to_run: Count | None = setting(
        None, "Stop cleanly after this number of steps of this job.", kind="job"
    )
    json: bool = setting(False, "Print the summary as one JSON object on standard output.", kind="job")

    ckpt_interval: Natural = setting(
        500,
        "Steps between checkpoints; 0: only at the end and when stopped.",
        kind="execution",
        aliases=("latest-ckpt-interval", "save-steps"),
    )
    keep_last: Annotated[int, Ge(2)] = setting(
        2,
        "Newest checkpoints that are kept; at least 2, because one may be damaged when it is needed.",
        kind="execution",
    )
    keep_every: Natural = setting(
        0,
        "Also keep each checkpoint whose step is a multiple of this; 0: none.",
        kind="execution",
        aliases=("permanent-ckpt-interval",),
    )
    keep_best: bool = setting(
        False, "Also keep the weights of the best evaluation, in checkpoints/best.", kind="execution"
    )
    patience: Count | None = setting(
        None,
        "End the run after this number of evaluations without a new best; keeps the best, as --keep-best does.",
        kind="execution",
    )
    local_ckpt_dir: Path | None = setting(
        None,
        "Folder on this machine's disk where checkpoints are written before they are moved; default $SLURM_TMPDIR.",
        kind="execution",
    )
    async_checkpoint: bool = setting(
        True,
        "Write checkpoints while training continues, from a copy in host memory; default yes.",
        kind="execution",
    )

    eval_interval: Auto[Natural] = setting(
        None,
        "Steps between evaluations; default 200, in short runs set so that evaluation takes a quarter of the time "
        "at most; 0: only at the end.",
        kind="execution",
    )
    eval_batches: Auto[Natural] = setting(
        None,
        "Size of the fixed validation set, in batches of 32 sequences (whatever --batch-size is); 0: the whole "
        "split; default 64, fewer in short runs.",
        kind="execution",
    )
    final_eval_batches: Auto[Natural] = setting(
        None,
        "Size of the last evaluation, likewise; default half as many sequences as the run trains on.",
        kind="execution",
    )
    ema: Annotated[float, Gt(0), Lt(1)] | None = setting(
        None,
        "Decay of an exponential average of the weights, as in 0.999, which is evaluated and saved beside them.",
        kind="execution",
    )

    log_interval: Count = setting(10, "Steps between rows of metrics.jsonl.", kind="execution")
    tensorboard: bool = setting(
        False,
        "Mirror the metrics for TensorBoard, in the run folder's tensorboard/ (pip install tensorboard).",
        kind="execution",
        main=True,
    )
    wandb: bool = setting(
        False,
        "Mirror the metrics to Weights & Biases; a resumed run continues under its id.",
        kind="execution",
    )
    wandb_project: str | None = setting(None, "Default $WANDB_PROJECT.", kind="execution")
    wandb_entity: str | None = setting(None, "Default $WANDB_ENTITY.", kind="execution")
    wandb_group: str | None = setting(None, "Default $WANDB_RUN_GROUP.", kind="execution")
    wandb_mode: Literal["online", "offline", "disabled"] | None = setting(
        None,
        "Default $WANDB_MODE, else online; offline: for nodes without a network, sent later by `wandb sync`.",
        kind="execution",
    )
    collect_tau_stats: bool = setting(
        False,
        "dana-star's: order statistics of tau at evaluations number 10, 20, 40, ..., in the run folder's tau/.",
        kind="execution",
    )

    def check(self) -> None:
        super().check()
        if self.distributed_backend in ("nccl", "gloo"):
            object.__setattr__(self, "distributed_backend", "ddp")
        backend = self.distributed_backend
        if self.expert_parallel and backend not in (None, "ddp", "fsdp"):
            raise UserError(
                f"--expert-parallel needs --distributed-backend fsdp or ddp, not {backend}; leave one out"
            )
        for name in ("tp_size", "replicas"):
            if getattr(self, name) > 1 and (backend != "fsdp" or self.expert_parallel):
                raise UserError(
                    f"{flag(name)} {getattr(self, name)}: only with --distributed-backend fsdp, without "
                    "--expert-parallel"
                )
        checkpointing_rule(self.activation_checkpointing)

    def usual_backend(self, ranks: int) -> str:
        """The backend that `ranks` processes use: the chosen one, or its default."""
        return self.distributed_backend or (
            "single" if ranks == 1 else "fsdp" if self.expert_parallel else "ddp"
        )


@dataclass(frozen=True, kw_only=True)
class TrainConfig(RunSettings, DataSettings, ModelSettings):
    """The settings of `danalab train`, as they were given or resolved.

    UserError: a setting out of its range. What only shows together with the data or the scaling rules is refused by
    `danalab.train.config.resolve`.
    """

    title: ClassVar[str] = ""
    stage: ClassVar[str] = "danalab.train.pretraining:PRETRAINING"
    """The `StageKind` that trains by these settings, as MODULE:NAME."""

    given: "TrainConfig" = setting(None, hidden=True)
    """Of a resolved record: the settings as they were given."""
    lr_source: str = setting("given", hidden=True)
    """Where the learning rate comes from, in words."""
    notes: tuple[str, ...] = setting((), hidden=True)
    """Messages about automatic choices, for the log."""

    def check(self) -> None:
        if self.arch == "moe_expert_parallel":  # the original's name
            object.__setattr__(self, "arch", "moe")
            object.__setattr__(self, "expert_parallel", True)
        super().check()

    @property
    def source(self) -> str:
        """`data`; by default the corpus that the rule of a size was fitted on, else text that is on every machine.

        A size by rule (--heads, --size) asks for the published run, so it has its data; explicit dimensions are for
        trying things out.
        """
        if self.data is not None:
            return self.data
        if self.heads is None and self.size is None:
            return BUILT_IN_TEXT
        return "fineweb-edu" if architecture(self.arch).oscillators else "fineweb-100bt"

    # ---- of a resolved record ----

    def automatic(self, name: str) -> bool:
        """Whether a setting was left automatic."""
        return getattr(self.given, name) is None

    @property
    def last_step(self) -> int:
        """Steps of the whole run, extension included."""
        return self.extend_to or self.iterations

    @property
    def tokens_per_step(self) -> int:
        """Tokens of a step, over all ranks and micro-batches."""
        return self.global_batch * self.seq_len

    def tokens(self, steps: int) -> int:
        """Tokens of the first `steps` steps."""
        return steps * self.tokens_per_step

    @property
    def flops_per_token(self) -> int:
        """Training FLOPs of the model on one token."""
        return flops_per_token(self.model, self.seq_len)

    def flops(self, steps: int) -> int:
        """Training FLOPs of the model in the first `steps` steps."""
        return self.tokens(steps) * self.flops_per_token

    def optimizer_flops(self, steps: int) -> float | None:
        """FLOPs of the optimizer's own matrix products in the first `steps` steps; None: they are not known."""
        known = self.opt in FACTS
        return optimizer_flops(self.opt, self.model, self.optimizer_settings, steps) if known else None

    def facts(self) -> dict[str, Any]:
        """Sizes, length, rate and cost of the run, in one level: as `danalab plan` prints them and config.json keeps
        them."""
        steps = self.iterations
        return {
            **self.model.counts(),
            **{name: getattr(self, name) for name in _PLANNED},
            "steps": steps,
            "warmup": self.warmup_steps,
            "tokens": self.tokens(steps),
            "flops": self.flops(steps),
            "optimizer_flops": self.optimizer_flops(steps),
        }

    def is_logged(self, step: int) -> bool:
        """Whether the step gets a row."""
        return step % self.log_interval == 0 or step == 1 or self.is_evaluated(step)

    def is_evaluated(self, step: int) -> bool:
        """Whether its row has an evaluation; the last one always has."""
        return step == self.last_step or bool(self.eval_interval and step % self.eval_interval == 0)

    def is_saved(self, step: int) -> bool:
        """Whether it is checkpointed, besides at the end and when stopped."""
        return bool(self.ckpt_interval and step % self.ckpt_interval == 0)

    def schedule(self) -> Callable[[int], float]:
        """0-based step -> factor of the peak rate. An extension lengthens cos_inf's tail; others are computed again."""
        from danalab.optim.schedules import get_schedule  # imports torch

        settings = self.scheduler_settings()
        if word_of(self.scheduler) == "cosinf" and self.extend_to:
            settings["cos_inf_steps"] = settings.get("cos_inf_steps", 0) + self.last_step - self.iterations
        return get_schedule(self.scheduler, self.last_step, self.warmup_steps, **settings)

    def settings_of_optimizer(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """The hyper-parameters for `build_optimizer`: the record's, as far as the optimizer has them (`known`: its
        settings by name), and those that were given. UserError: it does not have one that was given."""
        settings = {
            name: getattr(self, name) for name in ("kappa", "delta", "weight_decay", "wd_ts") if name in known
        }
        if self.decay_bound and facts_of(self.opt).decay == "independent" and settings.get("wd_ts"):
            settings["omega"] = (
                settings.pop("weight_decay") * settings["wd_ts"]
            )  # a decay by omega is bounded
        if "beta3_warmup" in known:
            settings |= slow_momentum(self.iterations, self.delta, self.kappa)
        given = {name: getattr(self, name) for name in ("clipsnr", "gamma3", "beta1", "beta2")}
        given = {name: value for name, value in given.items() if value is not None}
        betas = [given.pop(name, None) if name not in known else None for name in ("beta1", "beta2")]
        if betas != [None, None]:
            if "betas" not in known:
                raise UserError(f"--beta1, --beta2: {self.opt} has no constant betas; leave them out")
            usual = tuple(settings.get("betas", known["betas"].default))
            both = (usual[i] if beta is None else beta for i, beta in enumerate(betas))
            settings["betas"] = (*both, *usual[2:])
        given |= self.optimizer_settings
        for name in given:
            if name in RESERVED or (
                name in _RUN_FIELDS and name not in ("clipsnr", "gamma3", "beta1", "beta2")
            ):
                raise UserError(f"--set {name}: {RESERVED.get(name, f'give it as {flag(name)}')}")
            if name not in known:
                raise UserError(f"{flag(name)}: {self.opt} has no {name}; it has {', '.join(known)}")
        return settings | given

    def memory_gib(
        self, micro_batch: int, ranks: int = 1, activation_bytes: int = 2, *, recompute: bool = False
    ) -> float:
        """Memory to train on one of `ranks` [GiB]: float32 weights and gradients, optimizer state, activations.

        Activations of a block for backward: about 8 tensors of width d_model and 3 of width mlp_dim per token, with
        flash attention; the chunked loss adds one hidden state and its gradient.

        Args:
            micro_batch: sequences.
            activation_bytes: of one number of an activation; 2 in bfloat16, 4 in float32.
            recompute: leaves the activations of the blocks out, which checkpointing recomputes: a lower bound.
        """
        model, sparse, backend = self.model, self.model.sparsity, self.distributed_backend
        moment_bytes = 2.0 if self.optimizer_settings.get("stochastic_rounding") == "moments" else 4.0
        words = (8 if self.ema is None else 12) / (ranks if backend == "fsdp" else 1)
        words += moment_bytes * facts_of(self.opt).state_words / (ranks if backend in ("fsdp", "zero") else 1)
        width, hidden = model.n_heads * model.head_dim, model.mlp_dim
        if sparse is not None:
            hidden = sparse.top_k * sparse.expert_dim + sparse.shared_dim
            width += sparse.top_k * model.d_model  # copies of each token, to and from its experts
        block = activation_bytes * (4 * model.d_model + 4 * width + 3 * hidden)
        # "selective" keeps products and attention, and recomputes two norms and the activation of the mlp.
        sizes = {"none": block, "full": activation_bytes * model.d_model}
        sizes["selective"] = block - activation_bytes * (2 * model.d_model + hidden)
        rule = checkpointing_rule(self.activation_checkpointing)
        modes = [rule(layer) for layer in range(model.n_layers)]
        kept = sum(sizes[mode] for mode in modes) + (block if set(modes) != {"none"} else 0)
        activations = micro_batch * self.seq_len * ((0 if recompute else kept) + 8 * model.d_model)
        return (words * model.exact_params + activations) / 2**30


_PLANNED = (
    "opt",
    "seq_len",
    "global_batch",
    "lr",
    "lr_source",
    "kappa",
    "delta",
    "omega",
    "weight_decay",
    "wd_ts",
    "decay_bound",
    "tokens_per_step",
    "flops_per_token",
)
"""Settings and costs that `facts` has by the names of the record."""
_RUN_FIELDS = {field.name for field in fields(RunSettings)}


# ---- names of runs ----


def default_name(config: TrainConfig, data_name: str) -> str:
    """The name of a resolved run: its main settings, then a digest of all others that were given."""
    given, model = config.given, config.model
    size = f"h{given.heads}" if given.heads is not None else f"d{model.d_model}x{model.n_layers}"
    if (sparse := model.sparsity) is not None:
        size += f"-e{sparse.n_experts}k{sparse.top_k}"
    words = [model.arch, short_name(config.opt), size, data_name]
    words += [f"b{config.global_batch}x{config.seq_len}", f"i{config.iterations}", f"lr{config.lr:.3g}"]
    words.append(f"s{given.seed}")
    if given.scheduler != TrainConfig.scheduler:
        words.append(given.scheduler)
    if digest := digest_of(given, names_of(TrainConfig, "run") - _SHOWN):
        words.append(digest)
    return "-".join(words)


_SHOWN = frozenset(
    {
        "arch",
        "opt",
        "d_model",
        "n_layers",
        "n_experts",
        "top_k",
        "global_batch",
        "seq_len",
        "iterations",
        "lr",
        "seed",
        "scheduler",
    }
)
"""Settings that stand in a name by themselves."""


def digest_of(config: TrainConfig, names: frozenset[str]) -> str:
    """Eight characters that tell apart configurations with other values of `names`; empty where all are defaults."""
    usual = {field.name: field.default for field in fields(config)} | {"optimizer_settings": {}}
    changed = {
        name: value
        for name, value in config.as_dict().items()
        if name in names and value != usual[name] and value not in ([], None)
    }
    return hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:8] if changed else ""
