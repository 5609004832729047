"""Runs go out in Hugging Face format and come back, by the command line and the real transformers library."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from danalab.cli.app import main
from danalab.train.run.exchange import open_text_generator
from danalab.train.run.open import open_run
from text_data import prepare_texts

transformers = pytest.importorskip("transformers")

ARCHITECTURES = {
    "gpt": ["--arch", "gpt"],
    "llama": ["--arch", "llama", "--n-kv-heads", "2"],
    "qwen3": ["--arch", "qwen3", "--no-attention-gate"],
    "gated": ["--arch", "qwen3", "--n-kv-heads", "1"],
    "qwen3next": ["--arch", "qwen3next", "--full-attention-interval", "2", "--n-kv-heads", "2"],
    "enoki": [],
}
TINY = ["--d-model", "32", "--n-layers", "2", "--n-heads", "4", "--seq-len", "32", "--batch-size", "4",
        "--eval-batches", "1", "--lr", "0.01"]  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sentence = "the quick brown fox jumps over the lazy dog. "
    return prepare_texts(tmp_path_factory.mktemp("data"), sentence * 200, "a lazy fox. " * 60)


@pytest.fixture(scope="module")
def runs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name, flags in {**ARCHITECTURES, "grouped-gpt": ["--arch", "gpt", "--n-kv-heads", "2"]}.items():
        where = ["--data", str(data), "--run-dir", str(folder / name)]
        assert main(["train", *flags, *TINY, "--iterations", "3", *where]) == 0
    return folder


@pytest.mark.sample(1)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_transformers_loads_an_export_and_danalab_takes_it_back(
    capsys, monkeypatch, tmp_path, runs, data, arch
):
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    trust = {"trust_remote_code": True} if arch in ("gated", "enoki") else {}
    out, back = tmp_path / "hf", tmp_path / "back"
    assert main(["export", str(runs / arch), "--out", str(out)]) == 0
    model, info = transformers.AutoModelForCausalLM.from_pretrained(out, output_loading_info=True, **trust)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(out, **trust)
    eos = tokenizer.eos_token_id
    assert (
        tokenizer.pad_token_id
        == eos
        == model.generation_config.pad_token_id
        == model.generation_config.eos_token_id
    )
    assert (out / "generation_config.json").is_file()
    ids = tokenizer("the quick brown", return_tensors="pt").input_ids
    ours = open_run(runs / arch)
    assert ids[0].tolist() == ours.tokenizer.encode("the quick brown")
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, ours.load_model().model(ids), rtol=1e-5, atol=1e-5)

    assert main(["import", str(out), "--out", str(back)]) == 0
    again, first = open_run(back).load_model().model, ours.load_model().model
    torch.testing.assert_close(again.state_dict(), first.state_dict(), rtol=0, atol=0)
    capsys.readouterr()
    texts = []
    for source in (["--run", str(runs / arch)], ["--run", str(back)], ["--from", str(out)]):
        assert main(["generate", *source, "--prompt", "the", "--max-tokens", "8", "--json"]) == 0
        texts.append(json.loads(capsys.readouterr().out)["samples"][0]["text"])
    assert texts[0] == texts[1] == texts[2]
    engine = ["--stop", texts[0][3:5], "--weight-dtype", "float32", "--samples", "2"]
    assert main(["generate", str(back), "--prompt", "the", "--max-tokens", "8", *engine, "--json"]) == 0
    cut = json.loads(capsys.readouterr().out)["samples"]
    assert cut[0]["text"] == texts[0][: texts[0].index(texts[0][3:5])]
    assert len(cut) == 2
    assert main(["eval", "--run", str(back)]) == 2
    assert "give --data" in capsys.readouterr().err
    losses = []
    for more in ([str(runs / arch)], [str(back), "--data", str(data)]):
        assert main(["eval", "--run", *more, "--json"]) == 0
        losses.append(json.loads(capsys.readouterr().out)["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_what_cannot_be_sampled_from_is_refused_in_one_line(capsys, tmp_path, runs):
    out = tmp_path / "hf"
    assert main(["export", str(runs / "gpt"), "--out", str(out)]) == 0
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "t5"}')
    (other / "model.safetensors").write_bytes((out / "model.safetensors").read_bytes())
    silent = tmp_path / "silent"
    silent.mkdir()
    for name in ("config.json", "model.safetensors"):
        (silent / name).write_bytes((out / name).read_bytes())
    capsys.readouterr()
    for words, message in (
        ([], "give either --run (a run folder) or --from"),
        (["--run", str(runs / "gpt"), "--from", str(out)], "give either --run (a run folder) or --from"),
        (["--from", str(out), "--step", "3"], "--step 3: --from has one model"),
        (["--from", str(tmp_path / "nowhere")], "not a model in Hugging Face format (no config.json)"),
        (["--from", str(runs / "gpt")], "a run folder, not a model in Hugging Face format"),
        (["--run", str(out)], "not a run folder but a model in Hugging Face format"),
        (["--from", str(other)], "model_type 't5' cannot be imported"),
        (["--from", str(silent)], "--tokenizer names the one that the model was trained with"),
    ):
        assert main(["generate", *words]) == 2
        said = capsys.readouterr().err.strip()
        assert message in said
        assert len(said.splitlines()) == 1
    assert main(["generate", "--from", str(silent), "--tokenizer", str(out), "--max-tokens", "3"]) == 0


def test_an_imported_model_is_trained_on(capsys, tmp_path, runs, data):
    assert main(["export", str(runs / "llama"), "--out", str(tmp_path / "hf")]) == 0
    assert main(["import", str(tmp_path / "hf"), "--out", str(tmp_path / "back")]) == 0
    where = [
        "--data",
        str(data),
        "--run-dir",
        str(tmp_path / "more"),
        "--resume-from",
        str(tmp_path / "back"),
    ]
    steps = ["--iterations", "1", "--warmup-steps", "0", "--div-factor", "1", "--weight-decay", "0"]
    assert main(["train", *ARCHITECTURES["llama"], *TINY, *steps, "--lr", "1e-9", *where]) == 0
    trained = open_run(tmp_path / "more").load_model().model.state_dict()
    torch.testing.assert_close(
        trained, open_run(runs / "llama").load_model().model.state_dict(), rtol=1e-6, atol=1e-6
    )


def test_an_imported_model_keeps_the_function_that_no_flag_can_ask_for_while_it_is_trained_on(tmp_path, data):
    shape = {"vocab_size": 320, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8,
             "num_key_value_heads": 2, "intermediate_size": 256, "max_position_embeddings": 16}  # fmt: skip
    rope = {"rope_type": "default", "rope_theta": 10.0}
    torch.manual_seed(0)
    theirs = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**shape, rms_norm_eps=0.01, rope_parameters=rope)
    )
    theirs.eval().save_pretrained(tmp_path / "hf")
    assert main(["import", str(tmp_path / "hf"), "--out", str(tmp_path / "back")]) == 0
    flags = ["--arch", "llama", "--d-model", "16", "--n-layers", "1", "--n-heads", "2", "--head-dim", "8",
             "--mlp-dim", "256", "--vocab-size", "320", "--seq-len", "16", "--batch-size", "2", "--lr", "1e-30",
             "--weight-decay", "0", "--dtype", "float32", "--data", str(data),
             "--run-dir", str(tmp_path / "more"), "--iterations", "2", "--warmup-steps", "0"]  # fmt: skip
    ids = torch.randint(0, 320, (2, 16))
    first = ["--resume-from", str(tmp_path / "back"), "--iterations-to-run", "1"]
    for words in (first, []):  # from the import, then from its own checkpoint
        assert main(["train", *flags, *words]) == 0
        with torch.no_grad():
            ours = open_run(tmp_path / "more").load_model().model(ids)
            torch.testing.assert_close(ours, theirs(ids).logits, rtol=1e-5, atol=1e-5)


QWEN3_06B = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
    "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
    "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
    "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True,
    "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": True, "use_sliding_window": False,
    "vocab_size": 151936,
}  # fmt: skip
"""config.json as published: 16 heads of 128 in a model of width 1024."""


@pytest.mark.slow
def test_the_published_shape_of_a_small_qwen3_is_imported_and_goes_back(tmp_path):
    torch.manual_seed(0)
    few = {"num_hidden_layers": 1, "vocab_size": 300, "max_position_embeddings": 64, "max_window_layers": 1}
    config = transformers.Qwen3Config(**{**QWEN3_06B, **few})
    theirs = transformers.Qwen3ForCausalLM(config).eval()
    with torch.no_grad():  # not theirs.bfloat16(), which would round the rotary frequencies, too
        for parameter in theirs.parameters():
            parameter.copy_(parameter.bfloat16())
    theirs.save_pretrained(tmp_path / "hf")
    described = {**QWEN3_06B, **few, "bos_token_id": 0, "eos_token_id": 0}
    (tmp_path / "hf" / "config.json").write_text(json.dumps(described))

    assert main(["import", str(tmp_path / "hf"), "--out", str(tmp_path / "run")]) == 0
    ids = torch.randint(0, 300, (2, 16))
    with torch.no_grad():
        ours = open_run(tmp_path / "run").load_model().model(ids)
        torch.testing.assert_close(ours, theirs(ids).logits, rtol=1e-5, atol=1e-5)
    assert (
        main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "again"), "--dtype", "bfloat16"]) == 0
    )
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "again", dtype="auto")
    torch.testing.assert_close(dict(again.state_dict()), dict(theirs.bfloat16().state_dict()), rtol=0, atol=0)


def test_a_checkpoint_in_sixteen_bits_has_a_card_with_the_runs_facts(tmp_path, runs):
    assert main(["export", str(runs / "gpt"), "--out", str(tmp_path / "hf"), "--dtype", "bfloat16"]) == 0
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype="auto")
    assert model.dtype == torch.bfloat16
    card = (tmp_path / "hf" / "README.md").read_text()
    for fact in ("library_name: transformers", "adana", "3 of 3", "GPT2LMHeadModel", "validation loss"):
        assert fact in card


@pytest.mark.parametrize("arch", ["gpt", "llama", "enoki"])
def test_the_block_of_a_card_runs_as_printed_without_a_question(arch, tmp_path, runs, monkeypatch, capsys):
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    assert main(["export", str(runs / arch), "--out", str(tmp_path / "hf")]) == 0
    card = (tmp_path / "hf" / "README.md").read_text()
    assert ("Without it a program asks before it runs it: type y." in card) == (arch == "enoki")
    capsys.readouterr()
    monkeypatch.chdir(tmp_path / "hf")  # where the card lies
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question was asked"))
    exec(card.split("```python\n")[1].split("```")[0], {})
    said = capsys.readouterr()
    assert said.out.startswith("The")
    assert "instantiate a model of type" not in said.err


def tiny_llama(seed: int, **more):
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(**{"vocab_size": 64, "max_position_embeddings": 32, **sizes, **more})
    return transformers.LlamaForCausalLM(config).eval()


def assert_imported(folder, theirs):
    assert main(["import", str(folder), "--out", str(folder.with_name("imported"))]) == 0
    ours = open_run(folder.with_name("imported")).load_model().model.eval()
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-5)


def test_files_of_an_older_save_that_the_index_does_not_name_are_left_out(tmp_path):
    new, old = tiny_llama(0), tiny_llama(1)
    new.save_pretrained(tmp_path / "model", max_shard_size="30KB")
    old.save_pretrained(tmp_path / "old", max_shard_size="20KB")
    for file in (tmp_path / "old").glob("model-*.safetensors"):
        shutil.copy(file, tmp_path / "model" / file.name)
    assert_imported(tmp_path / "model", new)


def test_a_tied_weight_that_is_stored_under_its_other_name_is_found(tmp_path):
    from safetensors.torch import save_model

    model = tiny_llama(0, tie_word_embeddings=True)
    model.save_pretrained(tmp_path / "model")
    save_model(model, str(tmp_path / "model" / "model.safetensors"))
    assert_imported(tmp_path / "model", model)


@pytest.mark.parametrize("begins", ["by rule", "by setting", "not"])
def test_the_tokens_of_a_tokenizer_and_what_it_puts_before_a_text_are_kept(tmp_path, begins):
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    engine = Tokenizer(
        models.BPE({c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, [])
    )
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    engine.add_special_tokens(["<s>", "</s>", "<pad>"])
    if begins == "by rule":
        engine.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])  # pyright: ignore
    tiny_llama(0, vocab_size=320).save_pretrained(tmp_path / "model")
    engine.save(str(tmp_path / "model" / "tokenizer.json"))
    settings: dict[str, object] = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "</s>",
    }
    settings["add_bos_token"] = begins == "by setting"
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(settings))
    assert main(["import", str(tmp_path / "model"), "--out", str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
    before = [] if begins == "not" else [256]
    text = [*before, *open_run(tmp_path / "run").tokenizer.encode("a")]
    assert open_text_generator(tmp_path / "run").encode("a") == text
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert [config[f"{name}_token_id"] for name in ("bos", "eos", "pad")] == [256, 257, 258]
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert read("a").input_ids == text
    assert (read.bos_token, read.eos_token, read.pad_token) == ("<s>", "</s>", "<pad>")


def test_variants_of_the_weights_are_named(capsys, tmp_path):
    tiny_llama(0).save_pretrained(tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    shutil.copy(weights, weights.with_name("model.fp16.safetensors"))
    weights.rename(weights.with_name("model.fp32.safetensors"))
    assert main(["import", str(tmp_path / "model"), "--out", str(tmp_path / "run")]) == 2
    assert "model.fp16.safetensors, model.fp32.safetensors" in capsys.readouterr().err


def test_what_cannot_be_exchanged_is_said_in_one_line(capsys, tmp_path, runs):
    def refuses(*words: str) -> str:
        assert main(list(words)) == 2
        return capsys.readouterr().err

    capsys.readouterr()
    out = str(tmp_path / "out")
    assert "n_kv_heads = 4 only" in refuses("export", str(runs / "grouped-gpt"), "--out", out)
    assert "exists; give the name" in refuses("export", str(runs / "gpt"), "--out", str(runs))
    assert "must be 'float32'" in refuses("export", str(runs / "gpt"), "--out", out, "--dtype", "int8")
    assert "no config.json" in refuses("import", str(tmp_path), "--out", out)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "config.json").write_text('{"model_type": "bloom"}')
    assert "no .safetensors file" in refuses("import", str(tmp_path / "bad"), "--out", out)
    (tmp_path / "bad" / "model.safetensors").write_bytes(b"nonsense")
    assert "cannot be read as safetensors" in refuses("import", str(tmp_path / "bad"), "--out", out)
    assert not Path(out).exists()


@pytest.mark.parametrize("arch", ["gpt", "llama", "enoki"])
@pytest.mark.parametrize("size", [10**7, 10**12])
def test_an_import_of_impossible_sizes_is_refused_at_once(capsys, tmp_path, runs, arch, size):
    out = tmp_path / "hf"
    assert main(["export", str(runs / arch), "--out", str(out)]) == 0
    described = json.loads((out / "config.json").read_text())
    layers = {"n_layer", "num_hidden_layers", "n_layers"} & described.keys()
    positions = {"n_positions", "max_position_embeddings", "seq_len"} & described.keys()
    for number, names in enumerate((layers, positions)):
        if size == 10**7 and names is positions:
            continue  # 10 million positions are possible
        changed = described | dict.fromkeys(names, size)
        if "danalab_model" in described:
            changed["danalab_model"] = described["danalab_model"] | dict.fromkeys(names, size)
        (out / "config.json").write_text(json.dumps(changed))
        assert main(["import", str(out), "--out", str(tmp_path / f"back{number}")]) == 2
        said = capsys.readouterr().err.strip()
        assert re.search(
            r"layers, but the files have|equal to 2000|machine for a model|GiB of memory|has shape",
            said.splitlines()[-1],
        )
