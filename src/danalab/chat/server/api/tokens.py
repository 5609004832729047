"""POST /tokenize and /detokenize: text to token ids and back. Texts never become special tokens."""

from danalab.chat.assistant.chat_model import ChatModel
from danalab.chat.assistant.errors import RequestError
from danalab.chat.server.api.fields import Body, JsonObject


class TokenizeRequest(Body):
    text: str
    model: str | None = None


class DetokenizeRequest(Body):
    tokens: list[int]
    model: str | None = None


def tokenize(chat_model: ChatModel, request: TokenizeRequest) -> JsonObject:
    """The ids of a text."""
    ids = chat_model.tokenizer.encode(request.text)
    return {"tokens": ids, "count": len(ids), "max_model_len": chat_model.context}


def detokenize(chat_model: ChatModel, request: DetokenizeRequest) -> JsonObject:
    """The text of ids; bytes that are no UTF-8 become U+FFFD.

    Raises:
        RequestError: an unknown id.
    """
    for position, token in enumerate(request.tokens):
        if not 0 <= token < chat_model.n_ids:
            reason = f"'tokens.{position}': {token} is not one of the tokenizer's {chat_model.n_ids} ids"
            raise RequestError(400, reason, param=f"tokens.{position}")
    return {"text": chat_model.tokenizer.decode(request.tokens)}
