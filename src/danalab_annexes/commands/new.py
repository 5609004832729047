"""Write a starter file for your own optimizer, and its test."""

import re
from dataclasses import dataclass
from pathlib import Path

from danalab.cli._shared.options import JsonFlags, Positional
from danalab.errors import UserError


@dataclass(frozen=True, kw_only=True)
class OptimizerFlags(JsonFlags):
    name: Positional[str]
    """Name of the file, in lower case with underscores. The class gets the same name in capitals: slow_signs makes
    SlowSigns."""
    out: Path = Path()
    """Folder to write into; default the current one."""


def optimizer(flags: OptimizerFlags) -> None:
    """Write NAME.py, a small optimizer for you to change, and test_NAME.py, its tests.
    `danalab train --opt NAME.py:Name` trains with it; `danalab judge adamw NAME.py:Name` tells whether it is better."""
    from danalab.files import write_atomically

    name = flags.name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UserError(f"NAME '{flags.name}': lower-case letters, digits and underscores are expected: slow_signs")
    kind = name.title().replace("_", "")
    contents = {flags.out / f"{name}.py": _OPTIMIZER, flags.out / f"test_{name}.py": _TEST}
    for file in contents:
        if file.exists():
            raise UserError(f"{file}: exists already; take another name or --out")
    flags.out.mkdir(parents=True, exist_ok=True)
    for file, text in contents.items():
        write_atomically(file, text.replace("NAME", name).replace("KIND", kind))
    files = list(map(str, contents))
    if not flags.print_json({"files": files, "opt": f"{files[0]}:{kind}"}):
        opt = f"{files[0]}:{kind}"
        commands = (f"python -m pytest {files[1]}", f"danalab train --opt {opt} --help", f"danalab judge adamw {opt}")
        print("\n  ".join([f"written: {', '.join(files)}\n", *commands]))


_OPTIMIZER = '''\
"""KIND: signs of an averaged gradient, to be changed into a rule of your own.

    m <- m + (1 - beta) (g - m)
    p <- p - lr (sign(m) + weight_decay p)

    danalab train --opt NAME.py:KIND --beta 0.95
    danalab judge adamw NAME.py:KIND
"""

import torch


def update(p, g, average, *, lr, beta, weight_decay):
    """One step of a parameter and its average, in place."""
    average.lerp_(g, 1 - beta)
    p.mul_(1 - lr * weight_decay).add_(average.sign(), alpha=-lr)


class KIND(torch.optim.Optimizer):
    """The rule above. Each parameter after `lr` is a setting, with its default, and a flag of `danalab train`."""

    def __init__(self, params, lr=1e-3, beta=0.9, weight_decay=0.0):
        if not 0 <= beta < 1:
            raise ValueError(f"beta is {beta}; it must be in [0, 1)")
        super().__init__(params, {"lr": lr, "beta": beta, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            settings = {name: group[name] for name in ("lr", "beta", "weight_decay")}
            for p in group["params"]:
                if p.grad is None:  # as torch's own optimizers do
                    continue
                state = self.state[p]
                if not state:
                    state["average"] = torch.zeros_like(p)
                update(p, p.grad, state["average"], **settings)
        return loss
'''

_TEST = '''\
"""KIND: its equation, its state, and that it learns."""

import pytest
import torch
from NAME import KIND


def parameter(*values):
    p = torch.nn.Parameter(torch.tensor(values))
    p.grad = torch.tensor([1.0, -2.0, 0.5])
    return p


def test_a_step_is_the_equation():
    p = parameter(1.0, 1.0, -1.0)
    optimizer = KIND([p], lr=0.1, beta=0.5, weight_decay=0.2)
    optimizer.step()
    torch.testing.assert_close(p.detach(), torch.tensor([0.98 - 0.1, 0.98 + 0.1, -0.98 - 0.1]))
    torch.testing.assert_close(optimizer.state[p]["average"], torch.tensor([0.5, -1.0, 0.25]))


def test_its_state_survives_a_checkpoint():
    ends = []
    for resumed in (False, True):
        p = parameter(1.0, 1.0, -1.0)
        optimizer = KIND([p], lr=0.1)
        for step in range(4):
            if resumed and step == 2:
                state, optimizer = optimizer.state_dict(), KIND([p], lr=0.1)
                optimizer.load_state_dict(state)
            p.grad = torch.tensor([1.0, -1.0, 1.0]) * (-0.6) ** step
            optimizer.step()
        ends.append(p.detach().clone())
    assert torch.equal(*ends)


def test_a_parameter_without_a_gradient_stays():
    p = torch.nn.Parameter(torch.ones(3))
    KIND([p], weight_decay=0.1).step()
    assert torch.equal(p.detach(), torch.ones(3))


def test_it_learns():
    torch.manual_seed(0)
    x, model = torch.randn(64, 8), torch.nn.Linear(8, 1)
    y = x.sum(1, keepdim=True)
    optimizer = KIND(model.parameters(), lr=0.02)
    losses = []
    for _ in range(200):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.05 * losses[0]


def test_a_setting_out_of_range_is_refused():
    with pytest.raises(ValueError, match="beta is 1.5"):
        KIND([torch.nn.Parameter(torch.ones(1))], beta=1.5)
'''

SUBVERBS = {"optimizer": (OptimizerFlags, optimizer)}
