"""Optimizers side by side on small problems, in minutes on a laptop CPU: `danalab demo`, `danalab optim compare`.

The settings are the flags of the two. Needs no torch.
"""

from dataclasses import dataclass
from pathlib import Path

from danalab.train.config.fields import Count, PathText, Section


@dataclass(frozen=True, kw_only=True)
class DemoConfig(Section):
    """Settings of `danalab demo`."""

    out: Path = Path("demo")
    """Folder for all results of the demo."""
    tokens: Count = 750_000
    """Training tokens of each run."""
    vocab_size: Count = 1024
    """Size of the byte-pair encoding trained on the corpus [tokens]."""
    seeds: Count = 1
    """Runs at each optimizer's best learning rate, with different seeds."""
    jobs: Count | None = None
    """Runs at the same time, one thread each; default one for each core."""


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
