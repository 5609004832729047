"""Questions become requests of the engine, and its tokens become an answer, piece by piece.

    ChatQuestion -> Planner: prompt, sampling parameters, constraint -> engine -> tokens -> reader -> Delta, Delta, ...

The planner runs in a pool of threads, because tokenizing and compiling a grammar take time; readers run in the engine's
thread. A conversation's tokens are text, or stand between marks:

    text  python_start 12*7 python_end  output_start 84 output_end  text    we calculate; the marks are hidden
    text  python_start {"name": ..., "arguments": ...}                      with tools: the answer ends with a call
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from danalab.chat.conversations import Conversation
from danalab.chat.formats import PlainFormat, TemplateFormat
from danalab.chat.marks import Calculation, ChatFormat, ToolCaller, put_result
from danalab.chat.messages import (
    NO_ARGUMENTS,
    Function,
    Message,
    PastCalculation,
    answer_parts,
)
from danalab.errors import UserError
from danalab.inference import Request, SamplingParameters, TextStream, TokenConstraint, TokenEvent
from danalab.inference.request import CONSTRAINTS
from danalab.inference.sampling import prompt_scores
from danalab.serve.fields import NamedFunction, RequestError, ToolChoice

if TYPE_CHECKING:
    from danalab.data.tokenizers import Tokenizer
    from danalab.inference import Engine
    from danalab.models.decoder import Decoder


@dataclass(frozen=True)
class ChatModel:
    """A model that is ready to answer."""

    name: str
    model: Decoder
    tokenizer: Tokenizer
    format: ChatFormat | TemplateFormat | PlainFormat
    step: int | None = None
    """The checkpoint's step; None for a folder in Hugging Face format."""
    created: int = field(default_factory=lambda: int(time.time()))
    """Time of loading [s since 1970]."""
    card: Mapping[str, Any] = field(default_factory=dict)
    """What the page shows of the run: see `run_card`."""

    @property
    def context(self) -> int:
        """Tokens of a prompt and its continuation together, at most."""
        return self.model.config.seq_len

    @property
    def n_ids(self) -> int:
        """Token ids are below this."""
        return min(self.tokenizer.n_tokens, self.model.config.vocab_size)

    def ids(self, prompt: str | Sequence[int], field: str) -> list[int]:
        """Ids of a text (never specials), or the given ids; a RequestError names a `field` with unknown ones."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        for position, token in enumerate(prompt):
            if not 0 <= token < self.n_ids:
                where = f"{field}.{position}"
                reason = f"'{where}': {token!s:.40} is not one of the tokenizer's {self.n_ids} ids"
                raise RequestError(400, reason, param=where)
        return list(prompt)

    def scored(self, ids: list[int], top: int) -> list[TokenText]:
        """The tokens of a prompt with their log-probabilities, by the model's own layers, and the `top` most likely."""
        scores = [(None, ()), *prompt_scores(self.model, ids, self.n_ids, top)]
        return [self.token_text(token, *score) for token, score in zip(ids, scores, strict=True)]

    def token_text(self, token: int, logprob: float | None, top: Sequence[tuple[int, float]]) -> TokenText:
        """A token with its text, and those of the most likely ones."""
        decode = self.tokenizer.decode_bytes
        return TokenText(token, decode([token]), logprob, tuple((each, decode([each]), value) for each, value in top))

    @property
    def is_chat(self) -> bool:
        """Whether the model has learned a format of conversations."""
        return not isinstance(self.format, PlainFormat)

    @property
    def calls_tools(self) -> bool:
        """Whether the model has learned calculations and calls of functions."""
        return isinstance(self.format, ChatFormat)


FinishReason = Literal["stop", "length", "tool_calls", "cancelled"]


@dataclass(frozen=True)
class TokenText:
    """A token with its bytes and natural logarithm of its probability."""

    id: int
    content: bytes
    logprob: float | None
    """None: the first of a prompt, which nothing predicts."""
    top: tuple[tuple[int, bytes, float], ...] = ()
    """The most likely tokens: (id, bytes, log-probability)."""


@dataclass(frozen=True)
class FunctionCall:
    """A call of one of the request's tools."""

    id: str
    name: str
    arguments: str
    """A JSON object."""


@dataclass(frozen=True)
class Delta:
    """A piece of an answer."""

    text: str = ""
    tokens: tuple[TokenText, ...] = ()
    """The tokens of `text`, where log-probabilities are asked for."""
    call: FunctionCall | None = None
    calculation: Calculation | None = None
    """Carried out while the model writes; the engine takes its `forced` tokens as the model's next ones."""
    finish_reason: FinishReason | None = None
    continued: Request | None = None
    """The request that replaces this one in the engine; its tokens continue the answer."""


@dataclass
class Answer:
    """One answer, as far as it is known."""

    text: str = ""
    tokens: list[TokenText] = field(default_factory=list)
    call: FunctionCall | None = None
    calculations: list[tuple[int, Calculation]] = field(default_factory=list)
    """Each after the number of characters of the text that stand before it."""
    finish_reason: FinishReason | None = None

    def add(self, delta: Delta) -> None:
        """Append a delta."""
        self.text += delta.text
        self.tokens += delta.tokens
        self.call = delta.call or self.call
        if delta.calculation is not None:
            self.calculations.append((len(self.text), delta.calculation))
        self.finish_reason = delta.finish_reason

    @property
    def message(self) -> Message:
        """Text and calculations, as the model is trained on them."""
        past = [PastCalculation(**each) for each in self.calculations_json]
        return Message.of("assistant", answer_parts(self.text, past))

    @property
    def calculations_json(self) -> list[dict[str, Any]]:
        """The calculations as the endpoints give them."""
        return [{"expression": each.expression, "result": each.result, "position": position}
                for position, each in self.calculations]  # fmt: skip

    @property
    def shown(self) -> str:
        """Text and call, for a log."""
        return self.text + ("" if self.call is None else f"{self.call.name}({self.call.arguments})")


def force_result(engine: Engine, number: int, delta: Delta) -> Delta:
    """Put the result of a calculation into the answer; without space in the context the answer ends there."""
    if delta.calculation is None or put_result(engine, number, delta.calculation):
        return delta
    return replace(delta, finish_reason="length")


class TextReader:
    """Reads plain text, after an `echo` of the prompt with its tokens; special tokens have no text."""

    def __init__(self, chat_model: ChatModel, request: Request, echo: str = "", scored: Sequence[TokenText] = ()):
        self.chat_model, self.request, self._constraint = chat_model, request, request.constraint
        self._stream = TextStream(chat_model.tokenizer, request.parameters.stop)
        self._specials = frozenset(chat_model.tokenizer.specials.values())
        self._echo = echo
        self._held: list[TokenText] = [*scored]
        """Tokens whose text is held back: a part of a character, or the possible beginning of a stop string."""

    def read(self, event: TokenEvent) -> Delta:
        """The delta of one token. Raises RequestError: the engine could not draw one."""
        if event.finish_reason == "error":
            if self._constraint is not None and not self._constraint.mask().any():
                raise RequestError(400, "the JSON schema allows no further text, or is too large", code="schema_error")
            raise RequestError(500, "no token can be drawn: the model's logits are not finite", code="engine_error")
        echo, self._echo = self._echo, ""
        is_special = event.token in self._specials
        # After an echo a special token is listed, too: its reader counts tokens from the end of the prompt.
        if self.request.parameters.logprobs is not None and (echo or not is_special):
            self._held.append(self.chat_model.token_text(event.token, event.logprob, event.top_logprobs))
        return self._delta(echo + ("" if is_special else self._stream.feed(event.token)), event)

    def _delta(self, text: str, event: TokenEvent) -> Delta:
        """Text with the tokens that it consists of, and the end of the answer."""
        reason: FinishReason | None = None
        if self._stream.stopped:
            reason = "stop"
        elif event.finish_reason is not None:
            reason = "length" if event.finish_reason == "length" else "stop"
            text += self._stream.finish()
        tokens: tuple[TokenText, ...] = ()
        if text:
            tokens, self._held = tuple(self._held), []
        return Delta(text, tokens, finish_reason=reason)


class ChatReader(TextReader):
    """The assistant's message of a conversation, a call from its first token (`is_call`) or by choice, under `call`."""

    def __init__(
        self, chat_model: ChatModel, request: Request, call: TokenConstraint | None = None, *, is_call: bool = False
    ):
        super().__init__(chat_model, request)
        self._call, self._is_call = call, is_call
        self._caller = ToolCaller(chat_model.format) if isinstance(chat_model.format, ChatFormat) else None
        self._begins_call = chat_model.format.python_start if isinstance(chat_model.format, ChatFormat) else None
        self._tokens: list[int] = []  # all tokens of the answer up to a call
        self._arguments: list[int] = []  # tokens of the call

    def read(self, event: TokenEvent) -> Delta:
        if event.finish_reason == "error" or self._caller is None:
            return super().read(event)
        if self._is_call:
            return self._read_call(event)
        self._tokens.append(event.token)
        if event.finish_reason is None and event.token == self._begins_call and self._call is not None:
            return self._begin_call(self._call)
        before = self._caller.state
        calculation = self._caller.feed(event.token) if event.finish_reason is None else None
        if calculation is not None:
            return Delta(calculation=calculation)
        return super().read(event) if before == self._caller.state == "text" else self._delta("", event)

    def _begin_call(self, constraint: TokenConstraint) -> Delta:
        """Let the tokens from here on follow the grammar of calls."""
        self._is_call, self._constraint = True, constraint
        old = self.request
        left = (old.parameters.max_tokens or 0) - len(self._tokens)
        if left < 1:
            return Delta(finish_reason="length")
        parameters = replace(old.parameters, max_tokens=left, stop=())
        prompt = [*old.prompt, *self._tokens]
        return Delta(continued=replace(old, prompt=prompt, parameters=parameters, constraint=constraint))

    def _read_call(self, event: TokenEvent) -> Delta:
        if event.token not in self._specials:
            self._arguments.append(event.token)
        if event.finish_reason is None:
            return Delta()
        try:
            call = json.loads(self.chat_model.tokenizer.decode(self._arguments))
        except ValueError:  # cut off by max_tokens
            return Delta(finish_reason="length")
        arguments = json.dumps(call["arguments"], ensure_ascii=False)
        return Delta(call=FunctionCall(f"call_{uuid.uuid4().hex}", call["name"], arguments), finish_reason="tool_calls")


@dataclass(frozen=True)
class ChatQuestion:
    """What the chat endpoints ask of the model."""

    conversation: Conversation
    sampling: SamplingParameters
    """`max_tokens` None: as many as fit in the context."""
    n: int = 1
    tools: Sequence[Function] = ()
    tool_choice: ToolChoice | NamedFunction = "auto"
    schema: dict[str, Any] | None = None
    """JSON schema that the answer follows; None: free text."""
    drops_old_turns: bool = False
    """Whether the oldest turns are left out if the conversation exceeds the context."""


@dataclass(frozen=True)
class EngineWork:
    """The work of one HTTP request."""

    pairs: list[tuple[Request, TextReader]]
    prompt_tokens: int


class Planner:
    """Plans for one model; the methods raise RequestError for what the model cannot do."""

    def __init__(self, chat_model: ChatModel, max_choices: int):
        self.chat_model, self.max_choices = chat_model, max_choices

    def chat(self, question: ChatQuestion, scope: str) -> EngineWork:
        """Answers to a conversation."""
        self._check_count(question.n, "n")
        self._check_bias(question.sampling)
        check_tools(question.tools, question.tool_choice)
        chat_format = self.chat_model.format
        if question.tools and not self.chat_model.calls_tools:
            reason = f"'tools' need a model that danalab sft has trained; {self.chat_model.name} is not one"
            raise RequestError(400, reason, param="tools")
        forced: Sequence[Function] = question.tools if question.tool_choice == "required" else ()
        if isinstance(question.tool_choice, NamedFunction):
            forced = [tool for tool in question.tools if tool.name == question.tool_choice.name]
        mark = [chat_format.python_start] if forced and isinstance(chat_format, ChatFormat) else []
        prompt, max_tokens = self._chat_prompt(question, mark)
        stop = () if forced else (*question.sampling.stop, *chat_format.stop_texts)
        stop_tokens = tuple(chat_format.stop_tokens)
        sampling = replace(question.sampling, max_tokens=max_tokens, stop_tokens=stop_tokens, stop=stop)
        schema = call_schema(forced) if forced else question.schema
        chosen = question.tools if question.tool_choice == "auto" else ()
        pairs: list[tuple[Request, TextReader]] = []
        constraint = None if schema is None else self._constraint(schema, "tools" if forced else "response_format")
        call = self._constraint(call_schema(chosen), "tools") if chosen and schema is None else None
        for i in range(question.n):
            own, call = (each and each.copy() for each in (constraint, call))
            request = Request(prompt, _seeded(sampling, i), own, scope)
            pairs.append((request, ChatReader(self.chat_model, request, call, is_call=bool(forced))))
        return EngineWork(pairs, len(prompt))

    def completions(
        self, prompts: Sequence[str | Sequence[int]], sampling: SamplingParameters, n: int, scope: str, *, echo: bool
    ) -> EngineWork:
        """`n` continuations of each prompt, in order; `echo`: each begins with its prompt."""
        self._check_count(n * len(prompts), "n" if len(prompts) == 1 else "prompt")
        self._check_bias(sampling)
        sampling = replace(sampling, stop_tokens=(self.chat_model.tokenizer.eos_id,))
        pairs: list[tuple[Request, TextReader]] = []
        total = 0
        for prompt in prompts:
            ids = self.chat_model.ids(prompt, "prompt") or [self.chat_model.tokenizer.eos_id]
            limit = self._limit(len(ids), sampling.max_tokens, "prompt")
            total += len(ids)
            text = (prompt if isinstance(prompt, str) else self.chat_model.tokenizer.decode(ids)) if echo else ""
            scored = self.chat_model.scored(ids, sampling.logprobs) if text and sampling.logprobs is not None else []
            for i in range(n):
                request = Request(ids, _seeded(replace(sampling, max_tokens=limit), i), None, scope)
                pairs.append((request, TextReader(self.chat_model, request, text, scored)))
        return EngineWork(pairs, total)

    def _chat_prompt(self, question: ChatQuestion, mark: list[int]) -> tuple[list[int], int]:
        """(ids that end with `mark`, tokens to generate at most)."""
        conversation, context = question.conversation, self.chat_model.context
        wanted = question.sampling.max_tokens
        needed = wanted if wanted is not None and wanted < context else 1
        while True:
            prompt = [*self.chat_model.format.render_prompt(conversation), *mark]
            messages = conversation.messages
            first = 1 if messages[0].role == "system" else 0
            after = first + (1 if messages[first].role == "assistant" else 2)  # behind the oldest question and answer
            if len(prompt) + needed <= context or not question.drops_old_turns or after >= len(messages):
                return prompt, self._limit(len(prompt), wanted, "messages")
            conversation = Conversation(messages[:first] + messages[after:])

    def _limit(self, prompt: int, wanted: int | None, param: str) -> int:
        """Tokens to generate at most: `wanted`, or what the context has space for."""
        space = self.chat_model.context - prompt
        if space < 1:
            reason = f"the prompt has {prompt} tokens: the model's context is {self.chat_model.context} tokens"
            raise RequestError(400, reason, param=param, code="context_length_exceeded")
        return space if wanted is None else min(wanted, space)

    def _check_count(self, count: int, param: str) -> None:
        if count > self.max_choices:
            reason = f"'{param}': {count} answers are asked for, and this server gives at most {self.max_choices}"
            raise RequestError(400, reason, param=param)

    def _check_bias(self, sampling: SamplingParameters) -> None:
        for token in sampling.logit_bias:
            if token >= self.chat_model.n_ids:
                reason = f"'logit_bias.{token}': the model has {self.chat_model.n_ids} ids"
                raise RequestError(400, reason, param="logit_bias")

    def _constraint(self, schema: dict[str, Any], param: str) -> Any:
        try:
            return CONSTRAINTS.get("json")(self.chat_model.tokenizer, schema)
        except UserError as error:
            raise RequestError(400, f"'{param}': {error}", param=param) from None


def _seeded(sampling: SamplingParameters, index: int) -> SamplingParameters:
    """The parameters of choice `index`: each has another seed."""
    return sampling if sampling.seed is None else replace(sampling, seed=(sampling.seed + index) % 2**63)


def call_schema(tools: Sequence[Function]) -> dict[str, Any]:
    """JSON schema of a call of one of `tools`."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": tool.name}, "arguments": tool.parameters or NO_ARGUMENTS},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def check_tools(tools: Sequence[Function], choice: ToolChoice | NamedFunction) -> None:
    """Check that names are unique and a required call is possible; a RequestError names the field at fault."""
    names = [tool.name for tool in tools]
    if twice := {name for name in names if names.count(name) > 1}:
        raise RequestError(400, f"'tools': two functions have the name {min(twice)!r}", param="tools")
    if isinstance(choice, NamedFunction) and choice.name not in names:
        raise RequestError(400, f"'tool_choice': no function {choice.name!r:.80} among the tools", param="tool_choice")
    if choice == "required" and not tools:
        raise RequestError(400, "'tool_choice' is required, but there are no tools", param="tool_choice")
