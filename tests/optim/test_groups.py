"""Kinds of parameters, by the types of modules, by what a model declares, and by names and shapes."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from danalab.models import ModelConfig, build_model
from danalab.optim import DanaMuon
from danalab.optim.groups import (
    decay_groups,
    kind_by_name,
    kind_groups,
    parameter_kinds,
    split_group,
    with_tied,
)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(11, 4)
        self.conv = nn.Conv1d(4, 4, 3)
        self.norm = nn.RMSNorm(4)
        self.router = nn.Linear(4, 2, bias=False)
        self.experts = nn.Parameter(torch.ones(2, 4, 6))
        self.fc = nn.Linear(4, 4)
        self.out = nn.Linear(4, 11, bias=False)  # as wide as the vocabulary
        self.tied = nn.Linear(4, 11, bias=False)
        self.tied.weight = self.wte.weight


KINDS = {
    "wte.weight": "embedding",
    "conv.weight": "matrix",
    "conv.bias": "vector",
    "norm.weight": "vector",
    "router.weight": "router",
    "experts": "experts",
    "fc.weight": "matrix",
    "fc.bias": "vector",
    "out.weight": "head",
}


def test_modules_decide_and_wrappers_do_not_matter():
    assert parameter_kinds(Net()) == KINDS
    assert parameter_kinds(torch.compile(Net())) == KINDS  # pyright: ignore
    found = {name: group["kind"] for group in kind_groups(Net()) for name, _ in group["params"]}
    assert found == KINDS
    decayed, others = decay_groups(Net())
    assert {KINDS[name] for name, _ in decayed["params"]} == {"matrix", "experts", "router", "head"}
    assert {KINDS[name] for name, _ in others["params"]} == {"embedding", "vector"}
    assert others["weight_decay"] == 0.0


@pytest.mark.parametrize("arch", ["enoki", "qwen3", "llama", "gpt"])
def test_models_of_this_package_have_embeddings_heads_and_matrices(arch):
    model = build_model(ModelConfig(arch, 32, 1, 4, 8, 40, 29, 10))
    kinds = parameter_kinds(model)
    assert {"tied" if arch == "gpt" else "embedding", "matrix"} <= set(kinds.values())
    assert all((model.get_parameter(name).ndim < 2) <= (kind == "vector") for name, kind in kinds.items())


def test_a_model_may_declare_kinds_and_what_does_not_decay():
    class Declared(Net):
        def parameter_kinds(self):
            return {"fc.weight": "head"}

        def no_weight_decay(self):
            return {"conv.weight"}

    model = Declared()
    model.out.weight._no_weight_decay = True  # pyright: ignore
    groups = [
        (group["kind"], group.get("weight_decay"), [n for n, _ in group["params"]])
        for group in kind_groups(model)
    ]
    assert ("head", None, ["fc.weight"]) in groups
    assert ("head", 0.0, ["out.weight"]) in groups
    assert ("matrix", 0.0, ["conv.weight"]) in groups
    inside = {n for group in decay_groups(nn.ModuleDict({"net": model}))[:1] for n, _ in group["params"]}
    assert inside == {f"net.{n}" for group in decay_groups(model)[:1] for n, _ in group["params"]}
    assert parameter_kinds(nn.Sequential(model))["0.fc.weight"] == "head"


@pytest.mark.parametrize(
    ("name", "shape", "kind"),
    [
        ("h.0.attn.weight", (8, 8), "matrix"),
        ("wte.weight", (11, 3), "tied"),
        ("transformer.wpe.weight", (11, 3), "tied"),
        ("lm_head.weight", (11, 3), "head"),
        ("blocks.0.mixer.A_log", (4, 4), "vector"),
        ("blocks.0.norm.weight", (4, 4), "vector"),
        ("blocks.0.router.weight", (4, 4), "router"),
        ("blocks.0.experts.up", (4, 8, 8), "experts"),
        ("blocks.0.conv.weight", (4, 2, 9), "matrix"),
        ("", (4,), "vector"),
        ("", (4, 4), "matrix"),
        ("", (2, 8, 8), "experts"),
        ("", (8, 4, 3), "matrix"),
    ],
)
def test_names_and_shapes_decide_where_there_is_no_model(name, shape, kind):
    assert with_tied([kind_by_name(name, shape)]) == [kind]
    [group] = split_group({"params": [(name, torch.ones(shape))], "lr": 0.5})
    assert (group["kind"], group["lr"]) == (kind, 0.5)


def test_a_whole_model_without_names_warns():
    """Nothing tells an embedding from a matrix there."""
    model = Net()
    with pytest.warns(UserWarning, match="without names"):
        DanaMuon(model.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for params in (model, model.named_parameters(), [p for p in model.parameters() if p.ndim == 2]):
            DanaMuon(params)


def test_groups_say_their_kind_and_frozen_models_are_refused():
    assert split_group({"params": torch.ones(3, 3), "kind": "head"})[0]["kind"] == "head"
    assert [split_group({"params": [], "use_muon": use})[0]["kind"] for use in (True, False)] == [
        "matrix",
        "vector",
    ]
    with pytest.raises(ValueError, match="nothing to optimize"):
        kind_groups(Net().requires_grad_(False))
