"""What a person says about a training run. None means automatic: `resolve` fills it in by the scaling rules.

Needs no torch; the docstring below each field is its help on the command line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from danalab.errors import UserError
from danalab.train.config.model_flags import ModelFlags
from danalab.train.config.scheduler_flags import SchedulerFlags


@dataclass(frozen=True, kw_only=True)
class TrainConfig(SchedulerFlags, ModelFlags):
    """Settings of `danalab train`.

    Raises:
        UserError: a setting out of its range; what only shows together with the data or the scaling rules is refused
            by `danalab.train.config.resolve`.
    """

    opt: str = "adana"
    """Optimizer; `danalab optim list` shows them."""
    renormalise: bool | None = None
    """Divide the weights of a token's experts by their sum; default yes."""
    load_balance_loss: float | None = None
    """Weight of the load-balancing loss, which is 1 where experts are used evenly; default 0.01."""
    router_z_loss: float | None = None
    """Weight of mean(logsumexp^2) of the routers' logits; default 0.001."""
    router_entropy_loss: float | None = None
    """Weight of minus the entropy of the mean routing distribution [nats]; default 0."""
    vocab_size: int | None = None
    """Vocabulary of the model [tokens]; default the data's, padded."""
    init: str | None = None
    """Initial weights: scaled-gpt, karpathy-gpt2 or standard; default scaled-gpt (resonance: karpathy-gpt2)."""

    data: str = "stdlib"
    """Data folder, or the name of a source (looked up in $DATASETS_DIR, default ./datasets); a:0.7,b:0.3 mixes."""
    tokenizer: str | None = None
    """Tokenizer, where --data is the name of a source; default the source's."""
    seq_len: int | None = None
    """Context length [tokens]; default 2048, or what the sequences of pre-tokenised arrays hold."""
    packing: Literal["windows", "documents"] = "windows"
    """Rows of tokens: windows of the stream, or whole documents, best fit, without padding."""
    document_mask: bool = False
    """Attention sees its own document only, and positions start anew with each (needs the end-of-text id)."""
    batch_ramp: str | None = None
    """Smaller global batches at first: SEQUENCES:STEP,...; 8:1000,16:3000 is 8 before step 1000, 16 before 3000."""
    seq_len_ramp: str | None = None
    """Shorter contexts at first: LENGTH:STEP,...; cuts the same tokens into pieces, which divide --seq-len."""
    array_cache_gib: float = 4.0
    """Memory for .pt and .npz arrays, least recently used first out [GiB]; .npy needs none."""
    batch_size: int | None = None
    """Sequences of one micro-batch on one rank; default 32, or what divides --global-batch."""
    acc_steps: int | None = None
    """Micro-batches a step; default 1, or what --global-batch needs."""
    global_batch: int | None = None
    """Sequences a step, over all ranks and micro-batches; default batch-size x ranks x acc-steps."""

    iterations: int | None = None
    """Length of the run [steps]; default by --tokens-per-param."""
    tokens_per_param: float = 20.0
    """Horizon, where --iterations isn't given [tokens a parameter]."""
    horizon_basis: Literal["total", "non-emb"] = "total"
    """Parameters that the horizon counts."""
    warmup_steps: int | None = None
    """Warm-up [steps]; default iterations / 50."""
    lr: float | None = None
    """Peak learning rate; default by the fitted law, times --lr-multiplier."""
    lr_multiplier: float = 1.0
    """Factor on the fitted law's learning rate; an explicit --lr is taken as it is."""
    phase_lr_factor: float = 1.0
    """resonance: factor on the learning rate of the oscillators' phases."""
    kappa: float = 0.85
    """The Dana family's damping exponent."""
    delta: float = 8.0
    """The Dana family's averaging window: beta(t) = 1 - delta / (delta + t)."""
    omega: float = 4.0
    """Weight-decay strength, as in omega / t."""
    clipsnr: float | None = None
    """Bound of the damped momentum's signal-to-noise ratio; default 2, for the optimizers that clip."""
    gamma3: float | None = None
    """Scale of the Dana family's momentum term; default 1."""
    beta1: float | None = None
    """First of the optimizer's betas, AdamW's rate of the first moment; default as `danalab optim list --opt` shows."""
    beta2: float | None = None
    """Second of the optimizer's betas, AdamW's rate of the second moment; default as there."""
    weight_decay: float | None = None
    """Default omega / wd_ts (independent of the learning rate) or omega / (lr iterations) (coupled: adamw)."""
    wd_ts: float | None = None
    """Time scale of the decaying weight decay [steps]; default iterations / wd-ts-divisor."""
    wd_ts_divisor: float = 10.0
    """Where --wd-ts isn't given: iterations / wd-ts-divisor."""

    optimizer_settings: dict[str, Any] = field(default_factory=dict)
    """Further settings of the optimizer, by name; on the command line each is a flag of its own."""

    grad_clip: float = 0.5
    """Largest Euclidean norm of the gradient; 0: no clipping."""
    z_loss: float = 1e-4
    """Weight of mean(logsumexp^2) in what is minimised; never part of a reported loss."""
    hoyer_loss: float = 0.0
    """Weight of the mean of |e|_1 / |e|_2 over embedded tokens, to make them sparse; never part of a reported loss."""
    seed: int = 0
    """Seed of the initial weights."""
    data_seed: int = 1337
    """Seed of the order of the data."""
    device: str | None = None
    """cpu, cuda or cuda:N; default cuda where there is one."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Of the products (parameters are float32); default bfloat16 on GPUs, float32 on CPU; float16: older GPUs."""
    compile: bool | None = None
    """torch.compile of each block; default on for GPUs (resonance: off), off on CPU."""
    activation_checkpointing: str = "none"
    """Trade time for memory: none, full, every-n:K or selective."""
    deterministic: bool = False
    """Only deterministic kernels (GPUs; CPU runs are deterministic for a given number of threads)."""
    tune_malloc: bool = True
    """CPU on Linux with glibc: keep freed memory in the process; up to twice as fast with large vocabularies."""
    nproc: int | None = None
    """Processes on this machine, one a GPU; leave it out under torchrun and srun, whose ranks join by themselves."""
    distributed_backend: Literal["single", "ddp", "nccl", "zero", "fsdp", "diloco"] | None = None
    """single; ddp (alias nccl): replicas; zero: and a sharded optimizer; fsdp: all sharded; diloco: workers that meet
    every --diloco-steps only. Default ddp with ranks."""
    diloco_steps: int | None = None
    """diloco: steps of each worker between two outer steps; default 500."""
    diloco_lr: float | None = None
    """diloco: learning rate of the outer step; default 0.7."""
    diloco_momentum: float | None = None
    """diloco: Nesterov momentum of the outer step; default 0.9."""
    diloco_patience: float | None = None
    """diloco: how long workers wait for one that does not come, before they go on without it [s]; default 600."""
    tp_size: int = 1
    """fsdp: ranks that share each matrix product."""
    expert_parallel: bool = False
    """fsdp (unless said otherwise) and ddp: experts are shared out whole among the ranks, and tokens travel to them."""
    replicas: int = 1
    """fsdp: whole copies of the model, each sharded over the other ranks."""
    collective_timeout: float = 600.0
    """How long ranks wait for one that doesn't answer, after the first step (which may take half an hour) [s]."""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """A loss or gradient that isn't finite: end the run, or skip the step (at most 10 in a row)."""

    eval_interval: int = 200
    """Steps between evaluations; 0: only at the end."""
    eval_batches: int = 64
    """Size of the fixed validation set, in batches of 32 sequences (whatever --batch-size); 0: the whole split."""
    log_interval: int = 10
    """Steps between rows of metrics.jsonl."""
    ckpt_interval: int = 500
    """Steps between checkpoints; 0: only at the end and when stopped."""
    keep_last: int = 2
    """Newest checkpoints that are kept, at least 2."""
    keep_every: int = 0
    """Keep each checkpoint whose step is a multiple of this, too; 0: none."""
    keep_steps: tuple[str, ...] = ()
    """Checkpoint at these steps and keep them, with a name where one is given: 1000 5000=before-decay."""
    local_ckpt_dir: Path | None = None
    """Folder on this machine's own disk by way of which checkpoints go; default $SLURM_TMPDIR where that is set."""
    async_checkpoint: bool = True
    """Write checkpoints beside training, from a copy in host memory."""
    gc_interval: int = 1000
    """Steps between Python garbage collections (never in between); 0: leave it to Python."""

    tensorboard: bool = False
    """Mirror the metrics for TensorBoard, in the run folder's tensorboard/."""
    wandb: bool = False
    """Mirror the metrics to Weights & Biases; a resumed run goes on under its id."""
    wandb_project: str | None = None
    """Default $WANDB_PROJECT."""
    wandb_entity: str | None = None
    """Default $WANDB_ENTITY."""
    wandb_group: str | None = None
    """Default $WANDB_RUN_GROUP."""
    wandb_mode: Literal["online", "offline", "disabled"] | None = None
    """Default $WANDB_MODE, else online; offline: for nodes without a connection, to be sent by `wandb sync`."""
    log_dynamics: bool = False
    """Norms of weights, gradients and updates of each parameter, and angular updates, when logged: dynamics.jsonl; of
    the Dana family also signal-to-noise ratios and how often their bound acts: signal.jsonl."""
    collect_tau_stats: bool = False
    """dana-star's: order statistics of tau at evaluations number 10, 20, 40, ..., in the run folder's tau/."""
    profile: bool = False
    """Trace a few early steps of this job by torch's profiler, in the run folder's profile/."""
    peak_tflops: float | None = None
    """Peak of one device [TFLOP/s], for the MFU; default by the GPU's name."""

    run_dir: Path | None = None
    """The run folder; default runs/NAME ($RESULTS_BASE_FOLDER/NAME where that is set)."""
    name: str | None = None
    """Name of the run; default made of architecture, optimizer, size and schedule."""
    auto_resume: bool = True
    """Go on from the newest valid checkpoint of the run folder; --no-auto-resume refuses a folder that has any."""
    resume_from: Path | None = None
    """Go on from this checkpoint (a step folder or file of it, or a run folder: its newest), of this run or another."""
    extend_to: int | None = None
    """Continue to this many steps in all a run that was made for fewer; cos_inf goes on at its final rate."""
    iterations_to_run: int | None = None
    """Stop cleanly after this many steps of this job."""
    json: bool = False
    """Print the summary as one JSON object on standard output."""

    def __post_init__(self) -> None:
        for name in ("run_dir", "resume_from", "local_ckpt_dir"):  # programs say "runs/x" as well as Path("runs/x")
            if isinstance(value := getattr(self, name), str):
                object.__setattr__(self, name, Path(value))
        object.__setattr__(self, "data", str(self.data))
        object.__setattr__(self, "mlp_only_layers", tuple(self.mlp_only_layers))
        # Lists, as JSON has them: a run is compared with what its folder says.
        settings = {
            name.replace("-", "_"): list(value) if isinstance(value, tuple) else value
            for name, value in self.optimizer_settings.items()
        }
        object.__setattr__(self, "optimizer_settings", dict(sorted(settings.items())))
        for names, low, what in _RANGES:
            for name in names.split():
                value = getattr(self, name)
                if value is not None and not value >= low:
                    raise UserError(f"{flag(name)} {value}: must be {what}")
        losses = ("z_loss", "hoyer_loss")
        for name in ("grad_clip", *losses, "omega", "tokens_per_param", "lr_multiplier", "array_cache_gib"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise UserError(f"{flag(name)} {value}: must be finite and not negative")
        if self.lr is not None and not 0 < self.lr < float("inf"):
            raise UserError(f"--lr {self.lr}: must be finite and positive")
        for name in ("wd_ts_divisor", "peak_tflops"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise UserError(f"{flag(name)} {value}: must be finite and positive")
        if self.seed >= 2**64:
            raise UserError(f"--seed {self.seed}: must be below 2^64, which is what generators take")
        if self.keep_last < 2:
            raise UserError(f"--keep-last {self.keep_last}: at least 2, as one may be damaged when it is needed")
        object.__setattr__(self, "keep_steps", tuple(str(word) for word in self.keep_steps))
        self.kept_steps()
        for name, known in (("on_nonfinite", ("stop", "skip")), ("horizon_basis", ("total", "non-emb"))):
            if getattr(self, name) not in known:
                raise UserError(f"{flag(name)} {getattr(self, name)}: known are {', '.join(known)}")
        if self.dtype not in (None, "float32", "bfloat16", "float16"):
            raise UserError(f"--dtype {self.dtype}: known are float32, bfloat16, float16")
        if not 1 <= self.collective_timeout < float("inf"):
            raise UserError(f"--collective-timeout {self.collective_timeout}: must be at least 1 s")
        if self.distributed_backend == "nccl":
            object.__setattr__(self, "distributed_backend", "ddp")
        if self.distributed_backend not in (None, "single", "ddp", "zero", "fsdp", "diloco"):
            raise UserError(
                f"--distributed-backend {self.distributed_backend}: known are single, ddp (alias nccl), zero, fsdp, "
                "diloco"
            )
        for name in ("diloco_steps", "diloco_lr", "diloco_momentum", "diloco_patience"):
            if getattr(self, name) is not None and self.distributed_backend != "diloco":
                raise UserError(f"{flag(name)} {getattr(self, name)}: only with --distributed-backend diloco")
        for name in ("diloco_lr", "diloco_patience"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise UserError(f"{flag(name)} {value}: must be finite and positive")
        if self.diloco_momentum is not None and not 0 <= self.diloco_momentum < 1:
            raise UserError(f"--diloco-momentum {self.diloco_momentum}: must be in [0, 1)")
        if self.expert_parallel and self.distributed_backend not in (None, "ddp", "fsdp"):
            raise UserError(
                f"--expert-parallel: only with --distributed-backend fsdp or ddp, here it is "
                f"{self.distributed_backend}; leave one of them out"
            )
        for name in ("tp_size", "replicas"):
            if self.expert_parallel and getattr(self, name) > 1:
                raise UserError(
                    f"{flag(name)} {getattr(self, name)}: not with --expert-parallel; leave one of them out"
                )
            if getattr(self, name) > 1 and self.distributed_backend != "fsdp":
                raise UserError(
                    f"{flag(name)} {getattr(self, name)}: only with --distributed-backend fsdp"
                    f" (here {self.distributed_backend or 'none was given'})"
                )
        if self.distributed_backend == "single" and (self.nproc or 1) > 1:
            raise UserError(
                f"--nproc {self.nproc}: --distributed-backend single is one process; give ddp, zero or fsdp"
            )

    def kept_steps(self) -> dict[int, str | None]:
        """`keep_steps` as step -> name.

        Raises:
            UserError: a word that is neither STEP nor STEP=NAME, or a name that is given twice.
        """
        found: dict[int, str | None] = {}
        for word in ",".join(self.keep_steps).split(","):
            match = _KEPT_STEP.fullmatch(word)
            if word and match is None:
                raise UserError(f"--keep-steps {word}: STEP or STEP=NAME is expected, as in 5000 or 5000=before-decay")
            if match:
                if match[2] and match[2] in found.values():
                    raise UserError(f"--keep-steps {word}: the name '{match[2]}' is given to another step, too")
                found[int(match[1])] = match[2]
        return found

    def as_dict(self) -> dict[str, Any]:
        """All fields as plain values for JSON."""
        return {
            field.name: str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
            for field in fields(self)
            for value in [getattr(self, field.name)]
        }


_KEPT_STEP = re.compile(r"([1-9]\d*)(?:=(?!step-|superseded-)([A-Za-z0-9][A-Za-z0-9._-]*))?")

_RANGES = (
    ("batch_size acc_steps global_batch iterations seq_len log_interval iterations_to_run extend_to", 1, "at least 1"),
    ("diloco_steps", 1, "at least 1"),
    (
        "heads d_model n_layers n_heads num_frequencies n_kv_heads head_dim mlp_dim vocab_size nproc tp_size replicas",
        1,
        "at least 1",
    ),
    ("warmup_steps eval_interval eval_batches ckpt_interval keep_every gc_interval seed data_seed", 0, "0 or more"),
)


def usual_backend(config: TrainConfig, ranks: int) -> str:
    """The default of --distributed-backend for a number of ranks."""
    return "single" if ranks == 1 else "fsdp" if config.expert_parallel else "ddp"


def flag(name: str) -> str:
    """How a field is spelled on the command line."""
    return "--" + name.replace("_", "-")


MECHANICS = frozenset(
    {
        *("batch_size", "acc_steps", "device", "compile", "activation_checkpointing", "tune_malloc", "gc_interval"),
        "deterministic",
        *("nproc", "distributed_backend", "tp_size", "replicas", "expert_parallel", "collective_timeout"),
        "diloco_patience",
        *("on_nonfinite", "eval_interval", "eval_batches", "log_interval", "json"),
        *("ckpt_interval", "keep_last", "keep_every", "keep_steps", "local_ckpt_dir", "async_checkpoint"),
        *("tensorboard", "wandb", "wandb_project", "wandb_entity", "wandb_group", "wandb_mode"),
        *("log_dynamics", "collect_tau_stats", "profile", "peak_tflops"),
        *("run_dir", "name", "auto_resume", "resume_from", "extend_to", "iterations_to_run"),
        *(
            "data",
            "array_cache_gib",
            "tokenizer",
            "heads",
            "size",
            "tokens_per_param",
            "horizon_basis",
            "lr_multiplier",
        ),
    }
)
"""Fields that may differ between the jobs of one run: they say how it is carried out and what is reported, or only led
to values that are compared themselves (the data by its fingerprint, the size by its dimensions)."""
