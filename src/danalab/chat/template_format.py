"""Conversations by the chat template of a model that others trained, e.g. ChatML: Jinja, run in a sandbox.

    messages -> template -> text -> text | special token | text ... -> ids

The ids are those of `apply_chat_template` of transformers, except that a special token spelled out in a message stays
text: nobody can add a role.
"""

import itertools
import json
import re
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from danalab.chat.conversations import Conversation, Message
from danalab.data.tokenizers.chat_template import ChatTemplate
from danalab.errors import UserError, first_line

if TYPE_CHECKING:
    from danalab.data.tokenizers import Tokenizer

_BREAKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
"""Characters that Unicode keeps for internal use; one of them breaks the spelling of special tokens in messages."""


class TemplateFormat:
    """The format of a chat template.

    Attributes:
        stop_tokens: ids that end an answer.
        n_ids: ids from here on (padding of the vocabulary) are never part of a conversation.
    """

    def __init__(self, tokenizer: "Tokenizer", template: ChatTemplate):
        """Raises UserError if the template is malformed."""
        named = tokenizer.specials.get(template.variables.get("eos_token", ""))
        ends = (*(() if named is None else (named,)), *template.end_tokens, tokenizer.eos_id)
        self.tokenizer = tokenizer
        self.n_ids = tokenizer.n_tokens
        self.stop_tokens = tuple(dict.fromkeys(ends))
        self._variables = template.variables
        self._template = _compile(template.text)
        self._break = next(each for each in _BREAKS if each not in template.text)
        longest_first = sorted(filter(None, tokenizer.specials), key=len, reverse=True)
        self._specials = re.compile(f"({'|'.join(map(re.escape, longest_first))})")

    def render_prompt(self, conversation: Conversation) -> list[int]:
        """The ids after which the assistant speaks; an assistant's message at the end is continued.

        Raises:
            UserError: the template refuses the conversation, or a message has calls of tools.
        """
        return self.encode(self.render_text(conversation))

    def render_text(self, conversation: Conversation) -> str:
        """The text of `render_prompt`, for `encode`: special tokens that messages spell out are broken up.

        Raises:
            UserError: see `render_prompt`.
        """
        messages = [{"role": each.role, "content": self._content(each)} for each in conversation.messages]
        is_open = messages[-1]["role"] == "assistant"
        text = self._render(messages, add_generation_prompt=not is_open)
        return _until(text, messages[-1]["content"]) if is_open else text

    def encode(self, text: str) -> list[int]:
        """Ids of a text of `render_text`, or of a part of one."""
        ids: list[int] = []
        for place, piece in enumerate(self._specials.split(text)):  # text, special, text, ..., text
            if place % 2:
                ids.append(self.tokenizer.specials[piece])
            else:
                ids += self.tokenizer.encode(piece.replace(self._break, ""))
        return ids

    def parse(self, ids: Iterable[int]) -> Message | None:
        """The assistant's message in ids that a model produced after `render_prompt`; None where it said nothing.

        Reads to the first stop token; other special tokens have no text.
        """
        said = itertools.takewhile(lambda id_: id_ not in self.stop_tokens, ids)
        hidden = frozenset(self.tokenizer.specials.values())
        text = self.tokenizer.decode([id_ for id_ in said if id_ not in hidden])
        return Message.of("assistant", text) if text.strip() else None

    def _content(self, message: Message) -> str:
        if any(part.type != "text" for part in message.parts):
            raise UserError("calls of functions need a model that danalab sft has trained, not a template of its own")
        text = message.text.replace(self._break, "")
        return self._specials.sub(lambda found: found[0][0] + self._break + found[0][1:], text)

    def _render(self, messages: list[dict[str, str]], **more: Any) -> str:
        try:
            return self._template.render(messages=messages, **self._variables, **more)
        except UserError:
            raise
        except Exception as error:  # a template may do anything
            raise UserError(f"the model's chat template fails: {type(error).__name__}: {first_line(error)}") from None


def _until(text: str, last: str) -> str:
    """`text` up to the end of the message `last`, which templates may strip."""
    for wanted in (last, last.strip()):
        place = text.rfind(wanted)
        if place >= 0:
            return text[: place + len(wanted)]
    raise UserError("the model's chat template changes the assistant's message that is to be continued")


def _compile(template: str) -> Any:
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationBlock(Extension):
        """{% generation %}: marks what the assistant says; here its content alone."""

        tags = {"generation"}  # noqa: RUF012  (as the base class has it)

        def parse(self, parser: Any) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **how: json.dumps(value, **{"ensure_ascii": False, **how})
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(template)
    except TemplateError as error:
        raise UserError(f"the chat template is malformed: {first_line(error)}") from None


def _refuse(reason: object) -> None:
    raise UserError(f"the model's chat template refuses the conversation: {first_line(reason)}")
