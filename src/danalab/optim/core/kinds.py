"""What a parameter is: embedding, matrix, experts (stacked matrices [experts, rows, columns]), router, head or vector.

Optimizers and weight decay treat them apart.
"""

from __future__ import annotations

from typing import Any, cast

from torch import nn

KINDS = ("embedding", "matrix", "experts", "router", "head", "vector")
DECAYED = ("matrix", "experts", "router", "head")

_HEADS = ("head", "lm_head", "output_head", "unembedding", "unembed")
_EMBEDDINGS = ("wte", "wpe")


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside torch.compile's and DistributedDataParallel's wrappers."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.parallel.DistributedDataParallel):
            inner = model.module
        if inner is None:
            return model
        model = inner


def learning_rate_factors(model: nn.Module) -> dict[str, float]:
    """Parameter name -> what its learning rate is multiplied by, of those that are not to have everyone's.

    A model says so in a method `learning_rate_factors()`.
    """
    own: Any = getattr(unwrapped(model), "learning_rate_factors", None)
    found = cast("dict[str, float]", own()) if callable(own) else {}
    return {name: factor for name, factor in found.items() if factor != 1}


def kind_by_name(name: str, ndim: int) -> str:
    """Kind of a parameter of which only the name ("" if none) and the number of dimensions are known."""
    words = name.lower().split(".")[-2:]
    if ndim < 2:
        return "vector"
    if any("embed" in word or word in _EMBEDDINGS for word in words):
        return "embedding"
    return "head" if any(word in _HEADS for word in words) else "matrix"


def parameter_kinds(model: nn.Module) -> dict[str, str]:
    """Kind of each parameter by name, as `model.named_parameters()` names it.

    A model that knows better says so in a method `parameter_kinds()`. Otherwise: one dimension or none is a vector; the
    weight of an nn.Embedding, or a name that says embedding, is an embedding; a linear layer called head, or as wide as
    the vocabulary, is a head; the rest are matrices. A weight shared by embedding and head counts as an embedding.
    """
    model = unwrapped(model)
    own: Any = getattr(model, "parameter_kinds", None)
    if callable(own):
        return dict(cast("dict[str, str]", own()))
    modules = list(model.modules())
    embeddings = {id(module.weight) for module in modules if isinstance(module, nn.Embedding)}
    vocabularies = {module.num_embeddings for module in modules if isinstance(module, nn.Embedding)}
    heads = {
        id(module.weight)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and (name.split(".")[-1] in _HEADS or module.out_features in vocabularies)
    }
    kinds: dict[str, str] = {}
    for name, parameter in model.named_parameters():
        kind = kind_by_name(name, parameter.ndim)
        if kind != "vector" and id(parameter) in embeddings:
            kind = "embedding"
        elif kind == "matrix" and id(parameter) in heads:
            kind = "head"
        kinds[name] = kind
    return kinds
