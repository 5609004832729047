"""The tables of docs/speed.md and notes/speed.md, from the stored results of this folder.

python bench/speed_page.py                                 writes both
python bench/speed_page.py bench/results/optim_cpu.json    stores what was measured, too
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from danalab_bench.pages import RESULTS, benchmark, store_benchmarks

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs" / "speed.md", ROOT / "notes" / "speed.md")
SETS = {"AVX-512": "_cpu", "AVX2": "_cpu_v3", "SSE 4": "_cpu_v2"}
"""Instruction set -> end of the names of its results."""
HELD = {"AVX-512": "_cpu", "held to AVX2": "_cpu_held_v3"}
"""The same for one processor, as it is and with the instructions of a lesser one."""
INTEL = {"AVX-512": "_cpu_intel", "held to AVX2": "_cpu_intel_held_v3"}
"""An Intel in the same two ways: one thread, by its processor time."""
STEPS = {
    "ADana, one pass": "adana:fused",
    "Dana-MK4, one pass": "dana-mk4:fused",
    "AdamW with decaying weight decay, one pass": "adamw-decaying-wd:fused",
    "AdEMAMix, one pass": "ademamix:fused",
    "Dana-Star, one pass": "dana-star:fused",
    "Dana-Star-MK4, one pass": "dana-star-mk4:fused",
    "Lion, pytorch-optimizer": "po.Lion",
}
SHORT = ("ADana, one pass", "Dana-MK4, one pass", "Dana-Star-MK4, one pass", "AdEMAMix, one pass")
"""Of these the page shows the steps; notes/speed.md has all."""
INTEL_STEPS = {name: of for name, of in STEPS.items() if name.endswith("one pass")} | {
    "Auto-Dana, one pass": "auto-dana:fused"
}
SMALL_STEPS = {
    "ADana": "adana",
    "Dana-MK4": "dana-mk4",
    "Dana-Star": "dana-star",
    "Dana-Star-MK4": "dana-star-mk4",
    "AdEMAMix": "ademamix",
}
DECODERS = {
    "float32": "danalab",
    "bfloat16 weights": "danalab bfloat16",
    "int8 weights": "danalab int8",
    "eager": "danalab eager",
}


def _few(table: str, without: Sequence[str]) -> str:
    """A table without the columns whose names have one of these words, and without interquartile ranges."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    places = [place for place, name in enumerate(lines[0]) if not any(word in name for word in without)]
    kept = [[re.sub(r" \(\d.*?\)", "", line[place]) for place in places] for line in lines]
    return _markdown([kept[0], *kept[2:]])


def tables(results: Path = RESULTS) -> dict[str, str]:
    """The tables by the name of their marker."""
    optim, train, generate = (_stored(results, verb, SETS) for verb in ("optim", "train", "generate"))
    large = _optim_table(optim, STEPS, {"20M": "20M", "88M": "88M"})
    short = _optim_table(optim, {name: STEPS[name] for name in SHORT}, {"20M": "20M", "88M": "88M"})
    trainer, decoding = _train_table(train), _decoding_table(generate)
    return {
        "short steps": _few(short, ["SSE 4"]),
        "short trainer": _few(trainer, ["AVX2", "over float32"]),
        "steps": large,
        "small steps": _optim_table(optim, SMALL_STEPS, {"0.2M": "0.2M in 26 tensors", "1.1M": "1.1M in 26 tensors",
                                                         "500x2k": "1.0M in 500 tensors"}),
        "intel": _optim_table(_stored(results, "optim", INTEL), INTEL_STEPS, {"20M": "20M"}),
        "trainer": trainer,
        "decoding": decoding,
        "held": _held_table(*(_stored(results, verb, HELD) for verb in ("optim", "train", "generate"))),
        "machines": "; ".join(_machine(name, [found[name] for found in (optim, train, generate)]) for name in SETS),
    }  # fmt: skip


def fill(page: str) -> str:
    """The text of the page with the tables between its markers."""
    for name, table in tables().items():
        start, end = f"<!-- speed: {name} -->\n", "\n<!-- end -->"
        head, mark, rest = page.partition(start)
        if mark:
            page = head + start + table + rest[rest.index(end) :]
    return page


def _stored(results: Path, verb: str, sets: dict[str, str]) -> dict[str, dict[str, Any] | None]:
    """Instruction set -> the result; None: not measured."""
    return {name: benchmark(f"{verb}{end}", results) for name, end in sets.items()}


def _machine(name: str, found: Sequence[dict[str, Any] | None]) -> str:
    machines = [each["machine"] for each in found if each is not None]
    shown = dict.fromkeys(f"{each['cores']} cores, {each['cpu']}, torch {each['torch'].partition('+')[0]}"
                          for each in machines)  # fmt: skip
    return f"{name}: {' and '.join(shown) or 'not measured'}"


def _optim_table(found: dict[str, Any], rows: dict[str, str], sizes: dict[str, str]) -> str:
    def cell(size: str, name: str, contender: str) -> str:
        cells = (found[name] or {"sizes": {}})["sizes"].get(size, {"results": {}})["results"]
        return f"{cells[contender]['ratio']['median']:.2f}" if contender in cells else "-"

    columns = [(size, name) for size in sizes for name in found]
    lines = [["optimizer step", *(f"{sizes[size]}, {name}" for size, name in columns)]]
    lines += [
        [shown, *(cell(size, name, contender) for size, name in columns)] for shown, contender in rows.items()
    ]
    return _markdown(lines)


def _train_table(found: dict[str, Any]) -> str:
    def by_cell(name: str) -> dict[tuple[int, ...], dict[str, Any]]:
        cells = (found[name] or {"cells": []})["cells"]
        return {(c["d_model"], c["batch_size"], c["seq_len"], c["threads"]): c["sides"] for c in cells}

    def ratio(side: str, over: str) -> Callable[[dict[str, Any]], str]:
        def shown(sides: dict[str, Any]) -> str:
            each = sides.get(side, {}).get(f"over {over}")
            return f"{each['median']:.2f} ({each['q1']:.2f} to {each['q3']:.2f})" if each else "-"

        return shown

    columns = {
        "float32, AVX-512": ("AVX-512", ratio("trainer float32", "loop float32")),
        "float32, AVX2": ("AVX2", ratio("trainer float32", "loop float32")),
        "bfloat16, AVX-512": ("AVX-512", ratio("trainer bfloat16", "loop bfloat16")),
        "trainer, bfloat16 over float32": ("AVX-512", ratio("trainer bfloat16", "trainer float32")),
    }
    cells = {name: by_cell(name) for name in SETS}
    lines = [["d_model", "batch", "threads", *columns]]
    for place in dict.fromkeys(place for each in cells.values() for place in each):
        width, batch, length, threads = place
        shown = [words(cells[name].get(place, {})) for name, words in columns.values()]
        lines.append([str(width), f"{batch} x {length}", str(threads), *shown])
    return _markdown(lines)


def _decoding_table(found: dict[str, Any]) -> str:
    rows = {name: {row["batch"]: row["times_faster_than_transformers"] for row in (each or {"batches": []})["batches"]}
            for name, each in found.items()}  # fmt: skip
    batches = sorted({batch for each in rows.values() for batch in each})
    columns = [(batch, name) for batch in batches for name in SETS]

    def cell(batch: int, name: str, decoder: str) -> str:
        each = rows[name].get(batch, {})
        return f"{each[decoder]['median']:.2f}" if decoder in each else "-"

    lines = [["decoder", *(f"batch {batch}, {name}" for batch, name in columns)]]
    lines += [
        [shown, *(cell(batch, name, decoder) for batch, name in columns)]
        for shown, decoder in DECODERS.items()
    ]
    return _markdown(lines)


def _held_table(optim: dict[str, Any], train: dict[str, Any], generate: dict[str, Any]) -> str:
    def step(name: str, contender: str) -> str:
        results = (optim[name] or {"sizes": {}})["sizes"].get("20M", {"results": {}})["results"]
        return f"{results[contender]['ratio']['median']:.2f}" if contender in results else "-"

    def decoding(name: str, decoder: str) -> str:
        rows = (generate[name] or {"batches": []})["batches"]
        return (
            ", ".join(f"{row['times_faster_than_transformers'][decoder]['median']:.1f}" for row in rows)
            or "-"
        )

    def trainer(name: str) -> str:
        for cell in (train[name] or {"cells": []})["cells"]:
            if (cell["d_model"], cell["seq_len"], cell["threads"]) == (128, 128, 2):
                return f"{cell['sides']['trainer float32']['over loop float32']['median']:.2f}"
        return "-"

    lines = [["one processor", *HELD]]
    for shown, decoder in {"float32": "danalab", "int8 weights": "danalab int8"}.items():
        lines.append([f"decoding at batch 1, 8, 32, {shown}", *(decoding(name, decoder) for name in HELD)])
    for shown in ("ADana, one pass", "Dana-Star-MK4, one pass"):
        lines.append([f"step at 20M, {shown}", *(step(name, STEPS[shown]) for name in HELD)])
    lines.append(
        ["trainer over loop, d_model 128, 8 x 128, 2 threads, float32", *(trainer(name) for name in HELD)]
    )
    return _markdown(lines)


def _markdown(lines: list[list[str]]) -> str:
    """A table, without the columns that nothing was measured for."""
    kept = [place for place in range(len(lines[0])) if any(line[place] != "-" for line in lines[1:])]
    lines = [[line[place] for place in kept] for line in lines]
    return "\n".join(
        "| " + " | ".join(line) + " |" for line in [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="*")
    if files := parser.parse_args().files:
        store_benchmarks(files)
    for each in PAGES:
        each.write_text(fill(each.read_text(encoding="utf-8")), encoding="utf-8")
