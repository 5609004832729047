"""Settings of the model, its initial weights and its data. None means automatic. Needs no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Lt

from danalab.train.config.fields import Count, Natural, NonNegative, Section, setting


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Section):
    """Architecture and size."""

    title: ClassVar[str] = "model"

    arch: str = setting("enoki", main=True, aliases=("model",))
    """Architecture: enoki, qwen3, qwen3next, gpt (alias base), llama, moe or resonance."""
    heads: Count | None = setting(None, kind="input", main=True)
    """Number of attention heads; all dimensions follow from it by the architecture's rule."""
    size: str | None = setting(None, kind="input")
    """Size of a resonance model, which has no heads: small, medium, large or xlarge; explicit dimensions win."""
    d_model: Count | None = setting(None, aliases=("model-dim", "n-embd"))
    """Width, with --n-layers and --n-heads, in place of --heads."""
    n_layers: Count | None = setting(None, aliases=("num-layers", "n-layer"))
    """Number of blocks."""
    n_heads: Count | None = setting(None, aliases=("n-head",))
    """Number of attention heads; resonance: of groups that share frequencies, default 8."""
    num_frequencies: Count | None = None
    """resonance: damped oscillators of all groups; default 8 per group."""
    mixer: Literal["oscillators", "none"] | None = None
    """resonance: none removes the oscillators, a control that cannot see earlier tokens; default oscillators."""
    learned_positions: bool | None = None
    """resonance: add a learned vector for each position, 32768 at most; default no (gpt always has them)."""
    conv_width: Natural = 0
    """resonance: causal convolution of each channel over this number of tokens before the oscillators; 4 is usual,
    0 none."""
    head_dim: Count | None = setting(None, aliases=("qkv-dim",))
    """Width of a head; default d_model / n_heads."""
    mlp_dim: Count | None = setting(None, aliases=("mlp-hidden-dim",))
    """Hidden width of the mlp; default 4 d_model (enoki, gpt), 3 d_model (qwen3), 8/3 d_model (llama)."""
    n_kv_heads: Count | None = None
    """Key and value heads, each shared by n_heads / n_kv_heads query heads; default one for each query head."""
    attention_gate: bool | None = setting(None, aliases=("elementwise-attn-output-gate",))
    """Gate attention's output elementwise; default as the architecture (qwen3 does)."""
    tied_head: bool | None = setting(None, aliases=("weight-tying",))
    """One matrix for embedding and head; default as the architecture (gpt has)."""
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Probability that a feature of the embedding, or of what an attention or mlp adds, is 0 in a training step."""
    n_experts: Count | None = setting(None, aliases=("moe-num-experts",))
    """Experts in place of each mlp, of any architecture with attention; default 8 (moe, qwen3next), else none."""
    top_k: Count | None = None
    """Experts that each token is sent to; default 2."""
    expert_dim: Count | None = None
    """Hidden width of an expert; default mlp_dim (qwen3next: a third of it)."""
    n_shared_experts: Natural | None = None
    """Experts that every token also passes; default 0 (qwen3next: 1)."""
    shared_expert_gate: bool | None = None
    """Gate the shared experts' output by sigmoid(w . x); default no (qwen3next: yes)."""
    decoder_sparse_step: Count = 1
    """Interval of layers with experts (those whose number, from 1, it divides); the others have a dense mlp."""
    mlp_only_layers: tuple[Natural, ...] = ()
    """Layers (from 0) that always have a dense mlp: 0 5 11."""
    full_attention_interval: Count | None = None
    """qwen3next: interval of layers with attention, the others have the gated delta rule; 4 as published, default 1."""


@dataclass(frozen=True, kw_only=True)
class StartSettings(Section):
    """The state at step 0."""

    title: ClassVar[str] = "initial weights"

    init: str | None = setting(None, aliases=("init-scheme",))
    """Initial weights: scaled-gpt, karpathy-gpt2 or standard; default scaled-gpt (resonance: karpathy-gpt2)."""
    init_from: Path | None = setting(None)
    """Start from the weights of a run, a checkpoint or a model in Hugging Face format; the step is 0."""
    init_optimizer: bool = False
    """Load the optimizer's moments and step counts of --init-from, too; its settings are this run's."""


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
