"""Data of unknown origin: nothing in it is executed, nothing outside of the named folder is written, nothing blocks."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from danalab.data import open_dataset, prepare
from danalab.data.formats.shards import checksum_of
from danalab.data.mixture import parse_mixture
from danalab.data.open import describe
from danalab.data.tokenizers import load_tokenizer, train_bpe
from danalab.errors import UserError
from danalab.data.array_split import split_arrays
from danalab.data.validation import validate
from memory_bound import little_memory


class _Call:
    """Pickles as a call of `os.mkdir`."""

    def __init__(self, place: Path):
        self.place = place

    def __reduce__(self):
        return os.mkdir, (str(self.place),)


def _refused(work, *arguments) -> None:
    with pytest.raises(UserError) as caught:
        work(*arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a.pt", "a.npy", "a.npz", "a.npy.rows"])
def test_a_call_planted_in_an_array_is_not_made(tmp_path, name):
    folder, pwned = tmp_path / "set", tmp_path / "pwned"
    folder.mkdir()
    call = np.array([_Call(pwned)], dtype=object)
    if name == "a.pt":
        torch.save(_Call(pwned), folder / name)
    elif name == "a.npz":
        np.savez(folder / name, ids=call)
    else:
        np.save(folder / "a.npy", np.arange(6).reshape(2, 3))
        with open(folder / name, "wb") as file:
            np.save(file, call, allow_pickle=True)
    _refused(open_dataset, folder)
    assert not validate(folder).valid
    (folder / name).write_bytes(pickle.dumps(_Call(pwned)))
    _refused(open_dataset, folder)
    assert not validate(folder).valid
    assert not pwned.exists()


def _npy(shape: tuple[int, ...]) -> bytes:
    """A .npy whose header claims a shape, with little behind it."""
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, {"shape": shape, "fortran_order": False, "descr": "<i8"})
    return content.getvalue() + bytes(64)


def _zip(name: str, content: bytes, kind: int = zipfile.ZIP_STORED) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", kind) as archive:
        archive.writestr(name, content)
    return packed.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.npy", _npy((1 << 40, 3))),
        ("a.npy.rows", _npy((1 << 40,))),
        ("a.npy.rows", _zip("rows.npy", _npy((2,)))),
        ("a.npz", _zip("ids.npy", _npy((1 << 40, 3)))),
        ("a.pt", _zip("a/data/0", bytes(1 << 20), zipfile.ZIP_DEFLATED)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_that_claims_more_than_it_holds_gets_no_memory_for_it(tmp_path, name, content):
    if name.endswith(".rows"):
        np.save(tmp_path / "a.npy", np.arange(6).reshape(2, 3))
    (tmp_path / name).write_bytes(content)
    with little_memory(1 << 26):
        _refused(open_dataset, tmp_path)
        assert not validate(tmp_path).valid


def _with_pickle(content: bytes) -> bytes:
    """A .pt of 6 ids whose pickle is `content`."""
    whole, packed = io.BytesIO(), io.BytesIO()
    torch.save(torch.arange(6).reshape(2, 3), whole)
    with zipfile.ZipFile(whole) as archive, zipfile.ZipFile(packed, "w") as copy:
        for name in archive.namelist():
            copy.writestr(name, content if name.endswith("data.pkl") else archive.read(name))
    return packed.getvalue()


def _nested_tuples(depth: int) -> bytes:
    """Pickled: a dictionary whose last key is a tuple of twice a tuple of twice a tuple ..."""
    levels = [b"h%bh%b\x86q%bK\x01" % (bytes([i]), bytes([i]), bytes([i + 1])) for i in range(depth)]
    return b"\x80\x02}()q\x00K\x01" + b"".join(levels) + b"u."


@pytest.mark.timeout(60)
@pytest.mark.parametrize("zipped", [True, False])
def test_a_small_tensor_file_is_not_read_without_end(tmp_path, zipped):
    nested = _nested_tuples(50)
    (tmp_path / "a.pt").write_bytes(_with_pickle(nested) if zipped else nested)
    _refused(open_dataset, tmp_path)
    assert not validate(tmp_path).valid
    ids = torch.zeros(1, 1, dtype=torch.int64).expand(10**8, 1000)
    torch.save(ids, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    _refused(open_dataset, tmp_path)
    assert "repeats the few values it holds" in validate(tmp_path).errors[0].reason


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["train_1732300000.bin", "train_20261122.bin", "train-9223372036854775807.bin"])
def test_a_date_in_a_name_is_not_taken_for_the_number_of_a_shard(tmp_path, name):
    np.arange(9, dtype="<u2").tofile(tmp_path / name)
    for reader in (open_dataset, describe):
        with pytest.raises(UserError, match=f"{name}: [0-9]+ is a date or a time"):
            reader(tmp_path)
    assert not validate(tmp_path).valid


def test_an_archive_that_unpacks_beyond_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("danalab.data.array_files.host_memory", lambda: 1 << 16)
    np.savez_compressed(tmp_path / "a.npz", ids=np.zeros((200, 500), np.int64))
    with pytest.raises(UserError, match="unpacks to 800,128 bytes, larger than memory"):
        open_dataset(tmp_path)


def test_a_call_planted_in_a_mixture_is_not_made(tmp_path):
    (tmp_path / "mix.yaml").write_text(f"a: !!python/object/apply:os.mkdir ['{tmp_path / 'pwned'}']")
    _refused(parse_mixture, str(tmp_path / "mix.yaml"))
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["splits"]["train"][0].update(file="../outside.bin"),
        lambda m: m["splits"]["train"][0].update(file="/etc/passwd"),
        lambda m: m["splits"]["train"][0].update(file=".."),
        lambda m: m["splits"]["train"][0].update(tokens=10**400),
        lambda m: m["tokenizer"].update(vocab_size=10**30),
        lambda m: m["files"].update({"../../../dev/zero": "0"}),
        lambda m: m.update(splits={}),
        lambda m: m.update(splits=[]),
        lambda m: m.update(extra=1),
    ],
)
def test_a_manifest_that_leaves_its_folder_or_makes_no_sense_is_refused(corpus, tmp_path, change):
    folder = prepare("text", "bytes", tmp_path / "set", inputs=[corpus], workers=1, progress=False)
    content = json.loads((folder / "manifest.json").read_text())
    del content["checksum"]
    change(content)
    (folder / "manifest.json").write_text(json.dumps({**content, "checksum": checksum_of(content)}))
    for reader in (open_dataset, describe):
        _refused(reader, folder)
    assert not validate(folder).valid


def test_a_download_record_that_leaves_its_folder_is_refused(tmp_path):
    record = {"source": "c4", "repository": "r", "commit": "c"}
    for path in ("../outside", "/etc/passwd", "a/../../b"):
        files = [{"path": path, "size": 1, "digest": None}]
        (tmp_path / "download.json").write_text(json.dumps({**record, "files": files}))
        assert "is not a path inside of the repository" in str(validate(tmp_path).errors[0])


@pytest.mark.parametrize("name", [".lock", "train-00000.bin.part", "val-00000.bin.part"])
def test_preparing_into_a_folder_with_links_writes_nothing_outside(corpus, tmp_path, name):
    out, outside = tmp_path / "out", tmp_path / "outside"
    outside.write_text("precious")
    out.mkdir()
    (out / name).symlink_to(outside)
    _refused(lambda: prepare("text", "bytes", out, inputs=[corpus], workers=1, progress=False))
    assert outside.read_text() == "precious"


def test_results_and_links_of_a_split_replace_links_and_write_nothing_outside(tmp_path):
    from danalab.cli.app import main

    outside, folder = tmp_path / "outside", tmp_path / "set"
    outside.write_text("precious")
    folder.mkdir()
    np.save(folder / "a.npy", np.arange(40).reshape(8, 5))
    (folder / "validation_results.json").symlink_to(outside)
    assert main(["data", "validate", str(folder)]) == 0
    assert not (folder / "validation_results.json").is_symlink()
    (tmp_path / "split").symlink_to(tmp_path / "elsewhere")
    _refused(lambda: split_arrays(folder, tmp_path / "split", by="sequence"))
    assert outside.read_text() == "precious"
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["x.txt", "x.jsonl", "x.txt.gz", "x.parquet"])
def test_named_pipes_among_the_inputs_do_not_block(corpus, tmp_path, name):
    os.mkfifo(corpus / name)
    _refused(lambda: prepare("text", "bytes", tmp_path / "out", inputs=[corpus], workers=1, progress=False))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "name", ["manifest.json", "train-00000.bin", "tokenizer.json", "tokenizer_config.json", "validation_results.json"]
)
def test_named_pipes_in_a_data_set_do_not_block(corpus, tmp_path, name):
    folder = prepare("text", "bytes", tmp_path / "set", inputs=[corpus], workers=1, progress=False)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    assert validate(folder).valid == (name == "validation_results.json")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["train.bin", "checksums.json", "a.npy", "a.npy.rows", "a.pt", "download.json"])
def test_named_pipes_in_other_layouts_do_not_block(tmp_path, name):
    if name == "checksums.json":
        np.arange(9, dtype="<u2").tofile(tmp_path / "train.bin")
    elif name == "a.npy.rows":
        np.save(tmp_path / "a.npy", np.arange(6).reshape(2, 3))
    os.mkfifo(tmp_path / name)
    _refused(open_dataset, tmp_path)
    assert not validate(tmp_path).valid


def test_a_saved_tokenizer_replaces_links(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("precious")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "tokenizer.json").symlink_to(outside)
    train_bpe(["some text"] * 3, 266).save(tmp_path / "out")
    assert outside.read_text() == "precious"
    assert load_tokenizer(tmp_path / "out").n_tokens == 266


@pytest.mark.timeout(60)
def test_a_named_pipe_in_a_local_copy_of_the_hub_does_not_block(tmp_path):
    (tmp_path / "sample" / "10BT").mkdir(parents=True)
    os.mkfifo(tmp_path / "sample" / "10BT" / "0.parquet")
    _refused(lambda: prepare("fineweb-10bt", "bytes", tmp_path / "out", inputs=[tmp_path], progress=False))


def test_sizes_beyond_any_machine_are_refused(corpus, tmp_path):
    _refused(lambda: prepare("text", "bytes", tmp_path / "out", inputs=[corpus], workers=10**6, progress=False))
    np.save(tmp_path / "a.npy", np.arange(6).reshape(2, 3))
    _refused(lambda: validate(tmp_path, vocab_size=10**12))
