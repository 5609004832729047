"""Speed of experts: forward and backward of the layer against Python loops over experts, with the same weights.

    dense loop      applies every expert to every token, times the router's weight, which is 0 for other experts
    stacked loop    weights as ours, [experts, out, in]; for each expert: select its tokens by a mask and its matrices
                    by indexing, then `index_add_` the outputs. As Mixtral and Qwen3-MoE in transformers
    module loop     the same with separate matrices for each expert: no indexing of stacks

All compute the same numbers, which is checked. The dense loop does experts / top_k times the necessary work. The
stacked loop loses time mostly in the gradient: that of one expert's matrices is a stack of zeros with one part set,
allocated and added for each expert. The module loop loses only the copies around its products. Freed memory stays with
the process, as in the trainer.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from danalab.models import ModelConfig
from danalab.models.moe import MixtureOfExperts
from danalab.train.system.device import machine, tune_malloc
from danalab_bench.timing import Say, interleaved, ratios, spread, wall_clock


@dataclass(frozen=True)
class ExpertCase:
    """A layer and its input."""

    expert_dim: int
    d_model: int = 512
    tokens: int = 4096
    n_experts: int = 16
    top_k: int = 2
    dtype: str = "float32"
    """Of the products; "bfloat16": by autocast; weights and routing stay float32."""


CASES = (ExpertCase(256), ExpertCase(1024), ExpertCase(256, dtype="bfloat16"), ExpertCase(1024, dtype="bfloat16"))
_LARGEST_ERROR = {"float32": 1e-5, "bfloat16": 2e-2}
"""Largest relative norm of the difference between two contenders."""


def measure(cases: Sequence[ExpertCase], rounds: int, say: Say) -> dict[str, Any]:
    """Measure each case on the CPU; see `danalab bench moe`."""
    tuned, rows = tune_malloc(), []
    for case in cases:
        rows.append(_measure(case, rounds))
        say(_line(rows[-1]))
    return {"benchmark": "moe", "machine": machine("cpu"), "rounds": rounds, "keeps_memory": tuned, "cases": rows}


def _line(row: dict[str, Any]) -> str:
    times, over = row["seconds"], row["speed_over"]
    return (
        f"{row['top_k']} of {row['n_experts']} experts of {row['expert_dim']}, d_model {row['d_model']},"
        f" {row['tokens']} tokens, {row['dtype']}: {1e3 * times['grouped']['median']:.0f} ms forward and backward;"
        + ",".join(f" {against['median']:.2f} times as fast as the {name}" for name, against in over.items())
    )


def _measure(case: ExpertCase, rounds: int) -> dict[str, Any]:
    config = ModelConfig(
        "llama", case.d_model, 1, 8, case.d_model // 8, case.expert_dim, 64, 64,
        n_experts=case.n_experts, top_k=case.top_k,
    )  # fmt: skip
    grouped = MixtureOfExperts(config)
    draw = torch.Generator().manual_seed(0)
    for parameter in grouped.parameters():
        nn.init.normal_(parameter, 0.0, 0.02, generator=draw)
    x = torch.randn(1, case.tokens, case.d_model, generator=draw)
    upstream = torch.randn(x.shape, generator=draw)
    layers = {
        "grouped": grouped,
        "dense loop": DenseLoop(grouped),
        "stacked loop": StackedLoop(grouped),
        "module loop": ModuleLoop(grouped),
    }
    work = {name: _work(layer, x, upstream, case.dtype) for name, layer in layers.items()}
    results = {name: once() for name, once in work.items()}
    for name, outputs in results.items():
        for ours, theirs in zip(results["grouped"], outputs, strict=True):
            error = float((ours - theirs).norm() / theirs.norm())
            assert error < _LARGEST_ERROR[case.dtype], f"{name}: {error}"
    times = interleaved(work, rounds, wall_clock)
    return {
        **asdict(case),
        "seconds": {name: spread(seconds) for name, seconds in times.items()},
        "speed_over": {name: ratios(times[name], times["grouped"]) for name in layers if name != "grouped"},
    }


def _work(layer: nn.Module, x: Tensor, upstream: Tensor, dtype: str) -> Callable[[], tuple[Tensor, Tensor]]:
    """Forward and backward; (output, gradient of x)."""

    def once() -> tuple[Tensor, Tensor]:
        layer.zero_grad()
        leaf = x.detach().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            y = layer(leaf)
        y = y[0] if isinstance(y, tuple) else y
        y.backward(upstream.to(y.dtype))
        assert leaf.grad is not None
        return y.detach().float(), leaf.grad

    return once


class _Loop(nn.Module):
    """A loop over experts; subclasses hold the matrices."""

    def __init__(self, like: MixtureOfExperts):
        super().__init__()
        self.router = nn.Parameter(like.router.map.weight.detach().clone())
        self.n_experts, self.top_k = like.router.n_experts, like.router.top_k

    def matrices(self, expert: int) -> tuple[Tensor, Tensor, Tensor]:
        """Gate, up and down of an expert."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, -2)
        with torch.autocast("cpu", enabled=False):  # as ours; otherwise other experts might be chosen
            weights, chosen = F.linear(flat, self.router).softmax(-1).topk(self.top_k, dim=-1)
            weights = weights / weights.sum(-1, keepdim=True)
        return self.mixed(flat, weights, chosen).view_as(x)

    def mixed(self, flat: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """[T, D] of tokens [T, D] with the experts and weights [T, K] of each."""
        mask = F.one_hot(chosen, self.n_experts).permute(2, 1, 0)
        total = torch.zeros_like(flat)
        for expert in range(self.n_experts):
            place, token = torch.where(mask[expert])
            output = self.expert_output(expert, flat[token]) * weights[token, place, None]
            total.index_add_(0, token, output.to(total.dtype))
        return total

    def expert_output(self, expert: int, rows: Tensor) -> Tensor:
        """SwiGLU of one expert."""
        gate, up, down = self.matrices(expert)
        return F.linear(F.silu(F.linear(rows, gate)) * F.linear(rows, up), down)


class StackedLoop(_Loop):
    """Stacked matrices, gate and up concatenated, as in transformers."""

    def __init__(self, like: MixtureOfExperts):
        super().__init__(like)
        assert like.experts.gate is not None
        self.gate_up = nn.Parameter(torch.cat((like.experts.gate.weight, like.experts.up.weight), dim=1).detach())
        self.down = nn.Parameter(like.experts.down.weight.detach().clone())

    def matrices(self, expert: int) -> tuple[Tensor, Tensor, Tensor]:
        gate, up = self.gate_up[expert].chunk(2)
        return gate, up, self.down[expert]


class ModuleLoop(_Loop):
    """Separate matrices for each expert."""

    def __init__(self, like: MixtureOfExperts):
        super().__init__(like)
        assert like.experts.gate is not None
        stacks = (like.experts.gate.weight, like.experts.up.weight, like.experts.down.weight)
        self.own = nn.ModuleList(
            nn.ParameterList([nn.Parameter(stack[expert].detach().clone()) for stack in stacks])
            for expert in range(self.n_experts)
        )

    def matrices(self, expert: int) -> tuple[Tensor, Tensor, Tensor]:
        gate, up, down = self.own[expert]  # pyright: ignore[reportGeneralTypeIssues]
        return gate, up, down


class DenseLoop(ModuleLoop):
    """Every expert on all tokens."""

    def mixed(self, flat: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        of_expert = torch.zeros(len(flat), self.n_experts, dtype=weights.dtype).scatter(1, chosen, weights)
        total = torch.zeros_like(flat)
        for expert in range(self.n_experts):
            total = total + of_expert[:, expert, None] * self.expert_output(expert, flat)
        return total
