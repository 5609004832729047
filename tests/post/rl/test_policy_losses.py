"""Policy losses equal loops over tokens in float64, gradient included; the layout of a batch does not matter."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from danalab.post.policy_losses import OBJECTIVES, Clip, Tokens, kl_penalty
from danalab.post.rollouts import group_advantages

NAMES = list(OBJECTIVES)
MAX_TOKENS = 12


def oracle(name, log_p, old, advantages, masks, clip):
    """The loss of sequences given as lists of floats, from the papers' formulas.

    Args: advantages: one a sequence. masks: 1 where a token counts.
    """
    total = value = 0.0
    for lp, lo, advantage, mask in zip(log_p, old, advantages, masks, strict=True):
        active = [(a, b) for a, b, on in zip(lp, lo, mask, strict=True) if on]
        total += {"gspo": 1, "dr_grpo": MAX_TOKENS}.get(
            name, len(active)
        )  # sequences that add nothing are counted
        if not active:
            continue
        limit = lambda ratio: min(max(ratio, 1 - clip.low), 1 + clip.high)  # noqa: E731
        ratios = [math.exp(a - b) for a, b in active]
        if name == "gspo":
            ratio = math.exp(sum(a - b for a, b in active) / len(active))
            value -= min(ratio * advantage, limit(ratio) * advantage)
        elif name == "cispo":
            value -= sum(limit(ratio) * advantage * a for ratio, (a, _) in zip(ratios, active, strict=True))
        elif name == "reinforce":
            value -= sum(advantage * a for a, _ in active)
        else:
            value -= sum(min(ratio * advantage, limit(ratio) * advantage) for ratio in ratios)
    return value / total


def gradient_of_oracle(name, log_p, old, advantages, masks, clip):
    """By central differences; the weight of cispo is a constant for the gradient."""
    constant = name == "cispo"
    grads = []
    for i, row in enumerate(log_p):
        grads.append([])
        for t in range(len(row)):
            ends = []
            for change in (1e-6, -1e-6):
                moved = [list(each) for each in log_p]
                moved[i][t] += change
                if constant:
                    weight = min(max(math.exp(row[t] - old[i][t]), 1 - clip.low), 1 + clip.high)
                    ends.append(-weight * advantages[i] * change * masks[i][t] / sum(map(sum, masks)))
                else:
                    ends.append(oracle(name, moved, old, advantages, masks, clip))
            grads[-1].append((ends[0] - ends[1]) / 2e-6)
    return grads


def sample(seed, sequences=5, longest=7):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (sequences,), generator=generator).tolist()
    draw = lambda n, scale: (torch.randn(n, generator=generator, dtype=torch.float64) * scale).tolist()  # noqa: E731
    log_p = [[-abs(x) - 0.1 for x in draw(n, 2.0)] for n in lengths]
    old = [[a + d for a, d in zip(row, draw(len(row), 0.4), strict=True)] for row in log_p]
    masks = [torch.randint(0, 2, (n,), generator=generator).tolist() for n in lengths]
    masks[0] = [1] * lengths[0]
    masks[-1] = [0] * lengths[-1]  # truncated, and masked
    return log_p, old, draw(sequences, 1.0), masks


def padded(log_p, old, advantages, masks, width=9, dtype=torch.float64):
    """One sequence a row; what is beyond its end is nonsense that must not count."""
    rows = len(log_p)
    lp, lo = torch.full((rows, width), -3.0, dtype=dtype), torch.full((rows, width), 99.0, dtype=dtype)
    mask = torch.zeros(rows, width, dtype=torch.bool)
    for i, row in enumerate(log_p):
        lp[i, : len(row)], lo[i, : len(row)] = (
            torch.tensor(row, dtype=dtype),
            torch.tensor(old[i], dtype=dtype),
        )
        mask[i, : len(row)] = torch.tensor(masks[i], dtype=torch.bool)
    a = torch.tensor(advantages, dtype=dtype)[:, None].expand(rows, width)
    return Tokens(lp.requires_grad_(), lo, a, mask, torch.zeros(rows, width, dtype=torch.int64))


def total_of(objective, tokens):
    return objective.total(float(tokens.mask.sum()), float(len(tokens.mask)), MAX_TOKENS)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_loss_and_gradient_equal_the_formulas(name, seed):
    objective, case = OBJECTIVES[name], sample(seed)
    clip = Clip(0.2, 0.28) if name == "gspo" else objective.clip
    tokens = padded(*case)
    loss, _ = objective(tokens, total_of(objective, tokens), clip)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(oracle(name, *case, clip), abs=1e-12)
    expected = gradient_of_oracle(name, *case, clip)
    for i, row in enumerate(expected):
        assert tokens.log_probs.grad[i, : len(row)].tolist() == pytest.approx(row, abs=1e-7)
        assert not tokens.log_probs.grad[i, len(row) :].any()


@pytest.mark.parametrize("name", NAMES)
def test_any_padding_and_any_split_give_the_same_loss_and_gradient(name):
    objective, case = OBJECTIVES[name], sample(3)
    whole = padded(*case)
    total = total_of(objective, whole)
    loss, _ = objective(whole, total)
    loss.backward()
    for width, parts in ((9, [1, 4]), (20, [2, 2, 1]), (7, [1, 1, 1, 1, 1])):
        found, grads, start = 0.0, [], 0
        for count in parts:
            tokens = padded(*(each[start : start + count] for each in case), width=width)
            share, _ = objective(tokens, total)
            share.backward()
            found += float(share.detach())
            grads += [
                grad[: len(row)] for grad, row in zip(tokens.log_probs.grad, case[0][start:], strict=False)
            ]
            start += count
        assert found == pytest.approx(float(loss.detach()), abs=1e-13)
        for i, grad in enumerate(grads):
            torch.testing.assert_close(grad, whole.log_probs.grad[i, : len(grad)], rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", NAMES)
def test_packed_rows_are_the_same_as_one_sequence_a_row(name):
    objective, case = OBJECTIVES[name], sample(4)
    whole = padded(*case)
    total = total_of(objective, whole)
    loss, clipped = objective(whole, total)
    flat = [
        torch.tensor([x for row in part for x in row], dtype=torch.float64)[None]
        for part in (case[0], case[1])
    ]
    lengths = [len(row) for row in case[0]]
    index = torch.repeat_interleave(torch.arange(5), torch.tensor(lengths))[None]
    advantages = torch.tensor(case[2], dtype=torch.float64)[index]
    mask = torch.tensor([x for row in case[3] for x in row], dtype=torch.bool)[None]
    packed = Tokens(flat[0], flat[1], advantages, mask, index)
    again, clipped_again = objective(packed, total)
    assert float(again) == pytest.approx(float(loss.detach()), abs=1e-13)
    assert int(clipped.sum()) == int(clipped_again.sum())


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_without_active_tokens_is_0_with_gradient_0(name):
    log_p, old, advantages, masks = sample(5)
    tokens = padded(log_p, old, advantages, [[0] * len(mask) for mask in masks])
    objective = OBJECTIVES[name]
    loss, clipped = objective(tokens, total_of(objective, tokens))
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert not tokens.log_probs.grad.any()
    assert not clipped.any()


@pytest.mark.parametrize("name", NAMES)
def test_on_policy_the_gradient_of_every_loss_is_that_of_reinforce(name):
    """With p = p_old all ratios are 1; gspo and dr_grpo differ by their weights only."""
    log_p, _, advantages, masks = sample(6)
    tokens = padded(log_p, log_p, advantages, masks)
    objective = OBJECTIVES[name]
    objective(tokens, 1.0)[0].backward()
    expected = torch.where(tokens.mask, -tokens.advantages, 0.0)
    if name == "gspo":
        expected = expected / tokens.sequence_length
    torch.testing.assert_close(tokens.log_probs.grad, expected)


def test_the_clip_acts_where_it_removes_the_gradient():
    for name in ("dapo", "dr_grpo", "gspo"):
        objective, case = OBJECTIVES[name], sample(7)
        tokens = padded(*case)
        loss, clipped = objective(tokens, total_of(objective, tokens))
        loss.backward()
        assert torch.equal(clipped, (tokens.log_probs.grad == 0) & tokens.mask)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.1, 0.3, 1.0]) | st.floats(-5, 5), min_size=2, max_size=16))
def test_advantages_have_mean_0_and_the_order_of_the_rewards(rewards):
    found = group_advantages(rewards)
    assert sum(found) == pytest.approx(0, abs=1e-9)
    scaled = group_advantages(rewards, divide_by_std=True)
    assert all((a == 0) == (b == 0) or abs(a) < 1e-300 for a, b in zip(found, scaled, strict=True))
    if max(rewards) - min(rewards) > 1e-2:
        assert torch.tensor(scaled, dtype=torch.float64).std().item() == pytest.approx(1, rel=1e-3)


def test_equal_rewards_have_advantages_of_exactly_0():
    for divide_by_std in (False, True):
        assert group_advantages([0.1] * 7, divide_by_std=divide_by_std) == [0.0] * 7


def test_the_penalty_is_an_estimate_of_the_divergence():
    p = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    q = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    every = torch.ones(3, dtype=torch.bool)
    assert float((p * kl_penalty(p.log(), q.log(), every)).sum()) == pytest.approx(
        float((p * (p / q).log()).sum())
    )
    assert kl_penalty(p.log(), q.log(), ~every).tolist() == [0.0] * 3
    assert (kl_penalty(p.log(), q.log(), every) >= 0).all()
