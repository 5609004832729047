"""The studies of `danalab theory`: the flags of each, which are its parameters, and the function that computes it.

A study is imported when it is computed: it takes seconds, and JAX.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from danalab.optimizer_facts import DELTA
from danalab.train.config.flags import JsonFlags, setting


@dataclass(frozen=True, kw_only=True)
class StudyFlags(JsonFlags):
    """The parameters of a study; the docstring is its help."""

    out: Path = setting(
        Path("theory"), "Folder for the figure (png), its curves (npz) and its parameters (json)."
    )

    def settings(self) -> dict[str, Any]:
        """The study's own parameters."""
        return {name: value for name, value in vars(self).items() if name not in ("out", "json")}


@dataclass(frozen=True, kw_only=True)
class FeaturesFlags(StudyFlags):
    """The power-law random features model."""

    alpha: float = setting(
        1.0, "How fast the data's variances fall: the j-th eigenvalue is about j^(-2 alpha)."
    )
    beta: float = setting(
        0.3, "How fast the target falls over these directions; 2 (alpha + beta) must exceed 1."
    )
    v: int = setting(800, "Dimension of a sample, at least d.")
    d: int = setting(200, "Number of parameters; with experts, of each expert.")


@dataclass(frozen=True, kw_only=True)
class ExpertFlags(FeaturesFlags):
    """The features model, and experts of unequal probability."""

    v: int = 200
    d: int = 50
    experts: int = setting(32, "Number of experts.")
    zeta: float = setting(1.5, "Expert probabilities are proportional to i^-zeta.")
    batch: int = setting(8, "Samples per step.")


@dataclass(frozen=True, kw_only=True)
class PLRFFlags(FeaturesFlags):
    """How the loss of five optimizers falls over time: computed exactly, and simulated with noise."""

    beta: float = 0.5
    v: int = 2000
    d: int = 500
    batch: int = setting(1, "Samples per step.")
    steps: int = setting(30_000, "Length of the run [steps].")
    runs: int = setting(8, "Random runs of each algorithm, to compare with the exact curve.")
    h: float = setting(1e-2, "Step size of the numerical integration, in log(1 + t).")
    seed: int = setting(0, "Seed of the features and of the samples.")


@dataclass(frozen=True, kw_only=True)
class PhaseFlags(StudyFlags):
    """Which part of the loss dominates for which data (phases), and how size and steps share compute best."""

    alpha: float = setting(
        1.0, "alpha of the compute-optimal frontier: the data's j-th eigenvalue is about j^(-2 alpha)."
    )
    beta: float = setting(
        0.3, "beta of the compute-optimal frontier: how fast the target falls over these directions."
    )
    sizes: int = setting(11, "Number of sizes d = 100, 200, 400, ... of the frontier.")
    points: int = setting(121, "Grid points of the phase diagram along each axis.")
    h: float = setting(1e-2, "Step size of the numerical integration, in log(1 + t).")


@dataclass(frozen=True, kw_only=True)
class HummingbirdFlags(ExpertFlags):
    """The loss over time for several kappas: with too small a kappa it falls fast and then rises."""

    v: int = 800
    d: int = 200
    experts: int = 1
    zeta: float = 0.5
    batch: int = 10
    steps: int = setting(16_000, "Length of the run [steps].")
    kappas: tuple[float, ...] | None = setting(
        None, "Values of kappa, which damps the momentum, between 0 and 1; default 0, 0.1, ..., 1."
    )
    lr: float = setting(0.003, "Learning rate of the Dana family and of Adam.")
    clipsnr: float = setting(0.5, "Largest signal-to-noise ratio of the momentum in the MK4 optimizers.")
    delta: float = setting(DELTA, "Averaging window: 1 - beta(t) = delta / (delta + t).")
    noise: float = setting(0.0, "Scale of the label noise (Student's t with 3 degrees of freedom).")
    seed: int = setting(0, "Seed of the features and of the samples.")


@dataclass(frozen=True, kw_only=True)
class MoEFlags(ExpertFlags):
    """Experts that rarely receive a gradient: the total loss, and each expert in its own number of steps."""

    steps: int = setting(10_000, "Length of the run [steps].")
    kappas: tuple[float, ...] = setting((0.5, 0.75, 1.0), "Values of kappa, which damps the momentum.")
    lr: float = setting(0.03, "Learning rate of all optimizers.")
    clipsnr: float = setting(2.0, "Largest signal-to-noise ratio of the momentum in the MK4 optimizers.")
    noise: float = setting(0.0, "Scale of the label noise (Student's t with 3 degrees of freedom).")
    seeds: int = setting(3, "Number of repetitions, each with other features and samples.")


@dataclass(frozen=True, kw_only=True)
class TauFlags(ExpertFlags):
    """How well Dana-Star's tau estimates how often a weight receives a gradient."""

    steps: int = setting(16_000, "Length of the run [steps]; tau is read at this time and at its halves.")
    kappa: float = setting(0.75, "kappa, which damps the momentum.")
    synthetic_steps: int = setting(20_000, "Steps of the synthetic gradients.")
    seed: int = setting(0, "Seed of the synthetic gradients.")


@dataclass(frozen=True, kw_only=True)
class ScheduleFlags(FeaturesFlags):
    """How weight and memory of the momentum grow over time, and which kappa gives the lowest loss."""

    v: int = 4000
    d: int = 1000
    batch: int = setting(1, "Samples per step.")
    horizon: float = setting(1e7, "Last step of the curves.")
    points: int = setting(41, "Number of values of kappa.")
    h: float = setting(1e-2, "Step size of the numerical integration, in log(1 + t).")


@dataclass(frozen=True, kw_only=True)
class LimitFlags(FeaturesFlags):
    """The loss that remains after endless training: formulas compared with random draws."""

    beta: float = 0.5
    v: int = 2000
    d: int = 500
    draws: int = setting(3, "Number of random draws of the features to compare with.")
    seed: int = setting(0, "Seed of the first draw.")


STUDIES: dict[str, tuple[type[StudyFlags], str]] = {
    "plrf": (PLRFFlags, "features:plrf_study"),
    "phases": (PhaseFlags, "phases:compute"),
    "hummingbird": (HummingbirdFlags, "races:hummingbird_study"),
    "moe": (MoEFlags, "races:moe_study"),
    "tau": (TauFlags, "tau_statistics:compute"),
    "schedules": (ScheduleFlags, "features:schedule_study"),
    "limit": (LimitFlags, "features:limit_study"),
}
"""Name -> its parameters, and the function in danalab.theory that makes one study of them, or several."""
