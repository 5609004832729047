"""Optimizers under their names in the benchmark.

    adana:fused          an optimizer of danalab.optim with one back end: fused, eager
    adana:moments        with moments in bfloat16, rounded at random
    adamw                an optimizer of danalab.optim with its default settings
    torch.Muon           a class of torch.optim
    po.AdEMAMix          a class of pytorch-optimizer (extra `baselines`)

torch.Muon accepts only matrices, so it is measured on those of the model; our Muon variants also update the rest.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from danalab.errors import MissingExtra, UserError, nearest
from danalab.optim import build_optimizer, settings_of
from danalab.optimizer_facts import facts_of
from danalab_bench.timing import Work

BACKENDS: dict[str, dict[str, Any]] = {
    "fused": {"fused": True},
    "eager": {"fused": False},
    "moments": {"stochastic_rounding": "moments"},
}
REFERENCE = "adamw:fused"
MATRIX_PEER = "torch.Muon"
PEERS = {"ademamix": "po.AdEMAMix"}
"""The library's version of optimizers that exist here too."""
LR = 1e-6
"""Small, so that weights stay finite after thousands of steps on the same gradients."""

TARGETS = {
    **dict.fromkeys(("adana:fused", "dana-mk4:fused"), 1.05),
    **dict.fromkeys(("adana", "dana-mk4"), 1.1),
    **dict.fromkeys(
        ("dana-star:fused", "dana-star-mk4:fused", "dana-star", "dana-star-mk4", "ademamix"), 1.35
    ),
}
"""Target ratios to the reference: 1.05, times 9/7 for rules that move nine words per parameter instead of seven."""


@dataclass(frozen=True)
class Contender:
    """One optimizer with one backend."""

    name: str
    build: Callable[[list[Tensor]], torch.optim.Optimizer]
    peer: str | None = None
    """Another contender to compare with, besides the reference."""

    def prepare(self, params: list[Tensor]) -> tuple[torch.optim.Optimizer, Work]:
        """The optimizer with its state initialised by one step, and the function that makes a step."""
        try:
            optimizer = self.build(params)
            step = optimizer.step
            if callable(train := getattr(optimizer, "train", None)):
                train()
            step()
        except (TypeError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(f"--opts {self.name}: {reason}") from error
        return optimizer, step


def contender(name: str) -> Contender:
    """The contender of that name."""
    library, dot, class_name = name.partition(".")
    if dot and library in ("torch", "po"):
        return Contender(name, _from_library(name, library, class_name))
    base, colon, backend = name.partition(":")
    if colon and backend not in BACKENDS:
        raise UserError(
            f"--opts {name}: unknown backend '{backend}'{nearest(backend, BACKENDS)}; known: {', '.join(BACKENDS)}"
        )
    known = settings_of(base)
    if "hessian_interval" in known:
        raise UserError(f"--opts {name}: its step needs a model, and this benchmark has none")
    settings = BACKENDS.get(backend, {})
    unknown = [key for key in settings if key not in known]
    if unknown:
        raise UserError(f"--opts {name}: {base} has no setting {unknown[0]}")
    if "horizon" in known:
        settings = {**settings, "omega": 4.0, "horizon": 10_000}  # decay is part of the work

    def build(params: list[Tensor]) -> torch.optim.Optimizer:
        return build_optimizer(base, _groups(base, params), lr=LR, **settings)

    return Contender(name, build, MATRIX_PEER if orthogonalises(base) else PEERS.get(base))


def orthogonalises(name: str) -> bool:
    """Whether an optimizer treats matrices separately."""
    return facts_of(name).orthogonalises


def is_matrix_contender(entry: Contender) -> bool:
    """Whether it orthogonalises, which is slower by orders of magnitude."""
    return entry.peer == MATRIX_PEER or entry.name == MATRIX_PEER


def _groups(name: str, params: list[Tensor]) -> Any:
    """All parameters in one group, or two for optimizers that treat matrices separately."""
    if not orthogonalises(name):
        return params
    return [{"params": part, "use_muon": flag} for flag, part in _split(params).items() if part]


def _split(params: Sequence[Tensor]) -> dict[bool, list[Tensor]]:
    """Matrices, and the rest; the first parameter is the embedding."""
    return {
        True: [p for p in params[1:] if p.ndim == 2],
        False: [params[0], *(p for p in params[1:] if p.ndim != 2)],
    }


def _from_library(
    name: str, library: str, class_name: str
) -> Callable[[list[Tensor]], torch.optim.Optimizer]:
    if library == "torch":
        module: Any = torch.optim
    else:
        try:
            import pytorch_optimizer as module
        except ImportError as error:
            raise MissingExtra("pytorch_optimizer", f"--opts {name}") from error
    made: Any = getattr(module, class_name, None)
    if not (inspect.isclass(made) and issubclass(made, torch.optim.Optimizer)):
        known = [key for key, value in vars(module).items() if inspect.isclass(value)]
        raise UserError(
            f"--opts {name}: {module.__name__} has no optimizer '{class_name}'{nearest(class_name, known)}"
        )

    construct: Any = made  # each class takes arguments of its own

    def build(params: list[Tensor]) -> torch.optim.Optimizer:
        if class_name == "Muon" and library == "torch":
            return construct(_split(params)[True], lr=LR)
        if "Muon" in class_name:
            return construct(
                [{"params": part, "use_muon": flag} for flag, part in _split(params).items()], lr=LR
            )
        return construct(params, lr=LR)

    return build
