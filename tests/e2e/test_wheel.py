"""The wheel: built without a network, installed beside nothing but the dependencies of the core, it runs."""

from __future__ import annotations

import re
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
SMALL = "--tokens 8192 --vocab-size 512"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    (file,) = folder.glob("danalab-*.whl")
    return file


def core_distributions(wheel: Path) -> list[metadata.Distribution]:
    """What the wheel needs without extras, with what that needs, as it is installed here."""
    with zipfile.ZipFile(wheel) as content:
        (name,) = [name for name in content.namelist() if name.endswith(".dist-info/METADATA")]
        waiting = re.findall(r"^Requires-Dist: (.*)$", content.read(name).decode(), re.MULTILINE)
    found: dict[str, metadata.Distribution] = {}
    while waiting:
        requirement = Requirement(waiting.pop())
        name = canonicalize_name(requirement.name)
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found[name] = metadata.distribution(name)
        waiting += found[name].requires or []
    return list(found.values())


@pytest.fixture(scope="module")
def core(wheel, tmp_path_factory) -> Path:
    """A fresh environment with the wheel and links to the packages of the core; its folder of programs."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    for distribution in core_distributions(wheel):
        for file in distribution.files or []:
            top = file.parts[0]
            place = Path(str(distribution.locate_file(top)))
            if top not in ("..", "__pycache__") and not (site / top).exists() and place.exists():
                (site / top).symlink_to(place)
    words = ["--python", str(folder / "bin" / "python"), "install", "--no-deps", "--no-index", str(wheel)]
    done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "bin"


def run(words: list[object], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run([*map(str, words)], cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_the_wheel_has_types_sources_of_kernels_and_pages_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as content:
        names = set(content.namelist())
    assert {"danalab/py.typed", "danalab/optim/__init__.pyi", "danalab/train/system/slurm_job.sh"} <= names
    sources = {
        str(Path("danalab") / file.relative_to(ROOT / "src" / "danalab"))
        for file in (ROOT / "src" / "danalab").rglob("*")
        if file.is_file() and file.suffix in (".cpp", ".h", ".html", ".css", ".js", ".j2", ".json", ".svg")
    }
    assert sources <= names
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"danalab", "danalab_bench"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_core_alone_runs_the_demo(core, tmp_path):
    missing = run([core / "python", "-c", "import scipy"], tmp_path)
    assert "No module named 'scipy'" in missing.stderr
    where = run([core / "python", "-c", "import danalab; print(danalab.__file__)"], tmp_path)
    assert str(core.parent) in where.stdout
    assert run([core / "danalab", "--version"], tmp_path).stdout.startswith("danalab ")
    assert "Time of an optimizer step" in run([core / "danalab", "bench"], tmp_path).stdout
    done = run([core / "danalab", "demo", *SMALL.split()], tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "adana" in done.stdout
