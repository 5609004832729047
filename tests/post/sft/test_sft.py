"""Mid-training and fine-tuning: what they take from the base run, what they refuse, and how they continue."""

import json
import math
import signal
from dataclasses import replace

import pytest
from tokenizers import Tokenizer as Engine

from danalab.chat.marks import ChatFormat
from danalab.chat.messages import Conversation
from danalab.cli.app import main
from danalab.data import prepare
from danalab.data.tokenizers import BpeTokenizer, ByteTokenizer, train_bpe
from danalab.errors import UserError
from danalab.files import read_json
from danalab.post.dataset import tokenize
from danalab.post.settings import SftConfig, SftFlags
from danalab.post.sft import configure, prepare_start
from danalab.scaling.learning_rate import law_rate
from danalab.serve.chat_model import open_chat_model
from danalab.train import train
from danalab.train.config.train_config import TrainConfig
from danalab.train.run.exchange import export_run
from danalab.train.run.folder import RunFolder
from danalab.train.run.open import open_run
from danalab.train.run.resume import read_meta
from danalab.train.trainer import run_training
from e2e.disturbed import everything, rows, train_in_child
from e2e.test_resume_ranks import hit
from text_data import prepare_texts


def test_fine_tuning_lowers_the_loss_of_answers_and_leaves_a_run_that_generates(tuned):
    outcome = run_training(tuned(epochs=4.0))
    run = open_run(outcome.folder)
    metrics = run.metrics()
    assert outcome.summary["val/loss"] < 0.7 * metrics[0]["train/loss"]
    assert run.config["stage"] == "sft"
    assert run.tokenizer.name == "bytes"
    assert run.model_config.seq_len == 64


def test_model_optimizer_and_rate_are_those_of_the_base_run(tuned, base):
    config = tuned()
    assert (config.arch, config.d_model, config.opt, config.kappa) == ("qwen3", 32, "adana", 0.8)
    assert config.lr == pytest.approx(0.8 * 4e-3)
    assert (config.weight_decay, config.scheduler, config.fract_decay, config.epochs) == (
        0.0,
        "wsd",
        0.5,
        1.0,
    )
    assert tuned(lr=1e-2).lr == 1e-2
    assert tuned(kappa=0.7).kappa == 0.7
    other = tuned(opt="adamw", lr_fraction=0.5)
    assert (other.opt, other.lr, other.kappa) == ("adamw", None, 0.85)
    params = open_run(base).config["plan"]["non_emb_params"]
    outcome = run_training(tuned(opt="adamw", lr_fraction=0.5, iterations=2, log_interval=1))
    planned = open_run(outcome.folder).config["plan"]
    law = law_rate("qwen3", "adamw", params, 0.85, 4 * planned["seq_len"])[0]
    assert planned["lr"] == pytest.approx(0.5 * law)


@pytest.mark.slow
def test_mid_training_learns_every_token_and_mixes_text_in(mid, text):
    alone, mixed = mid(epochs=2.0), mid(replay=str(text), run_dir=mid().run_dir.with_name("mixed"))
    assert run_training(alone).summary["val/tokens"] > 2 * 150 * 0.05 * 6  # questions, too
    outcome = run_training(mixed)
    assert outcome.status == "finished"
    record = open_run(outcome.folder).config
    assert record["stage"] == "mid"
    assert record["dataset"]["path"].endswith(":0.3")
    ratio = outcome.summary["iterations"] / (run_training(alone).summary["iterations"] / 2)
    assert ratio == pytest.approx(
        1 / 0.7, rel=0.35
    )  # a pass over the conversations, with the text beside them


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "seq_len", [16, 64, pytest.param(512, marks=pytest.mark.slow), pytest.param(2048, marks=pytest.mark.slow)]
)
def test_no_length_of_rows_gives_nan(tmp_path, text, seq_len):
    """Long conversations beside short ones, down to rows in which few fit: a known failure elsewhere."""
    base = train(
        TrainConfig(
            data=str(text), d_model=32, n_layers=1, n_heads=1, seq_len=16, context_len=seq_len,
            batch_size=1, iterations=2, run_dir=tmp_path / "base", eval_batches=1,
        )
    )  # fmt: skip
    file = tmp_path / "chats.jsonl"
    sizes = [1, 1, 2, 3, 5, 400, 3000] * 6
    line = '{"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "%s"}]}\n'
    file.write_text("".join(line % ("a" * size) for size in sizes))
    flags = SftFlags(run=base, data=(str(file),), seq_len=seq_len, iterations=6, log_interval=1)
    outcome = run_training(configure(flags, SftConfig))
    losses = [row["train/loss"] for row in open_run(outcome.folder).metrics()]
    assert len(losses) == 6
    assert all(math.isfinite(loss) and loss > 0 for loss in losses)
    assert math.isfinite(outcome.summary["val/loss"])


@pytest.mark.slow  # resume of a stage is that of a run, and reinforcement learning tries it in the fast suite
@pytest.mark.parametrize("stage", ["sft", "mid"])
def test_a_killed_stage_continues_bitwise(stage, tuned, mid, tmp_path, text):
    make = tuned if stage == "sft" else mid
    given = {"epochs": 2.0} | ({"replay": str(text)} if stage == "mid" else {})
    assert train_in_child(make(**given))
    settings = make(**given, run_dir=tmp_path / "killed")
    assert [train_in_child(settings, before=lambda at=at: hit(signal.SIGKILL, at)) for at in (4, 7, 10_000)] == [
        False, False, True,
    ]  # fmt: skip
    found, expected = RunFolder(tmp_path / "killed"), RunFolder(tmp_path / stage)
    assert rows(found) == rows(expected)
    last = expected.store.steps()[-1]
    ours, theirs = everything(found, last), everything(expected, last)
    assert [name for name in theirs if not ours[name].equal(theirs[name])] == []


@pytest.mark.slow
def test_two_ranks_see_the_rows_of_one(tuned, tmp_path):
    """Two processes of --nproc, stopped and continued by one: the same losses as one process from start to end."""
    whole = run_training(tuned(epochs=2.0)).folder
    settings = tuned(epochs=2.0, run_dir=tmp_path / "parts", nproc=2, device="cpu", iterations_to_run=5)
    assert run_training(settings).exit_code == 0
    assert run_training(tuned(epochs=2.0, run_dir=tmp_path / "parts", device="cpu")).status == "finished"
    found, expected = open_run(tmp_path / "parts").metrics(), open_run(whole).metrics()
    assert [row["step"] for row in found] == [row["step"] for row in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours["train/loss"] == pytest.approx(theirs["train/loss"], rel=1e-4)


@pytest.mark.parametrize(
    "opt", ["muon", *(pytest.param(opt, marks=pytest.mark.slow) for opt in ("adamw", "dana-star-mk4"))]
)
def test_other_optimizers_train_it(tuned, opt):
    assert run_training(tuned(opt=opt, iterations=3)).status == "finished"


@pytest.mark.sample(1)
@pytest.mark.parametrize(("size", "grows"), [(280, False), (324, True)])
def test_a_base_run_without_special_tokens_is_extended(size, grows, tmp_path, chats, caplog):
    text = " ".join(f"number {i} has the square {i * i}." for i in range(400))
    content = json.loads(train_bpe([text], size).to_json())
    content["added_tokens"] = content["added_tokens"][:1]
    bare = BpeTokenizer(Engine.from_str(json.dumps(content)), "bare").save(tmp_path / "tokenizer")
    (tmp_path / "text.txt").write_text(text)
    (tmp_path / "val.txt").write_text(text[:2000])
    inputs = {"inputs": [tmp_path / "text.txt"], "val_inputs": [tmp_path / "val.txt"]}
    data = prepare("text", str(bare), tmp_path / "bare", **inputs, progress=False)
    shape = {"d_model": 32, "n_layers": 1, "n_heads": 1, "seq_len": 64, "batch_size": 4, "iterations": 3}
    base = train(TrainConfig(data=str(data), **shape, run_dir=tmp_path / "base"))
    with caplog.at_level("INFO"):
        flags = SftFlags(run=base, data=(str(chats),), iterations=2)
        outcome = run_training(configure(flags, SftConfig))
    assert outcome.folder == tmp_path / "base-sft"
    assert f"8 special tokens are added, ids {size - 8} to {size - 1}" in caplog.text
    assert ("the model has 384 token ids instead of 320" in caplog.text) == grows
    run = open_run(outcome.folder)
    assert run.model_config.vocab_size == (384 if grows else 320)
    assert "<|user_start|>" in run.tokenizer.specials
    assert run_training(configure(flags, SftConfig)).status == "finished"  # the same command again


@pytest.fixture
def bare_base(tmp_path):
    """A base run of 2 steps whose model has no rows for the special tokens, and its configuration."""
    text = " ".join(f"number {i} has the square {i * i}." for i in range(400))
    content = json.loads(train_bpe([text], 324).to_json())
    content["added_tokens"] = content["added_tokens"][:1]
    bare = BpeTokenizer(Engine.from_str(json.dumps(content)), "bare").save(tmp_path / "tokenizer")
    prepare_texts(tmp_path, text, text[:2000])
    inputs = {"inputs": [tmp_path / "train.txt"], "val_inputs": [tmp_path / "val.txt"]}
    data = prepare("text", str(bare), tmp_path / "bare", **inputs, progress=False)
    shape = {"d_model": 32, "n_layers": 1, "n_heads": 1, "seq_len": 64, "batch_size": 4, "iterations": 2}
    config = TrainConfig(data=str(data), **shape, run_dir=tmp_path / "base")
    train(config)
    return config


def test_a_stage_starts_from_the_newest_weights_until_it_has_its_own(bare_base, chats, tmp_path, monkeypatch):
    """Printing the configuration writes nothing, and a copy of older weights is replaced before the first step."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    flags = SftFlags(run=bare_base.run_dir, data=(str(chats),), iterations=4, ckpt_interval=2)
    words = ["sft", str(bare_base.run_dir), "--data", str(chats), "--print-config"]
    before = sorted(tmp_path.rglob("*"))
    assert main(words) == 0
    assert sorted(tmp_path.rglob("*")) == before
    stage = RunFolder(tmp_path / "base-sft")
    config = configure(flags, SftConfig)
    with stage.locked():
        prepare_start(config)
        first = read_json(stage.path / "start.json")
        train(replace(bare_base, extend_to=4))
        prepare_start(config)
        second = read_json(stage.path / "start.json")
        assert (first["checkpoint"], second["checkpoint"]) == ("step-00000002", "step-00000004")
    base, copy = (
        open_run(bare_base.run_dir).load_model(4).model,
        read_meta(stage.path / "base/checkpoints/step-00000000"),
    )
    assert copy["model"]["vocab_size"] == 384
    found = everything(RunFolder(stage.path / "base"), 0)
    for name, value in base.state_dict().items():
        assert found[f"model.{name}"][: len(value)].equal(value) if value.ndim else True
    train(replace(config, iterations_to_run=2))
    train(replace(bare_base, extend_to=6))
    train(config)
    assert read_json(stage.path / "start.json") == second  # it goes on from its own checkpoint


TASK_WORDS = {
    "settings after the file": "jsonl:path=FILE,reward=exact",
    "settings before the file": "jsonl:reward=exact,path=FILE",
    "the file alone": "FILE",
    "the file with settings": "FILE:reward=exact",
}


@pytest.mark.parametrize("word", TASK_WORDS.values(), ids=TASK_WORDS)
def test_files_of_problems_are_tasks_in_any_spelling(word, tmp_path):
    file = tmp_path / "problems.jsonl"
    file.write_text('{"question": "6 * 7?", "answer": "42", "reward": "number", "solution": "6 * 7 = 42"}\n')
    chat = ChatFormat(ByteTokenizer())
    (found,) = tokenize([word.replace("FILE", str(file))], chat)
    assert found.ids.tolist() == chat.render(Conversation.ask("6 * 7?", "6 * 7 = 42")).ids


def test_the_path_of_a_task_s_data_is_no_file_of_conversations(tmp_path):
    file = tmp_path / "train.jsonl"
    file.write_text(json.dumps({"question": "1 + 1?", "answer": "It is <<1+1=2>>2\n#### 2"}) + "\n")
    assert len(tokenize([f"gsm8k:path={file}"], ChatFormat(ByteTokenizer()))) == 1


BAD = {
    "no such run": (["--run", "absent", "--data", "CHATS"], "absent: not a run folder (no such folder)"),
    "no data": (["--run", "BASE"], "no conversations: give --data FILE.jsonl"),
    "no such file": (["--run", "BASE", "--data", "absent.jsonl"], "absent.jsonl: No such file"),
    "no such task": (["--run", "BASE", "--data", "arithmetik"], "unknown task 'arithmetik' (did you mean"),
    "too long": (["--run", "BASE", "--data", "CHATS", "--seq-len", "65"], "--seq-len 65: the context of"),
    "too short": (["--run", "BASE", "--data", "CHATS", "--seq-len", "4"], "no whole turn with an answer"),
    "a model flag": (["--run", "BASE", "--data", "CHATS", "--d-model", "64"], "unknown flag --d-model"),
    "no run": (["--data", "CHATS"], "RUN is needed"),
    "a bad share": (
        ["--run", "BASE", "--data", "CHATS", "--val-share", "1"],
        "--val-share 1: must be less than 1",
    ),
    "a bad batch": (["--run", "BASE", "--data", "CHATS", "--global-batch", "4096"], "less than one step"),
    "malformed": (["--run", "BASE", "--data", "BAD"], "line 1: 'messages.0.content' must be a text"),
    "a single one": (["--run", "BASE", "--data", "ONE"], "one conversation cannot be split for validation"),
}


@pytest.mark.parametrize(("words", "reason"), BAD.values(), ids=BAD)
def test_bad_input_is_one_line_and_writes_no_run(words, reason, base, chats, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.jsonl").write_text('{"messages": [{"role": "user", "content": 7}]}\n')
    (tmp_path / "one.jsonl").write_text(chats.read_text().splitlines()[0] + "\n")
    files = {"BASE": base, "CHATS": chats, "BAD": "bad.jsonl", "ONE": "one.jsonl"}
    given = [str(files.get(word, word)) for word in words]
    assert main(["sft", *given, "--run-dir", "out"]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("danalab: error: ")
    assert reason in error
    assert not (tmp_path / "out" / "config.json").exists()


def test_a_tokenizer_of_another_data_set_is_refused(mid, tmp_path):
    prepare_texts(tmp_path, "some text. " * 300, "some text. " * 60)
    inputs = {"inputs": [tmp_path / "train.txt"], "val_inputs": [tmp_path / "val.txt"]}
    other = prepare("text", "characters", tmp_path / "other", **inputs, progress=False)
    with pytest.raises(UserError, match="its tokens are of another tokenizer"):
        mid(replay=str(other))


def test_the_folder_of_another_stage_is_refused(tuned, mid, tmp_path):
    train(tuned(iterations=1))
    with pytest.raises(UserError, match="is the folder of a run of sft, not of mid"):
        train(mid(iterations=1, run_dir=tmp_path / "sft"))


def test_an_imported_model_is_fine_tuned_with_the_law_s_rate(base, chats, tmp_path):
    from danalab.train.run.exchange import import_folder

    export_run(base, tmp_path / "export")
    import_folder(tmp_path / "export", tmp_path / "imported")
    flags = SftFlags(run=tmp_path / "imported", data=(str(chats),), iterations=2)
    config = configure(flags, SftConfig)
    assert (config.opt, config.lr, config.lr_multiplier) == ("adana", None, 0.8)
    assert run_training(config).status == "finished"


@pytest.mark.slow
def test_an_exported_fine_tuned_run_has_its_chat_template(tuned, base, tmp_path):
    transformers = pytest.importorskip("transformers")
    run = train(tuned(iterations=1))
    assert main(["export", str(run), "--out", str(tmp_path / "export")]) == 0
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "export")
    conversation = Conversation.ask("1+1?", "2")
    found = theirs.apply_chat_template(conversation.as_dict()["messages"], return_dict=True)["input_ids"]
    assert found == ChatFormat(open_run(run).tokenizer).render(conversation).ids
    ends = json.loads((tmp_path / "export" / "generation_config.json").read_text())["eos_token_id"]
    assert theirs.convert_ids_to_tokens(ends) == ["<|endoftext|>", "<|assistant_end|>"]
    assert "on conversations" in (tmp_path / "export" / "README.md").read_text()
    assert main(["import", str(tmp_path / "export"), "--out", str(tmp_path / "back")]) == 0
    assert isinstance(open_chat_model(tmp_path / "back").format, ChatFormat)
    assert main(["export", str(base), "--out", str(tmp_path / "base")]) == 0
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "base").chat_template is None


def test_eval_without_tasks_says_what_to_give(tuned, capsys):
    run = train(tuned(iterations=1))
    assert main(["eval", str(run)]) == 2
    assert "a run of sft has no split of text; --tasks" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["mid", "sft"])
def test_printing_the_configuration_trains_nothing(verb, base, chats, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [verb, "--run", str(base), "--data", str(chats), "--run-dir", "out"]
    assert main([*words, "--print-config"]) == 0
    assert str(chats) in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
