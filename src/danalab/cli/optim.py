"""Optimizers: list them, compare them on small problems, draw their schedules."""

from dataclasses import dataclass
from pathlib import Path

from danalab.cli.optim_list import ListFlags, list_optimizers
from danalab.showcase import CompareConfig
from danalab.train.config.sections.optimizer import ScheduleSettings


@dataclass(frozen=True, kw_only=True)
class CompareFlags(CompareConfig):
    json: bool = False
    """Print one JSON object on standard output."""


def compare(flags: CompareFlags) -> None:
    """Optimizers on three small problems, with learning rates tuned alike; minutes on two cores."""
    import json
    import sys

    from danalab.report.formats import print_table
    from danalab.showcase.compare import HEADINGS, compare_optimizers, table_rows

    found = compare_optimizers(flags, lambda line: print(line, file=sys.stderr, flush=True))
    if flags.json:
        print(json.dumps(found.as_dict()))
        return
    print()
    print_table(HEADINGS, table_rows(found.results), left=2)
    print(f"\npage: {flags.out / 'index.html'}")


@dataclass(frozen=True, kw_only=True)
class SchedulesFlags(ScheduleSettings):
    steps: int = 10_000
    """Length of the run [steps]."""
    lr: float = 1e-3
    """Peak learning rate."""
    delta: tuple[float, ...] = (8.0,)
    """Averaging windows, beta(t) = 1 - delta / (delta + t); several values are drawn together."""
    kappa: tuple[float, ...] = (0.85,)
    """Exponents of the damping alpha(t) = (1 + t)^(1 - kappa); several values are drawn together."""
    momentum_cooldown: float = 0.0
    """Exponent c of the momentum's cooldown, beta(t) = 1 - delta / (delta + t s^c) with s = lr / peak; 0: none."""
    omega: float | None = None
    """Weight-decay strength, lambda(t) = omega / (wd_ts + t); default 4, unless --weight-decay is given."""
    horizon: float | None = None
    """wd_ts = horizon / 10 [steps]; default: the number of steps."""
    weight_decay: float | None = None
    """Initial weight decay, instead of --omega."""
    wd_ts: float | None = None
    """Time scale of its decay [steps]; default with --weight-decay: constant."""
    warmup_steps: int | None = None
    """Warm-up [steps]; default steps / 50."""
    out: Path = Path("schedules")
    """Folder for schedules.png, .svg, .pdf and .csv (one row per step)."""
    json: bool = False
    """Print one JSON object on standard output."""


def schedules(flags: SchedulesFlags) -> None:
    """The schedules of a run: beta(t), alpha(t), lambda(t) and the learning rate, as a figure and a table."""
    import json

    from danalab.files import write_atomically
    from danalab.report.figures.schedules import RunSchedules, schedule_figure, schedule_table
    from danalab.report.figures.training import save_figure

    omega = 4.0 if flags.omega is None and flags.weight_decay is None else flags.omega
    run = RunSchedules(
        steps=flags.steps,
        lr=flags.lr,
        delta=flags.delta,
        kappa=flags.kappa,
        momentum_cooldown=flags.momentum_cooldown,
        omega=omega,
        horizon=flags.horizon,
        weight_decay=flags.weight_decay or 0.0,
        wd_ts=flags.wd_ts,
        scheduler=flags.scheduler,
        warmup=flags.warmup_steps,
        scheduler_settings=flags.scheduler_settings(),
    )
    table = schedule_table(run)
    flags.out.mkdir(parents=True, exist_ok=True)
    files = [*save_figure(schedule_figure(run, table), flags.out / "schedules"), flags.out / "schedules.csv"]
    write_atomically(files[-1], table.as_csv())
    moments = sorted({1, *(max(1, round(run.steps * share)) for share in (0.001, 0.01, 0.1, 0.5, 1.0))})
    rows = [table.at(t) for t in moments]
    if flags.json:
        decay = {"weight_decay": table.weight_decay, "wd_ts": table.wd_ts}
        print(json.dumps({**decay, "columns": list(table.columns), "rows": rows, "files": list(map(str, files))}))
        return
    print("  ".join(f"{name:>10}" for name in table.columns))
    for row in rows:
        print("  ".join(f"{value:{max(10, len(name))}.4g}" for name, value in row.items()))
    print(f"\nwritten: {', '.join(map(str, files))}")


SUBVERBS = {
    "list": (ListFlags, list_optimizers),
    "compare": (CompareFlags, compare),
    "schedules": (SchedulesFlags, schedules),
}
