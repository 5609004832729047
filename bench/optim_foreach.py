"""How do steps without a compiler compare with torch's foreach AdamW? Several runs, each a process of its own.

Torch's step makes temporaries as large as the model. Whether the allocator gives that memory back to the kernel after
each, and takes it anew page by page, hangs on what the process did before: within a process the ratio hardly moves,
from one to the next it moves by a factor of three. So the answer is a median over processes, with its range.

python bench/optim_foreach.py [--runs 7] [--sizes 20 88] [--rounds 15]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

CONTENDERS = ("dana-star:foreach", "dana-star-mk4:foreach", "adana:foreach", "dana-star:fused", "dana-star-mk4:fused")
RESULT = Path(__file__).parent / "results" / "optim_foreach_cpu.json"


def one_run(sizes: list[str], rounds: int) -> dict[str, Any]:
    """What `danalab bench optim` finds in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "result.json"
        command = [sys.executable, "-m", "danalab", "bench", "optim", "--rounds", str(rounds), "--output", str(output)]
        subprocess.run([*command, "--sizes", *sizes, "--opts", *CONTENDERS], check=True)
        return json.loads(output.read_text())


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Over the runs: each contender's milliseconds and ratio, to foreach AdamW or, for one pass, to fused AdamW."""
    sizes: dict[str, dict[str, Any]] = {}
    for size in runs[0]["sizes"]:
        rows = [run["sizes"][size]["results"] for run in runs]
        sizes[size] = {
            name: {
                "reference": rows[0][name].get("peer", "adamw:fused"),
                "ratio": _over([row[name].get("ratio_to_peer", row[name]["ratio"])["median"] for row in rows]),
                "ms": _over([row[name]["ms"]["median"] for row in rows]),
            }
            for name in rows[0]
        }
    return {
        "question": "time of a step as a multiple of the reference's in the same rounds; medians of runs' medians",
        "machine": runs[0]["machine"],
        "rounds": runs[0]["rounds"],
        "sizes": sizes,
    }


def _over(values: list[float]) -> dict[str, Any]:
    return {"median": median(values), "min": min(values), "max": max(values), "runs": values}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--sizes", nargs="+", default=["20", "88"])
    parser.add_argument("--rounds", type=int, default=15)
    settings = parser.parse_args()
    result = summary([one_run(settings.sizes, settings.rounds) for _ in range(settings.runs)])
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    for size, rows in result["sizes"].items():
        for name, row in rows.items():
            ratio = row["ratio"]
            low, high = ratio["min"], ratio["max"]
            print(f"{size:>4} {name:<24}{ratio['median']:6.2f} ({low:.2f} to {high:.2f}) x {row['reference']}")


if __name__ == "__main__":
    main()
