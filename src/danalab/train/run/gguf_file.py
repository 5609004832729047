"""A run's model as one GGUF file, for llama.cpp and the programs around it (Ollama, LM Studio).

danalab export RUN --out FOLDER --format gguf     model.gguf, with tokenizer and chat template; a Modelfile for Ollama

    llama                            `llama` there: rotary turns features 2j and 2j + 1, as here; rows stay
    qwen3 without attention gate     `qwen3` there: features j and j + H/2; rows of q and k and their gains are permuted
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from danalab.data.tokenizers.base import CHAT_SPECIALS, EOS
from danalab.data.tokenizers.chat_template import ChatTemplate
from danalab.errors import UserError, import_extra
from danalab.files import write_atomically
from danalab.models.huggingface.common import to_halves
from danalab.models.huggingface.convert import obstacle
from danalab.train.run.exchange import ExchangeResult, new_folder
from danalab.train.run.open import open_run

if TYPE_CHECKING:
    from danalab.data.tokenizers import Tokenizer
    from danalab.models.config import ModelConfig

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
    quantize: Quantization = "f16",
    chat_template: ChatTemplate | None = None,
) -> ExchangeResult:
    """Write the model of a run, with its tokenizer, as `model.gguf`; norms are always float32.

    `quantize`: number format of the matrices; rows that q8_0's blocks of 32 do not divide are float16. `chat_template`:
    of a run that was trained on conversations. UserError: a model or tokenizer that llama.cpp does not have.
    """
    gguf = import_extra("gguf", "gguf", "export --format gguf")
    run, folder = open_run(source), new_folder(out)
    config, tokenizer = run.model_config, run.tokenizer
    if config.arch not in ("llama", "qwen3") or config.sparsity is not None:
        kind = config.arch if config.sparsity is None else f"{config.arch} with experts"
        raise UserError(f"--format gguf: only llama and qwen3 --no-attention-gate can be exported, not {kind}")
    if (reason := obstacle(config)) is not None:
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


def _sizes(config: "ModelConfig") -> dict[str, Any]:
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


def _tensors(config: "ModelConfig", weights: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in weights.items():
        head, _, part = name.removesuffix(".weight").removeprefix("blocks.").partition(".")
        if config.arch == "qwen3" and part in _ROTATED:
            tensor = to_halves(tensor, config.head_dim)
        yield f"blk.{head}.{_LAYER[part]}.weight" if part else f"{_OUTER[head]}.weight", tensor.float()


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
