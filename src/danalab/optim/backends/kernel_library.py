"""The library of kernels.cpp: compiled once per machine, kept in a cache folder, loaded through ctypes.

It is not compiled for a model, a shape or a setting: scalars are arguments. Its name contains the hash of source,
compiler, CPU and torch version.
"""

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
from collections.abc import Callable
from pathlib import Path

import torch

from danalab.errors import UserError

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("kernels.cpp")
INCLUDED = SOURCE.with_name("kernels_avx512.h")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC", "-shared")

KERNELS = ("adana", "dana_star", "adamw_decaying_wd", "ademamix", "dana", "sign_dana", "auto_dana")
"""Rules that have a kernel; the functions of kernels.cpp have the same names."""


def compiler() -> str | None:
    """The C++ compiler: $CXX, else the first of c++, g++, clang++ on PATH; None where there is none."""
    named = os.environ.get("CXX")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)


@functools.cache
def library() -> ctypes.CDLL:
    """The compiled kernels, built when they are not in the cache."""
    path = cache_folder() / f"optim-{_key()}.so"
    if not path.exists():
        with open(path.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one process of a job builds, the others wait
            if not path.exists():
                _build(path)
    try:
        _require_own(path, stat.S_ISREG)
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise UserError(f"cannot load the fused optimizer kernels: {error}; delete {path} and try again") from error
    for rule in KERNELS:
        function = getattr(loaded, rule)
        function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int), None
    loaded.advance.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
    loaded.advance.restype = ctypes.c_int
    return loaded


def _require_own(path: Path, has_type: Callable[[int], bool]) -> None:
    """Code is loaded from here, so nobody else may own or write it.

    Raises:
        PermissionError: somebody else owns it or may write it, or it is a link or of another type.
    """
    found = path.lstat()
    if found.st_uid != os.getuid() or not has_type(found.st_mode):
        raise PermissionError(f"{path} is not yours")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"others can write to {path} (chmod go-w would change that)")


def cache_folder() -> Path:
    """$DANALAB_CACHE, else danalab in $XDG_CACHE_HOME or ~/.cache; created if absent."""
    named = os.environ.get("DANALAB_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(named) if named else base / "danalab"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_own(folder.resolve(), stat.S_ISDIR)
        if not os.access(folder, os.W_OK):
            raise PermissionError("you cannot write to it")
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
