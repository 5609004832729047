"""Runs the code blocks of one page in order, in a folder of their own with links to the repository's files.

The Python of a page shares its names. Commands are those of a shell and find this repository's `danalab`; `pip` does
nothing, since all extras are installed.
"""

import os
import shlex
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from _tooling.blocks import Block, blocks

ROOT = Path(__file__).resolve().parents[2]
PYTHON = {"danalab": "-m danalab", "python": "", "python3": ""}
SMALL = (
    "--data stdlib --tokenizer bytes --d-model 32 --n-layers 2 --n-heads 2"
    " --seq-len 32 --batch-size 2 --iterations 2 --lr 1e-3"
)
"""Flags of a run of a second, which blocks of smaller cases name as $SMALL."""
LINKS = ("bench", "docs", "examples", "scripts", "src", "tests", "CHANGELOG.md", "Makefile", "README.md")


def run_page(page: Path, folder: Path, limit_seconds: float) -> list[tuple[int, str]]:
    """Run the blocks of a page in `folder`; stops at the first that fails. Changes the working folder of the process.

    Returns: (line, fault) of each block; the fault is empty where it ran, or where it is not run.
    """
    environment = prepare(folder)
    names: dict[str, Any] = {"__name__": "__page__"}
    results: list[tuple[int, str]] = []
    for block in blocks(page):
        results.append((block.line, run_block(block, names, environment, limit_seconds)))
        if results[-1][1]:
            break
    return results


def prepare(folder: Path) -> dict[str, str]:
    """Enter the folder; the environment of its commands."""
    tools = folder / ".bin"
    tools.mkdir(parents=True, exist_ok=True)
    programs = {name: f'exec {shlex.quote(sys.executable)} {words} "$@"' for name, words in PYTHON.items()}
    for name, line in {**programs, "pip": "exit 0"}.items():
        (tools / name).write_text(f"#!/bin/sh\n{line}\n")
        (tools / name).chmod(0o755)
    for name in LINKS:
        if not (folder / name).exists():
            (folder / name).symlink_to(ROOT / name)
    os.chdir(folder)
    os.environ["PATH"] = f"{tools}:{os.environ['PATH']}"
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "DATASETS_DIR"))
    }
    return {**kept, "PYTHONPATH": str(ROOT / "src"), "CUDA_VISIBLE_DEVICES": "", "SMALL": SMALL}


def run_block(block: Block, names: dict[str, Any], environment: dict[str, str], limit_seconds: float) -> str:
    """The fault of a block; empty where it ran, or where it is not run."""
    if block.action == "shell":
        return _shell(f"{block.before}\n{block.script}", environment, limit_seconds)
    if block.action == "python":
        return _python(f"{block.before}\n{block.script}", block.name, names)
    if block.action == "file":
        Path(block.file).write_text(block.text, encoding="utf-8")
    if block.action == "excerpt":
        lines = {line.strip() for line in (ROOT / block.file).read_text(encoding="utf-8").splitlines()}
        missing = [line for line in block.text.splitlines() if line.strip() not in lines | {""}]
        return f"{block.file} has no line {missing[0]!r}" if missing else ""
    return ""


def _python(text: str, name: str, names: dict[str, Any]) -> str:
    try:
        exec(compile(text, name, "exec"), names)
    except Exception:
        return traceback.format_exc()[-2000:]
    return ""


def _shell(script: str, environment: dict[str, str], limit_seconds: float) -> str:
    try:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_seconds,
        )
    except subprocess.TimeoutExpired:
        return f"not done after {limit_seconds:g} s"
    return f"exit code {done.returncode}: {done.stderr[-2000:].strip()}" if done.returncode else ""
