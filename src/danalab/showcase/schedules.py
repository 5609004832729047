"""The schedules of a log-time optimizer over a run: beta(t), alpha(t), lambda(t) and the learning rate.

Every number comes from the functions that the optimizers themselves call in each step (`optim.rules.scalars`,
`danalab.optim.schedules`); there is no second implementation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from danalab.cli.optim_more import RunSchedules
from danalab.colors import optimizer_color
from danalab.errors import UserError
from danalab.optim.optimizers.checks import check_settings, resolve_decay
from danalab.optim.rules.scalars import decay_rate, log_time_scalars, schedule_factor
from danalab.optim.schedules import get_schedule
from danalab.optim.settings import LogTime
from danalab.report.figures.drawing import counts, panels, plain, powers, shades, styled
from danalab.report.formats import as_csv
from danalab.scaling.optimizers import LOG_TIME_DECAY_BOUND, OMEGA, warmup_steps


@dataclass(frozen=True)
class ScheduleTable:
    """Columns of float64, one entry a step; entry k is of update t = k + 1."""

    columns: dict[str, list[float]]
    """`step`, `lr`, `schedule`, `beta`, `alpha`, `lambda`, `decay` = schedule x lambda; where delta or kappa has
    several values, there are `beta[delta=8]`, `alpha[kappa=0.85]`, ..."""
    weight_decay: float
    wd_ts: float | None
    largest_decay: float | None
    """Bound of lambda where it is given by omega."""

    def as_csv(self) -> str:
        """One row a step."""
        rows = zip(*self.columns.values(), strict=True)
        return as_csv((list(self.columns), [[f"{value:.10g}" for value in row] for row in rows]))

    def at(self, t: int) -> dict[str, float]:
        """The row of update t (from 1)."""
        return {name: column[t - 1] for name, column in self.columns.items()}


def schedule_table(run: RunSchedules) -> ScheduleTable:
    """The schedules of every step of `run`."""
    warmup = warmup_steps(run.steps) if run.warmup_steps is None else run.warmup_steps
    factor = get_schedule(run.scheduler, run.steps, warmup, **run.scheduler_settings())
    if not run.delta or not run.kappa:
        raise UserError("schedules: delta and kappa need at least one value each")
    omega = OMEGA if run.omega is None and run.weight_decay is None else run.omega
    horizon = float(run.steps) if omega is not None and run.horizon is None and run.wd_ts is None else run.horizon
    weight_decay, wd_ts = resolve_decay(
        "schedules", weight_decay=run.weight_decay or 0.0, wd_ts=run.wd_ts, omega=omega, horizon=horizon
    )
    t = torch.arange(1, run.steps + 1, dtype=torch.float64)
    lr = run.lr * torch.tensor([factor(i) for i in range(run.steps)], dtype=torch.float64)
    bound = None if omega is None else LOG_TIME_DECAY_BOUND
    fixed = {
        "eps": LogTime.eps, "gamma3": LogTime.gamma3, "alpha_offset": LogTime.alpha_offset,
        "weight_decay": weight_decay, "wd_ts": wd_ts, "decay_bound": bound, "momentum_cooldown": run.momentum_cooldown,
    }  # fmt: skip

    def group(delta: float, kappa: float) -> dict[str, Any]:
        settings = {**fixed, "delta": delta, "kappa": kappa, "peak_lr": run.lr}
        check_settings("schedules", {**settings, "lr": run.lr})
        return {**settings, "lr": lr}

    first = group(run.delta[0], run.kappa[0])
    columns: dict[str, torch.Tensor] = {"step": t, "lr": lr, "schedule": torch.as_tensor(schedule_factor(first))}
    for delta in run.delta:
        columns[column("beta", "delta", delta, run.delta)] = 1 - log_time_scalars(group(delta, run.kappa[0]), t)["gain"]
    for kappa in run.kappa:
        columns[column("alpha", "kappa", kappa, run.kappa)] = log_time_scalars(group(run.delta[0], kappa), t)["alpha"]
    columns["lambda"] = torch.as_tensor(decay_rate(first, t), dtype=torch.float64).expand(run.steps)
    columns["decay"] = 1 - log_time_scalars(first, t)["decay_factor"]
    largest = None if bound is None else bound * run.lr
    return ScheduleTable({name: values.tolist() for name, values in columns.items()}, weight_decay, wd_ts, largest)


def column(what: str, setting: str, value: float, values: Sequence[float]) -> str:
    """Name of a column, with the setting's value where there are several."""
    return what if len(values) == 1 else f"{what}[{setting}={value:g}]"


@styled
def schedule_figure(run: RunSchedules, table: ScheduleTable) -> Figure:
    """Four panels over the steps of the run: gain 1 - beta(t), alpha(t), lambda(t), learning rate."""
    figure, (gains, dampings, decays, rates) = panels(4, columns=2, each=(4.8, 3.3))
    columns = _thinned(table.columns)
    t, own = columns["step"], optimizer_color("adana")
    for delta, color in zip(run.delta, shades(len(run.delta), own), strict=True):
        gain = [1 - beta for beta in columns[column("beta", "delta", delta, run.delta)]]
        gains.plot(t, gain, color=color, label=rf"$\delta$ = {delta:g}")
    for beta in (0.9, 0.999):
        color, place = optimizer_color("adamw"), ("axes fraction", "data")
        gains.axhline(1 - beta, color=color, linestyle=":", linewidth=1)
        gains.annotate(f"AdamW, beta {beta:g}", (0.01, 1 - beta), xycoords=place, va="bottom", fontsize=8, color=color)
    time = f"t\\,s(t)^{{{run.momentum_cooldown:g}}}" if run.momentum_cooldown else "t"
    _finish(gains, rf"weight of the new gradient, $1-\beta(t) = \delta/(\delta+{time})$", "gain")
    for kappa, color in zip(run.kappa, shades(len(run.kappa), own), strict=True):
        alpha = columns[column("alpha", "kappa", kappa, run.kappa)]
        dampings.plot(t, alpha, color=color, label=rf"$\kappa$ = {kappa:g}")
    _finish(dampings, r"damping of the long momentum, $\alpha(t) = (1+t)^{1-\kappa}$", "factor")
    decays.plot(t, columns["lambda"], color=own, label=r"$\lambda(t)$")
    decays.plot(t, columns["decay"], color=own, linestyle="--", label=r"$s(t)\,\lambda(t)$: what is applied")
    # The floor keeps a schedule that ends at 0 from stretching the axis.
    _finish(decays, _decay_title(table), "weight decay per step", floor=1e-4)
    rates.plot(t, columns["lr"], color=own, label=f"{run.scheduler}, peak {run.lr:g}")
    _finish(rates, r"learning rate, $\mathrm{lr}(t) = s(t) \times$ peak", "learning rate", log=False)
    return figure


def _thinned(columns: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """At most some thousand steps, dense at the start and even later, so that the SVG is small."""
    steps = len(columns["step"])
    share = torch.linspace(0, 1, 800, dtype=torch.float64)
    picked = torch.cat([share * (steps - 1), steps**share - 1]).round().long().unique().tolist()
    return {name: [values[k] for k in picked] for name, values in columns.items()}


def _decay_title(table: ScheduleTable) -> str:
    if table.wd_ts is None:
        return rf"independent weight decay, constant $\lambda$ = {table.weight_decay:.3g}"
    bound = "" if table.largest_decay is None else f", at most {table.largest_decay:.3g}"
    return rf"weight decay, $\lambda(t)$ = {table.weight_decay:.3g} / (1 + t / {table.wd_ts:g}){bound}"


def _finish(axes: Axes, title: str, y: str, log: bool = True, floor: float = 0.0) -> None:
    values = [float(value) for line in axes.lines for value in line.get_ydata() if value > 0]  # pyright: ignore
    axes.set(title=title, xlabel="optimizer step t", ylabel=y)
    if log:
        axes.set_xscale("log")
        counts(axes.xaxis)
    if log and values and max(values) > 1.001 * min(values):
        axes.set_yscale("log")
        if min(values) < floor * max(values):
            axes.set_ylim(bottom=floor * max(values))
        (plain if min(values) > 0.05 * max(values) else powers)(axes.yaxis)
    axes.legend()
