"""Our models in the names and layouts of `transformers`, and back: exact, by permutations. Needs no transformers.

gpt                            GPT2LMHeadModel                          `gpt2`
llama                          LlamaForCausalLM                         `llama_qwen`
qwen3 without attention gate   Qwen3ForCausalLM                         `llama_qwen`
qwen3next                      Qwen3NextForCausalLM                     `qwen3_next`
enoki, qwen3, llama            otherwise, but for experts, a class of ours, `modeling_danalab.py`, exported beside the
                               weights; `from_pretrained(FOLDER, trust_remote_code=True)` runs it
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from danalab.errors import UserError
from danalab.models import build_model
from danalab.models.canonical import Weights, require_shapes
from danalab.models.config import ModelConfig
from danalab.models.huggingface import gpt2, llama_qwen, qwen3_next
from danalab.models.huggingface.common import from_weights, published_names, to_weights

MODEL_TYPE = "danalab"
ARCHITECTURES = ("enoki", "qwen3", "llama")
"""Architectures that our class computes, with most of their options."""
MODULE = Path(__file__).with_name("modeling_danalab.py")
"""The file of our class."""
_CLASSES = {
    "gpt": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3next": "Qwen3NextForCausalLM",
}
_MODEL_TYPES = {"gpt2": "gpt", "llama": "llama", "qwen3": "qwen3", "qwen3_next": "qwen3next"}
_LAYOUTS = {"gpt": gpt2, "llama": llama_qwen, "qwen3": llama_qwen, "qwen3next": qwen3_next}


def to_huggingface(config: ModelConfig, weights: Mapping[str, Tensor]) -> tuple[dict[str, Any], Weights]:
    """(config.json, named tensors) of `transformers` for a model and its state dict; UserError: no such class."""
    if require_class(config):
        return module_settings(config), dict(weights)
    described = {
        "architectures": [_CLASSES[config.arch]],
        "vocab_size": config.vocab_size,
        "use_cache": True,
        "tie_word_embeddings": config.choice("tied_head"),
    }
    layout = _LAYOUTS[config.arch]
    return described | layout.to_settings(config), to_weights(layout.entries(config), weights)


def require_class(config: ModelConfig) -> bool:
    """Whether the class that computes this model's function is ours, not one of `transformers`; a UserError: none."""
    reason = _obstacle(config)
    if reason is None:
        return False
    plain = config.sparsity is None and config.rotated == config.head_dim
    if config.arch not in ARCHITECTURES or not plain or config.choice("norm") == "rmsnorm-1p":
        raise UserError(reason)
    return True


def _obstacle(config: ModelConfig) -> str | None:
    """What the class of `transformers` lacks for this model; None where it has all."""
    if config.arch not in _CLASSES:
        known = ", ".join(sorted({*_CLASSES, *ARCHITECTURES}))
        return f"transformers has no class for {config.arch} like this; what can be exported: {known}"
    wanted: dict[str, tuple[object, object]] = {
        "attention_gate": (config.choice("attention_gate"), config.arch == "qwen3next"),
        "qk_norm": (config.choice("qk_norm"), config.architecture.qk_norm),
        "norm": (config.choice("norm"), config.architecture.norm),
        "residual_scale": (config.residual_scale, 1.0),
    }
    if config.arch == "gpt":
        wanted["n_kv_heads"] = (config.kv_heads, config.n_heads)
        wanted["n_heads x head_dim"] = (config.n_heads * config.head_dim, config.d_model)
    if config.arch == "llama":  # its configuration class requires it
        wanted["d_model modulo n_heads"] = (config.d_model % config.n_heads, 0)
    if config.arch == "qwen3next":
        wanted["shared_expert_gate"] = (config.sparsity is not None and config.sparsity.shared_gate, True)
        linear = config.linear_attention
        wanted["layers with attention"] = (linear is None or len(linear.layers) < config.n_layers, True)
    else:
        wanted["experts"] = (config.sparsity is not None, False)
        wanted["rotary_dim"] = (config.rotated, config.head_dim)
    for name, (is_, must_be) in wanted.items():
        if is_ != must_be:
            return f"{_CLASSES[config.arch]} has {name} = {must_be} only: a {config.arch} with {is_} cannot be exported"
    return None


def from_huggingface(
    described: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> tuple[ModelConfig, Weights]:
    """(configuration, state dict) of our model for a config.json and named tensors of `transformers`.

    UserError: another kind of model, a setting that our models do not support, or weights that are missing, unknown or
    of a wrong shape.
    """
    kind = described.get("model_type")
    if kind == MODEL_TYPE:
        if not isinstance(model := described.get("danalab_model"), dict):
            raise UserError("config.json of a danalab model has no 'danalab_model'")
        config = ModelConfig.from_dict(model)
        expected = build_model(config, device="meta").state_dict()
        require_shapes(weights, {name: tensor.shape for name, tensor in expected.items()})
        return config, dict(weights)
    if not isinstance(kind, str) or kind not in _MODEL_TYPES:
        raise UserError(
            f"model_type '{kind}' cannot be imported; what can: {', '.join(_MODEL_TYPES)}, danalab"
        )
    try:
        config = _LAYOUTS[_MODEL_TYPES[kind]].from_settings(described)
    except KeyError as error:
        raise UserError(f"config.json of a {kind} model has no '{error.args[0]}'") from None
    except (TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise UserError(f"config.json of a {kind} model cannot be used: {error}") from None
    named = published_names(weights, "transformer." if kind == "gpt2" else "model.")
    if config.choice("tied_head"):
        named.pop("lm_head.weight", None)
    return config, from_weights(_LAYOUTS[config.arch].entries(config), named)


def module_settings(config: ModelConfig) -> dict[str, Any]:
    """config.json for our class; the weights keep their names."""
    return {
        "architectures": ["DanalabForCausalLM"],
        "model_type": MODEL_TYPE,
        "auto_map": {
            "AutoConfig": f"{MODULE.stem}.DanalabConfig",
            "AutoModelForCausalLM": f"{MODULE.stem}.DanalabForCausalLM",
        },
        "d_model": config.d_model,
        "n_layers": config.n_layers,
        "mlp_dim": config.mlp_dim,
        "vocab_size": config.vocab_size,
        "seq_len": config.seq_len,
        "norm_eps": config.norm_eps,
        "residual_scale": config.residual_scale,
        "norm": config.choice("norm"),
        "tie_word_embeddings": config.choice("tied_head"),
        "use_cache": True,
        "danalab_model": config.as_dict(),
        "n_heads": config.n_heads,
        "n_kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "attention_gate": config.choice("attention_gate"),
        "qk_norm": config.choice("qk_norm"),
        "swiglu": config.architecture.activation == "swiglu",
        "rope_base": config.rope_theta,
    }
