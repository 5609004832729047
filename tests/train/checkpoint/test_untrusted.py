"""A checkpoint from elsewhere runs no code, and no file outside its folder is opened."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import BytesStorageMetadata

from danalab.cli.app import main
from danalab.files import sha256
from danalab.train.checkpoint import tensors
from danalab.train.checkpoint.store import (
    COMMIT,
    MANIFEST,
    CheckpointStore,
    DamagedCheckpointError,
    commit,
    verify,
    why_unusable,
)  # fmt: skip

FIXTURES = Path(__file__).parents[2] / "fixtures" / "runs_0_1"


class Call:
    """Calls a function when it is unpickled."""

    def __init__(self, function: Any, *arguments: Any):
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def save(folder: Path) -> nn.Module:
    model = nn.Linear(3, 2)
    values, _ = tensors.collect(model, torch.optim.SGD(model.parameters()))
    tensors.write(values, folder)
    return model


def replace_metadata(folder: Path, metadata: Any) -> None:
    """With hashes that fit: whoever writes a checkpoint writes its manifest."""
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    (folder / COMMIT).unlink(missing_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    commit(folder)


@pytest.mark.parametrize(
    "call", [os.system, exec, eval, pickle.loads, torch.load, getattr, nn.Linear], ids=lambda f: f.__name__
)
def test_a_call_in_the_metadata_is_refused_by_its_name_and_not_made(tmp_path, call):
    model = save(tmp_path)
    planted = tmp_path / "planted"
    replace_metadata(tmp_path, Call(call, f"touch {planted}"))
    for read in (
        lambda: tensors.read(tmp_path, model),
        lambda: tensors.read_named(tmp_path, {"model.bias": model.bias}),
    ):
        with pytest.raises(DamagedCheckpointError, match=rf"asks for [\w.]+\.{call.__name__}.*nothing of it was run"):
            read()
    assert not planted.exists()


def test_an_entry_that_torch_would_unpickle_is_refused(tmp_path):
    model = save(tmp_path)
    metadata = FileSystemReader(tmp_path).read_metadata()
    metadata.state_dict_metadata["model.bias"] = BytesStorageMetadata()
    replace_metadata(tmp_path, metadata)
    with pytest.raises(DamagedCheckpointError, match="BytesStorageMetadata"):
        tensors.read_named(tmp_path, {"model.bias": model.bias.detach()})


@pytest.mark.parametrize("place", ["../other/__0_0.distcp", "/etc/passwd"])
def test_metadata_that_names_a_file_elsewhere_is_refused(tmp_path, place):
    model = save(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    metadata = FileSystemReader(tmp_path / "one").read_metadata()
    for info in metadata.storage_data.values():
        info.relative_path = place
    replace_metadata(tmp_path / "one", metadata)
    with pytest.raises(DamagedCheckpointError, match="not in the checkpoint's folder"):
        tensors.read(tmp_path / "one", model)


@pytest.mark.parametrize("kind", ["outside", "link", "pipe"])
def test_a_manifest_that_names_anything_but_a_file_of_its_folder_is_refused(tmp_path, kind):
    folder = tmp_path / "step"
    save(folder)
    commit(folder)
    other = tmp_path / "other"
    other.write_bytes(b"")
    name = "../other" if kind == "outside" else "odd"
    if kind == "link":
        (folder / name).symlink_to(other)
    if kind == "pipe":
        os.mkfifo(folder / name)
    text = (folder / MANIFEST).read_text()
    entry = f'{{"files": {{"{name}": {{"bytes": 0, "sha256": "{sha256(other)}"}}, '
    (folder / MANIFEST).write_text(entry + text[text.index("{", 1) + 1 :])
    (folder / COMMIT).write_text(sha256(folder / MANIFEST) + "\n")
    with pytest.raises(DamagedCheckpointError, match="not a file of its folder"):
        verify(folder)


def test_a_step_that_is_a_link_to_another_run_is_neither_read_nor_deleted(tmp_path):
    other, store = CheckpointStore(tmp_path / "other"), CheckpointStore(tmp_path / "checkpoints")
    for step in (1, 2, 3):
        store.write(step, {}, lambda folder: None)
    theirs = other.write(0, {}, lambda folder: None)
    store.path(0).symlink_to(theirs)
    assert store.prune(3, keep_last=1) == [1, 2]
    assert why_unusable(theirs) is None


VERBS = {
    "eval": ["eval", "--run", "{run}", "--data", "{data}"],
    "generate": ["generate", "--run", "{run}", "--prompt", "the", "--max-tokens", "1"],
    "export": ["export", "{run}", "--out", "{out}"],
    "train": [
        "train",
        "--data",
        "{data}",
        "--resume-from",
        "{run}",
        "--run-dir",
        "{out}",
        "--heads",
        "2",
        "--seq-len",
        "32",
        "--batch-size",
        "4",
        "--iterations",
        "20",
    ],
}


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_runs_what_a_downloaded_run_holds(tmp_path, capfd, verb):
    run = Path(shutil.copytree(FIXTURES / "single", tmp_path / "run"))
    planted = tmp_path / "planted"
    replace_metadata(run / "checkpoints" / "step-00000010", Call(os.system, f"touch {planted}"))
    words = {"run": run, "data": FIXTURES / "data", "out": tmp_path / "out"}
    assert main([word.format(**words) for word in VERBS[verb]]) == 2
    said = capfd.readouterr().err.splitlines()[-1]
    assert said.startswith("danalab: error: ")
    assert ".system, which no checkpoint holds" in said
    assert not planted.exists()
