"""Data sets open at once however large, and refuse shards that are not what their manifest says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from danalab import __version__
from danalab.data import open_dataset, prepare
from danalab.data.bare import BareFiles
from danalab.data.formats.shards import HEADER, MAGIC, Encoding, Manifest, ShardEntry
from danalab.data.open import describe
from danalab.data.tokenizers import train_bpe
from danalab.data.validation import validate
from danalab.errors import UserError


@pytest.fixture
def prepared(corpus, tmp_path) -> Path:
    return prepare("text", "bytes", tmp_path / "set", inputs=[corpus], progress=False)


def _bare(folder: Path, **files: np.ndarray) -> Path:
    folder.mkdir(exist_ok=True)
    for name, ids in files.items():
        ids.astype("<u2").tofile(folder / f"{name}.bin")
    return folder


def test_a_prepared_data_set_knows_its_vocabulary_and_bytes(prepared):
    dataset = open_dataset(prepared)
    assert (dataset.vocab_size, dataset.eos_id, dataset.max_id, dataset.tokenizer.name) == (
        320,
        256,
        256,
        "bytes",
    )
    assert dataset.token_bytes.sum() == 256
    assert dataset.n_tokens == describe(prepared)["splits"]["train"]["tokens"]
    assert dataset.fingerprint != open_dataset(prepared, "val").fingerprint


def test_a_hundred_billion_tokens_open_without_an_index(tmp_path):
    fingerprint = "ab" * 32
    n_shards, tokens = 20, 5_000_000_000
    entries = []
    for number in range(n_shards):
        file = tmp_path / f"train-{number:05d}.bin"
        with open(file, "wb") as stream:
            stream.write(HEADER.pack(MAGIC, 1, 2, tokens, bytes.fromhex(fingerprint)))
            stream.truncate(HEADER.size + 2 * tokens)  # a hole: takes no room on the disk
        entries.append(ShardEntry(file.name, tokens, 1, 1, f"{number}", 0, 0))
    tokenizer = Encoding("gpt2", fingerprint, 50257, 50304, 50256)
    Manifest(tokenizer, {}, {"train": entries}, "", __version__).write(tmp_path)
    tracemalloc.start()
    dataset = open_dataset(tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 5e6
    inputs, _ = dataset.batches(seed=0, global_batch=512, seq_len=2048)[10**6]
    assert dataset.n_tokens == 10**11
    assert inputs.shape == (512, 2048)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60e6  # the batch itself is 17 MB; an index of the 5e7 windows would be 400 MB


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda b: b[:-10], "truncated"),
        (lambda b: b + b"\0\0", "too long"),
        (lambda b: b"nonsense" + b[8:], "its header"),
        (lambda b: b[:8] + b"\x09" + b[9:], "its header"),
        (lambda b: b[:24] + b"\xff" * 32 + b[56:], "this tokenizer"),
        (lambda b: HEADER.pack(MAGIC, 1, 2, 7, b[24:56]) + b[64:78], "its header"),
        (lambda b: b"", "its header"),
    ],
)
def test_damaged_shards_are_refused_by_name(prepared, damage, reason):
    file = prepared / "train-00000.bin"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(UserError, match=rf"train-00000\.bin: .*{reason}"):
        open_dataset(prepared)


def test_a_missing_shard_is_refused_by_name(prepared):
    (prepared / "val-00000.bin").unlink()
    with pytest.raises(UserError, match=r"val-00000\.bin: missing"):
        open_dataset(prepared, "val")


def test_another_tokenizer_beside_the_shards_is_refused(prepared):
    train_bpe(["some words and some more words"], 270).save(prepared)
    with pytest.raises(UserError, match=r"tokenizer.*json: content differs from manifest\.json's sha256"):
        open_dataset(prepared)
    assert len(validate(prepared).errors) >= 1


@pytest.mark.parametrize(
    ("tokens", "changed", "seen"),
    [
        (1, 0, True),
        (131_072, 70_000, True),
        (131_072, 8192, True),
        (400_000, 0, True),
        (400_000, 399_999, True),
        (400_000, 9000, False),
    ],
)
def test_a_sample_covers_a_small_shard_and_both_ends_of_a_large_one(tmp_path, tokens, changed, seen):
    ids = np.zeros(tokens, "<u2")
    shard = BareFiles(_bare(tmp_path, train=ids)).open_file(tmp_path / "train.bin")
    before = shard.sample()
    ids[changed] = 1
    ids.tofile(shard.path)
    assert (shard.sample() != before) == seen


def test_flipped_bytes_are_found_when_asked(prepared):
    file = prepared / "train-00000.bin"
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"train-00000\.bin: changed since it was prepared"):
        open_dataset(prepared)
    os.utime(file, (0, 0))  # as old as the manifest: only `validate` reads it
    open_dataset(prepared)
    [fault] = validate(prepared).errors
    assert fault.file == "train-00000.bin"
    assert "content differs from manifest.json" in fault.reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m.update(format="other"), "not the manifest"),
        (lambda m: m.update(version=2), "version 2"),
        (lambda m: m.pop("splits"), "malformed"),
        (lambda m: m["splits"]["train"][0].pop("sha256"), "malformed"),
        (
            lambda m: m["splits"]["train"][0].update(tokens="many"),
            r"splits\.train\.0\.tokens: .* valid integer",
        ),
    ],
)
def test_bad_manifests_are_refused(prepared, change, reason):
    file = prepared / "manifest.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    with pytest.raises(UserError, match=reason):
        open_dataset(prepared)


def test_absent_data_sets_and_splits_are_refused(prepared, tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        open_dataset(tmp_path / "absent")
    with pytest.raises(UserError, match="no split 'test'; there are: train, val"):
        open_dataset(prepared, "test")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no data set in it"):
        open_dataset(tmp_path / "empty")


def test_shards_without_their_manifest_are_not_read_as_bare_files(prepared):
    (prepared / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"without its manifest\.json"):
        open_dataset(prepared)


def test_bare_files_are_gpt2_tokens(tmp_path):
    folder = _bare(tmp_path / "nano", train=np.arange(1000), val=np.arange(50))
    dataset = open_dataset(folder)
    assert (dataset.n_tokens, dataset.vocab_size, dataset.eos_id) == (1000, 50304, 50256)
    inputs, targets = dataset.sequential(10)[0:2]
    assert torch.equal(inputs.flatten(), torch.arange(20))
    assert torch.equal(targets, inputs + 1)
    assert open_dataset(folder, "val").n_tokens == 50


def test_numbered_bare_files_are_one_split_in_the_order_of_their_numbers(tmp_path):
    parts = {f"train_{n}": np.arange(100 * n, 100 * n + 100) for n in range(12)}
    folder = _bare(tmp_path / "many", val=np.arange(5), **parts)
    dataset = open_dataset(folder)
    assert dataset.store.read(0, 1200).tolist() == list(range(1200))


def test_a_tokenizer_beside_bare_files_is_used(tmp_path):
    folder = _bare(tmp_path / "own", train=np.arange(300))
    train_bpe(["some text"] * 3, 266).save(folder)
    with pytest.raises(UserError, match=r"train\.bin: token id 399 >="):
        open_dataset(_bare(folder, train=np.arange(400)))
    assert open_dataset(_bare(folder, train=np.arange(200))).vocab_size == 320


def test_ids_outside_of_the_vocabulary_are_refused_with_file_and_offset(tmp_path, prepared):
    ids = np.zeros(3000)
    ids[1337] = 50312
    with pytest.raises(UserError, match=r"train\.bin: token id 50312 >= vocab_size 50304"):
        open_dataset(_bare(tmp_path / "bad", train=ids))
    with pytest.raises(UserError, match=r"train-00000\.bin: token id \d+ >= vocab_size 100"):
        open_dataset(prepared).check_vocab(100)
    open_dataset(prepared).check_vocab(257)


def test_half_a_token_is_refused(tmp_path):
    (tmp_path / "train.bin").write_bytes(b"abc")
    with pytest.raises(UserError, match="3 bytes is no whole number"):
        open_dataset(tmp_path)


def test_links_to_nowhere_are_refused(tmp_path):
    folder = _bare(tmp_path / "set", train_0=np.arange(9), train_1=np.arange(9))
    (folder / "train_1.bin").unlink()
    (folder / "train_1.bin").symlink_to(tmp_path / "gone.bin")
    with pytest.raises(UserError, match=r"train_1\.bin: a dangling symbolic link \(to .*gone\.bin\)"):
        open_dataset(folder)


def test_files_that_cannot_be_read_are_refused_by_name(prepared, tmp_path, monkeypatch):
    folder = _bare(tmp_path / "set", train=np.arange(9))

    def refuse(path, *_, **__):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("danalab.data.formats.shards.open", refuse, raising=False)
    for place in (folder, prepared):
        with pytest.raises(UserError, match=r"train(-00000)?\.bin: cannot be read: Permission denied"):
            open_dataset(place)


def test_bare_files_of_a_large_vocabulary_are_32_bits_wide(tmp_path, monkeypatch):
    tokenizer = train_bpe(["some text"] * 3, 266)
    tokenizer.save(tmp_path)
    monkeypatch.setattr(
        "danalab.data.layout.load_tokenizer",
        lambda _: type("Wide", (), {**vars(tokenizer), "n_tokens": 70_000, "vocab_size": 70_016,
        "eos_id": 256, "fingerprint": "ab"})()
    )  # fmt: skip
    np.array([1, 69_999, 3], "<u4").tofile(tmp_path / "train.bin")
    dataset = open_dataset(tmp_path)
    assert (dataset.n_tokens, dataset.max_id, dataset.vocab_size) == (3, 69_999, 70_016)


def test_verify_names_every_fault_and_goes_on(prepared):
    (prepared / "train-00000.bin").write_bytes(b"short")
    (prepared / "val-00000.bin").unlink()
    (prepared / "tokenizer_config.json").write_text("{}")
    (prepared / "train-00007.bin").write_bytes(b"")
    places = [fault.file for fault in validate(prepared).errors]
    assert places == ["tokenizer_config.json", "train-00000.bin", "train-00007.bin", "val-00000.bin"]


def test_the_scan_of_a_bare_file_is_kept_until_the_file_changes(tmp_path, monkeypatch):
    folder = _bare(tmp_path / "nano", train=np.arange(1000))
    first = open_dataset(folder)
    with monkeypatch.context() as patched:
        patched.setattr("danalab.data.formats.shards.Shard.blocks", lambda _: pytest.fail("read again"))
        assert open_dataset(folder).fingerprint == first.fingerprint
    _bare(folder, train=np.arange(1001))
    assert open_dataset(folder).fingerprint != first.fingerprint


def test_the_fingerprint_follows_content_and_not_place(prepared, tmp_path):
    before = open_dataset(prepared).fingerprint
    moved = prepared.rename(tmp_path / "moved")
    assert open_dataset(moved).fingerprint == before
    made = Manifest.read(moved)
    other = replace(made.splits["train"][0], sha256="00" * 32)
    replace(made, splits={**made.splits, "train": [other]}).write(moved)
    assert open_dataset(moved).fingerprint != before


def test_the_number_of_sequences_of_an_epoch_is_that_of_its_batches(prepared):
    dataset = open_dataset(prepared)
    batches = dataset.batches(seed=1, global_batch=2, seq_len=16)
    assert dataset.order(0, 16).n == batches._order.n > 0


def test_no_shard_stays_open(tmp_path, monkeypatch):
    def counted(*arguments):
        opened.append(open(*arguments))  # noqa: SIM115  closed by its user
        return opened[-1]

    opened: list = []
    parts = {f"train_{n:03d}": np.arange(10 * n, 10 * n + 10) for n in range(60)}
    folder = _bare(tmp_path / "many", **parts)
    monkeypatch.setattr("danalab.data.formats.shards.open", counted, raising=False)
    dataset = open_dataset(folder)
    assert dataset.store.read(0, 600).tolist() == list(range(600))
    assert len(opened) >= 60
    assert all(file.closed for file in opened)


JOB = """
import sys
from danalab.data import open_dataset
from danalab.errors import UserError

batches = open_dataset(sys.argv[1]).batches(seed=0, global_batch=64, seq_len=256)
ready = batches.iterate()
try:
    for step, _ in enumerate(ready):
        if step == 4:
            print("running", flush=True)
            sys.stdin.readline()
except UserError as error:
    sys.exit(str(error))
"""


def test_a_file_truncated_under_a_running_job_is_one_line(tmp_path):
    folder = _bare(tmp_path / "set", train=np.arange(1 << 16))
    (folder / "tokens.json").write_text('{"vocab_size": 65536, "dtype": "uint16"}')
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    job = subprocess.Popen([sys.executable, "-c", JOB, str(folder)], **pipes)
    assert job.stdout is not None
    assert job.stdout.readline() == "running\n"
    os.truncate(folder / "train.bin", 100)
    _, told = job.communicate("\n")
    assert job.returncode == 1  # and not a signal
    assert told == f"{folder}/train.bin: truncated since the data set was opened; start again\n"
