"""The solutions of the guide's exercises do what the exercises ask."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from danalab.chat.rewards import Scorer
from danalab.chat.tasks import make_task
from danalab.errors import UserError
from danalab.optim import build_optimizer, parameter_kinds

FOLDER = Path(__file__).parents[2] / "examples" / "exercises"


def solution(name: str):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_log_lion_takes_the_steps_of_its_formula_in_float64_and_resumes():
    build = solution("log_lion").LogLion
    draw = torch.Generator().manual_seed(0)
    start = torch.randn(7, generator=draw, dtype=torch.float64)
    settings = {"lr": 0.01, "omega": 4.0, "horizon": 100}
    p = torch.nn.Parameter(start.clone())
    optimizer = build([p], **settings)
    theta, m = start.clone(), torch.zeros(7, dtype=torch.float64)
    for t in range(1, 6):
        g = torch.randn(7, generator=draw, dtype=torch.float64)
        theta = (1 - min(4 / (10 + t), 0.01)) * (theta - 0.01 * torch.sign(m + 0.1 * (g - m)))
        m = m + 8 / (8 + t) * (g - m)
        p.grad = g
        optimizer.step()
        saved = optimizer.state_dict()
        optimizer = build([p], **settings)
        optimizer.load_state_dict(saved)
    torch.testing.assert_close(p.detach(), theta, rtol=1e-12, atol=0)


def test_only_matrices_of_the_blocks_are_orthogonalised():
    model = solution("vision_transformer").VisionTransformer()
    kinds = parameter_kinds(model)
    assert {name for name, kind in kinds.items() if kind == "embedding"} == {
        "patches.weight",
        "class_token",
        "positions",
    }
    optimizer = build_optimizer("muon", model, lr=0.02)
    [matrices] = [group for group in optimizer.param_groups if group["kind"] == "matrix"]
    assert len(matrices["params"]) == 4 * len(model.blocks)
    assert all(p.ndim == 2 for p in matrices["params"])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "lr"), [("adamw", 3e-3), ("muon", 0.02), ("manau", 3e-3)])
def test_the_vision_transformer_sees_orientations(name, lr):
    vision = solution("vision_transformer")
    model, losses = vision.train(name, lr)
    assert losses[-1] < 0.3 < losses[0]
    assert vision.accuracy(model) > 0.9


def test_the_task_is_checkable_and_its_test_problems_are_never_trained_on():
    address = f"{FOLDER / 'sorting_task.py'}:Sorting"
    train, weight = make_task(f"{address}:letters=4,weight=2")
    test, _ = make_task(f"{address}:letters=4", split="test")
    assert weight == 2
    assert train[5] == make_task(f"{address}:letters=4")[0][5]
    assert not {problem.question for problem in train[:1000]} & {problem.question for problem in test[:1000]}
    score = Scorer()
    for problem in test[:20]:
        word = problem.question.split("'")[1]
        assert problem.answer == " ".join(sorted(word))
        assert score(problem, problem.answer) == 1
        assert score(problem, " ".join(sorted(word, reverse=True))) == 0
    with pytest.raises(UserError, match="letters 1: must be 2 to 26"):
        make_task(f"{address}:letters=1")
