"""What AdEMAMix, Dana, SignDana and AutoDana promise besides their formulas: the same as the rest of the family."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

from danalab.errors import UserError
from danalab.optim import ADana, AdEMAMix, AdEMAMixDecayingWD, AutoDana, Dana, SignDana

WARM = {"alpha_warmup": 50, "beta3_warmup": 80, "betas": (0.9, 0.99, 0.999)}
SETTINGS = {
    AdEMAMix: {"weight_decay": 0.5, **WARM},
    AdEMAMixDecayingWD: {"omega": 0.5, "horizon": 200, **WARM},
    Dana: {"omega": 0.5, "horizon": 200},
    SignDana: {"omega": 0.5, "horizon": 200},
    AutoDana: {"omega": 0.5, "horizon": 200},
}
ALL = list(SETTINGS)
BACKENDS = {"eager": {"fused": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
each = pytest.mark.parametrize("cls", ALL)
each_backend = pytest.mark.parametrize("flags", BACKENDS.values(), ids=BACKENDS)


def made(*shapes: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def train(optimizer: torch.optim.Optimizer, steps: range) -> None:
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for p in params:
            # A drift, so that there is signal in the averages.
            p.grad = (torch.randn(p.shape, generator=generator) + 0.3).to(p.dtype)
        optimizer.step()


def flat(params: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in params])


@pytest.mark.sample(3)
@each_backend
@each
def test_back_ends_agree_to_1e6_over_100_steps_in_float32(cls, flags):
    finished = []
    for chosen in ({"fused": False}, flags):
        params = made((64, 33), (33,), (7, 5, 3))
        optimizer = cls(params, lr=3e-3, **SETTINGS[cls], **chosen)
        for step in range(100):
            optimizer.param_groups[0]["lr"] = 3e-3 * (1 - step / 200)
            train(optimizer, range(step, step + 1))
        finished.append(flat(params))
    # A sign flips where the average is zero to the last bit; no test gradient does that.
    assert (finished[1] - finished[0]).abs().max() <= 1e-6 * finished[0].abs().max()


@each
def test_float64_takes_the_same_way(cls):
    finished = []
    for chosen in BACKENDS.values():
        params = made((9, 4), (5,), dtype=torch.float64)
        train(cls(params, lr=3e-3, **SETTINGS[cls], **chosen), range(20))
        finished.append(flat(params))
    torch.testing.assert_close(finished[1], finished[0], rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(finished[2], finished[0], rtol=1e-13, atol=1e-13)


@each
def test_threads_and_cuts_do_not_change_a_bit(cls):
    finished = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        try:
            params = made((5,), (301, 257), (1,), (40_001,))
            train(cls(params, lr=0.1, fused=True), range(2))
        finally:
            torch.set_num_threads(1)
        finished.append(flat(params))
    assert torch.equal(*finished)


@each_backend
@each
def test_a_parameter_without_gradient_is_left_alone(cls, flags):
    still, moved = made((3,), (3,))
    before = still.detach().clone()
    optimizer = cls([still, moved], lr=0.1, **SETTINGS[cls], **flags)
    moved.grad = torch.ones(3)
    optimizer.step()
    assert torch.equal(still, before)
    assert [optimizer.state[p]["step"].item() for p in (still, moved)] == [0, 1]


@each_backend
@each
def test_ascent_is_descent_on_the_negative(cls, flags):
    finished = []
    for sign, maximize in ((-1, False), (1, True)):
        (p,) = made((17,))
        optimizer = cls([p], lr=1e-2, maximize=maximize, **flags)
        for seed in range(3):
            p.grad = sign * torch.randn(17, generator=torch.Generator().manual_seed(seed))
            optimizer.step()
        finished.append(p.detach())
    assert torch.equal(*finished)


@each
def test_a_clock_on_the_device_gives_the_same_steps(cls):
    finished = []
    for capturable in (False, True):
        params = made((5, 3), (4,), dtype=torch.float64)
        train(cls(params, lr=0.05, **SETTINGS[cls], capturable=capturable, fused=False), range(5))
        finished.append(flat(params))
    torch.testing.assert_close(*finished, rtol=1e-13, atol=1e-13)


@each
@pytest.mark.parametrize("capturable", [False, True])
def test_found_nonfinite_leaves_everything_as_it_is(cls, capturable):
    (p,) = made((3,))
    optimizer = cls([p], lr=0.1, **SETTINGS[cls], capturable=capturable, fused=False)
    for bad in (False, True, True, False):
        before = p.detach().clone(), copy.deepcopy(optimizer.state[p])
        p.grad = torch.tensor([1.0, float("nan") if bad else 2.0, 3.0])
        optimizer.step(found_nonfinite=torch.tensor(bad))
        assert torch.equal(p, before[0]) == bad
        assert all(torch.equal(optimizer.state[p][key], old) for key, old in before[1].items()) == bad
    assert optimizer.state[p]["step"] == 2


# Compiling takes seconds each: the one with most scalars stands for all.
@pytest.mark.slow
@pytest.mark.parametrize("cls", [AdEMAMix, *(pytest.param(cls, marks=pytest.mark.slow) for cls in ALL[1:])])
def test_no_change_of_step_or_setting_compiles_again(cls):
    params = made((8, 5), (7,))
    optimizer = cls(params, lr=0.1, fused=True, capturable=True, **SETTINGS[cls])
    train(optimizer, range(1))
    eager = copy.deepcopy(params)
    twin = cls(eager, fused=False)
    twin.load_state_dict(optimizer.state_dict())
    counters.clear()
    with torch._dynamo.config.patch(error_on_recompile=True):
        for lr, delta, gamma3, decay in ((0.2, 5.0, 0.5, 0.0), (0.01, 12.0, 1.0, 0.3)):
            for each_optimizer in (optimizer, twin):
                group = each_optimizer.param_groups[0]
                group.update(lr=lr, gamma3=gamma3, weight_decay=decay)
                if "delta" in group:
                    group["delta"] = delta
                train(each_optimizer, range(3))
    assert not counters["stats"]
    torch.testing.assert_close(flat(params), flat(eager), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@each
def test_training_goes_on_bitwise_after_loading(cls, dtype):
    straight = made((6, 5), (4,), dtype=dtype)
    first = cls(straight, lr=1e-2, **SETTINGS[cls])
    train(first, range(30))  # amid the warm-ups
    resumed = copy.deepcopy(straight)
    second = cls(resumed, lr=0.5)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    train(first, range(30, 40)), train(second, range(30, 40))
    assert torch.equal(flat(straight), flat(resumed))
    assert all(second.state[p][name].dtype == torch.float32 for p in resumed for name in cls.rule.moments)


@each
def test_round_trip_through_distributed_checkpoint(cls, tmp_path):
    straight = nn.Linear(4, 3)
    first = cls(straight.parameters(), lr=1e-2, **SETTINGS[cls])
    train(first, range(3))
    dcp.save({"optimizer": get_optimizer_state_dict(straight, first)}, checkpoint_id=tmp_path)
    resumed = copy.deepcopy(straight)
    second = cls(resumed.parameters(), lr=1e-2, **SETTINGS[cls])
    found = {"optimizer": get_optimizer_state_dict(resumed, second)}
    dcp.load(found, checkpoint_id=tmp_path)
    set_optimizer_state_dict(resumed, second, found["optimizer"])
    train(first, range(3, 6)), train(second, range(3, 6))
    assert torch.equal(flat(list(straight.parameters())), flat(list(resumed.parameters())))


@each
def test_state_of_another_member_is_refused(cls):
    (p,) = made((3,))
    with pytest.raises(UserError, match=r"state_dict belongs|belongs to another"):
        cls([p]).load_state_dict(ADana([p]).state_dict())


@each_backend
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@each
def test_sixteen_bits_take_the_float32_step_rounded_once(cls, dtype, flags):
    (narrow,) = made((37, 11), dtype=dtype)
    wide = narrow.detach().float().requires_grad_()
    for p, chosen in ((narrow, flags), (wide, {"fused": False})):
        p.grad = torch.randn(37, 11, generator=torch.Generator().manual_seed(1)).to(dtype).to(p.dtype)
        cls([p], lr=0.02, **SETTINGS[cls], **chosen).step()
    # An ulp of float32 may tip a value that lies between two 16-bit ones.
    assert (narrow == wide.detach().to(dtype)).float().mean() > 0.99
    torch.testing.assert_close(narrow, wide.to(dtype))


@each_backend
@each
def test_stochastic_rounding_keeps_small_updates_in_the_mean(cls, flags):
    moved = {}
    for dtype in (torch.float32, torch.bfloat16):
        p = torch.ones(20_000, dtype=dtype, requires_grad=True)
        optimizer = cls([p], lr=3e-5, stochastic_rounding=dtype == torch.bfloat16, **flags)
        for _ in range(5):
            p.grad = torch.ones_like(p)
            optimizer.step()
        moved[dtype] = (1 - p.detach().float()).mean().item()
    assert moved[torch.bfloat16] == pytest.approx(moved[torch.float32], rel=0.15)


@each
def test_what_cannot_be_optimized_is_refused_by_name(cls):
    table = nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    optimizer = cls(table.named_parameters())
    with pytest.raises(UserError, match="'weight'"):
        optimizer.step()
    assert optimizer.state[table.weight]["step"] == 0
    with pytest.raises(UserError, match="complex"):
        cls([torch.ones(2, dtype=torch.complex64, requires_grad=True)])


BAD = [
    *[(cls, {"lr": float("nan")}, "lr") for cls in ALL],
    *[(cls, {"gamma3": -1.0}, "gamma3") for cls in ALL],
    *[(cls, {"kappa": -0.1}, "kappa") for cls in (Dana, SignDana)],
    *[(cls, {"delta": 0.0}, "delta") for cls in (Dana, SignDana, AutoDana)],
    *[(cls, {"betas": (0.9, 0.99)}, "three numbers") for cls in (AdEMAMix, AdEMAMixDecayingWD)],
    *[(cls, {"betas": (0.9, 0.99, 1.0)}, "betas") for cls in (AdEMAMix, AdEMAMixDecayingWD)],
    *[(cls, {"alpha_warmup": 0}, "alpha_warmup") for cls in (AdEMAMix, AdEMAMixDecayingWD)],
    *[(cls, {"beta3_warmup": -1}, "beta3_warmup") for cls in (AdEMAMix, AdEMAMixDecayingWD)],
    (AdEMAMix, {"alpha": float("inf")}, "alpha"),
    (AdEMAMix, {"lr": 1.0, "weight_decay": 1.5}, "one step"),
    (AdEMAMixDecayingWD, {"weight_decay": 1.5}, "first step"),
    (AutoDana, {"kappa_min": 1.0, "kappa_max": 0.5}, "order"),
    (AutoDana, {"significance": 0.0}, "significance"),
]


@pytest.mark.parametrize(("cls", "settings", "word"), BAD)
def test_settings_that_mean_nothing_are_refused_in_one_line(cls, settings, word):
    with pytest.raises(UserError, match=word) as caught:
        cls(made((2,)), **settings)
    assert "\n" not in str(caught.value)
    assert cls.__name__ in str(caught.value)
