"""The run folder: its files, and the lock that allows one process at a time to write."""

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import socket
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from danalab.errors import UserError
from danalab.files import read_json
from danalab.train.checkpoint.store import CheckpointStore
from danalab.train.config.flags import plain, validated
from danalab.train.config.train_config import TrainConfig

if TYPE_CHECKING:
    import numpy as np

    from danalab.data import Dataset
    from danalab.train.parallel.world import World

log = logging.getLogger(__name__)


class RunFolder:
    """`runs/NAME/`, everything about one run."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self.store = CheckpointStore(self.path / "checkpoints")
        self.config_file = self.path / "config.json"
        """Configuration, versions, fingerprint of the data."""
        self.metrics_file = self.path / "metrics.jsonl"
        """One JSON object per logged step."""
        self.summary_file = self.path / "summary.json"
        """Status and final results."""
        self.nonfinite_file = self.path / "nonfinite.json"
        """Report of the step at which a loss, gradient or weight was not finite."""
        self.tokenizer_folder = self.path / "tokenizer"
        """The tokenizer of the run's data."""

    def read_config(self) -> dict[str, Any]:
        """The content of config.json."""
        if not self.config_file.is_file():
            what = "no config.json" if self.path.is_dir() else "no such folder"
            inner = sorted(str(file.parent) for file in self.path.glob("*/config.json"))
            if inner:
                what = f"it has runs: {', '.join(inner[:4])}{', ...' * (len(inner) > 4)}"
            if (self.path / "speedrun.json").is_file():
                what = f"a speedrun's: its last run is {self.path / 'rl'}"
            raise UserError(f"{self.path}: not a run folder ({what})")
        content = read_json(self.config_file)
        if isinstance(content, dict) and "model_type" in content and "config" not in content:
            what = "chat, generate and serve read it with --from, danalab import makes a run of it"
            raise UserError(f"{self.path}: not a run folder but a model in Hugging Face format: {what}")
        if isinstance(content, dict) and "budget" in content:
            raise UserError(
                f"{self.config_file} was written before the settings of a run became one record; danalab at commit "
                "39ef0f9c reads it"
            )
        if not isinstance(content, dict) or not isinstance(content.get("config"), dict):
            raise UserError(f"{self.config_file}: malformed: a run's settings are expected as 'config'")
        known = {field.name for field in fields(TrainConfig)}
        settings = {name: value for name, value in content["config"].items() if name in known}
        checked = plain(validated(TrainConfig, settings, str(self.config_file)))
        return {**content, "config": {**TrainConfig().as_dict(), **content["config"], **checked}}

    def read_summary(self) -> dict[str, Any] | None:
        """summary.json; None while there is none, or it is damaged, which is warned of."""
        if not self.summary_file.is_file():
            return None
        try:
            return dict(read_json(self.summary_file))
        except (UserError, TypeError, ValueError) as error:
            log.warning("%s: damaged, and not read: %s", self.summary_file, error)
            return None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock however the process ends; a run that is refused leaves no new folder.

        UserError: another has it, or it is read-only.
        """
        lock, is_new = self.path / ".lock", not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise UserError(f"{self.path}: the run folder cannot be written: {error.strerror}") from error
        try:
            _take(descriptor, self.path)
            yield
        except (UserError, KeyboardInterrupt):
            if is_new and not self.config_file.is_file():
                shutil.rmtree(self.path)
            raise
        finally:
            os.close(descriptor)

    def is_locked(self) -> bool:
        """Whether a process holds the lock now."""
        if not (self.path / ".lock").is_file():
            return False
        try:
            with self.locked():
                return False
        except UserError:
            return True


def _take(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "unknown"
            raise UserError(
                f"{path}: in use by another process ({holder}); wait for it, stop it, or take another --run-dir"
            ) from error
        log.warning(
            "%s: no locks on this file system (%s); use the folder from one process only",
            path,
            error.strerror,
        )
        return
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)


def tokenizer_folder_of(model: Path) -> Path:
    """The folder with the tokenizer of a run folder, or of a folder in Hugging Face format."""
    own = RunFolder(model).tokenizer_folder
    return own if own.is_dir() else model


def keep_tokenizer(dataset: "Dataset", folder: RunFolder, world: "World") -> "np.ndarray | None":
    """Keep the tokenizer of the run's data; the bytes of each token, or None."""
    try:
        if world.is_main:
            dataset.tokenizer.save(folder.tokenizer_folder)
        return dataset.token_bytes
    except UserError as error:
        if world.is_main:
            log.warning("no bits per byte, and no text from this run: %s", error)
        return None
