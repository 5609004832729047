from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from danalab.errors import UserError
from danalab.models.config import ModelConfig

SIZES: dict[str, Any] = {
    "arch": "enoki", "d_model": 32, "n_layers": 2, "n_heads": 4, "head_dim": 8, "mlp_dim": 64, "vocab_size": 61,
    "seq_len": 16,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arch": "enokki"}, "did you mean 'enoki'"),
        ({"arch": "resonance", "d_model": 40}, "4 x 8 = 32, but d_model is 40"),
        ({"d_model": 28, "head_dim": 7}, "head_dim is 7; it must be even"),
        ({"n_kv_heads": 3}, "--n-kv-heads 3 does not divide the 4 heads"),
        ({"n_kv_heads": 0}, "model: malformed: n_kv_heads: Input should be greater than or equal to 1"),
        ({"n_layers": 0}, "n_layers: Input should be greater"),
        ({"n_layers": 2001}, "n_layers: Input should be less than or equal to 2000"),
        ({"vocab_size": -1}, "vocab_size: Input should be greater"),
        ({"seq_len": 16.0}, "seq_len: Input should be a valid integer"),
        ({"norm_eps": 0.0}, "norm_eps: Input should be greater than 0"),
        ({"rope_theta": float("nan")}, "rope_theta: Input should be greater than 0"),
        ({"norm": "rmsnrom"}, "norm: Input should be 'layernorm', 'rmsnorm' or 'rmsnorm-1p'"),
        ({"arch": "gpt", "norm": "rmsnorm"}, "has biases in its norms"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_by_name(changes: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message):
        ModelConfig(**{**SIZES, **changes})


def test_a_config_survives_json():
    config = ModelConfig(**SIZES, n_kv_heads=2, residual_scale=0.5)
    assert ModelConfig.from_dict(json.loads(json.dumps(config.as_dict()))) == config


def test_from_dict_names_unknown_and_missing_settings():
    with pytest.raises(UserError, match="n_head: Unexpected keyword argument"):
        ModelConfig.from_dict({**SIZES, "n_head": 4})
    with pytest.raises(UserError, match="seq_len"):
        ModelConfig.from_dict({name: value for name, value in SIZES.items() if name != "seq_len"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("d_model", "32"), ("d_model", True), ("d_model", 32.0), ("n_layers", None), ("arch", 5), ("norm_eps", "1e-5"),
        ("norm_eps", []), ("attention_gate", "yes"), ("attention_gate", 1), ("mlp_only_layers", "01"),
        ("mlp_only_layers", ["0"]), ("dropout", False), ("residual_scale", {}), ("norm", 3), ("mixer", ["none"]),
    ],
)  # fmt: skip
def test_from_dict_refuses_values_of_another_type_in_one_line_that_names_file_and_setting(
    name: str, value: Any
):
    with pytest.raises(UserError, match=rf"^runs/a/config.json: malformed: {name}.*: Input should be.*$"):
        ModelConfig.from_dict({**SIZES, name: value}, "runs/a/config.json")


def test_defaults_follow_the_architecture_even_after_a_change_of_it():
    enoki = ModelConfig(**SIZES)
    qwen3, gpt = replace(enoki, arch="Qwen3"), replace(enoki, arch="base")
    names = ("attention_gate", "norm", "tied_head", "qk_norm")
    assert [enoki.choice(name) for name in names] == [False, "layernorm", False, True]
    assert [qwen3.choice(name) for name in names] == [True, "rmsnorm", False, True]
    assert [gpt.choice(name) for name in names] == [False, "layernorm", True, False]
    assert (qwen3.arch, gpt.arch, gpt.architecture.biases) == ("qwen3", "gpt", True)


def test_a_config_is_frozen():
    with pytest.raises(FrozenInstanceError):
        ModelConfig(**SIZES).d_model = 64  # pyright: ignore


def test_configuration_and_registry_need_no_torch():
    code = (
        "import sys; from danalab.models import ModelConfig; ModelConfig('enoki', 8, 1, 1, 8, 8, 9, 4);"
        "print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
