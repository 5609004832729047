"""DiLoCo: workers train independently for H steps, then an outer step averages their changes.

    worker k:   w_k <- theta;  H steps of any optimizer on its part of the data
    g     = mean over the present workers of (theta - w_k)
    m     <- mu m + g
    theta <- theta - lr (g + mu m)                               Nesterov momentum, as in torch.optim.SGD

A worker is a single process to the trainer. Each writes its weights to a folder, waits for the others, and computes the
outer step itself, bit for bit like the others. A worker that dies, hangs or is late is left out of the mean. In
checkpoints, as in evaluation, `model.*` are the outer weights; `inner.*` are the worker's own weights within a round,
and `momentum.*` the outer momentum.

The shared folder, `runs/NAME/diloco/`, is the only connection between workers; there is no leader, any may die:

    round-00000500/worker-3.safetensors   weights of worker 3 after step 500, complete (renamed into place)
                   present.json           workers that count in this round; written once, by the first worker that sees
                                          all or times out (a hard link: only one writer succeeds)
                   outcome.safetensors    outer weights and momentum after the round, for workers that return later
    coming/worker-3.json                  the round that worker 3 is working for: the others wait for it

The others do not wait for a worker that missed the previous round, unless it announced this one.

Source: Douillard et al. 2023, arXiv 2311.08105.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from danalab.errors import UserError
from danalab.files import read_state, write_json
from danalab.models.decoder import Decoder
from danalab.train.checkpoint import tensors
from danalab.train.config.train_config import TrainConfig
from danalab.train.parallel.strategy import ParallelStrategy
from danalab.train.parallel.world import World
from danalab.train.run.folder import RunFolder
from danalab.train.step.finite_guard import NonFiniteError
from danalab.train.system.signals import StopRequest

log = logging.getLogger(__name__)

INNER, MOMENTUM = "inner.", "momentum."


class DiLoCoWorker(ParallelStrategy):
    """The DiLoCo worker of this process. Outer weights and momentum are kept in host memory."""

    def __init__(self, spec: TrainConfig, folder: RunFolder, world: World, stop: StopRequest):
        super().__init__(world)
        own: Any = spec  # with `DiLoCoSettings`, all filled in
        self._exchange = Exchange(spec.run_dir / "diloco", world.worker, world.dp_size, own.diloco_patience)
        self._outer = OuterStep(own.diloco_lr, own.diloco_momentum)
        self._period, self._iterations = own.diloco_steps, spec.last_step
        self._store, self._stop = folder.store, stop
        self._theta: dict[str, Tensor] = {}
        self._momentum: dict[str, Tensor] = {}
        self._base = 0  # the step of the outer weights `theta`
        self._moved = False  # whether the model's weights differ from theta
        self._pending = False
        self._losses, self._steps = 0.0, 0
        self._scalars: dict[str, float] = {}

    @classmethod
    def build(cls, spec: TrainConfig, folder: RunFolder, world: World, stop: StopRequest) -> DiLoCoWorker:
        return cls(spec, folder, world, stop)

    @staticmethod
    def rank_spec(spec: TrainConfig, world: World) -> TrainConfig:
        """The run of one worker; without a checkpoint, a later one starts from worker 0's, which owns the run."""
        named = spec.resume_from
        if named is not None and (spec.run_dir / "checkpoints").resolve() in named.resolve().parents:
            raise UserError(
                f"--resume-from {named}: DiLoCo's workers cannot go back together; take another --run-dir"
            )
        if world.worker == 0:
            return spec
        own = replace(spec, wandb=False, tensorboard=False)
        if named is None and RunFolder(spec.run_dir).store.steps():
            own = replace(own, resume_from=spec.run_dir)
        return own

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
                raise NonFiniteError(
                    f"worker {self._exchange.worker}: its weights are not finite after step {end}"
                )
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
            log.warning(
                "worker %d was too late for the round that ended at step %d; its work is left out", own, end
            )
        if own == min(present):
            absent = [worker for worker in range(self._exchange.workers) if worker not in present]
            if absent:
                log.warning(
                    "step %d: without %s, which did not report", end, ", ".join(f"worker {k}" for k in absent)
                )
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
        log.warning(
            "worker %d continues from step %d: the others are there, it was at step %d", own, newest, step
        )
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

    def stored(self, state: dict[str, Any]) -> dict[str, Any]:
        inner = {name: p.detach() for name, p in self._named.items()}
        model = {**state["model"], **self._theta}
        return {**state, "model": model, "momentum": self._momentum, "inner": inner}

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
        self,
        theta: Mapping[str, Tensor],
        momentum: Mapping[str, Tensor],
        workers: Sequence[Callable[[str], Tensor]],
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


# ---- the shared folder ----

Step: Any = Annotated[int, Field(ge=0, strict=True)]
"""A file of one number."""
Workers: Any = list[Step]

_ROUND = re.compile(r"round-(\d{8,})")
_PRESENT, _OUTCOME = "present.json", "outcome.safetensors"
FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS = 0.002, 0.5


class Exchange:
    """A worker's access to the shared folder, created at its first write; a round is named by the step that ends it.

    A round waits `patience` [s] for expected workers.
    """

    def __init__(self, folder: Path, worker: int, workers: int, patience: float):
        self.folder = folder
        self.worker, self.workers, self.patience = worker, workers, patience
        self.bytes_moved = 0
        """Bytes written and read by this worker."""

    # ---- past rounds ----

    def decided(self) -> dict[int, list[int]]:
        """Decided rounds -> workers that count in them, in order."""
        return {end: present for end in self._rounds() if (present := self._present(end)) is not None}

    def newest_outcome(self) -> int | None:
        """The newest round with outer weights in the folder; None if there is none."""
        return max((end for end in self._rounds() if self.has_outcome(end)), default=None)

    def has_outcome(self, end: int) -> bool:
        """Whether the outer weights after a round are in the folder."""
        return (self._round(end) / _OUTCOME).is_file()

    def _rounds(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        return sorted(
            int(match[1]) for path in self.folder.iterdir() if (match := _ROUND.fullmatch(path.name))
        )

    # ---- a round ----

    def announce(self, end: int) -> None:
        """Announce that this worker is working for the round that ends at step `end`."""
        (self.folder / "coming").mkdir(parents=True, exist_ok=True)
        write_json(self.folder / "coming" / f"worker-{self.worker}.json", end)

    def deposit(self, end: int, weights: Mapping[str, Tensor], facts: Mapping[str, float]) -> None:
        """Write this worker's weights (contiguous, on the CPU) and numbers about them, or raise UserError."""
        metadata = {name: repr(value) for name, value in facts.items()}
        self._write(self._file(end, self.worker), weights, metadata)

    def wait_for_others(self, end: int, should_stop: Callable[[], bool]) -> list[int] | None:
        """Wait for the others and agree on the workers that count; None if `should_stop` became true meanwhile."""
        deadline, pause = time.monotonic() + self.patience, FIRST_POLL_SECONDS
        regulars = self._counted_before(end)
        while (present := self._present(end)) is None:
            there = [worker for worker in range(self.workers) if self._file(end, worker).is_file()]
            coming = {worker for worker in range(self.workers) if self._coming(worker) == end}
            if regulars | coming <= set(there) or time.monotonic() > deadline:
                self._decide(end, there)
                continue
            if should_stop():
                return None
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_POLL_SECONDS)
        return present

    def _counted_before(self, end: int) -> set[int]:
        """Workers that counted in the previous round; at first all."""
        everyone = set(range(self.workers))
        for other in reversed([other for other in self._rounds() if other < end]):
            if (present := self._present(other)) is not None:
                return everyone & set(present)
        return everyone

    def _coming(self, worker: int) -> int | None:
        with contextlib.suppress(UserError):
            return read_state(Step, self.folder / "coming" / f"worker-{worker}.json")
        return None

    def _decide(self, end: int, present: list[int]) -> None:
        target = self._round(end) / _PRESENT
        own = target.with_name(f".{_PRESENT}.{self.worker}")
        write_json(own, present)
        with contextlib.suppress(FileExistsError):  # another worker was faster; its decision holds
            os.link(own, target)
        own.unlink()

    def _present(self, end: int) -> list[int] | None:
        file = self._round(end) / _PRESENT
        if not file.is_file():
            return None
        return read_state(Workers, file)

    def weights_of(self, end: int, worker: int) -> tuple[Callable[[str], Tensor], dict[str, float]]:
        """(name -> weights, facts) that a worker wrote; FileNotFoundError once an old round's files were deleted."""
        return self._read(self._file(end, worker))

    # ---- outcomes ----

    def publish(self, end: int, outcome: Mapping[str, Tensor], keep_from: int) -> None:
        """Write the outer weights for workers that return later; delete rounds before `keep_from` but the last two."""
        self._write(self._round(end) / _OUTCOME, outcome, {})
        for old in self._rounds()[:-2]:
            # The decision is kept: it tells a returning worker which rounds it has missed.
            gone = [*self._round(old).glob("worker-*.safetensors")]
            gone += [self._round(old) / _OUTCOME] if old < keep_from else []
            for file in gone:
                file.unlink(missing_ok=True)

    def outcome(self, end: int) -> Callable[[str], Tensor]:
        """Name -> outer weights or momentum after a round; FileNotFoundError if the folder does not have them."""
        return self._read(self._round(end) / _OUTCOME)[0]

    # ---- files ----

    def _round(self, end: int) -> Path:
        return self.folder / f"round-{end:08d}"

    def _file(self, end: int, worker: int) -> Path:
        return self._round(end) / f"worker-{worker}.safetensors"

    def _write(self, file: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
        from safetensors.torch import save_file

        partial = file.with_name(f".{file.name}.{self.worker}")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(file.parent).free
            if free < sum(tensor.nbytes for tensor in tensors.values()):
                raise UserError(
                    f"{file}: the disk is full; the workers of a DiLoCo run exchange their weights there"
                )
            save_file(dict(tensors), partial, metadata=metadata)
            os.replace(partial, file)
        except OSError as error:
            raise UserError(f"{file}: cannot be written: {error.strerror or error}") from error
        self.bytes_moved += file.stat().st_size

    def _read(self, file: Path) -> tuple[Callable[[str], Tensor], dict[str, Any]]:
        from safetensors import safe_open

        size = file.stat().st_size  # FileNotFoundError
        opened = safe_open(file, "pt")
        self.bytes_moved += size
        facts = {name: float(value) for name, value in (opened.metadata() or {}).items()}
        return opened.get_tensor, facts
