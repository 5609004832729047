"""Tasks of the real lm-eval harness, on local data: its numbers are those computed by hand from the model."""

from __future__ import annotations

import json
import math
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

from danalab.cli.app import main
from danalab.errors import UserError
from danalab.train import train
from danalab.train.run.open import open_run
from text_data import prepare_lines

pytest.importorskip("lm_eval")
evaluate_tasks = import_module("danalab.chat.harness").evaluate_tasks

QUESTIONS = [
    {"question": "the cat sat on", "choices": [" a mat", " the house and then", " it"], "answer": 0},
    {"question": "red", "choices": [" house.", " dog", " blue"], "answer": 2},
    {"question": "and then it was blue and then it was", "choices": [" x", " cat", " blue"], "answer": 1},
]
TEXTS = [{"text": "the cat sat on a mat. " * 3}, {"text": "red house"}]
PROMPTS = [
    {"prompt": "the cat", "wanted": " sat"},
    {"prompt": "dog ran to the red house and then it", "wanted": "?"},
]

TASKS = {
    "choose": """
task: choose
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/questions.jsonl}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
target_delimiter: ""
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
""",
    "read": """
task: read
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/texts.jsonl}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list: [{{metric: word_perplexity}}, {{metric: bits_per_byte}}]
""",
    "write": """
task: write
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/prompts.jsonl}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "{{{{wanted}}}}"
generation_kwargs: {{until: ["."], max_gen_toks: 6, do_sample: false}}
metric_list: [{{metric: exact_match}}]
""",
}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Name -> path of the YAML file."""
    folder = tmp_path_factory.mktemp("tasks")
    for name, rows in (("questions", QUESTIONS), ("texts", TEXTS), ("prompts", PROMPTS)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, text in TASKS.items():
        (folder / f"{name}.yaml").write_text(text.format(folder=folder))
    return {name: str(folder / f"{name}.yaml") for name in TASKS}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_lines(tmp_path_factory.mktemp("text"), 300, 15, end=".")


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learned a little; its context is 32 tokens, shorter than most of the texts."""
    from danalab.train.config.train_config import TrainConfig

    return train(
        TrainConfig(
            data=str(data), d_model=32, n_layers=1, n_heads=2, seq_len=32, batch_size=4, iterations=20, lr=3e-2,
            eval_batches=1, run_dir=tmp_path_factory.mktemp("run") / "run",
        )
    )  # fmt: skip


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def log_probabilities(run: Path, ids: list[int], count: int) -> torch.Tensor:
    """Of the last `count` of `ids`, given those before, as far as the context reaches."""
    model = open_run(run).load_model().model
    window = ids[-(model.config.seq_len + 1) :]
    with torch.no_grad():
        logits = model(torch.tensor([window[:-1]]))[0].double().log_softmax(-1)
    return logits[range(len(window) - 1 - count, len(window) - 1), window[-count:]]


def test_choices_are_judged_by_their_likelihood(run, tasks):
    result = evaluate_tasks(run, [tasks["choose"]], batch_size=2)
    encode = open_run(run).tokenizer.encode
    right = normed = 0
    for row in QUESTIONS:
        scores = []
        for choice in row["choices"]:
            ids = encode(row["question"] + choice)
            scores.append(float(log_probabilities(run, ids, len(ids) - len(encode(row["question"]))).sum()))
        by_length = [score / len(choice) for score, choice in zip(scores, row["choices"], strict=True)]
        right += scores.index(max(scores)) == row["answer"]
        normed += by_length.index(max(by_length)) == row["answer"]
    assert result.tasks["choose"]["acc"] == pytest.approx(right / 3)
    assert result.tasks["choose"]["acc_norm"] == pytest.approx(normed / 3)
    assert result.samples == {"choose": 3}


def test_texts_longer_than_the_context_are_read_in_windows(run, tasks):
    result = evaluate_tasks(run, [tasks["read"]]).tasks["read"]
    tokenizer, total = open_run(run).tokenizer, 0.0
    for row in TEXTS:
        ids = tokenizer.encode(row["text"])
        for start in range(0, len(ids), 32):
            before = [tokenizer.eos_id] if start == 0 else [ids[start - 1]]
            part = ids[start : start + 32]
            if (
                start > 0 and len(part) < 32
            ):  # the last window reaches back for context, but scores its own only
                before = ids[start + len(part) - 33 : start]
            total += float(log_probabilities(run, before + part, len(part)).sum())
    n_bytes = sum(len(row["text"].encode()) for row in TEXTS)
    assert result["bits_per_byte"] == pytest.approx(-total / n_bytes / math.log(2), rel=1e-5)


def test_generation_stops_at_the_tasks_words_and_is_greedy(run, tmp_path, monkeypatch):
    wanted = []
    sampled = open_run(run)
    model, tokenizer = sampled.load_model().model, sampled.tokenizer
    for row in PROMPTS:
        ids = tokenizer.encode(row["prompt"])[-26:]
        for _ in range(6):
            with torch.no_grad():
                ids.append(int(model(torch.tensor([ids]))[0, -1, : tokenizer.n_tokens].argmax()))
        wanted.append(tokenizer.decode(ids[-6:]).split(".")[0])
    monkeypatch.setitem(PROMPTS[1], "wanted", wanted[1])
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PROMPTS))
    (tmp_path / "write.yaml").write_text(TASKS["write"].format(folder=tmp_path))
    assert wanted[0] != PROMPTS[0]["wanted"]
    result = evaluate_tasks(run, [str(tmp_path / "write.yaml")])
    assert result.tasks["write"]["exact_match"] == pytest.approx(0.5)


@pytest.mark.slow
def test_the_command_prints_one_object_and_a_table(run, tasks, capsys):
    words = ["eval", "--run", str(run), "--lm-eval", f"{tasks['choose']},{tasks['read']}", "--limit", "2"]
    assert main([*words, "--num-fewshot", "0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step"] == 20
    assert set(found["tasks"]) == {"choose", "read"}
    assert found["samples"] == {"choose": 2, "read": 2}
    assert 0 <= found["tasks"]["choose"]["acc"] <= 1
    assert main(words) == 0
    assert "acc" in capsys.readouterr().out


def test_what_cannot_be_evaluated_is_said_in_one_line(run, tasks, tmp_path, capsys, monkeypatch):
    def refused(*words: str) -> str:
        assert main(["eval", "--run", str(run), *words]) == 2
        return capsys.readouterr().err.strip().splitlines()[-1]

    (tmp_path / "none.yaml").write_text("dataset_path: json\n")
    assert "missing.yaml" in refused("--lm-eval", "missing.yaml")
    assert "no such task" in refused("--lm-eval", str(tmp_path / "none.yaml"))
    (tmp_path / "gone.yaml").write_text(TASKS["read"].format(folder=tmp_path))
    assert "the harness says" in refused("--lm-eval", str(tmp_path / "gone.yaml"))
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    assert "--lm-eval needs lm-eval: pip install 'danalab[hf]'" in refused("--lm-eval", tasks["read"])


@pytest.mark.slow  # the harness reads the definitions of all its tasks first
def test_a_name_that_the_harness_does_not_know_is_refused_with_the_nearest(run):
    with pytest.raises(UserError, match=r"hellaswagg: no such task \(did you mean 'hellaswag"):
        evaluate_tasks(run, ["hellaswagg"])
