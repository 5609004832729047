"""Parameter groups of a model by what its parameters are: ordinary groups, which a caller can print and edit.

    embedding   a table: nn.Embedding
    tied        the same in a model without a head of its own: one of its tables is the head, too
    vector      a norm's or any other parameter with fewer than two dimensions
    matrix      a linear layer's or a convolution's weight
    experts     a stack of matrices [experts, rows, columns]
    router      a linear layer that chooses experts, by its name
    head        a linear layer with as many outputs as the vocabulary has tokens, or with a head's name

Weight decay acts on matrix, experts, router and head. A model may say it all in a method `parameter_kinds()`,
which returns {name: kind}; parameters without a model are judged by name and shape.
"""

import re
import warnings
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

KINDS = ("matrix", "experts", "router", "head", "tied", "embedding", "vector")
DECAYED = ("matrix", "experts", "router", "head")
ORTHOGONALISED = ("matrix", "experts")

_EMBEDDING = re.compile(r"embed|(^|[._])(wte|wpe|emb|pos|position|cls_token|tokens?)([._]|$)")
_HEAD = re.compile(r"(^|[._])(lm_head|head|unembed|embed_out|classifier|score)([._]|$)")
_NORM = re.compile(r"norm", re.IGNORECASE)


def parameter_kinds(model: nn.Module) -> dict[str, str]:
    """Kind of each parameter, by its name in `model.named_parameters()`."""
    model = unwrapped(model)
    told = dict(declared(model, "parameter_kinds"))
    modules = dict(model.named_modules())
    tables = [module for module in modules.values() if isinstance(module, (nn.Embedding, nn.EmbeddingBag))]
    shared = {id(table.weight) for table in tables}
    vocabularies = {table.num_embeddings for table in tables}
    vocabularies -= {module.in_features for module in modules.values() if isinstance(module, nn.Linear)}
    kinds: dict[str, str] = {}
    for name, p in model.named_parameters():
        if hasattr(p, "_fsdp_flattened") or name.endswith("_flat_param"):
            raise ValueError("FSDP1 keeps parameters as flat shards without rows; use FSDP2 (fully_shard)")
        path, _, own = name.rpartition(".")
        owner = modules.get(path)
        if name in told:
            kinds[name] = told[name]
        elif p.ndim < 2 or _NORM.search(type(owner).__name__):
            kinds[name] = "vector"
        elif id(p) in shared:
            kinds[name] = "embedding"
        elif isinstance(owner, nn.Linear) and own == "weight":
            is_head = owner.out_features in vocabularies or _HEAD.search(path.lower())
            kinds[name] = "router" if "router" in path else "head" if is_head else "matrix"
        elif isinstance(owner, nn.modules.conv._ConvNd):
            kinds[name] = "matrix"
        else:
            kinds[name] = kind_by_name(name, tuple(p.shape))
    return dict(zip(kinds, with_tied(kinds.values()), strict=True))


def kind_by_name(name: str, shape: tuple[int, ...]) -> str:
    """Kind of a parameter by its name ("" is none) and shape."""
    name = name.lower()
    if len(shape) < 2 or re.search(r"norm|(^|[._])(bias|scale|a_log)$", name):
        return "vector"
    if _HEAD.search(name):
        return "head"
    if _EMBEDDING.search(name):
        return "embedding"
    if "router" in name:
        return "router"
    # A kernel [out, in, size] has fewer taps than outputs; experts are fewer than their columns.
    is_stack = len(shape) == 3 and ("expert" in name or shape[2] >= shape[0])
    return "experts" if is_stack and "conv" not in name else "matrix"


def with_tied(kinds: Iterable[str]) -> list[str]:
    """Kinds of all parameters of a model: where none is a head, embeddings are `tied`."""
    kinds = list(kinds)
    return kinds if "head" in kinds else ["tied" if kind == "embedding" else kind for kind in kinds]


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside torch.compile's and DistributedDataParallel's wrappers."""
    while hasattr(model, "_orig_mod") or isinstance(model, nn.parallel.DistributedDataParallel):
        model = model._orig_mod if hasattr(model, "_orig_mod") else model.module  # pyright: ignore
    return model


def undecayed(model: nn.Module) -> set[str]:
    """Names in a module's `no_weight_decay()`, as of timm's models, or marked by `_no_weight_decay`."""
    marked = {name for name, p in model.named_parameters() if getattr(p, "_no_weight_decay", False)}
    return marked | {name for name, _ in declared(model, "no_weight_decay")}


def declared(model: nn.Module, method: str) -> list[tuple[str, Any]]:
    """(name, value) of each parameter that the model or one of its modules names in this method; without
    values the name itself. Inner modules come last: a model inside a wrapper speaks for itself."""
    found: list[tuple[str, Any]] = []
    for path, module in model.named_modules():
        declare: Any = getattr(module, method, None)
        names: Any = declare() if callable(declare) else ()
        values = names if isinstance(names, dict) else {name: name for name in names}
        found += [(f"{path}.{name}" if path else name, value) for name, value in values.items()]
    return found


def decay_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Two groups of named parameters, decayed and not."""
    merged: dict[Any, dict[str, Any]] = {}
    for group in kind_groups(model):
        rest = {key: value for key, value in group.items() if key not in ("params", "kind")}
        merged.setdefault(group.get("weight_decay"), {"params": [], **rest})["params"] += group["params"]
    return list(merged.values())


def kind_groups(model: nn.Module) -> list[dict[str, Any]]:
    """A group of named parameters for each kind, with its `kind`, and weight decay 0 where it does not decay.

    Frozen parameters are in them: they may be unfrozen later. Quantized weights, which are no real numbers,
    are not.
    """
    model = unwrapped(model)
    kinds, without = parameter_kinds(model), undecayed(model)
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError(
            f"{type(model).__name__}: no parameter requires gradients, there is nothing to optimize"
        )
    groups: dict[tuple[str, bool], dict[str, Any]] = {}
    for name, p in model.named_parameters():
        if p.requires_grad or p.is_floating_point():
            decays = kinds[name] in DECAYED and name not in without
            group: dict[str, Any] = {"params": [], "kind": kinds[name]}
            group |= {} if decays else {"weight_decay": 0.0}
            groups.setdefault((kinds[name], decays), group)["params"].append((name, p))
    return sorted(groups.values(), key=lambda group: KINDS.index(group["kind"]))


def split_group(group: dict[str, Any]) -> list[dict[str, Any]]:
    """A caller's group as groups with a `kind`: as it says, or by `use_muon`, or by names and shapes.

    Warns where a whole model seems to come without names: nothing tells its embeddings from matrices then.
    """
    params = [group["params"]] if isinstance(group["params"], Tensor) else list(group["params"])
    rest = {key: value for key, value in group.items() if key not in ("params", "use_muon")}
    if "kind" in group:
        return [{**rest, "params": params}]
    if "use_muon" in group:
        return [{**rest, "params": params, "kind": "matrix" if group["use_muon"] else "vector"}]
    kinds: dict[str, list[Any]] = {}
    named = [entry if isinstance(entry, tuple) else ("", entry) for entry in params]
    found = with_tied(kind_by_name(name, tuple(p.shape)) for name, p in named)
    for entry, kind in zip(params, found, strict=True):
        kinds.setdefault(kind, []).append(entry)
    if {"matrix", "vector"} <= kinds.keys() and not any(isinstance(entry, tuple) for entry in params):
        warnings.warn(
            "parameters without names: embeddings and heads are taken for matrices; "
            "give the model or its named_parameters()",
            stacklevel=7,  # the line that builds the optimizer
        )
    return [{**rest, "params": entries, "kind": kind} for kind, entries in kinds.items()]


def named(groups: Iterable[dict[str, Any]]) -> list[tuple[str, Tensor]]:
    """(name, parameter) of an optimizer's groups; the name is "" where there is none."""
    return [
        pair
        for group in groups
        for pair in zip(group.get("param_names", [""] * len(group["params"])), group["params"], strict=True)
    ]
