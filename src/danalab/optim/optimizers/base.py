"""The base classes of our optimizers: groups, step counts, state, the choice of a back end, decaying weight decay.

Every parameter has its own step count t in its state. It starts at 0 and advances by one when a gradient is applied to
that parameter, and only then: the hyper-parameters of logarithmic-time optimizers depend on it.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from danalab.errors import UserError
from danalab.optim.optimizers import checks, groups
from danalab.optim.optimizers.stats import collect, describe, update_rms
from danalab.optim.rules.rule import Rule
from danalab.optim.rules.scalars import decay_rate, momentum_gain, schedule_factor
from danalab.optim.run_length import DECAY_BOUND, LOG_TIME_DECAY_BOUND
from danalab.optim.settings import plain_settings
from danalab.optim.step.backends.choice import Backend, call_of, choose_backend, require_backend, step_by_format
from danalab.optim.step.backends.plan import StepPlan
from danalab.optim.step.batch import TensorBatch, age_tensor, gather, update_buffers
from danalab.optim.step.state import fill_state, is_dummy_step, loss_of
from danalab.optim.step.state_dict import (
    IMPLEMENTATION,
    NEWEST,
    by_names,
    check_rule_state,
    parameter_name,
    warn_of_replaced,
)
from danalab.optim.step.state_formats import check_format, format_of, require_format, stored_tensors
from danalab.optim.values import settings_of

log = logging.getLogger(__name__)


class RuleOptimizer(torch.optim.Optimizer):
    """An optimizer with a rule for each group, state from construction on, and checks before loading.

    State of a parameter: `step` (0-dim int64: float32 would stop at 2^24) and its rule's moments, float32 even where
    the parameter is bfloat16 or float16. A subclass says which rule a group has and which settings it refuses.

    Args:
        settings: hyper-parameters, and the flags `foreach`, `fused` and `capturable` (see `ADana`).
    """

    decays_independently: ClassVar[bool] = False
    """Whether weight decay does not follow the learning rate."""
    takes_dtensors: ClassVar[bool] = True
    """Steps on the local parts of DTensors without a wrapper."""
    by_kinds = False
    """Its groups were made by the kinds of the parameters; groups that are added later are split alike."""
    _built = False
    _plan: StepPlan | None = None
    _warned = _warned_equal = False

    def setup(self, params: Any, settings: dict[str, Any]) -> None:
        """What a constructor made by `danalab.optim.settings.takes` does with its arguments."""
        for other in ("fused", "capturable"):
            if settings["foreach"] and settings[other]:
                raise UserError(f"{self.name}: foreach=True and {other}=True exclude each other; leave one of them out")
        self.check_group(settings)
        try:
            torch.optim.Optimizer.__init__(self, self.groups_of(params, settings), settings)
        except (TypeError, ValueError) as error:
            raise error if isinstance(error, UserError) else UserError(f"{self.name}: {error}") from error
        self._built = True

    def rule_of(self, group: Mapping[str, Any]) -> Rule:
        """The rule that updates a group's parameters."""
        raise NotImplementedError

    def check_group(self, group: Mapping[str, Any]) -> None:
        """Refuse settings that make no sense; a UserError names the setting."""
        raise NotImplementedError

    def check_groups(self) -> None:
        """Refuse what a caller has written into the groups, or left out of them."""
        checks.check_own_groups(self, self._check_changed, "peak_lr")

    def _check_changed(self, group: Mapping[str, Any]) -> None:
        self.check_group(group)
        check_format(self.name, group.get("state_dtype", "float32"))

    def groups_of(self, params: Any, settings: Mapping[str, Any]) -> Any:
        """The constructor's `params` as torch takes them: a model becomes groups by the kinds of its parameters."""
        return (
            groups.split_by_rate(groups.parameter_groups(params), params) if isinstance(params, nn.Module) else params
        )

    def prepare_groups(self, group: dict[str, Any]) -> list[dict[str, Any]]:
        """The groups that a group given by the caller becomes."""
        return [group]

    def check_backend(self, group: Mapping[str, Any]) -> None:
        """Refuse flags for a back end that the group's rule or its devices do not have; see `require_backend`."""
        require_backend(self.name, self.rule_of(group), group, {p.device.type for p in group["params"]})

    @property
    def name(self) -> str:
        return type(self).__name__

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with their own settings; the others are as at construction.

        UserError, with nothing added: a setting out of range, or a parameter that cannot be optimized.
        """
        before = len(self.param_groups)
        try:
            if isinstance(param_group, dict):
                known = (*self.defaults, "omega", "horizon", "peak_lr", "lr_factor", "eps_factor", "use_muon", "kind")
                checks.check_group_keys(self.name, param_group, known)
                param_group = plain_settings(param_group)
            for group in [part for each in self._by_kinds(param_group) for part in self.prepare_groups(each)]:
                factors = groups.take_factors(group)
                if self._built:
                    group["params"] = groups.named_as(self.param_groups[:before], group["params"])
                super().add_param_group(group)
                groups.apply_factors(self.param_groups[-1], *factors, independent=self.decays_independently)
                self._check_added(self.param_groups[-1])
        except Exception:
            del self.param_groups[before:]
            raise
        for group in self.param_groups[before:]:
            group.setdefault("peak_lr", float(group["lr"]))
            group.setdefault("initial_lr", group["peak_lr"])
            for p in group["params"]:
                self._fill(group, p)

    def _fill(self, group: Mapping[str, Any], p: Tensor) -> None:
        """Create the state of a parameter; later, in its first step, if it is frozen or has no memory yet."""
        if p.requires_grad and not p.is_meta:
            rule = self.rule_of(group)
            fill_state(self.state[p], p, rule.stored(group), bool(group["capturable"]), format_of(group, p))
            age_tensor(self.state[p], rule, group)

    def _by_kinds(self, group: Any) -> list[Any]:
        """A group that is added later, split if those of the constructor were, and it does not say how it decays."""
        if not (self._built and self.by_kinds and isinstance(group, dict)) or {"weight_decay", "omega"} & set(group):
            return [group]
        return groups.split_added(self.name, group)

    def __getstate__(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        own = ("by_kinds", "_built", "_omega", "_horizon")
        return {**super().__getstate__(), **{key: value for key, value in vars(self).items() if key in own}}

    def _check_added(self, group: dict[str, Any]) -> None:
        self.check_group(group)
        checks.check_numbers_of(self.name, settings_of(type(self), {}), group)
        state_dtype = group.get("state_dtype", "float32")
        check_format(self.name, state_dtype)
        if group["capturable"] and state_dtype != "float32":
            raise UserError(f"{self.name}: capturable needs state_dtype float32, not {state_dtype}")
        if state_dtype != "float32" and group.get("buffers", 1) > 1:
            raise UserError(f"{self.name}: buffers needs state_dtype float32, not {state_dtype}")
        for index, p in enumerate(group["params"]):
            if p.dtype not in groups.DTYPES:
                raise UserError(
                    f"{self.name}: {parameter_name(group, index)} is {p.dtype};"
                    " only float32, float64, bfloat16 and float16 parameters can be optimized"
                )
            require_format(self.name, parameter_name(group, index), p, state_dtype)
        self.check_backend(group)

    describe = describe

    def coefficients(self, group: int = 0) -> dict[str, Any]:
        """Scalars of the last step of a group, for logging: `t`, `lr`, `schedule`, `age`; subclasses add theirs.

        `age`, where it is set, is the momentum's mean age [steps]. Numbers; with `capturable` those that depend on t
        are 0-dim tensors, so that no device is waited for.
        """
        settings = self.param_groups[group]
        states = [self.state[p] for p in settings["params"] if p in self.state]
        if settings["capturable"]:
            last: Any = states[0] if states else {}
            t, ages = last["step"].double() if states else 0, [last["age"]] if "age" in last else []
        else:
            last = max(states, key=lambda state: state["step"].item(), default={})
            t, ages = int(last.get("step", 0)), [float(last["age"])] if "age" in last else []
        scalars = {"t": t, "lr": settings["lr"], "schedule": schedule_factor(settings)}
        return {**scalars, "age": ages[0]} if ages else scalars

    @torch.no_grad()
    def step(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, closure: Callable[[], Any] | None = None, *, found_nonfinite: Tensor | bool | None = None
    ) -> Any:
        """Apply the gradients; a parameter without one is left unchanged, and so is its step count.

        Args:
            closure: evaluates the model again and returns the loss.
            found_nonfinite: True skips the step, step counts included. A tensor is evaluated on its device without
                waiting for it where all groups are `capturable`; otherwise it is read.
        Returns:
            What the closure returned, or None.
        Raises:
            UserError: a sparse gradient, or a learning rate above 0 in a group that was built with 0.
        """
        loss = loss_of(closure)
        skip = None
        if isinstance(found_nonfinite, Tensor) and all(group["capturable"] for group in self.param_groups):
            skip = found_nonfinite.bool()
        elif found_nonfinite is not None and bool(found_nonfinite):
            return loss
        if is_dummy_step(self.param_groups):
            return loss
        self._apply(skip)
        return loss

    # Excluded from the graphs of a compiled training step: traced, step counts would become constants and single passes
    # over memory would be split. This name of dynamo's decorator, as in torch.optim, needs no import of dynamo here.
    @torch._disable_dynamo
    def _apply(self, skip: Tensor | None) -> None:
        self.check_groups()
        self._warn_above_peak()
        if self._plan is not None and self._plan.repeat(self, skip):
            return
        self._plan = None
        self._warned_equal = self._warned_equal or checks.warn_of_equal_rates(self.name, self.param_groups)
        work: dict[tuple[Backend, str], tuple[Rule, list[TensorBatch]]] = {}
        mixes = False
        for batch in gather(self, self.param_groups, self.rule_of, skip):
            rule = self.rule_of(batch.group)
            if len(rule.stored(batch.group)) > len(rule.moments):
                mixes = True
                update_buffers(batch, len(rule.moments))
            backend = self.backend_of(rule, batch)
            work.setdefault((backend, rule.name), (rule, []))[1].append(batch)
        for (backend, _), (rule, batches) in work.items():
            step_by_format(rule, batches, backend)
        if len(work) == 1:
            (((backend, _), (rule, batches)),) = work.items()
            call = call_of(backend)
            as_stored = all(batch.moments for batch in batches)
            if call is not None and as_stored and not mixes and StepPlan.is_possible(self, batches):
                self._plan = StepPlan(self, rule, batches, call)

    def _warn_above_peak(self) -> None:
        for group in () if self._warned else self.param_groups:
            lr, peak = group["lr"], group["peak_lr"]
            followers = group["weight_decay"] or group.get("momentum_cooldown")
            if not isinstance(lr, Tensor) and 0 < peak * (1 + 1e-6) < lr and followers:
                self._warned = True
                follower = "weight decay" if group["weight_decay"] else "the momentum's cooldown"
                log.warning(
                    f"{self.name}: the learning rate is {lr:g}, above the {peak:g} at construction; {follower} follows"
                    " lr / peak_lr up to 1: build the optimizer with the schedule's largest rate, or set peak_lr"
                )

    def backend_of(self, rule: Rule, batch: TensorBatch) -> Backend:
        """The back end that updates a batch."""
        return choose_backend(rule, batch.group, batch.params[0].device.type)

    def state_dict(self) -> dict[str, Any]:
        """As torch's; a group with frozen parameters that have no state names their indices in `unstepped`."""
        saved = super().state_dict()
        for group, own in zip(saved["param_groups"], self.param_groups, strict=True):
            stateless = [i for i, p in enumerate(own["params"]) if p not in self.state]
            if stateless:
                group["unstepped"] = stateless
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore moments, step counts and every hyper-parameter; the flags of back ends (fused, ...) stay as built.

        UserError, with nothing changed: saved by another optimizer or from another model.
        """
        if not isinstance(state_dict, dict):
            raise UserError(f"{self.name}: not an optimizer state_dict but {type(state_dict).__name__}")
        seen: list[dict[str, Any]] = []

        def check(_: torch.optim.Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
            saved = by_names(self.name, self.param_groups, saved)
            check_rule_state(self, lambda group: self.rule_of(group).stored(group), saved)
            for own, loaded in zip(self.param_groups, saved["param_groups"], strict=True):
                merged = plain_settings({**own, **groups.hyper(loaded)})
                checks.check_numbers_of(self.name, settings_of(type(self), {}), groups.hyper(merged))
                self._check_changed(merged)
                if merged.get("use_muon") != own.get("use_muon"):
                    raise UserError(
                        f"{self.name}: the state_dict has use_muon {merged['use_muon']}, this optimizer"
                        f" {own.get('use_muon')}; build it with the groups of the saved run"
                    )
            seen.append(saved)
            return saved

        flags = [{key: group[key] for key in IMPLEMENTATION if key in group} for group in self.param_groups]
        built = [groups.hyper(group) for group in self.param_groups]
        handle = self.register_load_state_dict_pre_hook(check)  # the last hook: sees what is really loaded
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
        saved = seen[0]
        warn_of_replaced(self.name, built, self.param_groups)
        for group, saved_group, own, asked in zip(self.param_groups, saved["param_groups"], flags, built, strict=True):
            later = {key: asked[key] for key in NEWEST if key in asked}
            group.update(plain_settings({**later, **groups.hyper(group), **own}))
            group.setdefault("initial_lr", group["peak_lr"])
            group.pop("unstepped", None)
            for p, key in zip(group["params"], saved_group["params"], strict=True):
                if not saved["state"].get(key):
                    self._fill(group, p)  # it was frozen when it was saved
                    continue
                # torch has cast the moments to the parameter's dtype and may share memory with the saved ones.
                entry, moments = saved["state"][key], self.rule_of(group).stored(group)
                step = torch.as_tensor(entry["step"]).to(torch.int64, copy=True)  # float32 before version 0.2
                self.state[p]["step"] = step.to(p.device if group["capturable"] else "cpu")
                if "age" in entry:
                    age = torch.as_tensor(entry["age"]).to(torch.float64, copy=True)
                    self.state[p]["age"] = age.to(self.state[p]["step"].device)
                for name, tensor in stored_tensors(moments, p, format_of(group, p)).items():
                    self.state[p][name] = tensor.copy_(entry[name].detach())


class ElementwiseOptimizer(RuleOptimizer):
    """One element-wise rule for all parameters."""

    rule: ClassVar[Rule]
    rates: ClassVar[int] = 2
    """Numbers in `betas`."""

    def groups_of(self, params: Any, settings: Mapping[str, Any]) -> Any:
        """With weight decay, named parameters become groups by their names and shapes, as a model does by its kinds.

        So do parameters of which some are marked as not decayed.
        """
        if isinstance(params, nn.Module):
            self.by_kinds = True
            return super().groups_of(params, settings)
        if isinstance(params, Tensor) or not settings["weight_decay"]:
            return super().groups_of(params, settings)
        params = list(params)
        if params and all(isinstance(entry, tuple) and isinstance(entry[0], str) for entry in params):
            self.by_kinds = True
            return groups.split_by_decay(self.name, params)
        marked = [getattr(entry, "_no_weight_decay", False) for entry in params]
        if any(marked):
            return groups.groups_by_decay([("", p, not mark) for p, mark in zip(params, marked, strict=True)])
        return params

    def rule_of(self, group: Mapping[str, Any]) -> Rule:
        return self.rule

    def check_group(self, group: Mapping[str, Any]) -> None:
        checks.check_numbers(self.name, group, self.rates, getattr(type(self).__init__, "declared", {}))
        checks.check_coupled_decay(self.name, group)

    def coefficients(self, group: int = 0) -> dict[str, Any]:
        """As in the base class, with `lambda`, the weight decay."""
        known = super().coefficients(group)
        return {**known, "lambda": decay_rate(self.param_groups[group], known["t"])}


class DecayingOptimizer(ElementwiseOptimizer):
    """One element-wise rule with independent, decaying weight decay, given in either of two forms."""

    decays_independently: ClassVar[bool] = True
    decay_bound: ClassVar[float] = DECAY_BOUND
    """Bound of a decay that is given by omega, times the peak learning rate."""
    _omega: float | None = None
    _horizon: float | None = None

    def setup(self, params: Any, settings: dict[str, Any]) -> None:
        self._omega, self._horizon = settings["omega"], settings["horizon"]
        super().setup(params, self._with_decay({"decay_bound": None, **settings}, None))
        unbounded = [group for group in self.param_groups if group["decay_bound"] is None]
        for decay in {(group["weight_decay"], group["wd_ts"]) for group in unbounded}:
            checks.warn_of_large_decay(self.name, *decay)
        if self.defaults["weight_decay"] and not any(group["weight_decay"] for group in self.param_groups):
            # Trainers that make groups of their own write their weight decay into them, which is 0 unless it is set.
            log.warning(
                f"{self.name}: a weight decay was set, but every group says weight_decay 0, so nothing decays;"
                " build the optimizer yourself and hand it to the trainer"
            )

    def check_group(self, group: Mapping[str, Any]) -> None:
        checks.check_settings(self.name, group, self.rates, getattr(type(self).__init__, "declared", {}))

    def prepare_groups(self, group: dict[str, Any]) -> list[dict[str, Any]]:
        if not isinstance(group, dict):
            return [group]
        if group.get("weight_decay") == 0 and group.get("omega") == self._omega:
            # Torch's ZeroRedundancyOptimizer writes the constructor's settings into every group.
            group = {key: value for key, value in group.items() if key not in ("omega", "horizon")}
        checks.refuse_two_decays(self.name, group, self._omega)
        if group.get("weight_decay"):
            group = {"decay_bound": None, **group}
        return [self._with_decay(group, self.defaults["wd_ts"])]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        built = [group["wd_ts"] for group in self.param_groups]
        super().load_state_dict(state_dict)
        if self._horizon is not None:  # of the run that is resumed; with omega, wd_ts is a tenth of it
            resumed = [group["wd_ts"] for group in self.param_groups]
            new = next((wd_ts for wd_ts, old in zip(resumed, built, strict=True) if wd_ts and wd_ts != old), None)
            self._horizon = self._horizon if new is None else 10 * new

    def _apply(self, skip: Any) -> None:
        if self._horizon is not None:
            self._warn_beyond(self._horizon)
        super()._apply(skip)

    def _warn_beyond(self, horizon: float) -> None:
        """Warn once, in the first step beyond the horizon."""
        host = (group["params"] for group in self.param_groups if not group["capturable"])
        p = next((p for params in host for p in params if p.grad is not None), None)
        if p is not None and (step := int(self.state[p].get("step", 0)) + 1) > horizon:
            self._horizon = None
            log.warning(
                f"{self.name}: step {step} is beyond the horizon of {horizon:g} steps; weight decay goes on falling as"
                " omega / (wd_ts + t): build the optimizer with the length of the whole run"
            )

    def _with_decay(self, settings: Mapping[str, Any], wd_ts: float | None) -> dict[str, Any]:
        """Settings with `weight_decay`, `wd_ts` and `decay_bound` for omega; `wd_ts` is that of one without horizon."""
        resolved = dict(settings)
        omega, horizon = resolved.pop("omega", None), resolved.pop("horizon", None)
        if omega is not None or horizon is not None:
            own, decay = resolved.get("wd_ts"), resolved.get("weight_decay", 0.0)
            wd_ts = wd_ts if own is None and horizon is None else own
            decay, wd_ts = checks.resolve_decay(
                self.name, weight_decay=decay, wd_ts=wd_ts, omega=omega, horizon=horizon
            )
            resolved |= {"weight_decay": decay, "wd_ts": wd_ts}
            if resolved.get("decay_bound") is None:
                resolved["decay_bound"] = self.decay_bound
        if resolved.get("decay_bound") == 0:
            resolved["decay_bound"] = None
        return resolved


class LogTimeOptimizer(DecayingOptimizer):
    """An optimizer whose averages run in logarithmic time: beta(t) = 1 - delta / (delta + t)."""

    decay_bound: ClassVar[float] = LOG_TIME_DECAY_BOUND

    def coefficients(self, group: int = 0) -> dict[str, Any]:
        """As in the base class, with `alpha`, which is `largest_alpha`, and `beta` unless there is an `age`."""
        settings, known = self.param_groups[group], super().coefficients(group)
        t = known["t"]
        beta = {} if "age" in known else {"beta": 1 - momentum_gain(settings, t)}
        return {**known, **beta, "alpha": self.largest_alpha(settings, t)}

    def largest_alpha(self, group: Mapping[str, Any], t: Any) -> Any:
        """(1 + t)^(1 - kappa), the largest of all coordinates."""
        return (1 + t) ** (1 - group["kappa"])

    collect_stats = collect
    update_rms = update_rms
