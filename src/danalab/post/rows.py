"""Answers as rows of a batch: prompts and answers one after the other, several to a row where they fit.

    row      bos question assistant_start a b | bos question assistant_start c | bos bos
    target   -   -        a               b e | -   -        c               e | -   -        e: the end of the answer

Each begins with bos, at which the model's document mask restarts attention and positions, so that an answer is computed
as if it were alone.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from danalab.chat.answers import SampledAnswer
from danalab.post.packing import best_fit
from danalab.train.step.batch import IGNORED, Batch


class TrainedAnswer(NamedTuple):
    """An answer with its advantage."""

    prompt: list[int]
    answer: SampledAnswer
    advantage: float


def pack_answers(answers: Sequence[TrainedAnswer], bos: int, length: int | None = None) -> Batch:
    """A batch for `PolicyLoss`; without answers one row without targets, so that every rank has something to compute.

    Args:
        bos: fills the rest of a row.
        length: of a row; default the longest answer with its prompt.
    """
    lengths = np.array([len(each.prompt) + len(each.answer.tokens) - 1 for each in answers], np.int64)
    width = max(length or 0, int(lengths.max(initial=1)))
    owner = best_fit(lengths, width)
    shape = (int(owner.max(initial=0)) + 1, width)
    inputs, targets = torch.full(shape, bos), torch.full(shape, IGNORED)
    old, advantages = torch.zeros(shape), torch.zeros(shape)
    sequence = torch.zeros(shape, dtype=torch.int64)
    ends, count = [0] * shape[0], [0] * shape[0]
    for each, row, size in zip(answers, owner.tolist(), lengths.tolist(), strict=True):
        place = slice(ends[row], ends[row] + size)
        said = slice(place.stop - len(each.answer.tokens), place.stop)
        tokens = torch.tensor(each.prompt + each.answer.tokens)
        inputs[row, place] = tokens[:-1]
        drawn = torch.tensor(each.answer.drawn)
        targets[row, said] = torch.tensor(each.answer.tokens).where(drawn, IGNORED)
        old[row, said] = torch.tensor(each.answer.log_probs)
        advantages[row, place] = each.advantage
        sequence[row, place] = count[row]
        ends[row] += size
        count[row] += 1
    return Batch(inputs, targets, extra={"old_log_probs": old, "advantages": advantages, "sequence": sequence})
