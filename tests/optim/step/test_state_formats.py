"""Moments of 3 bytes and of 1 byte: exact in the mean, never frozen, resumable and safe to shard, or refused."""

from __future__ import annotations

import copy
import io
import math

import pytest
import torch
from torch import nn

from danalab.errors import UserError
from danalab.optim import ADana, build_optimizer, list_optimizers, optimizer_spec
from danalab.optim.step import state_formats
from danalab.optim.step.backends import native
from danalab.optim.step.backends.rounding import element_noise
from danalab.optim.step.state_formats import FORMATS, REST, codes_of, decode, encode, join, split, stored_tensors

LOW = FORMATS[1:]
NAMES = [name for name in list_optimizers() if "state_dtype" in optimizer_spec(name).settings]
MOMENTS = ("exp_avg", "exp_avg_sq", "tau")
LATE = 100_000
"""A step count at which the gain is 8e-5."""


def stored(value, name, state_dtype, seed=0):
    """What is read again after a value was stored."""
    state = stored_tensors((name,), torch.empty(value.shape), state_dtype)
    encode(state, name, value, element_noise(value, seed))
    return decode(state, name)


def values(name):
    drawn = torch.randn(8, 300, generator=torch.Generator().manual_seed(0)) * torch.logspace(-9, 2, 8)[:, None]
    drawn = drawn.abs() if name != "exp_avg" else drawn
    return drawn.clamp(0, 1) if name == "tau" else drawn.square() if name == "exp_avg_sq" else drawn


def test_the_dana_family_and_its_baseline_have_the_formats():
    family = {"adana", "dana-mk4", "dana-star", "dana-star-mk4", "dana", "sign-dana", "auto-dana"}
    assert family | {"adamw-decaying-wd"} <= set(NAMES)


@pytest.mark.parametrize("name", MOMENTS)
def test_24_bits_are_within_a_unit_of_the_last_of_16_bits_of_mantissa(name):
    x = values(name)
    assert ((stored(x, name, "bf16+8") - x).abs() <= 2.0**-15 * x.abs()).all()
    special = torch.tensor([[0.0, -0.0, math.inf, -math.inf, 1.0, -2.0]])
    assert torch.equal(stored(special, name, "bf16+8"), special)
    assert stored(torch.tensor([[math.nan]]), name, "bf16+8").isnan().all()


@pytest.mark.parametrize("name", MOMENTS)
def test_a_code_is_one_of_the_two_neighbours_of_its_value(name):
    x = values(name)
    scale = 1.25 * x.abs().amax(dim=-1, keepdim=True)
    low, high = (codes_of(x, scale, name, torch.full_like(x, noise)) for noise in (65535, 0))
    assert ((high - low).abs() <= 1).all()
    state = {f"{name}_scale": scale}
    down, up = (decode({**state, f"{name}_codes": codes}, name).abs() for codes in (low, high))
    inside = low.abs() > (1 if name == "exp_avg_sq" else 0)
    assert ((down <= x.abs() * 1.00001) & (x.abs() <= up * 1.00001))[inside].all()


@pytest.mark.sample(1)
@pytest.mark.parametrize("state_dtype", LOW)
@pytest.mark.parametrize("name", MOMENTS)
def test_rounding_is_exact_in_the_mean(name, state_dtype):
    x = values(name)[5:6]
    mean = torch.stack([stored(x, name, state_dtype, seed).double() for seed in range(2000)]).mean(dim=0)
    step = (stored(x, name, state_dtype, 1) - x).abs().max() + x.abs().max() / 100
    visible = x.abs() > x.abs().max() / 50
    assert ((mean - x).abs()[visible] < 6 * step / math.sqrt(2000)).all()


def follow(state_dtype, steps, *, nearest=False):
    """The share of the way from 0.5 to each of its targets that ADana's first moment goes in `steps` steps after LATE,
    beside the share in float32."""
    targets = 1 + torch.arange(4.0)[:, None].expand(4, 256)
    found = []
    for each in (state_dtype, "float32"):
        p = nn.Parameter(torch.zeros(4, 256))
        optimizer = ADana([p], lr=1e-6, state_dtype=each)
        state = optimizer.state[p]
        state["step"].fill_(LATE)
        for name in ("exp_avg", "exp_avg_sq"):
            encode(state, name, torch.full((4, 256), 0.5), element_noise(targets, 0))
        if nearest and each != "float32":
            freeze(state, targets, steps)
        else:
            p.grad = targets.clone()
            for _ in range(steps):
                optimizer.step()
        found.append((decode(state, "exp_avg") - 0.5) / (targets - 0.5))
    return found


def freeze(state, targets, steps):
    """The same average in the plain format: rounded to nearest after each step."""
    for k in range(1, steps + 1):
        m = decode(state, "exp_avg") + 8 / (8 + LATE + k) * (targets - decode(state, "exp_avg"))
        if "exp_avg_high" in state:
            state["exp_avg_high"].copy_(m.bfloat16())
            state["exp_avg_low"].zero_()
        else:
            scale = state["exp_avg_scale"]
            state["exp_avg_codes"].copy_(codes_of(m, scale, "exp_avg", torch.full_like(m, 32768)))


@pytest.mark.parametrize("state_dtype", LOW)
def test_a_late_average_follows_its_signal_where_the_plain_format_is_frozen(state_dtype):
    steps = 400
    moved, want = follow(state_dtype, steps)
    assert want.mean() == pytest.approx(1 - (1 + steps / LATE) ** -8, rel=0.01)
    assert moved.mean() == pytest.approx(want.mean().item(), rel=0.15)
    frozen, _ = follow(state_dtype, 40, nearest=True)
    before = follow(state_dtype, 0)[0]
    assert (frozen - before).abs().max() < 1e-3 * want.mean()  # not one value has changed


@pytest.mark.slow
@pytest.mark.parametrize(("state_dtype", "bias", "spread"), [("bf16+8", 0.002, 0.01), ("8bit", 0.02, 0.5)])
def test_a_long_average_ends_where_float32_does(state_dtype, bias, spread):
    moved, want = follow(state_dtype, 10_000)
    assert abs((moved.mean() / want.mean()).item() - 1) < bias
    assert ((moved - want).square().mean().sqrt() / want.mean()).item() < spread


@pytest.mark.parametrize("state_dtype", LOW)
@pytest.mark.parametrize("name", NAMES)
def test_steps_are_those_of_float32_up_to_the_rounding_of_the_moments(name, state_dtype):
    ends = []
    for each in ("float32", state_dtype):
        p = nn.Parameter(torch.randn(6, 40, generator=torch.Generator().manual_seed(0)))
        start = p.detach().clone()
        optimizer = build_optimizer(
            name, [p], lr=0.01, state_dtype=each, **({"k": 2} if "k" in optimizer_spec(name).settings else {})
        )
        for step in range(5):
            p.grad = torch.randn(6, 40, generator=torch.Generator().manual_seed(step))
            optimizer.step()
        ends.append(p.detach() - start)
    error = (ends[1] - ends[0]).square().mean().sqrt() / ends[0].square().mean().sqrt()
    # Signs of an average near zero change with its rounding.
    assert error < {"bf16+8": 1e-4, "8bit": 0.1}[state_dtype] * (10 if name == "sign-dana" else 1)


@pytest.mark.parametrize("backend", [{"foreach": False, "fused": False}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("state_dtype", LOW)
def test_every_back_end_has_them(backend, state_dtype):
    ends = []
    for each in (backend, {"foreach": False, "fused": False}):
        p = nn.Parameter(torch.ones(6, 300))
        optimizer = ADana([p], lr=0.01, state_dtype=state_dtype, weight_decay=0.01, **each)
        for step in range(3):
            p.grad = torch.randn(6, 300, generator=torch.Generator().manual_seed(step))
            optimizer.step()
        ends.append(p.detach())
    assert (ends[0] - ends[1]).abs().max() < 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("state_dtype", LOW)
def test_going_on_from_a_saved_state_is_bitwise(state_dtype, dtype):
    def give(params, step):
        for p in params:
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(step + p.ndim)).to(dtype)

    params = [nn.Parameter(torch.ones(shape, dtype=dtype)) for shape in ((5, 300), (7,), (2, 3, 4))]
    optimizer = build_optimizer("dana-star-mk4", params, lr=0.01, state_dtype=state_dtype)
    for step in range(3):
        give(params, step)
        optimizer.step()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    others = [nn.Parameter(p.detach().clone()) for p in params]
    resumed = build_optimizer("dana-star-mk4", others, lr=0.01, state_dtype=state_dtype)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    twin, its = copy.deepcopy((params, optimizer))
    for step in range(3, 6):
        for each, stepping in ((params, optimizer), (others, resumed), (twin, its)):
            give(each, step)
            stepping.step()
    for p, q, r in zip(params, others, twin, strict=True):
        assert torch.equal(p, q)
        assert torch.equal(p, r)


def test_parts_of_a_step_make_the_same_step(monkeypatch):
    ends = []
    for size in (1 << 24, 700):
        monkeypatch.setattr("danalab.optim.step.backends.choice.PART", size)
        params = [nn.Parameter(torch.ones(3, 200)) for _ in range(4)]
        optimizer = ADana(params, lr=0.01, state_dtype="8bit")
        for p in params:
            p.grad = torch.randn(3, 200, generator=torch.Generator().manual_seed(1))
        optimizer.step()
        ends.append(torch.cat([p.detach().flatten() for p in params]))
    assert torch.equal(*ends)


@pytest.mark.parametrize(
    ("state_dtype", "dtype", "bytes_each"),
    [
        ("float32", torch.float32, 16.0),
        ("bf16+8", torch.float32, 14.0),
        ("bf16+8", torch.bfloat16, 11.0),
        ("8bit", torch.bfloat16, 7.03125),
    ],
)
def test_bytes_of_weight_gradient_and_state(state_dtype, dtype, bytes_each):
    p = nn.Parameter(torch.zeros(4, 1024, dtype=dtype))
    state = ADana([p], state_dtype=state_dtype).state[p]
    size = sum(value.numel() * value.element_size() for key, value in state.items() if key != "step")
    assert size / p.numel() + 2 * p.element_size() == bytes_each


def stepped(name, state_dtype, steps, *, as_stored=True, threads=1):
    """Parameters and states, in both dtypes, after steps of the CPU kernel; with `as_stored` it reads the format, else
    moments are decoded for it."""
    draw = torch.Generator().manual_seed(3)
    shapes = ((7, 300), (13,), (2, 3, 70), (2, 1030), (0, 4))
    params = [
        nn.Parameter((0.5 * torch.randn(shape, generator=draw)).to(dtype))
        for dtype in (torch.float32, torch.bfloat16)
        for shape in shapes
    ]
    optimizer = build_optimizer(name, params, lr=0.01, state_dtype=state_dtype, weight_decay=0.01, cautious_decay=True)
    torch.set_num_threads(threads)
    with pytest.MonkeyPatch.context() as patch:
        if not as_stored:
            patch.setattr(native, "reads_formats", lambda batch: False)
        for _ in range(steps):
            for p in params:
                seen = torch.rand(p.shape, generator=draw) < 0.5
                p.grad = torch.where(seen, torch.randn(p.shape, generator=draw), 0.0).to(p.dtype)
            optimizer.step()
    torch.set_num_threads(1)
    return [tensor for p in params for tensor in (p.detach(), *optimizer.state[p].values())]


@pytest.mark.sample(3)
@pytest.mark.parametrize("steps", [12, pytest.param(400, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NAMES)
def test_a_pass_over_24_bits_is_bitwise_the_step_on_decoded_moments(name, steps):
    found, want = (stepped(name, "bf16+8", steps, as_stored=as_stored) for as_stored in (True, False))
    assert all(map(torch.equal, found, want))


@pytest.mark.parametrize("name", NAMES)
def test_a_pass_over_codes_is_the_step_on_decoded_moments(name):
    """But for one code in a million: torch's square root is not always the nearest number."""
    pairs = zip(*(stepped(name, "8bit", 2, as_stored=as_stored) for as_stored in (True, False)), strict=True)
    for found, want in pairs:
        assert not found.numel() or (found != want).float().mean().item() <= 1e-3
        atol = 1.0 if found.dtype == torch.uint8 else 0.01
        torch.testing.assert_close(found.float(), want.float(), rtol=0, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_long_runs_over_codes_differ_in_single_blocks_only(name):
    """Of one code that differs a scale may be another one, and then all codes of its block."""
    pairs = zip(*(stepped(name, "8bit", 200, as_stored=as_stored) for as_stored in (True, False)), strict=True)
    equal = torch.cat([(found == want).flatten() for found, want in pairs])
    assert equal.float().mean() > 0.8


@pytest.mark.parametrize("state_dtype", LOW)
def test_threads_do_not_change_a_bit(state_dtype, monkeypatch):
    found = [stepped("dana-star-mk4", state_dtype, 3, threads=threads) for threads in (1, 2, 3)]
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(*found, strict=True))


@pytest.mark.compiled
@pytest.mark.parametrize("state_dtype", LOW)
def test_a_step_is_repeated_without_preparing_it_and_notices_changes(state_dtype):
    def run(prepare_anew):
        params = [nn.Parameter(torch.ones(5, 300, dtype=dtype)) for dtype in (torch.float32, torch.bfloat16)]
        optimizer = build_optimizer("dana-star", params, lr=0.01, state_dtype=state_dtype)
        repeated = []
        for step in range(8):
            for p in params:
                p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(step)).to(p.dtype)
            if step == 4:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            if step == 6:
                key = "exp_avg_low" if state_dtype == "bf16+8" else "exp_avg_codes"
                optimizer.state[params[0]][key] = torch.zeros_like(optimizer.state[params[0]][key])
            before = optimizer._plan = None if prepare_anew else optimizer._plan
            optimizer.step()
            repeated.append(before is not None and optimizer._plan is before)
        return torch.cat([p.detach().float() for p in params]), repeated

    (found, repeated), (anew, _) = run(False), run(True)
    assert torch.equal(found, anew)
    assert repeated == [step in (1, 2, 3, 5, 7) for step in range(8)]


@pytest.mark.parametrize("backend", [{"foreach": False, "fused": False}, {"fused": True}], ids=["eager", "fused"])
@pytest.mark.parametrize("state_dtype", LOW)
def test_bfloat16_weights_follow_steps_below_their_resolution(state_dtype, backend):
    """A step of 1e-5 is 1/400 of the distance of bfloat16 numbers at 1."""
    ends = {}
    for dtype in (torch.float32, torch.bfloat16):
        p = nn.Parameter(torch.ones(4, 256, dtype=dtype))
        optimizer = ADana([p], lr=1e-5, state_dtype=state_dtype, **backend)
        for _ in range(40):
            p.grad = torch.ones_like(p)
            optimizer.step()
        state = optimizer.state[p]
        ends[dtype] = (join(p.detach(), state[REST]) if REST in state else p.detach()) - 1
    assert ends[torch.bfloat16].mean().item() == pytest.approx(ends[torch.float32].mean().item(), rel=0.02)


def test_a_parameter_that_changes_its_dtype_keeps_its_moments():
    p = nn.Parameter(torch.ones(4, 256))
    optimizer = ADana([p], lr=0.01, state_dtype="bf16+8")
    for dtype in (torch.float32, torch.bfloat16, torch.float32):
        p.data = p.data.to(dtype)
        p.grad = torch.ones_like(p)
        optimizer.step()
        assert (REST in optimizer.state[p]) == (dtype == torch.bfloat16)
    assert optimizer.state[p]["step"] == 3


def test_another_format_in_mid_run_is_refused():
    p = nn.Parameter(torch.ones(4, 256))
    optimizer = ADana([p], lr=0.01, state_dtype="bf16+8")
    for _ in range(2):
        p.grad = torch.ones_like(p)
        optimizer.step()
    optimizer.param_groups[0]["state_dtype"] = "8bit"
    with pytest.raises(UserError, match="state_dtype is 8bit now"):
        optimizer.step()


@pytest.mark.parametrize("state_dtype", LOW)
def test_statistics_read_the_decoded_moments(state_dtype):
    found = []
    for each in ("float32", state_dtype):
        p = nn.Parameter(torch.ones(4, 64))
        optimizer = ADana([p], lr=0.01, state_dtype=each)
        for step in range(4):
            p.grad = torch.randn(4, 64, generator=torch.Generator().manual_seed(step))
            optimizer.step()
        found.append((optimizer.collect_stats()["snr"], optimizer.update_rms()))
    torch.testing.assert_close(found[0], found[1], rtol=0.05, atol=0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"state_dtype": "4bit"}, "known: float32, bf16"),
        ({"state_dtype": "bf16"}, r"did you mean 'bf16\+8'"),
        ({"state_dtype": "8bit", "capturable": True}, "capturable needs state_dtype float32"),
    ],
)
def test_what_they_cannot_do_is_refused_in_a_line(settings, words):
    with pytest.raises(UserError, match=words) as caught:
        ADana([nn.Parameter(torch.ones(3, 3))], **settings)
    assert "\n" not in str(caught.value)


def test_float64_and_states_in_another_format_are_refused():
    with pytest.raises(UserError, match="is float64"):
        ADana([nn.Parameter(torch.ones(3, 3, dtype=torch.float64))], state_dtype="bf16+8")
    p = nn.Parameter(torch.ones(3, 3))
    saved = ADana([p], state_dtype="8bit").state_dict()
    with pytest.raises(UserError, match="state_dict has state_dtype 8bit, not float32"):
        ADana([p]).load_state_dict(saved)


def test_a_scale_stays_while_its_block_fits():
    largest = torch.tensor([1.0, 1.3, 0.6, 0.0])
    scales = state_formats.next_scale(largest, torch.full((4,), 1.25))
    assert torch.allclose(scales, torch.tensor([1.25, 1.625, 0.75, 0.0]))
    assert split(torch.tensor([1.0]), torch.tensor([255]))[0].item() == 1.0
