"""Settings of the machine: device, number format, compiler, memory, and how ranks share the work."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le, Lt

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
    tune_malloc: bool = setting(True, kind="execution")
    """CPU on Linux with glibc: keep freed memory in the process; up to twice as fast with large vocabularies."""
    onednn: bool = setting(True, kind="execution")
    """AMD CPUs with AVX-512: float32 products by oneDNN in place of MKL, twice as fast and as exact."""
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
    that exchange weights only every --diloco-steps. Default ddp with several ranks."""
    diloco_steps: Count | None = None
    """diloco: steps of each worker between two outer steps; default 500."""
    diloco_lr: Positive | None = None
    """diloco: learning rate of the outer step; default 0.7."""
    diloco_momentum: Annotated[float, Ge(0), Lt(1)] | None = None
    """diloco: Nesterov momentum of the outer step; default 0.9."""
    diloco_patience: Positive | None = setting(None, kind="execution")
    """diloco: how long workers wait for a missing one before they continue without it [s]; default 600."""
    tp_size: Count = setting(1, kind="execution")
    """fsdp: ranks that share each matrix product."""
    expert_parallel: bool = setting(False, kind="execution")
    """ddp and fsdp (the default then): each rank has some of the experts whole, and tokens travel to them."""
    replicas: Count = setting(1, kind="execution")
    """fsdp: whole copies of the model, each sharded over the other ranks."""
    collective_timeout: Annotated[float, Ge(1), Lt(float("inf"))] = setting(600.0, kind="execution")
    """How long ranks wait for one that doesn't answer, after the first step (which may take half an hour) [s]."""

    def check(self) -> None:
        """Refuse flags of another backend than the chosen one."""
        super().check()
        if self.distributed_backend in ("nccl", "gloo"):
            object.__setattr__(self, "distributed_backend", "ddp")
        backend = self.distributed_backend
        for name in ("diloco_steps", "diloco_lr", "diloco_momentum", "diloco_patience"):
            if getattr(self, name) is not None and backend != "diloco":
                raise UserError(f"{flag(name)} {getattr(self, name)}: only with --distributed-backend diloco")
        if self.expert_parallel and backend not in (None, "ddp", "fsdp"):
            raise UserError(
                f"--expert-parallel: only with --distributed-backend fsdp or ddp, not {backend}; leave one of them out"
            )
        for name in ("tp_size", "replicas"):
            if (value := getattr(self, name)) == 1:
                continue
            if self.expert_parallel:
                raise UserError(f"{flag(name)} {value}: not with --expert-parallel; leave one of them out")
            if backend != "fsdp":
                used = "none was given" if backend is None else f"here it is {backend}"
                raise UserError(f"{flag(name)} {value}: only with --distributed-backend fsdp ({used})")
        if backend == "single" and (self.nproc or 1) > 1:
            raise UserError(
                f"--nproc {self.nproc}: --distributed-backend single is one process; give ddp, zero or fsdp"
            )

    def usual_backend(self, ranks: int) -> str:
        """The backend that `ranks` processes use: the chosen one, or its default."""
        return self.distributed_backend or ("single" if ranks == 1 else "fsdp" if self.expert_parallel else "ddp")
