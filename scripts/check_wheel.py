"""Try a wheel as a stranger would: installed without its dependencies, beside torch alone, far from any checkout.

    python scripts/check_wheel.py dist/danalab-0.2.0-py3-none-any.whl

The new environment has links to torch and to what torch needs, as they are installed here; nothing is downloaded.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FIRST_STEPS = """
import importlib.util, io, torch
from danalab.optim import build_optimizer, get_schedule, lr_scheduler, warmup_steps
assert not [name for name in ("numpy", "pydantic", "danalab_bench") if importlib.util.find_spec(name)]

def build(name):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(8, 4), torch.nn.Linear(4, 4))
    optimizer = build_optimizer(name, model, lr=1e-2, **({"omega": 4.0, "horizon": 10} if "dana" in name else {}))
    return model, optimizer, lr_scheduler(optimizer, get_schedule("cos_inf", 10, warmup_steps(10)))

def train(model, optimizer, scheduler, steps):
    for step in steps:
        torch.manual_seed(step)
        model(torch.arange(8)).square().sum().backward()
        optimizer.step(), scheduler.step(), optimizer.zero_grad()

for name in ("adana", "dana-star-mk4", "muon"):
    whole, half = build(name), build(name)
    train(*whole, range(4))
    train(*half, range(2))
    file = io.BytesIO()
    torch.save([part.state_dict() for part in half], file)
    file.seek(0)
    again = build(name)
    for part, state in zip(again, torch.load(file, weights_only=True)):
        part.load_state_dict(state)
    train(*again, range(2, 4))
    assert all(map(torch.equal, whole[0].parameters(), again[0].parameters())), name
"""


def distributions_of(requirements: Iterable[str], extra: str = "") -> dict[str, metadata.Distribution]:
    """Name -> what requirements (of an extra, or without one) have installed here, with what that needs in turn."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [(requirement, extra) for requirement in requirements]
    for text, extra in waiting:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        if name not in found and (
            requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        ):
            found[name] = metadata.distribution(name)
            waiting += [(need, "") for need in found[name].requires or []]
    return found


def environment(folder: Path, wheel: Path, distributions: Iterable[metadata.Distribution]) -> Path:
    """The programs of a new environment in `folder`, with links to `distributions` and the wheel installed."""
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    for distribution in distributions:
        for top in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            place = Path(str(distribution.locate_file(top)))
            if place.exists() and not (site / top).exists():
                (site / top).symlink_to(place)
    words = [
        "--python",
        str(folder / "bin" / "python"),
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        str(wheel),
    ]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True)
    return folder / "bin"


def check(wheel: Path, folder: Path) -> None:
    """First steps, a state that resumes, the help, and what verbs say that need more.

    AssertionError, CalledProcessError: it does not hold.
    """
    programs = environment(folder / "environment", wheel.resolve(), distributions_of(["torch"]).values())
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(programs / words[0]), *words[1:]]
        return subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True)

    steps = run("python", "-c", FIRST_STEPS)
    assert steps.returncode == 0, steps.stderr
    usage = run("danalab", "--help")
    assert "usage: danalab COMMAND" in usage.stdout, usage.stderr
    for verb in ("demo", "train", "optim list", "serve", "theory", "bench"):
        said = run("danalab", *verb.split())
        line = rf"danalab: error: danalab {verb.split()[0]} needs .*pip install -e '.\[lab\]'\n"
        assert said.returncode == 2, said
        assert re.fullmatch(line, said.stderr), said


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        check(Path(sys.argv[1]), Path(place))
    print(f"{sys.argv[1]}: beside torch alone it steps, resumes, and says what its verbs need")
