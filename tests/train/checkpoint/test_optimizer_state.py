"""Optimizer state as flat tensors and plain values: nothing is lost, and what cannot be kept is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from danalab.errors import UserError
from danalab.train.checkpoint.tensors import flatten, unflatten

GROUPS = [{"params": [0, 1], "lr": 0.1, "betas": (0.9, 0.99), "capturable": False}]


def round_trip(state_dict: dict[str, Any]) -> dict[str, Any]:
    tensors, plain = flatten(state_dict, ["a.weight", "b"])
    plain = json.loads(json.dumps(plain))
    return unflatten(plain, list(tensors), state_dict["param_groups"], lambda flat, _: tensors[flat])


def test_state_that_is_nested_or_belongs_to_no_parameter_comes_back():
    first = {
        "step": torch.tensor(3.0),
        "Q": [torch.eye(2), None, torch.ones(3)],
        "shape": (2, 3),
        "inner": {"left": torch.zeros(2), 4: [1, 2]},
    }
    state = {"state": {0: first, 1: {}}, "param_groups": GROUPS, "outer": {"step": 7, "slow": [torch.ones(2)]}}
    found = round_trip(state)
    ours = found["state"][0]
    assert torch.equal(ours["step"], first["step"])
    assert [None if q is None else q.tolist() for q in ours["Q"]] == [[[1, 0], [0, 1]], None, [1, 1, 1]]
    assert ours["shape"] == (2, 3)
    assert torch.equal(ours["inner"]["left"], torch.zeros(2))
    assert ours["inner"][4] == [1, 2]
    assert found["outer"]["step"] == 7
    assert torch.equal(found["outer"]["slow"][0], torch.ones(2))
    assert found["param_groups"] == GROUPS


def test_keys_say_whose_state_a_tensor_is():
    tensors, _ = flatten({"state": {0: {"Q": [torch.ones(1)]}, 1: {"m": torch.ones(1)}}, "param_groups": GROUPS}, "ab")
    assert list(tensors) == ["optim.a.Q.0", "optim.b.m"]


def test_what_a_checkpoint_cannot_hold_is_named():
    with pytest.raises(UserError, match=r"optim\.b\.helper is a object"):
        flatten({"state": {1: {"helper": object()}}, "param_groups": GROUPS}, ["a", "b"])
