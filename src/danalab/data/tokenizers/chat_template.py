"""The chat template of a tokenizer in Hugging Face format: where its parts lie in a folder.

text         chat_template.jinja, or chat_template in tokenizer_config.json
variables    bos_token, eos_token, ... in tokenizer_config.json
end_tokens   eos_token_id in generation_config.json, or in config.json
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from danalab.errors import UserError
from danalab.files import read_json, write_json

_SETTINGS, _GENERATION = "tokenizer_config.json", "generation_config.json"
_NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template, not yet compiled."""

    text: str
    """The template, in Jinja."""
    variables: Mapping[str, str]
    """Spellings of tokens by name, e.g. bos_token."""
    end_tokens: tuple[int, ...]
    """Ids that end an answer."""

    @classmethod
    def read(cls, folder: Path) -> "ChatTemplate | None":
        """The template of a folder; None where it has none."""
        settings, file = _read(folder / _SETTINGS), folder / "chat_template.jinja"
        text: Any = file.read_text("utf-8", "replace") if file.is_file() else settings.get("chat_template")
        if isinstance(text, list):
            text = {each.get("name"): each.get("template") for each in text if isinstance(each, dict)}.get(
                "default"
            )
        if not isinstance(text, str):
            return None
        ends = _read(folder / _GENERATION).get(
            "eos_token_id", _read(folder / "config.json").get("eos_token_id")
        )
        ids = tuple(each for each in (ends if isinstance(ends, list) else [ends]) if isinstance(each, int))
        return cls(text, named_tokens(folder), ids)

    def save(self, folder: Path) -> None:
        """Add the template to the folder of a saved tokenizer."""
        # A saved tokenizer always names a bos_token; a template that had none must not see it.
        name_tokens(folder, {"bos_token": None, **self.variables, "chat_template": self.text})
        if self.end_tokens:
            write_json(
                folder / _GENERATION, {**_read(folder / _GENERATION), "eos_token_id": list(self.end_tokens)}
            )


def named_tokens(folder: Path) -> dict[str, str]:
    """Spellings of the tokens that the tokenizer of a folder names, e.g. bos_token."""
    settings = _read(folder / _SETTINGS)
    spellings = {name: spelling(settings.get(name)) for name in _NAMED_TOKENS}
    return {name: text for name, text in spellings.items() if text}


def name_tokens(folder: Path, names: Mapping[str, Any]) -> None:
    """Add names of tokens, and other settings, to the saved tokenizer of a folder."""
    write_json(folder / _SETTINGS, {**_read(folder / _SETTINGS), **names})


def _read(file: Path) -> Mapping[str, Any]:
    content = read_json(file) if file.is_file() else {}
    if not isinstance(content, dict):
        raise UserError(f"{file} is not an object; it must be one")
    return content


def spelling(token: Any) -> str:
    """A token's text: written as a text, or as an object with more settings."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""
