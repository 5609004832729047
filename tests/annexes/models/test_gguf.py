"""`danalab export --format gguf`: the file holds the model, its tokenizer and template; llama.cpp computes the same."""

from __future__ import annotations

import itertools
import json
import re
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from danalab.chat.conversations import Conversation
from danalab.chat.formats import format_of, own_template
from danalab.chat.marks import ChatFormat
from danalab.cli.app import main
from danalab.data.tokenizers import BpeTokenizer, ByteTokenizer, Tokenizer, train_bpe
from danalab.models import ModelConfig
from danalab.train.run.exchange import import_folder
from danalab.train.run.open import open_run
from danalab_annexes.models.huggingface.convert import to_huggingface
from decoding import greedy
from models.weights import random_model

SENTENCES = ["The quick brown fox's 12 dogs\n\n  jump (over) the lazy caf\u00e9 \u6771\u4eac, and don't stop. "] * 20
BYTES, BPE = ByteTokenizer(), train_bpe(SENTENCES, 310)
SIZES = (32, 2, 4, 8, 48, 320, 64)
CASES = {
    "llama": (ModelConfig("llama", *SIZES, n_kv_heads=2, rope_theta=5e5, norm_eps=1e-3), BPE),
    "llama-tied": (ModelConfig("llama", *SIZES, tied_head=True), BYTES),
    "qwen3": (ModelConfig("qwen3", *SIZES, attention_gate=False, n_kv_heads=1, rope_theta=1e6), BPE),
    "qwen3-wide-heads": (
        ModelConfig("qwen3", 32, 2, 4, 16, 48, 320, 64, attention_gate=False, n_kv_heads=2, tied_head=True), BYTES,
    ),
}  # fmt: skip
ASKED = Conversation.of({"messages": [
    {"role": "system", "content": "Be brief."}, {"role": "user", "content": "the fox?"},
    {"role": "assistant", "content": "jump"}, {"role": "user", "content": "2 dogs"},
]})  # fmt: skip


def make_run(folder: Path, config: ModelConfig, tokenizer: Tokenizer, *, chat: bool = True) -> Path:
    """A run with random weights, imported."""
    described, weights = to_huggingface(config, random_model(config).state_dict())
    tokenizer.save(folder / "hf")
    (folder / "hf" / "config.json").write_text(json.dumps(described))
    save_file(weights, folder / "hf" / "model.safetensors")
    if chat:
        own_template(tokenizer).save(folder / "hf")
    import_folder(folder / "hf", folder / "run")
    return folder / "run"


def export(run: Path, *flags: str) -> Path:
    out = run.parent / f"gguf{len(list(run.parent.iterdir()))}"
    assert main(["export", str(run), "--out", str(out), "--format", "gguf", *flags]) == 0
    assert sorted(each.name for each in out.iterdir()) == ["Modelfile", "model.gguf"]
    return out / "model.gguf"


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[ModelConfig, Tokenizer, Path]:
    config, tokenizer = CASES[request.param]
    return config, tokenizer, make_run(tmp_path, config, tokenizer)


def read(file: Path) -> tuple[dict[str, Any], dict[str, np.ndarray], Any]:
    """(metadata, tensors as float32, their kinds) by the package's own reader."""
    gguf = pytest.importorskip("gguf")
    reader = gguf.GGUFReader(file)
    facts = {name: field.contents() for name, field in reader.fields.items()}
    tensors = {each.name: gguf.dequantize(each.data, each.tensor_type) for each in reader.tensors}
    return facts, tensors, {each.name: each.tensor_type.name for each in reader.tensors}


@pytest.mark.sample(2)
def test_the_file_has_every_weight_and_setting(case):
    pytest.importorskip("gguf")
    config, tokenizer, run = case
    facts, tensors, kinds = read(export(run, "--quantize", "f32"))
    weights = dict(open_run(run).load_model().model.state_dict())
    if config.arch == "qwen3":  # rows as in transformers, whose rotation it has
        weights = to_huggingface(config, weights)[1]
    expected = sorted(weights.values(), key=lambda tensor: tensor.double().sum().item())
    actual = sorted(tensors.values(), key=lambda array: torch.from_numpy(array.copy()).double().sum().item())
    for mine, theirs in zip(expected, actual, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs)
    assert set(kinds.values()) == {"F32"}
    assert ("output.weight" in tensors) == (not config.tied)
    for key, value in {
        "context_length": config.seq_len, "block_count": 2, "attention.head_count_kv": config.kv_heads,
        "attention.key_length": config.head_dim, "rope.freq_base": config.rope_theta,
        "attention.layer_norm_rms_epsilon": pytest.approx(config.norm_eps),
    }.items():  # fmt: skip
        assert facts[f"{config.arch}.{key}"] == value
    assert facts["tokenizer.ggml.pre"] == "gpt-2"
    assert facts["tokenizer.ggml.eos_token_id"] == facts["tokenizer.ggml.bos_token_id"] == tokenizer.eos_id
    tokens, types = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    assert len(tokens) == config.vocab_size
    assert [tokens[id_] for id_ in tokenizer.specials.values()] == list(tokenizer.specials)
    assert types.count(3) == len(tokenizer.specials)
    assert types.count(5) == config.vocab_size - tokenizer.n_tokens


@pytest.mark.parametrize(("quantize", "kind", "error"), [("f16", "F16", 1e-3), ("q8_0", "Q8_0", 1e-2)])
def test_matrices_are_rounded_and_norms_are_not(tmp_path, quantize, kind, error):
    pytest.importorskip("gguf")
    run = make_run(tmp_path, *CASES["llama"], chat=False)
    _, tensors, kinds = read(export(run, "--quantize", quantize))
    weights = open_run(run).load_model().model.state_dict()
    np.testing.assert_allclose(weights["blocks.1.mlp.up.weight"], tensors["blk.1.ffn_up.weight"], atol=error)
    assert kinds["blk.1.ffn_up.weight"] == kind
    assert kinds["blk.1.ffn_down.weight"] == "F16"  # rows of 48, not whole blocks of 32
    np.testing.assert_array_equal(weights["final_norm.weight"], tensors["output_norm.weight"])


def test_the_template_needs_no_extension_of_jinja_and_ollama_gets_its_own(tmp_path):
    pytest.importorskip("gguf")
    config, tokenizer = CASES["llama"]
    file = export(make_run(tmp_path, config, tokenizer))
    facts, *_ = read(file)
    messages = ASKED.as_dict()["messages"]
    text = jinja2.Environment().from_string(facts["tokenizer.chat_template"]).render(
        messages=messages, add_generation_prompt=True
    )  # fmt: skip
    shown = ChatFormat(tokenizer).render_prompt(ASKED)
    assert text == tokenizer.decode(shown)
    assert facts["tokenizer.ggml.eot_token_id"] == tokenizer.specials["<|assistant_end|>"]
    modelfile = file.with_name("Modelfile").read_text()
    (template,) = re.findall(r'TEMPLATE """(.*?)"""', modelfile, re.DOTALL)
    system = "{{ if $system }}{{ $system }}\n\n" + '{{ $system = "" }}{{ end }}'
    assert template == (
        "<|endoftext|>{{ $system := .System }}{{ range .Messages }}"
        '{{ if eq .Role "user" }}<|user_start|>' + system + "{{ .Content }}<|user_end|>"
        '{{ else if eq .Role "assistant" }}<|assistant_start|>{{ .Content }}<|assistant_end|>{{ end }}{{ end }}'
        "<|assistant_start|>"
    )
    assert 'PARAMETER stop "<|assistant_end|>"' in modelfile


def test_what_llama_cpp_does_not_have_is_refused_in_one_line(tmp_path, capsys, monkeypatch):
    def refused(run: Path, *flags: str) -> str:
        assert main(["export", str(run), "--out", str(tmp_path / "out"), *flags]) == 2
        assert not (tmp_path / "out").exists()
        (line,) = [each for each in capsys.readouterr().err.splitlines() if "error" in each or "danalab" in each]
        return line

    config, tokenizer = CASES["llama"]
    run = make_run(tmp_path / "llama", config, tokenizer, chat=False)
    assert "only with --format gguf" in refused(run, "--quantize", "f16")
    assert "--quantize f32, f16 or q8_0" in refused(run, "--format", "gguf", "--dtype", "float16")
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "gguf", None)
        assert "pip install 'danalab[gguf]'" in refused(run, "--format", "gguf")
    pytest.importorskip("gguf")
    for name, other, message in (
        ("gpt", ModelConfig("gpt", *SIZES), "only llama and qwen3 --no-attention-gate can be exported, not gpt"),
        ("gated", ModelConfig("qwen3", *SIZES), "attention_gate = False only"),
        ("sparse", replace(config, n_experts=4, top_k=2), "not llama with experts"),
    ):
        assert message in refused(make_run(tmp_path / name, other, tokenizer, chat=False), "--format", "gguf")
    content = json.loads(BPE.to_json())
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": True}, content["pre_tokenizer"]]}  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    strange = BpeTokenizer.from_file(tmp_path / "tokenizer.json")
    run = make_run(tmp_path / "strange", config, strange, chat=False)
    assert "no name for the rules of the tokenizer" in refused(run, "--format", "gguf")


@pytest.mark.slow
def test_llama_cpp_reads_the_same_text_and_writes_the_same_tokens(case):
    xllamacpp = pytest.importorskip("xllamacpp", reason="a build of llama.cpp: pip install xllamacpp")
    _, tokenizer, run = case
    file, model = export(run, "--quantize", "f32"), open_run(run).load_model().model
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.warmup, params.use_jinja = str(file), 64, 1, False, True
    params.n_gpu_layers, params.fit_params, params.cpuparams.n_threads = 0, False, 1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(params)

    def ask(path: str, **content: Any) -> dict[str, Any]:
        request = urllib.request.Request(server.listening_address + path, json.dumps(content).encode())
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    text = "The  fox's 123 caf\u00e9 \u6771\u4eac\n\n  don't \u00c0\u00c0 stop\t"
    assert ask("/tokenize", content=text, add_special=True)["tokens"] == tokenizer.encode(text)
    ends, compared = {tokenizer.eos_id, tokenizer.specials["<|assistant_end|>"]}, 0
    probabilities = 0
    for start in ("the fox's 1", "jump", " over 2", "\n\n", "caf\u00e9", "a"):
        prompt = tokenizer.encode(start)
        settings = {"temperature": 0, "samplers": ["temperature"], "n_predict": 30}
        done = ask("/completion", prompt=prompt, return_tokens=True, n_probs=5, **settings)
        written = list(itertools.takewhile(lambda id_: id_ not in ends, greedy(model, prompt, 30)))
        assert [id_ for id_ in done["tokens"] if id_ not in ends] == written
        compared += len(written)
        first = (done["completion_probabilities"] or [{"id": None}])[0]
        if not written or first["id"] != written[0]:  # a token that is part of a character has no entry
            continue
        with torch.no_grad():
            log_probs = model(torch.tensor([prompt])).log_softmax(-1)[0, -1]
        for each in first["top_logprobs"]:
            assert each["logprob"] == pytest.approx(log_probs[each["id"]].item(), abs=1e-4)
            probabilities += 1
    assert compared >= 40, "enough before the models end"
    assert probabilities
    shown = ask("/apply-template", messages=ASKED.as_dict()["messages"])["prompt"]
    assert ask("/tokenize", content=shown, parse_special=True)["tokens"] == ChatFormat(tokenizer).render_prompt(ASKED)


@pytest.mark.parametrize("quantize", ["f32", "f16", "q8_0"])
def test_a_file_that_was_written_is_read_again(case, quantize):
    gguf = pytest.importorskip("gguf")
    config, _, run = case
    file = export(run, "--quantize", quantize)
    again = run.parent / "again"
    assert main(["import", str(file), "--out", str(again)]) == 0
    mine, theirs = open_run(run), open_run(again)
    assert theirs.model_config == replace(mine.model_config, n_kv_heads=config.kv_heads, tied_head=config.tied)
    weights = theirs.load_model().model.state_dict()
    for name, tensor in mine.load_model().model.state_dict().items():
        if quantize == "f32":
            assert torch.equal(tensor, weights[name]), name
        else:
            torch.testing.assert_close(tensor, weights[name], atol=2e-2 if quantize == "q8_0" else 1e-3, rtol=0)
    text = SENTENCES[0] + "<|assistant_end|>"
    assert theirs.tokenizer.encode(text) == mine.tokenizer.encode(text)
    assert theirs.tokenizer.specials == mine.tokenizer.specials
    assert isinstance(format_of(again, theirs.tokenizer), ChatFormat)
    twice = export(again, "--quantize", quantize)
    before, after = (gguf.GGUFReader(each).tensors for each in (file, twice))
    for one, other in zip(before, after, strict=True):
        assert one.name == other.name
        np.testing.assert_array_equal(one.data, other.data)


@pytest.mark.parametrize("damage", ["cut", "text", "missing", "gpt2"])
def test_a_file_that_cannot_be_imported_is_refused_in_one_line(tmp_path, capsys, damage):
    gguf = pytest.importorskip("gguf")
    file = export(make_run(tmp_path, *CASES["llama"]))
    content = file.read_bytes()
    match damage:
        case "cut":
            file.write_bytes(content[: len(content) // 2])
        case "text":
            file.write_text("GGUF of nothing")
        case "missing":
            file.unlink()
        case "gpt2":
            writer = gguf.GGUFWriter(file, "gpt2")
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.close()
    assert main(["import", str(file), "--out", str(tmp_path / "new")]) == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert "model.gguf" in told[-1] or "gpt2" in told[-1]
    assert not any("Traceback" in line for line in told)
    assert not (tmp_path / "new").exists()
