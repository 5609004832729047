"""C++ libraries: compiled once per machine and target, kept in a cache folder, loaded through ctypes.

They are not compiled for a model, a shape or a setting: these are arguments. A library's name contains its target, and
the hash of source, compiler, CPU and torch version.
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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from danalab.errors import UserError, nearest
from danalab.files import cache_folder, environment_path

log = logging.getLogger(__name__)

FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")
OWN_THREADS = ("-fopenmp-simd", "-pthread")
"""Flags in place of -fopenmp where the compiler has no OpenMP."""

TARGETS = {
    "x86-64-v2": "ssse3 sse4_1 sse4_2 popcnt cx16",
    "x86-64-v3": "avx avx2 bmi1 bmi2 f16c fma movbe",
    "x86-64-v4": "avx512f avx512bw avx512cd avx512dq avx512vl",
}
"""Instruction sets that $DANALAB_TARGET can name -> the CPU's flags that each needs beside those before it."""


@functools.cache
def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """What Linux says about the first processor, its flags among it; empty elsewhere."""
    try:
        return cpuinfo.read_text().partition("\n\n")[0]
    except OSError:
        return ""


def multiplies_bfloat16() -> bool:
    """Whether torch has instructions here that multiply bfloat16; without them products take tens of times as long."""
    facts = processor()
    wide = torch.backends.cpu.get_cpu_capability().startswith(
        "AVX512"
    )  # torch may be held to less than the CPU has
    return " bf16" in facts or (
        wide and ("avx512_bf16" in facts or "amx_bf16" in facts)
    )  # cheap: asked in every step


def instruction_sets() -> list[str]:
    """Those of `TARGETS` that this CPU has; outside Linux none is known."""
    flags, names = set(processor().split()), []
    for name, needed in TARGETS.items():
        if not flags.issuperset(needed.split()):
            break
        names.append(name)
    return names


def target() -> str:
    """What libraries are compiled for: $DANALAB_TARGET, else "native", all instructions of this CPU.

    UserError: the name is unknown, or this CPU does not have the instructions.
    """
    name, known = os.environ.get("DANALAB_TARGET") or "native", ("native", *TARGETS)
    if name not in known:
        raise UserError(f"unknown DANALAB_TARGET '{name}'{nearest(name, known)}; known: {', '.join(known)}")
    usable = ["native", *instruction_sets()]
    if name not in usable:
        raise UserError(
            f"DANALAB_TARGET={name}: this CPU does not have its instructions; use {' or '.join(usable)}"
        )
    return name


def compiler() -> str | None:
    """The C++ compiler: $CXX, else the first of c++, g++, clang++ on PATH; None where there is none."""
    named = os.environ.get("CXX")
    return (
        shutil.which(named)
        if named
        else next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    )


@dataclass(frozen=True)
class NativeLibrary:
    """A library of this package.

    Args:
        name: the beginning of its file's name.
        purpose: what it is for people, e.g. "the fused optimizer kernels".
        setting, instead: the setting that needs it, and the one that does without.
        sources: the file to compile, then those that it includes.
        flags: of the compiler, in addition to `FLAGS`.
    """

    name: str
    purpose: str
    setting: str
    instead: str
    sources: tuple[Path, ...]
    flags: tuple[str, ...] = ()

    def load(self) -> ctypes.CDLL:
        """The library, built when it is not in the cache.

        UserError: there is no compiler, it fails, or its result cannot be kept or loaded.
        """
        path = self.path()
        if not path.exists():
            with open(path.with_suffix(".lock"), "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # one process of a job builds, the others wait
                if not path.exists():
                    self._build(path)
        try:
            _require_own(path, stat.S_ISREG)
            return ctypes.CDLL(str(path))
        except OSError as error:
            raise UserError(f"cannot load {self.purpose}: {error}; delete {path} and try again") from error

    def path(self) -> Path:
        """Where the compiled library is kept.

        UserError: the target is unusable; the folder cannot be created or written to, or somebody else owns it or can
        write to it.
        """
        return _own_folder(self.instead) / f"{self.name}-{target()}-{self._key()}.so"

    def _key(self) -> str:
        """Hash of everything that the compiled library depends on."""
        own = platform.processor()
        if target() == "native" and processor():  # machines with different CPUs may share a home folder
            lines = processor().splitlines()
            own = "".join(
                sorted(line for line in lines if line.startswith(("model name", "flags", "Features")))
            )
        texts, flags = [source.read_text() for source in self.sources], " ".join((*FLAGS, *self.flags))
        parts = [*texts, flags, compiler() or "", own, platform.machine(), torch.__version__]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]

    def _build(self, path: Path) -> None:
        cxx = compiler()
        if cxx is None:
            named = os.environ.get("CXX")
            looked = (
                f"$CXX={named} is not there" if named else "no C++ compiler (c++, g++, clang++) is on PATH"
            )
            raise UserError(
                f"{self.setting} needs a C++ compiler, but {looked}; install g++ or use {self.instead}"
            )
        log.info("compiling %s with %s (once; kept in %s)", self.purpose, cxx, path.parent)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".so")
        os.close(handle)
        try:
            # Compilers for Arm know the CPU at hand by -mcpu.
            cpu = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else f"-march={target()}"
            command = [cxx, *FLAGS, cpu, f"-I{Path(__file__).parent}", *self.flags]
            command += [str(self.sources[0]), "-o", temporary]
            for threads in (("-fopenmp", *_openmp()), OWN_THREADS):
                result = subprocess.run([*command, *threads], capture_output=True, text=True, check=False)
                if result.returncode == 0:
                    break
            else:
                lines = [
                    line for line in result.stderr.splitlines() if "error" in line
                ] or result.stderr.splitlines()
                raise UserError(
                    f"compiling {self.purpose} with {cxx} failed: {(lines or ['no message'])[0].strip()};"
                    f" set CXX to another compiler or use {self.instead}"
                )
            os.replace(temporary, path)
        finally:
            Path(temporary).unlink(missing_ok=True)


def _require_own(path: Path, has_type: Callable[[int], bool]) -> None:
    """Code is loaded from here: PermissionError if others own or may write it, or it is a link or of another type."""
    status = path.lstat()
    if status.st_uid != os.getuid() or not has_type(status.st_mode):
        raise PermissionError(f"{path} is not yours")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"others can write to {path} (chmod go-w would change that)")


def _own_folder(instead: str) -> Path:
    """$DANALAB_CACHE, else the folder of caches; created if absent, and nobody else may write to it."""
    folder = environment_path("DANALAB_CACHE") or cache_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_own(folder.resolve(), stat.S_ISDIR)
        if not os.access(folder, os.W_OK):
            raise PermissionError("you cannot write to it")
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"cannot keep compiled kernels in {folder}: {error}; set DANALAB_CACHE to your own folder, or use {instead}"
        ) from error
    return folder


def _openmp() -> list[str]:
    """torch's own copy of the OpenMP runtime to link with: a second one would create a second pool of threads."""
    folder = Path(torch.__file__).parent
    copies = sorted([*folder.glob("lib/libgomp*.so*"), *folder.parent.glob("torch.libs/libgomp*.so*")])
    return [str(copies[0])] if copies else []
