"""Optimizers by address: in build_optimizer, on the command line, in a run's folder."""

from __future__ import annotations

import json

import pytest
import torch

from danalab.cli.app import main
from danalab.errors import UserError
from danalab.optim import build_optimizer, optimizer_spec
from text_data import prepare_lines

CODE = '''
import torch

class Signs(torch.optim.Optimizer):
    """The sign of each gradient."""

    def __init__(self, params, lr=1e-3, scale=1.0):
        super().__init__(params, {"lr": lr, "scale": scale})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                p.sub_(group["lr"] * group["scale"] * p.grad.sign())

def without_a_rate(params):
    pass
'''


@pytest.fixture
def own(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(CODE)
    return file


def test_it_is_built_with_its_settings(own):
    p = torch.nn.Parameter(torch.ones(3))
    p.grad = torch.tensor([1.0, -1.0, 2.0])
    build_optimizer(f"{own}:Signs", [p], lr=0.1, scale=2.0).step()
    torch.testing.assert_close(p.detach(), torch.tensor([0.8, 1.2, 0.8]))
    assert optimizer_spec(f"{own}:Signs").summary == "an optimizer of your own"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Sings", "did you mean 'Signs'"),
        ("without_a_rate", "it takes no lr"),
        ("_hidden", "there is no '_hidden' in it"),
    ],
)
def test_a_wrong_name_is_one_line(own, name, message):
    with pytest.raises(UserError, match=message):
        optimizer_spec(f"{own}:{name}")


def test_a_file_that_fails_is_named(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("raise ValueError('not today')")
    with pytest.raises(UserError, match=r"broken\.py: ValueError as it was imported: not today"):
        optimizer_spec(f"{broken}:Mine")


def test_a_run_trains_with_it_and_refuses_to_resume_with_other_code(own, tmp_path, capsys):
    (tmp_path / "data").mkdir()
    data = prepare_lines(tmp_path / "data", 60, 10, words=["one", "two", "three"], per_line=9)
    size = "--d-model 16 --n-layers 1 --n-heads 1 --seq-len 8 --global-batch 2 --eval-interval 0 --eval-batches 1"
    run = ["train", "--data", str(data), "--run-dir", str(tmp_path / "run"), *size.split(), "--lr", "0.01",
           "--opt", f"{own}:Signs", "--scale", "0.5", "--no-tune-malloc"]  # fmt: skip
    assert main([*run, "--iterations", "2"]) == 0
    record = json.loads((tmp_path / "run" / "config.json").read_text())
    assert list(record["plugins"]) == [f"{own}:Signs"]
    assert main([*run, "--iterations", "2", "--extend-to", "3"]) == 0
    own.write_text(CODE + "\n# changed\n")
    capsys.readouterr()
    assert main([*run, "--iterations", "2", "--extend-to", "4"]) == 2
    assert f"--opt {own}:Signs has other code here than there" in capsys.readouterr().err
