"""Rows of conversations: every answer is a target once, and a conversation in a row is computed as if alone."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from danalab.chat.dialects import conversation_of
from danalab.chat.marks import ChatFormat
from danalab.chat.messages import Conversation
from danalab.data.tokenizers import ByteTokenizer
from danalab.errors import UserError
from danalab.models import ModelConfig, build_model
from danalab.post.dataset import ConversationRows, TokenizedConversation, best_fit, split, tokenize
from danalab.train.step.loss import IGNORED

CHAT = ChatFormat(ByteTokenizer())


def tokenized(conversations, tmp_path):
    file = tmp_path / "chats.jsonl"
    file.write_text("".join(json.dumps(one.as_dict()) + "\n" for one in conversations))
    return tokenize([str(file)], CHAT)


def conversation(lengths):
    """One with answers of these lengths, each different."""
    messages = []
    for turn, length in enumerate(lengths):
        messages += [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": chr(97 + turn) * length},
        ]
    return conversation_of({"messages": messages})


@settings(max_examples=80, deadline=None)
@given(lengths=st.lists(st.integers(1, 20), max_size=60), capacity=st.integers(20, 40))
def test_best_fit_fills_no_row_too_much_and_needs_few(lengths, capacity):
    rows = best_fit(np.array(lengths, np.int64), capacity)
    used = np.bincount(rows, weights=lengths) if len(rows) else np.zeros(0)
    assert (used <= capacity).all()
    assert set(rows) == set(range(len(used)))
    # Of two rows that are open at the same time, the items of the later did not fit into the earlier.
    assert len(used) <= 2 * sum(lengths) / capacity + 1


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=4), min_size=1, max_size=12), st.booleans())
def test_rows_hold_whole_turns_once_and_count_what_was_cut(tmp_path_factory, shapes, masked):
    seq_len = 24
    conversations = [conversation(shape) for shape in shapes]
    given_tokens = tokenized(conversations, tmp_path_factory.mktemp("rows"))
    rows = ConversationRows(given_tokens, CHAT, seq_len, masked=masked)
    expected, truncated, dropped = [], 0, 0
    for shape in shapes:  # the oracle: as many turns as fit, by trial
        fitting = [
            n
            for n in range(1, len(shape) + 1)
            if len(CHAT.render(conversation(shape[:n])).ids) <= seq_len + 1
        ]
        dropped += not fitting
        if fitting:
            truncated += fitting[-1] < len(shape)
            expected.append(CHAT.render(conversation(shape[: fitting[-1]])))
    assert (rows.truncated, rows.dropped) == (truncated, dropped)
    inputs, targets = rows.read(np.arange(rows.n))
    found = []
    for row_inputs, row_targets in zip(inputs.tolist(), targets.tolist(), strict=True):
        starts = [i for i, id_ in enumerate(row_inputs) if id_ == CHAT.bos] + [seq_len]
        for start, end in pairwise(starts):
            if end - start > 1 or row_targets[start] != IGNORED:
                found.append((row_inputs[start:end], row_targets[start:end]))
    want = []
    for ids, mask in expected:
        said = [
            id_ if spoken or not masked else IGNORED for id_, spoken in zip(ids[1:], mask[1:], strict=True)
        ]
        want.append((ids[:-1], said))
    assert sorted(found) == sorted(want)


def test_what_does_not_fit_is_reported(tmp_path):
    given_tokens = tokenized([conversation([3, 3]), conversation([3, 90]), conversation([90])], tmp_path)
    rows = ConversationRows(given_tokens, CHAT, 32, masked=True)
    assert rows.packing == (
        "2 conversations in 1 rows, 75.0% full; 1 truncated at a turn, 1 without an answer that fits left out"
    )


ARCHITECTURES = {
    "enoki": {}, "qwen3": {}, "gpt": {}, "llama": {"n_kv_heads": 1}, "moe": {},
    "resonance": {"num_frequencies": 8}, "qwen3next": {"full_attention_interval": 2},
}  # fmt: skip


@pytest.mark.sample(2)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_packed_loss_and_gradient_are_those_of_each_conversation_alone(arch, tmp_path):
    given_tokens = tokenized([conversation(shape) for shape in ([3], [2, 5], [7], [1, 1, 4])], tmp_path)
    size = {"d_model": 32, "n_layers": 2, "n_heads": 2, "head_dim": 16, "mlp_dim": 64, "vocab_size": 320}
    model = build_model(ModelConfig(arch, **size, seq_len=64, **ARCHITECTURES[arch]), dtype=torch.float64)
    model.document_token = CHAT.bos
    packed = ConversationRows(given_tokens, CHAT, 64, masked=True)
    assert packed.n < len(given_tokens)

    def loss_and_gradient(batches):
        model.zero_grad()
        total = sum(int((targets != IGNORED).sum()) for _, targets in batches)
        found = 0.0
        for inputs, targets in batches:
            ce, _ = model(inputs, targets, ignore_index=IGNORED, valid_count=float(total), position_count=1.0)
            ce.backward()
            found += float(ce.detach())
        return found, torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    together = loss_and_gradient([packed.read(np.arange(packed.n))])
    model.document_token = None
    alone = []
    for one in given_tokens:
        alone.append(ConversationRows([one], CHAT, len(one.ids) - 1, masked=True).read(np.arange(1)))
    apart = loss_and_gradient(alone)
    assert together[0] == pytest.approx(apart[0], rel=1e-9)
    torch.testing.assert_close(together[1], apart[1], rtol=1e-6, atol=1e-9)


def test_files_and_tasks_are_tokenized_together(tmp_path, chats):
    both = tokenize([str(chats), "arithmetic:size=7,max=9"], CHAT)
    assert len(both) == 150 + 7
    assert CHAT.tokenizer.decode(both[-1].ids.tolist()).startswith("<|endoftext|><|user_start|>")


def test_a_text_that_the_tokenizer_cannot_encode_is_named_with_its_line(tmp_path):
    from danalab.data.tokenizers import CharacterTokenizer

    file = tmp_path / "chats.jsonl"
    file.write_text(
        "".join(json.dumps(Conversation.ask(text, "a").as_dict()) + "\n" for text in ("a", "b", "é"))
    )
    with pytest.raises(UserError, match=r"chats.jsonl line 3: 'é' is not one"):
        tokenize([str(file)], ChatFormat(CharacterTokenizer()))


@settings(max_examples=30, deadline=None)
@given(count=st.integers(2, 40), share=st.floats(0.01, 0.99))
def test_a_split_keeps_each_conversation_on_one_side(count, share):
    whole = [TokenizedConversation(np.array([number], np.int32), np.ones(1, bool)) for number in range(count)]
    train, val = split(whole, share, b"x")
    assert sorted(int(each.ids[0]) for each in [*train, *val]) == list(range(count))
    assert len(train) >= 1
    assert len(val) == min(max(1, round(share * count)), count - 1)


def test_the_name_of_a_task_is_the_task_also_beside_a_file_of_this_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "identity").write_text('{"messages": []}\n')
    chat = ChatFormat(ByteTokenizer())
    assert len(tokenize(["identity"], chat)) > 0
    with pytest.raises(UserError, match="identity line 1"):
        tokenize(["./identity"], chat)


SUMS = [
    {"role": "user", "content": "12 + 7?"},
    {"role": "assistant", "content": "It is <<12+7=19>>19."},
    {"role": "user", "content": "Add 5."},
    {"role": "assistant", "content": "<<19+5=24>>24"},
]


def test_rows_have_only_conversations_with_something_to_learn(tmp_path):
    told = [SUMS[0], {"role": "assistant", "content": "19", "weight": 0}]
    rows = ConversationRows(
        tokenized([conversation_of(told), conversation_of(SUMS)], tmp_path), CHAT, 200, masked=True
    )
    assert (rows.n, rows.dropped) == (1, 1)
