"""Answers through the engine: calls of the calculator, what is drawn and what is forced, seeds, and engine reloads."""

import pytest
import torch

from danalab.chat.answers import ModelEngine, SampledAnswer, answer_all, sampling_seed
from danalab.chat.marks import ChatFormat
from danalab.chat.messages import Conversation
from danalab.data.tokenizers import ByteTokenizer
from danalab.inference import Request, SamplingParameters
from danalab.models import ModelConfig, build_model

CHAT = ChatFormat(ByteTokenizer())


@pytest.fixture
def model():
    return build_model(ModelConfig("enoki", 16, 1, 2, 8, 32, vocab_size=320, seq_len=64), seed=2)


class Script:
    """A constraint that leaves one token at each place."""

    def __init__(self, tokens):
        self._tokens = list(tokens)

    def mask(self):
        allowed = torch.zeros(CHAT.n_ids, dtype=torch.bool)
        allowed[self._tokens[0]] = True
        return allowed

    def advance(self, token):
        assert token == self._tokens.pop(0)


def request(tokens=None, question="What is 3 * 4?", **settings):
    prompt = CHAT.render_prompt(Conversation.ask(question))
    settings = {"max_tokens": 30, "temperature": 1.0, "seed": 1} | settings
    constraint = None if tokens is None else Script(tokens)
    return Request(prompt, SamplingParameters(**settings), constraint=constraint)


def call(expression):
    return [CHAT.python_start, *CHAT.tokenizer.encode(expression), CHAT.python_end]


def output(text):
    return [CHAT.output_start, *CHAT.tokenizer.encode(text), CHAT.output_end]


def test_the_output_of_a_call_is_forced_into_the_answer(model):
    said = [*call("3*4"), *CHAT.tokenizer.encode("12"), CHAT.assistant_end]
    with ModelEngine(model, CHAT)() as engine:
        (answer,) = answer_all(engine, CHAT, [request(said)])
    assert answer.tokens == [*call("3*4"), *output("12"), *CHAT.tokenizer.encode("12"), CHAT.assistant_end]
    drawn = [token for token, drawn in zip(answer.tokens, answer.drawn, strict=True) if drawn]
    assert drawn == said
    message = CHAT.parse(answer.tokens)
    assert (answer.finished, answer.calls, message.spoken) == (True, 1, "12")
    assert message.text == "<<3*4=12>>12"


def test_a_call_without_a_value_gives_an_error_to_the_model(model):
    with ModelEngine(model, CHAT)() as engine:
        (answer,) = answer_all(engine, CHAT, [request([*call("import os"), CHAT.assistant_end])])
    assert output("error") == answer.tokens[len(call("import os")) : -1]


def test_an_answer_whose_output_finds_no_space_is_cut_off(model):
    prompt = len(CHAT.render_prompt(Conversation.ask("What is 3 * 4?")))
    filler = CHAT.tokenizer.encode("x" * (64 - prompt - 6))
    with ModelEngine(model, CHAT)() as engine:
        said = [*filler, *call("3*4"), CHAT.assistant_end]
        (answer, other) = answer_all(
            engine, CHAT, [request(said, max_tokens=64 - prompt), request([CHAT.assistant_end])]
        )
        assert not engine.busy
    assert (answer.finished, answer.tokens[-1]) == (False, CHAT.python_end)
    assert other == SampledAnswer([CHAT.assistant_end], [0.0], [True], True, 0)


def test_answers_are_sampled_from_the_whole_distribution_of_the_present_weights(model):
    """The stored log-probabilities are those of the model's softmax over all ids, at each temperature."""
    engines = ModelEngine(model, CHAT)
    for temperature in (1.0, 0.7):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)  # as an update would
        with engines() as engine:
            answers = answer_all(engine, CHAT, [request(seed=i, temperature=temperature) for i in range(5)])
        for answer in answers:
            prompt = request().prompt
            with torch.no_grad():
                logits = model(torch.tensor([[*prompt, *answer.tokens][:-1]]))[
                    0, len(prompt) - 1 :, : CHAT.n_ids
                ]
            expected = (
                (logits / temperature).log_softmax(-1).gather(1, torch.tensor(answer.tokens)[:, None])[:, 0]
            )
            torch.testing.assert_close(torch.tensor(answer.log_probs), expected, rtol=1e-4, atol=1e-5)


def test_a_seed_gives_the_same_answer_in_any_batch(model):
    with ModelEngine(model, CHAT, max_batch_size=3)() as engine:
        together = answer_all(engine, CHAT, [request(seed=i) for i in range(7)])
        alone = [answer_all(engine, CHAT, [request(seed=i)])[0] for i in range(7)]
    assert [answer.tokens for answer in together] == [answer.tokens for answer in alone]
    assert len({tuple(answer.tokens) for answer in together}) > 1


def test_the_model_trains_on_as_before(model):
    model.train()
    model.document_token = CHAT.bos
    with ModelEngine(model, CHAT)() as engine:
        answer_all(engine, CHAT, [request()])
        assert not model.training
    assert model.training
    assert model.document_token == CHAT.bos


def test_seeds_are_functions_of_their_key():
    assert sampling_seed(1, 2, 3) == sampling_seed(1, 2, 3) != sampling_seed(1, 23)
    assert 0 <= sampling_seed("a") < 2**63
