"""What every optimizer of ours promises besides its formula."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from torch import nn

from danalab.errors import UserError
from danalab.optim import AdamWDecayingWD, ADana, DanaMK4, DanaStar, DanaStarMK4, Muon, build_optimizer

ALL = [ADana, DanaMK4, DanaStar, DanaStarMK4, AdamWDecayingWD]
FLAGS = [{"fused": False}, {"foreach": True}, {"fused": True}]
WAYS = ["eager", "foreach", "fused"]


def param(*shape: int, dtype: torch.dtype = torch.float32, value: float = 1.0) -> torch.Tensor:
    return torch.full(shape, value, dtype=dtype, requires_grad=True)


def with_gradient(p: torch.Tensor, seed: int = 0) -> torch.Tensor:
    p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(seed)).to(p.dtype)
    return p


def test_signature_is_the_published_one():
    want = (
        "(params, lr=0.001, *, delta=8.0, kappa=0.85, eps=1e-08, gamma3=1.0, alpha_offset=1.0, weight_decay=0.0,"
        " wd_ts=None, omega=None, horizon=None, decay_bound=None, cautious_decay=False, scaled_decay=False,"
        " beta2=None, momentum_cooldown=0.0, age=None, fresh=None, buffers=1, buffer_ages=(5.0, 200.0),"
        " foreach=None, fused=None, capturable=False, maximize=False,"
        " stochastic_rounding=False, state_dtype='float32'{})"
    )
    for cls, clip in ((ADana, ""), (DanaStar, ""), (DanaMK4, ", clipsnr=2.0"), (DanaStarMK4, ", clipsnr=2.0")):
        signature = inspect.signature(cls)
        bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
        assert str(inspect.Signature(bare)) == want.format(clip)


@pytest.mark.parametrize("cls", ALL)
def test_state_is_complete_from_construction_on(cls):
    p = param(3)
    state = cls([p]).state[p]
    assert set(state) == {"step", *cls.rule.moments}
    assert state["step"].dtype == torch.int64
    assert all(not value.any() for value in state.values())


@pytest.mark.parametrize("flags", FLAGS, ids=WAYS)
@pytest.mark.parametrize("cls", ALL)
def test_a_parameter_without_gradient_is_left_alone(cls, flags):
    still, moved = param(3), with_gradient(param(3))
    optimizer = cls([still, moved], weight_decay=0.1, **flags)
    optimizer.step()
    assert torch.equal(still, torch.ones(3))
    assert optimizer.state[still]["step"] == 0
    assert optimizer.state[moved]["step"] == 1


@pytest.mark.parametrize("flags", FLAGS, ids=WAYS)
def test_each_parameter_has_its_own_clock(flags):
    late, early = param(4), param(4)
    optimizer = ADana([late, early], lr=0.1, wd_ts=3.0, weight_decay=0.3, **flags)
    with_gradient(early)
    optimizer.step()
    with_gradient(late), with_gradient(early, 1)
    optimizer.step()
    alone = with_gradient(param(4))
    ADana([alone], lr=0.1, wd_ts=3.0, weight_decay=0.3, fused=False).step()
    torch.testing.assert_close(late, alone)
    assert optimizer.state[early]["step"] == 2


@pytest.mark.parametrize("flags", FLAGS, ids=WAYS)
def test_step_without_any_gradient_does_nothing(flags):
    p = param(3)
    ADana([p], weight_decay=0.5, **flags).step()
    assert torch.equal(p, torch.ones(3))


def test_peak_lr_is_the_learning_rate_at_construction_and_schedulers_leave_it():
    p = with_gradient(param(2))
    optimizer = ADana([{"params": [p], "lr": 0.5}, {"params": [param(1)]}], lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1 / (i + 1))
    optimizer.step()
    scheduler.step()
    assert [group["peak_lr"] for group in optimizer.param_groups] == [0.5, 0.1]
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.05]


def test_closure_is_evaluated_with_gradients_and_its_loss_returned():
    p = param(1)
    optimizer = ADana([p], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = (p * 3).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 3.0
    assert p.item() < 1


@pytest.mark.parametrize("cls", ALL)
def test_rehearsal_step_of_checkpoint_helpers_changes_nothing(cls):
    p = with_gradient(param(3))
    optimizer = cls([p], lr=0.1, weight_decay=0.5)
    optimizer.step()
    before, state = p.detach().clone(), copy.deepcopy(optimizer.state[p])
    p.grad = torch.zeros_like(p)
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    assert torch.equal(p, before)
    assert all(torch.equal(optimizer.state[p][key], value) for key, value in state.items())


def test_a_zero_gradient_is_otherwise_a_step_in_time():
    p = param(2)
    p.grad = torch.zeros_like(p)
    optimizer = ADana([p], lr=0.1)
    optimizer.step()
    assert optimizer.state[p]["step"] == 1


def test_a_step_with_learning_rate_0_counts_and_does_not_move_parameters():
    p = with_gradient(param(3))
    optimizer = ADana([p], lr=0.1, weight_decay=0.5)
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    assert torch.equal(p, torch.ones(3))
    assert optimizer.state[p]["step"] == 1
    assert optimizer.state[p]["exp_avg"].any()


def test_peak_of_a_group_built_with_learning_rate_0_must_be_told():
    p = with_gradient(param(1))
    optimizer = ADana([p], lr=0.0, weight_decay=0.1)
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.1
    with pytest.raises(UserError, match="peak_lr"):
        optimizer.step()
    optimizer.param_groups[0]["peak_lr"] = 0.1
    optimizer.step()
    assert p.item() < 1


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize("capturable", [False, True])
def test_found_nonfinite_leaves_everything_as_it_is(cls, capturable):
    p = with_gradient(param(3))
    optimizer = cls([p], lr=0.1, weight_decay=0.1, capturable=capturable, fused=False)
    for bad in (False, True, True, False):
        before = p.detach().clone(), copy.deepcopy(optimizer.state[p])
        with_gradient(p)
        if bad:
            p.grad[1] = float("nan")
        optimizer.step(found_nonfinite=torch.tensor(bad))
        assert torch.equal(p, before[0]) == bad
        assert all(torch.equal(optimizer.state[p][key], old) for key, old in before[1].items()) == bad
    assert optimizer.state[p]["step"] == 2


def test_a_skipped_first_step_changes_nothing():
    for cls in ALL:
        p = with_gradient(param(3))
        optimizer = cls([p], lr=0.1, weight_decay=0.1, capturable=True, fused=False)
        optimizer.step(found_nonfinite=torch.tensor(True))
        assert torch.equal(p, torch.ones(3))
        assert not optimizer.state[p]["exp_avg"].any()


@pytest.mark.parametrize("cls", ALL)
def test_a_clock_on_the_device_gives_the_same_steps(cls):
    finished = []
    for capturable in (False, True):
        params = [param(5, 3, dtype=torch.float64), param(4, dtype=torch.float64)]
        optimizer = cls(params, lr=0.05, omega=4.0, horizon=100, capturable=capturable, fused=False)
        for step in range(5):
            for number, p in enumerate(params):
                with_gradient(p, 10 * step + number)
            if step == 2:
                params[1].grad = None
            optimizer.step()
        finished.append(torch.cat([p.detach().flatten() for p in params]))
    torch.testing.assert_close(*finished, rtol=1e-13, atol=1e-13)


def test_learning_rate_may_be_a_tensor():
    finished = []
    for lr in (0.1, torch.tensor(0.1, dtype=torch.float64)):
        p = with_gradient(param(3, dtype=torch.float64))
        ADana([p], lr=lr, weight_decay=0.1, wd_ts=5.0).step()
        finished.append(p.detach())
    torch.testing.assert_close(*finished)


def test_state_follows_a_model_that_changes_dtype():
    layer = nn.Linear(3, 2)
    optimizer = ADana(layer.parameters(), lr=0.1)
    layer.double()
    layer(torch.ones(1, 3, dtype=torch.float64)).sum().backward()
    optimizer.step()
    assert optimizer.state[layer.weight]["exp_avg"].dtype == torch.float64
    layer.to(torch.bfloat16)
    layer(torch.ones(1, 3, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    assert optimizer.state[layer.weight]["exp_avg"].dtype == torch.float32


@pytest.mark.parametrize("flags", FLAGS, ids=WAYS)
@pytest.mark.parametrize("cls", [ADana, DanaStarMK4])
def test_any_memory_layout_takes_the_same_step(cls, flags):
    generator = torch.Generator().manual_seed(0)
    values, grad = torch.randn(4, 6, 5, 3, generator=generator), torch.randn(4, 6, 5, 3, generator=generator)
    plain = values.clone().requires_grad_()
    plain.grad = grad.clone()
    cls([plain], lr=0.1, fused=False).step()
    channels_last = values.to(memory_format=torch.channels_last)
    strided = torch.zeros(4, 6, 5, 6)[..., ::2].copy_(values)
    for p, g in (
        (channels_last, grad.to(memory_format=torch.channels_last)),
        (channels_last.clone(), grad.clone()),
        (values.clone(), grad.to(memory_format=torch.channels_last)),
        (strided, grad.clone()),
    ):
        p = p.detach().requires_grad_()
        p.grad = g
        cls([p], lr=0.1, **flags).step()
        torch.testing.assert_close(p.detach(), plain.detach(), rtol=1e-6, atol=1e-6)


def test_scalars_and_empty_tensors_are_parameters_too():
    for flags in FLAGS:
        params = [with_gradient(param()), with_gradient(param(0, 3))]
        ADana(params, lr=0.1, **flags).step()
        assert params[0].item() != 1


def test_optimizers_copy_and_pickle():
    p = with_gradient(param(3))
    optimizer = DanaStar([p], lr=0.1)
    optimizer.step()
    twin = copy.deepcopy(optimizer)
    assert twin.param_groups[0]["kappa"] == 0.85
    (q,) = twin.param_groups[0]["params"]
    q.grad = p.grad.clone()
    optimizer.step(), twin.step()
    assert torch.equal(p, q)


@pytest.mark.sample(1)
@pytest.mark.parametrize("flags", [*FLAGS, {}], ids=[*WAYS, "chosen"])
def test_a_training_step_compiled_as_a_whole_is_the_same_step(flags):
    trained = []
    for compiled in (False, True):
        p = param(5, 7)
        optimizer = DanaStar([p], lr=0.1, omega=1.0, horizon=100, **flags)

        def step(p=p, optimizer=optimizer):
            (p * torch.arange(7)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        if compiled:
            torch._dynamo.reset()
            step = torch.compile(step, backend="eager")
        for i in range(4):
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + i)
            step()
        trained.append(p.detach())
    assert torch.equal(*trained)


def tiny() -> nn.Module:
    return nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 5, bias=False))


@pytest.mark.parametrize("given", [lambda model: model, lambda model: model.named_parameters()], ids=["model", "named"])
def test_a_class_groups_a_model_as_build_optimizer_does(given):
    model = nn.ModuleDict({"embed": nn.Embedding(5, 4), "up": nn.Linear(4, 4), "head": nn.Linear(4, 5, bias=False)})
    found = ADana(given(model), lr=1e-3, omega=4.0, horizon=1000).param_groups
    want = build_optimizer("adana", model, lr=1e-3, omega=4.0, horizon=1000).param_groups
    assert [(g["param_names"], g["weight_decay"]) for g in found] == [
        (g["param_names"], g["weight_decay"]) for g in want
    ]


def test_muon_takes_a_model():
    kinds = [(group["kind"], group["use_muon"]) for group in Muon(tiny(), lr=0.02).param_groups]
    assert kinds == [("matrix", True), ("head", False), ("embedding", False), ("vector", False)]


def test_a_model_given_to_the_class_has_its_own_learning_rate_factors():
    model = tiny()
    model.learning_rate_factors = lambda: {"1.weight": 0.5}
    rates = {name: g["peak_lr"] for g in ADana(model, lr=0.1).param_groups for name in g["param_names"]}
    assert (rates["1.weight"], rates["3.weight"]) == (0.05, 0.1)
