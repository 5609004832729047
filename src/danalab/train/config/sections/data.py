"""Settings of the data: source, vocabulary, context, and how tokens become sequences. None means automatic."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from danalab.train.config.fields import Count, Natural, NonNegative, Section, setting


@dataclass(frozen=True, kw_only=True)
class SequenceSettings(Section):
    """Vocabulary and context."""

    title: ClassVar[str] = "data"

    vocab_size: Count | None = None
    """Vocabulary of the model [tokens]; default the data's, padded."""
    seq_len: Count | None = setting(None, main=True, aliases=("max-seq-len", "sequence-length"))
    """Context length [tokens]; default 2048, or the length of the sequences of pre-tokenised arrays."""
    context_len: Count | None = None
    """Context that the model can read [tokens], where it is longer than --seq-len; default --seq-len."""
    seq_len_ramp: str | None = None
    """Shorter contexts at first: LENGTH:STEP,...; cuts the same tokens into pieces, which divide --seq-len."""


@dataclass(frozen=True, kw_only=True)
class DataSettings(SequenceSettings):
    """Source of the tokens."""

    title: ClassVar[str] = "data"

    data: str = setting("stdlib", kind="data", main=True, aliases=("data-path", "dataset"))
    """Data folder, or the name of a source, looked up in $DATASETS_DIR or ./datasets (default: stdlib); a:0.7,b:0.3
    mixes."""
    tokenizer: str | None = setting(None, kind="data")
    """Tokenizer, where --data is the name of a source; default the source's."""
    packing: Literal["windows", "documents"] = "windows"
    """Rows of tokens: windows of the stream, or whole documents, best fit, without padding."""
    document_mask: bool = False
    """Attention is limited to the token's own document, where positions restart (needs the end-of-text id)."""
    array_cache_gib: NonNegative = setting(4.0, kind="execution")
    """Memory for .pt and .npz arrays; the least recently used is dropped first [GiB]. .npy needs none."""
    data_seed: Natural = 1337
    """Seed of the order of the data."""
