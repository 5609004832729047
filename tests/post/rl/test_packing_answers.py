"""The loss of a batch is the same for any split, padding, packing and order; what is masked has no effect."""

import random
from contextlib import nullcontext

import pytest
import torch

from danalab.chat.answers import SampledAnswer
from danalab.models import ModelConfig, build_model
from danalab.post.policy_losses import OBJECTIVES
from danalab.post.rl import PolicyLoss
from danalab.post.rollouts import TrainedAnswer, pack_answers
from danalab.train.step.gradients import GradientStep
from danalab.train.step.loss import IGNORED, RouterBalance, TrainingBatch

NAMES, BOS, VOCAB = list(OBJECTIVES), 3, 64


@pytest.fixture(scope="module")
def model():
    made = build_model(ModelConfig("qwen3", 16, 2, 2, 8, 32, vocab_size=VOCAB, seq_len=64), seed=1).double()
    made.document_token = BOS
    return made


def draw_answers(count=7, seed=0):
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        tokens = [draw.randrange(4, 60) for _ in range(draw.randint(1, 9))]
        drawn = [draw.random() < 0.8 for _ in tokens[:-1]] + [True]
        log_probs = [-draw.random() * 5 if d else 0.0 for d in drawn]
        prompt = [BOS, *(draw.randrange(4, 60) for _ in range(draw.randint(1, 6)))]
        found.append(TrainedAnswer(prompt, SampledAnswer(tokens, log_probs, drawn, True), draw.gauss(0, 1)))
    return found


def gradients(model, batch, name, micro_batch, **settings):
    """(loss, metrics, gradient as one vector)."""
    batch.extra = {
        key: value.double() if value.is_floating_point() else value for key, value in batch.extra.items()
    }
    loss = PolicyLoss(OBJECTIVES.get(name), n_ids=60, max_tokens=10, **settings)
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = None
    step = GradientStep(
        model, parameters, micro_batch=micro_batch, grad_clip=0.0, loss=loss, autocast=nullcontext
    )
    result = step(batch)
    gradient = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
    return float(result.loss), {key: float(value) for key, value in result.metrics.items()}, gradient


def one_a_row(answers):
    """Without packing: each answer in a row of its own, padded."""
    rows = [pack_answers([answer], BOS, length=16) for answer in answers]
    extra = {name: torch.cat([row.extra[name] for row in rows]) for name in rows[0].extra}
    return TrainingBatch(
        torch.cat([r.inputs for r in rows]), torch.cat([r.targets for r in rows]), extra=extra
    )


def assert_same(found, expected):
    assert found[0] == pytest.approx(expected[0], abs=1e-6)  # reports are summed in float32
    assert found[1] == pytest.approx(expected[1], abs=1e-6)
    torch.testing.assert_close(found[2], expected[2], rtol=1e-9, atol=1e-12)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", NAMES)
def test_loss_and_gradient_do_not_depend_on_micro_batches_packing_or_order(model, name):
    answers = draw_answers()
    expected = gradients(model, one_a_row(answers), name, 7)
    for micro_batch in (1, 2, 3):
        assert_same(gradients(model, one_a_row(answers), name, micro_batch), expected)
    packed = pack_answers(answers, BOS, length=40)
    assert len(packed) < len(answers)
    assert_same(gradients(model, packed, name, 1), expected)
    assert_same(gradients(model, pack_answers(answers, BOS), name, 2), expected)
    random.Random(1).shuffle(answers)
    assert_same(gradients(model, pack_answers(answers, BOS), name, 3), expected)


@pytest.mark.parametrize("name", NAMES)
def test_a_fully_masked_micro_batch_contributes_nothing(model, name):
    answers = draw_answers(3)
    batch = one_a_row(answers)
    more = one_a_row(draw_answers(2, seed=9))
    more.targets.fill_(IGNORED)
    more.extra["answers"].zero_()
    extra = {key: torch.cat([value, more.extra[key]]) for key, value in batch.extra.items()}
    longer = TrainingBatch(
        torch.cat([batch.inputs, more.inputs]), torch.cat([batch.targets, more.targets]), extra=extra
    )
    assert_same(gradients(model, longer, name, 1), gradients(model, one_a_row(answers), name, 1))


@pytest.mark.parametrize("name", ["dr_grpo", "gspo"])
def test_answers_of_groups_without_signal_are_divided_by_and_need_no_rows(model, name):
    """3 of 48 answers carry signal: the gradient is that of a batch with all 48, as published."""
    answers = draw_answers(3)
    silent = [each._replace(advantage=0.0) for each in draw_answers(45, seed=5)]
    left_out = gradients(model, pack_answers(answers, BOS, length=40, sampled=48), name, 2)
    together = gradients(model, pack_answers([*answers, *silent], BOS, length=40), name, 3)
    assert left_out[0] == pytest.approx(together[0], abs=1e-6)
    torch.testing.assert_close(left_out[2], together[2], rtol=1e-9, atol=1e-12)
    alone = gradients(model, pack_answers(answers, BOS, length=40), name, 2)
    torch.testing.assert_close(left_out[2] * 16, alone[2], rtol=1e-9, atol=1e-12)


def test_without_answers_there_is_one_row_without_targets(model):
    batch = pack_answers([], BOS)
    loss, metrics, gradient = gradients(model, batch, "dapo", 1)
    assert (loss, set(metrics.values())) == (0.0, {0.0})
    assert not gradient.any()


def test_every_answer_keeps_its_own_advantage_and_log_probabilities():
    answers = draw_answers(40, seed=2)
    batch = pack_answers(answers, BOS, length=32)
    found = []
    for row in range(len(batch)):
        for number in range(int(batch.extra["sequence"][row].max()) + 1):
            here = (batch.extra["sequence"][row] == number) & (batch.targets[row] != IGNORED)
            found.append(
                (
                    batch.targets[row][here].tolist(),
                    batch.extra["old_log_probs"][row][here].tolist(),
                    set(batch.extra["advantages"][row][here].tolist()),
                )
            )
    expected = []
    for each in answers:
        drawn = [i for i, d in enumerate(each.answer.drawn) if d]
        tokens, log_probs = (
            [values[i] for i in drawn] for values in (each.answer.tokens, each.answer.log_probs)
        )
        to_float32 = torch.tensor([*log_probs, each.advantage]).tolist()
        expected.append((tokens, to_float32[:-1], {to_float32[-1]}))
    assert sorted(found, key=str) == sorted(expected, key=str)


def test_inputs_are_prompts_and_answers_with_the_end_as_a_target_only():
    answer = TrainedAnswer(
        [BOS, 8, 9], SampledAnswer([10, 11, 12], [-1.0, 0.0, -2.0], [True, False, True], True), 0.5
    )
    batch = pack_answers([answer], BOS, length=7)
    assert batch.inputs.tolist() == [[BOS, 8, 9, 10, 11, BOS, BOS]]
    assert batch.targets.tolist() == [[-1, -1, 10, -1, 12, -1, -1]]


def test_the_penalty_pulls_towards_the_reference(model):
    answers = draw_answers()
    batch = one_a_row(answers)
    with torch.no_grad():
        own = (
            model(batch.inputs)[..., :60]
            .log_softmax(-1)
            .gather(-1, batch.targets.clamp(min=0)[..., None])[..., 0]
        )
    for shift, sign in ((0.0, 0), (-0.5, 1), (0.5, -1)):
        batch.extra = one_a_row(answers).extra | {"advantages": torch.zeros(batch.targets.shape)}
        batch.extra["reference_log_probs"] = own + shift
        loss, metrics, gradient = gradients(model, batch, "dapo", 7, kl=2.0)
        assert loss == pytest.approx(2.0 * metrics["kl"], abs=1e-9)
        assert metrics["kl"] == pytest.approx(torch.tensor(shift).exp().item() - shift - 1, abs=1e-6)
        assert bool(gradient.abs().max() > 1e-6) == bool(sign)


def test_experts_are_balanced_as_in_pre_training():
    """Answers without advantages leave the router's losses, whatever the micro-batches; they are not reported."""
    config = ModelConfig(
        "moe",
        16,
        2,
        2,
        8,
        32,
        vocab_size=VOCAB,
        seq_len=64,
        n_experts=4,
        top_k=2,
        expert_dim=16,
        router_z_loss=0.5,
    )
    model = build_model(config, seed=1).double()
    model.document_token = BOS
    answers = [each._replace(advantage=0.0) for each in draw_answers()]
    batch = one_a_row(answers)
    model(batch.inputs)
    RouterBalance(config, torch.device("cpu")).loss(model.take_routing(), batch.inputs.numel()).backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    assert expected.abs().max() > 1e-4
    for micro_batch in (7, 2):
        balance = RouterBalance(config, torch.device("cpu"))
        loss, _, gradient = gradients(model, one_a_row(answers), "dapo", micro_batch, balance=balance)
        assert loss == 0
        torch.testing.assert_close(gradient[gradient != 0], expected[expected != 0], rtol=1e-6, atol=1e-9)
        assert 0 < balance.scalars()["moe/min_load"] <= 1 <= balance.scalars()["moe/max_load"]
    kept = balance.state_dict()
    gradients(
        model, pack_answers([], BOS), "dapo", 1, balance=balance
    )  # a step without answers changes nothing
    assert balance.state_dict() == kept
