"""The batches of one step: parameters that share a group, a dtype, a device and a step count."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from danalab.errors import UserError
from danalab.optim.rules.age import age_path, mixture
from danalab.optim.rules.rule import Rule
from danalab.optim.rules.scalars import schedule_factor
from danalab.optim.step.state import drop_replaced, follow_parameter, local, local_gradient, moment_dtype
from danalab.optim.step.state_dict import parameter_name
from danalab.optim.step.state_formats import format_of


@dataclass
class TensorBatch:
    """Local tensors of parameters with the same scalars; the lists are parallel."""

    group: Mapping[str, Any]
    t: Any
    """The step count: a number, or with `capturable` a float64 tensor on the device, one value for each parameter."""
    skip: Tensor | None
    """0-dim bool on the device: True makes this step change nothing."""
    params: list[Tensor] = field(default_factory=list)
    grads: list[Tensor] = field(default_factory=list)
    moments: list[list[Tensor]] = field(default_factory=list)
    """For each parameter the list of the rule's moments."""
    indices: list[int] = field(default_factory=list)
    """Positions among all parameters of the optimizer: seeds of stochastic rounding."""
    states: list[dict[str, Tensor]] = field(default_factory=list)
    """For each parameter its state of local tensors, where `state_dtype` is not float32; then `moments` is empty."""
    state_dtype: str = "float32"
    age_tensors: list[Tensor] = field(default_factory=list)
    """For each parameter the mean age of its momentum, of which it has an `age`."""
    ages: tuple[Any, Any] | None = None
    """The ages before and after this step."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the rule's scalars depend on beside the step count."""
        return self.group if self.ages is None else {**self.group, "ages": self.ages}

    def scalars(self, rule: Rule) -> dict[str, Any]:
        """The rule's scalars of this step; neutral ones where the step is skipped."""
        scalars = rule.scalars(self.settings, self.t)
        if self.skip is not None:
            zero = torch.zeros((), device=self.skip.device)  # `where` would launch a fill for each number
            for name, neutral in {"decay_factor": zero + 1, **dict.fromkeys(("lr", *rule.gains), zero)}.items():
                scalars[name] = torch.where(self.skip, neutral, on_device(scalars[name], self.skip.device))
        return scalars

    def scalars_each(self, rule: Rule) -> Iterable[dict[str, Any]]:
        """The scalars of each parameter: they are the same, except with step counts on the device."""
        scalars = self.scalars(rule)
        for i in range(len(self.params)):
            yield {
                name: value[i] if isinstance(value, Tensor) and value.ndim else value for name, value in scalars.items()
            }

    def on_device(self, values: Iterable[Any]) -> Tensor:
        """Scalars as one tensor, in the dtype of the moments: [scalars, 1], or [scalars, parameters] for step counts
        that are on the device."""
        first, values = self.params[0], list(values)
        dtype = moment_dtype(first)
        numbers = _copied([value for value in values if not isinstance(value, Tensor)], dtype, first.device)
        if len(numbers) == len(values):
            return numbers[:, None]
        each = iter(numbers)
        rows = [value.to(first.device, dtype) if isinstance(value, Tensor) else next(each) for value in values]
        return torch.stack([row.reshape(-1).expand(len(self.params)) for row in rows])

    def count(self, i: int) -> Any:
        """The step count of parameter i of the batch."""
        return self.t[i] if isinstance(self.t, Tensor) else self.t

    def signed_grads(self) -> Iterable[Tensor]:
        """Gradients of the loss to minimize; zeros where the step is skipped."""
        zero = None if self.skip is None else torch.zeros((), device=self.skip.device)
        for g in self.grads:
            if self.skip is not None and zero is not None:
                g = torch.where(self.skip, zero, g)  # not times zero: that keeps NaN
            yield g.neg() if self.group["maximize"] else g


def _copied(numbers: list[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers on the device, [numbers], by one copy; in the capture of a CUDA graph by a fill each, as `on_device`."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        filled = [on_device(number, device).to(dtype) for number in numbers]
        return torch.stack(filled) if filled else torch.empty(0, dtype=dtype, device=device)
    host = torch.tensor(numbers, dtype=dtype)
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)


def on_device(value: Any, device: torch.device) -> Tensor:
    """A number as a tensor on the device, by a fill: a CUDA graph cannot capture a copy from the host."""
    return value.to(device) if isinstance(value, Tensor) else torch.full((), float(value), device=device)


def gather(
    optimizer: torch.optim.Optimizer,
    groups: Iterable[dict[str, Any]],
    rule_of: Callable[[Mapping[str, Any]], Rule],
    skip: Tensor | None,
) -> list[TensorBatch]:
    """Advance the step counts of all parameters that have a gradient, and sort these parameters into batches.

    UserError, with nothing changed: a sparse gradient, or a learning rate above 0 in a group that was built with 0.
    """
    groups = list(groups)
    drop_replaced(optimizer.state, groups, type(optimizer).__name__)
    moving: list[tuple[dict[str, Any], int, Tensor, Tensor, dict[str, Any]]] = []
    start = 0
    for group in groups:
        if not group["peak_lr"] and not isinstance(group["lr"], Tensor) and group["lr"] > 0:
            raise UserError(
                f"{type(optimizer).__name__}: lr is {group['lr']} in a group that was built with lr 0, so its peak is"
                " not known; set the group's peak_lr, or build it with the peak learning rate"
            )
        for index, p in enumerate(group["params"]):
            g = p.grad
            if g is None:
                continue
            if g.layout != torch.strided:
                raise UserError(
                    f"{type(optimizer).__name__}: {parameter_name(group, index)} has a {g.layout} gradient;"
                    " only dense ones are supported (nn.Embedding: sparse=False)"
                )
            state = optimizer.state[p]
            follow_parameter(state, p, rule_of(group).stored(group), bool(group["capturable"]), format_of(group, p))
            g = local_gradient(g, p)
            if g.is_neg() or g._is_zerotensor():
                g = g.clone()  # kernels read the memory: no lazy negation, and no zero without memory
            if g.shape != local(p).shape:
                raise UserError(
                    f"{type(optimizer).__name__}: the gradient of {parameter_name(group, index)} has shape"
                    f" {tuple(g.shape)}; it must have the parameter's (call zero_grad() after changing p.data)"
                )
            moving.append((group, start + index, p, g, state))
        start += len(group["params"])
    advance([state["step"] for *_, state in moving], skip)

    batches: dict[Any, TensorBatch] = {}
    step_tensors: dict[Any, list[Tensor]] = {}
    for group, index, p, g, state in moving:
        rule = rule_of(group)
        step = state["step"]
        t = None if group["capturable"] else int(step.item())
        state_dtype = format_of(group, p)
        age = age_tensor(state, rule, group)
        key = (id(group), t, p.dtype, p.device, state_dtype, None if age is None or t is None else age.item())
        batch = batches.get(key)
        if batch is None:
            batch = batches[key] = TensorBatch(group, t, skip, state_dtype=state_dtype)
        batch.params.append(local(p))
        batch.grads.append(g)
        if state_dtype == "float32":
            batch.moments.append([local(state[name]) for name in rule.stored(group)])
        else:
            batch.states.append({name: local(value) for name, value in state.items()})
        batch.indices.append(index)
        if age is not None:
            batch.age_tensors.append(age)
        if t is None:
            step_tensors.setdefault(key, []).append(step)
    for key, steps in step_tensors.items():
        batches[key].t = clock(steps, skip)
    advance_ages(batches.values())
    return list(batches.values())


def age_tensor(state: dict[str, Any], rule: Rule, group: Mapping[str, Any]) -> Tensor | None:
    """The mean age of the momentum in a parameter's state, 0-dim float64 beside `step`; None: its group has no path."""
    if group.get("age") is None or not rule.aged:
        return None
    step: Tensor = state["step"]
    if "age" not in state:  # 0 before the first step; the path's, where it was set in a group that had none
        state["age"] = torch.zeros((), dtype=torch.float64, device=step.device)
        if not group["capturable"] and (t := int(step.item())) > 1:
            state["age"].fill_(age_path("optimizer", group["age"]).step(t - 1, float(schedule_factor(group)), t - 1))
    if state["age"].device != step.device:
        state["age"] = state["age"].to(step.device)
    return state["age"]


def update_buffers(batch: TensorBatch, count: int) -> None:
    """Update the averages of `buffers`, and set the first moment to their mixture, which the rule then leaves as it is.

    `count`: the moments of the rule itself; the averages are behind them.
    """
    before, age = batch.ages or (0.0, 0.0)
    gains, weights = mixture(batch.group, batch.t, age)
    for i, (g, moments) in enumerate(zip(batch.signed_grads(), batch.moments, strict=True)):
        mixed = torch.zeros_like(moments[0])
        for average, gain, weight in zip(moments[count:], gains, weights, strict=True):
            gain, weight = (each[i] if isinstance(each, Tensor) else each for each in (gain, weight))
            if batch.skip is not None:
                gain = torch.where(batch.skip, torch.zeros_like(gain), gain)
            average.lerp_(g.to(average.dtype), gain.to(average.dtype) if isinstance(gain, Tensor) else gain)
            mixed += weight * average
        moments[0].copy_(mixed)
    batch.moments = [moments[:count] for moments in batch.moments]
    batch.ages = before, 1 + before  # a gain of 0


def advance_ages(batches: Iterable[TensorBatch]) -> None:
    """Set the ages of the batches' momenta to those after their step, whose count is in `t`."""
    for batch in (batch for batch in batches if batch.age_tensors):
        path, tensors = age_path("optimizer", batch.group["age"]), batch.age_tensors
        s = schedule_factor(batch.group)
        if isinstance(batch.t, Tensor):
            before = torch.stack(tensors)
            now = path.step(batch.t, s, before)
            stored = now if batch.skip is None else torch.where(batch.skip, before, now)
            torch._foreach_copy_(tensors, list(stored.unbind()))
        else:
            before = tensors[0].item()
            now = float(path.step(batch.t, float(s), before))
            torch._foreach_copy_(tensors, [torch.full_like(tensors[0], now)] * len(tensors))
        batch.ages = before, now


def advance(steps: list[Tensor], skip: Tensor | None) -> None:
    """Add one to each step count, unless the step is skipped."""
    if steps and skip is None:
        torch._foreach_add_(steps, 1)
    elif steps and skip is not None:
        # With `alpha`: without it torch reads the tensor as a number, for which the host waits.
        torch._foreach_add_(steps, (~skip).to(steps[0].dtype), alpha=1)


def clock(steps: list[Tensor], skip: Tensor | None) -> Tensor:
    """Step counts on a device as a batch has them."""
    # A skipped step computes with the t of the step that it would have been: scalars at t = 0 are undefined.
    t = torch.stack(steps).double()
    return t if skip is None else t + skip
