"""A checkpoint from elsewhere runs no code, and no file outside its folder is opened."""

from __future__ import annotations

import io
import os
import pickle
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, BytesStorageMetadata, MetadataIndex

from danalab.cli.app import main
from danalab.files import read_json, sha256, write_json
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
from danalab.train.run.open import open_run
from memory_bound import little_memory

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


def test_members_of_enumerations_are_read_as_python_3_11_0_pickles_them(tmp_path, monkeypatch):
    by_name = lambda self, protocol: (getattr, (type(self), self.name))  # noqa: E731
    monkeypatch.setattr(_MEM_FORMAT_ENCODING, "__reduce_ex__", by_name)
    model = save(tmp_path)
    assert b"getattr" in (tmp_path / ".metadata").read_bytes()
    read = nn.Linear(3, 2)
    tensors.read(tmp_path, read)
    assert torch.equal(read.weight, model.weight)
    tensors.read_named(tmp_path, {"model.bias": read.bias})


def test_a_pickle_does_not_get_the_memory_that_it_asks_for(tmp_path):
    model = save(tmp_path)
    memo = b"\x80\x04Nr" + (1 << 24).to_bytes(4, "little") + b"."  # "remember None as number 16,777,216"
    (tmp_path / ".metadata").write_bytes(memo)
    with little_memory(), pytest.raises(DamagedCheckpointError, match="it holds a NoneType"):
        tensors.read(tmp_path, model)


HUGE = torch.Size([1 << 40, 3])


def of_weight(metadata: Any) -> Any:
    return next(info for index, info in metadata.storage_data.items() if index.fqn == "model.weight")


def claim_a_size(metadata: Any) -> None:
    metadata.state_dict_metadata["model.weight"].size = HUGE


def claim_a_block(metadata: Any) -> None:
    claim_a_size(metadata)
    metadata.state_dict_metadata["model.weight"].chunks[0].sizes = HUGE


def claim_a_file(metadata: Any) -> None:
    claim_a_block(metadata)
    of_weight(metadata).length = 1 << 50


def claim_a_type(metadata: Any) -> None:
    metadata.state_dict_metadata["model.weight"].properties.dtype = torch.complex128
    of_weight(metadata).length = 2 * 3 * 16 - 1


def claim_a_place(metadata: Any) -> None:
    of_weight(metadata).offset = -1


def claim_bytes_twice(metadata: Any) -> None:
    for number in range(9):
        metadata.state_dict_metadata[f"optim.{number}"] = metadata.state_dict_metadata["model.weight"]
        metadata.storage_data[MetadataIndex(f"optim.{number}", [0, 0])] = of_weight(metadata)


def claim_a_transform(metadata: Any) -> None:
    of_weight(metadata).transform_descriptors = ["zstd"]


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        (claim_a_size, "has 3,298,534,883,328 values, its blocks 6"),
        (claim_a_block, "blocks that the files do not hold"),
        (claim_a_file, r"names 1,125,\d{3},\d{3},\d{3},\d{3} bytes of __0_0.distcp"),
        (claim_a_type, "blocks that the files do not hold"),
        (claim_a_place, "negative position"),
        (claim_bytes_twice, "bytes of __0_0.distcp, which has"),
        (claim_a_transform, "transformed by"),
    ],
)
def test_metadata_that_claims_more_than_the_files_hold_is_refused(tmp_path, claim, reason):
    model = save(tmp_path)
    metadata = FileSystemReader(tmp_path).read_metadata()
    claim(metadata)
    replace_metadata(tmp_path, metadata)
    with little_memory(), pytest.raises(DamagedCheckpointError, match=reason):
        tensors.read(tmp_path, model)


@pytest.mark.parametrize("kind", ["compressed", "no archive"])
def test_a_tensor_that_unpacks_to_more_than_its_bytes_is_refused(tmp_path, kind):
    model = save(tmp_path)
    metadata = FileSystemReader(tmp_path).read_metadata()
    info, packed = of_weight(metadata), io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(1 << 20))
    content = packed.getvalue() if kind == "compressed" else b"no archive" * 100
    file = tmp_path / info.relative_path
    info.offset, info.length = file.stat().st_size, len(content)
    with open(file, "ab") as out:
        out.write(content)
    replace_metadata(tmp_path, metadata)
    with pytest.raises(DamagedCheckpointError, match="compressed" if kind == "compressed" else "not an archive"):
        tensors.read(tmp_path, model)


def test_state_that_refers_to_one_tensor_many_times_is_refused(tmp_path):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    values, meta = tensors.collect(model, optimizer)
    tensors.write(values, tmp_path)
    many = [{"__tensor__": "optim.weight.momentum_buffer"}] * 1000
    with pytest.raises(DamagedCheckpointError, match=r"refers to .*momentum_buffer twice"):
        tensors.read(tmp_path, model, optimizer, {**meta, "state": {"weight": {"x": many}}})


@pytest.mark.parametrize("setting", ["n_layers", "vocab_size"])
def test_a_configuration_of_a_larger_model_than_the_checkpoint_is_refused_before_it_is_built(tmp_path, setting):
    run = Path(shutil.copytree(FIXTURES / "single", tmp_path / "run"))
    record = read_json(run / "config.json")
    record["model"][setting] = 100_000
    write_json(run / "config.json", record)
    with little_memory(), pytest.raises(DamagedCheckpointError, match="too few for the model"):
        open_run(run).load_model()


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


@pytest.mark.parametrize("levels", [40, 100_000])
def test_a_key_of_nested_tuples_does_not_hold_up_a_reader(tmp_path, levels):
    model = save(tmp_path)
    pickled = b"\x80\x04})" + b"2\x86" * levels + b"Ns."  # {}, (), then pairs of the last with itself, as a key
    (tmp_path / ".metadata").write_bytes(pickled)
    for read in (
        lambda: tensors.read(tmp_path, model),
        lambda: tensors.read_named(tmp_path, {"model.bias": model.bias}),
    ):
        with pytest.raises(DamagedCheckpointError, match="nested"):
            read()


def test_a_record_without_a_name_is_no_key(tmp_path):
    model = save(tmp_path)
    index = MetadataIndex("model.bias")
    object.__setattr__(index, "fqn", (index.fqn,) * 3)
    replace_metadata(tmp_path, {index: None})
    with pytest.raises(DamagedCheckpointError, match="without a name"):
        tensors.read(tmp_path, model)


@pytest.mark.parametrize(
    "manifest",
    [
        "{}", "[]", "null", "3", '"x"', "{", "\0", '{"files": []}', '{"files": null}', '{"files": 1}', '{"files": {}}',
        '{"files": {"meta.json": {}}}', '{"files": {"meta.json": []}}',
        '{"files": {"meta.json": {"bytes": "2", "sha256": 5}}}',
    ],
)  # fmt: skip
def test_a_forged_manifest_is_damage_that_is_named(tmp_path, manifest):
    save(tmp_path)
    (tmp_path / MANIFEST).write_text(manifest)
    (tmp_path / COMMIT).write_text(sha256(tmp_path / MANIFEST))
    with pytest.raises(DamagedCheckpointError, match=MANIFEST):
        verify(tmp_path)
    assert why_unusable(tmp_path)


@pytest.mark.parametrize("meta", ["[]", "null", '"x"', '{"step": -5}', "{}", '{"step": "1"}', '{"step": true}'])
def test_forged_facts_of_a_checkpoint_are_refused_in_one_line_wherever_they_are_read(tmp_path, meta, capsys):
    run = Path(shutil.copytree(FIXTURES / "single", tmp_path / "run"))
    step = next((run / "checkpoints").glob("step-*"))
    (step / "meta.json").write_text(meta)
    (step / COMMIT).unlink()
    (step / MANIFEST).unlink()
    commit(step)
    assert main(["eval", str(run), "--data", str(FIXTURES / "data")]) == 2
    assert re.fullmatch(r"danalab: error: .*meta\.json: malformed: .*\n", capsys.readouterr().err)
