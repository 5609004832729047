"""Stored results, and the parts of a page of docs that are made from them: between `<!-- TAG: PART -->` and
`<!-- end -->`.

bench/results/NAME/ladder.jsonl.gz    a packed ladder
bench/results/benchmarks.jsonl        a line for each result of a benchmark; a new result lies beside it as NAME.json
                                      and is read first, until `python bench/speed_page.py NAME.json` stores it
"""

import argparse
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from danalab.colors import THEMES, save_figure
from danalab.experiments.paired import PairedTest
from danalab.experiments.rows import hours_of, pack, read_ladder, validation_points
from danalab.files import parse_json, read_json, read_text, write_atomically

RESULTS = Path(__file__).parents[1] / "results"
BENCHMARKS = "benchmarks.jsonl"
POINT = ("step", "tokens", "flops", "time", "val/loss")
"""What is stored of a run's curve."""


def benchmark(name: str, folder: Path = RESULTS) -> Any:
    """The newest stored result of a benchmark, by its name without .json; None: not measured."""
    if (own := folder / f"{name}.json").is_file():
        return read_json(own)
    return _benchmarks(folder).get(name)


def store_benchmarks(files: Iterable[Path], folder: Path = RESULTS) -> None:
    """Move results from files of their own into the file that is committed."""
    results = {**_benchmarks(folder), **{file.stem: read_json(file) for file in files}}
    rows = ({"name": name, "result": result} for name, result in sorted(results.items()))
    write_atomically(folder / BENCHMARKS, "".join(json.dumps(row) + "\n" for row in rows))
    for file in files:
        file.unlink()


def _benchmarks(folder: Path) -> dict[str, Any]:
    file = folder / BENCHMARKS
    rows = [parse_json(line, file) for line in read_text(file).splitlines()] if file.is_file() else []
    return {row["name"]: row["result"] for row in rows}


def fill_parts(page: str, tag: str, parts: Mapping[str, str]) -> str:
    """The page with its parts of a tag."""
    pattern = re.compile(rf"(<!-- {tag}: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
    return pattern.sub(lambda match: match[1] + parts[match[2]] + match[3], page)


def refresh(usage: str | None, stored: Path, fill: Callable[[str], str], *pages: Path) -> None:
    """The command of a script: pack the ladders that the command line names, if any, into one, and fill the pages."""
    parser = argparse.ArgumentParser(description=usage, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ladders", type=Path, nargs="*")
    if folders := parser.parse_args().ladders:
        pack(joined(read_ladder(folder) for folder in folders), stored)
    for page in pages:
        page.write_text(fill(page.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"refreshed {page}")


def joined(ladders: Iterable[Iterable[Mapping[str, Any]]]) -> list[Mapping[str, Any]]:
    """The rows of several ladders, each run once, with the points of their curves; of two runs with one name the later
    is named by its settings, too."""
    rows: dict[tuple[str, float], Mapping[str, Any]] = {}
    names: set[str] = set()
    for row in (row for ladder in ladders for row in ladder):
        name, run = row["name"], (row["name"], row["final_loss"])
        if name in names and run not in rows:
            start, _, seed = name.rpartition("-")
            own = "".join(f"-{key}{value}" for key, value in row["settings"]["optimizer_settings"].items())
            name = f"{start}{own.replace(' ', '')}-{seed}"
        names.add(name)
        points = [{key: point[key] for key in POINT} for point in validation_points(row)]
        rows.setdefault((name, row["final_loss"]), {**row, "name": name, "points": points})
    return [*rows.values()]


def store_figure(draw: Callable[[], Figure], name: str) -> None:
    """Draw NAME.png and NAME-dark.png among the figures of the docs."""
    with tempfile.TemporaryDirectory() as folder:
        save_figure(draw, Path(folder) / name)
        for ending in THEMES:
            shutil.copy(Path(folder) / f"{name}{ending}.png", RESULTS.parents[1] / "docs" / "figures")


def cost(rows: Sequence[Mapping[str, Any]]) -> str:
    """A sentence on what the runs took."""
    return f"{len(rows)} runs, {sum(map(hours_of, rows)):.1f} hours of one core without evaluation.\n"


def shown_lead(test: PairedTest | None) -> str:
    """The baseline's loss minus an optimizer's, with its 95% interval."""
    if test is None:
        return "-"
    known = "" if test.interval is None else f" ({test.interval.low:+.3f} to {test.interval.high:+.3f})"
    return f"{test.difference:+.3f}{known}"
