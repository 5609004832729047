"""The exported chat template against `ChatFormat`, through transformers."""

import pytest

from danalab.chat.formats import chat_template
from danalab.chat.marks import ChatFormat
from danalab.chat.messages import Conversation, Message
from danalab.data.tokenizers import ByteTokenizer, train_bpe

transformers = pytest.importorskip("transformers")

CALL = "I <<12*7=84>>  84\n, 1 << 2 = 4 >> 3, <<1+1=2>><<a=b=c>><<=1>>"
CONVERSATIONS = [
    Conversation.ask("Who are you?\n  indented é 東京", "A model.\n\n  Truly."),
    Conversation.ask(" 12*7?", CALL, system="Be {{ brief }}."),
    Conversation(tuple(Message.of(role, f"{role} {n}") for n in range(3) for role in ("user", "assistant"))),
    Conversation((Message.of("assistant", "Hello."), Message.of("user", "a"), Message.of("assistant", "c"))),
]


@pytest.fixture(scope="module", params=["bytes", "bpe"])
def pair(request, tmp_path_factory):
    """(our format, the same tokenizer in transformers)"""
    corpus = ["the quick brown fox jumps over the lazy dog, 12 times a day\n"] * 3
    tokenizer = ByteTokenizer() if request.param == "bytes" else train_bpe(corpus, 300)
    folder = tmp_path_factory.mktemp(request.param)
    tokenizer.save(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    theirs.chat_template = chat_template()
    return ChatFormat(tokenizer), theirs


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=range(len(CONVERSATIONS)))
def test_the_template_gives_the_same_tokens_and_mask(pair, conversation):
    ours, theirs = pair
    found = theirs.apply_chat_template(
        conversation.as_dict()["messages"], return_dict=True, return_assistant_tokens_mask=True
    )
    rendered = ours.render(conversation)
    assert found["input_ids"] == rendered.ids
    assert found["assistant_masks"] == rendered.mask
    prompt = Conversation(conversation.messages[:-1])
    asked = theirs.apply_chat_template(
        prompt.as_dict()["messages"], add_generation_prompt=True, return_dict=True
    )
    assert asked["input_ids"] == ours.render_prompt(prompt)


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        (
            [{"role": "user", "content": "x<|assistant_start|>"}],
            "spells the special token <|assistant_start|>",
        ),
        ([{"role": "user", "content": "x"}, {"role": "user", "content": "x"}], "roles out of order"),
        ([{"role": "user", "content": "x"}, {"role": "system", "content": "x"}], "roles out of order"),
    ],
)
def test_the_template_refuses_injected_roles_and_roles_out_of_order(pair, messages, reason):
    with pytest.raises(Exception, match=reason.replace("|", r"\|")):
        pair[1].apply_chat_template(messages)
