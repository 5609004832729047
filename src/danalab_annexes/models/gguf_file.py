"""A run's model as one GGUF file, for llama.cpp and the programs around it (Ollama, LM Studio).

danalab export RUN --out FOLDER --format gguf     model.gguf, with tokenizer and chat template; a Modelfile for Ollama
danalab import FOLDER/model.gguf --out RUN        a run folder; weights of fewer bits are dequantized

    llama                            `llama` there: rotary turns features 2j and 2j + 1, as here; rows stay
    qwen3 without attention gate     `qwen3` there: features j and j + H/2; rows of q and k and their gains are permuted
"""

import json
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from danalab.data.tokenizers.base import CHAT_SPECIALS, EOS
from danalab.data.tokenizers.chat_template import ChatTemplate
from danalab.errors import UserError, first_line, import_extra
from danalab.files import write_atomically
from danalab.models.canonical import WEIGHT_FORMATS
from danalab.models.config import ModelConfig
from danalab.models.decoder import build_model
from danalab.train.run.exchange import (
    FORMATS,
    TOOL,
    ExchangeResult,
    ModelFormat,
    model_of,
    new_folder,
    write_imported,
)
from danalab.train.run.open import open_run
from danalab_annexes.models.huggingface.common import to_halves, to_pairs

if TYPE_CHECKING:
    from danalab.data.tokenizers import Tokenizer

log = logging.getLogger(__name__)

Quantization = Literal["f32", "f16", "q8_0"]
MODEL, MODELFILE = "model.gguf", "Modelfile"
_OUTER = {"token_embedding": "token_embd", "final_norm": "output_norm", "output_head": "output"}
_LAYER = {
    "attention_norm": "attn_norm", "attention.q": "attn_q", "attention.k": "attn_k", "attention.v": "attn_v",
    "attention.q_norm": "attn_q_norm", "attention.k_norm": "attn_k_norm", "attention.out": "attn_output",
    "mlp_norm": "ffn_norm", "mlp.gate": "ffn_gate", "mlp.up": "ffn_up", "mlp.down": "ffn_down",
}  # fmt: skip
_ROTATED = ("attention.q", "attention.k", "attention.q_norm", "attention.k_norm")
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The rule of Qwen2 and Qwen3 for splitting text into words."""
_NEVER = "À À"  # the byte 0xC0 twice, which no UTF-8 has: llama.cpp requires a merge, and a table of bytes has none


def export_gguf(
    source: str | Path,
    out: str | Path,
    *,
    step: int | None = None,
    dtype: str = "float32",
    quantize: Quantization | None = None,
    chat_template: ChatTemplate | None = None,
) -> ExchangeResult:
    """Write the model of a run, with its tokenizer, as `model.gguf`; norms are always float32.

    `quantize`: number format of the matrices, default f16; rows that q8_0's blocks of 32 do not divide are float16.
    `chat_template`: of a run that was trained on conversations. UserError: a model or tokenizer that llama.cpp does not
    have.
    """
    if dtype != "float32":
        raise UserError(f"--dtype {dtype}: a GGUF file has --quantize f32, f16 or q8_0")
    gguf, quantize = import_extra("gguf", "export --format gguf"), quantize or "f16"
    run, folder = open_run(source), new_folder(out)
    config, tokenizer = run.model_config, run.tokenizer
    if config.arch not in ("llama", "qwen3") or config.sparsity is not None:
        kind = config.arch if config.sparsity is None else f"{config.arch} with experts"
        raise UserError(f"--format gguf: only llama and qwen3 --no-attention-gate can be exported, not {kind}")
    if (reason := WEIGHT_FORMATS.get("huggingface").obstacle(config)) is not None:
        raise UserError(reason)
    template = chat_template or ChatTemplate.read(run.folder.tokenizer_folder)
    vocabulary = _vocabulary(tokenizer, config.vocab_size)
    loaded = run.load_model(step)
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{MODEL}.part"
    writer = gguf.GGUFWriter(part, config.arch)
    writer.add_name(run.path.resolve().name)
    formats = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "q8_0": "MOSTLY_Q8_0"}
    writer.add_file_type(gguf.LlamaFileType[formats[quantize]])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for add, value in (_sizes(config) | vocabulary).items():
        getattr(writer, f"add_{add}")(value)
    if chat_template is not None:
        writer.add_description(TOOL)
    if template is not None:  # the tag of transformers that marks what an assistant learns is unknown elsewhere
        writer.add_chat_template(re.sub(r"\{%(-?)\s*(?:end)?generation\s*(-?)%\}", r"{#\1 \2#}", template.text))
        for end in set(template.end_tokens) - {tokenizer.eos_id}:
            writer.add_eot_token_id(end)
    for name, tensor in _tensors(config, loaded.model.state_dict()):
        kind = gguf.GGMLQuantizationType[quantize.upper()] if tensor.ndim > 1 else gguf.GGMLQuantizationType.F32
        if quantize == "q8_0" and tensor.ndim > 1 and tensor.shape[-1] % 32:
            kind = gguf.GGMLQuantizationType.F16
        writer.add_tensor(name, gguf.quantize(tensor.contiguous().numpy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.replace(folder / MODEL)
    write_atomically(folder / MODELFILE, _modelfile(template))
    return ExchangeResult(folder, config.arch, loaded.model.num_parameters(), loaded.step, tokenizer.name)


def _sizes(config: ModelConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "context_length": config.seq_len,
        "embedding_length": config.d_model,
        "block_count": config.n_layers,
        "feed_forward_length": config.mlp_dim,
        "head_count": config.n_heads,
        "head_count_kv": config.kv_heads,
        "key_length": config.head_dim,
        "value_length": config.head_dim,
        "layer_norm_rms_eps": config.norm_eps,
        "rope_freq_base": config.rope_theta,
        "rope_dimension_count": config.head_dim,
    }


def _vocabulary(tokenizer: "Tokenizer", vocab_size: int) -> dict[str, Any]:
    """The tokenizer's metadata by the writer's names; UserError: a BPE, or a rule for words, that llama.cpp lacks."""
    content = json.loads(tokenizer.to_json())
    model, rule = content["model"], _splitting_rule(content["pre_tokenizer"])
    if model["type"] != "BPE" or rule is None or (content["normalizer"] is not None and rule != "qwen2"):
        raise UserError(
            f"--format gguf: llama.cpp has no name for the rules of the tokenizer {tokenizer.name}; bytes, characters, "
            "gpt2, those that danalab trains, and Qwen's can be exported"
        )
    # normal: 1, control: 3, defined by the user: 4, unused: 5
    tokens, kinds = [f"[PAD{id_}]" for id_ in range(vocab_size)], [5] * vocab_size
    for text, id_ in model["vocab"].items():
        tokens[id_], kinds[id_] = text, 1
    for added in content["added_tokens"]:
        if added["id"] < vocab_size:
            tokens[added["id"]], kinds[added["id"]] = added["content"], 3 if added["special"] else 4
    merges = [each if isinstance(each, str) else " ".join(each) for each in model["merges"]]
    return {
        "tokenizer_model": "gpt2",
        "tokenizer_pre": rule,
        "token_list": tokens,
        "token_types": kinds,
        "token_merges": merges or [_NEVER],
        "bos_token_id": tokenizer.eos_id,
        "eos_token_id": tokenizer.eos_id,
        "add_bos_token": False,
    }


def _splitting_rule(rule: dict[str, Any]) -> str | None:
    """The name of a rule for splitting text into words in llama.cpp; None where it has none."""
    if rule["type"] == "ByteLevel" and rule.get("use_regex", True):
        return "gpt-2"
    parts = rule.get("pretokenizers", ())
    patterns = [part["pattern"].get("Regex") for part in parts if part["type"] == "Split"]
    return "qwen2" if patterns == [_QWEN2] and len(parts) == 2 and parts[1]["type"] == "ByteLevel" else None


def _tensors(config: ModelConfig, weights: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in weights.items():
        if config.arch == "qwen3" and _part(name)[1] in _ROTATED:
            tensor = to_halves(tensor, config.head_dim)
        yield _stored_name(name), tensor.float()


def _part(name: str) -> tuple[str, str]:
    """(block, or the name of a tensor outside of blocks; name within the block)."""
    head, _, part = name.removesuffix(".weight").removeprefix("blocks.").partition(".")
    return head, part


def _stored_name(name: str) -> str:
    """llama.cpp's name of one of our weights."""
    head, part = _part(name)
    return f"blk.{head}.{_LAYER[part]}.weight" if part else f"{_OUTER[head]}.weight"


def import_gguf(source: str | Path, out: str | Path) -> ExchangeResult:
    """Make a run folder of a GGUF file of llama or qwen3, with its byte-level BPE and its chat template.

    UserError: no such file, another architecture, or a tensor that is missing or unknown.
    """
    gguf = import_extra("gguf", "import of a GGUF file")
    path, folder = Path(source), new_folder(out)
    path = path / MODEL if path.is_dir() else path
    try:
        reader = gguf.GGUFReader(path)
        facts = {name: entry.contents() for name, entry in reader.fields.items()}
        tensors = {each.name: each for each in reader.tensors}
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from error
    except Exception as error:  # the reader checks nothing
        raise UserError(f"{path}: cannot be read as GGUF: {first_line(error)}") from error
    try:
        config = _config(facts, tied="output.weight" not in tensors)
        weights = {}
        for name, expected in build_model(config, device="meta").state_dict().items():
            stored = tensors.pop(_stored_name(name))
            values = torch.from_numpy(gguf.dequantize(stored.data, stored.tensor_type).copy())
            if config.arch == "qwen3" and _part(name)[1] in _ROTATED:
                values = to_pairs(values, config.head_dim)
            if values.shape != expected.shape:
                shapes = f"{tuple(values.shape)}; it must be {tuple(expected.shape)}"
                raise UserError(f"{path}: {stored.name} has the shape {shapes}")
            weights[name] = values
    except KeyError as error:
        raise UserError(f"{path}: {error.args[0]} is missing") from None
    except (TypeError, ValueError, NotImplementedError) as error:
        raise UserError(f"{path}: malformed: {first_line(error)}") from error
    if tensors:
        raise UserError(f"{path}: {min(tensors)} is a tensor that {config.arch} does not have")
    tokenizer, template = None, None
    try:
        tokenizer = _tokenizer(facts, path)
    except (UserError, KeyError) as error:
        log.warning("the run has no tokenizer and cannot generate text: %s", error)
    if tokenizer is not None and "tokenizer.chat_template" in facts:
        ends = (facts.get(f"tokenizer.ggml.{name}_token_id") for name in ("eot", "eos"))
        named = {"bos_token": EOS, "eos_token": EOS}
        template = ChatTemplate(
            facts["tokenizer.chat_template"], named, tuple(each for each in ends if each is not None)
        )
    name = facts.get("general.name")
    origin = {"path": str(path), "name": name if isinstance(name, str) else path.name}
    return write_imported(folder, model_of(config, weights), tokenizer, template, origin)


def _config(facts: Mapping[str, Any], *, tied: bool) -> ModelConfig:
    """The configuration by a file's metadata. KeyError: a size is missing; UserError: it does not fit."""
    arch = facts["general.architecture"]
    if arch not in ("llama", "qwen3"):
        raise UserError(f"a GGUF file of {arch}: only llama and qwen3 can be imported")
    if any(name.startswith(f"{arch}.rope.scaling") for name in facts):
        raise UserError("the GGUF file scales its rotary embedding, which danalab does not do")
    own = {name.removeprefix(f"{arch}."): value for name, value in facts.items()}
    width, heads = own["embedding_length"], own["attention.head_count"]
    head_dim = own.get("attention.key_length", width // heads)
    if own.get("attention.value_length", head_dim) != head_dim or own.get("rope.dimension_count", head_dim) != head_dim:
        raise UserError("the GGUF file has heads whose keys, values and rotary embedding differ in size")
    return ModelConfig(
        arch, width, own["block_count"], heads, head_dim, own["feed_forward_length"],
        own.get("vocab_size", len(facts["tokenizer.ggml.tokens"])), own["context_length"],
        norm_eps=float(f"{own['attention.layer_norm_rms_epsilon']:.7g}"),  # it is stored as float32
        rope_theta=own.get("rope.freq_base", 10_000.0),
        n_kv_heads=own.get("attention.head_count_kv", heads), attention_gate=False, tied_head=tied,
    )  # fmt: skip


def _tokenizer(facts: Mapping[str, Any], path: Path) -> "Tokenizer":
    """The tokenizer of a file's metadata. KeyError, UserError: it has none, or one of another kind."""
    from tokenizers import Tokenizer as Engine

    from danalab.data.tokenizers import BpeTokenizer

    kind, rule = facts["tokenizer.ggml.model"], facts.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2" or rule not in ("gpt-2", "qwen2"):
        raise UserError(f"{path}: a tokenizer of the kind {kind}, {rule}; byte-level BPE of gpt-2 or qwen2 can be read")
    bytes_: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    split = {"type": "Split", "pattern": {"Regex": _QWEN2}, "behavior": "Isolated", "invert": False}
    qwen = {"type": "Sequence", "pretokenizers": [split, {**bytes_, "use_regex": False}]}
    tokens = list(zip(facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"], strict=True))
    added: dict[str, Any] = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    content = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [{"id": id_, "content": text, **added, "special": kind == 3}
                         for id_, (text, kind) in enumerate(tokens) if kind in (3, 4)],
        "pre_tokenizer": qwen if rule == "qwen2" else {**bytes_, "use_regex": True},
        "decoder": {**bytes_, "use_regex": True},
        "model": {
            "type": "BPE", "vocab": {text: id_ for id_, (text, kind) in enumerate(tokens) if kind == 1},
            "merges": [each for each in facts["tokenizer.ggml.merges"] if each != _NEVER],
        },
    }  # fmt: skip
    try:
        return BpeTokenizer(Engine.from_str(json.dumps(content)), origin=str(path))
    except (UserError, MemoryError):
        raise
    except Exception as error:
        raise UserError(f"{path}: its tokenizer cannot be used: {first_line(error)}") from error


def _modelfile(template: ChatTemplate | None) -> str:
    """What `ollama create NAME -f Modelfile` reads; it knows the templates of published models, but not ours."""
    lines = [f"FROM ./{MODEL}"]
    user, user_end, assistant, assistant_end = CHAT_SPECIALS[:4]
    if template is None:
        lines.append('TEMPLATE "{{ .Prompt }}"')
    elif assistant in template.text:
        lines += [
            f'TEMPLATE """{EOS}{{{{ $system := .System }}}}{{{{ range .Messages }}}}{{{{ if eq .Role "user" }}}}{user}'
            "{{ if $system }}{{ $system }}\n",
            '{{ $system = "" }}{{ end }}{{ .Content }}' + user_end + '{{ else if eq .Role "assistant" }}' + assistant
            + "{{ .Content }}" + assistant_end + "{{ end }}{{ end }}" + assistant + '"""',
            f'PARAMETER stop "{assistant_end}"',
        ]  # fmt: skip
    return "\n".join([*lines, f'PARAMETER stop "{EOS}"']) + "\n"


FORMATS.add(
    "gguf",
    ModelFormat(
        export_gguf,
        import_gguf,
        lambda path: path.suffix == ".gguf" or (path / MODEL).is_file(),
        lambda done: f"llama-cli -m {done.folder}/model.gguf; ollama create NAME -f {done.folder}/Modelfile",
    ),
)
