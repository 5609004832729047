"""The optimizer classes behind our rules: groups, clocks, state and the choice of a way to compute.

Time is a hyper-parameter here, so the rules of time are strict: every parameter has its own step count t in its state;
it starts at 0, advances by one when a gradient is applied to that parameter, and never otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from danalab.errors import UserError
from danalab.optim.backends import choice as ways
from danalab.optim.core.batch import Batch, gather
from danalab.optim.core.dummy_step import is_rehearsal
from danalab.optim.core.rule import Rule
from danalab.optim.core.settings import check_settings, resolve_decay
from danalab.optim.core.state import IMPLEMENTATION, check_state_dict, fill_state, local, moment_dtype, parameter_name
from danalab.optim.elementwise.functional import decay_rate, schedule_factor

log = logging.getLogger(__name__)

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class RuleOptimizer(torch.optim.Optimizer):
    """What our optimizers share: a rule for each group, clocks, state from construction on, checks before loading.

    State of a parameter: `step` (0-dim float32, as in torch) and its rule's moments, which are float32 even where the
    parameter is bfloat16 or float16. A subclass says which rule a group has and which settings it refuses.
    """

    takes_dtensors: ClassVar[bool] = True
    """Steps on the local parts of DTensors by itself."""
    _numel: int | None = None  # elements of all parameters, counted when first needed

    def rule_of(self, group: Mapping[str, Any]) -> Rule:
        """The rule that updates a group's parameters."""
        raise NotImplementedError

    def check_group(self, group: Mapping[str, Any]) -> None:
        """Refuse settings that no run can mean.

        Raises:
            UserError: names the setting.
        """
        raise NotImplementedError

    @property
    def name(self) -> str:
        """Class name, for messages."""
        return type(self).__name__

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with settings of their own; what is not given is as at construction.

        Raises:
            UserError: a setting out of range, or a parameter that cannot be optimized; nothing has been added then.
        """
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            self.check_group(group)
            for index, p in enumerate(group["params"]):
                if p.dtype not in DTYPES:
                    raise UserError(
                        f"{self.name}: {parameter_name(group, index)} is {p.dtype};"
                        " only float32, float64, bfloat16 and float16 parameters can be optimized"
                    )
        except UserError:
            self.param_groups.pop()
            raise
        if group["fused"]:
            for device in {p.device.type for p in group["params"]}:
                ways.require_fused(device)
        self._numel = None
        group.setdefault("peak_lr", float(group["lr"]))
        for p in group["params"]:
            fill_state(self.state[p], p, self.rule_of(group).moments, bool(group["capturable"]))

    @torch.no_grad()
    def step(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, closure: Callable[[], Any] | None = None, *, found_nonfinite: Tensor | bool | None = None
    ) -> Any:
        """Apply the gradients; a parameter without one is left alone and its clock stands still.

        Args:
            closure: evaluates the model again and returns the loss.
            found_nonfinite: True leaves everything as it is, clocks included. A tensor is honoured on its device
                without waiting for it where all groups are `capturable`; otherwise it is read.
        Returns:
            What the closure returned, or None.
        Raises:
            UserError: a sparse gradient, or a learning rate above 0 in a group that was built with 0.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        skip = None
        if isinstance(found_nonfinite, Tensor) and all(group["capturable"] for group in self.param_groups):
            skip = found_nonfinite.bool()
        elif found_nonfinite is not None and bool(found_nonfinite):
            return loss
        if is_rehearsal(self.param_groups):
            return loss
        self._apply(skip)
        return loss

    # Where a whole training step is compiled, this stays outside of its graphs: traced, clocks would become constants,
    # and passes over memory be taken apart. By this name, as in torch.optim, it costs no import before it is needed.
    @torch._disable_dynamo
    def _apply(self, skip: Tensor | None) -> None:
        """Apply all gradients, each group's by its rule."""
        work: dict[str, tuple[Rule, list[Batch]]] = {}
        for batch in gather(self, self.param_groups, self.rule_of, skip):
            rule = self.rule_of(batch.group)
            work.setdefault(rule.name, (rule, []))[1].append(batch)
        for rule, batches in work.values():
            self._apply_rule(rule, batches)

    def _apply_rule(self, rule: Rule, batches: list[Batch]) -> None:
        chosen: dict[ways.Way, list[Batch]] = {}
        for batch in batches:
            chosen.setdefault(self._way(batch), []).append(batch)
        for way, alike in chosen.items():
            way(rule, alike)

    def _way(self, batch: Batch) -> ways.Way:
        if self._numel is None:
            self._numel = sum(local(p).numel() for group in self.param_groups for p in group["params"])
        return ways.choose(batch.group, batch.params[0].device.type, self._numel)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore moments, clocks and every hyper-parameter; how to compute (fused, ...) stays as built.

        Raises:
            UserError: saved by another optimizer or from another model; nothing has changed then.
        """
        if not isinstance(state_dict, dict):
            raise UserError(f"{self.name}: not an optimizer state_dict but {type(state_dict).__name__}")
        seen: list[dict[str, Any]] = []

        def check(_: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
            check_state_dict(self, lambda group: self.rule_of(group).moments, saved)
            seen.append(saved)

        flags = [{key: group[key] for key in IMPLEMENTATION} for group in self.param_groups]
        handle = self.register_load_state_dict_pre_hook(check)  # the last hook: sees what is really loaded
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
        saved = seen[0]
        for group, saved_group, own in zip(self.param_groups, saved["param_groups"], flags, strict=True):
            group.update(own)
            for p, key in zip(group["params"], saved_group["params"], strict=True):
                self._restore(p, saved["state"][key], self.rule_of(group), bool(group["capturable"]))

    def _restore(self, p: Tensor, saved: dict[str, Any], rule: Rule, capturable: bool) -> None:
        # torch has cast the moments to the parameter's dtype and may share memory with the saved ones: copy anew.
        step = torch.as_tensor(saved["step"], dtype=torch.float32).clone()
        self.state[p]["step"] = step.to(p.device if capturable else "cpu")
        for name in rule.moments:
            self.state[p][name] = torch.empty_like(p, dtype=moment_dtype(p)).copy_(saved[name].detach())


class ElementwiseOptimizer(RuleOptimizer):
    """One element-wise rule for all parameters; `ADana` explains the arguments."""

    rule: ClassVar[Rule]

    def __init__(
        self,
        params: Any,
        settings: dict[str, Any],
        *,
        foreach: bool | None,
        fused: bool | None,
        capturable: bool,
    ):
        if foreach and (fused or capturable):
            other = "fused" if fused else "capturable"
            raise UserError(f"{self.name}: foreach=True and {other}=True exclude each other; leave one of them out")
        self.check_group(settings)
        try:
            super().__init__(params, {**settings, "foreach": foreach, "fused": fused, "capturable": capturable})
        except (TypeError, ValueError) as error:
            raise error if isinstance(error, UserError) else UserError(f"{self.name}: {error}") from error

    def rule_of(self, group: Mapping[str, Any]) -> Rule:
        return self.rule

    def check_group(self, group: Mapping[str, Any]) -> None:
        check_settings(self.name, group)

    def coefficients(self, group: int = 0) -> dict[str, Any]:
        """Scalars of the last step of a group, for logging: `t`, `lr`, `schedule`, `lambda`; subclasses add theirs.

        Numbers; with `capturable` those that depend on t are 0-dim tensors, so that no device is waited for.
        """
        settings = self.param_groups[group]
        steps = [self.state[p]["step"] for p in settings["params"]]
        if settings["capturable"]:
            t: Any = steps[0].double() if steps else 0
        else:
            t = int(max((step.item() for step in steps), default=0))
        return {
            "t": t,
            "lr": settings["lr"],
            "schedule": schedule_factor(settings),
            "lambda": decay_rate(settings, t),
        }


class DecayingOptimizer(ElementwiseOptimizer):
    """One element-wise rule with independent, decaying weight decay, stated in either of two forms."""

    def __init__(
        self,
        params: Any,
        settings: dict[str, Any],
        *,
        omega: float | None,
        horizon: float | None,
        foreach: bool | None,
        fused: bool | None,
        capturable: bool,
    ):
        decay = {key: settings[key] for key in ("weight_decay", "wd_ts")}
        settings["weight_decay"], settings["wd_ts"] = resolve_decay(self.name, **decay, omega=omega, horizon=horizon)
        super().__init__(params, settings, foreach=foreach, fused=fused, capturable=capturable)
        if settings["weight_decay"] and not any(group["weight_decay"] for group in self.param_groups):
            # Trainers that make groups of their own write their weight decay into them, which is 0 unless it is set.
            log.warning(
                "%s: a weight decay was set, but every group says weight_decay 0, so nothing decays;"
                " build the optimizer yourself and hand it to the trainer",
                self.name,
            )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with settings of their own; what is not given is as at construction.

        Raises:
            UserError: a setting out of range, or a parameter that cannot be optimized; nothing has been added then.
        """
        group = dict(param_group) if isinstance(param_group, dict) else param_group
        if "omega" in group or "horizon" in group:
            form = {key: group.pop(key, None) for key in ("omega", "horizon")}
            decay = {"weight_decay": group.pop("weight_decay", 0.0), "wd_ts": group.pop("wd_ts", None)}
            group["weight_decay"], group["wd_ts"] = resolve_decay(self.name, **decay, **form)
        super().add_param_group(group)
