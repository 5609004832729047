"""Experiments: many runs, the laws through them, and the compute that an optimizer saves.

YAML -> plan, cells -> runs (one child process each, or SLURM) -> rows -> tuning -> analysis -> report

cells, plan          grids of runs; a ladder's optimizers, sizes, dials and seeds
runs, slurm, ladder  making them; the search for the best settings
rows, tuning         ladder.jsonl; the best settings of each rung, and ladders drawn again
rate_laws, loss_laws, saving, statistics, horizon, paired, analysis
tables, drawing, figures, report, comparison     what a person sees
problems, tracks, trials, judge, optim_compare, demo    small problems, in minutes on a laptop
"""

from danalab.experiments.loss_laws import fit_loss_law
from danalab.experiments.rate_laws import fit_lr_law
from danalab.experiments.saving import compute_saved

__all__ = ["compute_saved", "fit_loss_law", "fit_lr_law"]
