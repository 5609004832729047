"""ladder.jsonl: one row a run, from run folders. What the fits, the tables and the pictures read.

name, opt, arch, seed, lr     what was run; `settings` has all that was said
params, non_emb_params, total_params    as built, and by the size law that learning rates are fitted against
tokens, flops, seconds, tokens_per_second
final_loss                    over the whole validation split [nats a token]; best_loss: least on the fixed windows
curve                         path of metrics.jsonl, relative to the file
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from danalab.errors import UserError
from danalab.files import write_atomically
from danalab.train.folder import RunFolder
from danalab.train.metrics import read_rows

FILE = "ladder.jsonl"


def row_of(run: Path, base: Path) -> dict[str, Any]:
    """The row of a run folder, finished or not.

    Args:
        base: folder that paths are relative to.
    Raises:
        UserError: not a run folder.
    """
    folder = RunFolder(run)
    record = folder.read_config()
    config, plan, summary = record["config"], record["plan"], folder.read_summary() or {}
    losses = [row["val/loss"] for row in read_rows(folder.metrics_file) if "val/loss" in row]
    return {
        "name": run.name,
        "run": os.path.relpath(run, base),
        "status": summary.get("status", "unfinished"),
        "arch": config["arch"],
        "opt": config["opt"],
        "seed": config["seed"],
        "lr": config["lr"],
        "kappa": config["kappa"],
        "lr_multiplier": config["lr_multiplier"],
        "params": record["params"],
        "non_emb_params": plan["non_emb_params"],
        "total_params": plan["total_params"],
        "tokens": summary.get("tokens"),
        "flops": summary.get("flops"),
        "final_loss": summary.get("val/loss") if summary.get("status") == "finished" else None,
        "best_loss": min(losses, default=None),
        "evaluations": len(losses),
        "seconds": summary.get("time"),
        "tokens_per_second": summary.get("tokens_per_second"),
        "world_size": record.get("world_size", 1),
        "device": record.get("device"),
        "curve": os.path.relpath(folder.metrics_file, base),
        "settings": config,
    }


def write_rows(folder: Path, runs: Iterable[Path]) -> list[dict[str, Any]]:
    """Write `folder`/ladder.jsonl from run folders; those that were never begun are left out. Returns the rows."""
    rows = [row_of(run, folder) for run in runs if RunFolder(run).config_file.is_file()]
    write_atomically(folder / FILE, "".join(json.dumps(row) + "\n" for row in rows))
    return rows


def read_ladder(path: Path) -> list[dict[str, Any]]:
    """The rows of a ladder.jsonl, or of the one in a folder; paths are made absolute.

    Raises:
        UserError: there is none, or a line is not a row; names it.
    """
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"{path}: no {FILE} there; danalab sweep and danalab ladder write one")
    rows = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{file}:{number}: not JSON: {error}") from error
        missing = [key for key in ("opt", "params", "curve") if not isinstance(row, dict) or key not in row]
        if missing:
            raise UserError(f"{file}:{number}: not a row of a ladder: no {', '.join(missing)}")
        rows.append({**row, "curve": str(file.parent / row["curve"]), "run": str(file.parent / row.get("run", ""))})
    if not rows:
        raise UserError(f"{file}: no rows")
    return rows
