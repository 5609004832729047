"""Write the tables of GPUs and of parallel modes: python docs/build_memory.py

Memory is the estimate of `danalab plan --gpu NAME --fit-memory`; times of the parallel modes are stored measurements.
"""

import contextlib
import io
import json
import re
from pathlib import Path

import _tooling  # noqa: F401 (makes danalab_bench importable)
from danalab.cli.app import main
from danalab.errors import UserError
from danalab_bench.pages import benchmark

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs" / "slow-or-out-of-memory.md", ROOT / "docs" / "speed.md")
GPUS = ("l40s", "a100", "h100", "h200")
SIZES = [
    *([f"--arch enoki --heads {heads}" for heads in (6, 12, 24, 32, 40)]),
    "--arch qwen3 --heads 12",
    *[f"--arch resonance --size {size} --seq-len 32768" for size in ("medium", "xlarge-32k")],
]  # fmt: skip
_BLOCK = re.compile(r"<!-- table: (?P<name>\w+) -->\n.*?<!-- end -->", re.DOTALL)


def planned(words: str) -> dict:
    """What `danalab plan` prints; empty where not even one sequence fits."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()) as errors:
        code = main(["plan", *words.split(), "--json"])
    if code and "not even" not in errors.getvalue():
        raise UserError(errors.getvalue())
    return {} if code else json.loads(printed.getvalue())


def gpu_rows() -> list[str]:
    """A row for each size: parameters, memory of one sequence, and the largest micro-batch of each GPU."""
    rows = [f"| size | parameters | GiB at 1 sequence | {' | '.join(gpu.upper() for gpu in GPUS)} |"]
    rows.append("| --- |" + " ---: |" * (2 + len(GPUS)))
    for size in SIZES:
        one = planned(f"{size} --global-batch 32 --batch-size 1")
        fits = [planned(f"{size} --global-batch 32 --batch-size 1 --gpu {gpu} --fit-memory") for gpu in GPUS]
        cells = [str(fit["fit"]["micro_batch"]) if fit else "no" for fit in fits]
        rows.append(
            f"| `{size}` | {one['exact_params'] / 1e6:,.0f} M | {one['memory_gib']:.1f} | {' | '.join(cells)} |"
        )
    return rows


def mode_rows() -> list[str]:
    """A row for each parallel mode, from the stored measurement."""
    rows = ["| mode | ms per step | tokens/s | GiB of rank 0 | time over one process |", "| --- |" + " ---: |" * 4]
    for mode, found in benchmark("parallel_cpu")["modes"].items():
        step, rate, ratio = (found[key]["median"] for key in ("seconds", "tokens_per_second", "time_over_reference"))
        rows.append(f"| {mode} | {1000 * step:.0f} | {rate:,.0f} | {found['memory_gib']['median']:.2f} | {ratio:.2f} |")
    return rows


def refresh(page: str) -> str:
    """The page with its tables made again."""
    tables = {"gpus": gpu_rows, "modes": mode_rows}
    return _BLOCK.sub(
        lambda match: "\n".join([f"<!-- table: {match['name']} -->", "", *tables[match["name"]](), "", "<!-- end -->"]),
        page,
    )


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(refresh(page.read_text(encoding="utf-8")), encoding="utf-8")
