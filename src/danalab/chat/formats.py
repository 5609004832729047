"""Formats of conversations beside our own marks (`ChatFormat`): a model's chat template, and plain text.

    messages -> template -> text -> text | special token | text ... -> ids

Templates are Jinja, rendered in its sandbox. The ids are those of `apply_chat_template` of transformers, except that a
special token spelled out in a message stays text: nobody can add a role. `chat_template` is our own format as a
template, for the tokenizer of an export.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from danalab.chat.marks import CHAT_STAGES, SPECIAL_TOKENS, ChatFormat, missing_specials
from danalab.chat.messages import Conversation, Message
from danalab.data.tokenizers.chat_template import ChatTemplate
from danalab.errors import UserError, first_line
from danalab.files import read_json
from danalab.train.run.folder import tokenizer_folder_of
from danalab.train.run.open import open_run

if TYPE_CHECKING:
    from danalab.data.tokenizers import Tokenizer

_BREAK = chr(0xFDD0)
"""A character that Unicode keeps for internal use; it breaks the spelling of special tokens in messages."""


def format_of(folder: Path, tokenizer: Tokenizer) -> ChatFormat | TemplateFormat | PlainFormat:
    """Our marks where a stage or template says that the model knows them, else its own template, else plain text."""
    template = ChatTemplate.read(tokenizer_folder_of(folder))
    knows_marks = (
        SPECIAL_TOKENS["assistant_start"] in template.text
        if template is not None
        else read_json(folder / "config.json").get("stage") in CHAT_STAGES
    )
    if knows_marks and not missing_specials(tokenizer):
        return ChatFormat(tokenizer)
    if template is None:
        return PlainFormat(tokenizer)
    try:
        return TemplateFormat(tokenizer, template)
    except UserError as error:
        raise UserError(f"{folder}: {error}") from None


class PlainFormat:
    """Conversations as plain text, for models that have not learned the marks of roles.

    User: question
    Assistant: answer
    """

    stop_texts: tuple[str, ...] = ("\nUser:",)
    """Texts that end an answer."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.stop_tokens = (tokenizer.eos_id,)

    def render_prompt(self, conversation: Conversation) -> list[int]:
        """The ids after which the assistant speaks."""
        lines = []
        for question, answer in conversation.turns():
            lines += [] if question is None else [f"User: {question}\n"]
            lines.append("Assistant:")
            if answer is not None:
                lines.append(f" {answer.text}\n")
        text = "".join(lines)
        if conversation.is_open:
            text = text[:-1]  # the answer is continued
        return [self.tokenizer.bos_id, *self.tokenizer.encode(text)]


class TemplateFormat:
    """The format of a chat template.

    Attributes:
        stop_tokens: ids that end an answer.
    """

    stop_texts = ()

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate):
        """Raises UserError if the template is malformed."""
        named = tokenizer.specials.get(template.variables.get("eos_token", ""))
        ends = (*(() if named is None else (named,)), *template.end_tokens, tokenizer.eos_id)
        self.tokenizer = tokenizer
        self.stop_tokens = tuple(dict.fromkeys(ends))
        self._variables, self._template = template.variables, compile_template(template.text)
        longest_first = sorted(filter(None, tokenizer.specials), key=len, reverse=True)
        self._specials = re.compile(f"({'|'.join(map(re.escape, longest_first))})")

    def render_prompt(self, conversation: Conversation) -> list[int]:
        """The ids after which the assistant speaks; an assistant's message at the end is continued.

        UserError: the template refuses the conversation, or a message has calls of tools.
        """
        ids: list[int] = []
        for index, piece in enumerate(self._specials.split(self._render(conversation))):
            if index % 2:  # text, special, text, ..., text
                ids.append(self.tokenizer.specials[piece])
            else:
                ids += self.tokenizer.encode(piece.replace(_BREAK, ""))
        return ids

    def parse(self, ids: Iterable[int]) -> Message | None:
        """The assistant's message in drawn ids, up to the first stop token; None where it said nothing."""
        said = itertools.takewhile(lambda id_: id_ not in self.stop_tokens, ids)
        hidden = frozenset(self.tokenizer.specials.values())
        text = self.tokenizer.decode([id_ for id_ in said if id_ not in hidden])
        return Message.of("assistant", text) if text.strip() else None

    def _render(self, conversation: Conversation) -> str:
        messages = [{"role": each.role, "content": self._content(each)} for each in conversation.messages]
        is_open = conversation.is_open
        try:
            text = self._template.render(
                messages=messages, **self._variables, add_generation_prompt=not is_open
            )
        except Exception as error:  # a template may do anything
            raise UserError(
                f"the model's chat template refuses the conversation: {first_line(error)}"
            ) from None
        if not is_open:
            return text
        for last in (messages[-1]["content"], messages[-1]["content"].strip()):  # templates may strip it
            start = text.rfind(last)
            if start >= 0:
                return text[: start + len(last)]
        raise UserError("the model's chat template changes the assistant's message that is to be continued")

    def _content(self, message: Message) -> str:
        """The text of a message, with the spellings of special tokens broken up."""
        if any(part.kind != "text" for part in message.parts):
            raise UserError(
                "calls of functions need a model that danalab sft has trained, not a template of its own"
            )
        text = message.text.replace(_BREAK, "")
        return self._specials.sub(lambda found: found[0][0] + _BREAK + found[0][1:], text)


def compile_template(text: str) -> Any:
    """A template in the dialect of transformers. UserError: it is malformed."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationBlock(Extension):
        """{% generation %}: marks what the assistant says; here its content alone."""

        tags = {"generation"}  # noqa: RUF012  (as the base class has it)

        def parse(self, parser: Any) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(reason: object) -> None:
        raise UserError(str(reason))

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **how: json.dumps(value, **{"ensure_ascii": False, **how})
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(text)
    except (TemplateError, RecursionError) as error:
        raise UserError(f"the chat template is malformed: {first_line(error)}") from None


# ---- our own format as a template ----

_TEMPLATE = """\
{%- macro plain(text) -%}
{%- for special in SPECIALS -%}
{%- if special in text -%}{{- raise_exception('the text spells the special token ' ~ special) -}}{%- endif -%}
{%- endfor -%}
{{- text -}}
{%- endmacro -%}
{%- set before = namespace(prefix='', role='') -%}
{{- 'BOS' -}}
{%- for message in messages -%}
{%- if message.role == 'system' and loop.first -%}
{%- set before.prefix = message.content ~ '\\n\\n' -%}
{%- elif message.role == 'user' and before.role != 'user' -%}
{%- set before.role = 'user' -%}
{{- 'USER_START' ~ plain(before.prefix ~ message.content) ~ 'USER_END' -}}
{%- set before.prefix = '' -%}
{%- elif message.role == 'assistant' and before.role != 'assistant' -%}
{%- set before.role = 'assistant' -%}
{{- 'ASSISTANT_START' -}}
{%- for piece in message.content.split('<<') -%}
{%- set ends = piece.split('>>', 1) -%}
{%- set sides = ends[0].split('=') -%}
{%- if loop.first -%}{%- generation -%}{{- plain(piece) -}}{%- endgeneration -%}
{%- elif ends|length == 2 and sides|length == 2 and sides[0] and '<' not in ends[0] and '>' not in ends[0] -%}
{%- generation -%}{{- 'PYTHON_START' ~ plain(sides[0]) ~ 'PYTHON_END' -}}{%- endgeneration -%}
{{- 'OUTPUT_START' ~ plain(sides[1]) ~ 'OUTPUT_END' -}}
{%- generation -%}{{- plain(ends[1]) -}}{%- endgeneration -%}
{%- else -%}{%- generation -%}{{- '<<' ~ plain(piece) -}}{%- endgeneration -%}{%- endif -%}
{%- endfor -%}
{%- generation -%}{{- 'ASSISTANT_END' -}}{%- endgeneration -%}
{%- else -%}
{{- raise_exception('roles out of order: an optional system message, then user and assistant in turn') -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'ASSISTANT_START' -}}{%- endif -%}
"""
"""The same as `ChatFormat`: the marks of a calculation stand for <<12*7=84>>."""


def chat_template() -> str:
    """The template."""
    text = _TEMPLATE.replace("SPECIALS", json.dumps(list(SPECIAL_TOKENS.values())))
    for name, spelling in SPECIAL_TOKENS.items():
        text = text.replace(f"'{name.upper()}'", f"'{spelling}'")
    return text


def template_of(run: str | Path) -> ChatTemplate | None:
    """The template for the export of a run that was trained on conversations; None for other runs."""
    opened = open_run(run)
    if opened.config.get("stage", "pretraining") == "pretraining":
        return None
    tokenizer = opened.tokenizer
    begins = {"bos_token": tokenizer.decode([tokenizer.bos_id])}
    return ChatTemplate(chat_template(), begins, ChatFormat(tokenizer).stop_tokens[::-1])
