"""The base class: a rule for whole matrices, and AdamW for other parameters, one tensor after another.

State is made in the first step and has any shape. Built by name, these classes are wrapped in a `DTensorAdapter`, which
checks the input and steps on sharded parameters. A stack of experts is many matrices, a convolution one matrix
[out, in * kernel]; the last two dimensions are always rows and columns.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from danalab.optim.core.checks import check_gradients, check_parameters
from danalab.optim.core.groups import named_groups, split_by_rate
from danalab.optim.core.state import moment_dtype
from danalab.optim.elementwise.scalars import coupled_decay_factor
from danalab.optim.matrix.hybrid import AUXILIARY, check_settings, dtype_name, model_groups, split_group, with_auxiliary
from danalab.optim.matrix.muon import ADAMW_COUPLED
from danalab.optim.matrix.newton_schulz import orthogonalize

State = dict[str, Any]


class MatrixOptimizer(torch.optim.Optimizer):
    """A rule for whole matrices, and AdamW for other parameters; weight decay is lr * weight_decay.

    Args:
        params: parameters, named parameters, groups or a model, as for `danalab.optim.Muon`.
        settings: hyper-parameters, with `lr`, `weight_decay`, `betas`, `eps` and `maximize` among them.
    """

    split_group = staticmethod(split_group)

    def __init__(self, params: Any, settings: dict[str, Any]):
        self._auxiliary = {name: settings[name] for name in AUXILIARY}
        rest = {name: value for name, value in settings.items() if name not in AUXILIARY}
        if isinstance(params, nn.Module):
            params = split_by_rate(model_groups(params), params)
        if "ns_dtype" in rest:
            rest["ns_dtype"] = dtype_name(type(self).__name__, rest["ns_dtype"])
        super().__init__(params, {**rest, "wd_ts": None})

    def __getstate__(self) -> State:  # pyright: ignore[reportIncompatibleMethodOverride]
        return {**super().__getstate__(), "_auxiliary": self._auxiliary}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters; a group that says neither `use_muon` nor `kind` becomes two, matrices and the rest."""
        for part in with_auxiliary(type(self).__name__, param_group, self._auxiliary, self.defaults["lr"]):
            check_parameters(type(self).__name__, named_groups(type(self).__name__, [part]))
            super().add_param_group(part)
            group = self.param_groups[-1]
            group.setdefault("peak_lr", float(group["lr"]))
            check_settings(type(self).__name__, group)
            self.check_group(group)

    def check_group(self, group: Mapping[str, Any]) -> None:
        """Refuse settings of this optimizer alone that make no sense."""

    def update_matrix(self, x: Tensor, g: Tensor, state: State, group: Mapping[str, Any]) -> Tensor:
        """The new matrices.

        Args:
            x, g: matrices and their gradients, [rows, columns] or [matrices, rows, columns], in the dtype of the state.
            state: of these matrices, with `step` = 1, 2, ...; changed in place.
        """
        raise NotImplementedError

    def update_other(self, p: Tensor, g: Tensor, state: State, group: Mapping[str, Any]) -> Tensor:
        """The new value of a parameter that is no matrix: AdamW's."""
        m, v = (moment(state, name, p) for name in ("exp_avg", "exp_avg_sq"))
        new, *moments = ADAMW_COUPLED.update(p, g, m, v, **ADAMW_COUPLED.scalars(group, int(state["step"])))
        m.copy_(moments[0])
        v.copy_(moments[1])
        return new

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Apply the gradients; a parameter without one stays unchanged. Returns the closure's result, or None."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            check_gradients(type(self).__name__, group["params"])
            for p in group["params"]:
                if p.grad is not None and p.numel():
                    self._update(p, -p.grad if group["maximize"] else p.grad, group)
        return loss

    def _update(self, p: Tensor, g: Tensor, group: Mapping[str, Any]) -> None:
        state = self.state[p]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.int64)
        state["step"] += 1
        dtype = moment_dtype(p)
        wide, g = p.to(dtype), g.to(dtype)
        if group["use_muon"]:
            shape = p.shape if p.ndim == 2 or group.get("kind") == "experts" else (len(p), p[0].numel())
            new = self.update_matrix(wide.view(shape), g.reshape(shape), state, group)
        else:
            new = self.update_other(wide, g, state, group)
        p.copy_(new.view(p.shape))


def moment(state: State, name: str, like: Tensor, value: float = 0.0) -> Tensor:
    """A tensor of the state, made on first use in the shape of `like`."""
    if name not in state:
        state[name] = torch.full_like(like, value)
    return state[name]


def decayed(x: Tensor, group: Mapping[str, Any]) -> Tensor:
    """The matrices after weight decay."""
    return coupled_decay_factor(group) * x


def orthogonalised(x: Tensor, group: Mapping[str, Any]) -> Tensor:
    """O(x), in the dtype of x."""
    dtype = None if group["ns_dtype"] is None else getattr(torch, group["ns_dtype"])
    return orthogonalize(x, group["ns_method"], group["ns_steps"], dtype).to(x.dtype)
