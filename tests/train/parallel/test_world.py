"""How a rank joins the others."""

import pytest
import torch
import torch.distributed as dist

from danalab.train.parallel import world
from danalab.train.parallel.layout import Place


@pytest.mark.parametrize("launcher", ["alone", "torchrun", "srun"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_process_group_knows_the_gpu_of_its_rank(launcher, device, monkeypatch):
    chosen, joined = [], []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(
        dist, "init_process_group", lambda backend, **settings: joined.append((backend, settings))
    )
    world._start(Place(3, 8, 2, "localhost", 29500, launcher), device)
    ((backend, settings),) = joined
    gpu = torch.device("cuda", 2) if device == "cuda" else None
    assert (backend, settings["device_id"], chosen) == (
        "gloo" if gpu is None else "nccl",
        gpu,
        [gpu] if gpu else [],
    )
    assert settings["timeout"] == world.FIRST_STEP_TIMEOUT
