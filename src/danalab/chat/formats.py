"""Formats of conversations beside our own marks (`ChatFormat`): a model's chat template, and plain text.

    messages -> template -> text -> text | special token | text ... -> ids

Templates are Jinja, run in a process of their own (template_process.py). The ids are those of `apply_chat_template` of
transformers, except that a special token spelled out in a message stays text: nobody can add a role. `chat_template` is
our own format as a template, for the tokenizer of an export.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from danalab.chat.conversations import Conversation, Message
from danalab.chat.marks import CHAT_STAGES, SPECIAL_TOKENS, ChatFormat, missing_specials
from danalab.data.tokenizers.chat_template import ChatTemplate
from danalab.errors import UserError
from danalab.files import read_json
from danalab.train.run.folder import tokenizer_folder_of
from danalab.train.run.open import open_run

if TYPE_CHECKING:
    from danalab.data.tokenizers import Tokenizer

_BREAKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
"""Characters that Unicode keeps for internal use; one of them breaks the spelling of special tokens in messages."""
_MAX_TEMPLATE = 1 << 20  # characters of a template


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
        if conversation.messages[-1].role == "assistant":
            text = text[:-1]  # the answer is continued
        return [self.tokenizer.eos_id, *self.tokenizer.encode(text)]


class TemplateFormat:
    """The format of a chat template.

    Attributes:
        stop_tokens: ids that end an answer.
        n_ids: ids from here on (padding of the vocabulary) are never part of a conversation.
    """

    stop_texts = ()

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate):
        """Raises UserError if the template is malformed."""
        named = tokenizer.specials.get(template.variables.get("eos_token", ""))
        ends = (*(() if named is None else (named,)), *template.end_tokens, tokenizer.eos_id)
        self.tokenizer, self.n_ids = tokenizer, tokenizer.n_tokens
        self.stop_tokens = tuple(dict.fromkeys(ends))
        self._variables, self._renderer = template.variables, Renderer(template.text)
        self._break = next((each for each in _BREAKS if each not in template.text), "")
        if not self._break:
            raise UserError("the chat template is malformed: it has all characters that Unicode keeps for internal use")
        longest_first = sorted(filter(None, tokenizer.specials), key=len, reverse=True)
        self._specials = re.compile(f"({'|'.join(map(re.escape, longest_first))})")

    def render_prompt(self, conversation: Conversation) -> list[int]:
        """The ids after which the assistant speaks; an assistant's message at the end is continued.

        UserError: the template refuses the conversation, or a message has calls of tools.
        """
        return self.encode(self.render_text(conversation))

    def render_text(self, conversation: Conversation) -> str:
        """The text of `render_prompt` (or its error) for `encode`: special tokens in messages are broken up."""
        messages = [{"role": each.role, "content": self._content(each)} for each in conversation.messages]
        is_open = messages[-1]["role"] == "assistant"
        text = self._renderer.render(messages=messages, **self._variables, add_generation_prompt=not is_open)
        if not is_open:
            return text
        for last in (messages[-1]["content"], messages[-1]["content"].strip()):  # templates may strip it
            if (start := text.rfind(last)) >= 0:
                return text[: start + len(last)]
        raise UserError("the model's chat template changes the assistant's message that is to be continued")

    def render(self, history: Sequence[Mapping[str, Any]], *, opens_answer: bool) -> str:
        """`render_text` of a history of lm-eval's harness."""
        messages = [{"role": each["role"], "content": str(each["content"])} for each in history]
        return self.render_text(Conversation.of({"messages": messages}))

    def encode(self, text: str) -> list[int]:
        """Ids of a text of `render_text`, or of a part of one."""
        ids: list[int] = []
        for index, piece in enumerate(self._specials.split(text)):  # text, special, text, ..., text
            if index % 2:
                ids.append(self.tokenizer.specials[piece])
            else:
                ids += self.tokenizer.encode(piece.replace(self._break, ""))
        return ids

    def parse(self, ids: Iterable[int]) -> Message | None:
        """The assistant's message in drawn ids, up to the first stop token; None where it said nothing."""
        said = itertools.takewhile(lambda id_: id_ not in self.stop_tokens, ids)
        hidden = frozenset(self.tokenizer.specials.values())
        text = self.tokenizer.decode([id_ for id_ in said if id_ not in hidden])
        return Message.of("assistant", text) if text.strip() else None

    def _content(self, message: Message) -> str:
        if any(part.type != "text" for part in message.parts):
            raise UserError("calls of functions need a model that danalab sft has trained, not a template of its own")
        text = message.text.replace(self._break, "")
        return self._specials.sub(lambda found: found[0][0] + self._break + found[0][1:], text)


class Renderer:
    """A compiled template in a process of its own, with limits on time, memory and text, whatever the template does."""

    def __init__(self, template: str):
        """Raises UserError if the template is malformed."""
        if len(template) > _MAX_TEMPLATE:
            raise UserError(f"the chat template has {len(template):,} characters; the limit is {_MAX_TEMPLATE:,}")
        self._template, self._lock = template, threading.Lock()
        self._start()

    def render(self, **variables: Any) -> str:
        """The text for values of the template's variables; UserError: it refuses them, fails, or exceeds a limit."""
        with self._lock:  # requests are planned in threads
            if self._process.poll() is not None:
                self._start()
            return self._ask(variables)

    def _start(self) -> None:
        program = Path(__file__).with_name("template_process.py")
        self._process = subprocess.Popen(
            [sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._end = weakref.finalize(self, _end, self._process)
        self._ask(self._template)

    def _ask(self, content: Any) -> str:
        to, back, answer = self._process.stdin, self._process.stdout, b""
        if to is not None and back is not None:
            with contextlib.suppress(BrokenPipeError):
                to.write(json.dumps(content).encode() + b"\n")
                to.flush()
                answer = back.readline()
        if not answer.endswith(b"\n"):
            self._end()
            raise UserError("the model's chat template takes too long, or too much memory")
        match json.loads(answer):
            case {"text": text}:
                return text
            case {"malformed": reason}:
                self._end()
                raise UserError(f"the chat template is malformed: {reason}")
            case {"refused": reason}:
                raise UserError(f"the model's chat template refuses the conversation: {reason}")
            case {"failed": reason}:
                raise UserError(f"the model's chat template fails: {reason}")
        raise AssertionError(answer)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()  # closes the pipes


_TEMPLATE = """\
{%- macro plain(text) -%}
{%- for special in SPECIALS -%}
{%- if special in text -%}{{- raise_exception('the text spells the special token ' ~ special) -}}{%- endif -%}
{%- endfor -%}
{{- text -}}
{%- endmacro -%}
{%- macro joined(content) -%}
{%- if content is string -%}{{- plain(content) -}}
{%- else -%}{%- for part in content -%}{{- plain(part.text) -}}{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{%- set before = namespace(prefix='', role='') -%}
{{- 'BOS' -}}
{%- for message in messages -%}
{%- if message.role == 'system' and loop.first -%}
{%- set before.prefix = joined(message.content) ~ '\\n\\n' -%}
{%- elif message.role == 'user' and before.role != 'user' -%}
{%- set before.role = 'user' -%}
{{- 'USER_START' ~ before.prefix ~ joined(message.content) ~ 'USER_END' -}}
{%- set before.prefix = '' -%}
{%- elif message.role == 'assistant' and before.role != 'assistant' -%}
{%- set before.role = 'assistant' -%}
{{- 'ASSISTANT_START' -}}
{%- set parts = [{'type': 'text', 'text': message.content}] if message.content is string else message.content -%}
{%- for part in parts -%}
{%- if part.type == 'python_output' -%}{{- 'OUTPUT_START' ~ plain(part.text) ~ 'OUTPUT_END' -}}
{%- elif part.type == 'python' -%}
{%- generation -%}{{- 'PYTHON_START' ~ plain(part.text) ~ 'PYTHON_END' -}}{%- endgeneration -%}
{%- else -%}{%- generation -%}{{- plain(part.text) -}}{%- endgeneration -%}{%- endif -%}
{%- endfor -%}
{%- generation -%}{{- 'ASSISTANT_END' -}}{%- endgeneration -%}
{%- else -%}
{{- raise_exception('roles out of order: an optional system message, then user and assistant in turn') -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'ASSISTANT_START' -}}{%- endif -%}
"""


def chat_template() -> str:
    """The template."""
    text = _TEMPLATE.replace("SPECIALS", json.dumps(list(SPECIAL_TOKENS.values())))
    for name, spelling in SPECIAL_TOKENS.items():
        text = text.replace(f"'{name.upper()}'", f"'{spelling}'")
    return text


def own_template(tokenizer: Tokenizer) -> ChatTemplate:
    """Our format as the chat template of a tokenizer. Raises UserError: the tokenizer lacks special tokens."""
    return ChatTemplate(chat_template(), {}, ChatFormat(tokenizer).stop_tokens[::-1])


def template_of(run: str | Path) -> ChatTemplate | None:
    """The template for the export of a run that was trained on conversations; None for other runs."""
    opened = open_run(run)
    if opened.config.get("stage", "pretraining") == "pretraining":
        return None
    return own_template(opened.tokenizer)
