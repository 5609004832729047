"""Settings of the machine: device, number format, compiler, memory."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from danalab.train.config.fields import Dtype, Natural, Positive, Section, setting


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
