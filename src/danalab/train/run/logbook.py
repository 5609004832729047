"""What a run says of itself: rows of metrics.jsonl, and the summary at its end. Rank 0 writes; callbacks hear it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from danalab.scaling.hardware import peak_flops
from danalab.train.callbacks.base import Callback
from danalab.train.config.run_spec import RunSpec
from danalab.train.evaluation.evaluator import Evaluation
from danalab.train.parallel.world import World
from danalab.train.run.folder import RunFolder
from danalab.train.run.metrics import MetricsFile, is_json_finite
from danalab.train.run.stopwatch import Stopwatch
from danalab.train.step.gradients import StepResult
from danalab.train.system.memory import peak_memory_gib


class Logbook:
    """The rows and the summary of one run."""

    def __init__(
        self,
        resolved: RunSpec,
        folder: RunFolder,
        time: Stopwatch,
        callbacks: Sequence[Callback],
        device: torch.device,
        world: World,
    ):
        """Args:
        time: the run's; a row takes its interval.
        callbacks: told of rows and of the end.
        """
        self._resolved, self._folder, self._time = resolved, folder, time
        self._callbacks, self._device, self._world = callbacks, device, world
        self._peak_flops = _peak_flops(resolved.config.peak_tflops, device)
        self._metrics: MetricsFile | None = None
        self.latest: dict[str, Any] = {}
        """Last known losses."""
        self.pending: dict[str, Any] | None = None
        """The row of a step that is not evaluated yet: a stop on the way leaves it to the next job."""

    def open(self, step: int) -> None:
        """Go on from `step`: rows past it are dropped, and its own where it is still to come."""
        if self._world.is_main:
            self._metrics = MetricsFile(self._folder.metrics_file, step - bool(self.pending))

    def sync(self) -> None:
        """Make the rows so far durable.

        Raises:
            OSError: they cannot be written.
        """
        if self._metrics is not None:
            self._metrics.sync()

    def close(self) -> None:
        """Close the file."""
        if self._metrics is not None:
            self._metrics.close()

    def row(self, step: int, result: StepResult, lr: float, update_norm: Tensor | None, skipped: int) -> dict[str, Any]:
        """The row of the step that was just made, as far as it needs no evaluation.

        Args:
            update_norm: None where it was not measured.
            skipped: steps so far whose update was left out.
        """
        resolved, batches = self._resolved, self._resolved.batches
        tokens, flops = batches.tokens(step), resolved.flops(step)
        loss, grad_norm = float(result.loss), float(result.grad_norm)  # here a GPU is waited for
        interval = self._time.take_interval()
        before = step - interval.steps
        seconds = max(interval.seconds, 1e-9)
        flops_rate = (flops - resolved.flops(before)) / seconds
        return {
            "step": step,
            "tokens": tokens,
            "flops": float(flops),
            "time": self._time.seconds,
            "train/loss": loss,
            "train/hoyer": None if result.hoyer is None else float(result.hoyer),
            "lr": lr,
            "grad_norm": grad_norm,
            "update_norm": None if update_norm is None else float(update_norm),
            "tokens_per_second": (tokens - batches.tokens(before)) / seconds,
            "seconds_per_step": interval.seconds / interval.steps,
            "mfu": flops_rate / (self._peak_flops * self._world.processes) if self._peak_flops else None,
            "memory_gib": peak_memory_gib(self._device),
            "data_wait": interval.data_wait,
            "save_wait": interval.save_wait,
            "skipped": skipped or None,
            "loss_scale": None if result.scale is None else float(result.scale),
        }

    def write(self, row: dict[str, Any]) -> None:
        """Write a row."""
        if math.isfinite(row["train/loss"]):
            self.latest["train/loss"] = row["train/loss"]
        if self._metrics is None:
            return
        self._metrics.write(row)
        for callback in self._callbacks:
            callback.on_row(row)

    def evaluated(self, evaluation: Evaluation) -> None:
        """Remember an evaluation for the summary."""
        self.latest |= {"val/loss": evaluation.loss, "val/bpb": evaluation.bpb, "val/tokens": evaluation.tokens}

    def write_pending(self, evaluation: Evaluation) -> None:
        """Write the row that waited for an evaluation."""
        row, self.pending = self.pending, None
        assert row is not None
        self.write({**row, "val/loss": evaluation.loss, "val/bpb": evaluation.bpb})

    def write_summary(self, step: int, status: str, skipped: int) -> None:
        """Write summary.json, after `step` steps."""
        if not self._world.is_main:
            return
        tokens, seconds = self._resolved.batches.tokens(step), self._time.seconds
        summary: dict[str, Any] = {
            "status": status,
            "run": str(self._folder.path),
            "step": step,
            "iterations": self._resolved.iterations,
            **self.latest,
            "tokens": tokens,
            "params": self._resolved.plan.exact_params,
            "flops": float(self._resolved.flops(step)),
            "time": seconds,
            "tokens_per_second": tokens / seconds if seconds else None,
            "memory_gib": peak_memory_gib(self._device),
            "skipped": skipped,
        }
        for callback in self._callbacks:
            callback.on_end(summary)
        # As in the rows: what is not finite is left out, since JSON has no word for it.
        self._folder.write_summary({key: it for key, it in summary.items() if it is None or is_json_finite(it)})

    def state_dict(self) -> dict[str, Any]:
        """Plain values to be checkpointed."""
        # A copy: it is written beside training, which goes on changing `latest`.
        return {"seconds": self._time.seconds, "pending_row": self.pending, "latest": dict(self.latest)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave; other keys may be among them."""
        self._time.seconds, self.pending, self.latest = state["seconds"], state["pending_row"], state["latest"]


def _peak_flops(stated: float | None, device: torch.device) -> float | None:
    """Peak FLOP/s of one device, for the MFU: as stated [TFLOP/s], else by its name; None where neither is known."""
    if stated is not None:
        return stated * 1e12
    known = peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    return known[0] if known else None
