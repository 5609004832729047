"""An optimizer as one Python file that needs torch alone, made from the source of its rule.

The functions are those of `danalab.optim.rules` and of Muon's modules, with the settings that a file leaves out at
their defaults (`danalab.optim.specialise`); the class around them is a template.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from textwrap import fill
from typing import Any

from torch import Tensor

from danalab.errors import UserError, nearest
from danalab.optim.catalogue import OPTIMIZERS
from danalab.optim.optimizers.kinds import _EMBEDDINGS, _HEADS, VOCABULARY_ROWS
from danalab.optim.optimizers.matrix.base import AUXILIARY
from danalab.optim.optimizers.matrix.muon import HybridOptimizer, mixed, move
from danalab.optim.optimizers.matrix.newton_schulz import matrix_shape, orthogonalize
from danalab.optim.registry import optimizer_spec
from danalab.optim.rules.foreach import TensorList
from danalab.optim.rules.rule import Rule
from danalab.optim.run_length import DECAY_BOUND, FREE_WD_TS
from danalab.optim.settings import HELP
from danalab.optim.source_text import WIDTH, filled
from danalab.optim.specialise import Sources

EXPORTED = (
    "adana",
    "dana-mk4",
    "dana-star",
    "dana-star-mk4",
    "adamw-decaying-wd",
    "dana-muon",
    "d-muon",
    "muon",
    "manau",
)

FIXED = {
    **dict.fromkeys(("cautious_decay", "scaled_decay", "dana_momentum"), False),
    **dict.fromkeys(("beta2", "ns_dtype", "age", "fresh", "normalise", "hold_norm"), None),
    "momentum_cooldown": 0.0,
    "ns_method": "newton-schulz",
}
"""Settings that a file leaves out, at their defaults."""

_DECIDED = {
    "x.numel() == 0": False,
    "multiplies_bfloat16()": False,
    "_operator is None": True,
    "chain[0] == NEWTON_SCHULZ": True,
}
"""What is decided in the files for Muon: no case for empty tensors, no bfloat16 on CPUs, symmetric products as one."""

_MIXTURE = ("buffers", "buffer_ages")
_RUNTIME = (*("capturable", "maximize", "stochastic_rounding", "state_dtype", "fused"), "by_kind", *_MIXTURE)

_LEFT_OUT = """\
The same numbers as danalab's without kernels. Left out: kernels, sharding, 8-bit and bf16+8 state, 16-bit parameters,\
 CUDA graphs, tensors as settings, checks of settings, {settings}."""

_ELEMENTWISE = '''\
class {name}(torch.optim.Optimizer):
    """{summary}. All parameters decay, but in groups with weight_decay 0.

{helps}
    """

{init}
        if omega is not None:
            if weight_decay or (horizon is not None and wd_ts is not None):
                raise ValueError("omega excludes weight_decay, and horizon excludes wd_ts")
            wd_ts = horizon / 10 if horizon is not None else {free} if wd_ts is None else wd_ts
            weight_decay = omega / wd_ts
            decay_bound = {bound} if decay_bound is None else decay_bound
        decay_bound = decay_bound or None
{super}

    def add_param_group(self, param_group):
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        group.setdefault("peak_lr", float(group["lr"]))
        if any(p.dtype not in (torch.float32, torch.float64) for p in group["params"]):
            raise TypeError("{name}: parameters must be float32 or float64")

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Apply the gradients; returns what the closure returned."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            alike: dict[int, list[Any]] = {{}}
            for p in (p for p in group["params"] if p.grad is not None):
                state = self.state[p]
                if not state:
                    state["step"] = torch.zeros((), dtype=torch.int64)
                    state.update({{name: torch.zeros_like(p) for name in MOMENTS}})
                state["step"] += 1
                alike.setdefault(int(state["step"]), []).append([p, p.grad, *(state[name] for name in MOMENTS)])
            for t, tensors in alike.items():
                s = {scalars}(group, t)
                if group["foreach"]:
                    {foreach}(*map(TensorList, zip(*tensors, strict=True)), **s)
                    continue
                for old in tensors:
                    p, _, *moments = old
                    for tensor, new in zip([p, *moments], {update}(*old, **s), strict=True):
                        tensor.copy_(new)
        return loss
'''

_MATRICES = '''\
class {name}(torch.optim.Optimizer):
    """params: `model.named_parameters()`, or groups of them, which may set `kind` or settings of their own."""

{init}
        if omega is not None:
            if weight_decay or horizon is None:
                raise ValueError("omega needs the horizon, and no weight_decay")
            weight_decay = omega / (horizon / 10) / 10 / lr if lr > 0 else 0.0
            decay_bound = {bound} if decay_bound is None else decay_bound{wd_ts}
        weight_decay = min(weight_decay, decay_bound) if decay_bound else weight_decay
        self.aux = aux_lr, aux_lr_factor, aux_weight_decay
{super}

    def add_param_group(self, param_group):
        kinds = {{}}
        for name, p in param_group["params"]:
            kinds.setdefault(param_group.get("kind") or kind_of(name, p.shape), []).append((name, p))
        for kind, params in kinds.items():
            group = {{**param_group, "params": params, "kind": kind}}
            if kind not in ("matrix", "experts"):
                aux_lr, factor, wd = self.aux{factors}
                lr = self.defaults["lr"] if "kind" in param_group else group.get("lr", self.defaults["lr"])
                own = {{"lr": factor * lr if aux_lr is None else aux_lr}} | {own_decay}
                group = {{**own, **group}} if "kind" in param_group else {{**group, **own}}
            super().add_param_group(group)
            self.param_groups[-1].setdefault("peak_lr", self.param_groups[-1]["lr"])

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Apply the gradients; returns what the closure returned."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            is_matrix = group["kind"] in ("matrix", "experts")
            for p in (p for p in group["params"] if p.grad is not None):
                state, names = self.state[p], ("momentum_buffer",) if is_matrix else MOMENTS
                if not state:
                    state.update(step=torch.zeros((), dtype=torch.int64), **{{n: torch.zeros_like(p) for n in names}})
                state["step"] += 1
                t, old = int(state["step"]), [p, p.grad, *(state[name] for name in names)]
                if is_matrix:
                    for each in zip(*old, strict=True) if group["kind"] == "experts" else [old]:
                        update_matrix(*each, **{matrix_scalars}(group, t))
                    continue
                for x, new in zip([p, *old[2:]], {update}(*old, **{scalars}(group, t)), strict=True):
                    x.copy_(new)
        return loss
'''


def export(name: str) -> str:
    """The file of an optimizer.

    UserError: it cannot be exported; the message names those that can.
    """
    canonical = OPTIMIZERS.canonical(name) if name in OPTIMIZERS else name.replace("_", "-")
    if canonical not in EXPORTED:
        hint = nearest(name, EXPORTED)
        raise UserError(f"optimizer '{name}' cannot be exported{hint}; it must be one of {', '.join(EXPORTED)}")
    spec = optimizer_spec(canonical)
    build: Any = spec.build
    by_kind = issubclass(build, HybridOptimizer)
    parameters = inspect.signature(build).parameters.values()
    without = {"params", *FIXED, *_RUNTIME, *(["foreach"] if by_kind else [])}
    defaults = {each.name: each for each in parameters if each.name not in without}
    of_init = {"omega", "horizon", *AUXILIARY, *(["decay_bound"] if by_kind else [])}
    in_groups = [each for each in defaults if each not in of_init]
    every = {each.name: each.default for each in parameters} | {"peak_lr": 1.0}
    rules: list[Rule] = [build.other_rule, build.matrix_rule] if by_kind else [build.rule]
    group = {
        key: value for key, value in every.items() if key not in ("decay_bound", "omega", "horizon") or not by_kind
    }
    scalars: dict[str, Any] = {}
    for rule in rules:
        scalars |= rule.scalars({**group, "wd_ts": 1.0}, 1)
    known = [*in_groups, "peak_lr", *(FIXED.keys() & every.keys())]
    fixed = {key: value for key, value in FIXED.items() if key in every}
    sources = Sources(known, fixed, scalars, _DECIDED, equations=not by_kind)
    sources.constants["MOMENTS"] = rules[0].moments
    first, texts = rules[0], {**HELP, "weight_decay": "decay per step at the peak learning rate, not multiplied by it"}
    parts = {
        "name": build.__name__,
        "summary": spec.summary.partition(":")[0].capitalize() if not by_kind else spec.summary,
        "init": filled("def __init__(", ["self", "params", *_parameters(defaults.values())], "):", 1),
        "super": filled("super().__init__(params, {", [f'"{each}": {each}' for each in in_groups], "})", 2),
        "scalars": first.scalars.__name__,
        "update": first.update.__name__,
        "helps": "\n".join(f"    {each}: {texts[each]}." for each in defaults if each != "lr"),
    }
    if by_kind:
        factors = build.aux_factors
        parts |= {
            "matrix_scalars": rules[1].scalars.__name__, "bound": DECAY_BOUND,
            "wd_ts": "\n            wd_ts = float(horizon) if wd_ts is None else wd_ts" if "wd_ts" in defaults else "",
            "factors": "",
            "own_decay": '({} if wd is None else {"weight_decay": wd})',
        }  # fmt: skip
        if factors:
            of_kinds = f"{ {key: value for key, value in factors.items() if key} }.get(kind, {factors['']})"
            parts["factors"] = f"\n{' ' * 16}factor = {of_kinds} if factor is None else factor".replace("'", '"')
        text = _MATRICES.format(**parts)
        wanted: list[Any] = [update_matrix, rules[1].scalars, first.update, first.scalars, kind_of]
    else:
        assert first.foreach is not None
        parts |= {"foreach": first.foreach.__name__, "bound": build.decay_bound, "free": FREE_WD_TS}
        text = _ELEMENTWISE.format(**parts)
        wanted = [first.update, first.foreach, first.scalars, TensorList]
    left_out = sorted(FIXED.keys() & every.keys())
    if by_kind:
        left_out += ["foreach", "by_kind", "bfloat16 and halved products on CPUs"]
    cited = "arXiv 2602.05298"
    about = [
        f"{build.__name__}: {spec.summary}. Made by `danalab optim export {canonical}`."
        f" Cite {cited if cited in spec.reference else f'{cited}; {spec.reference}'}."
        " Licence: Apache 2.0 (https://www.apache.org/licenses/LICENSE-2.0).",
        _LEFT_OUT.format(settings=", ".join(left_out)),
    ]
    head = "\n\n".join(fill(each, WIDTH - 3, break_on_hyphens=False, break_long_words=False) for each in about)
    return f'# SPDX-License-Identifier: Apache-2.0\n"""{head}\n"""\n\n{sources.text(text, wanted)}'


def update_matrix(p: Tensor, g: Tensor, buffer: Tensor, **s: Any) -> None:
    """One step of a matrix, or of a convolution as the matrix [out, in * kernel], in place."""
    buffer.mul_(s["decay"]).add_(g, alpha=s["gain"])
    o = orthogonalize(mixed(g, buffer, s).flatten(1), s["method"], s["steps"], s["dtype"])
    move(p, o, matrix_shape(p.shape), s)


def kind_of(name: str, shape: Any) -> str:
    """Kind of a parameter by its name and shape: vector, embedding, head or matrix; a group's `kind` decides first."""
    *_, module, own = ["", "", *name.split(".")]
    is_table = any(map(_EMBEDDINGS.search, (module, own))) or (len(shape) == 2 and shape[0] >= VOCABULARY_ROWS)
    return "vector" if len(shape) < 2 else "embedding" if is_table else "head" if _HEADS.search(module) else "matrix"


def _parameters(settings: Iterable[inspect.Parameter]) -> list[str]:
    parts, by_name = list[str](), False
    for each in settings:
        parts += ["*"] if each.kind is each.KEYWORD_ONLY and not by_name else []
        by_name = each.kind is each.KEYWORD_ONLY
        parts.append(f"{each.name}={each.default!r}")
    return parts
