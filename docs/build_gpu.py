"""Write the tables of docs/gpu.md from the rows in bench/results/gpu: python docs/build_gpu.py [FOLDER]."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import _tooling  # noqa: F401 (makes danalab_bench importable)
from danalab.files import read_json
from danalab_bench import gpu_shakespeare
from danalab_bench.gpu_sections import line
from danalab_bench.pages import fill_parts

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "gpu.md"
STORED = ROOT / "bench" / "results" / "gpu"


def kernels(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each rule in float32: registers, spills, bytes, and the bound on each GPU."""
    gpus = list(dict.fromkeys(row["gpu"] for row in rows))
    text = ["| rule | bytes/parameter | spilled | most registers |" + "".join(f" ms at 124M, {gpu} |" for gpu in gpus)]
    text.append("| --- |" + " ---: |" * (3 + len(gpus)))
    for rule in dict.fromkeys(row["rule"] for row in rows):
        own = [row for row in rows if (row["rule"], row["dtype"]) == (rule, "float32")]
        assert {row["bound_by"] for row in rows} == {"memory"}
        cells = [f"{own[0]['bytes_per_parameter']:.0f}", f"{max(row['spilled_bytes'] for row in own)}"]
        cells += [f"{max(row['registers'] for row in own)}", *(f"{row['ms_at_124m']:.2f}" for row in own)]
        text.append(f"| {rule} | {' | '.join(cells)} |")
    return "\n".join(text) + "\n"


def check(result: Mapping[str, Any]) -> str:
    """The lines of every section."""
    text = [_machine(result)]
    for name, section in result["sections"].items():
        rows = [line(name, row).strip() for row in section["rows"]]
        text += ["", f"`{name}` ({section['ended']}, {section['seconds']:.0f} s):", "", "```text", *rows, "```"]
    return "\n".join(text) + "\n"


def shakespeare(result: Mapping[str, Any]) -> str:
    """A line for each run, beside what was published."""
    runs = [gpu_shakespeare.line(row) for row in result["runs"]]
    published = result["published"]
    return "\n".join([_machine(result), "", f"Published: {published['loss']} ({published['source']}).", "", "```text",
                      *runs, "```"]) + "\n"  # fmt: skip


def _machine(result: Mapping[str, Any]) -> str:
    machine = result["machine"] or {}
    dry = "; a dry run on a CPU, whose numbers mean nothing" if result["dry_run"] else ""
    return f"{machine.get('gpu')}, torch {machine.get('torch')}{dry}."


PARTS = {"kernels": kernels, "check": check, "shakespeare": shakespeare}


def refresh(page: str, folder: Path = STORED) -> str:
    """The page with the results of a folder; a part without a file was not run."""
    files = {name: folder / f"{name}.json" for name in PARTS}
    texts = {name: PARTS[name](read_json(file)) if file.exists() else "Not run yet.\n" for name, file in files.items()}
    return fill_parts(page, "gpu", {name: f"\n{text}\n" for name, text in texts.items()})


if __name__ == "__main__":
    PAGE.write_text(refresh(PAGE.read_text(encoding="utf-8"), *map(Path, sys.argv[1:])), encoding="utf-8")
