"""Some steps of a tiny model on this rank's part of fixed batches with masked targets: a run's loss curve."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

import torch

from danalab.models import ModelConfig
from danalab.train.parallel.layout import RankLayout
from danalab.train.parallel.strategy import strategy_of
from danalab.train.parallel.world import World, join
from danalab.train.step.gradients import GradientStep, update_norm
from danalab.train.step.loss import CrossEntropy, RouterBalance, TrainingBatch

VOCAB, LENGTH, ROWS, STEPS = 60, 16, 8, 8


@dataclass(frozen=True)
class Case:
    """A way to train; everything but `arch` and `opt` must leave the curve where it is."""

    arch: str
    opt: str
    layout: RankLayout = field(default_factory=RankLayout)
    micro_batch: int = ROWS
    checkpointing: str = "none"
    compiled: bool = False
    steps: int = STEPS


def config(arch: str) -> ModelConfig:
    """Sizes of which some cannot be divided among ranks evenly: the vocabulary of 61."""
    more: dict[str, Any] = {"n_kv_heads": 2} if arch == "qwen3" else {}
    if arch in ("moe", "qwen3next"):
        more = {"n_experts": 4, "n_shared_experts": 1, "load_balance_loss": 0.5}
    if arch == "qwen3next":
        more |= {"expert_dim": 22, "full_attention_interval": 2}
    return ModelConfig(arch, 32, 2, 4, 8, 52, VOCAB + 1, LENGTH, **more)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The global batch of a step; a third of its targets carries no loss, unevenly."""
    draw = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, VOCAB, (ROWS, LENGTH + 1), generator=draw)
    targets = tokens[:, 1:].clone()
    targets[torch.rand(targets.shape, generator=draw) < 0.3] = -1
    targets[step % ROWS, 2:] = -1
    return tokens[:, :-1], targets


def curve(case: Case, world: World | None = None, dtype: torch.dtype | None = None) -> torch.Tensor:
    """(loss, gradient norm, update norm) of each step, [steps, 3]."""
    world = world or World()
    strategy = strategy_of(world.layout.backend)(world)
    model = strategy.build_model(config(case.arch), init="scaled-gpt", seed=0, device=torch.device("cpu"))
    model.set_activation_checkpointing(case.checkpointing)
    if case.compiled:
        for block in model.blocks:
            block.compile()
    strategy.wrap(model, dtype)
    optimizer = strategy.make_optimizer(case.opt, model, lr=1e-3)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    balance = None if model.config.sparsity is None else RouterBalance(model.config, torch.device("cpu"))
    step = GradientStep(
        model,
        parameters,
        micro_batch=case.micro_batch,
        grad_clip=0.5,
        loss=CrossEntropy(1e-4, balance=balance),
        autocast=contextlib.nullcontext if dtype is None else lambda: torch.autocast("cpu", dtype),
        strategy=strategy,
    )
    rows = []
    for number in range(case.steps):
        inputs, targets = batch(number)
        share_of = ROWS // world.dp_size
        own = slice(world.dp_rank * share_of, (world.dp_rank + 1) * share_of)
        result = step(TrainingBatch(inputs[own], targets[own]))
        before = [p.detach().clone() for p in parameters]
        optimizer.step()
        optimizer.zero_grad()
        moved = update_norm(before, parameters)
        rows.append([float(result.loss), float(result.grad_norm), float(moved)])
    return torch.tensor(rows)


def curves(rank: int, size: int, cases: list[Case], dtype: torch.dtype | None = None) -> list[torch.Tensor]:
    """For `run_ranks`: the curve of each case."""
    worlds: dict[RankLayout, World] = {}
    for case in cases:
        if case.layout not in worlds:
            worlds[case.layout] = join(case.layout, "cpu")
    return [curve(case, worlds[case.layout], dtype) for case in cases]
