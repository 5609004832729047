"""The generic part of timm's tests of its optimizers (source archive of timm 1.0), on every optimizer of the registry.

`tests/test_optim.py` there: state that loads into equal parameters, repeated groups, parameters with gaps in memory,
and two problems on which the loss must fall.
"""

from __future__ import annotations

import functools
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.testing._internal.common_utils import TestCase

from danalab.errors import UserError
from danalab.optim import build_optimizer, optimizer_spec
from danalab.optim.catalogue import OPTIMIZERS
from danalab.optim.export import EXPORTED, export
from danalab.optim.optimizers.matrix.muon import HybridOptimizer
from sdists import sdist

torch.backends.__dict__["__allow_nonbracketed_mutation_flag"] = True  # which torch's helpers for tests turn off

ADAM_LIKE = 5e-2
"""timm's own rate for Adam and AdamW on Rosenbrock's function; with 1e-3, 2,000 steps of alternating gradients do not
come nearer to the minimum."""
RATES = dict.fromkeys(
    ("adamw", "nadam", "adamw-decaying-wd", "ademamix", "ademamix-decaying-wd", "muon", "d-muon", "dana-muon", "muon-h",
     "adam-h", "dion2", "snoo", "soda", "soda-muon", "ema-nesterov", "sf-adamw", "signsgd", "adabelief", "laprop",
     "grams", "came", "adamuon"),
    ADAM_LIKE,
)  # fmt: skip
ESTIMATED = {"prodigy": 6}
"""Optimizers that estimate their rate, in units of which `lr` is -> first steps that are too small for float32."""

REFUSED = {
    ("adamuon", "parameters"): "a list of matrices and vectors: which are hidden matrices is not guessed",
    ("normuon", "parameters"): "the same",
}
"""What is refused on purpose -> why."""


@pytest.fixture(scope="module")
def timm(tmp_path_factory) -> Any:
    source = (sdist("timm", "1.0.20", tmp_path_factory.getbasetemp().parent) / "tests/test_optim.py").read_text()
    helpers = source[source.index("def _test_basic_cases_template") : source.index("@pytest.mark.parametrize(")]

    def create(params, opt, lr=1e-3, **settings):
        return build_optimizer(opt, params, lr=lr, **settings)

    known: dict[str, Any] = {
        "torch": torch,
        "Parameter": torch.nn.Parameter,
        "deepcopy": deepcopy,
        "functools": functools,
        "PlateauLRScheduler": (),
        "torch_device": "cpu",
        "create_optimizer_v2": create,
        "torch_tc": TestCase(),
    }
    exec(compile(helpers, "timm/tests/test_optim.py", "exec"), known)
    return SimpleNamespace(**known)


def exported(name: str) -> Any:
    scope: dict[str, Any] = {}
    exec(compile(export(name), f"{name}.py", "exec"), scope)
    return scope[optimizer_spec(name).build.__name__]


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPORTED)
@pytest.mark.parametrize("case", ["parameters", "groups", "a group"])
def test_timms_tests_pass_on_an_exported_file(timm, name, case):
    by_names = issubclass(optimizer_spec(name).build, HybridOptimizer)

    def build(params, lr):
        groups = [each if isinstance(each, dict) else {"params": each} for each in params]
        for group in groups if by_names else ():  # the file wants names
            tensors = group["params"] if isinstance(group["params"], list) else [group["params"]]
            group["params"] = [(f"{p.ndim}", p) for p in tensors]
        return exported(name)(groups, lr=lr)

    if case == "parameters":
        timm._test_basic_cases(lambda weight, bias: build([weight, bias], 1e-2))
    else:
        make = timm._build_params_dict if case == "groups" else timm._build_params_dict_single
        timm._test_basic_cases(lambda weight, bias: build(make(weight, bias, lr=1e-2), 1e-3))


@pytest.mark.slow
@pytest.mark.parametrize("name", list(OPTIMIZERS))
@pytest.mark.parametrize("case", ["parameters", "groups", "a group", "rosenbrock", "model"])
def test_timms_tests_pass(timm, name, case):
    def build(params, lr=1e-2):
        return timm.create_optimizer_v2(params, name, lr=lr)

    if (name, case) in REFUSED:
        with pytest.raises(UserError, match="use_muon"):
            build([torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(2))])
    elif case == "parameters":
        timm._test_basic_cases(lambda weight, bias: build([weight, bias]))
    elif case == "groups":
        timm._test_basic_cases(lambda weight, bias: build(timm._build_params_dict(weight, bias, lr=1e-2), 1e-3))
    elif case == "a group":
        timm._test_basic_cases(lambda weight, bias: build(timm._build_params_dict_single(weight, bias, lr=1e-2), 1e-3))
    elif case == "rosenbrock":
        timm._test_rosenbrock(lambda params: build(params, RATES.get(name, 1e-3)))
    else:
        timm._test_model(name, {"lr": 1.0 if name in ESTIMATED else 1e-3}, after_step=ESTIMATED.get(name, 1))
