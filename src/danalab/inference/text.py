"""The text of a stream of tokens."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from danalab.data.tokenizers import Tokenizer


class TextStream:
    """The text of tokens that arrive one by one, up to the first stop string.

    A character whose bytes are spread over several tokens comes when it is complete, and text that may be the beginning
    of a stop string when it is clear that it is not. End tokens have no text.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), end_tokens: Collection[int] = ()):
        self._tokenizer, self._stop, self._ends = tokenizer, tuple(stop), end_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self.stopped = False
        """Whether a stop string was found; what follows is dropped."""

    def feed(self, token: int) -> str:
        """The text that is certain after one more token, without what was returned before."""
        if token in self._ends:
            return ""
        return self._release(self._decoder.decode(self._tokenizer.decode_bytes([token])))

    def finish(self) -> str:
        """The rest of the text: no token follows."""
        text = self._release(self._decoder.decode(b"", final=True)) + ("" if self.stopped else self._held)
        self._held = ""
        return text

    def _release(self, text: str) -> str:
        if self.stopped:
            return ""
        text = self._held + text
        places = [at for stop in self._stop if (at := text.find(stop)) >= 0]
        if places:
            self.stopped, self._held = True, ""
            return text[: min(places)]
        # A text that was searched before is searched again only where a stop string may have begun.
        held = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def _overlap(text: str, stop: str) -> int:
    """Characters at the end of `text` that are the beginning of `stop`."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)
