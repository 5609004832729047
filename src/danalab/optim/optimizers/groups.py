"""Parameters as a caller passes them, and their kinds: embedding, matrix, experts, router, head or vector.

`experts` are stacked matrices [experts, rows, columns]. Optimizers and weight decay treat the kinds differently.
"""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from torch import Tensor, nn

from danalab.errors import UserError

KINDS = ("embedding", "matrix", "experts", "router", "head", "vector")
DECAYED = ("matrix", "experts", "router", "head")

_HEADS = ("head", "lm_head", "output_head", "unembedding", "unembed", "embed_out")
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


def _declared(model: nn.Module, method: str) -> dict[str, float]:
    """Parameter name -> factor by a method of the model, where that is not 1."""
    own: Any = getattr(unwrapped(model), method, None)
    factors = cast("dict[str, float]", own()) if callable(own) else {}
    return {name: factor for name, factor in factors.items() if factor != 1}


def kind_by_name(name: str, ndim: int) -> str:
    """Kind of a parameter by its name ("" if unknown) and number of dimensions."""
    words = name.lower().split(".")[-2:]
    if ndim < 2:
        return "vector"
    if any(word in _HEADS for word in words):  # before embeddings: heads may be called unembed
        return "head"
    return "embedding" if any("embed" in word or word in _EMBEDDINGS for word in words) else "matrix"


def parameter_kinds(model: nn.Module) -> dict[str, str]:
    """Kind of each parameter by name, as `model.named_parameters()` names it.

    A model may declare them in a method `parameter_kinds()`. Otherwise: fewer than two dimensions is a vector; the
    weight of an nn.Embedding, or a name that contains "embed", is an embedding; a linear layer that has a head's name
    or as many outputs as the vocabulary has tokens is a head; the rest are matrices. A weight shared by embedding and
    head counts as an embedding.
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
        if kind != "vector" and id(parameter) in (embeddings | heads):
            kind = "embedding" if id(parameter) in embeddings else "head"
        kinds[name] = kind
    return kinds


OWN_KEYS = ("params", "param_names")
"""Keys of a group that are not settings."""


def parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Two groups of named parameters that require gradients: decayed, and with weight decay 0; no empty ones.

    UserError: no parameter requires gradients.
    """
    named = [(name, p) for name, p in unwrapped(model).named_parameters() if p.requires_grad]
    if not named:
        raise UserError(f"{type(model).__name__}: no parameter requires gradients, there is nothing to optimize")
    return groups_by_decay(named, parameter_kinds(model))


def groups_by_decay(
    named: Iterable[tuple[str, Tensor]], kinds: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Groups of named parameters: decayed, and with weight decay 0. Kinds that are not given are those of the names."""
    groups: list[dict[str, Any]] = [{"params": []}, {"params": [], "weight_decay": 0.0}]
    for name, p in named:
        kind = kind_by_name(name, p.ndim) if kinds is None else kinds[name]
        groups[0 if kind in DECAYED else 1]["params"].append((name, p))
    return [group for group in groups if group["params"]]


def split_by_rate(groups: list[dict[str, Any]], model: nn.Module) -> list[dict[str, Any]]:
    """Groups of named parameters, split by the model's factors on rate and eps: `lr_factor`, `eps_factor`.

    It declares them, by the names of its parameters, in methods `learning_rate_factors()` and `epsilon_factors()`.
    """
    rates, epsilons = _declared(model, "learning_rate_factors"), _declared(model, "epsilon_factors")
    if not rates and not epsilons:
        return groups
    split = []
    for group in groups:
        parts: dict[tuple[float, float], list[Any]] = {}
        for name, parameter in group["params"]:
            parts.setdefault((rates.get(name, 1.0), epsilons.get(name, 1.0)), []).append((name, parameter))
        for (rate, eps), named in sorted(parts.items(), key=lambda part: part[0], reverse=True):
            split.append({**group, "params": named, "lr_factor": rate, "eps_factor": eps})
    return split


def take_factors(group: Any) -> tuple[float, float]:
    """Remove a group's factors on learning rate and eps, and return them."""
    return (group.pop("lr_factor", 1.0), group.pop("eps_factor", 1.0)) if isinstance(group, dict) else (1.0, 1.0)


def apply_factors(group: dict[str, Any], lr: float, eps: float, *, independent: bool) -> None:
    """Multiply a group's learning rate and eps; a step decays its weights as before.

    `independent`: whether weight decay does not follow the learning rate, and only its bound does.
    """
    decay = "decay_bound" if independent else "weight_decay"
    for key, factor in (("lr", lr), ("peak_lr", lr), ("eps", eps), (decay, 1 / lr if lr else 1.0)):
        if factor != 1 and group.get(key) is not None:
            group[key] = group[key] * factor


def named_groups(owner: str, given: Iterable[Any]) -> list[dict[str, Any]]:
    """Parameters, named ones or groups as groups whose "params" are (name, parameter) pairs; the name may be ""."""
    if isinstance(given, Tensor):
        raise UserError(f"{owner}: a single tensor was given; it must be a list of parameters")
    entries = list(given)
    groups = entries if entries and isinstance(entries[0], Mapping) else [{"params": entries}]
    named = []
    for group in groups:
        if not isinstance(group, Mapping) or "params" not in group:
            raise UserError(f"{owner}: a parameter group is a {type(group).__name__}; it must be a dict with 'params'")
        params = group["params"]
        pairs = [_pair(owner, entry) for entry in ([params] if isinstance(params, Tensor) else params)]
        named.append({**group, "params": pairs})
    return named


def require_some(owner: str, groups: Iterable[Mapping[str, Any]]) -> None:
    """Refuse groups without any parameter."""
    if not any(group["params"] for group in groups):
        raise UserError(f"{owner}: no parameters were given, there is nothing to optimize")


def called(name: str, p: Tensor) -> str:
    """Name of a parameter for messages."""
    return f"parameter '{name}'" if name else f"a parameter of shape {tuple(p.shape)}"


def hyper(group: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a group, without its parameters."""
    return {key: value for key, value in group.items() if key not in OWN_KEYS}


def as_given(pairs: Iterable[tuple[str, Tensor]]) -> list[Any]:
    """(name, parameter) pairs as torch takes them: with names if all have one, else without."""
    pairs = list(pairs)
    return pairs if all(name for name, _ in pairs) else [p for _, p in pairs]


def _pair(owner: str, entry: Any) -> tuple[str, Tensor]:
    name, p = entry if isinstance(entry, tuple) and len(entry) == 2 else ("", entry)
    if not isinstance(p, Tensor):
        raise UserError(f"{owner}: cannot optimize a {type(p).__name__}; parameters are tensors")
    return str(name), p
