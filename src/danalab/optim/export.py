"""An optimizer as one Python file that needs torch alone, made from the source of its rule.

The functions are those of `danalab.optim.rules` and of Muon's modules, with the settings that a file leaves out at
their defaults (`danalab.optim.specialise`); the class around them is a template.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from textwrap import fill
from typing import Any

import torch
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
    **dict.fromkeys(("cautious_decay", "scaled_decay", "dana_momentum", "per_head", "hold_norm"), False),
    **dict.fromkeys(("beta2", "ns_dtype", "age", "fresh", "normalise"), None),
    "row_beta": 0.95,
    "uw_floor": 0.0,
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

STYLES = ("torch", "nanochat", "track3")
"""Trainers that a file is for: any loop; nanochat, whose groups have a `kind`; a track-3 script of modded-nanogpt."""

_LEFT_OUT = """\
The numbers of danalab. Left out: kernels, sharding, 8-bit and bf16+8 state, further bits of 16-bit\
 parameters, CUDA graphs, tensors as settings, checks of settings, {settings}."""

_CLASS = '''\
class {name}(torch.optim.Optimizer):
    """{about}"""

{init}
        if omega is not None:
{omega}
{super}

    def add_param_group(self, param_group):
{add_group}
{with_decay}
    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Apply the gradients; returns what the closure returned."""
        loss = None if closure is None else torch.enable_grad()(closure)()
{reduce}        for group in self.param_groups:
            {check}
            {names}
            alike: dict[int, list[Any]] = {{}}
            for p in (p for p in group["params"] if p.grad is not None):
                state, dtype = self.state[p], torch.promote_types(p.dtype, torch.float32)
                state["step"] = state.get("step", torch.zeros((), dtype=torch.int64)) + 1
                for name in names:  # torch loads it in the dtype of its parameter
                    state[name] = state[name].to(dtype) if name in state else torch.zeros_like(p, dtype=dtype)
                old = [p.to(dtype), p.grad.to(dtype), *(state[name] for name in names)]
                alike.setdefault(int(state["step"]), []).append((p, old))
            for t, tensors in alike.items():
                lists = list(zip(*(old for _, old in tensors), strict=True))
{together}
                else:
                    for p, g, *moments in zip(*lists, strict=True):
                        made = {update}(p, g, *moments, **{scalars}({group}, t))
                        torch._foreach_copy_([p, *moments], made)
                torch._foreach_copy_([p for p, _ in tensors], [old[0] for _, old in tensors])
        return loss
'''

_ELEMENTWISE = {
    "omega": """\
            if weight_decay or (horizon is not None and wd_ts is not None):
                raise ValueError("omega excludes weight_decay, and horizon excludes wd_ts")
            wd_ts = horizon / 10 if horizon is not None else {free} if wd_ts is None else wd_ts
            weight_decay = omega / wd_ts
            decay_bound = {bound} if decay_bound is None else decay_bound
        decay_bound = decay_bound or None""",
    "add_group": """\
        super().add_param_group(param_group)
        self.param_groups[-1].setdefault("peak_lr", float(self.param_groups[-1]["lr"]))""",
    "names": "names = {moments}",
    "together": """\
                if group["foreach"]:
                    {foreach}(*map(TensorList, lists), **{scalars}({group}, t))""",
}
_MATRICES = {
    "omega": """\
            if weight_decay or horizon is None:
                raise ValueError("omega needs the horizon, and no weight_decay")
            weight_decay = omega / (horizon / 10) / 10 / lr if lr > 0 else 0.0
            decay_bound = {bound} if decay_bound is None else decay_bound{wd_ts}
        weight_decay = min(weight_decay, decay_bound) if decay_bound else weight_decay{aux}""",
    "add_group": """\
        kinds = {{}}
        for entry in param_group["params"]:
            name, p = entry if isinstance(entry, tuple) else ("", entry)
            kinds.setdefault(param_group.get("kind") or kind_of(name, p.shape), []).append(entry)
        for kind, params in kinds.items():
            group = {{**param_group, "params": params, "kind": kind}}
            if kind not in {matrices}:
                aux_lr, factor, wd = self.aux{factors}
                lr = self.defaults["lr"] if "kind" in param_group else group.get("lr", self.defaults["lr"])
                own = {{"lr": factor * lr if aux_lr is None else aux_lr}} | {own_decay}
                group = {{**own, **group}} if "kind" in param_group else {{**group, **own}}
            super().add_param_group(group)
            self.param_groups[-1].setdefault("peak_lr", self.param_groups[-1]["lr"])""",
    "names": 'names = ("momentum_buffer",) if group["kind"] in {matrices} else {moments}',
    "together": """\
                if "momentum_buffer" in names:
                    if {is_stack}:
                        lists = [[matrix for stack in stacks for matrix in stack] for stacks in lists]
                    update_matrices(*map(list, lists), **{matrix_scalars}({group}, t))""",
}
_NANOCHAT = {
    "omega": """
        self.decay = None if omega is None else weight_decay""",
    "add_group": """
        self.param_groups[-1].setdefault("decays", bool(self.param_groups[-1]["weight_decay"]))""",
    "with_decay": '''
    def with_decay(self, group):
        """Its weight decay as nanochat sets it, times the rate; with omega that of the horizon, where it is not 0."""
        own = group["weight_decay"]{times_peak} if self.decay is None else self.decay * group["decays"]
        return {{**group, "weight_decay": own}}
''',
    "reduce": """\
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            if torch.distributed.is_initialized():  # nanochat's optimizer takes the mean of the ranks' gradients
                torch.distributed.all_reduce(p.grad.div_(torch.distributed.get_world_size()))
""",
}

_TRACK3 = '''

def optimizer_part(model: Any, train_steps, lr={lr}, omega=4.0, warmup_frac=0.02, cooldown_frac=0.7):
    """`optimizers` and `set_hparams` of the script: a warm-up, a stable rate, a linear cooldown to zero."""
    vectors = [p for p in model.parameters() if p.ndim < 2]
    matrices = [p for p in model.blocks.parameters() if p.ndim >= 2]
    kinds = {{"embedding": [model.embed.weight], "vector": vectors, "head": [model.proj.weight], "matrix": matrices}}
    rates = {{{rates}}}
    groups: list[Any] = [{{"params": kinds[kind], "kind": kind, "lr": rates[kind] * lr}} for kind in kinds]
    for group in groups[:2]:
        group["weight_decay"] = 0.0
    optimizer = {name}(groups, lr=lr, omega=omega, horizon=train_steps)
    assert sum(map(len, kinds.values())) == len(list(model.parameters()))

    def set_hparams(step):
        warmup = (step + 1) / max(4, warmup_frac * train_steps)
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * min(1.0, warmup, (1 - step / train_steps) / cooldown_frac)

    return [optimizer], set_hparams
'''


def export(name: str, style: str = "torch") -> str:
    """The file of an optimizer, for a trainer of `STYLES`.

    UserError: it cannot be exported; the message names those that can.
    """
    canonical = OPTIMIZERS.canonical(name) if name in OPTIMIZERS else name.replace("_", "-")
    for what, given, known in (("optimizer", canonical, EXPORTED), ("style", style, STYLES)):
        if given not in known:
            raise UserError(f"{what} is '{given}'{nearest(given, known)}; it must be one of {', '.join(known)}")
    spec = optimizer_spec(canonical)
    build: Any = spec.build
    by_kind = issubclass(build, HybridOptimizer)
    parameters = inspect.signature(build).parameters.values()
    without = {"params", *FIXED, *_RUNTIME, *(["foreach"] if by_kind else []), *(AUXILIARY if style != "torch" else ())}
    defaults = {each.name: each for each in parameters if each.name not in without}
    of_init = {"omega", "horizon", *AUXILIARY, *(["decay_bound"] if by_kind else [])}
    in_groups = [each for each in defaults if each not in of_init]
    every = {each.name: each.default for each in parameters} | {"peak_lr": 1.0}
    rules: list[Rule] = [build.other_rule, build.matrix_rule] if by_kind else [build.rule]
    outside = ("decay_bound", "omega", "horizon") if by_kind else ()
    group = {key: value for key, value in every.items() if key not in outside} | {"wd_ts": 1.0}
    scalars: dict[str, Any] = {}
    for rule in rules:
        scalars |= rule.scalars(group, 1)
    known = [*in_groups, "peak_lr", *(FIXED.keys() & every.keys())]
    fixed = {key: value for key, value in FIXED.items() if key in every}
    sources = Sources(known, fixed, scalars, _DECIDED | ({"decay_factor(group, t)": None} if by_kind else {}),
                      equations=not by_kind)  # fmt: skip
    nanochat = style == "nanochat"
    stacks = {"nanochat": 'lists[0][0].ndim == 3 and group["kind"] != "matrix"'}
    first, texts = rules[0], {**HELP, "weight_decay": "decay per step at the peak learning rate, not multiplied by it"}
    helps = "".join(f"    {each}: {texts[each]}.\n" for each in defaults if each != "lr")
    groups = "groups with a `kind` and settings of their own" if style != "torch" else (
        "`model.named_parameters()`, or groups of them, which may set `kind` or settings of their own")  # fmt: skip
    factors = getattr(build, "aux_factors", None)
    of_kinds = f"{ {key: value for key, value in factors.items() if key} }.get(kind, {factors['']})" if factors else ""

    def rate(kind: str) -> float:
        other = every.get("aux_lr_factor") if not factors else factors.get(kind, factors[""])
        return 1.0 if kind == "matrix" or other is None else other

    parts = {
        "name": build.__name__,
        "about": f"params: {groups}." if by_kind else (
            f"{spec.summary.partition(':')[0]}. All groups decay but those with weight_decay 0.\n\n{helps}    "),
        "init": filled("def __init__(", ["self", "params", *_parameters(defaults.values())], "):", 1),
        "super": filled("super().__init__(params, {", [f'"{each}": {each}' for each in in_groups], "})", 2),
        "scalars": first.scalars.__name__, "matrix_scalars": rules[-1].scalars.__name__,
        "update": first.update.__name__, "foreach": getattr(first.foreach, "__name__", ""),
        "bound": DECAY_BOUND if by_kind else build.decay_bound, "lr": every["lr"], "free": FREE_WD_TS,
        "wd_ts": "\n            wd_ts = float(horizon) if wd_ts is None else wd_ts" if "wd_ts" in defaults else "",
        "factors": f"\n{' ' * 16}factor = {of_kinds} if factor is None else factor".replace("'", '"') * bool(factors),
        "rates": ", ".join(f'"{kind}": {rate(kind)}' for kind in ("embedding", "vector", "head", "matrix")),
        "aux": "\n        self.aux = aux_lr, aux_lr_factor, aux_weight_decay" if style == "torch" else "",
        "own_decay": '({} if wd is None else {"weight_decay": wd})',
        "moments": str(first.moments).replace("'", '"'),
        "matrices": '("matrix", "experts", "muon")' if nanochat else '("matrix", "experts")',
        "is_stack": stacks.get(style, 'group["kind"] == "experts"'),
        "check": 'if missing := {*self.defaults, "peak_lr"' + ', "kind"' * by_kind + """} - {"differentiable", *group}:
                raise ValueError(f"a group has no {', '.join(sorted(missing))}")""",
        "group": "self.with_decay(group)" if nanochat else "group",
        "times_peak": "" if by_kind else ' * group["peak_lr"]',
    }  # fmt: skip
    pieces = dict(_MATRICES if by_kind else _ELEMENTWISE)
    if by_kind and style != "torch":
        pieces["add_group"] = _ELEMENTWISE["add_group"]
        pieces["names"] = pieces["names"].replace("else", "else \\\n                ", nanochat)
    for key, piece in _NANOCHAT.items():
        pieces[key] = pieces.get(key, "") + piece * nanochat
    text = _CLASS.format(**parts, **{key: piece.format(**parts) for key, piece in pieces.items()})
    text += _TRACK3.format(**parts) if style == "track3" else ""
    wanted: list[Any] = [first.update, first.scalars]
    wanted += [update_matrices, rules[-1].scalars, kind_of] if by_kind else [first.foreach, TensorList]
    left_out = sorted(FIXED.keys() & every.keys())
    if by_kind:
        left_out += ["foreach for the rest", "by_kind", "bfloat16 on CPUs"]
    cited = "arXiv 2602.05298"
    about = (
        f"{build.__name__}: {spec.summary}. Made by `danalab optim export {canonical}"
        f"{f' --style {style}' if style != 'torch' else ''}`."
        f" Cite {cited if cited in spec.reference else f'{cited}; {spec.reference}'}."
        " Licence: Apache 2.0 (https://www.apache.org/licenses/LICENSE-2.0). "
        + _LEFT_OUT.format(settings=", ".join(left_out))
    )
    head = fill(about, WIDTH - 3, break_on_hyphens=False, break_long_words=False)
    return f'# SPDX-License-Identifier: Apache-2.0\n# fmt: off\n"""{head}\n"""\n\n{sources.text(text, wanted)}'


def update_matrices(ps: list[Tensor], gs: list[Tensor], buffers: list[Tensor], **s: Any) -> None:
    """One step in place, matrices of a shape in one batch; a convolution is the matrix [out, in * kernel]."""
    torch._foreach_mul_(buffers, s["decay"])
    torch._foreach_add_(buffers, gs, alpha=s["gain"])
    alike: dict[Any, list[Any]] = {}
    for p, g, buffer in zip(ps, gs, buffers, strict=True):
        x = mixed(g, buffer, s)
        alike.setdefault(p.shape, []).append((p, x.flatten(1)))
    for batch in alike.values():
        stack = torch.stack([x for _, x in batch])
        for (p, _), o in zip(batch, orthogonalize(stack, s["method"], s["steps"], s["dtype"]), strict=True):
            move(p, o.reshape(p.shape).to(p.dtype), matrix_shape(p.shape), s)


def kind_of(name: str, shape: Any) -> str:
    """Kind of a parameter by its name and shape: vector, embedding, head or matrix."""
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
