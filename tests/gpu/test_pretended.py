"""Ways of a GPU that no other test of a device takes, on a CPU that says that it is one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from danalab.data.vocabulary import VocabularyInfo
from danalab.errors import UserError
from danalab.optim import build_optimizer
from danalab.optim.distributed.dtensor import placement
from danalab.optim.distributed.dtensor.placement import Outline
from danalab.optim.distributed.zero.state import OwnedState
from danalab.optim.optimizers.checks import number_of
from danalab.sweep import pool
from danalab.train.config.backends import RankLayout
from danalab.train.config.resolve import resolve
from danalab.train.config.train_config import TrainConfig
from danalab.train.parallel import layout, world
from danalab.train.parallel.launcher import launch
from danalab.train.parallel.layout import Place
from danalab.train.run.folder import RunFolder
from danalab.train.step.memory import fit_memory
from danalab.train.step.optimizer_driver import OptimizerDriver
from danalab.train.system import device as devices
from danalab_annexes.commands.preflight import check_memory, check_resume
from danalab_annexes.train.profiler import ProfilerTrace
from danalab_bench.gpu_pretend import CUDA, NAME, pretend_gpu


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    with pretend_gpu():
        yield


def test_devices_and_number_formats_by_default(monkeypatch):
    assert devices.device_type(None) == "cuda"
    assert devices.choose_device(None) == devices.choose_device("cuda") == CUDA
    assert devices.autocast_dtype(None, CUDA) is devices.autocast_dtype("bfloat16", CUDA) is torch.bfloat16
    assert devices.autocast_dtype("float16", CUDA) is torch.float16
    assert devices.machine("cuda")["gpu"] == NAME
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)
    with pytest.raises(UserError, match=f"{NAME} does not have it"):
        devices.autocast_dtype("bfloat16", CUDA)


def test_a_compiler_needs_triton(monkeypatch):
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: False)
    with pytest.raises(UserError, match="needs Triton"):
        devices.require_compiler(CUDA)


def test_ranks_and_workers_have_a_gpu_each(monkeypatch):
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(layout, "find_place", lambda environ: Place(0, 1, 0, "localhost", 29500, "torchrun"))
    world.join(RankLayout(backend="diloco"), "cuda")
    assert chosen == [torch.device("cuda", 0)]
    assert pool._device_count() == 1
    with pytest.raises(UserError, match="this machine has 1 GPUs; give --nproc 1"):
        launch(TrainConfig(), 2, "cuda", SimpleNamespace())  # pyright: ignore[reportArgumentType]


def test_the_memory_of_a_gpu_is_tried(monkeypatch):
    from danalab.train.step import memory

    config = TrainConfig(d_model=32, n_layers=1, n_heads=2, seq_len=16, vocab_size=64, iterations=2, dtype="float32")
    spec = resolve(config, VocabularyInfo("text", "characters", 64, 64, None))
    tried = []

    def peak(spec, micro_batch, device):
        tried.append((micro_batch, device))
        if micro_batch > 100:
            raise UserError("out of memory")
        return 1.0

    monkeypatch.setattr(memory, "_trial", peak)
    fit = fit_memory(spec, 1)
    assert (fit.tried, fit.device, fit.limit_gib) == (True, NAME, 80.0)
    assert 90 < fit.micro_batch <= 100
    assert {device for _, device in tried} == {CUDA}
    monkeypatch.undo()
    with pretend_gpu():
        assert memory._trial(spec, 2, CUDA) == 1.0


def test_checks_before_a_launch_know_the_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr(
        "danalab_annexes.commands.preflight._tensors", lambda folder, step: {"w": torch.full((1,), float(step))}
    )
    folders = [RunFolder(tmp_path / name) for name in ("whole", "resumed")]
    for number, folder in enumerate(folders):
        folder.path.mkdir()
        folder.metrics_file.write_text(f'{{"step": 1, "train/loss": {number}}}\n')
    trial = SimpleNamespace(rows=[{"memory_gib": 40.0}], steps=4, whole=folders[0], resumed=folders[1])
    spec = SimpleNamespace(
        execution=SimpleNamespace(device_type="cuda"),
        budget=SimpleNamespace(batch_size=4),
        config=SimpleNamespace(deterministic=False),
    )
    assert "40.0 of 80 GiB of the GPU" in check_memory(spec, trial).text
    assert check_resume(spec, trial).status == "warning"


def test_a_profile_is_of_the_device(tmp_path: Path, monkeypatch):
    """Torch's profiler asks the real CUDA: it is a stand-in."""
    asked: list[object] = []

    def profile(activities, **settings):
        asked.extend(activities)
        return SimpleNamespace(start=lambda: None)

    def table(sort_by, **settings):
        asked.append(sort_by)
        return "a table"

    monkeypatch.setattr(torch.profiler, "profile", profile)
    monkeypatch.setattr(
        "danalab_annexes.train.profiler.top_operators", lambda profiler, device: asked.append(device) or []
    )
    context = SimpleNamespace(folder=tmp_path, strategy=SimpleNamespace(world=SimpleNamespace(rank=0)))
    trace = ProfilerTrace(context)  # pyright: ignore[reportArgumentType]
    trace.on_start(0)
    done = SimpleNamespace(
        export_chrome_trace=lambda file: Path(file).touch(), key_averages=lambda: SimpleNamespace(table=table)
    )
    trace._write(done)
    assert asked[1:] == [torch.profiler.ProfilerActivity.CUDA, "self_device_time_total", "device"]


def test_a_number_on_the_device_is_not_read():
    assert number_of("ADana", "lr", torch.tensor(0.1)) == pytest.approx(0.1)
    assert number_of("ADana", "lr", torch.tensor(0.1, device="cuda")) is None


def test_state_is_sent_between_ranks_on_the_device(monkeypatch):
    sent = []
    monkeypatch.setattr(dist, "get_backend", lambda group: "nccl")
    monkeypatch.setattr(dist, "broadcast", lambda buffer, **_: sent.append(buffer.device))
    ours = SimpleNamespace(_ranks=2, _group=None)
    for value in (torch.ones(3), None):
        found = OwnedState._broadcast(ours, value, Outline(torch.ones(3)), 0)  # pyright: ignore
        assert found.device.type == "cpu"
    assert sent == [CUDA, CUDA]
    monkeypatch.setattr(placement.layout, "broadcast_", lambda value, mesh, owner: value)
    state = SimpleNamespace(p=torch.ones(3, device="cuda"), mesh=None, owner=0)
    clock = placement.OwnedFull.to_global(state, torch.tensor(4))  # pyright: ignore[reportArgumentType]
    assert (clock.device.type, int(clock)) == ("cpu", 4)


def test_a_fused_optimizer_of_torch_takes_the_flag_of_a_step_that_is_skipped(monkeypatch):
    p = nn.Parameter(torch.ones(3, device="cuda"))
    p.grad = torch.ones_like(p)
    optimizer = torch.optim.AdamW([p], lr=0.1, fused=True)
    seen = []
    monkeypatch.setattr(optimizer, "step", lambda: seen.append((float(optimizer.found_inf), optimizer.grad_scale)))
    OptimizerDriver(optimizer).step(torch.tensor(False, device="cuda"))
    assert seen == [(1.0, None)]
    assert not hasattr(optimizer, "found_inf")


def test_lists_of_tensors_are_for_devices():
    pytest.importorskip("pytorch_optimizer")
    params = [nn.Parameter(torch.ones(3, 3, device=device)) for device in ("cuda", "cpu")]
    foreach = [build_optimizer("adan", [p], lr=1e-3).defaults["foreach"] for p in params]
    assert foreach == [None, False]
