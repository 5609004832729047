"""From a question to the engine: prompt, sampling parameters, constraint, and a reader of the answer.

Nothing here touches the engine; it runs in a pool of threads, because tokenizing and compiling a grammar take time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from danalab.chat.conversations import ChatFormat, Conversation
from danalab.chat.message_fields import FieldError, Function, Ignored
from danalab.chat.messages import NO_ARGUMENTS, ConversationBuilder
from danalab.errors import UserError
from danalab.inference import JsonConstraint, Request, SamplingParameters
from danalab.serve.chat_model import ChatModel
from danalab.serve.fields import (
    JsonObjectFormat,
    NamedFunction,
    RequestError,
    Sampling,
    ToolChoice,
    only,
)
from danalab.serve.readers import AnswerReader, ChatReader, TextReader


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


class ConversationRequest(Sampling):
    """What the two endpoints of conversations share."""

    tools: Any = None
    tool_choice: Any = None
    n: Any = None
    truncation: Literal["auto", "disabled"] | None = None
    """auto: the oldest turns are left out if the conversation exceeds the context. Beyond OpenAI's chat completions."""
    parallel_tool_calls: bool | None = None
    """Accepted without effect: an answer has at most one call."""
    prompt_cache_key: Ignored = None
    safety_identifier: Ignored = None
    store: Ignored = None
    service_tier: Annotated[str | None, only("auto", "default")] = None

    def add_to(self, builder: ConversationBuilder) -> None:
        """Give the messages to a builder; FieldError: one is malformed."""
        raise NotImplementedError

    def asked(self) -> tuple[str, SamplingParameters, Any]:
        """(field of the messages, parameters, format of the answer)."""
        raise NotImplementedError

    def plan(self, planner: "Planner", scope: str) -> "EngineWork":
        """The work of the engine."""
        where, sampling, form = self.asked()
        tools = [getattr(each, "function", each) for each in self.tools or ()]
        choice = getattr(self.tool_choice, "function", self.tool_choice) or "auto"
        builder = ConversationBuilder(planner.chat_model.calls_tools)
        try:
            self.add_to(builder)
            conversation = Conversation(builder.build([] if choice == "none" else tools, where))
        except FieldError as error:
            raise RequestError.of(error) from None
        except UserError as error:
            raise RequestError(400, f"'{where}': {error}", param=where) from None
        schema = {"type": "object"} if isinstance(form, JsonObjectFormat) else getattr(form, "schema_", None)
        question = ChatQuestion(
            conversation, sampling, self.n or 1, tools, choice, schema, drops_old_turns=self.truncation == "auto"
        )
        return planner.chat(question, scope)


@dataclass(frozen=True)
class EngineWork:
    """The work of one HTTP request."""

    pairs: list[tuple[Request, AnswerReader]]
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
        forced = _forced_tools(question)
        mark = [chat_format.python_start] if forced and isinstance(chat_format, ChatFormat) else []
        prompt, max_tokens = self._chat_prompt(question, mark)
        stop = () if forced else (*question.sampling.stop, *self.chat_model.stop_texts)
        stop_tokens = tuple(chat_format.stop_tokens)
        sampling = replace(question.sampling, max_tokens=max_tokens, stop_tokens=stop_tokens, stop=stop)
        schema = call_schema(forced) if forced else question.schema
        chosen = question.tools if question.tool_choice == "auto" else ()
        pairs: list[tuple[Request, AnswerReader]] = []
        constraint = None if schema is None else self._constraint(schema, "tools" if forced else "response_format")
        call = self._constraint(call_schema(chosen), "tools") if chosen and schema is None else None
        for i in range(question.n):
            own, call = (each and each.copy() for each in (constraint, call))
            request = Request(prompt, _seeded(sampling, i), own, scope)
            pairs.append((request, ChatReader(self.chat_model, request, call, is_call=bool(forced))))
        return EngineWork(pairs, len(prompt))

    def completions(
        self, prompts: Sequence[str | Sequence[int]], sampling: SamplingParameters, n: int, scope: str
    ) -> EngineWork:
        """`n` continuations of each prompt, in order."""
        self._check_count(n * len(prompts), "n" if len(prompts) == 1 else "prompt")
        self._check_bias(sampling)
        sampling = replace(sampling, stop_tokens=(self.chat_model.tokenizer.eos_id,))
        pairs: list[tuple[Request, AnswerReader]] = []
        total = 0
        for prompt in prompts:
            ids = self.chat_model.ids(prompt, "prompt") or [self.chat_model.tokenizer.eos_id]
            limit = self._limit(len(ids), sampling.max_tokens, "prompt")
            total += len(ids)
            for i in range(n):
                request = Request(ids, _seeded(replace(sampling, max_tokens=limit), i), None, scope)
                pairs.append((request, TextReader(self.chat_model, request)))
        return EngineWork(pairs, total)

    def _chat_prompt(self, question: ChatQuestion, mark: list[int]) -> tuple[list[int], int]:
        """(ids that end with `mark`, tokens to generate at most)."""
        conversation, context = question.conversation, self.chat_model.context
        wanted = question.sampling.max_tokens
        needed = wanted if wanted is not None and wanted < context else 1
        while True:
            prompt = [*self.chat_model.format.render_prompt(conversation), *mark]
            shorter = without_oldest_turn(conversation) if question.drops_old_turns else None
            if len(prompt) + needed <= context or shorter is None:
                return prompt, self._limit(len(prompt), wanted, "messages")
            conversation = shorter

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

    def _constraint(self, schema: dict[str, Any], param: str) -> JsonConstraint:
        try:
            return JsonConstraint(self.chat_model.tokenizer, schema)
        except UserError as error:
            raise RequestError(400, f"'{param}': {error}", param=param) from None


def _forced_tools(question: ChatQuestion) -> Sequence[Function]:
    match question.tool_choice:
        case "required":
            return question.tools
        case NamedFunction(name=name):
            return [tool for tool in question.tools if tool.name == name]
    return ()


def _seeded(sampling: SamplingParameters, index: int) -> SamplingParameters:
    """The parameters of choice `index`: each has another seed."""
    return sampling if sampling.seed is None else replace(sampling, seed=(sampling.seed + index) % 2**63)


def without_oldest_turn(conversation: Conversation) -> Conversation | None:
    """The conversation without its first question and answer; None if there is only one question."""
    messages = conversation.messages
    first = 1 if messages[0].role == "system" else 0
    after = first + (1 if messages[first].role == "assistant" else 2)
    return Conversation(messages[:first] + messages[after:]) if after < len(messages) else None


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
