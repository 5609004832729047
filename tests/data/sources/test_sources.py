"""Sources give the same documents each time; bad text is refused with its place."""

from __future__ import annotations

import gzip
import json
import sys

import pytest

from danalab.data.sources import StdlibSource, TextSource, make_source
from danalab.data.sources import text as formats_module
from danalab.errors import MissingExtra, UserError
from memory_bound import little_memory

TEXTS = ["eins äö\nzwei\n", "with <|endoftext|> in it", "three\r\n\r\n\tλ"]
JSONL = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)


def _documents(*paths) -> list[str]:
    return list(TextSource(paths).iter_documents())


def test_stdlib_is_python_code_without_tests_and_tables():
    source = StdlibSource()
    names = [path.relative_to(source.root).as_posix() for path in source.files]
    assert {"argparse.py", "json/decoder.py"} <= set(names)
    assert not [
        name for name in names if name.startswith(("test/", "encodings/", "site-packages/", "_sysconfigdata"))
    ]
    assert names == sorted(names)
    assert 5e6 < source.size_bytes() < 60e6


def test_stdlib_passes_over_files_that_are_not_utf8(tmp_path):
    (tmp_path / "b.py").write_bytes(b"# -*- coding: latin-1 -*-\n'\xe4'\n")
    (tmp_path / "a.py").write_text("1\n")
    assert list(StdlibSource(tmp_path).iter_documents()) == ["1\n"]


def test_a_folder_is_read_in_the_order_of_its_paths(tmp_path):
    for name in ("b.txt", "a/z.md", "a.txt", ".hidden/x.txt", "picture.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert _documents(tmp_path) == ["a.txt", "a/z.md", "b.txt"]


@pytest.mark.parametrize("packed", [False, True])
def test_lines_of_jsonl_are_documents(tmp_path, packed):
    file = tmp_path / ("x.jsonl.gz" if packed else "x.jsonl")
    content = (JSONL + "\n" + '{"text": ""}').encode()
    file.write_bytes(gzip.compress(content) if packed else content)
    assert _documents(file) == TEXTS


MARK = b"\xef\xbb\xbf"


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_a_json_is_lines_and_is_not_searched_for(tmp_path, suffix):
    content = MARK + (JSONL + '{"text": null}\n{"text": ""}\n').encode()
    (tmp_path / f"x{suffix}").write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
    assert _documents(tmp_path / f"x{suffix}") == TEXTS
    with pytest.raises(UserError, match="in this folder"):
        _documents(tmp_path)


@pytest.mark.parametrize("name", ["x.jsonl", "x.ndjson", "x.txt"])
def test_a_byte_order_mark_is_no_text(tmp_path, name):
    content = b"just this" if name == "x.txt" else JSONL.encode()
    for mark in (b"", MARK):
        (tmp_path / name).write_bytes(mark + content)
        assert _documents(tmp_path) == (["just this"] if name == "x.txt" else TEXTS)
    (tmp_path / name).write_bytes(MARK + b"{\xff")
    with pytest.raises(UserError, match="not UTF-8 at byte 4 "):
        _documents(tmp_path)


def test_linked_folders_are_read_once_and_what_is_not_read_is_counted(tmp_path):
    inside = ("b.ndjson", "c.html", "d.html", "package.json", "broken.json", "README")
    for name in ("real/a.txt", *(f"in/{name}" for name in inside)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"text": "b"}' if name.endswith("ndjson") else '{"name":')
    (tmp_path / "real" / "loop").symlink_to(tmp_path / "real")
    for name in ("one", "two"):
        (tmp_path / "in" / name).symlink_to(tmp_path / "real")
    source = TextSource([tmp_path / "in"])
    assert list(source.iter_documents()) == ["b", '{"name":']
    assert source.report == ("read 2 file(s); not read: 2 .json, 2 .html, 1 without a suffix")


def test_a_small_text_validates_on_more_than_one_percent(tmp_path):
    shares = {1000: 0.1, 178_000: 0.1, 655_360: 0.05, 10_000_000: 0.01}
    for size, share in shares.items():
        (tmp_path / "x.txt").write_bytes(b"x" * size)
        assert TextSource([tmp_path]).val_fraction == share


def test_another_column_or_field_is_read_and_is_another_data_set(tmp_path):
    (tmp_path / "a.jsonl").write_text(JSONL.replace('"text"', '"content"'))
    with pytest.raises(
        UserError, match=r'the field "text" .* there are: content; --text-column names another'
    ):
        _documents(tmp_path)
    source = TextSource([tmp_path], text_column="content")
    assert list(source.iter_documents()) == TEXTS
    assert source.identity() != TextSource([tmp_path]).identity()


def test_columns_of_text_of_every_type_are_read(tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    file, texts = tmp_path / "x.parquet", pa.array([*TEXTS, None])
    other = pa.array(["1", "2", "3", "4"])
    for column in (
        texts,
        texts.cast(pa.large_string()),
        texts.cast(pa.string_view()),
        texts.dictionary_encode(),
    ):
        parquet.write_table(pa.table({"text": column}), file)
        assert _documents(file) == TEXTS
    parquet.write_table(pa.Table.from_arrays([texts, other], names=["text", "text"]), file)
    with pytest.raises(UserError, match="2 column 'text'; columns: text, text"):
        _documents(file)
    parquet.write_table(pa.table({"a.b": texts, "a": [{"b": "no"}] * 4}), file)
    assert [text for text in TextSource([file], text_column="a.b").iter_documents() if text] == TEXTS


def test_a_long_line_is_cut_like_a_long_text(tmp_path, monkeypatch):
    monkeypatch.setattr(formats_module, "MAX_DOCUMENT_BYTES", 100)
    monkeypatch.setattr(formats_module, "_BLOCK", 64)
    long = "".join(f"{number} zwölf Boxkämpfer\n" for number in range(99))
    (tmp_path / "x.jsonl").write_text(json.dumps({"text": long}) + '\n{"text": "short"}')
    *pieces, short = _documents(tmp_path)
    assert ("".join(pieces), short) == (long, "short")
    assert max(len(piece.encode()) for piece in pieces) <= 100
    assert list(TextSource([tmp_path]).iter_part("train", 0, 3)) == [*pieces, short][3:]


def test_zst_archives_of_several_frames_are_read_and_truncated_ones_refused(tmp_path):
    pa = pytest.importorskip("pyarrow")
    file = tmp_path / "x.jsonl.zst"
    lines = JSONL.encode().splitlines(keepends=True)
    frames = [pa.compress(b"".join(part), "zstd", asbytes=True) for part in (lines[:1], lines[1:])]
    file.write_bytes(b"".join(frames))
    assert _documents(file) == TEXTS
    file.write_bytes(b"".join(frames)[:-4])
    with pytest.raises(UserError, match=r"x\.jsonl\.zst: damaged or unreadable"):
        _documents(file)


def test_an_archive_is_unpacked_in_small_parts(tmp_path):
    pa = pytest.importorskip("pyarrow")
    file = tmp_path / "x.txt.zst"
    with pa.CompressedOutputStream(str(file), "zstd") as packer:
        for _ in range(24):
            packer.write(b"a word\n" * (1 << 20))
    assert file.stat().st_size < 1 << 15
    with little_memory(140 << 20):
        assert sum(map(len, formats_module.read_documents(file))) == 7 * 24 << 20


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("danalab.data.sources.text._MAX_LINE_BYTES", 1 << 21)
    file = tmp_path / "x.jsonl.gz"
    file.write_bytes(gzip.compress(b'{"text": "' + b"a" * (4 << 20)))
    with pytest.raises(UserError, match="a line of more than 2,097,152 bytes"):
        _documents(file)


def test_rows_of_parquet_are_documents(tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "x.parquet"
    parquet.write_table(pa.table({"text": [*TEXTS, None, ""], "id": range(5)}), file)
    assert _documents(file) == TEXTS
    parquet.write_table(pa.table({"body": TEXTS}), file)
    with pytest.raises(UserError, match="no column 'text'; columns: body"):
        _documents(file)
    file.write_bytes(b"PAR1")
    with pytest.raises(UserError, match="not a readable parquet file"):
        _documents(file)


@pytest.mark.parametrize(("name", "package"), [("x.parquet", "pyarrow"), ("x.txt.zst", "pyarrow")])
def test_a_missing_extra_is_one_line(tmp_path, monkeypatch, name, package):
    (tmp_path / name).write_bytes(b"")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=r"pip install 'danalab\[data\]'"):
        _documents(tmp_path / name)


def test_a_large_file_is_cut_at_line_ends_and_nothing_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(formats_module, "MAX_DOCUMENT_BYTES", 100)
    monkeypatch.setattr(formats_module, "_BLOCK", 64)
    text = "".join(f"{n} Zeile mit Umlaut ä\n" for n in range(50)) + "水" * 200 + "\nend"
    (tmp_path / "x.txt").write_text(text, encoding="utf-8")
    pieces = _documents(tmp_path / "x.txt")
    assert "".join(pieces) == text
    assert max(len(piece.encode()) for piece in pieces) <= 100
    assert all(piece.endswith("\n") for piece in pieces if "Zeile" in piece)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("x.txt", b"abc\n" * 100_000 + b"\xff", r"x\.txt: not UTF-8 at byte 400000 \(0xff\)"),
        ("x.jsonl", b'{"text":"a"}\n\xc3\x28', r"x\.jsonl: not UTF-8 at byte 13"),
        ("x.jsonl", b'{"text":"a"}\n{"text":', r"x\.jsonl, line 2: not valid JSON"),
        (
            "x.jsonl",
            b'{"text":"a","n":' + b"9" * 5000 + b"}",
            r"x\.jsonl, line 1: not valid JSON: .*5000 digits$",
        ),
        ("x.jsonl", b'{"txt":"a"}', r'x\.jsonl, line 1: an object with the field "text"'),
        ("x.jsonl", b"[1]", r"line 1: an object"),
        ("x.jsonl", b'{"text":"\\ud800"}', r"line 1: text has U\+D800"),
        ("x.txt.gz", b"not gzip", r"x\.txt\.gz: damaged or unreadable"),
        ("x.txt.gz", gzip.compress(b"a" * 100, mtime=0)[:-9], r"x\.txt\.gz: damaged or unreadable"),
        ("x.pdf", b"", r"x\.pdf: unknown kind"),
    ],
)
def test_bad_files_are_refused_with_their_place(tmp_path, name, content, reason):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=reason):
        _documents(tmp_path / name)


def test_bad_inputs_are_refused(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        TextSource([tmp_path / "absent"])
    with pytest.raises(UserError, match="in this folder"):
        TextSource([tmp_path])
    (tmp_path / "x.txt").write_text("x")
    with pytest.raises(UserError, match="must not be trained on"):
        TextSource([tmp_path], [tmp_path / "x.txt"])
    with pytest.raises(UserError, match="--input PATH"):
        make_source("text")
    with pytest.raises(UserError, match="takes no --input"):
        make_source("stdlib", [tmp_path])
    with pytest.raises(UserError, match="did you mean 'stdlib'"):
        make_source("stdlb")


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "x.jsonl.zst", "x.parquet", "x.txt"])
def test_reading_goes_on_behind_any_document(tmp_path, name, monkeypatch):
    monkeypatch.setattr(formats_module, "_ROWS", 2)
    monkeypatch.setattr(formats_module, "MAX_DOCUMENT_BYTES", 8)
    texts = [*TEXTS, "", "vier", "fünf\n", "sechs"]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    file = tmp_path / name
    if name.endswith(".gz"):
        lines = gzip.compress(lines)
    elif name.endswith(".zst"):
        lines = pytest.importorskip("pyarrow").compress(lines, "zstd", asbytes=True)
    if name.endswith("parquet"):
        pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pa.table({"text": texts}), file, row_group_size=3)
    else:
        file.write_bytes(lines)
    every = list(formats_module.read_documents(file))
    assert len(every) >= 7
    for skip in range(len(every) + 2):
        assert list(formats_module.read_documents(file, skip=skip)) == every[skip:]


def test_a_link_to_nowhere_and_a_file_that_cannot_be_read_are_named(tmp_path, monkeypatch):
    (tmp_path / "x.txt").symlink_to(tmp_path / "gone.txt")
    with pytest.raises(UserError, match=r"x\.txt: no such file or folder, or a link to nowhere"):
        TextSource([tmp_path / "x.txt"])
    with pytest.raises(FileNotFoundError, match=r"x\.txt"):
        TextSource([tmp_path])
    (tmp_path / "gone.txt").write_text("there")
    source = TextSource([tmp_path / "x.txt"])

    def refuse(path, *_, **__):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("danalab.data.formats.shards.open", refuse, raising=False)
    with pytest.raises(UserError, match=r"x\.txt: cannot be read: Permission denied"):
        list(source.iter_documents())
