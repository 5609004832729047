"""The outer step as a function of the workers' weights; on the CPU, in float64, tensor by tensor."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Outcome:
    """Statistics of an outer step."""

    gradient_norm: float
    """Euclidean norm of g, the mean difference of all weights."""
    divergence: float
    """Root-mean-square distance of the workers from their mean, in units of the norm of g; 0: all weights are equal."""


@dataclass(frozen=True)
class OuterStep:
    """SGD with Nesterov's momentum on the mean difference."""

    lr: float = 0.7
    momentum: float = 0.9

    def __call__(
        self,
        theta: Mapping[str, Tensor],
        momentum: Mapping[str, Tensor],
        workers: Sequence[Callable[[str], Tensor]],
    ) -> Outcome:
        """Update `theta` and `momentum`, in place, from the weights of `workers`.

        Sums are taken in the order of `workers` and in float64, so that every worker gets the same result; a single
        worker with lr 1 and momentum 0 gets exactly its own weights.

        Args:
            theta: outer weights by name, float32 on the CPU.
            momentum: m, likewise.
            workers: for each present worker, name -> weights; one tensor at a time is in memory.
        """
        mean_square = spread = 0.0
        for name, outer in theta.items():
            before = outer.double()
            total, squares = torch.zeros_like(before), 0.0
            for weights in workers:
                difference = before - weights(name).double()
                total += difference
                squares += float(difference.square().sum())
            g = total / len(workers)
            norm = float(g.square().sum())
            mean_square += norm
            spread += squares / len(workers) - norm
            m = momentum[name].double().mul_(self.momentum).add_(g)
            momentum[name].copy_(m)
            outer.copy_(before - self.lr * (g + self.momentum * m))
        norm = math.sqrt(mean_square)
        return Outcome(norm, math.sqrt(max(spread, 0.0)) / norm if norm else 0.0)
