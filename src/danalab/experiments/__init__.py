"""Experiments: many runs, the laws through them, and the compute that an optimizer saves.

YAML -> plan, cells -> runs (one child process each, or SLURM) -> rows -> tuning -> analysis -> report

cells, plan          grids of runs; a ladder's optimizers, sizes, dials and seeds
runs, slurm, ladder  making them; the search for the best settings
rows, tuning         ladder.jsonl; the best settings of each rung, and ladders drawn again
rate_laws, loss_laws, saving, statistics, horizon, paired, budget, analysis
tables, drawing, figures, report, comparison     what a person sees
problems, tracks, trials, judge, optim_compare, demo    small problems, in minutes on a laptop
"""

from typing import Any

_PUBLIC = {"fit_lr_law": "rate_laws", "fit_loss_law": "loss_laws", "compute_saved": "saving"}


def __getattr__(name: str) -> Any:
    """The public names; their modules need scipy, which is not imported before it is used."""
    from importlib import import_module

    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
