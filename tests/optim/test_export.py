"""`danalab optim export`: one file from the rules' own source that makes the library's steps bit for bit."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

from danalab.cli.app import main
from danalab.optim import optimizer_spec
from danalab.optim.export import EXPORTED, export

ROOT = Path(__file__).parents[2]
STEPS = 200
MATRICES = ("muon", "d-muon", "dana-muon", "manau")
LR = 3e-3
SETTINGS = [
    {"omega": 4.0, "horizon": STEPS},
    {"weight_decay": 0.02},
    {"weight_decay": 0.1, "decay_bound": 0.5},
    {},
]


@functools.cache
def class_of(name: str):
    """The class of the exported file."""
    module = types.ModuleType(f"exported_{name.replace('-', '_')}")
    sys.modules[module.__name__] = module  # torch.compile imports it by its name
    exec(compile(export(name), f"{name}.py", "exec"), vars(module))
    return getattr(module, library(name).__name__)


def library(name: str):
    return optimizer_spec(name).build


def named_parameters() -> list[tuple[str, torch.nn.Parameter]]:
    """A table, square, tall and wide matrices, a convolution, a head and vectors."""
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "wte.weight": (11, 6),
        "blocks.0.attn.q.weight": (6, 6),
        "blocks.0.mlp.up.weight": (24, 6),
        "blocks.0.mlp.down.weight": (6, 24),
        "blocks.0.conv.weight": (6, 3, 2, 2),
        "blocks.0.norm.weight": (6,),
        "lm_head.weight": (11, 6),
    }
    return [(name, torch.nn.Parameter(torch.randn(shape, generator=generator))) for name, shape in shapes.items()]


def trained(build, steps: int, resume_at: int | None = None) -> list[torch.Tensor]:
    """Parameters after noisy steps under a schedule; some of them get no gradient at first."""
    named = named_parameters()
    optimizer = build(named)
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        if step == resume_at:
            state, optimizer = optimizer.state_dict(), build(named)
            optimizer.load_state_dict(state)
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * min(1.0, (step + 1) / 20) * (1 - step / (2 * steps))
        for index, (_, p) in enumerate(named):
            noise = torch.randn(p.shape, generator=generator)
            p.grad = None if index % 3 == 0 and step < 7 else 0.3 * p.detach() + noise
        optimizer.step()
    return [p.detach() for _, p in named]


def assert_same(name: str, steps: int, make_groups=None, **settings) -> None:
    """The exported class, resumed in the middle, and the library's."""
    make_groups = make_groups or (lambda named: named if name in MATRICES else [p for _, p in named])
    settings = {"lr": LR, **settings}
    ours = trained(lambda named: class_of(name)(make_groups(named), **settings), steps, resume_at=steps // 2)
    theirs = trained(lambda named: library(name)(make_groups(named), fused=False, **settings), steps)
    assert all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize("name", EXPORTED)
def test_the_steps_are_the_librarys_bit_for_bit_through_a_resume(name):
    assert_same(name, STEPS, **SETTINGS[0])


@pytest.mark.parametrize("settings", SETTINGS[1:])
@pytest.mark.parametrize("name", EXPORTED)
def test_so_they_are_with_each_form_of_weight_decay(name, settings):
    assert_same(name, 12, **settings)


@pytest.mark.parametrize("name", [name for name in EXPORTED if name not in MATRICES])
def test_so_they_are_without_a_horizon(name):
    assert_same(name, 12, omega=4.0)


@pytest.mark.parametrize("name", [name for name in EXPORTED if name not in MATRICES])
def test_lists_of_tensors_make_the_steps_of_the_librarys_lists(name):
    assert_same(name, 20, foreach=True, **SETTINGS[0])


@pytest.mark.parametrize("name", [name for name in EXPORTED if name not in MATRICES])
def test_groups_have_settings_of_their_own(name):
    def groups(named):
        parameters = [p for _, p in named]
        return [{"params": parameters[:3], "lr": 1e-3}, {"params": parameters[3:], "weight_decay": 0.0, "eps": 1e-6}]

    assert_same(name, 12, groups, **SETTINGS[0])


OTHERS = {
    "muon": {"nesterov": False, "aux_lr": 1e-4, "ns_steps": 4},
    "d-muon": {"nesterov": False, "matched_rms": 0.3, "aux_weight_decay": 0.0},
    "dana-muon": {"kappa": 0.7, "aux_lr_factor": 0.5},
    "manau": {"momentum": 0.9, "clipsnr": 1.0, "aux_lr_factor": None},
}


@pytest.mark.parametrize("name", MATRICES)
def test_matrices_and_the_rest_have_settings_of_their_own(name):
    assert_same(name, 12, **OTHERS[name], **SETTINGS[0])


@pytest.mark.parametrize("name", MATRICES)
def test_a_group_says_which_kind_its_parameters_are(name):
    def groups(named):
        stack = [("stack", torch.nn.Parameter(torch.stack([named[1][1].detach()] * 2)))]
        stack[0][1].grad = torch.randn(2, 6, 6, generator=torch.Generator().manual_seed(3))
        return [
            {"params": named[:1], "kind": "head", "lr": 1e-3},
            {"params": named[1:4], "kind": "matrix"},
            {"params": stack, "kind": "experts"},
            {"params": named[4:], "kind": "vector", "weight_decay": 0.0},
        ]

    assert_same(name, 12, groups, **SETTINGS[0])


ALONE = """
import importlib.util, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "danalab":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocked())
import torch
for file in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location("exported", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    [cls] = [each for each in vars(module).values() if getattr(each, "step", None) and each.__module__ == "exported"]
    model = torch.nn.Linear(3, 2)
    optimizer = cls(list(model.named_parameters()), omega=4.0, horizon=10)
    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(1, 3)).square().sum()
        loss.backward()
        return loss
    assert optimizer.step(closure) > optimizer.step(closure)
"""


def written(folder: Path) -> list[Path]:
    files = [folder / f"{name.replace('-', '_')}.py" for name in EXPORTED]
    for file, name in zip(files, EXPORTED, strict=True):
        file.write_text(export(name))
    return files


def test_a_file_runs_without_danalab(tmp_path):
    command = [sys.executable, "-I", "-c", ALONE, *map(str, written(tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", EXPORTED)
def test_a_file_is_short_and_says_where_it_is_from(name):
    text = export(name)
    assert text.count("\n") <= 200
    assert max(map(len, text.splitlines())) <= 120
    assert text.startswith("# SPDX-License-Identifier: Apache-2.0\n")
    start = " ".join(text.split("import ")[0].split())
    for fact in ("2602.05298", f"danalab optim export {name}", "Left out", optimizer_spec(name).reference):
        assert fact in start


def test_the_files_are_clean(tmp_path):
    written(tmp_path)
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [*ruff, *command, "--config", ROOT / "pyproject.toml", tmp_path], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_files_have_no_type_errors(tmp_path):
    written(tmp_path)
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "backend"), [*((name, "aot_eager") for name in EXPORTED), ("adana", "inductor"), ("dana-muon", "inductor")]
)
def test_a_step_runs_compiled(name, backend):
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("inductor needs a C++ compiler")

    def optimizer_and_parameters():
        named = named_parameters()
        return class_of(name)(named, lr=LR, omega=4.0, horizon=10), [p for _, p in named]

    (eager, ours), (compiled, theirs) = optimizer_and_parameters(), optimizer_and_parameters()
    step = torch.compile(compiled.step, backend=backend)
    for _ in range(3):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = 0.3 * p.detach() + 0.1
            q.grad = 0.3 * q.detach() + 0.1
        eager.step()
        step()
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-5)


def test_other_names_are_refused_in_one_line(capsys):
    for name, hint in (
        ("adan", "must be one of"),
        ("dana-moun", "dana-muon"),
        ("mine.py:Mine", "must be one of"),
        ("", ""),
    ):
        assert main(["optim", "export", name]) == 2
        error = capsys.readouterr().err.strip()
        assert hint in error
        assert len(error.splitlines()) == 1


def test_the_file_is_written_once(tmp_path, capsys):
    out = tmp_path / "new" / "adana.py"
    assert main(["optim", "export", "adana", "--out", str(out)]) == 0
    assert out.read_text() == export("adana")
    out.write_text("mine")
    assert main(["optim", "export", "adana", "--out", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert out.read_text() == "mine"


def test_without_a_file_it_is_printed(capsys):
    assert main(["optim", "export", "dana_star"]) == 0
    assert capsys.readouterr().out == export("dana-star")
