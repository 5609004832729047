"""One run of a sweep as a job: its folder, its settings, and whether it is finished, begun or another run's."""

import contextlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from danalab.errors import UserError
from danalab.plugins import in_use
from danalab.scaling.architectures import ARCHITECTURES
from danalab.scaling.optimizers import canonical_name
from danalab.sweep.grid import PATH_SETTINGS, portable_settings
from danalab.train.config.fields import flag, names_of
from danalab.train.config.train_config import TrainConfig
from danalab.train.run.folder import RunFolder
from danalab.train.run.metrics import last_rows

DIVERGED = "diverged: a loss was not finite (nonfinite.json); it is not tried again unless its folder is deleted"


@dataclass(frozen=True)
class Job:
    """One run to train."""

    folder: Path
    """The run folder."""
    settings: dict[str, Any]
    """Flags of `danalab train`, by field name."""
    flops: float | None = None
    """Estimated cost, for the remaining time; None: not known."""
    priority: int = 0
    """Runs with lower numbers start first."""
    row: Mapping[str, Any] | None = None
    """Its row in a packed ladder, which stands for the run while it has no folder."""

    def flags(self) -> list[str]:
        """Flags of `danalab train` that make the run."""
        words = ["--run-dir", str(self.folder), *(f"--plugin={path}" for path in in_use())]
        for name, value in self.settings.items():
            if isinstance(value, (list, tuple)):
                words += [flag(name), *map(str, value)]
            elif value is not None:
                words.append(f"{flag(name)}={value}")
        return words

    def command(self) -> list[str]:
        return [sys.executable, "-m", "danalab", "train", *self.flags()]

    def is_finished(self) -> bool:
        """Whether the folder holds this run, finished."""
        return self._status() == "finished" and self.is_same()

    def is_taken(self) -> bool:
        """Whether another process is making the run."""
        return self.folder.is_dir() and RunFolder(self.folder).is_locked()

    def is_same(self) -> bool:
        """Whether the run in the folder has these settings."""
        made = self._made()
        wanted = portable_settings(self.settings) if self._is_elsewhere() else self.settings  # as rows have them
        return all(_same(name, made.get(name), value) for name, value in wanted.items())

    def differences(self) -> list[str]:
        """Settings in which the run in the folder differs from this one; such a run cannot be resumed.

        Settings of how a run is carried out, paths of data and settings that the run did not know make no difference.
        """
        folder = RunFolder(self.folder)
        if not folder.config_file.is_file() or not folder.metrics_file.is_file():
            return []
        made = self._made()
        known = names_of(TrainConfig, "run", "input").intersection(made)
        other = {
            key: value for key, value in self.settings.items() if key in known and not _same(key, made[key], value)
        }
        return [f"{flag(name)} {made[name]} there, {value} here" for name, value in other.items()]

    def _made(self) -> dict[str, Any]:
        made = self._record().get("config") or {}
        return {**made, **(made.get("optimizer_settings") or {})}

    def _record(self) -> dict[str, Any]:
        """config.json; empty where there is none, or it is damaged: then the run itself fails and has the reason."""
        if self._is_elsewhere():
            return {"config": self.row["settings"]} if self.row else {}
        with contextlib.suppress(UserError):
            return RunFolder(self.folder).read_config()
        return {}

    def _is_elsewhere(self) -> bool:
        return not RunFolder(self.folder).config_file.exists()

    def has_diverged(self) -> bool:
        """Whether the folder holds this run, ended by a loss that is not finite: a repetition would end alike."""
        return self._status() == "nonfinite" and self.is_same()

    def _status(self) -> str | None:
        """How the run in the folder ended; None where it has not, or its summary is damaged (resuming rewrites it)."""
        if self._is_elsewhere():
            return self.row["status"] if self.row else None
        with contextlib.suppress(UserError):
            return (RunFolder(self.folder).read_summary() or {}).get("status")
        return None

    def steps(self) -> int | None:
        """Length of the run [steps]; None where it follows from the size and the run has not begun."""
        if self.settings.get("iterations"):
            return int(self.settings["iterations"])
        return (self._record().get("plan") or {}).get("steps")

    def progress(self) -> tuple[int, float | None]:
        """(steps done, last validation loss near the end of the metrics), for display."""
        step, val_loss = 0, None
        for row in last_rows(RunFolder(self.folder).metrics_file):
            step, val_loss = row["step"], row.get("val/loss", val_loss)
        return step, val_loss

    def final_loss(self) -> float | None:
        """Validation loss of the last evaluation, which reads more of the split than those before."""
        return (RunFolder(self.folder).read_summary(tolerant=True) or {}).get("val/loss")


def _same(name: str, made: Any, wanted: Any) -> bool:
    """Whether a recorded setting equals the wanted one: 1 equals 1.0, an alias its optimizer, a file its new place."""
    if made is None or wanted is None:
        return wanted is None  # automatic: the recorded value is what it resolved to
    if name in PATH_SETTINGS:
        return Path(made).name == Path(wanted).name
    names = {"opt": canonical_name, "arch": ARCHITECTURES.canonical}.get(name)
    if names is not None:
        return names(str(wanted)) == made
    try:
        return float(made) == float(wanted)
    except (TypeError, ValueError):
        return str(made) == str(wanted)


@dataclass(frozen=True)
class Failure:
    """A run that failed."""

    job: Job
    reason: str
