"""The format of conversations as a Jinja template: `chat_template` of a tokenizer in Hugging Face format.

`transformers.apply_chat_template` then gives the ids of `ChatFormat`. It encodes the rendered text as a whole, so text
that spells a special token would become that token: the template refuses it.
"""

import json
from pathlib import Path

from danalab.chat.conversations.special_tokens import SPECIAL_TOKENS
from danalab.data.tokenizers.chat_template import ChatTemplate
from danalab.train.run.open import open_run

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
{%- set first = namespace(prefix='', seen=0) -%}
{{- 'BOS' -}}
{%- for message in messages -%}
{%- if message.role == 'system' and loop.first -%}
{%- set first.prefix = joined(message.content) ~ '\\n\\n' -%}
{%- elif message.role == 'user' and first.seen % 2 == 0 -%}
{%- set first.seen = first.seen + 1 -%}
{{- 'USER_START' ~ first.prefix ~ joined(message.content) ~ 'USER_END' -}}
{%- set first.prefix = '' -%}
{%- elif message.role == 'assistant' and first.seen % 2 == 1 -%}
{%- set first.seen = first.seen + 1 -%}
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


def template_of(run: str | Path) -> ChatTemplate | None:
    """The template for the export of a run that was trained on conversations; None for other runs."""
    opened = open_run(run)
    if opened.config.get("stage", "pretraining") == "pretraining":
        return None
    specials = opened.tokenizer.specials
    return ChatTemplate(chat_template(), {}, tuple(specials[SPECIAL_TOKENS[name]] for name in ("bos", "assistant_end")))
