"""A run that is disturbed, and the one beside it that is not: what both have to agree in, to the last bit."""

from __future__ import annotations

import json
import os
import signal
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

from danalab.train.config.train_config import TrainConfig
from danalab.train.run.folder import RunFolder
from danalab.train.run.metrics import read_rows
from danalab.train.trainer import run_training

TIMES = {"time", "tokens_per_second", "seconds_per_step", "memory_gib", "data_wait", "save_wait", "mfu"}
STEPS = 60


def config(data: Path, run_dir: Path, opt: str = "dana-star-mk4") -> TrainConfig:
    return TrainConfig(
        data=str(data),
        opt=opt,
        d_model=32,
        n_layers=2,
        n_heads=2,
        seq_len=16,
        batch_size=4,
        acc_steps=2,
        iterations=STEPS,
        lr=2e-3,
        eval_interval=25,
        eval_batches=1,
        log_interval=1,
        ckpt_interval=10,
        run_dir=run_dir,
    )


def everything(folder: RunFolder, step: int = STEPS) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint."""
    path = folder.store.path(step)
    stored = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    target = {
        key: torch.zeros(entry.size, dtype=entry.properties.dtype)
        for key, entry in stored.items()
        if hasattr(entry, "size")
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that a single process loads by itself
        dcp.load(target, storage_reader=dcp.FileSystemReader(path), no_dist=True)
    return target


def rows(folder: RunFolder) -> list[dict[str, object]]:
    return [{k: v for k, v in row.items() if k not in TIMES} for row in read_rows(folder.metrics_file)]


def meta(folder: RunFolder) -> dict[str, object]:
    found = json.loads((folder.store.path(STEPS) / "meta.json").read_text())
    return {key: found[key] for key in ("step", "tokens", "random", "guard", "callbacks")}


def assert_same(found: RunFolder, expected: RunFolder) -> None:
    ours, theirs = everything(found), everything(expected)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
    assert rows(found) == rows(expected)
    assert meta(found) == meta(expected)
    assert (
        json.loads(found.summary_file.read_text())["val/loss"]
        == json.loads(expected.summary_file.read_text())["val/loss"]
    )


def train_in_child(
    settings: TrainConfig,
    kill_after: float | None = None,
    before: Callable[[], None] = lambda: None,
    may_fail: bool = False,
) -> bool:
    """Train in a child process, killed after some seconds; returns whether it came to its end."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.set_num_threads(1)  # MKL's too: the parent's team of threads does not exist here
            before()
            code = run_training(settings).exit_code
        finally:
            os._exit(code)
    killer = threading.Timer(kill_after, os.kill, (child, signal.SIGKILL)) if kill_after is not None else None
    if killer:
        killer.start()
    status = os.waitpid(child, 0)[1]
    if killer:
        killer.cancel()
        killer.join()
    assert status in (0, signal.SIGKILL) or (may_fail and os.WIFEXITED(status))
    return status == 0


def started_ranks(launcher: int) -> list[str]:
    """Processes that torch's agent, a thread of the launcher, has started."""
    tasks = Path(f"/proc/{launcher}/task").iterdir()
    return [
        pid for task in tasks if task.name != str(launcher) for pid in (task / "children").read_text().split()
    ]
