"""Devices, number formats, numerics and the compiler."""

import contextlib
import logging
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from danalab.errors import UserError

log = logging.getLogger(__name__)


def device_type(name: str | None) -> str:
    """ "cuda", "mps" or "cpu": the type of the device `name`; None: of the default device."""
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name.partition(":")[0]


def choose_device(name: str | None) -> torch.device:
    """The device `name`; None: a GPU where there is one, else the CPU. A GPU becomes the process's current one."""
    if name is None:
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    if device_type(name) not in ("cpu", "cuda", "mps"):
        raise UserError(f"--device {name}: cpu, cuda, cuda:N or mps is expected")
    if name == "mps" and not torch.backends.mps.is_available():
        raise UserError("--device mps: torch finds no Apple GPU here")
    try:
        device = torch.device(name)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())  # each rank has set its own
        if device.type != "mps":
            torch.empty(1, device=device)
        if device.type == "cuda":
            torch.cuda.set_device(device)  # streams, random states and kernels are those of the current device
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"--device {name}: {str(error).splitlines()[0]}") from error
    return device


def autocast_dtype(name: str | None, device: torch.device) -> torch.dtype | None:
    """Number format of matrix products; None: that of the parameters. Default bfloat16 with CUDA, else float32."""
    if name is None:
        name = "bfloat16" if device.type == "cuda" else "float32"
    if name == "float32":
        return None
    if name == "float16":
        if device.type != "cuda":
            raise UserError(f"--dtype float16 is for GPUs without bfloat16; on {device.type} give float32 or bfloat16")
        return torch.float16
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise UserError(f"bfloat16: {torch.cuda.get_device_name(device)} does not have it; give --dtype float32")
    if device.type == "cpu" and not _multiplies_bfloat16():
        log.warning("bfloat16 is slower than float32 on a CPU that has no instructions for its products")
    return torch.bfloat16


def autocast_context(dtype: torch.dtype | None, device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Makes the context manager of forward computations; `dtype` as `autocast_dtype` gives it."""
    return contextlib.nullcontext if dtype is None else partial(torch.autocast, device.type, dtype=dtype)


def _multiplies_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the CPU has instructions for products in bfloat16, by Linux's /proc/cpuinfo; elsewhere False."""
    try:
        words = cpuinfo.read_text().split()
    except OSError:
        return False
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(words)


def set_numerics(deterministic: bool) -> None:
    """TensorFloat32 for float32 products on GPUs; with `deterministic`, deterministic kernels only."""
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # No memory is read before it is written, and filling it would take time.
        torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True


def require_compiler(device: torch.device) -> None:
    """Check before the run starts that torch.compile can work."""
    if device.type == "mps":
        raise UserError("--compile is not available on mps; leave it out")
    if device.type == "cpu":
        from torch._inductor import config as inductor

        names = [name for name in inductor.cpp.cxx if name] if isinstance(inductor.cpp.cxx, (list, tuple)) else []
        if not any(shutil.which(name) for name in [os.environ.get("CXX", ""), *names] if name):
            raise UserError("--compile needs a C++ compiler (apt install g++, or set CXX); or leave --compile out")
    else:
        from torch.utils._triton import has_triton

        if not has_triton():
            raise UserError("--compile on a GPU needs Triton, which does not work here; give --no-compile")
