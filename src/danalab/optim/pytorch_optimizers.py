"""Baselines from the library pytorch-optimizer (extra `baselines`), with corrections where a class is not exact.

Imports the library: `danalab.optim.registry` imports this module when one of its optimizers is built.
"""

import math
from collections.abc import Mapping
from typing import Any

import pytorch_optimizer
import torch
from torch import Tensor

from danalab.errors import UserError
from danalab.optim.catalogue import Row
from danalab.optim.optimizers.checks import check_numbers
from danalab.optim.optimizers.matrix.base import AUXILIARY
from danalab.optim.rules.age import age_path
from danalab.optim.rules.scalars import schedule_factor
from danalab.optim.values import read_kinds


def build(row: Row, values: dict[str, Any], params: Any, lr: float) -> torch.optim.Optimizer:
    """The library's optimizer, from values of all settings of the row.

    Weight decay is never part of the gradient: p <- p (1 - lr weight_decay).
    """
    groups = list(params)
    name = row.path.partition(":")[2]
    if name not in ("SOAP", "ScheduleFreeAdamW", "ScheduleFreeSGD"):  # the others have a switch for that
        values["weight_decouple"] = True
    if "foreach" in values and values["foreach"] is None and not any(p.is_cuda for p in _tensors(groups)):
        values["foreach"] = False  # lists of tensors gain nothing on CPUs
    if "lr_1d" in values and values["lr_1d"] is None:
        values["lr_1d"] = lr
    if row.by_kind:
        aux_lr, factor, aux_decay = (values.pop(setting) for setting in AUXILIARY)
        values["adamw_lr"] = factor * lr if aux_lr is None else aux_lr
        values["adamw_wd"] = aux_decay or 0.0
        known = {"lr": lr, "weight_decay": 0.0, "betas": values["adamw_betas"]}
        by_kind = read_kinds(row.name, values.pop("by_kind"), known)
        groups = _with_kinds(row.name, groups, values["adamw_lr"], values.get("weight_decay", 0.0), aux_decay)
        for group in groups:
            own = by_kind.get(group.get("kind") or ("matrix" if group["use_muon"] else ""), {})
            factor = own.pop("lr_factor", None)
            group.update(own if factor is None else {**own, "lr": factor * lr})
    optimizer: Any = _EXACT.get(name) or getattr(pytorch_optimizer, name)
    return optimizer(groups, lr=lr, **values)


def _tensors(groups: list[Any]) -> list[Any]:
    return [p for group in groups for p in (group["params"] if isinstance(group, dict) else [group])]


def _with_kinds(
    name: str, groups: list[Any], adamw_lr: float, weight_decay: float, aux_decay: float | None
) -> list[dict[str, Any]]:
    """Groups with `use_muon`: given, or inferred where a group has only matrices, or none."""
    if groups and not isinstance(groups[0], dict):
        groups = [{"params": groups}]
    completed = []
    for group in groups:
        if group.get("kind") in ("experts", "router"):
            # The library treats a stack as the matrix of a convolution, which would orthogonalise experts together; and
            # it decays other parameters only where the group has a weight decay.
            decay = weight_decay if aux_decay is None else aux_decay
            group = {"weight_decay": decay, **group, "use_muon": False}
        if "use_muon" not in group:
            are_matrices = {p.ndim > 1 for p in group["params"]}
            if len(are_matrices) > 1:
                raise UserError(f"{name}: a group has matrices and vectors; give a model, or groups with use_muon")
            group = {**group, "use_muon": are_matrices == {True}}
        completed.append(group if group["use_muon"] else {"lr": adamw_lr, **group})
    return completed


TRAINING_WEIGHTS = "training_weights"
"""State key while a schedule-free optimizer is switched to its averages: the training weights."""


class ExactSwitch:
    """Schedule-free optimizers whose `train()` restores exactly the weights before `eval()`.

    The library recomputes the training weights from the averages, which rounds: a run would depend on how often it is
    evaluated and saved. Here they are stored (one copy, from `eval()` to `train()`).
    """

    optional_state = (TRAINING_WEIGHTS,)
    param_groups: list[dict[str, Any]]
    state: Any

    @torch.no_grad()
    def eval(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if group["train_mode"] and "z" in self.state.get(p, {}):
                    self.state[p][TRAINING_WEIGHTS] = p.detach().clone()
        super().eval()  # pyright: ignore[reportAttributeAccessIssue]

    @torch.no_grad()
    def train(self) -> None:
        super().train()  # pyright: ignore[reportAttributeAccessIssue]
        for group in self.param_groups:
            for p in group["params"]:
                kept = self.state.get(p, {}).pop(TRAINING_WEIGHTS, None)
                if kept is not None:
                    p.copy_(kept)


class ScheduleFreeAdamW(ExactSwitch, pytorch_optimizer.ScheduleFreeAdamW):
    """The library's, with an exact switch."""


class ScheduleFreeSGD(ExactSwitch, pytorch_optimizer.ScheduleFreeSGD):
    """The library's, with an exact switch."""


class Prodigy(pytorch_optimizer.Prodigy):
    """The library's; its two sums over all coordinates can be completed over ranks and restored from checkpoints.

    `sum_over`: for each parameter that is a shard, the process groups over which its sums are completed.
    """

    sum_over: Mapping[Tensor, tuple[Any, ...]] = {}

    def step(self, closure: Any = None) -> Any:
        device = self.get_device_from_param_groups(self.param_groups)
        for group in self.param_groups:
            for key in ("d_numerator", "d_de_nom"):
                if key in group and not isinstance(group[key], Tensor):
                    group[key] = torch.tensor([group[key]], device=device)
        return super().step(closure)

    def _can_use_foreach(self, group: Any) -> bool:
        return bool(self.sum_over) or super()._can_use_foreach(group)

    def _step_foreach(
        self, group: Any, params: Any, grads: Any, state: Any, d: Any, d_lr: Any, statistics: tuple[Tensor, Tensor]
    ) -> None:
        alike: dict[tuple[Any, ...], list[int]] = {}
        for i, p in enumerate(params):
            alike.setdefault(self.sum_over.get(p, ()), []).append(i)
        for process_groups, indices in alike.items():
            chosen = {key: [values[i] for i in indices] for key, values in state.items()}
            part = tuple(torch.zeros_like(total) for total in statistics)
            own, own_grads = [params[i] for i in indices], [grads[i] for i in indices]
            super()._step_foreach(group, own, own_grads, chosen, d, d_lr, part)  # pyright: ignore[reportArgumentType]
            both = torch.cat(part)
            for process_group in process_groups:
                torch.distributed.all_reduce(both, group=process_group)
            for total, more in zip(statistics, both.split(1), strict=True):
                total.add_(more)


class ADOPT(pytorch_optimizer.ADOPT):
    """The library's, with its bound of the normalised gradient, t^(1/4), as a function that can be pickled."""

    def __init__(self, params: Any, **settings: Any):
        super().__init__(params, clip_lambda=_fourth_root, **settings)


class _Aged:
    """Lion and SignSGD whose momentum has a mean age: the rates of a step are those of the path (`rules.age`)."""

    param_groups: list[dict[str, Any]]
    defaults: dict[str, Any]

    def __init__(self, params: Any, *, age: str | None = None, fresh: float | None = None, **settings: Any):
        super().__init__(params, **settings)  # pyright: ignore[reportCallIssue]
        memory = {name: value for name, value in (("age", age), ("fresh", fresh)) if value is not None}
        self.defaults.update(memory)
        for group in self.param_groups if memory else ():
            group.update({**memory, "peak_lr": float(group["lr"]), **group})
            check_numbers(type(self).__name__, {key: group[key] for key in memory})

    def coefficients(self, group: int = 0) -> dict[str, Any]:
        """As those of `danalab.optim.optimizers.base.RuleOptimizer`, of a group with an age."""
        own = self.param_groups[group]
        if own.get("age") is None:
            return {}
        known = {"t": own.get("step", 0), "lr": own["lr"], "schedule": schedule_factor(own)}
        return {**known, "age": own.get("age_now", 0.0)}

    def step(self, closure: Any = None) -> Any:
        given = [{key: group[key] for key in ("betas", "momentum") if key in group} for group in self.param_groups]
        for group in self.param_groups:
            gain, fresh, before = None, group.get("fresh"), group.get("age_now", 0.0)
            if group.get("age") is not None:
                path, s = age_path("optimizer", group["age"]), float(schedule_factor(group))
                group["age_now"] = float(path.step(group.get("step", 0) + 1, s, before))
                gain = 1 - group["age_now"] / (1 + before)
            if "betas" in group:
                beta1, beta2 = group["betas"]
                group["betas"] = (beta1 if fresh is None else 1 - fresh, beta2 if gain is None else 1 - gain)
            elif gain is not None:
                group["momentum"] = 1 - gain
        try:
            return super().step(closure)  # pyright: ignore[reportAttributeAccessIssue]
        finally:
            for group, own in zip(self.param_groups, given, strict=True):
                group.update(own)


class Lion(_Aged, pytorch_optimizer.Lion):
    """The library's, with a memory by age."""


class SignSGD(_Aged, pytorch_optimizer.SignSGD):
    """The library's, with a memory by age and a share of the new gradient."""

    def _can_use_foreach(self, group: Any) -> bool:
        return group.get("fresh") is None and super()._can_use_foreach(group)

    def _step_per_param(self, group: Any) -> None:
        if group.get("fresh") is None:
            super()._step_per_param(group)
            return
        for p in (p for p in group["params"] if p.grad is not None):
            g = -p.grad if self.maximize else p.grad
            m = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p)).lerp_(g, 1 - group["momentum"])
            p.mul_(1 - group["lr"] * group["weight_decay"]).add_(m.lerp(g, group["fresh"]).sign_(), alpha=-group["lr"])


def _fourth_root(step: float) -> float:
    return math.pow(step, 0.25)


_OURS = (ADOPT, Lion, SignSGD, ScheduleFreeAdamW, ScheduleFreeSGD, Prodigy)
_EXACT: dict[str, type] = {each.__name__: each for each in _OURS}
