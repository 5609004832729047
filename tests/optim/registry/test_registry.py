"""Optimizers by name: groups by kind, settings checked, capabilities declared."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from danalab.errors import UserError
from danalab.optim import ADana, build_optimizer, list_optimizers, optimizer_spec, parameter_kinds
from danalab.optim.optimizers.kinds import KINDS, kind_by_name

FIRST = ["adamw", "adamw-decaying-wd", "adana", "dana-mk4", "dana-star", "dana-star-mk4"]


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.token_embedding = nn.Embedding(11, 4)
        self.pos_embed = nn.Parameter(torch.zeros(6, 4))
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4, bias=False)
        self.norm = nn.LayerNorm(4)
        self.lm_head = nn.Linear(4, 11, bias=False)

    def forward(self, tokens):
        x = self.token_embedding(tokens) + self.pos_embed[: tokens.shape[-1]]
        return self.lm_head(self.norm(x + self.down(self.up(x).relu())))


WANT = {
    "pos_embed": "embedding",
    "token_embedding.weight": "embedding",
    "up.weight": "matrix",
    "up.bias": "vector",
    "down.weight": "matrix",
    "norm.weight": "vector",
    "norm.bias": "vector",
    "lm_head.weight": "head",
}


def test_kinds_follow_from_modules_and_names():
    assert parameter_kinds(Tiny()) == WANT
    assert set(WANT.values()) == set(KINDS) - {"experts", "router"}


def test_kinds_are_the_models_own_where_it_knows_better():
    model = Tiny()
    model.parameter_kinds = lambda: dict.fromkeys(WANT, "vector")
    assert set(parameter_kinds(model).values()) == {"vector"}


def test_a_layer_as_wide_as_the_vocabulary_is_a_head():
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 7))
    kinds = parameter_kinds(model)
    assert (kinds["1.weight"], kinds["2.weight"], kinds["2.bias"]) == ("matrix", "head", "vector")


def test_a_shared_weight_counts_as_an_embedding():
    model = Tiny()
    model.lm_head.weight = model.token_embedding.weight
    assert parameter_kinds(model)["token_embedding.weight"] == "embedding"


@pytest.mark.parametrize("name", ["unembed", "embed_out", "lm_head"])
def test_a_layer_from_hidden_states_to_tokens_is_a_head_whatever_its_name(name):
    model = nn.Module()
    model.embed = nn.Embedding(11, 4)
    setattr(model, name, nn.Linear(4, 11, bias=False))
    assert parameter_kinds(model) == {"embed.weight": "embedding", f"{name}.weight": "head"}
    assert kind_by_name(f"{name}.weight", (11, 4)) == "head"


@pytest.mark.parametrize("name", FIRST)
def test_a_model_is_split_into_decayed_and_not(name):
    optimizer = build_optimizer(name, Tiny(), lr=1e-3, weight_decay=0.1)
    decayed, plain = optimizer.param_groups
    assert decayed["param_names"] == ["up.weight", "down.weight", "lm_head.weight"]
    assert set(plain["param_names"]) == set(WANT) - set(decayed["param_names"])
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)


def test_a_model_that_is_frozen_as_a_whole_is_refused():
    with pytest.raises(UserError, match="nothing to optimize"):
        build_optimizer("adana", Tiny().requires_grad_(False))


def test_a_compiled_model_has_the_names_of_the_model():
    optimizer = build_optimizer("adana", torch.compile(Tiny()))
    assert "up.weight" in optimizer.param_groups[0]["param_names"]


@pytest.mark.parametrize("name", FIRST)
def test_every_optimizer_trains(name):
    torch.manual_seed(0)
    model, tokens = Tiny(), torch.arange(6)[None]
    optimizer = build_optimizer(name, model, lr=1e-2)
    losses = []
    for _ in range(20):
        loss = nn.functional.cross_entropy(model(tokens)[0], tokens[0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_names_are_understood_in_any_spelling():
    p = torch.ones(1, requires_grad=True)
    assert type(build_optimizer("ADana", [p])) is ADana
    assert optimizer_spec("dana_star_mk4").name == "dana-star-mk4"
    assert set(FIRST) <= set(list_optimizers())


def test_unknown_names_and_settings_are_answered_with_the_nearest():
    p = torch.ones(1, requires_grad=True)
    with pytest.raises(UserError, match="did you mean 'adana'"):
        build_optimizer("adanna", [p])
    with pytest.raises(UserError, match="did you mean 'kappa'"):
        build_optimizer("adana", [p], kapa=0.9)
    with pytest.raises(UserError, match="weight_decay"):
        build_optimizer("adamw", [p], weight_decay=-1.0)


def test_specs_declare_what_a_trainer_must_know():
    for name in FIRST:
        spec = optimizer_spec(name)
        assert spec.summary
        assert spec.reference
        assert spec.elementwise
        assert all(setting.help for setting in spec.settings.values())
        assert spec.log_time == name.startswith(("adana", "dana"))
        assert spec.decay == ("coupled" if name == "adamw" else "independent")
    assert optimizer_spec("adana").settings["kappa"].default == 0.85
    assert optimizer_spec("dana-mk4").settings["clipsnr"].default == 2.0
    assert optimizer_spec("adamw").settings["betas"].default == (0.9, 0.999)


@pytest.mark.parametrize("name", [name for name in list_optimizers() if optimizer_spec(name).decay != "none"])
def test_every_optimizer_takes_omega_and_horizon(name):
    pytest.importorskip("pytorch_optimizer")
    optimizer = build_optimizer(name, Tiny(), lr=1e-2, omega=4.0, horizon=1000)
    coupled = optimizer_spec(name).decay == "coupled"
    assert optimizer.param_groups[0]["weight_decay"] == pytest.approx(0.4 if coupled else 0.04)
    shorter = build_optimizer(name, Tiny(), lr=1e-2, omega=4.0, horizon=10).param_groups[0]
    assert shorter["weight_decay" if coupled else "decay_bound"] == (2.0 if optimizer_spec(name).log_time else 1.0)
    if coupled:  # weight decay is omega / (lr horizon); the others' follows the step
        with pytest.raises(UserError, match=r"omega|horizon"):
            build_optimizer(name, Tiny(), lr=1e-2, omega=4.0)


def test_the_name_in_the_readme_is_an_alias():
    assert optimizer_spec("Hyperball").name == "muon-h"


def test_adamw_by_name_is_right_for_parameters_with_gaps_and_fused_for_others():
    """torch's fused kernel for CPUs takes every tensor for a dense one."""
    start = torch.randn(6, 4, 2)
    weights = []
    for built in (
        lambda p: build_optimizer("adamw", [p], lr=0.01),
        lambda p: torch.optim.AdamW([p], lr=0.01, weight_decay=build_optimizer("adamw", [p]).defaults["weight_decay"]),
    ):
        p = torch.nn.Parameter(start.clone()[..., 0])
        optimizer = built(p)
        for _ in range(3):
            p.grad = torch.ones(6, 4)
            optimizer.step()
        weights.append(p.detach().clone())
    assert torch.equal(*weights)
    for p in (torch.ones(3, 2), torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)):
        assert build_optimizer("adamw", [torch.nn.Parameter(p)]).defaults["fused"]
