"""Tokenizers lose nothing, count bytes on raw tokens, and never let text produce a special."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danalab.data import open_dataset, prepare
from danalab.data.compression import measure, samples
from danalab.data.tokenizers import (
    CHAT_SPECIALS,
    EOS,
    BpeTokenizer,
    ByteTokenizer,
    Gpt2Tokenizer,
    load_tokenizer,
    requested_size,
)
from danalab.data.tokenizers import gpt2 as gpt2_module
from danalab.data.tokenizers.base import to_printable
from danalab.data.tokenizers.bpe import train_bpe
from danalab.errors import UserError

TEXTS = [text for name, text in samples().items() if name != "python"] * 2
UNICODE = st.text(st.characters(exclude_categories=["Cs"]))


def _invented_gpt2() -> Gpt2Tokenizer:
    """As many tokens as GPT-2 has, each a merge of two earlier ones, but not GPT-2's: its tables are not shipped."""
    merges = [(b"t", b"h"), (b"th", b"e"), (b" ", b"the")]
    pairs = ((bytes([left]), bytes([right])) for left in range(256) for right in range(256))
    merges += [pair for pair in pairs if pair != (b"t", b"h")][: 50256 - 256 - len(merges)]
    tokens = [bytes([b]) for b in range(256)] + [left + right for left, right in merges]
    ranks = {token: id_ for id_, token in enumerate(tokens)}
    return Gpt2Tokenizer(ranks, [[to_printable(part) for part in pair] for pair in merges])


@pytest.fixture(scope="module")
def bpe() -> BpeTokenizer:
    return train_bpe(TEXTS, 400)


@pytest.fixture(scope="module")
def gpt2() -> Gpt2Tokenizer:
    return _invented_gpt2()


@pytest.fixture(scope="module", params=["bytes", "bpe", "gpt2"])
def tokenizer(request, bpe, gpt2):
    return {"bytes": ByteTokenizer(), "bpe": bpe, "gpt2": gpt2}[request.param]


@settings(max_examples=30, deadline=None)
@given(text=UNICODE)
def test_decoding_gives_back_any_text(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


@settings(max_examples=30, deadline=None)
@given(texts=st.lists(UNICODE, max_size=4))
def test_a_batch_is_encoded_like_its_texts(tokenizer, texts):
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]


@settings(max_examples=30, deadline=None)
@given(text=st.lists(st.sampled_from([EOS, *CHAT_SPECIALS, "a", " <|", "|>", "\n"])).map("".join))
def test_spelling_a_special_gives_plain_text(tokenizer, text):
    ids = tokenizer.encode(text)
    assert not set(ids) & set(tokenizer.specials.values())
    assert tokenizer.decode(ids) == text


@settings(max_examples=30, deadline=None)
@given(text=UNICODE)
def test_token_bytes_sum_to_the_bytes_of_the_text(tokenizer, text):
    assert tokenizer.token_bytes()[np.array(tokenizer.encode(text), dtype=np.int64)].sum() == len(
        text.encode()
    )


def test_specials_and_padding_count_no_bytes(tokenizer):
    lengths = tokenizer.token_bytes()
    assert lengths.dtype == np.int64
    assert lengths.shape == (tokenizer.vocab_size,)
    assert tokenizer.vocab_size % 64 == 0
    assert not lengths[[i for i in tokenizer.specials.values() if i < len(lengths)]].any()
    assert not lengths[tokenizer.n_tokens :].any()


def test_saved_and_loaded_it_is_the_same(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.fingerprint == tokenizer.fingerprint
    assert (loaded.name, loaded.n_tokens, loaded.specials) == (
        tokenizer.name,
        tokenizer.n_tokens,
        tokenizer.specials,
    )
    assert loaded.encode_batch(TEXTS) == tokenizer.encode_batch(TEXTS)


def test_the_tokenizers_library_reads_the_saved_file_alike(tokenizer, tmp_path):
    from tokenizers import Tokenizer as Engine

    engine = Engine.from_file(str(tokenizer.save(tmp_path)))
    assert [engine.encode(text).ids for text in TEXTS] == [tokenizer.encode(text) for text in TEXTS]
    assert engine.token_to_id(EOS) == tokenizer.eos_id


def test_half_a_surrogate_pair_is_refused(tokenizer):
    with pytest.raises(UserError, match=r"U\+D800.* character 2"):
        tokenizer.encode("ab\ud800")


def test_unknown_ids_are_refused(tokenizer):
    with pytest.raises(UserError, match="60000"):
        tokenizer.decode([60000])


def test_half_a_character_decodes_to_the_replacement_character():
    tokenizer = ByteTokenizer()
    half = tokenizer.encode("ä")[:1]
    assert tokenizer.decode(half) == "\N{REPLACEMENT CHARACTER}"
    assert tokenizer.decode_bytes(half) == "ä".encode()[:1]


def test_bpe_has_the_size_that_was_asked_and_its_specials_last(bpe):
    assert bpe.n_tokens == 400
    assert sorted(bpe.specials.values()) == list(range(391, 400))
    assert bpe.name == "bpe-400"


def test_training_is_deterministic(bpe):
    again = train_bpe(iter(TEXTS), 400)
    assert again.to_json() == bpe.to_json()


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        (100, "at least 265"),
        (50_000, r"too short for 50,000 tokens, it makes (\d+); take as many \(--tokenizer bpe-\1,"),
    ],
)
def test_impossible_vocabularies_are_refused(size, reason):
    with pytest.raises(UserError, match=reason):
        train_bpe(TEXTS, size)


def test_gpt2_vocabulary_is_padded_and_ends_documents_with_50256(gpt2):
    assert (gpt2.n_tokens, gpt2.vocab_size, gpt2.eos_id) == (50257, 50304, 50256)
    assert sorted(gpt2.specials.values())[1:] == list(range(50257, 50265))


@pytest.mark.parametrize("damaged", [False, True])
def test_missing_and_damaged_gpt2_tables_say_what_to_do(tmp_path, monkeypatch, damaged):
    if damaged:
        for table in gpt2_module.TABLES:
            (tmp_path / gpt2_module.cached_name(table)).write_bytes(b"#version: 0.2\n")

    def offline(address):
        raise ConnectionError(address)

    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("tiktoken.load.read_file", offline)
    with pytest.raises(UserError, match="danalab data fetch-gpt2 --from") as caught:
        Gpt2Tokenizer.from_cache()
    assert "\n" not in str(caught.value)


def test_gpt2_tables_are_installed_under_the_names_of_the_cache(tmp_path, monkeypatch):
    tables = {"vocab.bpe": b"merges", "encoder.json": b"{}"}
    monkeypatch.setattr(gpt2_module, "TABLES", {k: hashlib.sha256(v).hexdigest() for k, v in tables.items()})
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache"))
    for name, content in tables.items():
        (tmp_path / name).write_bytes(content)
    cache = gpt2_module.install_tables(tmp_path)
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == {
        "6d1cbeee0f20b3d9449abfede4726ed8212e3aee": b"merges",
        "6c7ea1a7e38e3a7f062df639a5b80947f075ffe6": b"{}",
    }
    assert gpt2_module.install_tables(cache) == cache  # the cache's own names do as well


def test_wrong_gpt2_tables_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"no vocab\.bpe"):
        gpt2_module.install_tables(tmp_path)
    (tmp_path / "vocab.bpe").write_text("#version: 0.2\n")
    (tmp_path / "encoder.json").write_text("{}")
    with pytest.raises(UserError, match="sha256"):
        gpt2_module.install_tables(tmp_path)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gtp2", "did you mean 'gpt2'"),
        ("bpe-4096", "danalab data train-tokenizer --vocab-size 4096"),
        ("nowhere/x", "no tok"),
    ],
)
def test_unknown_tokenizers_are_refused(name, reason):
    with pytest.raises(UserError, match=reason):
        load_tokenizer(name)


def test_malformed_tokenizer_files_are_refused(tmp_path, bpe):
    file = tmp_path / "tokenizer.json"
    with pytest.raises(UserError, match="no tokenizer at"):
        load_tokenizer(tmp_path)
    file.write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        load_tokenizer(file)
    content = json.loads(bpe.to_json())
    content["added_tokens"] = []
    file.write_text(json.dumps(content))
    with pytest.raises(UserError, match="no special token"):
        load_tokenizer(file)
    content = json.loads(bpe.to_json())
    content["model"]["vocab"]["\u4e2d"] = 390
    file.write_text(json.dumps(content))
    with pytest.raises(UserError, match="byte-level"):
        load_tokenizer(file)


def _edited(bpe, **changes):
    content = json.loads(bpe.to_json())
    for key, change in changes.items():
        content[key] = change(content[key])
    return json.dumps(content)


LOSSY = {
    "lower case": {"normalizer": lambda _: {"type": "Lowercase"}},
    "stripped": {"normalizer": lambda _: {"type": "Strip", "strip_left": True, "strip_right": True}},
    "prefix space": {"pre_tokenizer": lambda rule: {**rule, "add_prefix_space": True}},
    "no byte level": {"pre_tokenizer": lambda _: {"type": "Whitespace"}},
    "no pre-tokenizer": {"pre_tokenizer": lambda _: None},
    "no letters": {"model": lambda m: {**m, "vocab": {t: i for t, i in m["vocab"].items() if t != "A"}}},
    "no vocabulary": {"model": lambda m: {**m, "vocab": {}, "merges": []}},
    "shared ids": {"model": lambda m: {**m, "vocab": {**m["vocab"], "B": m["vocab"]["A"]}}},
    "giant id": {"model": lambda m: {**m, "vocab": {**m["vocab"], "zzzzz": 4_000_000_000}}},
    "bad normalizer": {"normalizer": lambda _: {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    "unknown normalizer": {"normalizer": lambda _: {"type": "Nothing"}},
}


@pytest.mark.parametrize("changes", LOSSY.values(), ids=LOSSY)
def test_lossy_and_damaged_tokenizers_are_refused_in_one_line(tmp_path, bpe, changes):
    (tmp_path / "tokenizer.json").write_text(_edited(bpe, **changes))
    with pytest.raises(UserError, match=r"tokenizer\.json: ") as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_canonical_normalization_prepares_data_and_compatibility_is_refused(tmp_path, bpe, form):
    (tmp_path / "tokenizer.json").write_text(_edited(bpe, normalizer=lambda _: {"type": form}))
    (tmp_path / "in.jsonl").write_text(
        "\n".join(json.dumps({"text": f"{n} e\u0301 \ufb01"}) for n in range(9))
    )
    if "K" in form:
        with pytest.raises(UserError, match=f"the normalizer {form} changes text"):
            load_tokenizer(tmp_path)
    else:
        folder = prepare("text", tmp_path, tmp_path / "out", inputs=[tmp_path / "in.jsonl"])
        text = load_tokenizer(tmp_path).decode(open_dataset(folder).store.read(0, 1000))
        assert {unicodedata.normalize("NFC", each)[2:] for each in text.split(EOS) if each} == {"é ﬁ"}


@pytest.mark.parametrize("name", ["gpt2", "bytes", "characters", "bpe-300"])
def test_a_path_is_a_path_and_a_name_is_a_name(tmp_path, bpe, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bpe.save(name)
    for path in (f"./{name}", Path(name), tmp_path / name):
        assert load_tokenizer(path).fingerprint == bpe.fingerprint
    assert (requested_size(name), requested_size("bpe-280"), requested_size("./bpe-280")) == (
        300 if name == "bpe-300" else 0,
        280,
        0,
    )
    if name in ("bytes", "characters"):
        assert load_tokenizer(name).fingerprint != bpe.fingerprint
    (tmp_path / "in.txt").write_text("abcdefgh " * 99)
    (tmp_path / "val.txt").write_text("abc")
    folder = prepare("text", f"./{name}", name + "-data", inputs=["in.txt"], val_inputs=["val.txt"])
    folder.rename("stdlib")  # the name of a source
    assert open_dataset(Path("stdlib")).tokenizer.fingerprint == bpe.fingerprint


def _with_end(bpe, folder: Path, text: str, **config) -> Path:
    folder.mkdir()
    (folder / "tokenizer.json").write_text(bpe.to_json().replace(EOS, text))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_documents_end_with_the_token_that_is_named(tmp_path, bpe):
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": f"abc {n}"}) + "\n" for n in range(9)))

    def run(folder, out, **settings):
        return prepare("text", folder, tmp_path / out, inputs=[tmp_path / "in.jsonl"], **settings)

    plain = _with_end(bpe, tmp_path / "plain", "</s>")
    with pytest.raises(
        UserError, match=r"no special token <\|endoftext\|>, .* there are: </s>, <\|user_start"
    ):
        run(plain, "a")
    configured = run(_with_end(bpe, tmp_path / "object", "</s>", eos_token={"content": "</s>"}), "configured")
    dataset = open_dataset(configured)
    assert dataset.eos_id == dataset.tokenizer.eos_id == load_tokenizer(configured).specials["</s>"]
    assert dataset.tokenizer.decode(dataset.store.read(0, 10_000)).count("</s>") == 7
    both = _with_end(bpe, tmp_path / "both", EOS, eos_token="<|assistant_end|>")
    assert load_tokenizer(both).eos == EOS  # that of answers ends no document


def test_truncation_and_padding_of_a_saved_tokenizer_are_ignored(tmp_path, bpe):
    truncation = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    (tmp_path / "tokenizer.json").write_text(_edited(bpe, truncation=lambda _: truncation))
    assert load_tokenizer(tmp_path).encode("abcdefgh " * 9) == bpe.encode("abcdefgh " * 9)


def test_a_size_that_is_no_number_is_an_unknown_name():
    for name in ("bpe-²", "bpe-", "bpe-x"):
        assert requested_size(name) == 0
    for name in ("bpe-" + "9" * 5000, "bpe-4000000000", "bpe-3"):
        with pytest.raises(UserError, match="vocab"):
            requested_size(name)


def test_compression_counts_bytes_and_tokens(bpe):
    assert measure(bpe, {"a": "ä" * 10}, ByteTokenizer()) == {"a": (20, len(bpe.encode("ä" * 10)), 20)}


def test_characters_are_the_96_of_plain_text_and_others_are_refused():
    tokenizer = load_tokenizer("characters")
    assert (tokenizer.n_tokens, tokenizer.vocab_size, tokenizer.eos_id) == (105, 128, 96)
    assert tokenizer.encode("\n !z~") == [0, 1, 2, 91, 95]
    text = "".join(tokenizer.decode([id_]) for id_ in range(96))
    assert tokenizer.decode(tokenizer.encode(text)) == text
    for bad, what in (("naïve", "'ï' is not one of the 96 characters"), ("a\tb", r"'\\t' is not one")):
        with pytest.raises(UserError, match=what):
            tokenizer.encode(bad)


def test_saved_characters_are_read_again(tmp_path):
    tokenizer = load_tokenizer("characters")
    tokenizer.save(tmp_path)
    assert load_tokenizer(tmp_path).fingerprint == tokenizer.fingerprint
    (tmp_path / "tokenizer_config.json").write_text('{"danalab_name": 3}')
    with pytest.raises(UserError, match="danalab_name: Input should be a valid string"):
        load_tokenizer(tmp_path)
