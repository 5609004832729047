"""The foreach back end: the same update for a list of tensors as for each of them."""

from __future__ import annotations

import pytest
import torch

from danalab.optim import build_optimizer
from danalab.optim.rules.foreach import TensorList

NAMES = (
    "adana",
    "dana-mk4",
    "dana-star",
    "dana-star-mk4",
    "adamw-decaying-wd",
    "ademamix",
    "auto-dana",
    "dana",
    "sign-dana",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_list_is_updated_as_the_pure_function_says(name):
    generator = torch.Generator().manual_seed(0)
    optimizer = build_optimizer(name, [torch.zeros(1, requires_grad=True)], lr=0.1, foreach=True)
    group = optimizer.param_groups[0]
    rule = optimizer.rule_of(group)  # pyright: ignore[reportAttributeAccessIssue]
    scalars = rule.scalars(group, 7)
    shapes = [(5, 3), (), (17,)]
    signed = [[torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes] for _ in range(3)]
    positive = [[torch.rand(s, generator=generator, dtype=torch.float64) for s in shapes] for _ in rule.moments[1:]]
    lists = [TensorList(tensors) for tensors in (*signed, *positive)]
    want = [rule.update(*tensors, **scalars) for tensors in zip(*lists, strict=True)]
    with torch.no_grad():
        rule.foreach(*lists, **scalars)
    p, _, *moments = lists
    for found, expected in zip((p, *moments), zip(*want, strict=True), strict=True):
        torch.testing.assert_close(list(found), list(expected), rtol=1e-13, atol=1e-13)


def test_methods_of_a_list_are_those_of_its_tensors():
    x = TensorList([torch.tensor([1.0, 4.0]), torch.tensor([9.0])])
    root = x.sqrt()
    assert [t.tolist() for t in root] == [[1.0, 2.0], [3.0]]
    assert root.add_(1.0).mul_(x) is root
    assert [t.tolist() for t in root] == [[2.0, 12.0], [36.0]]
    with pytest.raises(AttributeError):
        x.no_such_function()
