"""The FLOPs of each optimizer's own matrix products, against torch's counter."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from danalab.models.config import ModelConfig
from danalab.models.decoder import Decoder
from danalab.optim import build_optimizer, list_optimizers, optimizer_spec
from danalab.optim.catalogue import OPTIMIZERS, own_row
from danalab.optim.optimizers.kinds import parameter_kinds
from danalab.optim.products import fit_interval, kron, none, soap
from danalab.scaling import optimizer_flops
from danalab.models.config import weights

STEPS = 3
SETTINGS = {
    "soap": [{"precondition_frequency": 2}, {"max_precondition_dim": 20}, {"precondition_1d": True},
             {"merge_dims": True, "max_precondition_dim": 30}],
    "kl-soap": [{"precondition_frequency": 3}, {"by_kind": {"matrix": {"precondition_frequency": 1}}},
                {"orthogonalise": True, "ns_steps": 2}],
    "mars": [{"mars_type": "shampoo"}],
    "dion2": [{"fraction": 0.6}],
    "muon": [{"ns_steps": 7, "ns_method": "polar-express"}, {"by_kind": {"experts": {"ns_steps": 2}}},
             {"ns_dtype": "bfloat16"}],
    "adamuon": [{"ns_steps": 2}],
    }  # fmt: skip
CASES = [(opt, own) for opt in list_optimizers() for own in ({}, *SETTINGS.get(opt, []))]
MODEL = ModelConfig(
    arch="qwen3next", d_model=12, n_layers=2, n_heads=2, head_dim=6, mlp_dim=36, vocab_size=40, seq_len=8,
    full_attention_interval=2, n_experts=3, mlp_only_layers=(0,),
)  # fmt: skip


def _counted(opt: str, model: nn.Module, settings: dict[str, Any]) -> int:
    """torch's count of the first steps."""
    total, optimizer = 0, build_optimizer(opt, model, lr=1e-3, **settings)
    for p in model.parameters():
        nn.init.normal_(p)  # MuonH refuses zero matrices
    for _ in range(STEPS):
        for p in model.parameters():
            p.grad = 0.01 * torch.randn_like(p)
        with FlopCounterMode(display=False) as counter:
            optimizer.step()
        total += counter.get_total_flops()
    return total


@pytest.mark.parametrize(("opt", "settings"), CASES, ids=lambda value: value if isinstance(value, str) else None)
def test_rule_is_torchs_count(opt: str, settings: dict[str, Any]) -> None:
    """Of a model with experts, delta rule and attention."""
    torch.manual_seed(0)
    if "merge_dims" not in settings:
        model, ours = Decoder(MODEL), optimizer_flops(opt, MODEL, settings, STEPS)
    else:  # the library merges no matrix that is small as a whole
        own = {"precondition_1d": False, "precondition_frequency": 10, **settings}
        model, ours = nn.Linear(20, 40, bias=False), soap("matrix", (40, 20), own, STEPS)
    assert ours == _counted(opt, model, settings)


@pytest.mark.parametrize("opt", list_optimizers())
def test_elementwise_optimizers_multiply_no_matrices(opt: str) -> None:
    row = OPTIMIZERS.get(opt)
    assert row.flops is none or not row.elementwise
    assert row.flops is not None


def test_an_optimizer_from_outside_is_unknown_unless_it_is_made_from_ours() -> None:
    assert own_row("mine", torch.optim.Rprop).flops is None
    spec = optimizer_spec("muon")
    mine = type("Mine", (spec.build,), {})  # pyright: ignore[reportArgumentType]
    assert own_row("mine", mine).flops is OPTIMIZERS.get("muon").flops


@pytest.mark.parametrize("flat_start", [0, 100, 4000])
def test_fits_of_kron_over_a_run(flat_start: int) -> None:
    """A matrix [1, 1] has 8 FLOPs in every step and 24 in those with a fit."""
    for steps in (1, 99, 3999, 9001):
        fits = sum(t % fit_interval(t, flat_start) == 0 for t in range(1, steps + 1))
        assert kron("matrix", (1, 1), {"flat_start": flat_start}, steps) == 8 * steps + 24 * fits


SHAPES: list[dict[str, Any]] = [
    {"arch": "enoki"}, {"arch": "qwen3", "n_kv_heads": 1}, {"arch": "gpt"}, {"arch": "llama", "tied_head": True},
    {"arch": "gpt", "n_experts": 4, "n_shared_experts": 2, "shared_expert_gate": True, "qk_norm": True},
    {"arch": "moe", "decoder_sparse_step": 2},
    {"arch": "qwen3next", "full_attention_interval": 2, "linear_value_dim": 5},
    {"arch": "resonance", "conv_width": 3, "learned_positions": True}, {"arch": "resonance", "mixer": "none"},
]  # fmt: skip


@pytest.mark.parametrize("settings", SHAPES, ids=lambda settings: settings["arch"])
def test_weights_are_those_of_the_model_as_built(settings: dict[str, Any]) -> None:
    sizes = {"d_model": 12, "n_layers": 2, "n_heads": 2, "head_dim": 6, "mlp_dim": 20, "vocab_size": 32, "seq_len": 8}
    config = ModelConfig(**{**sizes, **settings})
    model = Decoder(config)
    kinds = parameter_kinds(model)
    built: dict[Any, int] = {}
    for name, p in model.named_parameters():
        built[kinds[name], tuple(p.shape)] = built.get((kinds[name], tuple(p.shape)), 0) + 1
    assert dict(weights(config)) == built
