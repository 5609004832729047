"""A default of an optimizer stands once, in `danalab.optim`; flags, laws and studies read it there."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from danalab.optim import run_length, settings
from danalab.train.system import signals

SOURCE = Path(settings.__file__).parents[1]
DEFAULTS = {
    "kappa": settings.LogTime.kappa,
    "delta": settings.LogTime.delta,
    "clipsnr": settings.DanaMK4Settings.clipsnr,
    "omega": run_length.OMEGA,
}


def bindings(tree: ast.AST):
    """(name, value, line) of every literal that a name gets: an assignment, argument, keyword or key."""
    for node in ast.walk(tree):
        pairs: list[tuple[object, ast.AST | None]] = []
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=value)
            ):
                pairs = [(name, value)]
            case ast.arguments():
                pairs = [*zip([each.arg for each in node.args][::-1], node.defaults[::-1], strict=False)]
                pairs += [*zip([each.arg for each in node.kwonlyargs], node.kw_defaults, strict=False)]
            case ast.keyword(arg=name, value=value):
                pairs = [(name, value)]
            case ast.Dict():
                pairs = [
                    (key.value if isinstance(key, ast.Constant) else None, value)
                    for key, value in zip(node.keys, node.values, strict=False)
                ]
        for name, value in pairs:
            inner = value.elts[0] if isinstance(value, ast.Tuple) and len(value.elts) == 1 else value
            if isinstance(name, str) and isinstance(inner, ast.Constant):
                yield name.lower(), inner.value, getattr(value, "lineno", 0)


def test_no_default_of_an_optimizer_stands_twice():
    twice = []
    for file in SOURCE.rglob("*.py"):
        if file.name not in ("settings.py", "run_length.py") or file.parent.name != "optim":
            tree = ast.parse(file.read_text(encoding="utf-8"))
            twice += [
                f"{file.relative_to(SOURCE)}:{line}: {name} = {value}"
                for name, value, line in bindings(tree)
                if name in DEFAULTS and value == DEFAULTS[name] and not isinstance(value, bool)
            ]
    assert not twice


CHANGED = """
import importlib.util, json, sys, types
import danalab.optim.{module} as first

source = open(first.__file__).read()
assert source.count({old!r}) == 1
module = sys.modules["danalab.optim.{module}"]
for name in [name for name in sys.modules if name.startswith("danalab") and name != module.__name__]:
    del sys.modules[name]
exec(compile(source.replace({old!r}, {new!r}), first.__file__, "exec"), vars(module))
from danalab.cli.app import main
main(["plan", "--heads", "3", "--json"])
main(["train", "--heads", "3", "--print-config"])
from danalab.optim import ADana
from danalab.theory.studies import HummingbirdFlags
from danalab.train.config.experiment import SHARED_SETTINGS
own = ADana.__init__.__signature__.parameters[{name!r}].default
print(json.dumps([own, getattr(HummingbirdFlags(), {name!r}, 0), SHARED_SETTINGS[{name!r}]]))
"""


@pytest.mark.parametrize(
    ("name", "module", "old", "new", "value"),
    [
        ("kappa", "settings", "    kappa: float = 0.85", "    kappa: float = 0.8", 0.8),
        ("delta", "settings", "    delta: float = 8.0", "    delta: float = 5.0", 5.0),
        ("omega", "run_length", "OMEGA = 4.0", "OMEGA = 3.0", 3.0),
    ],
)
def test_a_default_that_changes_in_optim_changes_everywhere(name, module, old, new, value, tmp_path):
    code = CHANGED.format(name=name, module=module, old=old, new=new)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, *config, last = done.stdout.strip().splitlines()
    planned, (constructor, theory, text) = json.loads(first), json.loads(last)
    assert planned[name] == value
    assert f"{name}: {value}" in config
    assert f"{value:g}" in text
    if name != "omega":
        assert constructor == value
    if name == "delta":
        assert theory == value
    if name == "kappa":
        assert "kappa 0.8)" in planned["lr_source"] + ")"


def test_the_requeue_code_of_the_job_script_is_the_trainers():
    script = (Path(signals.__file__).parent / "slurm_job.sh").read_text()
    assert f"{signals.REQUEUE}/*" in script
