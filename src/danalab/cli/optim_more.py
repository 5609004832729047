"""`danalab optim compare` and `danalab optim schedules`: optimizers on small problems, and the schedules of a run."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from danalab.cli._shared.options import JsonFlags
from danalab.cli.optim import SUBVERBS
from danalab.optim.settings import LogTime
from danalab.train.config.fields import Count, PathText, Section
from danalab.train.config.train_config import ScheduleSettings


@dataclass(frozen=True, kw_only=True)
class CompareConfig(Section):
    """Settings of `danalab optim compare`."""

    opts: tuple[PathText, ...] = ("adamw", "ademamix", "muon", "adana", "dana-star-mk4")
    """Optimizers; danalab optim list shows them all."""
    problems: tuple[str, ...] = ("quadratic", "matrix", "language")
    """Problems: quadratic, matrix, language."""
    trials: Count = 6
    """Learning rates tried for each optimizer on each problem."""
    seeds: Count = 3
    """Runs at the best learning rate."""
    jobs: Count | None = None
    """Searches at the same time, one thread each; default one for each core."""
    quick: bool = False
    """A tenth of the steps, 3 learning rates, one seed: a fast test that everything works."""
    out: Path = Path("optim-compare")
    """Folder for the page, figures and tables."""


@dataclass(frozen=True, kw_only=True)
class RunSchedules(ScheduleSettings):
    """Settings of the schedules of a run; several values of delta and kappa are drawn together."""

    title: ClassVar[str] = ""  # no section: `--help` lists them

    steps: int = 10_000
    """Length of the run [steps]."""
    lr: float = 1e-3
    """Peak learning rate."""
    delta: tuple[float, ...] = (LogTime.delta,)
    """Averaging windows, beta(t) = 1 - delta / (delta + t); several values are drawn together."""
    kappa: tuple[float, ...] = (LogTime.kappa,)
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


@dataclass(frozen=True, kw_only=True)
class CompareFlags(JsonFlags, CompareConfig):
    pass


def compare(flags: CompareFlags) -> None:
    """Optimizers on three small problems, with learning rates tuned alike; minutes on two cores."""
    from danalab.report.formats import print_table
    from danalab.showcase.compare import HEADINGS, compare_optimizers, table_rows

    found = compare_optimizers(flags, lambda line: print(line, file=sys.stderr, flush=True))
    if flags.print_json(found.as_dict()):
        return
    print()
    print_table(HEADINGS, table_rows(found.results), left=2)
    print(f"\npage: {flags.out / 'index.html'}")


@dataclass(frozen=True, kw_only=True)
class SchedulesFlags(JsonFlags, RunSchedules):
    out: Path = Path("schedules")
    """Folder for schedules.png, .svg, .pdf and .csv (one row per step)."""


def schedules(flags: SchedulesFlags) -> None:
    """The schedules of a run: beta(t), alpha(t), lambda(t) and the learning rate, as a figure and a table."""
    from danalab.files import write_atomically
    from danalab.report.figures.drawing import save_figure
    from danalab.showcase.schedules import schedule_figure, schedule_table

    table = schedule_table(flags)
    flags.out.mkdir(parents=True, exist_ok=True)
    files = [*save_figure(schedule_figure(flags, table), flags.out / "schedules"), flags.out / "schedules.csv"]
    write_atomically(files[-1], table.as_csv())
    moments = sorted({1, *(max(1, round(flags.steps * share)) for share in (0.001, 0.01, 0.1, 0.5, 1.0))})
    rows = [table.at(t) for t in moments]
    decay = {"weight_decay": table.weight_decay, "wd_ts": table.wd_ts}
    if flags.print_json({**decay, "columns": list(table.columns), "rows": rows, "files": list(map(str, files))}):
        return
    print("  ".join(f"{name:>10}" for name in table.columns))
    for row in rows:
        print("  ".join(f"{value:{max(10, len(name))}.4g}" for name, value in row.items()))
    print(f"\nwritten: {', '.join(map(str, files))}")


SUBVERBS.add("compare", (CompareFlags, compare))
SUBVERBS.add("schedules", (SchedulesFlags, schedules))
