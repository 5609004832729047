"""Settings of how a job runs: device, ranks, run folder, checkpoints, evaluation, tracking. Needs no torch."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Le, Lt

from danalab.errors import UserError
from danalab.train.config.fields import Count, Dtype, Natural, Positive, Section, flag, setting


@dataclass(frozen=True, kw_only=True)
class ExecutionSettings(Section):
    """Device, number format and memory."""

    title: ClassVar[str] = "device and memory"

    device: str | None = setting(None, kind="execution")
    """cpu, cuda, cuda:N or mps; default cuda where there is one."""
    dtype: Dtype | None = setting(None, aliases=("no-amp=float32",))
    """Number format of matrix products (parameters are float32); default bfloat16 on GPUs, float32 on CPU; float16: for
    older GPUs."""
    compile: bool | None = setting(None, kind="execution")
    """torch.compile of each block; default on for GPUs (resonance: off), off on CPU."""
    activation_checkpointing: str = setting("none", kind="execution")
    """Trade time for memory: none, full, every-n:K or selective."""
    deterministic: bool = setting(False, kind="execution")
    """Only deterministic kernels (GPUs; CPU runs are deterministic for a given number of threads)."""
    gc_interval: Natural = setting(1000, kind="execution")
    """Steps between Python garbage collections (never in between); 0: leave it to Python."""
    on_nonfinite: Literal["stop", "skip"] = setting("stop", kind="execution")
    """A loss or gradient that isn't finite: end the run, or skip the step (at most 10 in a row)."""
    peak_tflops: Positive | None = setting(None, kind="execution")
    """Peak of one device [TFLOP/s], for the MFU; default by the GPU's name."""


@dataclass(frozen=True, kw_only=True)
class ParallelSettings(Section):
    """Ranks, and how they share the work."""

    title: ClassVar[str] = "parallel"

    nproc: Annotated[int, Ge(1), Le(1024)] | None = setting(None, kind="execution", main=True)
    """Processes on this machine, one for each GPU; leave it out under torchrun and srun, whose ranks join the run."""
    distributed_backend: Literal["single", "ddp", "nccl", "gloo", "zero", "fsdp", "diloco"] | None = setting(
        None, kind="execution"
    )
    """single; ddp (aliases nccl, gloo): replicas; zero: also a sharded optimizer; fsdp: all sharded; diloco: workers
    that exchange weights only now and then. Default ddp with several ranks."""
    tp_size: Count = setting(1, kind="execution")
    """fsdp: ranks that share each matrix product."""
    expert_parallel: bool = setting(False, kind="execution")
    """ddp and fsdp (the default then): each rank has some of the experts whole, and tokens travel to them."""
    replicas: Count = setting(1, kind="execution")
    """fsdp: whole copies of the model, each sharded over the other ranks."""
    collective_timeout: Annotated[float, Ge(1), Lt(float("inf"))] = setting(600.0, kind="execution")
    """How long ranks wait for one that doesn't answer, after the first step (which may take half an hour) [s]."""

    diloco_steps: Count = 500
    """diloco: steps of each worker between two outer steps."""
    diloco_lr: Positive = 0.7
    """diloco: learning rate of the outer step."""
    diloco_momentum: Annotated[float, Ge(0), Lt(1)] = 0.9
    """diloco: Nesterov momentum of the outer step."""
    diloco_patience: Positive = setting(600.0, kind="execution")
    """diloco: how long workers wait for a missing one before they continue without it [s]."""

    def check(self) -> None:
        super().check()
        if self.distributed_backend in ("nccl", "gloo"):
            object.__setattr__(self, "distributed_backend", "ddp")
        backend = self.distributed_backend
        for name in ("diloco_steps", "diloco_lr", "diloco_momentum", "diloco_patience"):
            if (value := getattr(self, name)) != getattr(ParallelSettings, name) and backend != "diloco":
                raise UserError(f"{flag(name)} {value}: only with --distributed-backend diloco")
        if self.expert_parallel and backend not in (None, "ddp", "fsdp"):
            raise UserError(f"--expert-parallel needs --distributed-backend fsdp or ddp, not {backend}; leave one out")
        for name in ("tp_size", "replicas"):
            if (value := getattr(self, name)) == 1:
                continue
            if self.expert_parallel:
                raise UserError(f"{flag(name)} {value}: not with --expert-parallel; leave one of them out")
            if backend != "fsdp":
                used = "none was given" if backend is None else f"here it is {backend}"
                raise UserError(f"{flag(name)} {value}: only with --distributed-backend fsdp ({used})")
        if backend == "single" and (self.nproc or 1) > 1:
            raise UserError(f"--nproc {self.nproc}: --distributed-backend single is one process; use ddp, zero or fsdp")

    def usual_backend(self, ranks: int) -> str:
        """The backend that `ranks` processes use: the chosen one, or its default."""
        return self.distributed_backend or ("single" if ranks == 1 else "fsdp" if self.expert_parallel else "ddp")


@dataclass(frozen=True, kw_only=True)
class JobSettings(Section):
    """Run folder, start and end of this job."""

    title: ClassVar[str] = "run folder and job"

    run_dir: Path | None = setting(None, kind="job", main=True, aliases=("output-dir",))
    """The run folder; default runs/NAME ($RESULTS_BASE_FOLDER/NAME where that is set)."""
    name: str | None = setting(None, kind="job")
    """Name of the run; default made of architecture, optimizer, size and schedule."""
    auto_resume: bool = setting(True, kind="job")
    """Resume from the newest valid checkpoint of the run folder; --no-auto-resume refuses a folder that has any."""
    resume_from: Path | None = setting(None, kind="job")
    """Resume from this checkpoint of this or another run: a step folder, a file of it, or a run folder (its newest)."""
    extend_to: Count | None = setting(None, kind="job")
    """Total number of steps to which a shorter run is extended; cos_inf continues at its final rate."""
    iterations_to_run: Count | None = setting(None, kind="job")
    """Stop cleanly after this number of steps of this job."""
    json: bool = setting(False, kind="job")
    """Print the summary as one JSON object on standard output."""


_KEPT_STEP = re.compile(r"([1-9]\d{0,17})(?:=(?!step-|superseded-)([A-Za-z0-9][A-Za-z0-9._-]*))?")


@dataclass(frozen=True, kw_only=True)
class CheckpointSettings(Section):
    """When checkpoints are written, and which are kept."""

    title: ClassVar[str] = "checkpoints"

    ckpt_interval: Natural = setting(500, kind="execution", aliases=("latest-ckpt-interval",))
    """Steps between checkpoints; 0: only at the end and when stopped."""
    keep_last: Annotated[int, Ge(2)] = setting(2, kind="execution")
    """Newest checkpoints that are kept; at least 2, because one may be damaged when it is needed."""
    keep_every: Natural = setting(0, kind="execution", aliases=("permanent-ckpt-interval",))
    """Also keep each checkpoint whose step is a multiple of this; 0: none."""
    keep_steps: tuple[str, ...] = setting((), kind="execution")
    """Write and keep checkpoints at these steps, optionally with a name: 1000 5000=before-decay."""
    local_ckpt_dir: Path | None = setting(None, kind="execution")
    """Folder on this machine's disk where checkpoints are written before they are moved; default $SLURM_TMPDIR."""
    async_checkpoint: bool = setting(True, kind="execution")
    """Write checkpoints while training continues, from a copy in host memory."""

    def check(self) -> None:
        super().check()
        self.kept_steps()

    def kept_steps(self) -> dict[int, str | None]:
        """`keep_steps` as step -> name."""
        names: dict[int, str | None] = {}
        for word in ",".join(self.keep_steps).split(","):
            match = _KEPT_STEP.fullmatch(word)
            if word and match is None:
                raise UserError(f"--keep-steps {word}: STEP or STEP=NAME is expected, as in 5000 or 5000=before-decay")
            if match:
                if match[2] and match[2] in names.values():
                    raise UserError(f"--keep-steps {word}: another step has the name '{match[2]}' already")
                names[int(match[1])] = match[2]
        return names


DEFAULT_INTERVAL, LEAST_EVALUATIONS = 200, 10
DEFAULT_BATCHES, LEAST_BATCHES = 64, 4
SHARE = 0.25
"""Time of all evaluations during a run but the last, as a share of the time of training, at most."""
FIXED_BATCH = 32
"""Sequences in one of `--eval-batches`; a constant, so that the fixed set does not depend on the batch."""


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings(Section):
    """Validation."""

    title: ClassVar[str] = "evaluation"

    eval_interval: Natural | None = setting(None, kind="execution", main=True)
    """Steps between evaluations; default 200, at most a tenth of the run; 0: only at the end."""
    eval_batches: Natural | None = setting(None, kind="execution")
    """Size of the fixed validation set, in batches of 32 sequences (whatever --batch-size is); 0: the whole split;
    default 64, in short runs so few (at least 4) that all evaluations take a quarter of the time of training."""
    final_eval_batches: Natural | None = setting(None, kind="execution")
    """Size of the last evaluation, likewise; default the whole split, or as many sequences as the run trains on."""
    ema: Annotated[float, Gt(0), Lt(1)] | None = setting(None, kind="execution")
    """Decay of an exponential average of the weights, as in 0.999, which is evaluated and saved beside them."""

    def evaluation_sizes(self, sequences: int, steps: int) -> dict[str, int]:
        """Interval and sizes; a forward pass of one of the run's `sequences` is a third of its training."""
        interval, fixed, final = self.eval_interval, self.eval_batches, self.final_eval_batches
        if interval is None:
            interval = max(1, min(DEFAULT_INTERVAL, steps // LEAST_EVALUATIONS))
        if fixed is None:
            evaluations = steps // interval if interval else 1
            share = 3 * SHARE * sequences / max(evaluations, 1)
            fixed = max(LEAST_BATCHES, min(DEFAULT_BATCHES, int(share / FIXED_BATCH)))
        if final is None:
            final = max(fixed, -(-sequences // FIXED_BATCH)) if fixed else 0
        return {"eval_interval": interval, "eval_batches": fixed, "final_eval_batches": final}


@dataclass(frozen=True, kw_only=True)
class TrackingSettings(Section):
    """Rows of metrics and experiment trackers."""

    title: ClassVar[str] = "tracking"

    log_interval: Count = setting(10, kind="execution")
    """Steps between rows of metrics.jsonl."""
    tensorboard: bool = setting(False, kind="execution")
    """Mirror the metrics for TensorBoard, in the run folder's tensorboard/."""
    wandb: bool = setting(False, kind="execution")
    """Mirror the metrics to Weights & Biases; a resumed run continues under its id."""
    wandb_project: str | None = setting(None, kind="execution")
    """Default $WANDB_PROJECT."""
    wandb_entity: str | None = setting(None, kind="execution")
    """Default $WANDB_ENTITY."""
    wandb_group: str | None = setting(None, kind="execution")
    """Default $WANDB_RUN_GROUP."""
    wandb_mode: Literal["online", "offline", "disabled"] | None = setting(None, kind="execution")
    """Default $WANDB_MODE, else online; offline: for nodes without a network, sent later by `wandb sync`."""
    sample_prompts: tuple[str, ...] = setting((), kind="execution")
    """Continue these prompts at each evaluation, in the log and samples.jsonl: "Once upon" "The capital of"."""
    log_dynamics: bool = setting(False, kind="execution")
    """Log norms of weights, gradients and updates of each parameter, and angular updates: dynamics.jsonl; for the Dana
    family also signal-to-noise ratios and how often their bound acts: signal.jsonl."""
    collect_tau_stats: bool = setting(False, kind="execution")
    """dana-star's: order statistics of tau at evaluations number 10, 20, 40, ..., in the run folder's tau/."""
