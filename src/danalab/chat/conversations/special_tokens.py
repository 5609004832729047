"""The special tokens of conversations. Text never encodes to one of them, however it is spelled.

bos  user_start question user_end  assistant_start answer assistant_end  user_start ...
an answer with a tool call:  text  python_start 12*7 python_end  output_start 84 output_end  text
"""

from danalab.data.tokenizers.base import CHAT_SPECIALS, EOS, Tokenizer

SPECIAL_TOKENS: dict[str, str] = {"bos": EOS, **{spelling.strip("<|>"): spelling for spelling in CHAT_SPECIALS}}
"""Name -> spelling: bos, user_start, user_end, assistant_start, assistant_end, python_start, python_end, output_start,
output_end. bos is the token that also separates documents, so a conversation starts as every document does."""
CHAT_STAGES = ("mid", "sft", "rl")
"""Stages of training that teach them to a model; its runs are asked as a chat where nothing else is said."""


def missing_specials(tokenizer: Tokenizer) -> list[str]:
    """The spellings that a tokenizer does not know, in order."""
    return [spelling for spelling in SPECIAL_TOKENS.values() if spelling not in tokenizer.specials]
