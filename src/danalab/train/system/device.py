"""The machine: devices, number formats, the compiler, memory, random states, versions of the software."""

import base64
import contextlib
import logging
import os
import platform
import random
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from danalab import __version__
from danalab.errors import UserError, first_line
from danalab.native_library import multiplies_bfloat16

log = logging.getLogger(__name__)


def device_type(name: str | None) -> str:
    """ "cuda", "mps" or "cpu": the type of the device `name`; None: of the default device."""
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name.partition(":")[0]


def choose_device(name: str | None) -> torch.device:
    """The device `name`; None: a GPU where there is one, else the CPU. A GPU becomes the process's current one."""
    if name is None:
        return (
            torch.device("cuda", torch.cuda.current_device())
            if torch.cuda.is_available()
            else torch.device("cpu")
        )
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
            torch.cuda.set_device(
                device
            )  # streams, random states and kernels are those of the current device
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"--device {name}: {first_line(error)}") from error
    return device


def autocast_dtype(name: str, device: torch.device) -> torch.dtype | None:
    """Number format of matrix products; None: that of the parameters."""
    if name == "float32":
        return None
    if name == "float16":
        if device.type != "cuda":
            raise UserError(
                f"--dtype float16 is for GPUs without bfloat16; on {device.type} give float32 or bfloat16"
            )
        return torch.float16
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise UserError(
            f"bfloat16: {torch.cuda.get_device_name(device)} does not have it; give --dtype float32"
        )
    if device.type == "cpu" and not multiplies_bfloat16():
        log.warning("bfloat16 is slower than float32 on a CPU that has no instructions for its products")
    return torch.bfloat16


def autocast_context(
    dtype: torch.dtype | None, device: torch.device
) -> Callable[[], AbstractContextManager[Any]]:
    """Makes the context manager of forward computations; `dtype` as `autocast_dtype` gives it."""
    return contextlib.nullcontext if dtype is None else partial(torch.autocast, device.type, dtype=dtype)


def set_numerics(deterministic: bool) -> None:
    """TensorFloat32 for float32 products on GPUs; with `deterministic`, deterministic kernels only."""
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # No memory is read before it is written, and filling it would take time.
        torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True


@contextlib.contextmanager
def explain_errors(micro_batch: int, seq_len: int) -> Iterator[None]:
    """Turn running out of memory and a failed compilation into one line of advice."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(
            error
        ):  # the CPU allocator's
            raise UserError(
                f"out of memory with micro-batches of {micro_batch} x {seq_len} tokens: lower --batch-size (and raise "
                "--acc-steps as much, which changes no result), or try --activation-checkpointing full, or share the "
                f"model among more ranks with --distributed-backend fsdp ({str(error).splitlines()[0][:120]})"
            ) from error
        compiler = ("torch._dynamo.exc", "torch._inductor.exc")
        if any(kind.__module__.startswith(compiler) for kind in type(error).__mro__):
            raise UserError(
                f"--compile failed: {first_line(error)}; leave it out or give --no-compile"
            ) from error
        raise


def allow_many_files() -> None:
    """Raise the limit on open files to what the system allows: each memory-mapped shard of the data holds one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def peak_memory_gib(device: torch.device) -> float:
    """Peak memory so far [GiB]: allocated on a GPU, resident for a CPU process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)


def random_state() -> dict[str, Any]:
    """The state of every generator, as plain values."""
    version, words, gauss = random.getstate()
    name, key, position, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": [version, list(words), gauss],
        "numpy": [name, np.asarray(key).tolist(), position, has_gauss, cached],
        "torch": _text(torch.get_rng_state()),
    }
    if torch.cuda.is_available():
        state["cuda"] = _text(torch.cuda.get_rng_state())
    return state


def restore_random_state(state: dict[str, Any]) -> None:
    """Restore `random_state`."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, key, *rest = state["numpy"]
    np.random.set_state((name, np.array(key, dtype=np.uint32), *rest))
    torch.set_rng_state(_bytes_tensor(state["torch"]))
    if torch.cuda.is_available() and "cuda" in state:
        torch.cuda.set_rng_state(_bytes_tensor(state["cuda"]))


def seed_everything(seed: int) -> None:
    """Seed every generator."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _text(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode()


def _bytes_tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


def versions() -> dict[str, str | None]:
    """Versions of the software that the numbers of a run depend on."""
    return {
        "danalab": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "git_commit": _git_commit(),
    }


def _git_commit() -> str | None:
    """Commit of the source tree, with "-dirty" where it has changes; None for an installed package."""
    file = Path(__file__).resolve()
    here = file.parents[2]  # the package
    try:
        _git(
            here, "ls-files", "--error-unmatch", str(file)
        )  # fails where a repository only contains an installed copy
        commit = _git(here, "rev-parse", "HEAD")
        return commit + (
            "-dirty" if _git(here, "status", "--porcelain", "--untracked-files=no", "--", ".") else ""
        )
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
