"""metrics.jsonl: one JSON object per logged step, the source of truth about a run, and its keys. Needs no torch."""

import json
import logging
import math
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from danalab.colors import FIGURE_STYLE
from danalab.errors import UserError
from danalab.files import finite, fsync_path, naming, sound_objects, write_atomically

log = logging.getLogger(__name__)


class MetricsFile:
    """Appends each row at once: a kill loses one line. While the disk is full, rows wait in memory."""

    def __init__(self, path: str | os.PathLike[str], last_step: int):
        """Open for appending; removes the rows past `last_step`, the step that training resumes from."""
        self.path = Path(path)
        truncate(self.path, last_step)
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - closed by `close`
        self._waiting = b""
        self._is_refused = False
        self._lock = threading.Lock()  # `sync` may be called from another thread

    def write(self, row: Mapping[str, Any]) -> None:
        """Append a row without the values that are None or not finite, which JSON cannot express."""
        line = json.dumps({key: value for key, value in finite(row).items() if value is not None}) + "\n"
        with self._lock:
            self._waiting += line.encode()
            try:
                self._empty()
            except OSError as error:
                if not self._is_refused:
                    log.warning(
                        "%s cannot be written: %s; rows are kept and tried again", self.path, error.strerror
                    )
                self._is_refused = True

    def sync(self) -> None:
        """Make the rows durable, or raise OSError; then a checkpoint of their step may be committed."""
        with self._lock:
            self._empty()
        fsync_path(self.path)

    def close(self) -> None:
        with self._lock:
            try:
                self._empty()
            except OSError as error:
                lost = self._waiting.count(b"\n")
                log.error("%s: its last %d rows could not be written: %s", self.path, lost, error.strerror)
            self._file.close()

    def _empty(self) -> None:
        with naming(self.path):
            while self._waiting:  # a disk that fills up takes the beginning of a line
                written = self._file.write(self._waiting)
                self._waiting = self._waiting[written:]
        self._is_refused = False


def scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a row, for mirrors; without booleans and text."""
    return {
        key: float(value)
        for key, value in row.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    }


def read_rows(path: str | os.PathLike[str], *, passes_over_broken: bool = False) -> list[dict[str, Any]]:
    """All rows, without a last line that a kill cut short; a UserError names a malformed line elsewhere, unless the
    call `passes_over_broken` ones.
    """
    path, rows = Path(path), []
    lines = path.read_bytes().split(b"\n") if path.is_file() else []
    for number, line in enumerate(lines, start=1):
        found = list(sound_objects(line))
        rows += [row for row in found if "step" in row]
        is_broken = line and number < len(lines) and not (found and "step" in found[0])
        if is_broken and not passes_over_broken:
            raise UserError(f"{path}:{number}: not a row of metrics")
    return rows


def last_rows(path: Path) -> list[dict[str, Any]]:
    """The valid rows in the last 16 KiB, to watch a run."""
    if not path.is_file():
        return []
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - (1 << 14)))
        return [row for row in sound_objects(file.read()) if "step" in row]


def truncate(path: Path, last_step: int) -> None:
    """Remove the rows past `last_step`, and broken lines."""
    if path.is_file():
        write_rows(path, read_rows(path, passes_over_broken=True), last_step)


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]], last_step: int) -> None:
    """Write rows up to `last_step` as a file."""
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows if row["step"] <= last_step))


def write_curve(run: Path, vocabulary: int) -> None:
    """Draw the losses over tokens, up to twice those of chance, into the run's curve.png and curve.svg, where
    matplotlib is installed."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return
    rows = read_rows(run / "metrics.jsonl", passes_over_broken=True)
    with rc_context(FIGURE_STYLE):  # pyright: ignore[reportArgumentType]
        figure = Figure(figsize=(6, 4))
        axes = figure.add_subplot(xlabel="tokens", ylabel="loss [nats/token]")
        for key, marker in (("train/loss", ""), ("val/loss", "o")):
            points = [(row["tokens"], row[key]) for row in rows if row.get(key) is not None]
            axes.plot([x for x, _ in points], [y for _, y in points], label=key, marker=marker)
        axes.set_ylim(top=min(axes.get_ylim()[1], 2 * math.log(vocabulary)))
        axes.legend()
        for ending in ("png", "svg"):
            figure.savefig(run / f"curve.{ending}", dpi=160)


METRICS: dict[str, tuple[str, str]] = {
    "step": ("steps", "Steps made, this one included."),
    "tokens": ("tokens", "Tokens seen since the start of the run."),
    "flops": ("FLOPs", "Model FLOPs of all steps so far."),
    "optimizer_flops": ("FLOPs", "Of the optimizer's own matrix products so far; compute is both."),
    "time": ("s", "Time of training so far, without evaluations; continues on resume."),
    "train/loss": (
        "nats/token",
        "Mean cross-entropy of the step's global batch before its update (sft: of the "
        "learned tokens; rl: the policy's loss).",
    ),
    "train/hoyer": ("", "Hoyer regulariser of the resonance model."),
    "train/entropy": ("nats", "rl: entropy of the policy on the drawn tokens."),
    "train/clip_share": ("share", "rl: drawn tokens whose ratio is clipped."),
    "train/mismatch": (
        "nats",
        "rl: difference of log-probability between the sampler and the trained model.",
    ),
    "train/kl": ("nats", "rl: divergence from the model at the start."),
    "val/loss": ("nats/token", "Mean cross-entropy on the fixed validation batches."),
    "val/bpb": ("bits/byte", "The same per byte of text; needs the tokenizer."),
    "val/accuracy": ("share", "Validation tokens that are the most probable ones."),
    "val/tokens": ("tokens", "Tokens of the final evaluation; in the summary."),
    "val/share": ("share", "Part of the validation split that the final evaluation read; in the summary."),
    "val/<name>_average": ("", "The same of the average of the weights (`--average`)."),
    "lr": ("", "Learning rate of the step."),
    "grad_norm": ("", "Euclidean norm of the whole gradient before clipping."),
    "update_norm": ("", "Euclidean norm of the change of all weights."),
    "tokens_per_second": ("tokens/s", "Throughput since the last row, all ranks."),
    "seconds_per_step": ("s", "Time of a step since the last row."),
    "mfu": ("share", "Model FLOP/s as a share of the devices' peak."),
    "memory_gib": ("GiB", "Peak memory of rank 0."),
    "data_wait": ("s", "Time since the last row for which training waited for data."),
    "save_wait": ("s", "Time since the last row for which training waited for checkpoints."),
    "skipped": ("steps", "Steps so far without an update, because something was not finite."),
    "loss_scale": ("", "Loss scale of float16."),
    "optim/<name>": (
        "",
        "Coefficients of the optimizer (such as `alpha`, `gamma`) and means over its state; see each "
        "optimizer's `coefficients()` and `collect_stats()`.",
    ),
    "moe/<name>": (
        "",
        "Experts: losses of the router without their weights; `max_load` and `min_load` as multiples of an even share.",
    ),
    "diloco/<name>": (
        "",
        "After a round of DiLoCo: norm of the outer gradient, divergence of workers.",
    ),
    "rl/<name>": ("", "Rewards, lengths and tool calls of the step's answers."),
}
