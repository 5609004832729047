"""Names and modules that moved, most of them to annexes, are importable from where they stood, for one release."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import danalab
from danalab.moved import MOVED, find_spec

SOURCE = Path(danalab.__file__).parents[1]


def is_left(name):
    """Whether an updated checkout still has the folder, for its compiled files: Python takes it for a package."""
    return (SOURCE / name.replace(".", "/")).is_dir()


find_spec("danalab.absent")  # loads the rows of annexes

NAMES = {
    "danalab.data.check": ("Finding", "Validation", "validate"),
    "danalab.data.sources": ("HubSource",),
    "danalab.models.huggingface": ("from_huggingface", "require_class", "to_huggingface"),
    "danalab.theory": (
        "compute_optimum", "density", "frontier", "hummingbird", "limit_loss", "load_spectrum", "measure_tau", "moe",
        "phase", "predict", "smallest_eigenvalue", "tau_limit", "time_exponents",
    ),
}  # fmt: skip


@pytest.mark.parametrize("module", NAMES)
def test_names_that_moved_to_annexes_are_importable_from_where_they_stood(module):
    if module == "danalab.theory":
        pytest.importorskip("jax")
    for name in NAMES[module]:
        assert getattr(import_module(module), name).__module__.startswith(("danalab_annexes.", "danalab.data."))


@pytest.mark.parametrize("old", [old for old in MOVED if old.rpartition(".")[0] not in MOVED and not is_left(old)])
def test_a_module_that_moved_is_the_same_object_under_its_old_path(old, monkeypatch):
    assert not (SOURCE / f"{old.replace('.', '/')}.py").exists()
    if "theory" in old:
        pytest.importorskip("jax")
    if "remote" in old:
        pytest.importorskip("transformers")
    monkeypatch.delitem(sys.modules, old, raising=False)  # a test may have imported it
    with pytest.warns(DeprecationWarning, match=rf"{old} is now {MOVED[old]}; the old path works until 0\.4") as warned:
        module = import_module(old)
    assert module is import_module(MOVED[old])
    assert module.__name__ == MOVED[old]
    assert len([each for each in warned if "is now" in str(each.message)]) == 1


def test_the_warning_names_the_line_that_imports(monkeypatch):
    monkeypatch.delitem(sys.modules, "danalab.inference.constraints", raising=False)
    monkeypatch.delattr(import_module("danalab.inference"), "constraints", raising=False)
    with pytest.warns(DeprecationWarning, match="is now") as warned:
        from danalab.inference import constraints  # pyright: ignore[reportAttributeAccessIssue] # noqa: F401
    assert [each.filename for each in warned] == [__file__]


@pytest.mark.skipif(is_left("danalab.inference.native"), reason="the folder of an older checkout is still there")
def test_a_module_of_a_package_that_moved_is_loaded_once(monkeypatch):
    for name in ("danalab.inference.native", "danalab.inference.native.layout"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.warns(DeprecationWarning, match=r"native is now"):
        layout = import_module("danalab.inference.native.layout")
    assert layout is import_module("danalab_annexes.inference.native_decoding.layout")


@pytest.mark.parametrize("path", ["danalab.ladder.horizn", "danalab.absent", "danalab.evals.absent"])
def test_a_wrong_path_fails_as_ever(path):
    with pytest.raises(ModuleNotFoundError, match=rf"^No module named '{path}'$"):
        import_module(path)


def test_the_package_imports_nothing_and_an_old_path_needs_the_annexes():
    code = (
        "import sys; before = set(sys.modules); import danalab; print(set(sys.modules) - before)\n"
        "from danalab import plugins; plugins.ANNEXES = 'annexes_that_are_not_installed'\n"
        "import danalab.train.evaluation.evaluator, danalab.serve.responses"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "{'danalab'}\n"
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'danalab.serve.responses'"
