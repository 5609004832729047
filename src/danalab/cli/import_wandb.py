"""Runs of Weights & Biases as a ladder, for `danalab fit` and `danalab report`.

danalab import-wandb exports/ --out ladders/published          # histories, and a table or JSON of the runs
danalab import-wandb --api ENTITY/PROJECT --filter group=enoki --out ladders/published
"""

from dataclasses import dataclass
from pathlib import Path

from danalab.cli._shared.options import Positional
from danalab.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Flags:
    files: Positional[tuple[Path, ...]] = ()
    """Exported .csv, .json and .jsonl files, or folders of them: histories, charts, tables of runs."""
    out: Path
    """Folder of the ladder that is written."""
    api: str | None = None
    """ENTITY/PROJECT to read over the network in place of files; needs wandb."""
    filter: tuple[str, ...] = ()
    """With --api: conditions on runs: group=enoki config.opt=adana."""
    map: tuple[str, ...] = ()
    """Keys of the exports: opt=optim.name val-loss=eval/nll; default danalab's own, and those of published runs."""
    fixed: tuple[str, ...] = ()
    """Settings of all runs: arch=enoki seq-len=2048 vocab-size=50304."""
    json: bool = False
    """Print one JSON object on standard output."""


def run(flags: Flags) -> None:
    """Write exported runs as rows of a ladder with their validation curves, for danalab fit and danalab report."""
    import json

    from danalab.cli._shared.run_tables import print_rows
    from danalab.ladder.runs.grid import parse_fixed
    from danalab.ladder.wandb.files import read_api, read_exports
    from danalab.ladder.wandb.keys import Keys
    from danalab.ladder.wandb.rows import import_runs

    if bool(flags.files) == (flags.api is not None):
        raise UserError("give either exported files (or folders of them), or --api ENTITY/PROJECT")
    if flags.filter and flags.api is None:
        raise UserError("--filter is for --api; with files, name only those wanted")
    filters = _assignments(flags.filter, "--filter")
    mapped = {key.replace("-", "_"): value for key, value in _assignments(flags.map, "--map").items()}
    keys = Keys.of(mapped, parse_fixed(flags.fixed))
    exports = read_api(flags.api, filters) if flags.api is not None else read_exports(flags.files)
    rows = import_runs(exports, flags.out, keys)
    if flags.json:
        print(json.dumps({"folder": str(flags.out), "rows": rows}))
        return
    print_rows(rows)
    ended = sum(row["final_loss"] is not None for row in rows)
    print(f"{len(rows)} runs, {ended} of them finished, in {flags.out}; now: danalab fit {flags.out}")


def _assignments(words: tuple[str, ...], what: str) -> dict[str, str]:
    """`KEY=VALUE` words; values are text and may contain commas."""
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key or not value:
            raise UserError(f"{what} {word}: KEY=VALUE is expected")
        if key in found:
            raise UserError(f"{what} {word}: {key} appears twice")
        found[key] = value
    return found
