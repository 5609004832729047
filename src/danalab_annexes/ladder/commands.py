"""`danalab ladder import-wandb`: runs of Weights & Biases as a ladder."""

from dataclasses import dataclass
from pathlib import Path

from danalab.cli._shared.options import JsonFlags, Positional
from danalab.cli.ladder import SUBVERBS
from danalab.errors import UserError


@dataclass(frozen=True, kw_only=True)
class ImportWandbFlags(JsonFlags):
    files: Positional[tuple[Path, ...]] = ()
    """Exported .csv and .json files, or folders of them: histories, and a JSON of the runs."""
    out: Path
    """Folder of the ladder that is written."""
    api: str | None = None
    """ENTITY/PROJECT to read over the network instead of files; needs wandb."""
    filter: tuple[str, ...] = ()
    """With --api: conditions on runs: group=enoki config.opt=adana."""
    map: tuple[str, ...] = ()
    """Keys of the exports: opt=optim.name val-loss=eval/nll; default danalab's own, and those of published runs."""
    fixed: tuple[str, ...] = ()
    """Settings of all runs: arch=enoki seq-len=2048 vocab-size=50304."""


def import_wandb(flags: ImportWandbFlags) -> None:
    """Write runs of Weights & Biases as rows of a ladder with their validation curves, for danalab report."""
    from danalab.cli._shared.run_tables import print_rows, with_costs
    from danalab.sweep.grid import parse_fixed
    from danalab_annexes.ladder.wandb import Keys, import_runs, read_api, read_exports

    if bool(flags.files) == (flags.api is not None):
        raise UserError("give either exported files (or folders of them), or --api ENTITY/PROJECT")
    if flags.filter and flags.api is None:
        raise UserError("--filter is for --api; with files, name only those wanted")
    filters = _assignments(flags.filter, "--filter")
    mapped = {key.replace("-", "_"): value for key, value in _assignments(flags.map, "--map").items()}
    keys = Keys(mapped, parse_fixed(flags.fixed))
    exports = read_api(flags.api, filters) if flags.api is not None else read_exports(flags.files)
    rows = import_runs(exports, flags.out, keys)
    if flags.print_json({"folder": str(flags.out), "rows": with_costs(rows, None)}):
        return
    print_rows(rows)
    ended = sum(row["final_loss"] is not None for row in rows)
    print(f"{len(rows)} runs, {ended} of them finished, in {flags.out}; now: danalab report {flags.out}")


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


SUBVERBS.add("import-wandb", (ImportWandbFlags, import_wandb))
