"""Rows of metrics.jsonl and the summary of a run. Rank 0 writes them and passes them to the callbacks."""

import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from danalab.files import finite, write_json
from danalab.hardware import peak_flops
from danalab.train.callbacks.base import Callback
from danalab.train.config.train_config import TrainConfig
from danalab.train.parallel.world import World
from danalab.train.run.folder import RunFolder
from danalab.train.run.metrics import MetricsFile
from danalab.train.stage import Consumption
from danalab.train.step.gradients import StepResult
from danalab.train.system.device import peak_memory_gib

log = logging.getLogger(__name__)


class Logbook:
    """Writes the rows and the summary of one run; the callbacks get both."""

    def __init__(
        self,
        spec: TrainConfig,
        folder: RunFolder,
        consumption: Consumption,
        callbacks: Sequence[Callback],
        device: torch.device,
        world: World,
    ):
        self.time, self.metrics_file = Stopwatch(), folder.metrics_file
        self._spec, self._folder, self._consumption, self._callbacks = spec, folder, consumption, callbacks
        self._device, self._world = device, world
        self._peak_flops = _peak_flops(spec.peak_tflops, device)
        self._metrics: MetricsFile | None = None
        self.latest: dict[str, Any] = {}
        """Last known losses, for the summary."""
        self.best_loss, self.best_step = math.inf, 0
        """The best val/loss, and its step."""
        self.pending: dict[str, Any] | None = None
        """The row that is not written yet. Where a stop interrupts its evaluation, the next job completes it."""

    def open(self, step: int) -> None:
        """Append after `step`, whose pending row goes too."""
        if self._world.is_main:
            self._metrics = MetricsFile(self.metrics_file, step - bool(self.pending))

    def sync(self) -> None:
        """Make the rows so far durable, or raise OSError: a resumed run writes only later ones."""
        if self._metrics is not None:
            self._metrics.sync()

    def close(self) -> None:
        if self._metrics is not None:
            self._metrics.close()

    def row(self, step: int, result: StepResult, update_norm: float, skipped: int) -> dict[str, Any]:
        """The row of the step that was just made; waits for the device."""
        total = self._consumption
        tokens, flops = total.tokens(step), total.flops(step)
        loss, grad_norm = float(result.loss), float(result.grad_norm)
        interval = self.time.take_interval()
        before = step - int(interval["steps"])
        seconds = max(interval["seconds"], 1e-9)
        flops_rate = (flops - total.flops(before)) / seconds
        return {
            "step": step,
            "tokens": tokens,
            "flops": float(flops),
            "optimizer_flops": total.optimizer_flops(step),
            "time": self.time.seconds,
            "train/loss": loss,
            **{f"train/{name}": float(value) for name, value in result.metrics.items()},
            "grad_norm": grad_norm,
            "update_norm": update_norm,
            "tokens_per_second": (tokens - total.tokens(before)) / seconds,
            "seconds_per_step": interval["seconds"] / interval["steps"],
            "mfu": flops_rate / (self._peak_flops * self._world.size) if self._peak_flops else None,
            "memory_gib": peak_memory_gib(self._device),
            "data_wait": interval["data_wait"],
            "save_wait": interval["save_wait"],
            "skipped": skipped or None,
            "loss_scale": result.scale,
        }

    def add_evaluation(self, metrics: Mapping[str, float | None]) -> None:
        """Add the result of an evaluation to the summary and to the pending row."""
        self.latest |= metrics
        if self.pending is not None:
            self.pending |= metrics

    def is_best(self) -> bool:
        """Whether the evaluation of the pending row is the best so far."""
        row = self.pending or {}
        is_best = row.get("val/loss", math.inf) < self.best_loss
        if is_best:
            self.best_loss, self.best_step = row["val/loss"], row["step"]
        return is_best

    def add_loss(self, loss: float) -> None:
        """The training loss of the last step, for the summary; one that is not finite does not replace it."""
        if math.isfinite(loss):
            self.latest["train/loss"] = loss

    def write_pending(self) -> None:
        row, self.pending = self.pending, None
        assert row is not None
        if self._metrics is None:
            return
        self._metrics.write(row)
        for callback in self._callbacks:
            callback.on_row(row)

    def write_summary(self, step: int, status: str, skipped: int) -> None:
        """Write summary.json, after `step` steps."""
        if not self._world.is_main:
            return
        tokens, seconds = self._consumption.tokens(step), self.time.seconds
        summary: dict[str, Any] = {
            "status": status,
            "run": str(self._folder.path),
            "step": step,
            "iterations": self._spec.last_step,
            **self.latest,
            **({"best_step": self.best_step, "best_loss": self.best_loss} if self.best_step else {}),
            "tokens": tokens,
            "params": self._spec.model.exact_params,
            "flops": float(self._consumption.flops(step)),
            "optimizer_flops": self._consumption.optimizer_flops(step),
            "time": seconds,
            "tokens_per_second": tokens / seconds if seconds else None,
            "memory_gib": peak_memory_gib(self._device),
            "skipped": skipped,
        }
        loss = self.latest.get("val/loss", self.latest.get("train/loss"))
        if status == "finished" and loss is not None and loss > 1.2 * math.log(self._spec.model.vocab_size):
            summary["diverged"] = True  # all tokens alike would cost log(vocabulary)
        for callback in self._callbacks:
            callback.on_end(summary)
        write_json(self._folder.summary_file, finite(summary))

    def state_dict(self) -> dict[str, Any]:
        """Plain values to be checkpointed."""
        # A copy: another thread writes it while training changes `latest`.
        return {
            "seconds": self.time.seconds,
            "pending_row": self.pending,
            "latest": dict(self.latest),
            "best": [self.best_loss, self.best_step] if self.best_step else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.time.seconds, self.pending, self.latest = state["seconds"], state["pending_row"], state["latest"]
        if state["best"] is not None:
            self.best_loss, self.best_step = state["best"][:2]


def _peak_flops(stated: float | None, device: torch.device) -> float | None:
    """Peak FLOP/s of one device, for the MFU: as stated [TFLOP/s], else by its name; None where neither is known."""
    if stated is not None:
        return stated * 1e12
    known = peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    return known[0] if known else None


class Stopwatch:
    """Training time [s]: of the whole run, of which earlier jobs are a part, and of the interval since the last row.

    `interval` has the steps, "seconds" and parts of these, "data_wait" and "save_wait".
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.interval: defaultdict[str, float] = defaultdict(float)
        self.start()

    def start(self) -> None:
        """Measure from now on."""
        self._clock, self._left_out = time.perf_counter(), 0.0

    @contextmanager
    def leaving_out(self) -> Iterator[None]:
        """Exclude the time of a block."""
        begun = time.perf_counter()
        yield
        self._left_out += time.perf_counter() - begun

    def tick(self) -> None:
        """Add the time since the last tick."""
        now = time.perf_counter()
        passed = now - self._clock - self._left_out
        self._clock, self._left_out = now, 0.0
        self.seconds += passed
        self.interval["seconds"] += passed

    def take_interval(self) -> dict[str, float]:
        """The interval since the last call; starts a new one."""
        self.tick()
        interval, self.interval = self.interval, defaultdict(float)
        return interval
