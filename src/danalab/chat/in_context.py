"""In-context tasks in DCLM's format: examples with their answers, then a question, all in the text.

    multiple_choice      query [delimiter] choice             the choice with the lowest mean loss per token
    schema               context option [delimiter] end       the option after which the end has the lowest mean loss
    language_modeling    context [delimiter] continuation     right where every token of it is the most likely one

A folder holds a YAML file with `icl_tasks`, the JSONL files that it names (below eval_data/), and perhaps
eval_meta_data.csv with the accuracy of random answers. CORE is the mean over tasks of
(accuracy - random) / (1 - random).

Source: Li et al. 2024, DataComp-LM, arXiv 2406.11794, section 3.5 and appendix G.
"""

import csv
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, Field

from danalab.chat.task_scores import Evaluation, Score, mean_score, open_model
from danalab.chat.tasks.loaded import read_rows, text_field
from danalab.data.tokenizers import Tokenizer
from danalab.errors import UserError
from danalab.files import read_yaml, validated
from danalab.models.decoder import Decoder
from danalab.train.step.loss import IGNORED

Kind = Literal["multiple_choice", "schema", "language_modeling"]
META = "eval_meta_data.csv"
BATCH_TOKENS = 16_384


class InContextTask(BaseModel):
    """An entry of `icl_tasks`; further fields have no effect on the score."""

    label: str
    dataset_uri: str
    num_fewshot: list[int] = Field(min_length=1)
    icl_task_type: Kind
    continuation_delimiter: str = " "
    """Text between a question and its answer."""
    file: Path = Path()
    baseline: float = 0.0
    """Accuracy of random answers."""

    @property
    def shots(self) -> int:
        """Examples in front of each question."""
        return self.num_fewshot[0]


class _Suite(BaseModel):
    icl_tasks: list[InContextTask] = Field(min_length=1)


@dataclass(frozen=True)
class InContextResult:
    """The result of one task."""

    label: str
    accuracy: Score
    centred: Score
    shots: int


Question = tuple[list[tuple[str, str]], int]
"""(options, as texts before and after the delimiter; the right one)."""
Row = tuple[list[int], int, int]
"""(tokens, start, end): the part [start, end) of the tokens is scored."""


def read_suite(folder: str | Path) -> list[InContextTask]:
    """The tasks of a folder; UserError: no or several YAML files, malformed ones, or a named file that is not there."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    files = sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])
    if len(files) != 1:
        raise UserError(
            f"{folder}: one YAML file that lists the tasks is expected: {len(files) or 'none'} in it"
        )
    suite = validated(_Suite, read_yaml(files[0]), files[0])
    baselines, meta = dict[str, float](), folder / META
    if meta.is_file():
        try:
            with meta.open(encoding="utf-8", newline="") as lines:
                for row in csv.DictReader(lines):
                    baselines[row["Eval Task"]] = float(row["Random baseline"]) / 100
        except (KeyError, TypeError, ValueError) as error:
            told = f"columns 'Eval Task' and 'Random baseline' [%] are expected ({error})"
            raise UserError(f"{meta}: {told}") from error
    for entry in suite.icl_tasks:
        candidates = folder / "eval_data" / entry.dataset_uri, folder / entry.dataset_uri
        file = next(filter(Path.is_file, candidates), None)
        if file is None:
            raise UserError(f"{files[0]}: {entry.label}: no file {candidates[0]}")
        entry.file, entry.baseline = file, baselines.get(entry.label, 0.0)
    return suite.icl_tasks


def evaluate_in_context(
    model: Decoder,
    tokenizer: Tokenizer,
    task: InContextTask,
    *,
    limit: int | None = None,
    autocast: Callable[[], AbstractContextManager[Any]],
    seed: int = 1234,
) -> InContextResult:
    """Score a model on one task; text beyond the model's context is cut off at its beginning.

    `limit` questions are a random choice that depends on the file alone; default all. `seed` and a question's number
    draw its examples. UserError: the file is malformed or has too few questions; names the line.
    """
    items = [_question(item, task.icl_task_type, where) for where, item in read_rows(task.file)]
    if len(items) <= task.shots:
        raise UserError(
            f"{task.file}: {len(items)} questions are too few for {task.shots} examples before each"
        )
    numbers = list(range(len(items)))
    if limit is not None and limit < len(numbers):
        random.Random(1337).shuffle(numbers)
        numbers = numbers[:limit]
    rows, owners = list[Row](), list[int]()
    for index, number in enumerate(numbers):
        others = items[:number] + items[number + 1 :]
        examples = random.Random(seed + number).sample(others, task.shots)
        options = _rows(task, items[number], examples, tokenizer)
        for tokens, start, end in options:  # the last `seq_len` + 1 tokens: the last one is only a target
            over = max(0, len(tokens) - model.config.seq_len - 1)
            rows.append((tokens[over:], max(1, start - over), end - over))
        owners += [index] * len(options)
    losses, right = _scores(model, rows, tokenizer.eos_id, autocast)
    answers: list[list[float]] = [[] for _ in numbers]
    exact = [False] * len(numbers)
    for owner, loss, correct in zip(owners, losses, right, strict=True):
        answers[owner].append(loss)
        exact[owner] = correct
    if task.icl_task_type != "language_modeling":
        gold = [items[number][1] for number in numbers]
        exact = [
            min(range(len(each)), key=each.__getitem__) == g for each, g in zip(answers, gold, strict=True)
        ]
    accuracy = Score.of([float(value) for value in exact])
    return InContextResult(task.label, accuracy, accuracy.centred(task.baseline), task.shots)


def _question(item: Any, kind: Kind, where: str) -> Question:
    """A line of the file."""
    if kind == "language_modeling":
        text_field(item, "continuation", where)
        return [(text_field(item, "context", where), str(item["continuation"]))], 0
    is_choice = kind == "multiple_choice"
    shared, name = ("query", "choices") if is_choice else ("continuation", "context_options")
    text_field(item, shared, where)
    texts, gold = item.get(name), item.get("gold")
    if not isinstance(texts, list) or len(texts) < 2 or not all(isinstance(each, str) for each in texts):
        raise UserError(f'{where}: the field "{name}" must be a list of texts, at least two')
    if isinstance(gold, bool) or not isinstance(gold, int) or not 0 <= gold < len(texts):
        raise UserError(f'{where}: the field "gold" must be the index of one of the {len(texts)} texts')
    return [(item[shared], each) if is_choice else (each, item[shared]) for each in texts], gold


def _rows(
    task: InContextTask, question: Question, examples: Iterable[Question], tokenizer: Tokenizer
) -> list[Row]:
    answered = [options[gold] for options, gold in examples]
    before = "".join(f"{asked}{task.continuation_delimiter}{said}\n\n" for asked, said in answered)
    texts = [f"{before}{asked}{task.continuation_delimiter}{said}" for asked, said in question[0]]
    if task.icl_task_type == "language_modeling":
        texts.insert(0, f"{before}{question[0][0][0]}{task.continuation_delimiter}".rstrip())
    tokens = [[tokenizer.bos_id, *ids] for ids in tokenizer.encode_batch(texts)]
    if task.icl_task_type == "language_modeling":
        return [(tokens[1], _shared(tokens), len(tokens[1]))]
    if task.icl_task_type == "multiple_choice":
        start = min(_shared(tokens), min(map(len, tokens)) - 1)
        return [(ids, start, len(ids)) for ids in tokens]
    same = max(1, _shared([ids[::-1] for ids in tokens]))
    return [(ids, max(1, len(ids) - same), len(ids)) for ids in tokens]


def _shared(lists: Sequence[list[int]]) -> int:
    return next(
        (i for i, tokens in enumerate(zip(*lists, strict=False)) if len(set(tokens)) > 1),
        min(map(len, lists)),
    )


def _scores(
    model: Decoder, rows: list[Row], padding: int, autocast: Callable[[], AbstractContextManager[Any]]
) -> tuple[list[float], list[bool]]:
    """(mean loss of each row's scored part [nats/token], whether all of its tokens are the most likely ones)."""
    losses, right = [0.0] * len(rows), [False] * len(rows)
    device = model.head_weight.device
    order = sorted(range(len(rows)), key=lambda i: len(rows[i][0]))
    while order:
        width = len(rows[order[-1]][0]) - 1  # the longest first, so that a lack of memory shows at once
        chosen = [order.pop() for _ in range(min(len(order), max(1, BATCH_TOKENS // width)))]
        inputs = torch.full((len(chosen), width), padding)
        targets = torch.full_like(inputs, IGNORED)
        for index, number in enumerate(chosen):
            tokens, start, end = rows[number]
            inputs[index, : len(tokens) - 1] = torch.tensor(tokens[:-1])
            targets[index, start - 1 : end - 1] = torch.tensor(tokens[start:end])
        inputs, targets = inputs.to(device), targets.to(device)
        correct = torch.zeros_like(targets, dtype=torch.bool)
        with autocast():
            token_losses = model.token_losses(inputs, targets, ignore_index=IGNORED, correct=correct)
        scored = targets != IGNORED
        means = (token_losses.double().sum(1) / scored.sum(1)).tolist()
        whole = (correct | ~scored).all(1).tolist()
        for number, mean, exact in zip(chosen, means, whole, strict=True):
            losses[number], right[number] = mean, exact
    return losses, right


def evaluate_core(
    folder: str | Path,
    suite: str | Path,
    *,
    limit: int | None = None,
    step: int | None = None,
    device: str | None = None,
    report: Callable[[InContextResult], None] = lambda result: None,
) -> Evaluation:
    """Score a run on `limit` questions of each in-context task of a folder in DCLM's format; `report` gets results."""
    tasks = read_suite(suite)
    model, tokenizer, found, autocast = open_model(folder, step, device)
    results = []
    for task in tasks:
        results.append(evaluate_in_context(model, tokenizer, task, limit=limit, autocast=autocast))
        report(results[-1])
    return Evaluation(found, results, mean_score([result.centred for result in results]))
