"""Rare tokens under the optimizers themselves: a table of logits with known frequencies, and a generated language.

The table has one row of logits for each context; each row has the same frequencies in its own random order, and draws
one token a step. The language model is an embedding of the last token and a head, both learned.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from danalab.errors import UserError
from danalab.optim import build_optimizer
from danalab.optim.schedules import get_schedule, lr_scheduler

_CHUNK = 500
"""Steps whose tokens are drawn together."""


@dataclass(frozen=True)
class Trained:
    """An optimizer with its settings."""

    opt: str
    """Name in the registry."""
    lr: float
    """Peak learning rate, of the table."""
    settings: Mapping[str, Any] = field(default_factory=dict)


def geometric_frequencies(rarest: float, tokens: int) -> np.ndarray:
    """Frequencies f_0 > f_1 > ... that fall by one factor and add up to 1, the last one about `rarest`.

    Raises:
        UserError: `rarest` is not between 0 and 1 / tokens.
    """
    if tokens < 2 or not 0 < rarest < 1 / tokens:
        raise UserError(f"rarest = {rarest:g} of {tokens} tokens: must be above 0 and below 1 / tokens")
    low, high = 1.0, 1 / rarest  # the factor, by bisection: the sum grows with it
    for _ in range(200):
        factor = math.sqrt(low * high)
        low, high = (factor, high) if rarest * (factor ** np.arange(tokens)).sum() < 1 else (low, factor)
    f = rarest * low ** np.arange(tokens)[::-1]
    return f / f.sum()


def table_bias(trained: Trained, frequencies: np.ndarray, *, steps: int, rows: int, seed: int = 0) -> np.ndarray:
    """p / f, averaged over the last tenth of the run: float64 [rows, tokens].

    The logits start at log f: what is measured is where the optimizer leads them from the truth. Rows are independent
    for element-wise optimizers.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.stack([torch.randperm(len(frequencies), generator=generator) for _ in range(rows)])
    truth = torch.tensor(frequencies)[order].float()
    logits = truth.log().requires_grad_()
    optimizer = build_optimizer(trained.opt, [logits], lr=trained.lr, **trained.settings)
    first, seen = steps - steps // 10, torch.zeros(rows, len(frequencies), dtype=torch.float64)
    drawn = torch.empty(rows, 0)
    for step in range(steps):
        if step % _CHUNK == 0:
            drawn = torch.multinomial(truth, _CHUNK, replacement=True, generator=generator)
        probabilities = logits.detach().softmax(1)
        if step >= first:
            seen += probabilities
        logits.grad = probabilities.scatter_add(1, drawn[:, step % _CHUNK, None], torch.full((rows, 1), -1.0))
        optimizer.step()
    ratio = seen / (steps // 10) / truth
    return torch.empty_like(ratio).scatter_(1, order, ratio).numpy()


class Corpus(Protocol):
    """What is needed of a language; `danalab.data.sources.synthetic.Language` is one."""

    @property
    def words(self) -> int:
        """Number of words; their token ids come first, by frequency."""
        ...

    @property
    def vocabulary(self) -> list[str]: ...
    def documents(self, first: int, count: int) -> np.ndarray: ...
    def probabilities(self, document: np.ndarray) -> np.ndarray: ...


class LastToken(nn.Module):
    """The next token from the last one, through `width` dimensions: the smallest model with an embedding and a head."""

    def __init__(self, tokens: int, width: int):
        super().__init__()
        self.embedding = nn.Embedding(tokens + 1, width)  # the last row is the start of a document
        self.head = nn.Linear(width, tokens, bias=False)

    def forward(self, documents: torch.Tensor) -> torch.Tensor:
        """Logits [documents, length, tokens] of token ids [documents, length]."""
        start = torch.full_like(documents[:, :1], self.embedding.num_embeddings - 1)
        return self.head(self.embedding(torch.cat([start, documents[:, :-1]], dim=1)))


@dataclass(frozen=True)
class HeldOut:
    """Documents that no model is trained on, and the truth about them."""

    text: np.ndarray
    """Token ids [documents, length]."""
    truth: np.ndarray
    """True probabilities of the next token [documents, length, tokens]."""
    words: int

    @classmethod
    def of(cls, corpus: Corpus, documents: int = 32) -> "HeldOut":
        """The first documents of a corpus."""
        text = corpus.documents(0, documents)
        truth = np.stack([corpus.probabilities(document)[:-1, :-1] for document in text])
        return cls(text, truth, corpus.words)

    @property
    def bins(self) -> list[tuple[int, int]]:
        """Bins of words by rank (from 0, end exclusive), each about four times as wide as the one before."""
        edges = [0]
        while edges[-1] < self.words:
            edges.append(min(self.words, 4 * edges[-1] + 4))
        return list(itertools.pairwise(edges))

    @property
    def frequencies(self) -> np.ndarray:
        """Mean frequency of a word of each bin, per token."""
        mean = self.truth.mean((0, 1))
        return np.asarray([mean[a:b].mean() for a, b in self.bins])


@dataclass(frozen=True)
class LanguageBias:
    """Result of `language_bias`."""

    loss: float
    """Cross-entropy on the held-out documents against the true distribution [nats a token]."""
    ratio: np.ndarray
    """Mean probability of the words of each bin under the model over that under the truth."""


def language_bias(
    corpus: Corpus, held_out: HeldOut, trained: Trained, *, steps: int, documents: int, width: int = 32, seed: int = 0
) -> LanguageBias:
    """Train `LastToken` for one pass over `steps * documents` documents, the learning rate falling to 0 in a line.

    Args:
        documents: per step.
        seed: of the weights, and of the part of the corpus that is read.
    """
    torch.manual_seed(seed)
    model = LastToken(len(corpus.vocabulary), width)
    # Without names: Muon orthogonalises embedding and head, too, which in language models it leaves to AdamW.
    optimizer = build_optimizer(trained.opt, list(model.parameters()), lr=trained.lr, **trained.settings)
    scheduler = lr_scheduler(optimizer, get_schedule("linear", steps, steps // 50))
    first = len(held_out.text) + seed * steps * documents
    text = torch.empty(0)
    for step in range(steps):
        if step % _CHUNK == 0:
            text = torch.from_numpy(corpus.documents(first + step * documents, min(_CHUNK, steps - step) * documents))
        part = text[step % _CHUNK * documents :][:documents]
        loss = nn.functional.cross_entropy(model(part).flatten(0, 1), part.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    with torch.no_grad():
        log_p = model(torch.from_numpy(held_out.text)).double().log_softmax(-1).numpy()
    ours, true = np.exp(log_p).mean((0, 1)), held_out.truth.mean((0, 1))
    ratio = np.asarray([ours[a:b].sum() / true[a:b].sum() for a, b in held_out.bins])
    return LanguageBias(-float((held_out.truth * log_p).sum(-1).mean()), ratio)


def mean_and_interval(values: Sequence[float] | np.ndarray, axis: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Mean and half-width of its 95% interval (Student)."""
    from scipy.stats import t

    values = np.asarray(values, float)
    n = values.shape[axis]
    return values.mean(axis), t.ppf(0.975, n - 1) * values.std(axis, ddof=1) / math.sqrt(n)
