"""Time and memory of the validation of a folder of arrays: 1,000 files x 100 sequences x 32,768 tokens.

It takes a minute, and 6.6 GB of sparse files in the temporary folder.
The files are sparse, and the first tokens of all sequences differ: none is a copy of another, and every byte is read,
hashed and counted. Memory is the peak of a separate process.

python bench/validate.py [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from danalab.files import write_json
from danalab.scaling.hardware import available_cores

SEQUENCES, LENGTH = 100, 32_768
WORKER = """
import json, resource, sys, time
from danalab.data.validation import validate
begun = time.perf_counter()
result = validate(sys.argv[1])
seconds, busy = time.perf_counter() - begun, time.process_time()
assert result.valid, result.errors[:3]
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
print(json.dumps({"seconds": seconds, "processor_seconds": busy, "peak_gb": peak,
                  "tokens": result.total_tokens, "files": result.num_files}))
"""


def make(folder: Path, files: int, kind: str) -> None:
    """Sparse files whose sequences differ in their first three tokens."""
    dtype = np.dtype(kind)
    for number in range(files):
        with open(folder / f"{number:04d}.npy", "wb") as file:
            header = {"descr": dtype.str, "fortran_order": False, "shape": (SEQUENCES, LENGTH)}
            np.lib.format.write_array_header_1_0(file, header)
            begin, size = file.tell(), LENGTH * dtype.itemsize
            file.truncate(begin + SEQUENCES * size)
            for row in range(SEQUENCES):
                file.seek(begin + row * size)
                file.write(np.array([number, row, 7], dtype).tobytes())


def _validated(files: int, kind: str) -> dict[str, Any]:
    """Seconds, tokens a second and peak memory of one validation."""
    with tempfile.TemporaryDirectory() as name:
        make(Path(name), files, kind)
        done = subprocess.run([sys.executable, "-c", WORKER, name], check=True, stdout=subprocess.PIPE, text=True)
    row = json.loads(done.stdout)
    return {**row, "tokens_per_second": row["tokens"] / row["seconds"]}


def measure(say: Callable[[str], None]) -> dict[str, Any]:
    """Both number formats: uint16 with 1,000 files, int64 with 250.

    Args:
        say: called with each line of text.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    rows = {"uint16": _validated(1000, "<u2"), "int64": _validated(250, "<i8")}
    for kind, row in rows.items():
        say(
            f"{kind}: {row['files']} files, {row['tokens'] / 1e9:.2f}B tokens in {row['seconds']:.1f} s by the clock, "
            f"{row['processor_seconds']:.1f} s of a processor, peak {row['peak_gb']:.2f} GB"
        )
    machine = f"{platform.machine()}, {available_cores()} cores, Python {platform.python_version()}, CPU"
    return {"machine": machine, "open_files": soft, **rows}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "validate_cpu.json")
    chosen = parser.parse_args()
    write_json(chosen.output, measure(print))
    print(f"written to {chosen.output}")
