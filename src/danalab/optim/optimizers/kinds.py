"""Kinds of parameters: embedding, matrix, experts, router, head or vector; optimizers and weight decay differ by them.

The type of the module that owns a parameter decides first, then its name, then its shape:

    type     nn.Embedding -> embedding     a norm -> vector     nn.Linear, a convolution -> matrix, router or head
    name     pos_embed, cls_token -> embedding     A_log, layer_scale -> vector     lm_head -> head
    shape    less than two dimensions -> vector     [E, rows, columns] -> experts     others -> matrix

PyTorch optimizers and the optax twins share the table; what has no module (named parameters, trees of arrays) is judged
by names and shapes, and what has no name by its shape alone.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from danalab.errors import UserError
from danalab.optim.settings import KINDS
from danalab.optim.step.state_dict import plain_name

DECAYED = ("matrix", "experts", "router", "head")

VOCABULARY_ROWS = 10_000
"""A matrix with as many rows (JAX's: or columns) is taken for an embedding or a head, unless its name is that of a
layer in a numbered block."""
TALL = 16
"""A matrix without a name and with so many times as many rows as columns is taken for an embedding or a head."""

_PLAIN = ("weight", "kernel", "w", "weight_v", "weight_orig", "default", "params")
"""Names of parameters that say nothing: the module's name decides."""
_COLUMNS_LAST = ("kernel", "w")
"""Names of JAX's matrices, which are [in, out]."""
_VECTORS = re.compile(
    r"(^|_)(bias(es)?|gains?|gamma|beta|scales?|a_logs?|dt_bias|weight_g|temperature|tau|eps|decay|magnitude|"
    r"magnitude_vector|time_first|time_faaaa|lambda\d*)(_\d+)?$|^ds?$|layer_scale|_bias_|norm"
)
_EMBEDDINGS = re.compile(r"embed|(^|_)(wte|wpe|emb|pos|position|tokens?|table|latents|prompts?|queries)(_|$)")
_HEADS = re.compile(r"(^|_)head$|^(unembed(ding)?|embed_out|to_logits|classifier|score|qa_outputs|output_layer)$")
_LAST_OF = ("head", "lm_head", "classifier", "classification_head", "cls_head", "score")
"""Modules of several layers whose last one is a head."""
_NORMS = re.compile(r"norm|(^|_)(ln|bn)(_|\d|$)")

_NORM_TYPES = re.compile(r"norm(gated|act)?(\d+d)?$", re.IGNORECASE)
_EMBEDDING_TYPES = re.compile(r"embeddings?$", re.IGNORECASE)
_ROUTER_TYPES = re.compile(r"(router|top_?k_?gate)$", re.IGNORECASE)
_IN_BLOCK = re.compile(r"[a-z][._]\d+\.[^.]+\.")

_LAYER_TYPES = re.compile(r"(linear|conv\d*d)$", re.IGNORECASE)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside torch.compile's and DistributedDataParallel's wrappers."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.parallel.DistributedDataParallel):
            inner = model.module
        if inner is None:
            return model
        model = inner


def declarations(model: nn.Module, method: str) -> Iterator[tuple[str, Any]]:
    """(prefix of the names, what `method()` returns) of the model and of the modules in it that have such a method."""
    model = unwrapped(model)
    inside: list[str] = []
    for path, module in model.named_modules():
        declare: Any = getattr(module, method, None)
        if callable(declare) and not any(path.startswith(outer) for outer in inside):
            prefix = f"{path}." if path else ""
            inside.append(prefix)
            yield prefix, declare()


def declared(model: nn.Module, method: str) -> dict[str, Any]:
    """Parameter name -> value, of the dictionaries that the model, or modules in it, declare in a method."""
    found = declarations(model, method)
    return {prefix + name: value for prefix, values in found for name, value in values.items()}


def parameter_kinds(model: nn.Module) -> dict[str, str]:
    """Kind of each parameter by name, as `model.named_parameters()` names it.

    A model, or a module in it, may declare them in a method `parameter_kinds()`. Otherwise the table of this module
    decides. A linear layer with a head's name, or with as many outputs as the vocabulary has tokens, is a head. A
    weight shared by embedding and head counts as an embedding.

    UserError: FSDP1 holds the parameters in flat tensors without their names.
    """
    model = unwrapped(model)
    own, shapes = declared(model, "parameter_kinds"), _unsharded_shapes(model)
    modules = {plain_name(path): module for path, module in model.named_modules()}
    embeddings = {id(module.weight) for module in modules.values() if _is_embedding(module)}
    heads = _heads(modules)
    kinds: dict[str, str] = {}
    for name, parameter in model.named_parameters():
        if name in own:
            kinds[name] = own[name]
            if own[name] not in KINDS:
                raise UserError(f"parameter '{name}' has kind '{own[name]}'; it must be one of {', '.join(KINDS)}")
            continue
        path, _, local = plain_name(name).rpartition(".")
        shape = shapes.get(id(parameter), tuple(parameter.shape))
        is_table = id(parameter) in embeddings and len(shape) == 2
        kinds[name] = "embedding" if is_table else _kind_in_module(modules, path, local, shape, heads)
    return kinds


def undecayed(model: nn.Module) -> set[str]:
    """Names of the parameters that a model declares to be without weight decay.

    In methods `no_weight_decay()` (names, or patterns with *) and `no_weight_decay_keywords()` (parts of names), as
    timm's and Swin's models have them, or by an attribute `_no_weight_decay` of the parameter, as Mamba's.
    """
    model = unwrapped(model)
    names = dict(model.named_parameters())
    chosen = {name for name, p in names.items() if getattr(p, "_no_weight_decay", False)}
    for prefix, patterns in declarations(model, "no_weight_decay"):
        chosen |= {name for name in names if any(fnmatchcase(name, prefix + pattern) for pattern in patterns)}
    for prefix, words in declarations(model, "no_weight_decay_keywords"):
        chosen |= {name for name in names if name.startswith(prefix) and any(word in name for word in words)}
    return chosen


def kinds_by_names(named: Sequence[tuple[str, Sequence[int]]]) -> list[str]:
    """Kinds of (name, shape) pairs; the name is "" where there is none. A `gate` beside `experts` is a router."""
    names = [plain_name(name) for name, _ in named]
    of_experts = {name.partition(".experts.")[0] for name in names if ".experts." in name}
    gates = {f"{path}.gate.weight" for path in of_experts}
    kinds = [kind_by_name(name, shape) for name, (_, shape) in zip(names, named, strict=True)]
    return ["router" if name in gates else kind for name, kind in zip(names, kinds, strict=True)]


def kind_by_name(name: str, shape: Sequence[int]) -> str:
    """Kind of a parameter by its name and shape; "" is a parameter without a name."""
    parts = plain_name(_without_parametrization(name)).lower().split(".")
    module, own = (parts[-2] if len(parts) > 1 else ""), parts[-1]
    if len(shape) < 2:
        return "vector"
    rows = max(shape[:2]) if own in _COLUMNS_LAST else shape[0]
    if len(shape) == 2 and rows >= VOCABULARY_ROWS and not _IN_BLOCK.search(name.lower()):
        return "embedding"
    if not name:
        is_tall = len(shape) == 2 and shape[0] >= TALL * shape[1] > TALL
        return "embedding" if is_tall else _kind_by_shape(shape, may_be_convolution=True)
    if own not in _PLAIN:
        if kind := _kind_by_own_name(own):
            return kind
        module, own = own, "weight"  # such as one of torch's nn.MultiheadAttention: in_proj_weight
    elif _NORMS.search(module) or module.endswith("bias"):
        return "vector"
    if "router" in parts[-3:] or module.endswith("router"):
        return "router"
    is_last = len(parts) > 2 and parts[-3] in _LAST_OF and module in ("fc", "linear", "out_proj")
    if len(shape) == 2 and (_HEADS.search(module) or is_last or parts == ["output", "weight"]):
        return "head"
    if parts == ["shared", "weight"]:  # T5's table
        return "embedding"
    if len(shape) < 4 and ("embed" in module or _EMBEDDINGS.search(module.rpartition("_")[2])):
        return "embedding"
    if "conv" in module:
        return "vector" if len(shape) == 3 and shape[1] == 1 else "matrix"
    return (
        "matrix"
        if len(shape) == 2
        else _kind_by_shape(shape, may_be_convolution="experts" not in parts and own != "kernel")
    )


def _kind_by_own_name(own: str) -> str:
    """Kind of a parameter that is none of a layer's, by its own name; "" if the name says nothing."""
    if _EMBEDDINGS.search(own):
        return "embedding"
    return "vector" if _VECTORS.search(own) else ""


def _kind_by_shape(shape: Sequence[int], may_be_convolution: bool = False) -> str:
    if sum(size > 1 for size in shape) < 2 and 0 not in shape:
        return "vector"
    if len(shape) == 3 and shape[0] == 1:  # [1, tokens, width]
        return "embedding"
    # A kernel [out, in, size] has fewer taps than outputs; experts are fewer than their matrices have columns.
    is_stack = len(shape) == 3 and not (may_be_convolution and shape[2] < shape[0])
    return "experts" if is_stack else "matrix"


def _kind_in_module(
    modules: Mapping[str, nn.Module], path: str, local: str, shape: Sequence[int], heads: set[str]
) -> str:
    """Kind of parameter `local` of the module at `path`."""
    if len(shape) < 2:
        return "vector"
    owner, own = modules[path], _without_parametrization(local).lower()
    if isinstance(owner, nn.utils.parametrize.ParametrizationList):
        # parametrizations.NAME of a layer holds original0, original1, ... of its parameter NAME.
        layer, _, name = path.rpartition(".parametrizations.")
        if path.startswith("parametrizations."):
            layer, name = "", path.removeprefix("parametrizations.")
        own = _without_parametrization(f"parametrizations.{name}.{local}")
        path, owner = layer, modules[layer]
    type_name = type(owner).__name__
    if _NORM_TYPES.search(type_name):
        return "vector"
    if isinstance(owner, nn.modules.conv._ConvNd) and own in _PLAIN:
        return "vector" if len(shape) == 3 and shape[1] == 1 and owner.groups > 1 else "matrix"
    if (isinstance(owner, nn.Linear) or _LAYER_TYPES.search(type_name)) and own in _PLAIN and len(shape) == 2:
        return "router" if _is_router(modules, path) else "head" if path in heads else "matrix"
    if _ROUTER_TYPES.search(type_name) and own in _PLAIN:
        return "router"
    if own not in _PLAIN:
        if kind := _kind_by_own_name(own):
            return kind
        if _EMBEDDING_TYPES.search(type_name):
            return "embedding"
    return _kind_by_shape(shape)


def _is_embedding(module: nn.Module) -> bool:
    is_table = isinstance(module, (nn.Embedding, nn.EmbeddingBag)) or _EMBEDDING_TYPES.search(type(module).__name__)
    return bool(is_table) and isinstance(getattr(module, "weight", None), Tensor)


def _is_router(modules: Mapping[str, nn.Module], path: str) -> bool:
    """Whether a linear layer chooses experts: it is called a router, or a gate beside experts."""
    parent, _, own = path.rpartition(".")
    beside_experts = own.endswith("gate") and f"{parent}.experts".lstrip(".") in modules
    return beside_experts or "router" in path.split(".")[-2:] or own.endswith("router")


def _heads(modules: Mapping[str, nn.Module]) -> set[str]:
    """Paths of the linear layers that are heads.

    By their names; as the last layer of a module with a head's name; or by an output as wide as a vocabulary, unless
    other layers take inputs of this width, too: then it is that of a table of positions, and a hidden one.
    """
    layers = {path: module for path, module in modules.items() if isinstance(module, nn.Linear)}
    tables = (module for module in modules.values() if isinstance(module, nn.Embedding))
    vocabularies = {table.num_embeddings for table in tables} - {layer.in_features for layer in layers.values()}
    last: dict[str, str] = {}
    for path in layers:
        parts = path.split(".")
        last |= {".".join(parts[: i + 1]): path for i, part in enumerate(parts[:-1]) if part in _LAST_OF}
    heads = {path for path in layers if _HEADS.search(path.rpartition(".")[2])}
    heads |= {path for path, layer in layers.items() if layer.out_features in vocabularies}
    if layers and (final := list(layers)[-1]) in ("fc", "output"):
        heads.add(final)
    return heads | set(last.values())


def _without_parametrization(name: str) -> str:
    """`layer.weight` of `layer.parametrizations.weight.original1`; the gain of weight normalization is `weight_g`."""
    head, found, tail = name.rpartition("parametrizations.")
    if not found or "." not in tail:
        return name
    own, _, original = tail.partition(".")
    return head + (f"{own}_g" if original == "original0" else own)


def _unsharded_shapes(model: nn.Module) -> dict[int, tuple[int, ...]]:
    """id of a parameter -> its shape in the model, of those that FSDP1 keeps as flat shards."""
    shapes: dict[int, tuple[int, ...]] = {}
    for module in model.modules():
        handle: Any = getattr(module, "_handle", None)
        flat = getattr(handle, "flat_param", None)
        if flat is None:
            continue
        if flat._params is None:
            raise UserError(
                f"{type(model).__name__}: FSDP joins matrices and vectors into one tensor; wrap the model with"
                " use_orig_params=True, or use FSDP2 (fully_shard)"
            )
        shapes |= {id(p): tuple(shape) for p, shape in zip(flat._params, flat._shapes, strict=True)}
    return shapes


def is_flat_shard(p: Tensor) -> bool:
    """Whether FSDP1 keeps the parameter as a part of a flat tensor, in which matrices have no rows."""
    return bool(getattr(p, "_fsdp_flattened", False))
