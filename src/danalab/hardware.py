"""Accelerators with their peak FLOP/s and memory; the cores and the memory of this machine."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from danalab.errors import UserError, nearest


@dataclass(frozen=True)
class Accelerator:
    """One device, dense (no sparsity) tensor-core peak in bfloat16 (float16 where the device has no bfloat16)."""

    name: str
    tflops: float
    """Peak [1e12 FLOP/s]."""
    memory_gib: float
    source: str
    """Source of peak and memory."""


ACCELERATORS = [
    Accelerator("H200", 989.4, 141e9 / 2**30, "NVIDIA H200 data sheet"),
    Accelerator("H100", 989.4, 80e9 / 2**30, "NVIDIA H100 SXM data sheet"),
    Accelerator("B200", 2250.0, 180e9 / 2**30, "NVIDIA DGX B200 data sheet"),
    Accelerator("A100", 312.0, 80e9 / 2**30, "NVIDIA A100 data sheet"),
    Accelerator("L40S", 362.0, 48e9 / 2**30, "NVIDIA L40S data sheet"),
    Accelerator("L4", 121.0, 24e9 / 2**30, "NVIDIA L4 data sheet"),
    Accelerator("RTX 4090", 165.2, 24e9 / 2**30, "NVIDIA Ada whitepaper"),
    Accelerator("V100", 125.0, 32e9 / 2**30, "NVIDIA V100 data sheet, float16"),
]


def find(device_name: str) -> Accelerator | None:
    """The table's row for a name as `torch.cuda.get_device_name` gives it, e.g. "NVIDIA H100 80GB HBM3".

    The longest matching name wins, so that an L40S does not match L4.
    """
    matches = [gpu for gpu in ACCELERATORS if gpu.name.lower() in device_name.lower()]
    return max(matches, key=lambda gpu: len(gpu.name), default=None)


def named(name: str) -> Accelerator:
    """The table's row for a name as people type it: h100, a100, rtx4090 or 4090."""
    rows = {gpu.name.lower().replace(" ", ""): gpu for gpu in ACCELERATORS}
    typed = name.lower().replace(" ", "").replace("-", "").replace("_", "")
    gpu = rows.get(typed) or rows.get(f"rtx{typed}")
    if gpu is None:
        known = ", ".join(each.name for each in ACCELERATORS)
        raise UserError(f"--gpu {name}{nearest(typed, rows)}: known are {known}")
    return gpu


def available_cores() -> int:
    """Cores that this process may use: those of its affinity (taskset, SLURM), or fewer by a quota of its cgroups."""
    quotas = _quotas(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    return max(1, min([_allowed_cores(), *map(int, quotas)]))


def _allowed_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _quotas(groups: Path, root: Path) -> list[float]:
    """The quota of each cgroup that this process is in [cores], of version 2 (cpu.max) or 1 (cpu.cfs_*)."""
    quotas = []
    with suppress(OSError):  # no Linux
        for line in groups.read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            base = root / kinds
            here = base / path.lstrip("/")  # absent in a container that sees its own group as the root
            for folder in (each for each in (here, *here.parents) if each.is_relative_to(base)):
                files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if kinds else ("cpu.max",)
                with suppress(OSError, ValueError):  # no such file, or the quota is "max"
                    quota, period = map(int, " ".join((folder / file).read_text() for file in files).split())
                    quotas += [quota / period] if quota > 0 else []
    return quotas


_OWN_THREADS = "DANALAB_THREADS"


def limit_threads() -> None:
    """Let OpenMP, which knows the affinity alone, keep to a quota of cores. Call it before torch loads."""
    if "OMP_NUM_THREADS" not in os.environ and (cores := available_cores()) < _allowed_cores():
        os.environ.update({"OMP_NUM_THREADS": str(cores), _OWN_THREADS: str(cores)})


def chosen_threads() -> str | None:
    """$OMP_NUM_THREADS as the user set it; None where nobody did, or `limit_threads`."""
    threads = os.environ.get("OMP_NUM_THREADS")
    return None if threads == os.environ.get(_OWN_THREADS) else threads


def host_memory() -> int:
    """Physical memory of this machine [bytes]."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def peak_flops(device_name: str) -> tuple[float, str] | None:
    """(peak FLOP/s, its source) of a device; None, and no MFU, for a device that is not in the table."""
    gpu = find(device_name)
    return (gpu.tflops * 1e12, gpu.source) if gpu else None


def accelerator_hours(flops: float, mfu: float = 0.4) -> dict[str, float]:
    """Hours on one of each named accelerator at `mfu`, the fraction of peak that training reaches."""
    return {gpu.name: flops / (gpu.tflops * 1e12 * mfu) / 3600 for gpu in ACCELERATORS}


def hours_in_words(hours: float) -> str:
    """A time as people say it."""
    for unit, name in ((24.0, "days"), (1.0, "hours"), (1 / 60, "minutes")):
        if hours >= 2 * unit:
            return f"{hours / unit:.3g} {name}"
    return f"{3600 * hours:.3g} s"
