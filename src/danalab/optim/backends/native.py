"""The native back end for CPUs: kernels.cpp updates all parameters in one pass over memory.

It is compiled once per machine, not for a model, a shape or a setting: scalars are arguments. The library is kept in a
cache folder; its name contains the hash of source, compiler, CPU and torch version.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import logging
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from danalab.errors import UserError
from danalab.optim.backends.rounding import rounding_seed, store_rounded
from danalab.optim.core.batch import Batch
from danalab.optim.core.rule import Rule
from danalab.optim.core.state import moment_dtype

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("kernels.cpp")
INCLUDED = SOURCE.with_name("kernels_avx512.h")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC", "-shared")

KERNELS = ("adana", "dana_star", "adamw_decaying_wd", "ademamix", "dana", "sign_dana", "auto_dana")
"""Rules that have a kernel; the functions of kernels.cpp have the same names."""

# float16 is not among them: it is rare on CPUs, and takes float32 copies.
DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2}


class _Scalars(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_double)
        for name in (
            *("lr", "decay_factor", "eps", "sign", "gain1", "gain2", "gain3", "momentum", "offset", "clip"),
            *("t", "exponent", "root_scale", "floor"),
        )
    ]


class _Tensors(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_void_p)
        for name in ("p", "g", "m", "v", "third", "numel", "dtype", "batch", "seed", "stochastic", "scalars")
    ]


def fused(rule: Rule, batches: list[Batch]) -> None:
    """The update of all batches in one call."""
    function = getattr(library(), rule.name)
    columns: list[list[int]] = [[] for _ in range(9)]
    kept: list[Tensor] = []  # the kernel has raw pointers to them: they must stay alive during the call
    copies: list[tuple[Tensor, Tensor, Batch, int]] = []  # parameter, its copy, batch and index in the batch
    for number, batch in enumerate(batches):
        sixteen_bit = batch.params[0].dtype == torch.bfloat16
        random = bool(batch.group["stochastic_rounding"]) and sixteen_bit
        for i, (p, g, moments) in enumerate(zip(batch.params, batch.grads, batch.moments, strict=True)):
            m = moments[0]
            if not _alike(p, g, m):
                # In the layout and dtype of the moments: the kernel takes each block of memory as one line of elements.
                wide = torch.empty_like(m).copy_(p)
                copies.append((p, wide, batch, i))
                p, g = wide, torch.empty_like(m).copy_(g)
                kept += (p, g)
            pointers = [tensor.data_ptr() for tensor in (p, g, *moments)]
            seed = rounding_seed(batch.count(i), batch.indices[i]) if random else 0
            row = (*pointers, *[0] * (5 - len(pointers)), p.numel(), DTYPES[p.dtype], number, seed)
            for column, value in zip(columns, row, strict=True):
                column.append(value)
    count = len(columns[0])
    types = [ctypes.c_void_p] * 5 + [ctypes.c_int64, ctypes.c_int32, ctypes.c_int32, ctypes.c_uint32]
    arrays: list[Any] = [(kind * count)(*column) for kind, column in zip(types, columns, strict=True)]
    arrays.append((ctypes.c_int32 * len(batches))(*[int(bool(b.group["stochastic_rounding"])) for b in batches]))
    arrays.append((_Scalars * len(batches))(*[_scalars(rule, batch) for batch in batches]))
    tensors = _Tensors(*[ctypes.addressof(array) for array in arrays])
    function(ctypes.byref(tensors), count, torch.get_num_threads())
    for p, wide, batch, i in copies:
        store_rounded(p, wide, batch, i)


def _alike(p: Tensor, g: Tensor, m: Tensor) -> bool:
    if p.dtype not in DTYPES or g.dtype != p.dtype or m.dtype != moment_dtype(p):
        return False
    if p.is_contiguous() and g.is_contiguous() and m.is_contiguous():
        return True
    return p.stride() == g.stride() == m.stride()


def _scalars(rule: Rule, batch: Batch) -> _Scalars:
    """The kernel's scalars: the rule's own, and those of all rules."""
    s = batch.scalars(rule)
    assert rule.kernel_scalars is not None  # `choose_backend` sends no other rule here
    values = {
        "lr": s["lr"],
        "decay_factor": s["decay_factor"],
        # The kernels divide by the square of sqrt(v) + eps, which must not vanish.
        "eps": max(s.get("eps", 0.0), 1e-18),
        "sign": -1.0 if batch.group["maximize"] else 1.0,
        "clip": -1.0,
        **rule.kernel_scalars(s),
    }
    return _Scalars(**{name: float(value) for name, value in values.items()})


def compiler() -> str | None:
    """The C++ compiler: $CXX, else the first of c++, g++, clang++ on PATH; None where there is none."""
    named = os.environ.get("CXX")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)


@functools.cache
def library() -> ctypes.CDLL:
    """The compiled kernels, built when they are not in the cache.

    Raises:
        UserError: there is no compiler, it fails, or its result cannot be kept or loaded.
    """
    path = cache_folder() / f"optim-{_key()}.so"
    if not path.exists():
        with open(path.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one process of a job builds, the others wait
            if not path.exists():
                _build(path)
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise UserError(f"cannot load the fused optimizer kernels: {error}; delete {path} and try again") from error
    for rule in KERNELS:
        function = getattr(loaded, rule)
        function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int), None
    return loaded


def cache_folder() -> Path:
    """$DANALAB_CACHE, else danalab in $XDG_CACHE_HOME or ~/.cache; created if absent.

    Raises:
        UserError: it cannot be made or written to, or belongs to somebody else.
    """
    named = os.environ.get("DANALAB_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(named) if named else base / "danalab"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = folder.stat()
        # Code is loaded from here, so nobody else may write to it.
        if found.st_uid != os.getuid() or found.st_mode & stat.S_IWOTH or not os.access(folder, os.W_OK):
            raise PermissionError("not a folder that only you can write to")
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"cannot keep compiled kernels in {folder}: {error}; set DANALAB_CACHE to a folder of your own,"
            " or use fused=False"
        ) from error
    return folder


def _key() -> str:
    """Hash of everything that the compiled library depends on."""
    processor = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():  # -march=native: a home folder may be shared by machines with different CPUs
        lines = cpuinfo.read_text().splitlines()
        processor = "".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
    parts = [
        SOURCE.read_text(),
        INCLUDED.read_text(),
        " ".join(FLAGS),
        compiler() or "",
        processor,
        platform.machine(),
        torch.__version__,
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def _build(path: Path) -> None:
    found = compiler()
    if found is None:
        named = os.environ.get("CXX")
        looked = f"$CXX={named} is not there" if named else "no C++ compiler (c++, g++, clang++) is on PATH"
        raise UserError(
            f"fused=True needs a C++ compiler, but {looked}; install one (apt install g++) or use fused=False"
        )
    log.info("compiling the fused optimizer kernels with %s (once; kept in %s)", found, path.parent)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".so")
    os.close(handle)
    try:
        command = [found, *FLAGS, str(SOURCE), "-o", temporary, *_openmp()]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            lines = [line for line in result.stderr.splitlines() if "error" in line] or result.stderr.splitlines()
            raise UserError(
                f"compiling the fused optimizer kernels with {found} failed: {(lines or ['no message'])[0].strip()};"
                " set CXX to another compiler or use fused=False"
            )
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _openmp() -> list[str]:
    """torch's own copy of the OpenMP runtime to link with: a second one would create a second pool of threads."""
    folder = Path(torch.__file__).parent
    copies = sorted([*folder.glob("lib/libgomp*.so*"), *folder.parent.glob("torch.libs/libgomp*.so*")])
    return [str(copies[0])] if copies else []
