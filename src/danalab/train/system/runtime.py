"""What a run needs of the machine: device, number formats, allocator, collector, random states, stop signals."""

from __future__ import annotations

import base64
import ctypes
import gc
import logging
import os
import platform
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from danalab import __version__
from danalab.errors import UserError

log = logging.getLogger(__name__)

# ---- device and number formats ----


def device_type(name: str | None) -> str:
    """ "cuda" or "cpu": the kind of the device called `name`, or of what is there."""
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name.partition(":")[0]


def choose_device(name: str | None) -> torch.device:
    """The device called `name`, or a GPU where there is one, or the CPU.

    Raises:
        UserError: it is not there, or of another kind than these.
    """
    if name is None:
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    if device_type(name) not in ("cpu", "cuda"):
        raise UserError(f"--device {name}: cpu, cuda or cuda:N is expected")
    try:
        device = torch.device(name)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())  # each rank has set its own
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"--device {name}: {str(error).splitlines()[0]}") from error
    return device


def autocast_dtype(name: str | None, device: torch.device) -> torch.dtype | None:
    """Number format of the products, None for the parameters' own; default bfloat16 on GPUs, float32 on CPU.

    Raises:
        UserError: bfloat16 on a GPU that has none; float16 on a CPU.
    """
    if name is None:
        name = "bfloat16" if device.type == "cuda" else "float32"
    if name == "float32":
        return None
    if name == "float16":
        if device.type == "cpu":
            raise UserError("--dtype float16: is for GPUs without bfloat16; on a CPU give float32 (or bfloat16)")
        return torch.float16
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise UserError(f"bfloat16: {torch.cuda.get_device_name(device)} does not have it; give --dtype float32")
    if device.type == "cpu" and not _multiplies_bfloat16():
        log.warning("bfloat16 is slower than float32 on a CPU that has no instructions for its products")
    return torch.bfloat16


def _multiplies_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the CPU has instructions for products in bfloat16, as Linux tells; elsewhere it is not known."""
    try:
        words = cpuinfo.read_text().split()
    except OSError:
        return False
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(words)


def set_numerics(deterministic: bool) -> None:
    """TensorFloat32 for float32 products on GPUs; with `deterministic`, only kernels that repeat themselves."""
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # Nothing is read before it is written, and filling all memory first would cost time.
        torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True


def require_compiler(device: torch.device) -> None:
    """Find out before the run starts that torch.compile cannot work.

    Raises:
        UserError: no compiler, with what to do.
    """
    if device.type == "cpu":
        from torch._inductor import config as inductor

        names = [name for name in inductor.cpp.cxx if name] if isinstance(inductor.cpp.cxx, (list, tuple)) else []
        if not any(shutil.which(name) for name in [os.environ.get("CXX", ""), *names] if name):
            raise UserError("--compile needs a C++ compiler (apt install g++, or set CXX); or leave --compile out")
    else:
        from torch.utils._triton import has_triton

        if not has_triton():
            raise UserError("--compile on a GPU needs Triton, which does not work here; give --no-compile")


# ---- memory ----


def tune_malloc() -> bool:
    """Tell glibc to keep freed memory; returns whether it was done.

    By default each buffer of the size of the logits goes back to the kernel and is paged in again, which costs up to
    half of the time at large vocabularies.
    """
    if not sys.platform.startswith("linux") or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL("libc.so.6").mallopt
    trim_threshold, top_pad, mmap_max, arena_max = -1, -2, -4, -8
    settings = {mmap_max: 0, trim_threshold: 2**31 - 1, top_pad: 256 << 20, arena_max: 1}
    return all(mallopt(option, value) for option, value in settings.items())


def peak_memory_gib(device: torch.device) -> float:
    """Most memory that was in use so far [GiB]: allocated on a GPU, resident for a CPU process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)


class GarbageCollector:
    """Collect every `interval` steps and never in between, so that no step is held up by surprise."""

    def __init__(self, interval: int):
        """`interval` [steps]; 0 leaves Python's collector as it is."""
        self._interval = interval

    def __enter__(self) -> GarbageCollector:
        self._was_enabled = gc.isenabled()
        if self._interval:
            gc.disable()
        return self

    def after_step(self, step: int) -> None:
        """Collect where it is time."""
        if self._interval and step % self._interval == 0:
            gc.collect()

    def __exit__(self, *_: object) -> None:
        if self._interval and self._was_enabled:
            gc.enable()


# ---- random states ----


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
    """Put the generators back to `random_state`."""
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


# ---- stopping ----


class StopRequest:
    """Turns SIGINT, SIGTERM and SIGUSR1 into a flag that the loop reads between steps.

    A second SIGINT interrupts at once. Handlers are set in the main thread only, and put back at the end of the
    outermost `with`.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._old: dict[int, Any] = {}
        self._depth = 0

    def __bool__(self) -> bool:
        return self.signal is not None

    def agreed(self, agree: Callable[[int], int]) -> bool:
        """Whether any rank was told to stop; then all were, by the same signal. `agree`: the maximum over ranks."""
        number = agree(int(self.signal or 0))
        if number:
            self.signal = signal.Signals(number)
        return bool(number)

    def __enter__(self) -> StopRequest:
        if self._depth == 0 and threading.current_thread() is threading.main_thread():
            self._old = {number: signal.signal(number, self._receive) for number in self.SIGNALS}
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth:
            return
        for number, old in self._old.items():
            signal.signal(number, old)
        self._old = {}

    @property
    def exit_code(self) -> int:
        """85 ("requeue me") for SIGTERM and SIGUSR1, 130 for SIGINT."""
        return 130 if self.signal == signal.SIGINT else 85

    def _receive(self, number: int, frame: types.FrameType | None) -> None:
        if self.signal == signal.SIGINT and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)


# ---- provenance ----


def versions() -> dict[str, str | None]:
    """What the numbers of a run depend on besides its configuration."""
    return {
        "danalab": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "git_commit": _git_commit(),
    }


def _git_commit() -> str | None:
    """Commit of the source tree, "-dirty" where it was changed; None for an installed package."""
    here = Path(__file__).resolve().parent
    try:
        _git(here, "ls-files", "--error-unmatch", Path(__file__).name)  # not a repository that merely lies around us
        commit = _git(here, "rev-parse", "HEAD")
        return commit + ("-dirty" if _git(here, "status", "--porcelain", "--untracked-files=no", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
