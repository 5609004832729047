"""Cost of a checkpoint: seconds that training is blocked, until it is committed, and until it is loaded again.

Peers save the same tensors: torch.save of one file with an fsync, and torch.distributed.checkpoint, both while training
waits. Ours also hashes every byte, and verifies the hashes before loading; the peers do neither.
"""

import os
import shutil
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn

from danalab.optim import build_optimizer
from danalab.train.checkpoint import tensors as flat
from danalab.train.checkpoint.saver import Saver
from danalab.train.checkpoint.store import CheckpointStore, verify
from danalab_bench.timing import Say, interleaved, machine, ratios, spread, waiting_clock

PEERS = ("torch.save", "torch.distributed.checkpoint")


def measure(
    sizes: Sequence[float], rounds: int, folder: Path | None, say: Say, device: str = "cpu"
) -> dict[str, Any]:
    """Measure each size [million parameters] on the disk of `folder`; see `danalab bench checkpoint`."""
    rows = []
    for size in sizes:
        with tempfile.TemporaryDirectory(dir=folder, prefix="danalab-bench-") as place:
            rows.append(_measure_one(size, rounds, Path(place), device))
        say(line(rows[-1]))
    return {"benchmark": "checkpoint", "machine": machine(device), "rounds": rounds, "sizes": rows}


def line(row: dict[str, Any]) -> str:
    """A size as text."""
    seconds, against = row["seconds"], row["ratios"]
    return (
        f"{row['parameters_millions']:g}M, {row['gib']:.2f} GiB: training blocked {seconds['held up']['median']:.3f} s"
        f" ({against['held up / torch.save']['median']:.2f} of torch.save), committed after"
        f" {seconds['committed']['median']:.2f} s ({against['committed / torch.save']['median']:.2f}), verified and"
        f" loaded in {seconds['loaded']['median']:.2f} s ({against['loaded / torch.load']['median']:.2f} of torch.load)"
    )


class Matrices(nn.Module):
    """Parameters in the shapes of a transformer, about `millions` in total."""

    def __init__(self, millions: float):
        super().__init__()
        width = 512
        count = max(1, round(millions * 1e6 / (4 * width * width)))
        self.weights = nn.ParameterList(torch.randn(4 * width, width) for _ in range(count))


def _measure_one(millions: float, rounds: int, place: Path, device: str) -> dict[str, Any]:
    model = Matrices(millions).to(device)
    optimizer = build_optimizer("adana", model, lr=1e-3)
    state = flat.state_of(model, optimizer)
    collected, _ = flat.flatten(state)
    values = {name: value for name, value in collected.items() if isinstance(value, Tensor)}
    saver = Saver(CheckpointStore(place / "ours"))
    held: list[float] = []
    steps = iter(range(1, 10**6))

    def ours() -> None:
        held.append(saver.save(next(steps), state, {}))
        saver.drain()

    def load() -> None:
        path = saver.store.path(saver.store.steps()[-1])
        verify(path)
        flat.read(path, model, optimizer)

    work = {
        "committed": ours,
        "torch.save": lambda: _torch_save(values, place / "torch.pt"),
        "torch.distributed.checkpoint": lambda: _dcp_save(values, place / "dcp"),
        "loaded": load,
        "torch.load": lambda: _torch_load(values, place / "torch.pt"),
    }
    for warm in (ours, work["torch.save"]):  # loading needs a saved file
        warm()
    held.clear()
    times = interleaved(work, rounds, waiting_clock(device))
    times["held up"] = held[-rounds:]
    pairs = [
        *((ours, peer) for ours in ("held up", "committed") for peer in PEERS),
        ("loaded", "torch.load"),
    ]
    return {
        "parameters_millions": millions,
        "gib": sum(value.numel() * value.element_size() for value in values.values()) / 2**30,
        "seconds": {name: spread(series) for name, series in times.items()},
        "ratios": {f"{one} / {other}": ratios(times[one], times[other]) for one, other in pairs},
    }


def _torch_save(values: dict[str, Tensor], file: Path) -> None:
    with open(file, "wb") as out:
        torch.save(values, out)
        out.flush()
        os.fsync(out.fileno())


def _torch_load(values: dict[str, Tensor], file: Path) -> None:
    loaded = torch.load(file)
    for name, value in values.items():
        value.copy_(loaded[name])


def _dcp_save(values: dict[str, Tensor], folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        dcp.save(dict(values), storage_writer=dcp.FileSystemWriter(folder), no_dist=True)
