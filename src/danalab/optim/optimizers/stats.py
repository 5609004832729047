"""Diagnostics, computed on request: what an optimizer takes its parameters for, and means over its state."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from danalab.errors import UserError
from danalab.optim.rules.auto_dana import noise_floor, signal_share
from danalab.optim.step.state import local, local_gradient
from danalab.optim.step.state_formats import decode
from danalab.optim.values import options_on, written


def collect(
    optimizer: Any, across: Callable[[dict[str, Tensor]], dict[str, Tensor]] = lambda totals: totals
) -> dict[str, Tensor]:
    """Means over all coordinates of an optimizer of the Dana family, from the state that its last step left.

    Costs a pass over the state: call it when you log, and on all ranks. No device is waited for.

    Args:
        across: sums totals over ranks that each have an optimizer of their own for some of the coordinates.
    Returns:
        0-dim float32 tensors; an optimizer without second moment has only the last two:
        `snr`: mean of u = |m|/r (with tau: |m| sqrt(q)/r);
        `damped`: mean of A = T^(1-kappa) u, after clipping (with tau: u/q in place of u);
        `clipped`: share of coordinates where the clip acts (only with `clipsnr`);
        `tau`: its mean (only with tau);
        `kappa`: its mean (only where it is chosen online);
        `effective_time`: mean of T = max(tau t, 1), or of t without tau;
        `momentum_norm`: Euclidean norm of m.
    """

    def decoded(state: Mapping[str, Any]) -> dict[str, Any]:
        own = {key: local(value) for key, value in state.items()}
        return {"step": state["step"], **{name: decode(own, name) for name in optimizer.rule.moments}}

    totals = across(_total(optimizer, lambda p, state, group: signal_sums(decoded(state), group)))
    count = totals.pop("count")
    momentum_norm = totals.pop("momentum_norm").sqrt()
    means = {name: total / count for name, total in totals.items()}
    return {name: value.float() for name, value in {**means, "momentum_norm": momentum_norm}.items()}


def signal_sums(state: Mapping[str, Any], group: Mapping[str, Any]) -> dict[str, Tensor]:
    """Sums over the coordinates of one parameter's state, 0-dim tensors; `collect` takes their means.

    The state has `step`, `exp_avg` and, where the optimizer has them, `exp_avg_sq` and `tau`; of DTensors the local
    part.
    """
    m = local(state["exp_avg"])
    t = state["step"].to(m.device)
    sums = {"momentum_norm": m.square().sum(), "effective_time": t * m.numel()}
    if "exp_avg_sq" not in state:
        return sums
    u = m.abs() / (local(state["exp_avg_sq"]).sqrt() + group["eps"])
    if "tau" in state:
        tau = local(state["tau"])
        c = tau.clamp(max=0.5)
        q = torch.clamp(c / (1 - c), min=1 / (1 + t))
        time = torch.clamp(tau * t, min=1.0)
        u = u * q.sqrt()
        damped = time ** (1 - group["kappa"]) * u / q
        sums["tau"], sums["effective_time"] = tau.sum(), time.sum()
    elif "kappa_max" in group:
        floor = group["significance"] ** 2 * noise_floor(t, group["delta"], state.get("age"))
        kappa = group["kappa_max"] - (group["kappa_max"] - group["kappa_min"]) * signal_share(u, floor)
        sums["kappa"] = kappa.sum()
        damped = (1 + t) ** (1 - kappa) * u
    else:
        damped = (1 + t) ** (1 - group["kappa"]) * u
    if group.get("clipsnr") is not None:
        sums["clipped"] = (damped > group["clipsnr"]).sum()
        damped = damped.clamp(max=group["clipsnr"])
    sums.update(snr=u.sum(), damped=damped.sum())
    return sums


def update_rms(optimizer: Any) -> Tensor:
    """Root mean square of the last step's direction (before the learning rate) over all coordinates with a gradient.

    0-dim float32, from the state and the gradients: call it between `step()` and `zero_grad()`, on all ranks.

    UserError: the gradients are gone.
    """
    rule = optimizer.rule

    def sums(p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> dict[str, Tensor] | None:
        if p.grad is None:
            return None
        own = {key: local(value) for key, value in state.items()}
        moments = [decode(own, name) for name in rule.moments]
        g = local_gradient(p.grad, p).to(moments[0].dtype)
        scalars = rule.scalars({**group, "lr": 1.0, "peak_lr": 1.0}, state["step"].to(g.device))
        rate = scalars["lr"]  # 1, but for a share of the gradient (`fresh`)
        for name in ("lr", "decay_factor", "cautious", *rule.gains):
            scalars.pop(name, None)
        direction = rule.direction(-g if group["maximize"] else g, *moments, **scalars)
        return {"squares": direction.mul(rate).square().sum()}

    totals = _total(optimizer, sums)
    if "squares" not in totals:
        raise UserError(f"{type(optimizer).__name__}: update_rms() needs the gradients; call it before zero_grad()")
    return (totals["squares"] / totals["count"]).sqrt().float()


Sums = Callable[[Tensor, dict[str, Any], dict[str, Any]], "dict[str, Tensor] | None"]


@torch.no_grad()
def _total(optimizer: Any, sums: Sums) -> dict[str, Tensor]:
    """Totals over all parameters and ranks of `sums` of each local part, and the `count` of coordinates.

    Parameters with equal placements are summed before the ranks are: one collective for each mesh and placement.
    """
    layouts: dict[Any, tuple[Any, dict[str, Tensor]]] = {}
    for group in optimizer.param_groups:
        for p in (p for p in group["params"] if p in optimizer.state):  # a frozen one has no state
            own = sums(p, optimizer.state[p], group)
            if own is None:
                continue
            own["count"] = torch.tensor(float(local(p).numel()), dtype=torch.float64, device=p.device)
            mesh, placements = getattr(p, "device_mesh", None), getattr(p, "placements", None)
            _, total = layouts.setdefault((mesh, placements), (p, {}))
            for name, value in own.items():
                total[name] = total[name] + value if name in total else value.double()
    totals: dict[str, Tensor] = {}
    for p, total in layouts.values():
        for name, value in zip(total, _across_ranks(torch.stack(list(total.values())), p), strict=True):
            totals[name] = totals[name] + value.to(totals[name].device) if name in totals else value
    return totals


def _across_ranks(values: Tensor, p: Tensor) -> Tensor:
    placements = getattr(p, "placements", None)
    if placements is None:
        return values
    from torch.distributed.tensor import DTensor, Partial, Replicate

    # Not is_shard(): the placement that FSDP2 gives a tensor-parallel shard does not say that it is one.
    kinds = [Replicate() if placement.is_replicate() else Partial() for placement in placements]
    return DTensor.from_local(values, p.device_mesh, kinds, run_check=False).full_tensor()  # pyright: ignore


def describe(optimizer: torch.optim.Optimizer) -> str:
    """A table of an optimizer's groups: the kind of parameters, how many, their update, rate and decay, some names.

    The kind is what the optimizer took the parameters for; "-" where it treats all kinds alike or was not told. Options
    that are on follow the update: `log_time_muon, heads=4, uw_floor=2`.
    """
    rows = [("kind", "tensors", "parameters", "update", "lr", "weight_decay", "names")]
    for group in optimizer.param_groups:
        params, names = group["params"], group.get("param_names", ())
        rule = getattr(optimizer, "rule_of", lambda _: None)(group)
        update = type(optimizer).__name__ if rule is None else rule.name
        if rule is None and "use_muon" in group:
            update = f"{update}, {'matrices' if group['use_muon'] else 'the rest'}"
        update = ", ".join([update, *(_named(*option) for option in options_on(group).items())])
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        lr, decay = (f"{float(group[key]):.4g}" for key in ("lr", "weight_decay"))
        kind = group.get("kind") or ("matrix" if group.get("use_muon") else "-")
        rows.append((kind, str(len(params)), f"{sum(p.numel() for p in params):,}", update, lr, decay, shown))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _named(option: str, value: Any) -> str:
    return option if value is True else f"{option}={written(value)}"
