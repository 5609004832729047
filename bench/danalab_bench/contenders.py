"""Optimizers under their names in the benchmark.

    adana:fused          an optimizer of the registry with one backend: fused, foreach, eager
    adana:bf16+8         with moments of fewer bytes: bf16+8, 8bit
    adana:graph          the same with its step count on the device, captured as a CUDA graph and replayed
    adamw                an optimizer of the registry with its default settings
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
from danalab.optim import optimizer_spec
from danalab_bench.timing import Work

BACKENDS: dict[str, dict[str, Any]] = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "eager": {"foreach": False, "fused": False},
    "graph": {"capturable": True, "fused": True},
    "bf16+8": {"state_dtype": "bf16+8"},
    "8bit": {"state_dtype": "8bit"},
}
REFERENCE = "adamw:fused"
MATRIX_PEER = "torch.Muon"
FOREACH_PEER = "adamw:foreach"
GRAPH_PEER = "adamw:graph"
PEERS = {"ademamix": "po.AdEMAMix"}
"""The library's version of optimizers that exist here too."""
LR = 1e-6
"""Small, so that weights stay finite after thousands of steps on the same gradients."""

TARGETS = {
    **dict.fromkeys(("adana:fused", "dana-mk4:fused"), 1.05),
    **dict.fromkeys(("adana", "dana-mk4"), 1.1),
    **dict.fromkeys(("dana-star:fused", "dana-star-mk4:fused", "dana-star", "dana-star-mk4", "ademamix"), 1.35),
}
"""Target ratios to the reference: 1.05, times 9/7 for rules that move nine words per parameter instead of seven."""


@dataclass(frozen=True)
class Contender:
    """One optimizer with one backend."""

    name: str
    build: Callable[[list[Tensor]], torch.optim.Optimizer]
    peer: str | None = None
    """Another contender to compare with, besides the reference."""
    graph: bool = False
    """Replayed as a CUDA graph."""

    def prepare(self, params: list[Tensor]) -> tuple[torch.optim.Optimizer, Work]:
        """The optimizer with its state initialised by one step, and the function that makes a step."""
        try:
            optimizer = self.build(params)
            step = captured(optimizer) if self.graph else optimizer.step
            if callable(train := getattr(optimizer, "train", None)):
                train()
            step()
        except (TypeError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(f"--opts {self.name}: {reason}") from error
        return optimizer, step


def contender(name: str, device: str) -> Contender:
    """The contender of that name."""
    library, dot, class_name = name.partition(".")
    if dot and library in ("torch", "po"):
        return Contender(name, _from_library(name, library, class_name))
    base, colon, backend = name.partition(":")
    if colon and backend not in BACKENDS:
        raise UserError(
            f"--opts {name}: unknown backend '{backend}'{nearest(backend, BACKENDS)}; known: {', '.join(BACKENDS)}"
        )
    if backend == "graph" and device != "cuda":
        raise UserError(f"--opts {name}: CUDA graphs need --device cuda")
    spec = optimizer_spec(base)
    if spec.closure or spec.hessian:
        raise UserError(f"--opts {name}: its step needs a model, and this benchmark has none")
    settings: dict[str, Any] = {k: v for k, v in BACKENDS.get(backend, {}).items() if k in spec.settings or v}
    unknown = [key for key in settings if key not in spec.settings]
    if unknown:
        have = [
            each for each, flags in BACKENDS.items() if all(key in spec.settings for key, on in flags.items() if on)
        ]
        raise UserError(f"--opts {name}: {spec.name} has no backend {backend}; it has: {', '.join(have) or 'none'}")
    if "horizon" in spec.settings:
        settings |= {"omega": 4.0, "horizon": 10_000}  # decay is part of the work

    def build(params: list[Tensor]) -> torch.optim.Optimizer:
        return spec.build(_groups(spec.name, params), lr=LR, **settings)

    if "ns_steps" in spec.settings:
        peer = MATRIX_PEER
    elif backend == "foreach" and name != FOREACH_PEER:
        peer = FOREACH_PEER
    elif backend == "graph" and name != GRAPH_PEER:
        peer = GRAPH_PEER
    else:
        peer = PEERS.get(spec.name)
    return Contender(f"{spec.name}:{backend}" if backend else spec.name, build, peer, backend == "graph")


def captured(optimizer: torch.optim.Optimizer) -> Work:
    """Capture the optimizer's step as a CUDA graph; returns the function that replays it.

    Steps on a side stream come first, as PyTorch's documentation requires: they compile and allocate, which is not
    possible during a capture.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    return graph.replay


def is_matrix_contender(entry: Contender) -> bool:
    """Whether it orthogonalises, which is slower by orders of magnitude."""
    return entry.peer == MATRIX_PEER or entry.name == MATRIX_PEER


def _groups(name: str, params: list[Tensor]) -> Any:
    """All parameters in one group, or two for optimizers that treat matrices separately."""
    if "ns_steps" not in optimizer_spec(name).settings:
        return params
    return [{"params": part, "use_muon": flag} for flag, part in _split(params).items() if part]


def _split(params: Sequence[Tensor]) -> dict[bool, list[Tensor]]:
    """Matrices, and the rest; the first parameter is the embedding."""
    return {True: [p for p in params[1:] if p.ndim == 2], False: [params[0], *(p for p in params[1:] if p.ndim != 2)]}


def _from_library(name: str, library: str, class_name: str) -> Callable[[list[Tensor]], torch.optim.Optimizer]:
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
        raise UserError(f"--opts {name}: {module.__name__} has no optimizer '{class_name}'{nearest(class_name, known)}")

    construct: Any = made  # each class takes arguments of its own

    def build(params: list[Tensor]) -> torch.optim.Optimizer:
        if class_name == "Muon" and library == "torch":
            return construct(_split(params)[True], lr=LR)
        if "Muon" in class_name:
            return construct([{"params": part, "use_muon": flag} for flag, part in _split(params).items()], lr=LR)
        return construct(params, lr=LR)

    return build
