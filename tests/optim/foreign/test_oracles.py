"""schedulefree 1.4 and heavyball 2.1 (their source archives) as oracles of the optimizers that they and we have."""

from __future__ import annotations

import importlib
import itertools

import pytest
import torch

from danalab.optim import build_optimizer
from danalab.optim.optimizers.matrix import preconditioned as kron
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
WITHOUT_MOMENTUM = {"lr": 0.01, "momentum": 0.0, "weight_decay": 0.1}
OTHERWISE = {
    "ForeachSOAP": ("soap", "chooses other eigenvectors where the first gradient has no rank: any are right"),
    "ForeachPSGDKron": (
        "psgd-kron",
        "Q - triu(Q M) / a bound of that product's norm, not Q - triu(M) Q / |A A^T + B B^T|; the first Q from the"
        " gradient's size; a tanh in place of the bound on the root mean square; noise from torch's generator; its"
        " state takes the step count away, so that the momentum forgets the first gradient",
    ),
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


def trained(build, evaluated: bool, shapes=((6, 4), (5,)), dtype=torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype)) for shape in shapes]
    optimizer = build(params)
    if evaluated:
        optimizer.train()
    for _ in range(20):
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator, dtype=dtype) + 0.1 * p.detach()
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
    ours = trained(
        lambda params: build_optimizer(name, [{"params": params[:1], "kind": "matrix"}], **rates(name)), False
    )
    theirs = trained(lambda params: getattr(packages["heavyball"], case)(params[:1], **BETAS), False)
    assert not torch.allclose(ours[0], theirs[0], rtol=1e-3, atol=1e-4)


def rates(name: str) -> dict:
    return {"lr": 0.01, "momentum": 0.9} if name in ("muon", "psgd-kron") else BETAS


@pytest.mark.slow
@pytest.mark.parametrize("frequency", [1, 10])
def test_soap_makes_heavyballs_steps_where_eigenvectors_are_unique(packages, frequency):
    """Without decay: theirs decays the weights before the step, ours after it."""
    settings = BETAS | {"weight_decay": 0.0, "shampoo_beta": 0.95, "precondition_frequency": frequency, "eps": 1e-14}
    theirs = settings | {"merge_dims": False, "storage_dtype": "float64"}
    square = {"shapes": ((5, 5), (3,)), "dtype": torch.float64}
    torch.testing.assert_close(
        trained(lambda params: build_optimizer("soap", params, **settings), False, **square),
        trained(lambda params: packages["heavyball"].ForeachSOAP(params, **theirs), False, **square),
        rtol=1e-5,
        atol=1e-7,
    )


@pytest.mark.slow
def test_psgd_kron_makes_heavyballs_steps_with_our_fit(packages, monkeypatch):
    """With the facts of `OTHERWISE` set equal: what is left is preconditioning, decay and the order of both."""
    utils, steps = packages["heavyball"].utils, itertools.count(1)

    def fit(terms, factors):
        return [
            torch.triu(g - v) @ q / kron.spectral_norm_bound(g + v) for q, (g, v) in zip(factors, terms, strict=True)
        ]

    def clip(updates):
        for u in updates:
            u.mul_((kron.LARGEST_RMS / (u.square().mean().sqrt() + 1e-6)).clamp_max(1.0))
        return updates

    monkeypatch.setattr(utils, "dampen_grad", lambda g, _: (kron.probe(next(steps), g), g))
    monkeypatch.setattr(utils, "_psgd_default_preconditioner_grad", fit)
    monkeypatch.setattr(utils, "max_singular_value", lambda update, **_: update.new_ones(()))
    theirs = {"lr": 0.01, "betas": (0.0, 0.99), "precond_init_scale": 1.0, "update_clipping": clip} | DECAY
    theirs |= {"storage_dtype": "float64", "q_dtype": "float64", "store_triu_as_line": False}
    wide = {"shapes": ((6, 4),), "dtype": torch.float64}
    torch.testing.assert_close(
        trained(
            lambda params: build_optimizer("psgd-kron", [{"params": params, "kind": "matrix"}], **WITHOUT_MOMENTUM),
            False,
            **wide,
        ),
        trained(lambda params: packages["heavyball"].ForeachPSGDKron(params, **theirs), False, **wide),
        rtol=1e-6,
        atol=1e-7,
    )
