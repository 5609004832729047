"""Answers of a model to prompts, in batches, with calls of the calculator; answers to problems, with their rewards.

    problem -> prompt -> requests, a seed each -> engine, tool calls -> answers -> texts -> rewards

drawn    the tokens that the model chose, with their log-probabilities: what training may reinforce
forced   the output of a tool, which is put into the text: output_start value output_end
"""

import contextlib
import hashlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from danalab.chat.formats import TemplateFormat
from danalab.chat.marks import CallFollower, ChatFormat
from danalab.chat.rewards import Scorer
from danalab.chat.tasks import Problem
from danalab.errors import UserError
from danalab.inference.engine import Engine
from danalab.inference.request import Request, SamplingParameters, TokenEvent

log = logging.getLogger(__name__)

TELL_EVERY = 10
"""Time between two lines of the log about answers that are being written [s]."""


@dataclass(frozen=True)
class AnswerSettings:
    """How problems are answered. Raises UserError: several answers that are all the same."""

    limit: int | None = None
    """Problems of a task, the first ones; None: all."""
    samples: int = 1
    """Answers to each problem."""
    temperature: float = 0.0
    """0: the most likely token; several samples need more."""
    max_tokens: int = 256
    """Limit on an answer."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples > 1 and self.temperature == 0:
            raise UserError(
                f"--samples {self.samples}: at temperature 0 all answers are the same; give --temperature 1"
            )


@dataclass
class SampledAnswer:
    """One answer as tokens."""

    tokens: list[int] = field(default_factory=list)
    """Drawn and forced tokens in order, with the one that ends the answer."""
    log_probs: list[float] = field(default_factory=list)
    """Log-probability of each drawn token in the distribution that it was drawn from [nats]; 0 for forced ones."""
    drawn: list[bool] = field(default_factory=list)
    """Whether the model drew the token."""
    finished: bool = False
    """It ended itself; otherwise the limit or the context cut it off."""
    calls: int = 0
    """Calls of tools."""

    def _add(self, tokens: Sequence[int], log_prob: float, *, drawn: bool) -> None:
        self.tokens += tokens
        self.log_probs += [log_prob] * len(tokens)
        self.drawn += [drawn] * len(tokens)


@dataclass(frozen=True)
class AnsweredProblem:
    """A problem with the answers that were sampled, and what they earned."""

    problem: Problem
    prompt: list[int]
    answers: list[SampledAnswer]
    texts: list[str]
    rewards: list[float]


def answer_problems(
    engine: Engine,
    chat: ChatFormat | TemplateFormat,
    scorer: Scorer,
    problems: Mapping[Any, Problem],
    settings: AnswerSettings,
) -> list[AnsweredProblem | None]:
    """The problems answered and scored, in their order; None: its prompt leaves no space for an answer.

    An answer is a function of the problem's key and the number of the sample, whatever the batch, except for rounding.
    It is cut off where it is too long or fills the context. UserError: a reward misbehaves, or logits are not finite.
    """
    requests, asked, answered = list[Request](), list[AnsweredProblem](), list[AnsweredProblem | None]()
    for key, problem in problems.items():
        prompt = chat.render_prompt(problem.prompt())
        space = engine.model.config.seq_len - len(prompt)
        if space <= 0:
            answered.append(None)
            continue
        one = AnsweredProblem(problem, prompt, [], [], [])
        answered.append(one)
        for sample in range(settings.samples):
            parameters = SamplingParameters(
                temperature=settings.temperature,
                max_tokens=min(settings.max_tokens, space),
                seed=sampling_seed(*key, sample),
            )
            requests.append(Request(prompt, parameters))
            asked.append(one)
    answers = answer_all(engine, chat, requests)
    messages = [chat.parse(answer.tokens) for answer in answers]
    texts = ["" if message is None else message.spoken for message in messages]
    rewards = scorer.score_all((one.problem, text) for one, text in zip(asked, texts, strict=True))
    for one, answer, text, reward in zip(asked, answers, texts, rewards, strict=True):
        one.answers.append(answer)
        one.texts.append(text)
        one.rewards.append(reward)
    return answered


def answer_all(
    engine: Engine, chat: ChatFormat | TemplateFormat, requests: Sequence[Request]
) -> list[SampledAnswer]:
    """The answers to prompts of `chat.render_prompt`, which its end tokens end; only `ChatFormat` has tools."""
    answers = [SampledAnswer() for _ in requests]
    followers = [CallFollower(chat) for _ in requests] if isinstance(chat, ChatFormat) else None
    ended, told = 0, time.monotonic()

    def take(index: int, event: TokenEvent) -> None:
        nonlocal ended, told
        answer = answers[index]
        ended += event.finish_reason is not None
        if time.monotonic() - told > TELL_EVERY:
            told = time.monotonic()
            log.info("%d of %d answers", ended, len(answers))
        if event.token >= 0:
            answer._add([event.token], event.logprob, drawn=True)
        if event.finish_reason is not None:
            answer.finished = event.finish_reason == "stop"
        elif followers is not None:
            result = followers[index].feed(event.token)
            if result is None:
                return
            answer.calls += 1
            forced = followers[index].force(engine, event.request_id, result)
            answer._add(forced, 0.0, drawn=False)
            if not forced:  # the answer is cut off here
                engine.cancel(event.request_id)

    parameters = (replace(each.parameters, stop_tokens=chat.stop_tokens) for each in requests)
    engine.generate(
        [replace(each, parameters=own) for each, own in zip(requests, parameters, strict=True)], take
    )
    return answers


class ModelEngine:
    """An engine for a model, a `Decoder`, whose weights change between its uses."""

    def __init__(self, model: Any, chat: ChatFormat | TemplateFormat, *, max_batch_size: int = 64):
        self._model, self._chat, self._max_batch_size = model, chat, max_batch_size
        self._engine: Engine | None = None

    @contextlib.contextmanager
    def __call__(self) -> Iterator[Engine]:
        """The engine with the present weights; the model decodes without dropout and document mask meanwhile."""
        model = self._model
        training, document_token = model.training, model.document_token
        model.eval()
        model.document_token = None
        try:
            if self._engine is None:
                self._engine = Engine(
                    model, self._chat.tokenizer, end_tokens=(), max_batch_size=self._max_batch_size
                )
            else:
                self._engine.reload()
            yield self._engine
        finally:
            model.train(training)
            model.document_token = document_token


def sampling_seed(*key: Any) -> int:
    """A seed of 63 bits, a function of any values."""
    digest = hashlib.sha256("|".join(map(str, key)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
