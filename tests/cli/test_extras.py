"""What is optional: everything but torch, asked for by the extra that installs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from danalab.cli.app import main
from danalab.errors import EXTRA_OF

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = {"yaml": "pyyaml"}
"""Modules that are called otherwise than the package that installs them."""
BROUGHT = {"fsspec": "huggingface-hub", "markupsafe": "jinja2", "pydantic_core": "pydantic"}
"""Modules of packages that another one needs."""


IMPORT = re.compile(r"^ *(?:from (\w+)[\w.]* import|import (\w+)[\w.]*(?: as \w+)?(?:  #.*)?$)", re.MULTILINE)


def test_every_import_is_of_torch_or_of_an_extra():
    sources = (file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*.py"))
    found = {name or other for source in sources for name, other in IMPORT.findall(source)}
    assert {"torch", "numpy", "jax", "danalab"} <= found
    in_templates = {"pytest", "NAME"}
    assert found - {"torch", "triton", "danalab", *in_templates, *sys.stdlib_module_names} <= EXTRA_OF.keys()


def test_extras_install_what_is_asked_for_by_their_names():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert [re.match(r"[\w-]+", need)[0] for need in project["dependencies"]] == ["torch"]
    extras = {
        name: {re.match(r"[\w-]+", need)[0] for need in needs}
        for name, needs in project["optional-dependencies"].items()
    }
    for module, extra in EXTRA_OF.items():
        package = BROUGHT.get(module, DISTRIBUTIONS.get(module, module.replace("_", "-")))
        assert package in extras[extra], module
    for name in set(EXTRA_OF.values()) - {"lab", "baselines"}:  # verbs that need an extra need the lab, too
        assert "danalab[lab]" in project["optional-dependencies"][name], name


INSIDE = """
import sys
from danalab.cli.app import main
for module, *words in (
    ("matplotlib", "optim", "compare", "--quick"),
    ("yaml", "plan", "--config", "plan.yaml"),
    ("pydantic", "plan", "--heads", "4"),
):
    sys.modules[module] = None
    print(main(words))
    del sys.modules[module]
"""


def test_a_module_that_is_missing_inside_a_verb_is_asked_for_in_one_line(tmp_path):
    (tmp_path / "plan.yaml").write_text("heads: 4")
    done = subprocess.run([sys.executable, "-c", INSIDE], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "2\n2\n2\n", done.stderr
    assert done.stderr.splitlines() == [
        f"danalab: error: danalab {verb} needs more than the optimizers: pip install 'danalab[lab]', in a clone "
        "pip install -e '.[lab]'"
        for verb in ("optim", "plan", "plan")
    ]


def test_an_import_that_no_extra_mends_is_not_hidden(monkeypatch):
    def missing(verb):
        raise ModuleNotFoundError("No module named 'nowhere'", name="nowhere")

    monkeypatch.setattr("danalab.cli.app.commands_of", missing)
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        main(["plan"])
