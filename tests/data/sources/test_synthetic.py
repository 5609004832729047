"""The synthetic language: its entropy is exact, its documents depend on their number alone, every verb reads it."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danalab.cli.app import main
from danalab.data import open_dataset
from danalab.data.preparation import prepare
from danalab.data.sources import SyntheticSource, synthetic
from danalab.data.sources.synthetic import Language
from danalab.data.tokenizers import WordTokenizer, load_tokenizer
from danalab.errors import UserError

SMALL = Language(words=3, levels=2, answers=2, questions=0.3, document_tokens=5)


def probabilities(language: Language, document: np.ndarray) -> np.ndarray:
    """P(next token) along a document, float64 [tokens + 1, vocabulary + 1]; the last column is its end."""
    size, length = len(language.vocabulary), language.document_tokens - 1
    table = np.zeros((len(document) + 1, size + 1))
    words: list[int] = []
    mark = None
    for position in range(len(document) + 1):
        if position == length:
            table[position, size] = 1
        elif mark is not None:
            history = np.array([words or [0]])
            table[position, language._answer(np.array([mark]), history, np.array([len(words)]))[0]] = 1
        elif position == length - 1:
            table[position, : language.words] = synthetic._power_law(language.words, language.zipf)
        else:
            table[position, : len(language.starts)] = language.starts
        if position < len(document):
            token = int(document[position])
            if mark is not None:
                mark = None
            elif token < language.words:
                words.append(token)
            else:
                mark = token
    return table


def log_probability(language: Language, document: np.ndarray) -> float:
    """log P of a whole document, by its next-token probabilities [nats]."""
    table = probabilities(language, document)
    tokens = np.append(document, len(language.vocabulary))
    with np.errstate(divide="ignore"):
        return float(np.log(table[np.arange(len(tokens)), tokens]).sum())


def test_the_entropy_is_that_of_all_documents_enumerated() -> None:
    documents = itertools.product(range(len(SMALL.vocabulary)), repeat=SMALL.document_tokens - 1)
    logs = [log_probability(SMALL, np.array(document)) for document in documents]
    likely = [value for value in logs if value > -math.inf]
    assert math.fsum(math.exp(value) for value in likely) == pytest.approx(1, abs=1e-12)
    entropy = -math.fsum(value * math.exp(value) for value in likely) / SMALL.document_tokens
    assert SMALL.entropy == pytest.approx(entropy, abs=1e-12)


def share(low: float, high: float) -> st.SearchStrategy[float]:
    """Of what never happens, or happens so often that a sample of documents holds it: its deviation is then known."""
    return st.just(0.0) | st.floats(low, high)


@settings(max_examples=20, deadline=None)
@given(
    words=st.integers(2, 20),
    zipf=st.floats(0, 1),
    levels=st.integers(1, 5),
    answers=st.integers(2, 8),
    questions=share(0.1, 0.5),
    document_tokens=st.integers(2, 12),
    seed=st.integers(0, 2**20),
)
def test_generated_documents_have_that_entropy(**chosen: Any) -> None:
    language, count = Language(**chosen), 128
    rows = language.documents(0, count)
    losses = np.array([-log_probability(language, row) for row in rows]) / language.document_tokens
    assert np.isfinite(losses).all()
    assert abs(losses.mean() - language.entropy) <= 6 * losses.std() / math.sqrt(count) + 1e-9


def test_a_document_depends_on_its_number_alone() -> None:
    language = Language(document_tokens=32)
    together = language.documents(0, 10)
    np.testing.assert_array_equal(language.documents(7, 1)[0], together[7])
    source = SyntheticSource(language)
    np.testing.assert_array_equal(
        list(itertools.islice(source.iter_part("train", 0, skip=3), 4)),
        list(itertools.islice(source.iter_documents(), 3, 7)),
    )
    assert not np.array_equal(Language(document_tokens=32, seed=1).documents(0, 1), together[:1])


def test_an_answer_depends_on_as_many_words_as_its_level_says() -> None:
    language = Language(words=4, levels=2, answers=1000)
    k1, k2 = 4, 5

    def answer(*tokens: int) -> int:
        return int(probabilities(language, np.array(tokens))[-1].argmax())

    assert answer(0, 3, k1) == answer(1, 3, k1) != answer(1, 2, k1)
    assert len({answer(a, b, k2) for a in range(4) for b in range(4)}) > 12


def test_words_follow_zipf() -> None:
    language = Language(words=50, zipf=1.2)
    tokens = language.documents(0, 400)
    counts = np.bincount(tokens[tokens < 50], minlength=50)
    weights = np.arange(1, 51) ** -1.2
    expected = counts.sum() * weights / weights.sum()
    assert ((counts - expected) ** 2 / expected).sum() < 100  # chi-square of 49 degrees of freedom: p = 2e-5


def test_a_prepared_language_opens_with_windows_of_one_document(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    flags = [
        "--language",
        "words=20",
        "document_tokens=16",
        "answers=4",
        "--max-tokens",
        "4000",
    ]
    assert main(["data", "prepare", "synthetic", *flags, "--out", str(tmp_path / "made")]) == 0
    val = open_dataset(tmp_path / "made", "val")
    language = Language(words=20, document_tokens=16, answers=4)
    assert val.eos_id == len(language.vocabulary)
    inputs, _ = val.sequential(16)[0:10]
    for row in inputs.numpy():
        assert row[-1] == val.eos_id
        assert math.isfinite(log_probability(language, row[:-1]))
    capsys.readouterr()
    assert main(["data", "info", str(tmp_path / "made")]) == 0
    assert f"{language.entropy:.6f} nats per token" in capsys.readouterr().out
    assert main(["data", "validate", str(tmp_path / "made")]) == 0


def test_preparing_again_gives_the_same_bytes(tmp_path: Path) -> None:
    source = SyntheticSource(Language(words=20, document_tokens=16))
    prepare(source, out=tmp_path / "whole", max_tokens=3000, shard_tokens=1000, progress=False)
    again = SyntheticSource(Language(words=20, document_tokens=16))
    prepare(again, out=tmp_path / "again", max_tokens=3000, shard_tokens=1000, progress=False)
    files = sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "again").iterdir())
    assert all((tmp_path / "whole" / f).read_bytes() == (tmp_path / "again" / f).read_bytes() for f in files)


def test_the_tokenizer_is_read_back_and_by_transformers(tmp_path: Path) -> None:
    made = WordTokenizer(Language(words=5, levels=1, answers=2).vocabulary)
    made.save(tmp_path)
    read = load_tokenizer(tmp_path)
    assert (read.fingerprint, read.vocab_size, read.specials) == (
        made.fingerprint,
        made.vocab_size,
        made.specials,
    )
    text = "w4 k1 a0 w2 "
    assert read.decode(read.encode(text)) == text
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(text)["input_ids"] == read.encode(text)
    assert theirs.decode(read.encode(text)) == text.strip()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["synthetic", "--language", "words=1"],
            "--language: malformed: words: Input should be greater than",
        ),
        (["synthetic", "--language", "word=10"], "word: Unexpected keyword argument"),
        (["synthetic", "--language", "words=ten"], "words: Input should be a valid integer"),
        (["synthetic", "--language", "zipf=nan"], "zipf: Input should be"),
        (["synthetic", "--language", "questions=1"], "questions: Input should be less than or equal to 0.99"),
        (["stdlib", "--language", "words=10"], "only for danalab data prepare synthetic"),
        (["synthetic", "--input", "x.txt"], "takes no --input"),
    ],
)
def test_bad_settings_are_one_line(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert main(["data", "prepare", *flags, "--out", str(tmp_path / "made")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "content", ["{}", "[]", '{"model": {"vocab": {"a": 1}}}', '{"model": {"vocab": {"a": "b"}}}']
)
def test_a_damaged_list_of_words_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UserError, match=r"tokenizer.json: not the list of a tokenizer 'words'"):
        WordTokenizer.from_file(tmp_path / "tokenizer.json")
