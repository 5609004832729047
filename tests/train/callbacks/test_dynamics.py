import json
import math

import pytest
import torch
from torch import nn

from danalab.train.statistics import Dynamics, angles, histogram, update_statistics


def test_the_angle_of_a_known_rotation_is_found_even_when_it_is_tiny():
    for theta in (1e-9, 1e-4, 0.5, math.pi / 2, math.pi - 1e-6):
        a = torch.tensor([[3.0, 0.0, 0.0]], dtype=torch.float64)
        b = 0.1 * torch.tensor([[math.cos(theta), math.sin(theta), 0.0]], dtype=torch.float64)
        assert float(angles(a, b)) == pytest.approx(theta, rel=1e-6)


def test_a_matrix_is_measured_by_its_norm_and_a_vector_by_its_rms():
    torch.manual_seed(0)
    old, update = torch.randn(4, 6, dtype=torch.float64), 1e-3 * torch.randn(4, 6, dtype=torch.float64)
    found = update_statistics(old, old + update)
    assert found["norm"] == pytest.approx(float((old + update).norm()))
    assert found["update_norm"] == pytest.approx(float(update.norm()))
    assert sum(found["histogram"]) == 24
    assert histogram(torch.tensor([[1.0, 1.0], [-1.0, 0.0]]))[12:] == [3, 0, 0, 0]
    assert histogram(torch.tensor([1e-9, 1.0]))[0] == 1
    assert sum(histogram(torch.tensor([math.nan, math.inf, 1.0]))) == 3
    assert found["relative_update"] == pytest.approx(float(update.norm() / old.norm()))
    vector = update_statistics(old[0], old[0] + update[0])
    assert vector == {
        "rms": pytest.approx(float((old[0] + update[0]).square().mean().sqrt())),
        "update_rms": pytest.approx(float(update[0].square().mean().sqrt())),
    }


def test_each_logged_step_gives_a_row_with_every_parameter_of_its_own(tmp_path, watching):
    model = nn.Linear(3, 2)
    watch = Dynamics(watching(model, log_interval=2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    watch.on_start(0)
    for step in (1, 2):
        model(torch.ones(1, 3)).sum().backward()
        alignment = float(
            torch.nn.functional.cosine_similarity(
                model.weight.detach().flatten(), model.weight.grad.flatten(), 0
            )
        )
        watch.before_update(step)
        optimizer.step()
        watch.after_update(step)
        optimizer.zero_grad()
    watch.close()
    _, row = [json.loads(line) for line in (tmp_path / "dynamics.jsonl").read_text().splitlines()]
    assert row["step"] == 2
    assert row["weight/grad_norm"] == pytest.approx(math.sqrt(6))
    assert row["weight/update_norm"] == pytest.approx(0.5 * math.sqrt(6), rel=1e-5)
    assert row["weight/grad_alignment"] == pytest.approx(alignment, rel=1e-4)
    assert row["bias/grad_rms"] == pytest.approx(1)
    assert row["bias/update_rms"] == pytest.approx(0.5, rel=1e-5)


def test_resuming_removes_the_rows_past_the_resumed_step(tmp_path, watching):
    file = tmp_path / "dynamics.jsonl"
    file.write_text('{"step": 5}\n{"step": 10}\n')
    watch = Dynamics(watching(nn.Linear(1, 1)))
    watch.on_start(5)
    watch.close()
    assert file.read_text() == '{"step": 5}\n'
