"""`torch.compile`: of a step, of loss and step in one function, and of every rule's equation, on a CPU.

The steps of our optimizers are kept out of every graph, by `torch._disable_dynamo` on `step`: in a graph their counts
would be constants. What is compiled, on GPUs, are the pure functions, whose scalars are 0-dim tensors.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch._dynamo as dynamo
from torch import nn
from torch._dynamo.utils import counters

from danalab.optim import OPTIMIZERS, SNOO, build_optimizer, kernels
from danalab.optim.base import Optimizer, Rule, step_eagerly
from danalab.optim.baselines import SophiaG
from danalab.optim.muon import Hybrid

OURS = {name: build for name, build in OPTIMIZERS.items() if not isinstance(build, str)} | {"sophia": SophiaG}
"""The others are torch's and a library's."""


def rules() -> dict[str, tuple[Rule, Any]]:
    """Name -> an element-wise rule, and its optimizer."""
    found: dict[str, tuple[Rule, Any]] = {}
    for name, build in OURS.items():
        if isinstance(build, type) and issubclass(build, Hybrid):
            found[name] = build.other_rule, build
        elif isinstance(build, type) and issubclass(build, Optimizer) and build.rule is not None:
            found[name] = build.rule, build
    return found


RULES = rules()


@pytest.fixture(autouse=True)
def fresh_graphs():
    dynamo.reset()
    counters.clear()
    yield
    dynamo.reset()


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.up, self.head = nn.Embedding(7, 4), nn.Linear(4, 6), nn.Linear(6, 7, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.head(self.up(self.embedding(tokens)).relu()), tokens)


def steps_of(name: str, how: str, steps: int) -> list[torch.Tensor]:
    """The weights after some steps, with another learning rate and decay in each; how: eager, step, or loss."""
    model, tokens = Tiny(), torch.arange(7)
    settings = {"k": 3} if name.startswith("snoo") else {}
    optimizer = build_optimizer(name, model, lr=1e-3, weight_decay=0.01, **settings)
    rates = [group["lr"] for group in optimizer.param_groups]

    def whole() -> None:
        model(tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    step: Any = torch.compile(optimizer.step, backend="eager") if how == "step" else optimizer.step
    both: Any = torch.compile(whole, backend="eager") if how == "loss" else whole
    for t in range(steps):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * (1 - t / (2 * steps))
            group["weight_decay"] = 0.01 / (1 + t)
        with dynamo.config.patch(error_on_recompile=t > 2):
            if how == "step":
                model(tokens).backward()
                step()
                optimizer.zero_grad()
            else:
                both()
    return [p.detach() for p in model.parameters()]


@pytest.mark.sample(6)  # all of them are below, outside every graph
@pytest.mark.parametrize("name", OURS)
def test_a_compiled_step_is_the_eager_one(name):
    want = steps_of(name, "eager", 6)
    for how in ("step", "loss"):
        for a, b in zip(steps_of(name, how, 6), want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("name", OURS)
def test_a_thousand_steps_compile_nothing_again(name):
    want = steps_of(name, "eager", 1000)
    for how in ("step", "loss"):
        for a, b in zip(steps_of(name, how, 1000), want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_steps_are_outside_every_graph():
    graphs = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    for name in OURS:
        model = Tiny()
        optimizer = build_optimizer(name, model)
        assert isinstance(optimizer, Optimizer | SNOO)
        model(torch.arange(7)).backward()
        torch.compile(optimizer.step, backend=backend)()
    assert graphs == []


def moved_by(build: Any, step: Any, steps: int) -> list[torch.Tensor]:
    """The weights after steps with given gradients; step: of a list of what moves."""
    torch.manual_seed(0)
    params = [nn.Parameter(torch.randn(shape)) for shape in ((6, 5), (70,), (3, 2))]
    groups = [{"params": params, "kind": "vector"}] if issubclass(build, Hybrid) else params
    optimizer = build(groups, lr=1e-2, weight_decay=0.01)
    generator = torch.Generator().manual_seed(1)
    for t in range(steps):
        optimizer.param_groups[0]["lr"] = 1e-2 * (1 - t / (2 * steps))
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator)
        with torch.no_grad(), dynamo.config.patch(error_on_recompile=t > 2):
            step(list(optimizer.moving(count=False)))
    return [p.detach() for p in params]


def eagerly(rule: Rule) -> Any:
    return lambda moving: [step_eagerly(rule, *each) for each in moving]


def with_tensors(rule: Rule) -> Rule:
    """The rule as a graph, its scalars as 0-dim tensors."""

    def scalars(group: Any, t: int) -> dict[str, Any]:
        return {key: x if x is None else torch.tensor(float(x)) for key, x in rule.scalars(group, t).items()}

    graph = torch.compile(rule.update, backend="eager", fullgraph=True, dynamic=False)
    return dataclasses.replace(rule, update=graph, scalars=scalars)


@pytest.mark.parametrize("name", RULES)
def test_the_graph_of_a_rule_is_its_equation(name):
    rule, build = RULES[name]
    found = moved_by(build, eagerly(with_tensors(rule)), 6)
    for a, b in zip(found, moved_by(build, eagerly(rule), 6), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_the_generated_code_of_a_rule_serves_a_thousand_steps(name):
    rule, build = RULES[name]
    found = moved_by(build, lambda moving: kernels.step_compiled(rule, moving), 1000)
    assert counters["stats"]["unique_graphs"] == 1
    signs = name in ("sign-dana", "sophia")
    for a, b in zip(found, moved_by(build, eagerly(rule), 1000), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=0.05 if signs else 1e-5)  # a sign may turn
