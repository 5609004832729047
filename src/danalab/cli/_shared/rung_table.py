"""The estimate of a ladder, a line a rung: runs, tokens, epochs, hours and costs before anything runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from danalab.ladder.runs.estimate import Estimate, Rate, accelerator_rate, estimate, token_rate, total, trained_rate
from danalab.report.tables.console import print_table

if TYPE_CHECKING:
    from danalab.ladder.plan import LadderPlan


def show_rungs(
    plan: LadderPlan,
    folder: Path,
    *,
    jobs: int,
    tokens_per_second: float | None = None,
    gpu: str | None = None,
    mfu: float = 0.4,
    price: float | None = None,
    as_json: bool = False,
) -> None:
    """Print the estimate of a ladder by rungs, and its total.

    Args:
        jobs: runs at a time, for the wall time.
        tokens_per_second, gpu: source of the rate; neither: a short measurement of each optimizer at each size.
        price: of a device [$ an hour].
    """
    rungs = plan.rungs()
    cells = [[cell for runs in plan.planned(rung).values() for cell in runs] for rung in rungs]
    rate, source = _rate([cell for each in cells for cell in each], tokens_per_second, gpu, mfu)
    found = [estimate(each, folder, rate, price) for each in cells]
    lines = [_line(str(rung), runs, jobs) for rung, runs in zip(rungs, found, strict=True)]
    every = [run for runs in found for run in runs]
    if as_json:
        keys = ("rung", "runs", "params", "tokens", "epochs", "tokens_per_second", "device_hours", "wall_hours", "cost")
        print(json.dumps({
            "rungs": [dict(zip(keys, values, strict=True)) for values in lines],
            "runs": len(every), "device_hours": total([run.device_hours for run in every]),
            "wall_hours": sum(line[7] for line in lines), "cost": total([run.cost for run in every]), "rate": source,
        }))  # fmt: skip
        return
    shown = [
        [rung, str(runs), f"{params:,}", f"{tokens:,}", "-" if epochs is None else f"{epochs:.2g}", f"{speed:,.0f}",
         f"{hours:.3g}", f"{wall:.3g}", *([] if cost is None else [f"{cost:,.2f}"])]
        for rung, runs, params, tokens, epochs, speed, hours, wall, cost in lines
    ]  # fmt: skip
    whole = ["total", str(len(every)), "", f"{sum(run.tokens for run in every):,}", "", "",
             f"{sum(line[6] for line in lines):.3g}", f"{sum(line[7] for line in lines):.3g}"]  # fmt: skip
    if price is not None:
        whole.append(f"{total([run.cost for run in every]):,.2f}")
    print_table(
        ["rung", "runs", "parameters", "tokens each", "epochs", "tokens/s", "device-hours", "wall hours",
         *(["cost [$]"] if price is not None else [])],
        [*shown, whole],
    )  # fmt: skip
    budgets = dict.fromkeys(plan.least_trials(opt) for opt in plan.opts)
    more = f", and up to {plan.extensions} beyond an edge" if plan.trials is None and len(plan.multipliers) > 1 else ""
    print(
        f"each optimizer tries {' or '.join(map(str, budgets))} settings on a rung{more}, then {len(plan.seeds) - 1} "
        f"more seeds; {jobs} run{'s' * (jobs != 1)} at a time; {source}; nothing was trained (--estimate)"
    )


def _rate(cells: Sequence, tokens_per_second: float | None, gpu: str | None, mfu: float) -> tuple[Rate, str]:
    if tokens_per_second is not None:
        return token_rate(tokens_per_second), f"{tokens_per_second:,.0f} tokens/s as given"
    if gpu is not None:
        return accelerator_rate(gpu, mfu), f"{gpu.upper()} at {mfu:.0%} of its peak"
    return trained_rate(cells), "speed measured here, by a few steps of each optimizer at each size"


def _line(rung: str, runs: Sequence[Estimate], jobs: int) -> tuple:
    hours = sum(run.device_hours or 0.0 for run in runs)
    first = runs[0]
    speed = sum(run.tokens for run in runs) / (3600 * hours)
    cost = total([run.cost for run in runs])
    return rung, len(runs), first.params, first.tokens, first.epochs, speed, hours, hours / min(jobs, len(runs)), cost
