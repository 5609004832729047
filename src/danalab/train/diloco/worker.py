"""DiLoCo: workers train independently for H steps, then an outer step averages their changes.

    worker k:   w_k <- theta;  H steps of any optimizer on its part of the data
    g     = mean over the present workers of (theta - w_k)
    m     <- mu m + g
    theta <- theta - lr (g + mu m)                               Nesterov momentum, as in torch.optim.SGD

A worker is a single process to the trainer. Workers only share a folder (`exchange`): each writes its weights
there, waits for the others, and computes the outer step itself, bit for bit like the others. A worker that dies, hangs
or is late is left out of the mean. In checkpoints, as in evaluation, `model.*` are the outer weights; `inner.*` are the
worker's own weights within a round, and `momentum.*` the outer momentum.

Source: Douillard et al. 2023, arXiv 2311.08105.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from danalab.errors import UserError
from danalab.models.decoder import Decoder
from danalab.optim.sharded import SavedTensor
from danalab.train.checkpoint import tensors
from danalab.train.config.run_spec import RunSpec
from danalab.train.diloco.exchange import Exchange
from danalab.train.parallel.strategy import ParallelStrategy
from danalab.train.parallel.world import World
from danalab.train.run.folder import RunFolder
from danalab.train.step.finite_guard import NonFiniteError
from danalab.train.system.signals import StopRequest

log = logging.getLogger(__name__)

INNER, MOMENTUM = "inner.", "momentum."


class DiLoCoWorker(ParallelStrategy):
    """The DiLoCo worker of this process. Outer weights and momentum are kept in host memory."""

    def __init__(self, spec: RunSpec, folder: RunFolder, world: World, stop: StopRequest):
        super().__init__(world)
        own: Any = spec.config  # with `DiLoCoSettings`, all filled in
        self._exchange = Exchange(spec.execution.run_dir / "diloco", world.worker, world.dp_size, own.diloco_patience)
        self._outer = OuterStep(own.diloco_lr, own.diloco_momentum)
        self._period, self._iterations = own.diloco_steps, spec.iterations
        self._store, self._stop = folder.store, stop
        self._theta: dict[str, Tensor] = {}
        self._momentum: dict[str, Tensor] = {}
        self._base = 0  # the step of the outer weights `theta`
        self._moved = False  # whether the model's weights differ from theta
        self._pending = False
        self._losses, self._steps = 0.0, 0
        self._scalars: dict[str, float] = {}

    @classmethod
    def build(cls, spec: RunSpec, folder: RunFolder, world: World, stop: StopRequest) -> DiLoCoWorker:
        return cls(spec, folder, world, stop)

    def wrap(self, model: Decoder, compute_dtype: torch.dtype | None) -> None:
        self._named = dict(model.named_parameters())
        self._reset_outer()

    def _reset_outer(self) -> None:
        """Set the outer weights to the model's, and the momentum to zero."""
        self._theta = {name: _host_copy(p) for name, p in self._named.items()}
        self._momentum = {name: torch.zeros_like(value) for name, value in self._theta.items()}

    # ---- the trainer's steps ----

    @property
    def pending(self) -> bool:
        """The round has not ended: the worker was stopped while it waited for the others."""
        return self._pending

    def begin(self, step: int) -> int:
        if self._pending:
            step = self._end_round(step)
        else:
            step = self._catch_up(step)
            self._exchange.announce(self._end_of(step))
        return step

    def after_step(self, step: int, loss: Tensor) -> int:
        self._moved = True
        self._losses, self._steps = self._losses + loss.detach().double(), self._steps + 1
        if step % self._period and step < self._iterations:
            return step
        return self._end_round(step)

    def _end_of(self, step: int) -> int:
        """The last step of the round of the step after `step`."""
        return min(self._iterations, (step // self._period + 1) * self._period)

    # ---- a round ----

    def _end_round(self, end: int) -> int:
        """Exchange weights and take the outer step; returns the step to continue from."""
        started, moved_before = time.monotonic(), self._exchange.bytes_moved
        if end not in self._exchange.decided():
            weights = {name: _host_copy(p) for name, p in self._named.items()}
            if not all(bool(torch.isfinite(value).all()) for value in weights.values()):
                raise NonFiniteError(f"worker {self._exchange.worker}: its weights are not finite after step {end}")
            self._exchange.deposit(end, weights, {"loss": float(self._losses) / max(self._steps, 1)})
        present = self._exchange.wait_for_others(end, lambda: bool(self._stop))
        self._pending = present is None
        if present is None:
            return end
        waited = time.monotonic() - started
        losses = self._make_outer_step(end, present)
        step = self._catch_up(end)
        self._scalars |= {
            "diloco/round_seconds": time.monotonic() - started,
            "diloco/wait": waited,
            "diloco/workers": float(len(present)),
            "diloco/bytes": float(self._exchange.bytes_moved - moved_before),
            "diloco/bytes_total": float(self._exchange.bytes_moved),
        }
        if losses:
            self._scalars["diloco/train_loss"] = sum(losses) / len(losses)
        self._losses, self._steps = 0.0, 0
        if step < self._iterations:
            self._exchange.announce(self._end_of(step))
        return step

    def _make_outer_step(self, end: int, present: list[int]) -> list[float]:
        """Compute theta at the end of a round; returns the mean losses of the workers that count, if known."""
        try:
            deposits = [self._exchange.weights_of(end, worker) for worker in present]
        except FileNotFoundError:  # an old round that is repeated: only its outcome is left
            self._take_outcome(end)
            return []
        norm, divergence = self._outer(self._theta, self._momentum, [weights for weights, _ in deposits])
        self._base = end
        self._to_theta()
        self._scalars = {"diloco/outer_grad_norm": norm, "diloco/divergence": divergence}
        own = self._exchange.worker
        if own not in present:
            log.warning("worker %d was too late for the round that ended at step %d; its work is left out", own, end)
        if own == min(present):
            absent = [worker for worker in range(self._exchange.workers) if worker not in present]
            if absent:
                log.warning("step %d: without %s, which did not report", end, ", ".join(f"worker {k}" for k in absent))
            saved = self._store.steps()  # a worker resumes from the second newest of these or a later one
            self._exchange.publish(end, self._stored_outer(), saved[-2] if len(saved) > 1 else 0)
        return [facts["loss"] for _, facts in deposits]

    def _catch_up(self, step: int) -> int:
        """The step to go on from: `step`, or the end of the newest round, where one went without this worker."""
        own, decided = self._exchange.worker, self._exchange.decided()
        missed = any(end > self._base and own not in present for end, present in decided.items())
        newest = self._exchange.newest_outcome()
        if newest is None or newest <= self._base:
            return step
        if not missed and self._exchange.has_outcome(self._end_of(step)):
            return step  # rounds in which its work counted are repeated: its optimizer state depends on them
        self._take_outcome(newest)
        log.warning("worker %d continues from step %d: the others are there, it was at step %d", own, newest, step)
        return newest

    def _take_outcome(self, end: int) -> None:
        """Set theta and momentum to the published outcome of a round."""
        try:
            read = self._exchange.outcome(end)
        except FileNotFoundError as error:
            raise UserError(
                f"{self._exchange.folder}: the outer weights of step {end} were deleted, and without them worker "
                f"{self._exchange.worker} cannot continue; take another --run-dir with --resume-from this run"
            ) from error
        for name in self._theta:
            self._theta[name].copy_(read(tensors.MODEL + name))
            self._momentum[name].copy_(read(MOMENTUM + name))
        self._base = end
        self._to_theta()

    @torch.no_grad()
    def _to_theta(self) -> None:
        for name, p in self._named.items():
            p.copy_(self._theta[name])
        self._moved = False

    # ---- evaluation, rows, checkpoints ----

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        if not self._moved:
            yield
            return
        own = {name: p.detach().clone() for name, p in self._named.items()}
        self._to_theta()
        try:
            yield
        finally:
            with torch.no_grad():
                for name, p in self._named.items():
                    p.copy_(own[name])
            self._moved = True

    def scalars(self) -> dict[str, float]:
        values, self._scalars = self._scalars, {}
        return values

    def _stored_outer(self) -> dict[str, Tensor]:
        return {tensors.MODEL + name: value for name, value in self._theta.items()} | {
            MOMENTUM + name: value for name, value in self._momentum.items()
        }

    def stored(self, values: Mapping[str, SavedTensor]) -> Mapping[str, SavedTensor]:
        inner = {INNER + name: p.detach() for name, p in self._named.items()}
        return {**values, **self._stored_outer(), **inner}

    def state_dict(self) -> dict[str, Any]:
        return {
            "base": self._base,
            "moved": self._moved,
            "pending": self._pending,
            "losses": float(self._losses),
            "steps": self._steps,
            "bytes": self._exchange.bytes_moved,
            "found": self._scalars,
        }

    def restore(self, path: Path, state: Mapping[str, Any] | None, step: int, *, own: bool) -> int:
        self._reset_outer()
        self._base = step
        if state is None:  # not a checkpoint of DiLoCo
            return step
        momentum = {MOMENTUM + name: value for name, value in self._momentum.items()}
        tensors.read_named(path, momentum)
        self._base = state["base"]
        if not own:  # another worker's: start from the beginning of the round
            return self._base
        inner = {INNER + name: p.detach() for name, p in self._named.items()}
        tensors.read_named(path, inner)
        self._moved, self._pending = state["moved"], state["pending"]
        self._losses, self._steps = state["losses"], state["steps"]
        self._exchange.bytes_moved, self._scalars = state["bytes"], state["found"]
        return step


def _host_copy(p: Tensor) -> Tensor:
    return p.detach().to("cpu", torch.float32, copy=True).contiguous()


@dataclass(frozen=True)
class OuterStep:
    """SGD with Nesterov's momentum on the mean difference."""

    lr: float
    momentum: float

    def __call__(
        self, theta: Mapping[str, Tensor], momentum: Mapping[str, Tensor], workers: Sequence[Callable[[str], Tensor]]
    ) -> tuple[float, float]:
        """Update `theta` (weights by name, float32 on the CPU) and `momentum` in place, from the weights of `workers`.

        Each of `workers` gives a name's weights, one tensor at a time. Sums are taken in their order and in float64, so
        that every worker gets the same result; a single worker with lr 1 and momentum 0 gets exactly its own weights.
        Returns the Euclidean norm of g, the mean difference, and the workers' root-mean-square distance from their mean
        in units of that norm (0: all weights are equal).
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
        return norm, math.sqrt(max(spread, 0.0)) / norm if norm else 0.0
