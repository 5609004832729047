"""The machine: compilers that are not there, stop signals, random states."""

from __future__ import annotations

import os
import random
import signal

import numpy as np
import pytest
import torch

from danalab import native_library
from danalab.errors import UserError
from danalab.train.system import device as device_module
from danalab.train.system.device import (
    autocast_dtype,
    choose_device,
    explain_errors,
    random_state,
    restore_random_state,
    seed_everything,
    versions,
)
from danalab.train.system.signals import StopRequest


@pytest.mark.parametrize("name", ["abacus", "meta", "mps", "cpu:x", ""])
def test_a_device_that_cannot_train_is_refused(name):
    with pytest.raises(UserError, match=f"--device {name}: "):
        choose_device(name)


def test_an_apple_gpu_is_chosen_where_torch_has_one(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    mps = choose_device("mps")
    assert mps.type == device_module.device_type("mps") == "mps"
    assert autocast_dtype("float32", mps) is None
    assert autocast_dtype("bfloat16", mps) == torch.bfloat16
    with pytest.raises(UserError, match="on mps give float32 or bfloat16"):
        autocast_dtype("float16", mps)


@pytest.mark.parametrize(
    ("flags", "held_to", "warns"),
    [
        ("fma avx2 avx512f", "AVX512", True),
        ("avx512_bf16 avx512f", "AVX512", False),
        ("avx512_bf16 avx512f", "AVX2", True),
        ("asimd bf16", "DEFAULT", False),
        (None, "AVX512", True),
    ],
)
def test_bfloat16_on_a_cpu_is_warned_of_only_where_it_is_slow(
    monkeypatch, caplog, tmp_path, flags, held_to, warns
):
    cpuinfo = tmp_path / "cpuinfo"
    if flags is not None:
        cpuinfo.write_text(f"model name : abacus\nflags : {flags}\n")
    facts = native_library.processor(cpuinfo)
    monkeypatch.setattr(native_library, "processor", lambda: facts)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: held_to)
    assert autocast_dtype("bfloat16", torch.device("cpu")) == torch.bfloat16
    assert ("slower than float32" in caplog.text) == warns


def test_running_out_of_memory_gives_advice():
    with pytest.raises(UserError, match="--batch-size"), explain_errors(8, 128):
        torch.empty(2**55)


def test_random_states_come_back_through_json():
    import json

    seed_everything(5)
    state = json.loads(json.dumps(random_state()))
    drawn = random.random(), np.random.rand(), torch.rand(3)
    restore_random_state(state)
    assert (random.random(), np.random.rand()) == drawn[:2]
    assert torch.equal(torch.rand(3), drawn[2])


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 85), (signal.SIGUSR1, 85), (signal.SIGINT, 130)]
)
def test_signals_become_a_request_and_an_exit_code(number, code):
    before = signal.getsignal(number)
    with StopRequest() as stop:
        assert not stop
        os.kill(os.getpid(), number)
        assert stop
        assert stop.exit_code == code
    assert signal.getsignal(number) == before


def test_the_commit_of_a_run_is_that_of_the_source_tree():
    commit = versions()["git_commit"]
    assert commit is None or len(commit.removesuffix("-dirty")) == 40
