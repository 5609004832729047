"""The example for torchtitan, whose configuration is rebuilt here: it is no dependency, and its datasets are older."""

import re
import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest
import torch

from examples.test_trainers import example


@dataclass(kw_only=True)
class ParamGroupConfig:
    pattern: str
    optimizer_name: str
    optimizer_kwargs: dict[str, Any] = field(default_factory=dict)


class OptimizersContainer:
    """The part of torchtitan's that makes optimizers of groups."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        param_groups: list[ParamGroupConfig] = field(default_factory=list)
        implementation: str = "fused"
        optimizer_factory_kwargs_by_name: dict[str, dict[str, Any]] = field(default_factory=dict)

        def build(self, *, model_parts):
            return self.owner(self, model_parts)

    def __init_subclass__(cls):
        cls.Config.owner = cls

    def __init__(self, config, model_parts):
        (model,) = model_parts
        way = {"fused": config.implementation == "fused", "foreach": config.implementation == "foreach"}
        left, groups = dict(model.named_parameters()), {}
        for each in config.param_groups:
            taken = {name: left.pop(name) for name in list(left) if re.search(each.pattern, name)}
            group = {
                "params": list(taken.values()),
                "param_names": list(taken),
                **way,
                **each.optimizer_kwargs,
            }
            groups.setdefault(each.optimizer_name, []).append(group)
        self.optimizers = [
            self._resolve_optimizer_factory(name)(of, **config.optimizer_factory_kwargs_by_name.get(name, {}))
            for name, of in groups.items()
        ]

    @staticmethod
    def _resolve_optimizer_factory(name):
        return {"AdamW": torch.optim.AdamW}[name]


@pytest.fixture
def titan(monkeypatch):
    fake: Any = ModuleType("torchtitan.components.optimizer")
    fake.OptimizersContainer, fake.ParamGroupConfig, fake.LRSchedulersContainer = (
        OptimizersContainer,
        ParamGroupConfig,
        0,
    )
    for name in ("torchtitan", "torchtitan.components"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    return example("torchtitan_optimizer")


def test_groups_of_torchtitans_configuration_become_adanas(titan):
    net = titan.model()
    (optimizer,) = titan.adana(lr=3e-3, steps=60).build(model_parts=[net]).optimizers
    assert type(optimizer).__name__ == "ADana"
    plain, decayed = optimizer.param_groups
    assert {p.ndim for p in decayed["params"]} <= {1, 2}
    assert (plain["weight_decay"], plain["lr"], plain["fused"]) == (0.0, 3e-3, True)
    assert decayed["weight_decay"] > 0
    assert decayed["wd_ts"] == 6.0, "a tenth of the run"
    before = [p.detach().clone() for p in net.parameters()]
    net(torch.ones(4, 16)).sum().backward()
    optimizer.step()
    assert not all(torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True))
    assert optimizer.coefficients()["t"] == 1
