"""schedulefree 1.4 and heavyball 2.1 (their source archives) as oracles of the optimizers that they and we have."""

from __future__ import annotations

import importlib

import pytest
import torch

from danalab.optim import build_optimizer
from sdists import sdist

VERSIONS = {"schedulefree": "1.4.1", "heavyball": "2.1.4"}
BETAS = {"lr": 0.01, "betas": (0.9, 0.99)}
DECAY = {"weight_decay": 0.1}
SHARED = {
    "AdamWScheduleFree": ("schedulefree", "sf-adamw", BETAS | DECAY, {}),
    "AdamWScheduleFree, later weights count more": (
        "schedulefree", "sf-adamw", BETAS | {"r": 1.0, "weight_lr_power": 1.0}, {}),
    "SGDScheduleFree": ("schedulefree", "sf-sgd", {"lr": 0.1, "momentum": 0.9} | DECAY, {}),
    "ForeachSFAdamW": ("heavyball", "sf-adamw", BETAS | DECAY, {}),
    "ForeachAdamW": ("heavyball", "adamw", BETAS | DECAY, {}),
    "ForeachLaProp": ("heavyball", "laprop", BETAS, {}),
    "SGD": ("heavyball", "sgd", {"lr": 0.1, "momentum": 0.9}, {"momentum": "beta"}),
}  # fmt: skip
"""Their class -> package, our name, settings, their words for ours."""
OTHERWISE = {
    "ForeachMuon": ("muon", "adds the average of gradients to the gradient, not their sum, and has other polynomials"),
    "ForeachADOPT": ("adopt", "applies the momentum of the step before"),
}
"""heavyball's class -> our name, and what the rule there does otherwise than its paper and than ours."""


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        for name, version in VERSIONS.items():
            patch.syspath_prepend(str(sdist(name, version, tmp_path_factory.getbasetemp().parent)))
        found = {name: importlib.import_module(name) for name in VERSIONS}
        patch.setattr(found["heavyball"].utils, "compile_mode", None)
        yield found


def trained(build, evaluated: bool) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((6, 4), (5,))]
    optimizer = build(params)
    if evaluated:
        optimizer.train()
    for _ in range(20):
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator) + 0.1 * p.detach()
        optimizer.step()
    if evaluated:
        optimizer.eval()
    return [p.detach() for p in params]


@pytest.mark.slow
@pytest.mark.parametrize("case", SHARED)
def test_a_shared_optimizer_makes_its_authors_steps(packages, case):
    package, name, settings, words = SHARED[case]
    theirs = getattr(packages[package], case.split(",")[0])
    renamed = {words.get(key, key): value for key, value in settings.items()}
    evaluated = package == "schedulefree"  # heavyball's `train` and `eval` are switches: each is the other's inverse
    torch.testing.assert_close(
        trained(lambda params: build_optimizer(name, params, **settings), evaluated),
        trained(lambda params: theirs(params, **renamed), evaluated),
        rtol=1e-4,
        atol=1e-6,
    )


@pytest.mark.slow
@pytest.mark.parametrize("case", OTHERWISE)
def test_what_heavyball_does_otherwise_still_differs(packages, case):
    """A row that no longer differs belongs into `SHARED`."""
    name, _ = OTHERWISE[case]
    ours = trained(lambda params: build_optimizer(name, [{"params": params[:1], "kind": "matrix"}], **lr(name)), False)
    theirs = trained(lambda params: getattr(packages["heavyball"], case)(params[:1], **BETAS), False)
    assert not torch.allclose(ours[0], theirs[0], rtol=1e-3, atol=1e-4)


def lr(name: str) -> dict:
    return {"lr": 0.01, "momentum": 0.9} if name == "muon" else BETAS
