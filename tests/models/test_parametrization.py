"""Parametrizations: initial weights, rates and eps follow from width and depth; weights that compute are as before."""

from __future__ import annotations

import pytest
import torch

from danalab.models import ModelConfig, build_model
from danalab.optim import build_optimizer
from danalab.optim.distributed.zero import DistributedMuonAdamW

MUP = {"parametrization": "mup", "base_d_model": 32}
COMPLETEP = {"parametrization": "completep", "base_d_model": 32, "base_n_layers": 2}


def config(arch="enoki", d_model=64, n_layers=2, **given):
    return ModelConfig(arch, d_model, n_layers, d_model // 16, 16, 4 * d_model, 61, 16, **given)


def model(*args, **given):
    return build_model(config(*args, **given), seed=1)


def rates(of, opt="adamw", **settings):
    """Parameter name -> its group."""
    optimizer = build_optimizer(opt, of, lr=1e-2, **settings)
    names = {id(p): name for name, p in of.named_parameters()}
    return {names[id(p)]: group for group in optimizer.param_groups for p in group["params"]}


@pytest.mark.parametrize("arch", ["enoki", "qwen3", "gpt", "llama"])
@pytest.mark.parametrize("given", [MUP, COMPLETEP], ids=["mup", "completep"])
def test_the_base_model_is_the_standard_one(arch, given):
    ours, standard = model(arch, 32, **given), model(arch, 32)
    for (name, p), q in zip(ours.named_parameters(), standard.parameters(), strict=True):
        assert torch.equal(p, q), name
    assert len(build_optimizer("adana", ours).param_groups) == 2


@pytest.mark.parametrize("init", ["scaled-gpt", "karpathy-gpt2", "standard"])
def test_initial_weights_follow_from_those_of_the_base_model(init):
    def deviations(**given):
        of = build_model(config(**given), init=init)
        return {name: float(p.detach().std()) for name, p in of.named_parameters() if p.ndim == 2}

    base, wide = deviations(d_model=32), deviations(d_model=512, n_layers=8, **COMPLETEP)  # m = 16, l = 4
    for name, deviation in base.items():
        factor = 1 / 16 if "output_head" in name else 1.0 if "token" in name else 1 / 4
        factor /= 4 if name.endswith(("out.weight", "down.weight")) else 1
        assert wide[name] == pytest.approx(factor * deviation, rel=0.06), name


def test_rates_and_eps_are_those_of_the_table():
    groups = rates(model(n_layers=8, **COMPLETEP), eps=1e-8)
    block = "blocks.3."
    expected = {  # m = 2, l = 4
        "token_embedding.weight": (1, 1 / 2),
        f"{block}attention.q.weight": (1 / 2, 1 / 8),
        f"{block}mlp.up.weight": (1 / 2, 1 / 8),
        f"{block}attention.out.weight": (1 / 8, 1 / 2),
        f"{block}mlp.down.weight": (1 / 8, 1 / 2),
        f"{block}mlp_norm.weight": (1, 1 / 8),
        f"{block}attention.q_norm.weight": (1, 1 / 8),
        "final_norm.weight": (1, 1 / 2),
        "output_head.weight": (1 / 2, 1),
    }
    for name, (rate, eps) in expected.items():
        assert (groups[name]["lr"], groups[name]["eps"]) == pytest.approx((1e-2 * rate, 1e-8 * eps)), name
    mup = rates(model(n_layers=8, **MUP), eps=1e-8)
    assert {group["eps"] for group in mup.values()} == {1e-8}
    assert mup[f"{block}mlp.down.weight"]["lr"] == pytest.approx(5e-3)


def test_a_tied_head_has_its_factor_in_the_last_norm_and_biases_of_residual_maps_that_of_depth():
    of = model("gpt", n_layers=8, **COMPLETEP)
    groups, weights = rates(of, eps=1e-8), dict(of.named_parameters())
    for part in ("weight", "bias"):
        assert (groups[f"final_norm.{part}"]["lr"], groups[f"final_norm.{part}"]["eps"]) == pytest.approx((5e-3, 1e-8))
    assert set(weights["final_norm.weight"].tolist()) == {0.5}
    assert groups["token_embedding.weight"]["lr"] == groups["position_embedding.weight"]["lr"] == 1e-2
    assert groups["blocks.0.mlp.down.bias"]["lr"] == pytest.approx(2.5e-3)
    assert groups["blocks.0.mlp.up.bias"]["lr"] == 1e-2


@pytest.mark.parametrize(
    "opt", ["adamw", "ademamix", "adana", "dana-star-mk4", "adamw-decaying-wd", "snoo-dana", "zero"]
)
def test_a_step_decays_a_weight_as_in_the_base_model(opt):
    """Without gradients' effect: weights of zero gradient shrink by the same share under any factor."""

    def shrunk(**given):
        of = model(**given)
        before = {name: p.detach().clone() for name, p in of.named_parameters()}
        settings = {"omega": 4.0, "horizon": 20}
        if opt == "zero":
            optimizer = DistributedMuonAdamW(of, 1e-2, optimizer="adana", **settings)
        else:
            optimizer = build_optimizer(opt, of, lr=1e-2, **settings)
        for p in of.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
        return {name: float((p.detach() / before[name]).median()) for name, p in of.named_parameters() if p.ndim == 2}

    usual = shrunk()
    assert usual["output_head.weight"] < 1
    assert shrunk(n_layers=2, **MUP) == pytest.approx(usual, rel=1e-5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"parametrization": "nup"}, "unknown parametrization 'nup'.*mup"),
        ({"base_d_model": 32}, "base_d_model 32: parametrization standard does not use it"),
        ({**MUP, "base_n_layers": 2}, "base_n_layers 2: parametrization mup does not use it"),
        ({**MUP, "base_d_model": 0}, "must be at least 1"),
        ({**MUP, "n_experts": 4}, "no rule is known for experts"),
        ({**MUP, "tied_head": True, "norm": "rmsnorm-1p", "arch": "qwen3"}, "tied head after norm rmsnorm-1p"),
    ],
)
def test_what_cannot_be_meant_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        model(**given)


def test_a_parametrization_survives_its_configuration_and_defaults_are_stated():
    config = ModelConfig("enoki", 64, 8, 4, 16, 256, 61, 16, parametrization="completep")
    assert (config.base_d_model, config.base_n_layers) == (256, 2)
    assert ModelConfig.from_dict(config.as_dict()) == config


def test_an_export_computes_the_same(tmp_path):
    from danalab.models.huggingface.convert import from_huggingface, to_huggingface

    of = model("gpt", n_layers=8, **COMPLETEP)
    described, weights = to_huggingface(of.config, of.state_dict())
    config, read = from_huggingface(described, weights)
    other = build_model(config)
    other.load_state_dict(read)
    tokens = torch.arange(12).view(1, 12)
    torch.testing.assert_close(other(tokens), of(tokens))
