"""`danalab eval --tasks`, `--core` and `--lm-eval` on a run that answers as a chat."""

import json
import math
import re
import shutil

import pytest
import torch

from danalab.chat.answers import AnswerSettings, ModelEngine, SampledAnswer
from danalab.chat.marks import ChatFormat
from danalab.chat.messages import Conversation
from danalab.chat.rewards import Scorer
from danalab.chat.task_scores import TaskResult, evaluate_chat, evaluate_task
from danalab.chat.tasks import Problem
from danalab.chat.tasks.generated import Arithmetic
from danalab.chat.tasks.loaded import LoadedTask
from danalab.cli.app import main
from danalab.data.tokenizers import ByteTokenizer
from danalab.errors import UserError
from danalab.models import ModelConfig, build_model
from danalab.train import train
from danalab.train.config.train_config import TrainConfig
from text_data import prepare_lines

CHAT = ChatFormat(ByteTokenizer())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    data = prepare_lines(tmp_path_factory.mktemp("text"), 60, 10)
    return train(
        TrainConfig(
            data=str(data), d_model=32, n_layers=1, n_heads=2, seq_len=64, batch_size=4, iterations=2,
            run_dir=tmp_path_factory.mktemp("run") / "run", eval_batches=1,
        )
    )  # fmt: skip


def printed(capsys, *words):
    assert main(["eval", *map(str, words)]) == 0
    return capsys.readouterr().out


def refused(capsys, *words):
    assert main(["eval", *map(str, words)]) == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_scores_are_means_over_problems_with_pass_at_k():
    """A model that draws each byte about equally often, and a task whose half of all bytes are right."""
    model = build_model(ModelConfig("enoki", 16, 1, 2, 8, 32, vocab_size=320, seq_len=64), seed=0)
    settings = AnswerSettings(limit=8, samples=4, temperature=1.0, max_tokens=1)

    class Half(Arithmetic):
        name = "half"

    seen = []

    class EvenScorer(Scorer):
        def score_all(self, pairs):
            seen.extend(found := list(pairs))
            return [float(bool(answer) and ord(answer[0]) % 2 == 0) for _, answer in found]

    with ModelEngine(model, CHAT)() as engine:
        (result,) = evaluate_task(engine, CHAT, Half(), settings, scorer=EvenScorer())
        (again,) = evaluate_task(engine, CHAT, Half(), settings, scorer=EvenScorer())
    assert result == again
    assert len(seen) == 2 * 8 * 4
    rewards = [[float(bool(a) and ord(a[0]) % 2 == 0) for _, a in seen[i : i + 4]] for i in range(0, 32, 4)]
    assert result.score.mean == pytest.approx(sum(map(sum, rewards)) / 32)
    assert set(result.passes) == {1, 2, 4}
    assert result.passes[1].mean == pytest.approx(result.score.mean)
    assert result.passes[4].mean == pytest.approx(sum(1.0 in group for group in rewards) / 8)
    assert result.length == 1.0


class Script(SampledAnswer):
    """An answer of given text."""

    def __init__(self, text: str):
        super().__init__(
            tokens=[*text.encode(), CHAT.assistant_end], finished=True, calls=int(text.startswith("="))
        )


def test_turns_are_scored_one_by_one_after_what_the_model_said(monkeypatch):
    """The first conversation is answered rightly, the second one has no answer to its first question."""
    model = build_model(ModelConfig("enoki", 16, 1, 2, 8, 32, vocab_size=320, seq_len=256), seed=0)
    sums = "<<1+1=2>>2"

    def talk(first: str) -> Problem:
        return Problem(
            first, "2", "number", sums, later=(Problem("then", "3", "number"), Problem("end", "4", "number"))
        )

    prompts = []

    def answering(engine, chat, requests):
        prompts.extend(chat.tokenizer.decode(request.prompt) for request in requests)
        said = {"good": "=2", "bad": "", "then": "3", "end": "5"}
        return [
            Script(said[re.findall(r"(good|bad|then|end)<", prompt)[-1]])
            for prompt in prompts[-len(requests) :]
        ]

    monkeypatch.setattr("danalab.chat.answers.answer_all", answering)
    with ModelEngine(model, CHAT)() as engine:
        results = evaluate_task(
            engine, CHAT, LoadedTask("talks", [talk("good"), talk("bad")]), AnswerSettings()
        )
    _, second, _ = results
    assert [result.score.mean for result in results] == [0.5, 1.0, 0.0]
    assert [result.task.rpartition(", ")[2] for result in results] == ["turn 1", "turn 2", "turn 3"]
    assert "good" in prompts[2]
    assert "bad" not in prompts[3]
    assert second.examples[0]["question"] == "good ... then"


def test_problems_without_space_for_an_answer_are_counted():
    model = build_model(ModelConfig("enoki", 16, 1, 2, 8, 32, vocab_size=320, seq_len=64), seed=0)

    def long(*sizes):
        return LoadedTask("long", [Problem("x" * size, "1", "exact") for size in sizes])

    with ModelEngine(model, CHAT)() as engine:
        (result,) = evaluate_task(engine, CHAT, long(3, 200), AnswerSettings(max_tokens=2))
        assert (result.skipped, result.score.count, result.score.error) == (1, 1, None)
        with pytest.raises(UserError, match="no problem leaves space"):
            evaluate_task(engine, CHAT, long(200), AnswerSettings())


def test_the_command_prints_a_table_and_one_object(run, tmp_path, capsys):
    (tmp_path / "mine.jsonl").write_text('{"question": "2+2?", "answer": "4"}\n' * 3)
    words = [run, "--tasks", "arithmetic:max=9", tmp_path / "mine.jsonl", "--limit", 3, "--max-tokens", 3]
    table = printed(capsys, *words, "--show", 1)
    assert "arithmetic" in table
    assert "mean, centred" in table
    assert "Q 2+2?" in table
    found = json.loads(printed(capsys, *words, "--samples", 2, "--temperature", 1, "--json"))
    assert (found["step"], [task["task"] for task in found["tasks"]]) == (2, ["arithmetic", "mine.jsonl"])
    assert found["tasks"][0]["score"]["count"] == 3
    assert set(found["tasks"][0]["passes"]) == {"1", "2"}


def test_in_context_tasks_of_a_run(run, tmp_path, capsys):
    rows = [{"context": "the cat", "continuation": "sat"}, {"context": "a", "continuation": "dog"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "core.yaml").write_text(
        "icl_tasks: [{label: copy, dataset_uri: a.jsonl, num_fewshot: [1], icl_task_type: language_modeling}]"
    )
    assert "CORE" in printed(capsys, run, "--core", tmp_path)
    assert json.loads(printed(capsys, run, "--core", tmp_path, "--json"))["mean"]["mean"] in (0.0, 0.5, 1.0)


def test_what_cannot_be_evaluated_is_one_line(run, tmp_path, capsys):
    assert "one kind of evaluation" in refused(capsys, run, "--tasks", "arithmetic", "--core", tmp_path)
    assert "--data has no effect on --tasks" in refused(
        capsys, run, "--tasks", "arithmetic", "--data", tmp_path
    )
    assert "--limit has no effect on --split; it is for --tasks, --core" in refused(capsys, run, "--limit", 3)
    assert "unknown task 'algebra'" in refused(capsys, run, "--tasks", "algebra")
    assert "--samples 4: at temperature 0" in refused(capsys, run, "--tasks", "arithmetic", "--samples", 4)
    assert "--limit 0: must be at least 1" in refused(capsys, run, "--tasks", "arithmetic", "--limit", 0)
    told = refused(capsys, run, "--tasks", "arithmetic", "--max-tokens", 0)
    assert "--max-tokens 0: must be at least 1" in told
    assert "temperature" in refused(capsys, run, "--tasks", "arithmetic", "--temperature", -1)
    assert "unknown reward" in refused(capsys, run, "--tasks", "arithmetic", "--reward", "nope")
    assert "one YAML file" in refused(capsys, run, "--core", tmp_path)
    (tmp_path / "lines.txt").write_text("a line of text\n" * 400)
    other = tmp_path / "other"
    words = ["--input", str(tmp_path / "lines.txt"), "--tokenizer", "bpe-272", "--out", str(other)]
    assert main(["data", "prepare", "text", *words]) == 0
    assert f"--data {other}: its tokens are of another tokenizer" in refused(capsys, run, "--data", other)
    assert "not a run folder" in refused(capsys, tmp_path / "gone", "--tasks", "arithmetic")


@pytest.mark.slow
def test_the_harness_asks_a_chat_in_its_format(run, tmp_path, monkeypatch):
    """The score of a choice is the log-likelihood of the letter after the prompt of the conversation."""
    pytest.importorskip("lm_eval")
    from danalab.chat.harness import evaluate_tasks
    from danalab.train.run.open import open_run

    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    rows = [{"question": f"{i}?", "choices": ["A", "B", "C"], "answer": i % 3} for i in range(5)]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "choose.yaml").write_text(
        f"task: choose\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {tmp_path}/q.jsonl}}}}\n"
        'test_split: test\noutput_type: multiple_choice\ndoc_to_text: "{{question}}"\ntarget_delimiter: ""\n'
        'doc_to_choice: "{{choices}}"\ndoc_to_target: "{{answer}}"\nmetric_list: [{metric: acc}]\n'
    )
    tuned = shutil.copytree(run, tmp_path / "tuned")
    config = json.loads((tuned / "config.json").read_text())
    (tuned / "config.json").write_text(json.dumps({**config, "stage": "sft"}))
    result = evaluate_tasks(tuned, [str(tmp_path / "choose.yaml")], chat=True)
    model, right = open_run(run).load_model().model.eval(), 0
    for row in rows:
        prompt = CHAT.render_prompt(Conversation.ask(row["question"]))
        with torch.no_grad():
            logits = model(torch.tensor([prompt]))[0, -1]
        scores = [float(logits[CHAT.tokenizer.encode(choice)[0]]) for choice in row["choices"]]
        right += scores.index(max(scores)) == row["answer"]
    assert result.tasks["choose"]["acc"] == pytest.approx(right / 5)


def test_a_mean_over_tasks_takes_centred_scores(run):
    result = evaluate_chat(run, ["arithmetic:max=9", "spelling"], AnswerSettings(limit=2, max_tokens=2))
    assert result.mean.mean == pytest.approx(sum(task.centred.mean for task in result.tasks) / 2)
    assert all(isinstance(task, TaskResult) and not math.isnan(task.score.mean) for task in result.tasks)
