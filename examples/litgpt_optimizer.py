"""ADana in LitGPT by its class path; embeddings, gains and biases have no weight decay.

    PYTHONPATH=examples litgpt pretrain pythia-160m --optimizer '{"class_path": "litgpt_optimizer.adana",
        "init_args": {"model_name": "pythia-160m", "lr": 2e-3, "horizon": 10000}}'
    python examples/litgpt_optimizer.py      # the same call on a tiny model

LitGPT (0.5) gives an optimizer the parameters without names. The model's name brings them back: a model of the same
configuration, on the meta device, has its parameters in the same order. LitGPT's loop writes `lr` into the groups, from
`optimizer.defaults["lr"]`, which is the peak.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from litgpt import GPT, Config
from litgpt.utils import instantiate_torch_optimizer
from torch import Tensor, nn

from danalab.optim import ADana
from danalab.optim.groups import DECAYED, kind_by_name

STEPS = 60


def adana(
    params: Iterable[Tensor], model_name: str, lr: float = 1e-3, omega: float = 4.0, **settings: Any
) -> ADana:
    """ADana with two groups, decayed and not; `settings`: horizon [optimizer steps] and others of `ADana`."""
    with torch.device("meta"):
        names = [name for name, _ in GPT(Config.from_name(model_name)).named_parameters()]
    decayed, others = [], []
    for name, p in zip(names, params, strict=True):
        (decayed if kind_by_name(name, tuple(p.shape)) in DECAYED else others).append(p)
    groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    return ADana(groups, lr=lr, omega=omega, **settings)


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """LitGPT's loop: a linear warmup, a cosine, clipped gradients."""
    tokens = torch.arange(48).repeat(4, 1) % 7
    for step in range(STEPS):
        rate = optimizer.defaults["lr"] * min(1, (step + 1) / 4) * (1 - 0.9 * step / STEPS)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 19:
            print(f"step {step + 1:3}  loss {loss:.3f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    model = GPT(Config.from_name("pythia-14m", padded_vocab_size=64))
    given = {"model_name": "pythia-14m", "lr": 2e-3, "horizon": STEPS}
    call = {"class_path": f"{__name__}.adana", "init_args": given}
    train(model, instantiate_torch_optimizer(call, model.parameters()))
