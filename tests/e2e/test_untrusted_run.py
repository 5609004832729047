"""Reading somebody else's run folder executes nothing and writes nothing outside of the folder that was named."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from danalab_annexes.ladder.optimizer_state import read_tau_statistics

from danalab.errors import UserError
from danalab.train.checkpoint.store import commit
from danalab.train.config.train_config import TrainConfig
from danalab.train.evaluation import evaluate_run
from danalab.train.job import run_training
from danalab.train.run.exchange import export_run
from danalab.train.run.open import open_run

FIXTURES = Path(__file__).parents[1] / "fixtures" / "runs_0_1"
RUN = FIXTURES / "single"
FILES = sorted(str(path.relative_to(RUN)) for path in RUN.rglob("*") if path.is_file())
CHECKPOINT = "checkpoints/step-00000010"


class Call:
    """A pickle that runs a command when it is loaded."""

    def __init__(self, command: str):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a copied run, `run`, and others' files beside it, `outside`."""
    shutil.copytree(RUN, tmp_path / "run")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("precious")
    return tmp_path


def everything_beside(place: Path) -> dict[str, bytes]:
    files = (path for path in place.rglob("*") if path.is_file() and not path.is_relative_to(place / "run"))
    return {str(path.relative_to(place)): path.read_bytes() for path in files}


def sign(run: Path) -> None:
    """Make the checkpoint valid, as whoever wrote the folder can."""
    for name in ("COMMIT", "manifest.json"):
        (run / CHECKPOINT / name).unlink(missing_ok=True)
    commit(run / CHECKPOINT)


def readers(place: Path) -> list[Callable[[], object]]:
    run = place / "run"
    return [
        lambda: open_run(run).metrics(),
        lambda: open_run(run).summary,
        lambda: open_run(run).tokenizer,
        lambda: open_run(run).load_model(),
        lambda: evaluate_run(run, data=FIXTURES / "data"),
        lambda: export_run(run, run / "export"),
    ]


def resume(place: Path, **given: object) -> None:
    saved = {**json.loads((RUN / "config.json").read_text())["config"], "async_checkpoint": False}
    settings = {"data": str(FIXTURES / "data"), "run_dir": str(place / "run"), **given}
    run_training(TrainConfig(**{**saved, **settings}))


def read_all(place: Path) -> None:
    """Do everything that opens a run; one line of error is all that may come of it."""
    before = everything_beside(place)
    for read in [*readers(place), lambda: resume(place)]:
        with contextlib.suppress(UserError):
            read()
    assert everything_beside(place) == before


@pytest.mark.sample(2)
@pytest.mark.parametrize("file", [name for name in FILES if Path(name).name not in ("COMMIT", "manifest.json")])
def test_a_call_in_a_file_is_never_made(place, file):
    payload = pickle.dumps(Call(f"touch {place / 'outside' / 'called'}"))
    (place / "run" / file).write_bytes(payload)
    if file.startswith(CHECKPOINT):
        sign(place / "run")
    read_all(place)


def test_calls_in_files_that_are_added_are_never_made(place):
    run, command = place / "run", f"touch {place / 'outside' / 'called'}"
    code = f"import os\nos.system({command!r})\n"
    for name in ("sitecustomize.py", "conftest.py", "modeling_evil.py", "tokenizer/tokenization_evil.py"):
        (run / name).write_text(code)
    described = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**described, "auto_map": {"AutoModel": "modeling_evil.Evil"}}))
    settings = json.loads((run / "tokenizer/tokenizer_config.json").read_text())
    settings |= {"auto_map": {"AutoTokenizer": ["tokenization_evil.Evil", None]}}
    (run / "tokenizer/tokenizer_config.json").write_text(json.dumps(settings))
    (run / "tau").mkdir()
    with zipfile.ZipFile(run / "tau" / "tau-step-00000010.npz", "w") as archive:
        header = b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (), }"
        archive.writestr("step.npy", header.ljust(127) + b"\n" + pickle.dumps(Call(command)))
    read_all(place)
    with pytest.raises(UserError, match="not a file of tau statistics"):
        read_tau_statistics(run / "tau" / "tau-step-00000010.npz")
    assert not (place / "outside" / "called").exists()


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "file", ["metrics.jsonl", "summary.json", "config.json", "tokenizer", ".lock", "tau", "diloco"]
)
def test_a_link_to_another_place_is_not_written_through(place, file):
    path = place / "run" / file
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(place / "outside" / ("precious" if "." in file else ""))
    read_all(place)
    with pytest.raises(UserError, match="a symbolic link"):
        resume(place)


@pytest.mark.parametrize("target", ["outside", "outside/precious", "../../../../../../../../tmp"])
def test_paths_that_lead_out_of_a_checkpoint_are_not_followed(place, target):
    run = place / "run"
    (run / CHECKPOINT / "link").symlink_to(place / target)
    (run / "checkpoints" / "step-00000015").symlink_to(place / target)
    manifest = json.loads((run / CHECKPOINT / "manifest.json").read_text())
    manifest["files"][f"../../../{target}"] = {"bytes": 8, "sha256": "0" * 64}
    (run / CHECKPOINT / "manifest.json").write_text(json.dumps(manifest))
    described = json.loads((run / "config.json").read_text())
    described["config"] |= {"run_dir": str(place / target), "local_ckpt_dir": str(place / target), "name": "../x"}
    (run / "config.json").write_text(json.dumps(described))
    read_all(place)
    assert (place / "outside" / "precious").read_text() == "precious"
