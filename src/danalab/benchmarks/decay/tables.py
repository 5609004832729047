"""The tables of docs/decay-law.md and its neighbours, from the trials."""

import statistics
from dataclasses import replace

from danalab.benchmarks.decay.phases import DEFAULT, FINDINGS, ORDER, SHOWN
from danalab.benchmarks.decay.small_problems import small_problems
from danalab.benchmarks.decay.trials import Cell, Results
from danalab.optim.run_length import warmup_steps


def rows_of(results: Results, opt: str, default: bool = False) -> dict[tuple[str, int, int], dict[str, list[float]]]:
    """(problem, steps, batch) -> law and settings -> losses by seed at the best rate, with the usual warm-up."""
    found: dict[tuple[str, int, int], dict[str, list[float]]] = {}
    for cell in dict.fromkeys(cell for cell, _, _ in results.losses):
        best = results.best(cell)
        if not best or cell.opt != opt or cell.warmup != warmup_steps(cell.steps):
            continue
        name = f"{cell.law} {cell.settings}".rstrip()
        if not default or name == DEFAULT:
            found.setdefault((cell.problem, cell.steps, cell.batch), {})[name] = best[1]
    return found


def difference(a: list[float], b: list[float]) -> str:
    """Mean and standard error of a - b, paired by seed."""
    gaps = [x - y for x, y in zip(a, b, strict=True)]
    return f"{statistics.fmean(gaps):+.3f} ± {statistics.stdev(gaps) / len(gaps) ** 0.5:.3f}"


def advice_table(results: Results) -> str:
    """The family with its default decay against AdamW at its best decay; both at their best rates."""
    adamw = rows_of(results, "adamw")
    family = {name: rows_of(results, opt, default=True) for name, opt in SHOWN.items()}
    lines = [["problem", "steps", "AdamW", *SHOWN, "ADana - AdamW"]]
    for place in sorted(family["ADana"], key=lambda place: (ORDER.index(place[0]), place[1])):
        problem, steps, batch = place
        if batch != small_problems()[problem].batch or place not in adamw:
            continue
        best = min(adamw[place].values(), key=statistics.fmean)
        own = [next(iter(found.get(place, {}).values()), None) for found in family.values()]
        shown = [f"{statistics.fmean(losses):.3f}" if losses else "-" for losses in own]
        assert own[0] is not None
        lines.append([problem, f"{steps:,}", f"{statistics.fmean(best):.3f}", *shown, difference(own[0], best)])
    return as_markdown(lines)


def laws_table(results: Results, opt: str, laws: dict[str, str]) -> str:
    """How much worse each law is than the best of the row."""
    lines = [["problem", "steps", "batch", "best", *laws.values()]]
    rows = rows_of(results, opt)
    for place in sorted(rows, key=lambda place: (ORDER.index(place[0]), place[1], -place[2])):
        found = {law: losses for law, losses in rows[place].items() if law in laws}
        best = min(found.values(), key=statistics.fmean)
        shown = [difference(found[law], best) if law in found and found[law] is not best else
                 ("0" if law in found else "-") for law in laws]  # fmt: skip
        lines.append([place[0], f"{place[1]:,}", str(place[2]), f"{statistics.fmean(best):.3f}", *shown])
    return as_markdown(lines)


def findings_table(results: Results) -> str:
    """The difference that each setting makes to ADana with its defaults, each at its own best learning rate."""
    base = Cell("", 0, 0, "adana", DEFAULT, 0)
    changes = {
        **{settings.replace("=", " "): replace(base, settings=settings) for settings in FINDINGS},
        "tau (Dana-Star)": replace(base, opt="dana-star"),
        "clip (Dana-MK4)": replace(base, opt="dana-mk4"),
        "both (Dana-Star-MK4)": replace(base, opt="dana-star-mk4"),
        "no weight decay": replace(base, law="none"),
        "weight decay unbounded": replace(base, law="4/t"),
    }
    places = [("transformer", 150), ("mlp", 150), ("mlp", 600), ("teacher", 150), ("teacher", 600)]
    lines = [["ADana, but", *(f"{problem}, {steps} steps" for problem, steps in places)]]
    for name, change in changes.items():
        line = [name]
        for problem, steps in places:
            at = {"problem": problem, "steps": steps, "batch": small_problems()[problem].batch}
            cell, usual = (replace(each, **at, warmup=warmup_steps(steps)) for each in (change, base))
            found, known = results.best(cell), results.best(usual)
            line.append(difference(found[1], known[1]) if found and known else "-")
        lines.append(line)
    return as_markdown(lines)


def as_markdown(lines: list[list[str]]) -> str:
    """A table whose first line is its head."""
    return "\n".join("| " + " | ".join(line) + " |" for line in [lines[0], ["---"] * len(lines[0]), *lines[1:]])


def tables(results: Results) -> dict[str, str]:
    """The tables of the docs by the name of their marker."""
    laws = {"none": "none", "0.5 lr, 4/t": "at most 0.5 lr", "1 lr, 4/t": "at most lr", "2 lr, 4/t": "at most 2 lr"}
    return {
        "advice": advice_table(results),
        "laws of adana": laws_table(results, "adana", {**laws, "4/t": "unbounded"}),
        "laws of adamw": laws_table(results, "adamw", laws),
        "findings": findings_table(results),
    }


def fill(page: str, results: Results) -> str:
    """The text of a page with the tables between its markers."""
    for name, table in tables(results).items():
        start, end = f"<!-- decay law: {name} -->\n", "<!-- end -->"
        if start in page:
            head, rest = page.split(start)
            page = head + start + table + "\n" + rest[rest.index(end) :]
    return page
