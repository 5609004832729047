"""N steps = k steps + SIGKILL + the same command again, bit by bit: weights, moments, clocks, metrics.

Real processes are really killed. They are forked from this one, which has torch loaded, so that a kill costs
milliseconds; one test goes through the command line.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from danalab.data import prepare
from danalab.train.config import TrainConfig
from danalab.train.folder import RunFolder
from danalab.train.job import run_training
from danalab.train.metrics import read_rows

TIMES = {"time", "tokens_per_second", "seconds_per_step", "memory_gib", "data_wait", "save_wait", "mfu"}
STEPS = 120


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    draw = random.Random(0)
    for split, lines in (("train", 800), ("val", 60)):
        text = "\n".join(" ".join(draw.choices(["one", "two", "three", "four"], k=9)) for _ in range(lines))
        (folder / f"{split}.txt").write_text(text)
    texts = {"inputs": [folder / "train.txt"], "val_inputs": [folder / "val.txt"]}
    return prepare("text", "bytes", folder / "set", **texts, workers=1, progress=False)


def config(data: Path, run_dir: Path) -> TrainConfig:
    return TrainConfig(
        data=str(data),
        opt="dana-star-mk4",
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
        tune_malloc=False,
    )


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    outcome = run_training(config(data, run_dir))
    assert outcome.status == "finished"
    return RunFolder(run_dir)


def everything(folder: RunFolder, step: int = STEPS) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint."""
    path = folder.store.path(step)
    stored = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    target = {key: torch.zeros(entry.size, dtype=entry.properties.dtype) for key, entry in stored.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that a single process loads by itself
        dcp.load(target, storage_reader=dcp.FileSystemReader(path), no_dist=True)
    return target


def rows(folder: RunFolder) -> list[dict[str, object]]:
    return [{k: v for k, v in row.items() if k not in TIMES} for row in read_rows(folder.metrics_file)]


def meta(folder: RunFolder) -> dict[str, object]:
    found = json.loads((folder.store.path(STEPS) / "meta.json").read_text())
    return {key: found[key] for key in ("step", "tokens", "sequences", "random", "guard", "callbacks", "optimizer")}


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


def train_in_child(settings: TrainConfig, kill_after: float | None = None, before=lambda: None) -> bool:
    """Train in a child process, killed after some seconds; returns whether it came to its end."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
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
    assert status in (0, signal.SIGKILL)
    return status == 0


def test_resume_is_bitwise_after_kills_at_random_moments(data, tmp_path, undisturbed):
    draw = random.Random(os.environ.get("DANALAB_TEST_SEED", "7"))
    settings = config(data, tmp_path / "run")
    seconds = json.loads(undisturbed.summary_file.read_text())["time"]
    kills = 0
    # Later kills come later, so that the run ends however slow this machine is today.
    while not train_in_child(settings, kill_after=draw.uniform(0.1, 0.4 * seconds + 0.1) * (1 + kills / 5)):
        kills += 1
    assert kills > 0
    assert_same(RunFolder(tmp_path / "run"), undisturbed)


def kill_at_call(number: int) -> None:
    """Make this process kill itself at its n-th fsync: within a save, as little else waits for the disk."""
    left, fsync = number, os.fsync

    def counted(descriptor: int) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(descriptor)

    os.fsync = counted


def test_resume_is_bitwise_after_kills_during_saves(data, tmp_path, undisturbed):
    settings = config(data, tmp_path / "run")
    ended = False
    for call in (5, 13, 26, 38, 47, 59, 10_000):
        assert not ended
        ended = train_in_child(settings, before=lambda call=call: kill_at_call(call))
    assert ended
    assert_same(RunFolder(tmp_path / "run"), undisturbed)


@pytest.mark.slow
def test_resume_is_bitwise_after_a_kill_at_each_of_the_first_disk_waits(data, tmp_path, undisturbed):
    for call in range(1, 41):
        settings = config(data, tmp_path / f"run{call}")
        assert not train_in_child(settings, before=lambda call=call: kill_at_call(call))
        assert train_in_child(settings)
        assert_same(RunFolder(tmp_path / f"run{call}"), undisturbed)


def test_a_full_disk_during_a_run_costs_a_checkpoint_and_no_bit(data, tmp_path, undisturbed):
    def fill() -> None:
        from danalab.train.checkpoint import tensors

        calls, write = 0, dcp.FileSystemWriter.write_data

        def sometimes_full(self, *args, **kwargs):
            nonlocal calls
            calls += 1
            if calls in (2, 3, 5):
                raise OSError(28, "No space left on device")
            return write(self, *args, **kwargs)

        tensors.dcp.FileSystemWriter.write_data = sometimes_full

    assert train_in_child(config(data, tmp_path / "run"), before=fill)
    assert_same(RunFolder(tmp_path / "run"), undisturbed)


def test_the_command_line_resumes_after_sigterm_with_exit_code_85(data, tmp_path, undisturbed):
    settings = config(data, tmp_path / "run").as_dict()
    flags = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in settings.items()
        if value is not None and value != getattr(TrainConfig(), name)
    ]
    command = [
        sys.executable,
        "-m",
        "danalab",
        "train",
        *(f.replace("tune-malloc=False", "no-tune-malloc") for f in flags),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    first = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert first.stderr is not None
    for line in first.stderr:
        if line.startswith("step 20/"):
            first.send_signal(signal.SIGTERM)
            break
    first.stderr.read()
    assert first.wait() == 85
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], 20 <= summary["step"] < STEPS) == ("interrupted", True)
    second = subprocess.run([*command, "--json"], capture_output=True, text=True, env=environment, check=False)
    assert second.returncode == 0, second.stderr
    assert json.loads(second.stdout)["status"] == "finished"
    assert_same(RunFolder(tmp_path / "run"), undisturbed)
