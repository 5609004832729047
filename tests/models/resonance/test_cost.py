"""What a step of resonance costs, counted and not timed: work in proportion to the length, and memory that yields."""

from __future__ import annotations

import math

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from danalab.models import ModelConfig, build_model

LENGTHS = (4096, 32768)


class Work(TorchDispatchMode):
    """Adds up floating-point operations: products, transforms, and one for each number of any other result."""

    def __init__(self):
        super().__init__()
        self.total = 0.0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        tensors = [x for x in args if isinstance(x, torch.Tensor)]
        first = out[0] if isinstance(out, (tuple, list)) else out
        if not isinstance(first, torch.Tensor):
            return out
        if name in ("mm", "bmm", "addmm", "baddbmm", "baddbmm_"):
            self.total += 2 * first.numel() * tensors[-2].shape[-1]
        elif name.startswith("_fft"):
            length = max(first.shape[-1], tensors[0].shape[-1])
            self.total += 2.5 * length * math.log2(length) * first.numel() / first.shape[-1]
        else:
            self.total += first.numel()
        return out


def config(width: int, layers: int, vocab_size: int, seq_len: int) -> ModelConfig:
    return ModelConfig("resonance", width, layers, 8, width // 8, 3 * width, vocab_size, seq_len)


def work_of(length: int) -> float:
    model = build_model(config(64, 1, 64, LENGTHS[-1]), device="meta")
    with Work() as work:
        model.hidden(torch.zeros(1, length, dtype=torch.int64, device="meta")).square().mean().backward()
    return work.total


def test_work_grows_in_proportion_to_the_length():
    first, last = work_of(LENGTHS[0]), work_of(LENGTHS[-1])
    assert 0.9 < math.log(last / first) / math.log(LENGTHS[-1] / LENGTHS[0]) < 1.1


def kept_bytes(mode: str) -> int:
    """Of activations that backward waits for."""
    model = build_model(config(32, 3, 61, 512))
    model.set_activation_checkpointing(mode)
    own = {p.data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor):
        if tensor.data_ptr() not in own:
            kept[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.hidden(torch.zeros(1, 512, dtype=torch.int64))
    return sum(kept.values())


def test_checkpointing_keeps_much_less_for_the_backward_pass():
    assert kept_bytes("full") < 0.3 * kept_bytes("none")
