"""N steps = k steps + SIGKILL + the same command again, bit by bit: weights, moments, clocks, metrics.

Real processes are really killed. They are forked from this one, which has torch loaded, so that a kill costs
milliseconds; one test goes through the command line.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
import torch.distributed.checkpoint as dcp

from danalab.train.config.train_config import TrainConfig
from danalab.train.run.folder import RunFolder
from e2e.disturbed import STEPS, assert_same, config, train_in_child


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
    for call in (5, 20, 10_000):
        assert not ended
        ended = train_in_child(settings, before=lambda call=call: kill_at_call(call))
    assert ended
    assert_same(RunFolder(tmp_path / "run"), undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize(
    "opt",
    ["muon", pytest.param("soap", marks=pytest.mark.slow), pytest.param("sf-adamw", marks=pytest.mark.slow)],
)
def test_resume_is_bitwise_after_kills_with_other_kinds_of_state(data, tmp_path, opt):
    """State of matrices, lists of preconditioners, and weights that are switched for evaluation."""
    pytest.importorskip("pytorch_optimizer")
    assert train_in_child(config(data, tmp_path / "undisturbed", opt))
    settings = config(data, tmp_path / "run", opt)
    assert [train_in_child(settings, before=lambda call=call: kill_at_call(call)) for call in (13, 20, 10_000)] == [
        False, False, True,
    ]  # fmt: skip
    assert_same(RunFolder(tmp_path / "run"), RunFolder(tmp_path / "undisturbed"))


@pytest.mark.slow
def test_resume_is_bitwise_after_a_kill_at_each_of_the_first_disk_waits(data, tmp_path, undisturbed):
    for call in range(1, 41):
        settings = config(data, tmp_path / f"run{call}")
        assert not train_in_child(settings, before=lambda call=call: kill_at_call(call))
        assert train_in_child(settings)
        assert_same(RunFolder(tmp_path / f"run{call}"), undisturbed)


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_command_line_resumes_after_sigterm_with_exit_code_85(data, tmp_path, undisturbed):
    settings = config(data, tmp_path / "run").as_dict()
    flags = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in settings.items()
        if value is not None and value != TrainConfig().as_dict()[name]
    ]
    command = [
        sys.executable,
        "-m",
        "danalab",
        "train",
        *flags,
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
    second = subprocess.run(
        [*command, "--json"], capture_output=True, text=True, env=environment, check=False
    )
    assert second.returncode == 0, second.stderr
    assert json.loads(second.stdout)["status"] == "finished"
    assert_same(RunFolder(tmp_path / "run"), undisturbed)
