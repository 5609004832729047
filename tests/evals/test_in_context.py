"""In-context tasks: scores equal a loop over single texts; malformed folders are named."""

import json
import random
from contextlib import nullcontext

import pytest
import torch

from danalab.chat.in_context import evaluate_in_context, read_suite
from danalab.chat.task_scores import Score, mean_score, pass_at_k
from danalab.data.tokenizers import ByteTokenizer
from danalab.errors import UserError
from danalab.models import ModelConfig, build_model

TASKS = """
icl_tasks:
- label: choice
  dataset_uri: a/choice.jsonl
  num_fewshot: [2]
  icl_task_type: multiple_choice
  continuation_delimiter: "\\nAnswer: "
- label: schema
  dataset_uri: schema.jsonl
  num_fewshot: [0]
  icl_task_type: schema
- label: copy
  dataset_uri: copy.jsonl
  num_fewshot: [1]
  icl_task_type: language_modeling
  has_categories: false
"""


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def suite(tmp_path):
    draw = random.Random(0)
    word = lambda: "".join(draw.choice("abcdef ") for _ in range(draw.randint(1, 9))).strip() or "a"  # noqa: E731
    data = tmp_path / "eval_data"
    write(
        data / "a" / "choice.jsonl",
        [
            {"query": word(), "choices": [word() for _ in range(4)], "gold": draw.randrange(4)}
            for _ in range(12)
        ],
    )
    write(
        data / "schema.jsonl",
        [
            {"context_options": [word(), word()], "continuation": word(), "gold": draw.randrange(2)}
            for _ in range(12)
        ],
    )
    write(data / "copy.jsonl", [{"context": word(), "continuation": draw.choice("ab")} for _ in range(12)])
    (tmp_path / "core.yaml").write_text(TASKS)
    (tmp_path / "eval_meta_data.csv").write_text(
        "Eval Task,Random baseline\nchoice,25.0\nschema,50.0\ncopy,0\n"
    )
    return tmp_path


@pytest.fixture(scope="module")
def model():
    config = ModelConfig("enoki", 16, 1, 2, 8, 32, vocab_size=320, seq_len=64)
    return build_model(config, seed=3).eval()


def mean_loss(model, tokenizer, before, scored):
    """Of `scored` after `before`, computed from logits, one text at a time."""
    ids = [tokenizer.eos_id, *tokenizer.encode(before), *tokenizer.encode(scored)]
    count = len(tokenizer.encode(scored))
    ids = ids[-(model.config.seq_len + 1) :]
    with torch.no_grad():
        log_probs = model(torch.tensor([ids[:-1]]))[0].double().log_softmax(-1)
    losses = [-float(log_probs[i - 1, ids[i]]) for i in range(len(ids) - count, len(ids))]
    greedy = all(int(log_probs[i - 1].argmax()) == ids[i] for i in range(len(ids) - count, len(ids)))
    return sum(losses) / count, greedy


def common_start(texts):
    length = 0
    while all(len(text) > length for text in texts) and len({text[length] for text in texts}) == 1:
        length += 1
    return length


def test_scores_are_those_of_single_texts(suite, model):
    tokenizer, tasks = ByteTokenizer(), read_suite(suite)
    assert [(task.label, task.shots, task.baseline) for task in tasks] == [
        ("choice", 2, 0.25), ("schema", 0, 0.5), ("copy", 1, 0.0),
    ]  # fmt: skip
    for task in tasks:
        items = [json.loads(line) for line in task.file.read_text().splitlines()]
        expected = []
        for number, item in enumerate(items):
            others = [i for i in range(len(items)) if i != number]
            shots = [items[i] for i in random.Random(1234 + number).sample(others, task.shots)]
            if task.icl_task_type == "multiple_choice":
                head = "".join(f"{s['query']}\nAnswer: {s['choices'][s['gold']]}\n\n" for s in shots)
                texts = [f"{head}{item['query']}\nAnswer: {choice}" for choice in item["choices"]]
                start = min(common_start(texts), min(map(len, texts)) - 1)
                losses = [mean_loss(model, tokenizer, text[:start], text[start:])[0] for text in texts]
                expected.append(losses.index(min(losses)) == item["gold"])
            elif task.icl_task_type == "schema":
                texts = [f"{option} {item['continuation']}" for option in item["context_options"]]
                same = common_start([text[::-1] for text in texts])
                losses = [mean_loss(model, tokenizer, text[:-same], text[-same:])[0] for text in texts]
                expected.append(losses.index(min(losses)) == item["gold"])
            else:
                (shot,) = shots
                head = f"{shot['context'].strip()} {shot['continuation']}\n\n{item['context'].strip()}"
                expected.append(mean_loss(model, tokenizer, head, f" {item['continuation']}")[1])
        result = evaluate_in_context(model, tokenizer, task, autocast=nullcontext)
        assert result.accuracy.mean == pytest.approx(sum(expected) / 12)
        assert result.centred.mean == pytest.approx(
            (result.accuracy.mean - task.baseline) / (1 - task.baseline)
        )


def test_a_limit_takes_the_same_questions_each_time(suite, model):
    (task, *_) = read_suite(suite)
    results = [
        evaluate_in_context(model, ByteTokenizer(), task, limit=5, autocast=nullcontext) for _ in range(2)
    ]
    assert results[0] == results[1]
    assert results[0].accuracy.count == 5


def test_the_core_score_is_the_mean_of_the_centred_accuracies(suite, model):
    results = [
        evaluate_in_context(model, ByteTokenizer(), task, autocast=nullcontext) for task in read_suite(suite)
    ]
    core = mean_score([result.centred for result in results])
    assert core.mean == pytest.approx(sum(r.centred.mean for r in results) / 3)
    assert core.error == pytest.approx(sum(r.centred.error**2 for r in results) ** 0.5 / 3)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("core.yaml", "icl_tasks: []", "icl_tasks"),
        ("core.yaml", "tasks: 3", "icl_tasks"),
        ("core.yaml", TASKS.replace("a/choice", "a/none"), "no file"),
        (
            "core.yaml",
            TASKS.replace("schema\n  dataset", "schema\n  x: 1\n  dataset").replace(
                "type: schema", "type: x"
            ),
            "icl_task_type",
        ),
        ("eval_meta_data.csv", "Task,Baseline\nchoice,25\n", "Random baseline"),
        (
            "eval_data/a/choice.jsonl",
            '{"query": "q", "choices": ["a", "b"], "gold": 2}\n',
            'line 1: the field "gold"',
        ),
        ("eval_data/a/choice.jsonl", '{"query": "q", "choices": ["a"], "gold": 0}\n', "at least two"),
        ("eval_data/a/choice.jsonl", '{"query": "q", "choices": ["a", "b"], "gold": 0}\n', "too few"),
        ("eval_data/a/choice.jsonl", '{"choices": ["a", "b"], "gold": 0}\n', '"query" is missing'),
        ("eval_data/copy.jsonl", '{"context": "q"}\n', '"continuation" is missing'),
    ],
)
def test_a_malformed_folder_is_one_line(suite, model, file, content, said):
    (suite / file).write_text(content)

    def evaluate():
        return [
            evaluate_in_context(model, ByteTokenizer(), each, autocast=nullcontext)
            for each in read_suite(suite)
        ]

    with pytest.raises(UserError, match=said):
        evaluate()


def test_a_folder_without_a_list_of_tasks_is_named(tmp_path):
    with pytest.raises(UserError, match="one YAML file"):
        read_suite(tmp_path)
    with pytest.raises(UserError, match="none: no such folder"):
        read_suite(tmp_path / "none")


def test_standard_errors():
    assert Score.of([1, 0, 1, 1]).mean == 0.75
    assert Score.of([1, 0, 1, 1]).error == pytest.approx((0.75 * 0.25 / 3) ** 0.5)
    assert Score.of([1.0]).error is None
    assert Score(0.75, 0.1, 4).centred(0.25).mean == pytest.approx(2 / 3)


@pytest.mark.parametrize(("n", "c", "k"), [(5, 0, 1), (5, 5, 3), (6, 2, 1), (6, 2, 3), (7, 3, 7), (8, 4, 2)])
def test_pass_at_k_is_the_mean_over_all_choices_of_k_samples(n, c, k):
    from itertools import combinations

    samples = [True] * c + [False] * (n - c)
    choices = [any(choice) for choice in combinations(samples, k)]
    assert pass_at_k(n, c, k) == pytest.approx(sum(choices) / len(choices))
