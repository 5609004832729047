"""Flags of the `danalab theory` verbs: a verb's are the model's, the output's, and the arguments of its study."""

import ast
from collections.abc import Callable
from dataclasses import dataclass
from inspect import get_annotations
from pathlib import Path
from typing import Any, TypeVar

from typing_extensions import dataclass_transform

import danalab
from danalab.cli._shared.options import JsonFlags
from danalab.optim.settings import DanaMK4Settings, LogTime

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True)
def arguments_of(module: str, *functions: str) -> Callable[[type[T]], type[T]]:
    """Make flags of a class whose fields have the defaults of arguments of `danalab.theory`'s functions.

    They are read from the source: to import a study would take seconds, and JAX.
    """
    file = Path(danalab.__file__).parent.joinpath("theory", *module.split(".")).with_suffix(".py")
    body = ast.parse(file.read_text(encoding="utf-8")).body
    defaults: dict[str, str] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name in functions:
            own = node.args
            named: list[tuple[ast.arg, ast.expr | None]] = [*zip(own.args[::-1], own.defaults[::-1], strict=False)]
            named += zip(own.kwonlyargs, own.kw_defaults, strict=True)
            defaults |= {name.arg: ast.unparse(value) for name, value in named if value is not None}
    known = {"LogTime": LogTime, "DanaMK4Settings": DanaMK4Settings}

    def decorate(cls: type[T]) -> type[T]:
        annotated = {name: kind for base in reversed(cls.__mro__) for name, kind in get_annotations(base).items()}
        for name in annotated.keys() & defaults.keys():
            if name not in vars(cls):
                cls.__annotations__.setdefault(name, annotated[name])
                setattr(cls, name, eval(defaults[name], known))
        return dataclass(frozen=True, kw_only=True)(cls)

    return decorate


@dataclass(frozen=True, kw_only=True)
class Output(JsonFlags):
    out: Path = Path("theory")
    """Folder for the figure (png), its curves (npz) and its parameters (json)."""


@dataclass(frozen=True, kw_only=True)
class FeaturesFlags(Output):
    alpha: float = 1.0
    """How fast the data's variances fall: the j-th eigenvalue is about j^(-2 alpha)."""
    beta: float = 0.3
    """How fast the target falls over these directions; 2 (alpha + beta) must exceed 1."""
    v: int = 800
    """Dimension of a sample, at least d."""
    d: int = 200
    """Number of parameters; with experts, of each expert."""

    def model(self) -> Any:
        """The power-law random features model."""
        from danalab.theory.problem import PLRF

        return PLRF(self.alpha, self.beta, self.v, self.d)

    def settings(self) -> dict[str, Any]:
        """The arguments of the study."""
        return {name: value for name, value in vars(self).items() if name not in vars(FeaturesFlags())}


@arguments_of("studies.races", "moe")
class ExpertFlags(FeaturesFlags):
    v: int = 200
    d: int = 50
    experts: int
    """Number of experts."""
    zeta: float
    """Expert probabilities are proportional to i^-zeta."""
    batch: int
    """Samples per step."""


@arguments_of("studies.features", "plrf_study")
class PLRFFlags(FeaturesFlags):
    beta: float = 0.5
    v: int = 2000
    d: int = 500
    batch: int
    """Samples per step."""
    steps: int
    """Length of the run [steps]."""
    runs: int
    """Random runs of each algorithm, to compare with the exact curve."""
    h: float
    """Step size of the numerical integration, in log(1 + t)."""
    seed: int
    """Seed of the features and of the samples."""


@arguments_of("studies.phases", "phase_diagram", "compute_frontier")
class PhaseFlags(Output):
    alpha: float = 1.0
    """alpha of the compute-optimal frontier: the data's j-th eigenvalue is about j^(-2 alpha)."""
    beta: float = 0.3
    """beta of the compute-optimal frontier: how fast the target falls over these directions."""
    sizes: int = 11
    """Number of sizes d = 100, 200, 400, ... of the frontier."""
    points: int
    """Grid points of the phase diagram along each axis."""
    h: float
    """Step size of the numerical integration, in log(1 + t)."""


@arguments_of("studies.races", "hummingbird")
class HummingbirdFlags(ExpertFlags):
    v: int = 800
    d: int = 200
    steps: int
    """Length of the run [steps]."""
    kappas: tuple[float, ...] | None
    """Values of kappa, which damps the momentum, between 0 and 1; default 0, 0.1, ..., 1."""
    lr: float
    """Learning rate of the Dana family and of Adam."""
    clipsnr: float
    """Largest signal-to-noise ratio of the momentum in the MK4 optimizers."""
    delta: float
    """Averaging window: 1 - beta(t) = delta / (delta + t)."""
    noise: float
    """Scale of the label noise (Student's t with 3 degrees of freedom)."""
    seed: int
    """Seed of the features and of the samples."""


@arguments_of("studies.races", "moe")
class MoEFlags(ExpertFlags):
    steps: int
    """Length of the run [steps]."""
    kappas: tuple[float, ...]
    """Values of kappa, which damps the momentum."""
    lr: float
    """Learning rate of all optimizers."""
    clipsnr: float
    """Largest signal-to-noise ratio of the momentum in the MK4 optimizers."""
    noise: float
    """Scale of the label noise (Student's t with 3 degrees of freedom)."""
    seeds: int
    """Number of repetitions, each with other features and samples."""


@arguments_of("studies.tau_statistics", "compute")
class TauFlags(ExpertFlags):
    steps: int
    """Length of the run [steps]; tau is read at this time and at its halves."""
    kappa: float
    """kappa, which damps the momentum."""
    synthetic_steps: int
    """Steps of the synthetic gradients."""
    seed: int
    """Seed of the synthetic gradients."""


@arguments_of("studies.features", "schedule_study")
class ScheduleFlags(FeaturesFlags):
    v: int = 4000
    d: int = 1000
    batch: int
    """Samples per step."""
    horizon: float
    """Last step of the curves."""
    points: int
    """Number of values of kappa."""
    h: float
    """Step size of the numerical integration, in log(1 + t)."""


@arguments_of("studies.cooldown", "compute")
class CooldownFlags(Output):
    horizons: tuple[int, ...]
    """Lengths of the runs [steps]; 10,000 steps take minutes."""
    deltas: tuple[float, ...]
    """Averaging windows: 1 - beta(t) = delta / (delta + t)."""
    noises: tuple[float, ...]
    """Levels of label noise: the loss that no weights can avoid."""
    d: int
    """Number of eigenvalues."""


@arguments_of("studies.memory", "compute")
class MemoryFlags(Output):
    alpha: float
    """How fast the data's variances fall: the j-th eigenvalue is about j^(-2 alpha)."""
    beta: float
    """How fast the target falls over these directions."""
    d: int
    """Number of eigenvalues."""
    noises: tuple[float, ...]
    """Levels of label noise: the loss that no weights can avoid."""
    batches: tuple[float, ...]
    """Samples per step."""
    horizons: tuple[int, ...]
    """Lengths of the runs [steps]; 4,800 steps take ten minutes."""
    fresh: float
    """Weight of the newest gradient in the update."""
    descents: int
    """Steps of the search for the best path of all."""


@arguments_of("studies.rare_tokens", "compute")
class RareTokensFlags(Output):
    steps: int
    """Steps of the table of logits."""
    rows: int
    """Rows of the table: independent repetitions."""
    tokens: int
    """Tokens of the table, each with a frequency of its own."""
    rarest: float
    """Least frequency of a token of the table."""
    words: int = 512
    """Words of the generated language."""
    language_steps: int
    """Training steps on the language."""
    documents: int
    """Documents of 64 tokens in each of these steps: with few, rare words are rare in a step, too."""
    seeds: int
    """Seeds of the language model."""
    seed: int
    """Seed of the table."""


@arguments_of("studies.features", "limit_study")
class LimitFlags(FeaturesFlags):
    beta: float = 0.5
    v: int = 2000
    d: int = 500
    draws: int
    """Number of random draws of the features to compare with."""
    seed: int
    """Seed of the first draw."""


@arguments_of("exponents", "predict")
class PredictFlags(Output):
    spectrum: Path | None = None
    """Eigenvalues, and optionally the target's squared coordinates: json, npy, npz, or text with one or two columns."""
    alpha: float | None
    """How fast the eigenvalues fall; default fitted to the spectrum."""
    beta: float | None
    """How fast the target falls over them; default fitted to the spectrum's second column."""
    limit: float
    """Loss that no weights can avoid; not negative."""
    horizon: float
    """Last step of the predicted curves."""
    batch: int
    """Samples per step."""
    runs: tuple[Path, ...] = ()
    """Measured curves to compare with: run folders of one model size, or one ladder.jsonl."""
