"""The wheel: built without a network, installed beside torch alone it steps, beside the extra `lab` it runs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from scripts import check_wheel

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


@pytest.fixture(scope="module")
def core(wheel, tmp_path_factory) -> Path:
    """A fresh environment with the wheel and links to the packages of the core; its folder of programs."""
    with zipfile.ZipFile(wheel) as content:
        (name,) = [name for name in content.namelist() if name.endswith(".dist-info/METADATA")]
        needs = re.findall(r"^Requires-Dist: (.*)$", content.read(name).decode(), re.MULTILINE)
    found = check_wheel.distributions_of(needs, extra="lab")
    return check_wheel.environment(tmp_path_factory.mktemp("environment"), wheel, found.values())


def run(words: list[object], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    return subprocess.run([*map(str, words)], cwd=folder, env=environment, capture_output=True, text=True)


def test_links_below_build_to_the_sources_take_nothing_away(tmp_path):
    """`make docs-check` leaves such links, and a folder that was seen is not walked again."""
    builders = pytest.importorskip("hatchling.builders.sdist")
    for name in ("pyproject.toml", ".gitignore", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "src" / "danalab").mkdir(parents=True)
    (tmp_path / "src" / "danalab" / "__init__.py").touch()
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "src").symlink_to(tmp_path / "src")
    files = builders.SdistBuilder(str(tmp_path)).recurse_included_files()
    assert "src/danalab/__init__.py" in [file.relative_path for file in files]


@pytest.mark.slow
def test_the_wheel_has_types_sources_of_kernels_and_pages_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as content:
        names = set(content.namelist())
    assert {"danalab/py.typed", "danalab/train/system/slurm_job.sh"} <= names
    sources = {
        str(file.relative_to(ROOT / "src"))
        for file in (ROOT / "src").rglob("*")
        if file.is_file() and file.suffix in (".cpp", ".h", ".html", ".css", ".js", ".j2", ".json", ".svg")
    }
    assert sources <= names
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"danalab"}


@pytest.mark.slow
def test_beside_torch_alone_it_steps_and_says_what_its_verbs_need(wheel, tmp_path):
    check_wheel.check(wheel, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_lab_without_other_extras_runs_the_demo(core, tmp_path):
    missing = run([core / "python", "-c", "import scipy"], tmp_path)
    assert "No module named 'scipy'" in missing.stderr
    where = run([core / "python", "-c", "import danalab; print(danalab.__file__)"], tmp_path)
    assert str(core.parent) in where.stdout
    assert run([core / "danalab", "--version"], tmp_path).stdout.startswith("danalab ")
    done = run([core / "danalab", "demo", *SMALL.split()], tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "adana" in done.stdout
