"""Byte-level byte-pair encodings, trained and run by the `tokenizers` library; words are split by GPT-2's rule.

Ids: 256 bytes, then merges in the order in which they were learned, then `<|endoftext|>` and the chat marks.
"""

import json
import logging
import re
import unicodedata
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from danalab.data.tokenizers.base import EOS, SPECIALS, Tokenizer, from_printable, reject_surrogates
from danalab.errors import UserError, first_line
from danalab.files import read_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Engine

_MAX_ID = 1 << 24
_LONGEST_WORD = 1000
_LONG_WORD = re.compile(rf"\S{{{_LONGEST_WORD}}}|\s{{{_LONGEST_WORD}}}")
_log = logging.getLogger(__name__)
_NEVER_IN_UTF8 = {0xC0, 0xC1, *range(0xF5, 0x100)}
_PROBE = "Iß ÀÉ naïve\u2014東京 😀\x00\t\n  two  spaces \r\n MIXED Case's 0123456789 " + EOS + " "


class BpeTokenizer(Tokenizer):
    """A byte-level BPE of the `tokenizers` library."""

    def __init__(
        self,
        engine: "Engine",
        name: str | None = None,
        origin: str = "tokenizer",
        eos: Sequence[str] = (EOS,),
        bos: str | None = None,
    ):
        """Wrap a `tokenizers.Tokenizer`; `origin` identifies it in messages, the first of `eos` ends documents.

        `bos`: a special token that is put before a text, where the tokenizer's rules put none.
        """
        # Otherwise the library encodes the text of a special in a document as its id.
        engine.encode_special_tokens = True
        engine.no_truncation()
        engine.no_padding()
        self._engine = engine
        vocabulary = engine.get_vocab(with_added_tokens=True)
        added = {token.content: id_ for id_, token in engine.get_added_tokens_decoder().items()}
        ends = [text for text in eos if text in added]
        if not ends:
            known = ", ".join(list(added)[:8]) or "none"
            raise UserError(
                f"{origin}: the tokenizer has no special token {' or '.join(eos)}, which separates documents; name the "
                f"one that does as eos_token in tokenizer_config.json beside it; there are: {known}"
            )
        self.eos, self.specials = ends[0], added
        self.n_tokens = max(vocabulary.values()) + 1
        if self.n_tokens > _MAX_ID:
            raise UserError(f"{origin}: a token id is {self.n_tokens - 1}; it must be below {_MAX_ID:,}")
        self.name = name or f"bpe-{self.n_tokens}"
        table = [b""] * self.n_tokens
        for token in (token for token in vocabulary if token not in added):
            try:
                table[vocabulary[token]] = from_printable(token)
            except KeyError as error:
                what = f"token {token!r} has the character {error.args[0]!r}"
                raise UserError(f"{origin}: {what}; only byte-level encodings are supported") from None
        self._table, self._origin = table, origin
        if len(set(vocabulary.values())) < len(vocabulary):
            raise UserError(f"{origin}: several tokens have the same id")
        missing = set(range(256)) - _NEVER_IN_UTF8 - {token[0] for token in table if len(token) == 1}
        if missing:
            raise UserError(
                f"{origin}: no token for the byte 0x{min(missing):02x}, so it cannot encode every text"
            )
        decoded = unicodedata.normalize("NFC", self.decode(self.encode(_PROBE)))
        if decoded != _PROBE:
            at = next(i for i in range(len(_PROBE) + 1) if _PROBE[: i + 1] != decoded[: i + 1])
            raise UserError(
                f"{origin}: the tokenizer changes text: {_PROBE[at : at + 8]!r} becomes {decoded[at : at + 8]!r}; "
                "remove its normalizer, and use the pre-tokenizer ByteLevel without add_prefix_space"
            )
        bare, whole = (engine.encode("a", add_special_tokens=special).ids for special in (False, True))
        self.prefix = tuple(whole[: whole.index(bare[0])])  # what the post-processor puts before a text
        if bos in added and not self.prefix:
            from tokenizers.processors import TemplateProcessing

            engine.post_processor = TemplateProcessing(single=[bos, "$A"], special_tokens=[(bos, added[bos])])  # pyright: ignore
            self.prefix = (added[bos],)

    @classmethod
    def from_file(
        cls, file: str | Path, name: str | None = None, eos: Sequence[str] = (EOS,), bos: str | None = None
    ) -> "BpeTokenizer":
        """Read a `tokenizer.json`; the first of `eos` that it has ends documents. `bos`: see the constructor."""
        from tokenizers import Tokenizer as Engine

        content = read_json(file)
        normalizer = json.dumps(content.get("normalizer")) if isinstance(content, dict) else ""
        kinds = set(re.findall(r'"type": "(\w+)"', normalizer)) - {"Sequence", "NFC", "NFD"}
        if kinds:  # the library panics at some normalizers, and others change text
            raise UserError(
                f"{file}: the normalizer {min(kinds)} changes text; only lossless tokenizers are supported"
            )
        try:
            return cls(Engine.from_file(str(file)), name, str(file), eos, bos)
        except (UserError, MemoryError, KeyboardInterrupt, SystemExit):
            raise
        except (
            BaseException
        ) as error:  # bare Exception for most faults, PanicException (not an Exception) for some
            raise UserError(f"{file}: not a usable tokenizer.json: {first_line(error)}") from error

    def _token_table(self) -> list[bytes]:
        return self._table

    def _rules(self) -> dict[str, Any]:
        content = json.loads(self.to_json())
        return {key: content.get(key) for key in ("normalizer", "pre_tokenizer")}

    def encode_array(self, texts: Sequence[str]) -> list[np.ndarray]:
        try:
            encodings = self._engine.encode_batch_fast(list(texts), add_special_tokens=False)
        except TypeError:
            for text in texts:
                reject_surrogates(text)
            raise
        # array() reads a list of ints three times as fast as numpy, which then wraps it without a copy.
        return [np.frombuffer(array("I", encoding.ids), dtype=np.uint32) for encoding in encodings]

    def to_json(self) -> str:
        return self._engine.to_str(pretty=False)


def trained_size(name: str) -> int:
    """N of the name `bpe-N`; 0 for other texts."""
    number = name.removeprefix("bpe-")
    if number == name or not number.isascii() or not number.isdigit():
        return 0
    return _checked_size(int(number[:12]))  # an int of thousands of digits is an error


def eos_of_size(vocab_size: int) -> int:
    """Id of `<|endoftext|>`, the first of the specials at the end, in an encoding made by `train_bpe`."""
    return vocab_size - len(SPECIALS)


def _checked_size(vocab_size: int) -> int:
    least = 256 + len(SPECIALS)
    if vocab_size > _MAX_ID:
        raise UserError(f"--vocab-size {vocab_size}: at most {_MAX_ID:,} are possible")
    if vocab_size < least:
        raise UserError(
            f"a vocabulary of {vocab_size} tokens: it must have at least {least} (256 bytes, {len(SPECIALS)} specials)"
        )
    return vocab_size


def _short_words(texts: Iterable[str]) -> Iterator[str]:
    """The texts, cut inside of very long words such as base64 or DNA: training takes a time quadratic in a word."""
    warned = False
    for text in texts:
        start = 0
        for match in _LONG_WORD.finditer(text):
            if not warned:
                word = text[match.start() : match.start() + 20]
                _log.warning(
                    "words of more than %s characters (%r...) are cut for training", _LONGEST_WORD, word
                )
                warned = True
            yield text[start : match.end()]
            start = match.end()
        yield text[start:]


def train_bpe(texts: Iterable[str], vocab_size: int, name: str | None = None) -> BpeTokenizer:
    """Train a byte-level BPE of exactly `vocab_size` ids, including specials; deterministic."""
    from tokenizers import Tokenizer as Engine
    from tokenizers import decoders, models, pre_tokenizers, trainers

    _checked_size(vocab_size)
    engine = Engine(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)  # pyright: ignore
    engine.decoder = decoders.ByteLevel()  # pyright: ignore
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    engine.train_from_iterator(_short_words(texts), trainer)
    made = engine.get_vocab_size() + len(SPECIALS)
    if made != vocab_size:
        raise UserError(
            f"the text is too short for {vocab_size:,} tokens, it makes {made}; "
            f"take as many (--tokenizer bpe-{made}, --vocab-size {made}), or --tokenizer bytes"
        )
    engine.add_special_tokens(list(SPECIALS))
    return BpeTokenizer(engine, name)
