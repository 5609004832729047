"""The examples for trainers that are no dependency: with a stand-in of what they call, or a loop of the same form."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from examples.test_trainers import example


class OptimConfig:
    """What OLMo-core 3's configuration of an optimizer does in `build` (olmo_core/optim/config.py)."""

    known: ClassVar[dict[str, type]] = {}

    def __class_getitem__(cls, item):
        return cls

    @classmethod
    def register(cls, name):
        return lambda config: cls.known.setdefault(name, config)

    def build_groups(self, model, strict=True):
        overridden = {name for override in self.group_overrides for name in override.params}
        named = dict(model.named_parameters())
        groups = [
            {"params": [named.pop(name) for name in each.params], **each.opts}
            for each in self.group_overrides
        ]
        assert overridden.isdisjoint(named)
        return [*groups, {"params": list(named.values())}]

    def build(self, model, strict=True):
        settings = dataclasses.asdict(self)
        for name in ("group_overrides", "compile", "fixed_fields"):
            settings.pop(name)
        optimizer = self.optimizer()(self.build_groups(model, strict=strict), **settings)
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        kept = [{name: group[name] for name in self.fixed_fields} for group in optimizer.param_groups]
        optimizer.register_load_state_dict_post_hook(
            lambda loaded: [
                group.update(fields) for fields, group in zip(kept, loaded.param_groups, strict=True)
            ]
        )
        return optimizer


def given_modules(monkeypatch, **modules: Any) -> None:
    for name, content in modules.items():
        module: Any = ModuleType(name.replace("__", "."))
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.fixture
def olmo(monkeypatch):
    fields = [
        ("group_overrides", Any, None),
        ("compile", bool, False),
        ("fixed_fields", tuple, ("initial_lr",)),
    ]
    config = dataclasses.make_dataclass("OptimConfig", fields, bases=(OptimConfig,))
    given_modules(monkeypatch, olmo_core={}, olmo_core__optim={"OptimConfig": config})
    return example("olmo_core_optimizer")


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(16, 8), nn.LayerNorm(8), nn.Linear(8, 16))


def test_olmo_cores_configuration_builds_adana_with_groups_by_kind(olmo):
    assert OptimConfig.known["adana"] is olmo.ADanaConfig
    optimizer = olmo.ADanaConfig(lr=2e-3, horizon=100).build(small_model())
    assert type(optimizer).__name__ == "ADana"
    assert [(len(group["params"]), group["weight_decay"] > 0) for group in optimizer.param_groups] == [
        (1, True),
        (4, False),
    ]
    assert {(group["initial_lr"], group["peak_lr"]) for group in optimizer.param_groups} == {(2e-3, 2e-3)}
    small = olmo.ADanaConfig(lr=1e-3, horizon=100).build(small_model())
    small.load_state_dict(optimizer.state_dict())
    assert {group["initial_lr"] for group in small.param_groups} == {1e-3}, (
        "its hook keeps the configuration's"
    )


class GPT(nn.Module):
    """The names of LitGPT's model, in its order (litgpt/model.py)."""

    def __init__(self, layers):
        super().__init__()
        self.lm_head = nn.Linear(8, 16, bias=False)
        blocks = nn.ModuleList(
            nn.ModuleDict({"norm_1": nn.LayerNorm(8), "attn": nn.ModuleDict({"qkv": nn.Linear(8, 24)})})
            for _ in range(layers)
        )
        self.transformer = nn.ModuleDict({"wte": nn.Embedding(16, 8), "h": blocks, "ln_f": nn.LayerNorm(8)})


def instantiate_torch_optimizer(optimizer, model_parameters, **extra):
    """As litgpt/utils.py: arguments that the signature has not are left out."""
    module, name = optimizer["class_path"].rsplit(".", 1)
    make = getattr(importlib.import_module(module), name)
    extra = {key: value for key, value in extra.items() if key in inspect.signature(make).parameters}
    return make(model_parameters, **optimizer["init_args"], **extra)


def test_litgpts_class_path_leaves_embeddings_and_gains_undecayed(monkeypatch):
    config = SimpleNamespace(from_name=lambda name: {"pythia-14m": 1}[name])
    given_modules(
        monkeypatch,
        litgpt={"GPT": GPT, "Config": config},
        litgpt__utils={"instantiate_torch_optimizer": instantiate_torch_optimizer},
    )
    module = example("litgpt_optimizer")
    model = GPT(1)
    call = {
        "class_path": f"{module.__name__}.adana",
        "init_args": {"model_name": "pythia-14m", "lr": 2e-3, "horizon": 60},
    }
    optimizer = instantiate_torch_optimizer(call, model.parameters(), fused=False)
    names = {p: name for name, p in model.named_parameters()}
    decayed, plain = ({names[p] for p in group["params"]} for group in optimizer.param_groups)
    assert decayed == {"lm_head.weight", "transformer.h.0.attn.qkv.weight"}
    assert decayed | plain == set(names.values())
    assert optimizer.param_groups[1]["weight_decay"] == 0
    assert optimizer.defaults["lr"] == 2e-3
    with pytest.raises(ValueError, match=r"zip\(\)"):
        instantiate_torch_optimizer(call, GPT(2).parameters())
