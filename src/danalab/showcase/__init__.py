"""Optimizers side by side on small problems, in minutes on a laptop CPU: `danalab demo`, `danalab optim compare`.

The settings of the first are its flags. Needs no torch.
"""

from dataclasses import dataclass
from pathlib import Path

from danalab.train.config.fields import Count, Section


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
