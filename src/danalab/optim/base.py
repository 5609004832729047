"""What the optimizers of this package share: step counts, state, checks, decay, and how a rule is computed.

An element-wise optimizer names its rule, a pure function of tensors:

    class ADana(Optimizer):
        rule = Rule(adana_update, adana_scalars, ("exp_avg", "exp_avg_sq"), kernel="adana")

Any other writes `update`, a loop `for group, p, g, state in self.moving(): ...`; state["step"] is t.

Every parameter has its own step count t in its state, which advances only when a gradient is applied to it.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

log = logging.getLogger(__name__)

Group = dict[str, Any]
State = dict[str, Any]
Moving = tuple[Group, Tensor, Tensor, State]


@dataclass(frozen=True)
class Rule:
    """An element-wise update: its equation, the scalars of a step, its state, and its kernel for CPUs."""

    update: Callable[..., tuple[Tensor, ...]]
    """(p, g, *moments, **scalars) -> new p and moments: a pure function of tensors of one dtype and shape."""
    scalars: Callable[[Mapping[str, Any], int], dict[str, Any]]
    """(group, t) -> the scalars of step t by name: numbers, or None."""
    moments: tuple[str, ...]
    """Keys of the state tensors, in the order in which `update` takes them."""
    kernel: str | None = None
    """Its name in kernels.cpp; None: it has no kernel."""


class Optimizer(torch.optim.Optimizer):
    """torch's Optimizer with a step count for each parameter, state from the start, and checked settings.

    State of a parameter: `step` (0-dim int64 on the CPU) and its moments, float32 even where the parameter is
    bfloat16 or float16. A group has `peak_lr`, the learning rate that it was added with; schedulers leave it
    alone.
    """

    rule: ClassVar[Rule | None] = None
    """The rule of all groups, unless `rule_of` is overridden."""
    fast_step: ClassVar[Callable[[Rule, list[Moving]], list[Moving]] | None] = None
    """Makes the steps that it can, and returns the rest: that of kernels.py, which the package puts here."""
    betas: ClassVar[int] = 2  # how many numbers the setting has
    decay_bound: ClassVar[float | None] = None
    """Largest independent decay by omega, in units of the peak rate: in short runs omega / wd_ts alone
    shrinks weights faster than they are rebuilt. None: weight decay, if any, is multiplied by the learning
    rate."""

    def __init__(self, params: Any, **settings: Any):
        self._settings = self._settled(settings)
        super().__init__(
            self.groups_of(params) if isinstance(params, nn.Module) else params, dict(self._settings)
        )
        for name in ("betas", "momentum"):
            self.defaults.pop(name, None)  # OneCycleLR would cycle them, in one half of a hybrid optimizer

    def groups_of(self, model: nn.Module) -> list[Group]:
        """The parameter groups of a model: decayed and not decayed."""
        from .groups import decay_groups

        return decay_groups(model)

    def rule_of(self, group: Mapping[str, Any]) -> Rule | None:
        """The element-wise rule of a group; None: `update` has another."""
        return self.rule

    def new_state(self, group: Mapping[str, Any], p: Tensor) -> State:
        """State tensors of a parameter that has taken no step, without the step count."""
        rule = self.rule_of(group)
        return {name: zeros_like(p, group) for name in (rule.moments if rule else ())}

    def check(self, group: Mapping[str, Any]) -> None:
        """Refuse settings in their ranges that do not work in this group. Subclasses add what is their own."""
        owner = type(self).__name__
        if "betas" in group and len(group["betas"]) != self.betas:
            raise ValueError(f"{owner}: betas is {group['betas']}; it must be {self.betas} numbers")
        if not all(p.is_floating_point() for p in group["params"]):
            raise ValueError(f"{owner}: a parameter is not of real numbers")
        if self.decay_bound is not None and group.get("decay_bound") is None:
            first, decay = decay_rate(group, 1), group["weight_decay"]
            said = f"{owner}: weight_decay {decay:g} takes {first:.3g} of each weight in a step, at any learning rate"
            if first > 1:
                raise ValueError(f"{said}; it must be below 1 (try omega and horizon)")
            if first > (0.01 if group["wd_ts"] is None else 0.25):  # as AdamW's 0.1
                log.warning("%s; omega=4.0 and horizon=STEPS give a decay that is bounded by the rate", said)

    # ---- groups and state ----

    def add_param_group(self, param_group: Group) -> None:
        """As torch's; a group of an optimizer with independent decay may have omega and horizon, too."""
        group = {**self._settings, **self._settled(param_group, self._settings.get("wd_ts"))}
        super().add_param_group(group)
        group = self.param_groups[-1]
        try:
            self.check(group)
        except ValueError:
            self.param_groups.pop()
            raise
        group.setdefault(
            "peak_lr", float(group["lr"]) * group.get("lr_scale", 1.0)
        )  # timm's schedulers scale
        for p in group["params"]:
            if p.requires_grad and not p.is_meta:  # others get their state when they move
                self.state[p] = self._fresh(group, p)

    def _settled(self, settings: Mapping[str, Any], wd_ts: float | None = None) -> Group:
        """Checked settings, omega and horizon as weight_decay = omega / wd_ts and wd_ts = horizon / 10: lambda(t)
        is omega / (wd_ts + t), at most `decay_bound` times the peak rate. `wd_ts`: of settings without one."""
        owner = type(self).__name__
        check_settings(owner, settings)
        if self.decay_bound is None:
            return dict(settings)
        rest = {key: value for key, value in settings.items() if key not in ("omega", "horizon")}
        omega, horizon = omega_and_horizon(owner, settings)
        if omega is None:
            return rest if "weight_decay" not in rest else {"decay_bound": None, **rest}
        if horizon is not None and rest.get("wd_ts") is not None:
            raise ValueError(f"{owner}: horizon and wd_ts both set the time scale of weight decay; give one")
        scale = rest.get("wd_ts") or (horizon / 10 if horizon else wd_ts)
        if scale is None:
            raise ValueError(f"{owner}: omega needs horizon, the length of the run in steps, or wd_ts")
        return {**rest, "weight_decay": omega / scale, "wd_ts": scale, "decay_bound": self.decay_bound}

    def _fresh(self, group: Group, p: Tensor) -> State:
        """A parameter's state. All ranks have it from the start, so that they agree on a checkpoint."""
        return {"step": torch.zeros((), dtype=torch.int64), **self.new_state(group, p)}

    def _adopt(self, group: Group, p: Tensor) -> State:
        """State made in a step; parameters that this one may have replaced, as in a sharded model, leave."""
        held = {p for each in self.param_groups for p in each["params"]}
        for gone in [p for p in self.state if p not in held]:
            del self.state[gone]
        self.state[p] = self._fresh(group, p)
        return self.state[p]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, but moments keep their own dtype, which torch would replace by the parameter's."""
        own = {"peak_lr", *self._settings} - {"decay_bound"}
        if any(own - saved.keys() for saved in state_dict["param_groups"]):
            raise ValueError(f"{type(self).__name__}: the state of another optimizer")
        fused = [group.get("fused") for group in self.param_groups]
        super().load_state_dict(state_dict)
        ids = (i for group in state_dict["param_groups"] for i in group["params"])
        for group, own in zip(self.param_groups, fused, strict=True):
            if "fused" in group:
                group["fused"] = own  # belongs to the machine, not to the run
            for p in group["params"]:
                saved = state_dict["state"].get(next(ids), {})
                for key, fresh in (self._fresh(group, p) if saved else {}).items():
                    if key not in saved:
                        raise ValueError(
                            f"{type(self).__name__}: the state of another optimizer, without {key}"
                        )
                    if fresh.shape != saved[key].shape:
                        raise ValueError(f"{type(self).__name__}: {key} has the shape of another model")
                    self.state[p][key] = fresh.copy_(saved[key].detach())

    def __getstate__(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return {**super().__getstate__(), "_settings": self._settings}

    # ---- the step ----

    @torch._disable_dynamo  # out of every compiled graph, where step counts would become constants
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore
        """Apply the gradients; a parameter without one is left as it is. Returns what the closure returns."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        self.update()
        return loss

    def update(self) -> None:
        """One step of all parameters; an optimizer without one rule for all groups overrides it."""
        assert self.rule is not None
        self.apply(self.rule)

    def moving(
        self, groups: Iterable[Group] | None = None, *, local: bool = True, count: bool = True
    ) -> Iterator[Moving]:
        """What a step moves: (group, p, gradient, state) of each parameter with a gradient and elements.

        Args:
            groups: of these parameter groups; of all by default.
            local: of DTensors the local parts, which share their memory; False: the DTensors.
            count: begin the step: advance the count, and turn the gradient where the group maximizes.
        """
        for group in self.param_groups if groups is None else groups:
            turned = count and group.get("maximize")
            for p in group["params"]:
                g = p.grad
                if g is None or not p.numel():
                    continue
                if g.layout is not torch.strided:
                    raise ValueError(f"{type(self).__name__}: a gradient is sparse; it must be dense")
                state = self.state.get(p) or self._adopt(group, p)
                if count:
                    state["step"] += 1
                if local and type(p) is not nn.Parameter and hasattr(p, "to_local"):
                    p, g = local_part(p), local_gradient(g, p)
                    state = {key: local_part(value) for key, value in state.items()}
                yield group, p, -g if turned else g, state

    def apply(self, rule: Rule, groups: Iterable[Group] | None = None) -> None:
        """One step of these groups by a rule: by kernels.cpp, or torch.compile on GPUs, or else eagerly."""
        moving = list(self.moving(groups, count=False))
        fast = type(self).fast_step
        for each in fast(rule, moving) if fast else moving:
            step_eagerly(rule, *each)


def step_eagerly(rule: Rule, group: Group, p: Tensor, g: Tensor, state: State) -> None:
    """The rule's function on one parameter, in float32, or float64 where the parameter is."""
    state["step"] += 1
    t, dtype = int(state["step"]), working_dtype(p)
    moments = moments_of(rule, state, p)
    g = -g if group.get("maximize") else g
    new = rule.update(p.to(dtype), g.to(dtype), *(m.to(dtype) for m in moments), **rule.scalars(group, t))
    for i, (old, value) in enumerate(zip((p, *moments), new, strict=True)):
        write(old, value, seed_of(group, t, i))


# ---- tensors ----


def working_dtype(p: Tensor) -> torch.dtype:
    """float32 for everything that is not wider: averages with a small gain freeze in 16 bits."""
    return torch.float64 if p.dtype == torch.float64 else torch.float32


def zeros_like(p: Tensor, group: Mapping[str, Any]) -> Tensor:
    """A moment of a parameter: float32 or wider, or bfloat16 where stochastic_rounding is "moments"."""
    narrow = group.get("stochastic_rounding") == "moments" and p.dtype != torch.float64
    return torch.zeros_like(p, dtype=torch.bfloat16 if narrow else working_dtype(p), requires_grad=False)


def moments_of(rule: Rule, state: State, p: Tensor) -> list[Tensor]:
    """A rule's state tensors, on the parameter's device, to which the model may have been moved later."""
    for name in rule.moments:
        if state[name].device != p.device:
            state[name] = state[name].to(p.device)
    return [state[name] for name in rule.moments]


def local_part(x: Any) -> Any:
    """The local part of a DTensor, which shares its memory; anything else as it is."""
    return x.to_local() if hasattr(x, "to_local") else x


def local_gradient(g: Tensor, p: Tensor) -> Tensor:
    """A gradient's local part, placed as the parameter: tensor parallelism may leave a partial sum."""
    placements: Any = getattr(p, "placements", None)
    if getattr(g, "placements", placements) != placements:
        g = g.redistribute(placements=placements)  # pyright: ignore[reportAttributeAccessIssue]
    return local_part(g)


def seed_of(group: Mapping[str, Any], t: int, which: int) -> int | None:
    """Seed of the rounding of a tensor in step t; None: to the nearest."""
    return hash32(hash32(t & 0xFFFFFFFF) + which) if group.get("stochastic_rounding") else None


def write(old: Tensor, new: Tensor, seed: int | None = None) -> None:
    """old <- new, rounded once; with a seed at random, so that the mean is exact: by a hash of an element's bits, its
    place and the seed, so that replicas round alike, and resumed runs."""
    if seed is None or old.dtype != torch.bfloat16:
        old.copy_(new)
        return
    bits = new.float().contiguous().view(torch.int32)
    place = torch.arange(bits.numel(), device=bits.device).view(bits.shape)
    # Noise of the 16 bits that bfloat16 does not have.
    noise = hash32((bits + place * 0x9E3779B1 + seed) & 0xFFFFFFFF) >> 16
    rounded = ((bits + noise.to(torch.int32)) & -65536).view(torch.float32)
    old.copy_(torch.where(torch.isfinite(new), rounded, new))


def hash32(x: Any) -> Any:
    """A hash of 32-bit integers ("lowbias32", C. Wellons)."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return x ^ (x >> 16)


# ---- weight decay ----


def schedule_factor(group: Mapping[str, Any]) -> float:
    """s = lr / peak_lr, at most 1; 0 for a group that was added with learning rate 0."""
    return min(float(group["lr"]) / group["peak_lr"], 1.0) if group["peak_lr"] else 0.0


def decay_rate(group: Mapping[str, Any], t: int) -> float:
    """lambda(t) = weight_decay / (1 + t / wd_ts), constant without wd_ts: the independent decay of step t."""
    wd_ts, bound = group.get("wd_ts"), group.get("decay_bound")
    rate = group["weight_decay"] / (1 + t / wd_ts) if wd_ts is not None else group["weight_decay"]
    return rate if bound is None else min(rate, bound * group["peak_lr"], 0.5)


def decay_factor(group: Mapping[str, Any], t: int) -> float:
    """1 - s lambda(t): what independent weight decay multiplies a parameter by in step t."""
    return 1 - schedule_factor(group) * decay_rate(group, t)


def omega_and_horizon(owner: str, settings: Mapping[str, Any]) -> tuple[Any, Any]:
    """The two settings of weight decay over a run, which belong together and take the place of weight_decay."""
    omega, horizon = settings.get("omega"), settings.get("horizon")
    if omega is None and horizon is not None:
        raise ValueError(f"{owner}: horizon is {horizon} without omega; give both, or weight_decay")
    if omega is not None and settings.get("weight_decay"):
        raise ValueError(f"{owner}: omega and weight_decay both set the weight decay; give one of them")
    return omega, horizon


def coupled_decay(owner: str, settings: Mapping[str, Any]) -> float | None:
    """Decay that is multiplied by the learning rate, by omega: omega / (lr horizon), at most 1; None without omega."""
    check_settings(owner, settings)
    omega, horizon = omega_and_horizon(owner, settings)
    if omega is None:
        return None
    if horizon is None:
        raise ValueError(f"{owner}: omega needs horizon, the length of the run in steps")
    return min(omega / (settings["lr"] * horizon), 1.0) if settings["lr"] else 0.0


# ---- settings ----

Range = tuple[Callable[[Any], bool], str]
_POSITIVE: Range = (lambda x: 0 < x < math.inf, "finite and above 0")
_NOT_NEGATIVE: Range = (lambda x: 0 <= x < math.inf, "finite and not negative")
_SHARE: Range = (lambda x: 0 <= x <= 1, "from 0 to 1")
_BELOW_ONE: Range = (lambda x: 0 <= x < 1, "at least 0 and below 1")

_OPTIONAL: dict[str, Range] = {
    **dict.fromkeys(("wd_ts", "horizon", "alpha_warmup", "beta3_warmup"), _POSITIVE),
    **dict.fromkeys(("omega", "clipsnr", "aux_lr_factor", "matched_rms"), _NOT_NEGATIVE),
}
"""Those that may be None."""
RANGES: dict[str, Range] = {
    **_OPTIONAL,
    **dict.fromkeys(("delta", "significance"), _POSITIVE),
    **dict.fromkeys(("lr", "peak_lr", "eps", "weight_decay"), _NOT_NEGATIVE),
    **dict.fromkeys(("gamma3", "alpha", "alpha_offset"), _NOT_NEGATIVE),
    **dict.fromkeys(("kappa", "kappa_min", "kappa_max"), _SHARE),
    **dict.fromkeys(("betas", "momentum"), _BELOW_ONE),
}
"""Setting -> (test, words) of its range, or of each number of a tuple."""


def check_settings(owner: str, settings: Mapping[str, Any]) -> None:
    """Refuse numbers out of range, and what is no number; a ValueError names the setting and its range."""
    for name, (test, words) in RANGES.items():
        if name not in settings or (settings[name] is None and name in _OPTIONAL):
            continue
        value = settings[name]
        for number in value if isinstance(value, (tuple, list)) else (value,):
            is_number = isinstance(number, (Real, Tensor)) and not isinstance(number, bool)
            if not is_number:
                raise ValueError(f"{owner}: {name} is {value!r}; it must be a number, {words}")
            if not test(float(number)):
                raise ValueError(f"{owner}: {name} is {value!r}; it must be {words}")
    if not isinstance(settings.get("betas", ()), (tuple, list)):
        raise ValueError(f"{owner}: betas is {settings['betas']!r}; it must be several numbers, as 0.9,0.95")
    if settings.get("fused") not in (None, False, True):
        raise ValueError(f"{owner}: fused is {settings['fused']!r}; it must be None, False or True")
    if settings.get("stochastic_rounding", False) not in (False, True, "moments"):
        value = settings["stochastic_rounding"]
        raise ValueError(f"{owner}: stochastic_rounding is {value!r}; it must be False, True or 'moments'")
