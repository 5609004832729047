"""Flags of the `danalab theory` verbs: a verb's are the model's, the output's, and the arguments of its study."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from danalab.cli._shared.options import JsonFlags


@dataclass(frozen=True, kw_only=True)
class Output(JsonFlags):
    out: Path = Path("theory")
    """Folder for the figure (png), its curves (npz) and its parameters (json)."""


@dataclass(frozen=True, kw_only=True)
class FeaturesFlags(Output):
    alpha: float = 1.0
    """Data exponent: eigenvalues fall like j^(-2 alpha)."""
    beta: float = 0.3
    """Target exponent; 2 (alpha + beta) must exceed 1."""
    v: int = 800
    """Hidden dimension, at least d."""
    d: int = 200
    """Parameters; in a mixture, of each expert."""

    def model(self) -> Any:
        """The power-law random features model."""
        from danalab.theory.problem import PLRF

        return PLRF(self.alpha, self.beta, self.v, self.d)

    def settings(self) -> dict[str, Any]:
        """The arguments of the study."""
        return {name: value for name, value in vars(self).items() if name not in vars(FeaturesFlags())}


@dataclass(frozen=True, kw_only=True)
class ExpertFlags(FeaturesFlags):
    v: int = 200
    d: int = 50
    experts: int = 32
    """Experts."""
    zeta: float = 1.5
    """Expert probabilities are proportional to i^-zeta."""
    batch: int = 8
    """Samples a step."""


@dataclass(frozen=True, kw_only=True)
class PLRFFlags(FeaturesFlags):
    beta: float = 0.5
    v: int = 2000
    d: int = 500
    batch: int = 1
    """Samples a step."""
    steps: int = 30_000
    """Horizon [steps]."""
    runs: int = 8
    """Stochastic runs of each algorithm."""
    h: float = 0.01
    """Step of the integrator in log(1 + t)."""
    seed: int = 0
    """Seed of the draw and of the samples."""


@dataclass(frozen=True, kw_only=True)
class PhaseFlags(Output):
    alpha: float = 1.0
    """Data exponent of the compute-optimal frontier."""
    beta: float = 0.3
    """Target exponent of the compute-optimal frontier."""
    sizes: int = 11
    """Number of sizes d = 100, 200, 400, ... of the frontier."""
    points: int = 121
    """Grid points of the phase diagram along each axis."""
    h: float = 0.01
    """Step of the integrator in log(1 + t)."""


@dataclass(frozen=True, kw_only=True)
class HummingbirdFlags(ExpertFlags):
    v: int = 800
    d: int = 200
    experts: int = 1
    zeta: float = 0.5
    batch: int = 10
    steps: int = 16_000
    """Horizon [steps]."""
    kappas: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    """Damping exponents to sweep, between 0 and 1."""
    lr: float = 0.003
    """Learning rate of the Dana family and of Adam."""
    clipsnr: float = 0.5
    """Signal-to-noise clip of the MK4 members."""
    delta: float = 8.0
    """Averaging window: 1 - beta(t) = delta / (delta + t)."""
    noise: float = 0.0
    """Scale of Student label noise with 3 degrees of freedom."""
    seed: int = 0
    """Seed of the draw and of the samples."""


@dataclass(frozen=True, kw_only=True)
class MoEFlags(ExpertFlags):
    steps: int = 10_000
    """Horizon [steps]."""
    kappas: tuple[float, ...] = (0.5, 0.75, 1.0)
    """Damping exponents."""
    lr: float = 0.03
    """Learning rate of all optimizers."""
    clipsnr: float = 2.0
    """Signal-to-noise clip of the MK4 members."""
    noise: float = 0.0
    """Scale of Student label noise with 3 degrees of freedom."""
    seeds: int = 3
    """Draws of the features and of the stream."""


@dataclass(frozen=True, kw_only=True)
class TauFlags(ExpertFlags):
    steps: int = 16_000
    """Horizon [steps]; tau is read at this time and at its halves."""
    kappa: float = 0.75
    """Damping exponent."""
    synthetic_steps: int = 20_000
    """Steps of the synthetic gradients."""
    seed: int = 0
    """Seed of the synthetic gradients."""


@dataclass(frozen=True, kw_only=True)
class ScheduleFlags(FeaturesFlags):
    v: int = 4000
    d: int = 1000
    batch: int = 1
    """Samples a step."""
    horizon: float = 1e7
    """Last time [steps]."""
    points: int = 41
    """Values of kappa."""
    h: float = 0.01
    """Step of the integrator in log(1 + t)."""


@dataclass(frozen=True, kw_only=True)
class CooldownFlags(Output):
    horizons: tuple[int, ...] = (100, 1000)
    """Lengths of the runs [steps]; 10,000 steps take minutes."""
    deltas: tuple[float, ...] = (4.0, 8.0, 16.0)
    """Averaging windows: 1 - beta(t) = delta / (delta + t)."""
    noises: tuple[float, ...] = (0.001, 0.1, 1.0)
    """Irreducible risks (label noise)."""
    d: int = 100_000
    """Modes of the spectrum."""


@dataclass(frozen=True, kw_only=True)
class MemoryFlags(Output):
    alpha: float = 0.6
    """Data exponent."""
    beta: float = 0.3
    """Target exponent."""
    d: int = 2000
    """Modes of the spectrum."""
    noises: tuple[float, ...] = (0.0, 0.1)
    """Irreducible risks (label noise)."""
    batches: tuple[float, ...] = (1.0, 16.0)
    """Samples a step."""
    horizons: tuple[int, ...] = (300, 1200)
    """Lengths of the runs [steps]; 4,800 steps take ten minutes."""
    fresh: float = 0.05
    """Weight of the newest gradient in the update."""
    descents: int = 60
    """Gradient descents for the best path."""


@dataclass(frozen=True, kw_only=True)
class RareTokensFlags(Output):
    steps: int = 20_000
    """Steps of the table of logits."""
    rows: int = 64
    """Rows of the table: independent repetitions."""
    tokens: int = 16
    """Tokens of the table."""
    rarest: float = 0.002
    """Least frequency of a token of the table."""
    words: int = 512
    """Words of the generated language."""
    language_steps: int = 4000
    """Training steps on the language."""
    documents: int = 1
    """Documents of 64 tokens in each of these steps: with few, rare words are rare in a step, too."""
    seeds: int = 3
    """Seeds of the language model."""
    seed: int = 0
    """Seed of the table."""


@dataclass(frozen=True, kw_only=True)
class LimitFlags(FeaturesFlags):
    beta: float = 0.5
    v: int = 2000
    d: int = 500
    draws: int = 3
    """Number of random draws of the features to compare with."""
    seed: int = 0
    """Seed of the first draw."""


@dataclass(frozen=True, kw_only=True)
class PredictFlags(Output):
    spectrum: Path | None = None
    """Eigenvalues, and optionally the target's squared coordinates: json, npy, npz, or text with one or two columns."""
    alpha: float | None = None
    """Data exponent; default fitted to the spectrum."""
    beta: float | None = None
    """Target exponent; default fitted to the spectrum's rho."""
    limit: float = 0.0
    """Irreducible risk, not negative."""
    horizon: float = 1e6
    """Last time of the predicted curves [steps]."""
    batch: int = 1
    """Samples a step."""
    runs: tuple[Path, ...] = ()
    """Measured curves to compare with: run folders of one model size, or one ladder.jsonl."""
