"""--nproc: how the processes of a run end, and what is said of it. The ranks here train nothing."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

import launched_ranks as ranks_that
from danalab.errors import LostRankError, UserError
from danalab.train.config.train_config import TrainConfig
from danalab.train.parallel.launcher import launch
from danalab.train.run.metrics import last_rows
from danalab.train.system.signals import StopRequest
from danalab.train.trainer import run_training

CONFIG = TrainConfig(heads=3)


@pytest.fixture
def launched(tmp_path) -> Callable[..., int]:
    """launched(what ranks do, backend) -> how a run of two ranks ends."""

    def run(train, backend: str | None = None) -> int:
        config = TrainConfig(heads=3, run_dir=tmp_path, distributed_backend=backend)
        return launch(config, 2, "cpu", StopRequest(), train)

    return run


def test_ranks_know_their_place_and_one_has_the_terminal(launched, tmp_path, capfd):
    assert launched(ranks_that.say_place) == 0
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == [
        "0 0 2 2 127.0.0.1",
        "1 1 2 2 127.0.0.1",
    ]
    assert capfd.readouterr().err == "rank 0 speaks\n"


@pytest.mark.slow
def test_the_code_that_ranks_agree_on_comes_through(launched):
    assert launched(ranks_that.end_with_85) == 85


def test_a_killed_rank_is_named_and_the_others_end(launched):
    with pytest.raises(
        LostRankError, match=r"rank 1 was killed by SIGKILL \(is memory short, or was it stopped\?\)"
    ):
        launched(ranks_that.be_killed)


@pytest.mark.slow
def test_a_rank_that_fails_by_itself_is_named_with_its_last_words(launched, capfd):
    with pytest.raises(LostRankError, match="rank 1 failed with exit code 1: KeyError: 'x'"):
        launched(ranks_that.fail)
    assert "[rank 1] Traceback" in capfd.readouterr().err


@pytest.mark.slow
def test_bad_input_of_a_rank_is_told(launched):
    with pytest.raises(UserError, match="no room on its disk"):
        launched(ranks_that.refuse)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 85), (signal.SIGINT, 130), (signal.SIGUSR1, 85)]
)
@pytest.mark.parametrize("early", [False, True])
def test_signals_reach_all_ranks_which_have_all_the_time_they_need(launched, tmp_path, number, code, early):
    def send() -> None:
        while not early and len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.01)
        time.sleep(0.2)  # early: ranks have started, and have no handlers yet
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    assert launched(ranks_that.wait_for_a_signal) == code
    thread.join()


def test_a_signal_that_came_before_the_launch_starts_no_rank():
    stop = StopRequest()
    stop.signal = signal.SIGTERM
    assert launch(CONFIG, 2, "cpu", stop, ranks_that.say_place) == 85


def test_more_ranks_than_gpus_are_refused(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match="has 1 GPUs; give --nproc 1"):
        launch(CONFIG, 2, "cuda", StopRequest(), ranks_that.say_place)


@pytest.mark.slow
def test_workers_of_diloco_start_again_when_one_dies(launched, tmp_path):
    assert launched(ranks_that.be_killed_once, "diloco") == 0
    assert (tmp_path / "died").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_rank_that_is_stopped_or_lost_ends_the_job_within_one_and_a_half_timeouts(words, tmp_path, number):
    config = TrainConfig(
        data=str(words), d_model=16, n_layers=1, n_heads=1, seq_len=16, batch_size=2, iterations=10**6, lr=1e-3,
        eval_interval=0, log_interval=1, nproc=2, collective_timeout=10.0, run_dir=tmp_path / "run",
    )  # fmt: skip
    since = []

    def stop_one() -> None:
        while len(last_rows(tmp_path / "run" / "metrics.jsonl")) < 3:
            time.sleep(0.05)
        os.kill(max(process.pid or 0 for process in multiprocessing.active_children()), number)
        since.append(time.monotonic())

    thread = threading.Thread(target=stop_one)
    thread.start()
    with pytest.raises(LostRankError, match="rank"):
        run_training(config)
    thread.join()
    assert time.monotonic() - since[0] < 15
