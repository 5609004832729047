"""Base runs whose tokenizer has no marks of conversations."""

import json

import pytest
import torch
from tokenizers import Tokenizer as Engine

from danalab.chat.marks import ChatFormat, missing_specials
from danalab.chat.messages import Conversation
from danalab.data.tokenizers import BpeTokenizer, ByteTokenizer, train_bpe
from danalab.errors import UserError
from danalab.models import ModelConfig, build_model
from danalab.post.sft import extend_tokenizer, extend_vocabulary


def without_marks(tokenizer: BpeTokenizer) -> BpeTokenizer:
    content = json.loads(tokenizer.to_json())
    content["added_tokens"] = content["added_tokens"][:1]
    return BpeTokenizer(Engine.from_str(json.dumps(content)))


@pytest.fixture(scope="module")
def bare() -> BpeTokenizer:
    return without_marks(train_bpe(["a text of some length, with pairs to merge\n"] * 3, 290))


def test_missing_marks_are_named_and_added_after_the_other_ids(bare, caplog):
    assert len(missing_specials(bare)) == 8
    with pytest.raises(UserError, match=r"no special token <\|user_start\|>"):
        ChatFormat(bare)
    with caplog.at_level("INFO"):
        extended = extend_tokenizer(bare)
    assert "8 special tokens are added, ids 282 to 289" in caplog.text
    assert extended.encode("a text") == bare.encode("a text")
    assert extended.specials["<|endoftext|>"] == bare.eos_id
    assert ChatFormat(extended).render(Conversation.ask("a", "b")).ids[0] == bare.eos_id
    assert extend_tokenizer(ByteTokenizer()).specials == ByteTokenizer().specials


@pytest.mark.parametrize("tied", [False, True])
def test_new_rows_are_the_mean_of_the_others_and_the_old_function_stays(tied):
    config = ModelConfig("enoki", 32, 1, 2, 16, 64, vocab_size=64, seq_len=16, tied_head=tied)
    model = build_model(config)
    assert extend_vocabulary(model, 64) is model
    larger = extend_vocabulary(model, 70)
    assert larger.config.vocab_size == 128
    torch.testing.assert_close(larger.head_weight[64:], model.head_weight.mean(0).expand(64, -1))
    tokens = torch.arange(16)[None]
    torch.testing.assert_close(larger(tokens)[..., :64], model(tokens), rtol=0, atol=1e-6)
