"""Many runs: each is a folder and one child process. Finished ones are skipped, interrupted ones resume.

    FOLDER/runs/NAME/          an ordinary run folder each, with the output of its process in log.txt
    FOLDER/sweep.json          the runs requested in all calls, so that a changed grid loses no rows
    FOLDER/ladder.jsonl        one row per run, rewritten as runs end
    FOLDER/slurm/              scripts and logs, where SLURM makes the runs (`danalab.experiments.slurm`)

There is no other state: what was killed ends with the same rows when it is started again.
"""

import contextlib
import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from danalab.errors import UserError
from danalab.experiments.cells import PATH_SETTINGS, Cell, comparable, portable_settings
from danalab.experiments.rows import FileName, RowsFile, is_usable
from danalab.files import read_json, validated, write_json
from danalab.hardware import available_cores, chosen_threads
from danalab.train.config.flags import field_types, flag, names_of
from danalab.train.config.train_config import TrainConfig
from danalab.train.run.folder import RunFolder
from danalab.train.run.metrics import last_rows

log = logging.getLogger(__name__)

RECORD = "sweep.json"
MORE_SEEDS = ", more seeds"
"""Ends the title of repetitions: their losses are compared with those of the trials."""
NOT_STARTED, STOPPED = "not started", "stopped at a checkpoint"
COMMAND: Sequence[str] = (sys.executable, "-m", "danalab", "train")
"""What starts a run's process, before its flags."""
DIVERGED = "diverged: a loss was not finite (see nonfinite.json); delete the run's folder to retry"
State = Literal["new", "running", "finished", "diverged", "foreign"]
"""Of a run's folder. new: nothing is there, or this run was interrupted; foreign: it holds a run of other settings."""


class Queued(Exception):
    """Runs were submitted, or stopped, and have not ended."""


# ---- one run ----
def read_state(
    folder: Path, settings: Mapping[str, Any], row: Mapping[str, Any] | None = None
) -> tuple[State, str]:
    """The state of a run's folder, and of a foreign one the differences in words.

    `row`: its row in a packed ladder, which stands for the run while it has no folder.
    """
    files = RunFolder(folder)
    if not files.config_file.exists():
        if row is None or not _is_same(row["settings"], portable_settings(settings)):
            return "new", ""
        return {"finished": "finished", "nonfinite": "diverged"}.get(row["status"], "new"), ""  # pyright: ignore[reportReturnType]
    if files.is_locked():
        return "running", ""
    try:
        made, summary = files.read_config().get("config") or {}, files.read_summary() or {}
    except UserError:  # damaged: the run itself says what, or repairs it
        return "new", ""
    made = {**made, **(made.get("optimizer_settings") or {})}
    ended = summary.get("status")
    if ended in ("finished", "nonfinite") and _is_same(made, settings):
        return ("finished" if ended == "finished" else "diverged"), ""
    known = (
        names_of(TrainConfig, "run", "input").intersection(made) if files.metrics_file.is_file() else set()
    )
    other = [
        f"{flag(key)} {made[key]} there, {value} here"
        for key, value in settings.items()
        if key in known and not _same(key, made[key], value)
    ]
    return ("foreign", "; ".join(other)) if other else ("new", "")


def _is_same(made: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    return all(_same(key, made.get(key), value) for key, value in settings.items())


def _same(name: str, made: Any, wanted: Any) -> bool:
    """Whether a recorded setting equals the wanted one: 1 equals 1.0, an alias its name, a file its new place."""
    if made is None or wanted is None:
        return wanted is None  # automatic: the recorded value is what it resolved to
    if name in PATH_SETTINGS:
        return Path(made).name == Path(wanted).name
    return comparable(name, made) == comparable(name, wanted)


def train_flags(folder: Path, settings: Mapping[str, Any]) -> list[str]:
    """Flags of `danalab train` that make a run."""
    words, of_optimizer = ["--run-dir", str(folder)], []
    for name, value in settings.items():
        if name not in field_types(TrainConfig):
            text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value
            of_optimizer.append(f"{name}={text}")
        elif isinstance(value, (list, tuple)):
            words += [flag(name), *map(str, value)]
        elif value is not None:
            words.append(f"{flag(name)}={value}")
    return [*words, *(["--set", *of_optimizer] if of_optimizer else [])]


def last_words(file: Path) -> str:
    """The last error in a log, or its last line."""
    lines = file.read_text(encoding="utf-8", errors="replace").strip().splitlines() if file.is_file() else []
    errors = [line for line in lines if line.startswith("danalab: error")]
    return (errors or lines or ["no output"])[-1]


# ---- many ----
class Runner:
    """The runs of a folder, made by child processes, `jobs` at a time; `train` may be called by several threads.

    A context: at its end, also by SIGTERM or Ctrl-C, runs are stopped at a checkpoint.
    """

    def __init__(self, folder: Path, jobs: int | None = None):
        """`jobs`: runs at a time; default one a core, or one a GPU."""
        devices = visible_gpus()
        self.folder, self.jobs = folder, jobs or len(devices) or available_cores()
        self.failures: dict[str, str] = {}
        """Name -> reason of each run that failed."""
        self.queued: set[str] = set()
        """Runs that have not ended: at SLURM, start the same command again for what depends on them."""
        self._rows = RowsFile(folder)
        file = folder / RECORD
        self._record = validated(_Record, read_json(file), file) if file.is_file() else _Record()
        self._pool = ThreadPoolExecutor(self.jobs)
        self._children: set[subprocess.Popen[bytes]] = set()
        self._threads = max(1, available_cores() // self.jobs)
        self._devices = [devices[i % len(devices)] for i in range(self.jobs)] if devices else []
        self._lock = threading.RLock()
        self._stopped = False
        self._progress = Progress()

    def __enter__(self) -> "Runner":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._pool.shutdown()

    def stop(self) -> None:
        """Stop the runs at a checkpoint, and start no more."""
        with self._lock:
            self._stopped = True
            for child in self._children:
                child.send_signal(signal.SIGTERM)
            if self._children:
                self._progress.say("stopping the runs at a checkpoint; start the same command again to go on")

    def check(self, cells: Sequence[Cell]) -> None:
        """UserError: a setting out of range, or folders that hold runs of other settings, whose rows would count."""
        clashes = []
        for cell in cells:
            folder = self.folder / "runs" / cell.name
            cell.config(folder)
            state, words = self._state(cell)
            if state == "foreign":
                clashes.append((folder, words))
        if clashes:
            more = f" (and {len(clashes) - 1} more)" if len(clashes) > 1 else ""
            raise UserError(
                f"{clashes[0][0]}{more} was made with other settings: {clashes[0][1]}; take another --out, or delete "
                "its folder"
            )

    def train(self, cells: Sequence[Cell], title: str = "runs") -> dict[str, float]:
        """Make what is not finished. Name -> final loss, infinite where a run diverged or failed.

        Raises `Queued` after `stop`.
        """
        if self._stopped:
            raise Queued
        self.check(cells)
        with self._lock:
            self._note(cells)
            wanted = [cell for cell in cells if self._state(cell)[0] in ("new", "running")]
            if wanted:
                self._progress.say(f"{title}: {len(wanted)} of {len(cells)} runs to train")
        self._make(wanted, title)
        rows = {row["name"]: row for row in self.gather()}
        for cell in cells:
            if self._state(cell)[0] == "diverged":
                self.failures[cell.name] = DIVERGED
        return {cell.name: _final_loss(rows.get(cell.name)) for cell in cells}

    def gather(self) -> list[dict[str, Any]]:
        """Write ladder.jsonl; returns the rows, in the order of their cells' places."""
        with self._lock:
            record = self._record
            names = sorted(record.runs, key=lambda name: record.places.get(name, []))
            return self._rows.update([self.folder / "runs" / name for name in names], record.labels)

    def _state(self, cell: Cell) -> tuple[State, str]:
        return read_state(self.folder / "runs" / cell.name, cell.settings, self._rows.packed.get(cell.name))

    def _note(self, cells: Sequence[Cell]) -> None:
        """Write sweep.json with these runs, too."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for cell in cells:
            self._record.runs[cell.name] = portable_settings(cell.settings)
            self._record.places[cell.name] = list(cell.place)
            if cell.label is not None:
                self._record.labels[cell.name] = cell.label
        write_json(self.folder / RECORD, vars(self._record))

    def _make(self, cells: Sequence[Cell], title: str) -> None:
        """Make runs side by side and wait for them."""
        waiting: dict[Future[str | None], Cell] = {
            self._pool.submit(self._train_one, cell): cell for cell in cells
        }
        for cell in cells:
            self._progress.add(self.folder / "runs" / cell.name, title)
        while waiting:
            done, _ = wait(waiting, timeout=1.0, return_when=FIRST_COMPLETED)
            ended = {waiting.pop(future).name: future.result() for future in done}
            for name, reason in ended.items():
                self.failures.pop(name, None)
                if reason is not None:
                    self.failures[name] = reason
            rows = {row["name"]: row for row in self.gather()} if ended else {}
            for name, reason in ended.items():
                self._progress.ended(self.folder / "runs" / name, reason, rows.get(name))
            self._progress.update()

    def _train_one(self, cell: Cell) -> str | None:
        """Train the run until it is done; returns why it failed."""
        folder = self.folder / "runs" / cell.name
        while (state := self._state(cell)[0]) == "running":  # by another process
            time.sleep(1.0)
        if state != "new":
            return None
        folder.mkdir(parents=True, exist_ok=True)
        command = [*COMMAND, *train_flags(folder, cell.settings)]
        with self._device() as environment, (folder / "log.txt").open("ab") as output:
            with self._lock:
                if self._stopped:
                    return NOT_STARTED
                child = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
                )
                self._children.add(child)
            code = child.wait()
            self._children.discard(child)
        if code and self._stopped:
            return STOPPED
        return f"ended with exit code {code}: {last_words(folder / 'log.txt')}" if code else None

    @contextlib.contextmanager
    def _device(self) -> Iterator[dict[str, str]]:
        """Environment of a run: its share of the cores, or a GPU of its own."""
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        if chosen_threads() is None:
            environment["OMP_NUM_THREADS"] = str(self._threads)
        if not self._devices:
            yield environment
            return
        device = self._devices.pop()
        try:
            yield {**environment, "CUDA_VISIBLE_DEVICES": device}
        finally:
            self._devices.append(device)


def _share_made(folder: Path) -> float:
    """Share of a run's steps that its metrics show."""
    rows = last_rows(RunFolder(folder).metrics_file)
    return min(1.0, rows[-1]["step"] / RunFolder(folder).read_config()["steps"]) if rows else 0.0


def open_ends(runner: Runner) -> dict[str, list[Any]]:
    """Failures and queued runs, for JSON; prints them on standard error, too."""
    for name, reason in sorted(runner.failures.items()):
        print(f"failed: {name}: {reason}", file=sys.stderr)
    if runner.queued:
        print(
            f"{len(runner.queued)} runs are queued or running; start the same command again when they have ended, or "
            "with --wait; --collect gathers the finished ones",
            file=sys.stderr,
        )
    failures = [{"name": name, "reason": reason} for name, reason in sorted(runner.failures.items())]
    return {"failures": failures, "queued": sorted(runner.queued)}


def collect(folder: Path) -> list[dict[str, Any]]:
    """Gather the rows of a sweep or ladder; runs nothing."""
    if not (folder / RECORD).is_file():
        raise UserError(f"{folder}: no sweep there (no {RECORD}); --out names its folder")
    return Runner(folder).gather()


@dataclass
class _Record:
    """The runs requested in a folder, by name."""

    runs: dict[FileName, dict[str, Any]] = field(default_factory=dict)  # their settings
    labels: dict[str, str] = field(
        default_factory=dict
    )  # names of the optimizer in rows, where it is not `opt`
    places: dict[str, list[int]] = field(default_factory=dict)  # order of their rows


def _final_loss(row: Mapping[str, Any] | None) -> float:
    return row["final_loss"] if row is not None and is_usable(row) else float("inf")


@contextlib.contextmanager
def stopping_on_sigterm() -> Iterator[None]:
    """SIGTERM raises SystemExit, so that the runs are stopped: Python's default would end without a word to them."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can set handlers
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def visible_gpus() -> list[str]:
    """Names of the GPUs, as CUDA_VISIBLE_DEVICES takes them; asks nvidia-smi, as torch would hold one."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [device for device in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if device.strip()]
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=False
        ).stdout
    except OSError:
        return []
    return [str(i) for i, line in enumerate(listed.splitlines()) if line.startswith("GPU ")]


class Progress:
    """What is said of runs, on standard error: each as it ends, and those under way once a minute."""

    LINE_SECONDS = 60.0

    def __init__(self) -> None:
        self._open: dict[Path, str] = {}
        self._best: dict[tuple[str, str], tuple[float, str]] = {}
        self._ended = 0
        self._began = time.monotonic()
        self._next_line = self._began + self.LINE_SECONDS
        self._lock = threading.Lock()

    def say(self, words: str) -> None:
        print(words, file=sys.stderr, flush=True)

    def add(self, folder: Path, title: str) -> None:
        """A run is to be made; the best loss is that of its optimizer's runs with its title."""
        with self._lock:
            self._open[folder] = title

    def ended(self, folder: Path, failure: str | None, row: Mapping[str, Any] | None) -> None:
        """A run has ended, with this row; `failure` is the reason of one that failed."""
        loss = _final_loss(row)
        words = failure or "no finite loss"
        with self._lock:
            title = self._open.pop(folder)
            self._ended += failure not in (NOT_STARTED, STOPPED)
            if row is not None and math.isfinite(loss):
                group = (title.removesuffix(MORE_SEEDS), row["opt"])
                least, name = self._best[group] = min(
                    self._best.get(group, (math.inf, "")), (loss, folder.name)
                )
                best = "the best so far" if name == folder.name else f"best {least:.4f} of {name}"
                words = f"lr {row['lr']:.3g}, val loss {loss:.4f}, {best}"
            counted = self._counted()
        self.say(f"  {folder.name}: {words} ({counted})")

    def update(self) -> None:
        """Say how far runs are, where a line is due."""
        with self._lock:
            if time.monotonic() < self._next_line:
                return
            self._next_line = time.monotonic() + self.LINE_SECONDS
            shown = [folder for folder in self._open if RunFolder(folder).metrics_file.is_file()]
        words = []
        for folder in shown:
            rows = last_rows(RunFolder(folder).metrics_file)
            losses = [f", val loss {row['val/loss']:.4f}" for row in rows if row.get("val/loss") is not None]
            words.append(f"{folder.name} (step {rows[-1]['step'] if rows else 0}{''.join(losses[-1:])})")
        if words:
            self.say(f"  running: {'; '.join(words)} ({self._counted()})")

    def _counted(self) -> str:
        """How many runs have ended, the seconds since the first began and those left, by the steps made so far."""
        seconds, total = time.monotonic() - self._began, self._ended + len(self._open)
        done = self._ended + sum(map(_share_made, list(self._open)))
        left = f", about {seconds / done * (total - done):.0f} s left" if done else ""
        return f"{self._ended} of {total} done, {seconds:.0f} s{left}"
