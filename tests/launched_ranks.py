"""What ranks do in tests of `--nproc`; they are other processes, which import it by name."""

import os
import signal
import sys
import time
from pathlib import Path

from danalab.errors import UserError
from danalab.train.config.train_config import TrainConfig
from danalab.train.system.signals import StopRequest


def rank() -> int:
    return int(os.environ["RANK"])


def place(config: TrainConfig) -> Path:
    assert config.run_dir is not None
    return config.run_dir


def say_place(config: TrainConfig, stop: StopRequest) -> int:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    (place(config) / str(rank())).write_text(" ".join(os.environ[name] for name in names))
    print(f"rank {rank()} speaks", file=sys.stderr, flush=True)
    return 0


def end_with_85(config: TrainConfig, stop: StopRequest) -> int:
    return 85


def be_killed(config: TrainConfig, stop: StopRequest) -> int:
    if rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
    return 0


def be_killed_once(config: TrainConfig, stop: StopRequest) -> int:
    died = place(config) / "died"
    if rank() == 1 and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return 0


def fail(config: TrainConfig, stop: StopRequest) -> int:
    if rank() == 1:
        raise KeyError("x")
    time.sleep(60)
    return 0


def refuse(config: TrainConfig, stop: StopRequest) -> int:
    if rank() == 1:
        raise UserError("no room on its disk")
    time.sleep(60)
    return 0


def wait_for_a_signal(config: TrainConfig, stop: StopRequest) -> int:
    (place(config) / str(rank())).touch()
    while not stop:
        time.sleep(0.01)
    time.sleep(0.5)  # the last checkpoint
    return stop.exit_code
