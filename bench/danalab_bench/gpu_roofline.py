"""What the Triton kernel must cost on GPUs that are not here: its machine code, its bytes, and the bound they give.

    PTX   -> bytes that each program loads and stores: unmasked vectors, and the masked path, which must agree
    cubin -> registers, stack and local memory (spills), instructions
    bytes, instructions, registers -> which of memory, issue and latency bounds the step, and its share of the bandwidth

Triton compiles without a device. `python -m danalab_bench.gpu_roofline [FILE]` prints the table.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from danalab.files import write_json
from danalab.optim.step.backends.kernel_library import KERNELS

MOMENTS = {"dana": 1, "sign_dana": 1, "dana_star": 3, "ademamix": 3}
"""Moments of each rule; of the others: 2."""
POINTERS = {"addresses": "*i64", "numbers": "*i64", "owners": "*i32", "scalars": "*fp32", "skip": "*i1"}
_MASKED = re.compile(r"@!?P\d+ (LDG|STG)")
_ACCESS = re.compile(r"(@%p\d+ )?(ld|st)\.global(?:\.\w+)*?(\.v[248])?\.b(\d+)")


@dataclass(frozen=True)
class Gpu:
    """Figures of a data sheet, and what is known of its latency."""

    capability: int
    sms: int
    bytes_per_second: float
    clock_hz: float
    copy_share: float = 0.9
    """Share of the data sheet's bandwidth that a copy reaches."""
    latency_seconds: float = 7e-7
    """Of device memory under load."""


GPUS = {
    "A100": Gpu(80, 108, 2.04e12, 1.41e9),
    "H100": Gpu(90, 132, 3.35e12, 1.75e9),
    "B200": Gpu(100, 148, 8.0e12, 1.85e9),
}


@dataclass(frozen=True)
class Kernel:
    """A compiled rule."""

    rule: str
    dtype: str
    capability: int
    registers: int
    spilled_bytes: int
    """Of stack and local memory for each thread."""
    instructions: int
    """Of a warp of a full program: those of the path that has no masks."""
    loaded: float
    """Bytes per element, by the PTX."""
    stored: float
    loaded_masked: float
    """The same, of a program that is not full."""
    stored_masked: float
    scalar_loads: int
    """Addresses, sizes and scalars, which are the same for a whole program."""
    threads: int
    block: int


def expected_bytes(rule: str, dtype: torch.dtype) -> tuple[int, int]:
    """(loaded, stored) per element: parameter and gradient in `dtype`, moments in float32."""
    moments = MOMENTS.get(rule, 2)
    return 2 * dtype.itemsize + 4 * moments, dtype.itemsize + 4 * moments


def compile_kernel(rule: str, capability: int, dtype: torch.dtype = torch.float32) -> Kernel:
    """Compile a rule's kernel for a compute capability, e.g. 90, with every option on that costs instructions."""
    import triton
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module: Any = importlib.import_module("danalab.optim.step.backends.triton_kernel")
    names, dtypes = module.update.arg_names, module.DTYPES
    values = {
        "RULE": rule, "CLIP": rule in ("adana", "dana_star"), "CAUTIOUS": True, "SKIPS": True, "ALIGNED": True,
        "PARAMETER": dtypes[dtype], "STATE": dtypes[torch.float32], "BLOCK": module.BLOCK,
    }  # fmt: skip
    kinds = {**POINTERS, "count": "i32", "columns": "i32"}
    source = ASTSource(
        fn=module.update,
        signature={name: kinds.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in values.items()},
    )
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": module.WARPS})
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        usage, code = (
            subprocess.run([knobs.nvidia.cuobjdump.path, flag, file.name], capture_output=True, text=True, check=True)
            for flag in ("--dump-resource-usage", "-sass")
        )
    found = dict(re.findall(r"\b(REG|STACK|LOCAL):(\d+)", usage.stdout))
    threads = 32 * module.WARPS
    moved: dict[tuple[str, str], int] = {}
    scalars = 0
    for guard, direction, width, bits in _ACCESS.findall(made.asm["ptx"]):
        path = "masked" if guard else "full" if width else "scalar"
        scalars += path == "scalar"
        moved[path, direction] = moved.get((path, direction), 0) + int(bits) // 8 * int(width[2:] or 1) * threads
    return Kernel(
        rule, str(dtype).removeprefix("torch."), capability,
        registers=int(found["REG"]), spilled_bytes=int(found["STACK"]) + int(found["LOCAL"]),
        instructions=sum(len(part) for part in _segments(code.stdout) if not _MASKED.search("\n".join(part))),
        loaded=moved["full", "ld"] / module.BLOCK, stored=moved["full", "st"] / module.BLOCK,
        loaded_masked=moved["masked", "ld"] / module.BLOCK, stored_masked=moved["masked", "st"] / module.BLOCK,
        scalar_loads=scalars, threads=threads, block=module.BLOCK,
    )  # fmt: skip


def _segments(sass: str) -> list[list[str]]:
    """Instructions between two ends or jumps."""
    parts: list[list[str]] = [[]]
    for text in re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?);", sass, re.MULTILINE):
        parts[-1].append(text)
        if re.search(r"\b(EXIT|BRA)\b", text):
            parts.append([])
    return parts


def bound(kernel: Kernel, gpu: Gpu) -> dict[str, Any]:
    """What bounds a step of many full programs, and the share of the data sheet's bandwidth that follows.

    memory   bytes / (bandwidth of a copy)
    issue    instructions of a warp / (four per clock of a multiprocessor)
    latency  bytes of one load of every resident program per latency (Little's law): no load waits for another
    """
    moved = kernel.loaded + kernel.stored
    warps = kernel.threads // 32
    programs = min(32, 64 // warps, 65536 // (kernel.threads * -(-kernel.registers // 8) * 8))
    elements = {
        "memory": gpu.copy_share * gpu.bytes_per_second / moved,
        "issue": gpu.sms * gpu.clock_hz * 4 * kernel.block / (kernel.instructions * warps),
        "latency": gpu.sms * programs * kernel.block / gpu.latency_seconds,
    }
    by = min(elements, key=lambda name: elements[name])
    return {
        "bytes_per_parameter": moved,
        "programs_per_multiprocessor": programs,
        "bound_by": by,
        "share_of_bandwidth": elements[by] * moved / gpu.bytes_per_second,
        "ms_at_124m": 124e6 / elements[by] * 1e3,
        "headroom": {name: value / elements["memory"] for name, value in elements.items() if name != "memory"},
    }


def table(dtypes: Sequence[torch.dtype], say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Compile every rule for every GPU; rows for JSON."""
    rows = []
    for dtype in dtypes:
        for rule in KERNELS:
            for name, gpu in GPUS.items():
                kernel = compile_kernel(rule, gpu.capability, dtype)
                rows.append({"gpu": name, **asdict(kernel), **bound(kernel, gpu)})
                say(line(rows[-1]))
    return rows


def line(row: dict[str, Any]) -> str:
    """A row for people."""
    return (
        f"{row['rule']:<18} {row['dtype']:<9} {row['gpu']:<5} {row['registers']:4} registers,"
        f" {row['spilled_bytes']} bytes spilled, {row['bytes_per_parameter']:3.0f} bytes/parameter,"
        f" bound by {row['bound_by']}, {row['share_of_bandwidth']:.0%} of the bandwidth,"
        f" {row['ms_at_124m']:.2f} ms at 124M"
    )


if __name__ == "__main__":
    made = table((torch.float32, torch.bfloat16), print)
    for file in map(Path, sys.argv[1:]):
        write_json(file, made)
