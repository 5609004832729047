"""--nproc: how the processes of a run end, and what is said of it. The ranks here are a few lines without torch."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import pytest

from danalab.errors import FirstRankError, LostRankError, UserError
from danalab.scaling.hardware import available_cores
from danalab.train.config.train_config import TrainConfig
from danalab.train.diloco import RESTARTS
from danalab.train.parallel import launcher
from danalab.train.system.signals import StopRequest

CONFIG = TrainConfig(heads=3)
READY = "signal.pthread_sigmask(signal.SIG_SETMASK, [])"
"""What a rank does once it has its handlers."""


@pytest.fixture
def launch(monkeypatch):
    """Launch ranks that run `script`, which knows `rank`."""
    monkeypatch.setattr(launcher, "GRACE_SECONDS", 0.3)

    def start(script: str, ranks: int = 2, settings: TrainConfig = CONFIG) -> int:
        body = f"import os, signal, sys, time\nrank = int(os.environ['RANK'])\n{script.replace('READY', READY)}"
        monkeypatch.setattr(launcher, "_command", lambda config: [sys.executable, "-S", "-c", body])
        return launcher.launch(settings, ranks, "cpu", StopRequest())

    return start


@pytest.mark.parametrize("code", [0, 3, 85, 130])
def test_codes_that_ranks_agree_on_come_through(launch, code):
    assert launch(f"sys.exit({code})") == code


def test_ranks_know_their_place_and_leave_cores_to_each_other(launch, capfd, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS"]
    assert launch(f"print(*[os.environ[n] for n in {names}], file=sys.stderr)", ranks=2) == 0
    threads = max(1, available_cores() // 2)
    assert capfd.readouterr().err.split() == ["0", "0", "2", "2", "127.0.0.1", str(threads)]  # rank 1's is kept back


def test_a_killed_rank_is_named_and_the_others_end(launch):
    with pytest.raises(LostRankError, match=r"rank 1 was killed by SIGKILL \(is memory short\?\)"):
        launch("os.kill(os.getpid(), signal.SIGKILL) if rank == 1 else time.sleep(60)", ranks=3)


def test_a_rank_that_fails_by_itself_is_named_with_its_last_words(launch, capfd):
    with pytest.raises(LostRankError, match="rank 2 failed with exit code 1: KeyError: 'x'"):
        # The others lose it after it has failed, also on a busy machine.
        launch("{}['x'] if rank == 2 else (time.sleep(2), sys.exit(4))", ranks=3)
    assert "[rank 2] Traceback" in capfd.readouterr().err


def test_bad_input_that_rank_0_told_of_is_not_told_again(launch):
    with pytest.raises(FirstRankError):
        launch("sys.exit(2)")


def test_bad_input_of_another_rank_is_told(launch):
    with pytest.raises(UserError, match="rank 1: no room on its disk"):
        launch("rank and print('danalab: error: no room on its disk', file=sys.stderr); sys.exit(2 if rank else 4)")


@pytest.mark.sample(1)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 85), (signal.SIGINT, 130), (signal.SIGUSR1, 85)])
def test_signals_reach_all_ranks_which_have_all_the_time_they_need(launch, tmp_path, number, code):
    script = f"""
signal.signal({int(number)}, lambda *_: (time.sleep(0.5), sys.exit({code})))
READY
open({str(tmp_path)!r} + "/" + str(rank), "w").close()
time.sleep(60)"""

    def send() -> None:
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    assert launch(script) == code
    thread.join()


@pytest.mark.sample(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_waits_until_ranks_have_handlers(launch, tmp_path, number):
    script = f"""
open({str(tmp_path)!r} + "/" + str(rank), "w").close()
time.sleep(0.5)
signal.signal({int(number)}, lambda *_: sys.exit(3))
READY
time.sleep(60)"""

    def send() -> None:
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    assert launch(script) == 3
    thread.join()


def test_a_signal_between_the_starts_of_two_ranks_reaches_both(launch, monkeypatch):
    start = launcher._start

    def signalled(rank: int, *rest):
        if rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return start(rank, *rest)

    monkeypatch.setattr(launcher, "_start", signalled)
    assert launch("signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\nREADY\ntime.sleep(60)") == 3


def test_a_signal_that_came_before_the_launch_starts_no_rank():
    stop = StopRequest()
    stop.signal = signal.SIGTERM
    assert launcher.launch(CONFIG, 2, "cpu", stop) == 85


def test_more_ranks_than_gpus_are_refused(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match="has 1 GPUs; give --nproc 1"):
        launcher.launch(CONFIG, 2, "cuda", StopRequest())


# ---- workers of DiLoCo ----

WORKERS = TrainConfig(heads=3, distributed_backend="diloco")


def test_a_worker_that_dies_is_started_again(launch, tmp_path, caplog):
    died = tmp_path / "died"
    script = f"""
if rank == 1 and not os.path.exists({str(died)!r}):
    open({str(died)!r}, "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert launch(script, 3, WORKERS) == 0
    assert caplog.messages == ["worker 1 was killed by SIGKILL; it is restarted"]


def test_a_run_ends_as_its_first_worker_does_whatever_became_of_the_others(launch, caplog):
    assert launch("sys.exit(0 if rank == 0 else 1)", 2, WORKERS) == 0
    assert caplog.messages[-1] == "worker 1 failed (code 1); the run ended without it"
    assert sum("restarted" in message for message in caplog.messages) == RESTARTS
    with pytest.raises(LostRankError, match="rank 0 failed with exit code 1"):
        launch("sys.exit(1 if rank == 0 else 0)", 2, WORKERS)
