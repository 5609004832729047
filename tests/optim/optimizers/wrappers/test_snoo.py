"""SNOO: the outer step by its formula, around any optimizer, exact when it goes on in the middle of a period."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from danalab.errors import UserError
from danalab.optim import SNOO, ADana, AdEMAMix, DanaStarMK4, Muon, build_optimizer
from distributed.ranks import run_ranks

INNER = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.05),
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
    "adana": lambda params: ADana(params, lr=0.05, omega=1.0, horizon=100),
    "dana-star-mk4": lambda params: DanaStarMK4(params, lr=0.05),
    "ademamix": lambda params: AdEMAMix(params, lr=0.05, alpha_warmup=10, beta3_warmup=10),
    "muon": lambda params: Muon(params, lr=0.02),
}


def made(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in ((4, 3), (5,))]


def train(params: list[torch.Tensor], optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)
        optimizer.step()


def equal(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(p, q) for p, q in zip(left, right, strict=True))


@pytest.mark.parametrize(("k", "lr", "mu"), [(1, 0.5, 0.9), (3, 0.5, 0.9), (3, 0.8, 0.0), (4, 1.3, 0.5)])
def test_every_kth_step_is_torch_nesterov_on_what_the_inner_steps_have_moved(k, lr, mu):
    params = made(torch.float64)
    optimizer = SNOO(torch.optim.AdamW(params, lr=0.05), k=k, lr_outer=lr, mu=mu)
    outer = [p.detach().clone().requires_grad_() for p in params]
    plain = [p.detach().clone().requires_grad_() for p in params]
    inner, by_torch = torch.optim.AdamW(plain, lr=0.05), torch.optim.SGD(outer, lr=lr, momentum=mu, nesterov=mu > 0)
    for step in range(1, 11):
        train(params, optimizer, range(step, step + 1)), train(plain, inner, range(step, step + 1))
        if step % k == 0:
            for x, p in zip(outer, plain, strict=True):
                x.grad = x.detach() - p.detach()
            by_torch.step()
            with torch.no_grad():
                for x, p in zip(outer, plain, strict=True):
                    p.copy_(x)
        for p, want in zip(params, plain, strict=True):
            torch.testing.assert_close(p, want, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("inner", INNER.values(), ids=INNER)
def test_an_outer_step_of_1_without_momentum_leaves_the_inner_optimizer_as_it_is(inner):
    params, plain = made(torch.float64), made(torch.float64)
    train(params, SNOO(inner(params), k=3, lr_outer=1.0, mu=0.0), range(7)), train(plain, inner(plain), range(7))
    for p, want in zip(params, plain, strict=True):
        torch.testing.assert_close(p, want, rtol=1e-12, atol=1e-12)


@pytest.mark.sample(10)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("done", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("inner", INNER.values(), ids=INNER)
def test_going_on_anywhere_in_the_period_is_bitwise(inner, done, dtype):
    straight = made(dtype)
    first = SNOO(inner(straight), k=3)
    train(straight, first, range(done))
    resumed = [p.detach().clone().requires_grad_() for p in straight]
    second = SNOO(inner(resumed), k=3)
    saved = copy.deepcopy(first.state_dict())
    second.load_state_dict(saved)
    train(straight, first, range(done, 8)), train(resumed, second, range(done, 8))
    assert equal(straight, resumed)
    if done:
        entry = saved["state"][0]
        assert {"outer", "outer_momentum", "outer_step"} <= set(entry)
        assert entry["outer"].dtype == torch.float32


@pytest.mark.sample(4)
@pytest.mark.parametrize("flat", [False, True], ids=["nested", "flat"])
@pytest.mark.parametrize("inner", INNER.values(), ids=INNER)
def test_round_trip_through_distributed_checkpoint_amid_a_period(inner, flat, tmp_path):
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    straight = nn.Linear(4, 3)
    first = SNOO(inner(straight.parameters()), k=3)
    train(list(straight.parameters()), first, range(4))
    dcp.save({"o": get_optimizer_state_dict(straight, first, options=options)}, checkpoint_id=tmp_path)
    resumed = copy.deepcopy(straight)
    second = SNOO(inner(resumed.parameters()), k=3)
    found = {"o": get_optimizer_state_dict(resumed, second, options=options)}
    dcp.load(found, checkpoint_id=tmp_path)
    set_optimizer_state_dict(resumed, second, found["o"], options=options)
    for net, optimizer in ((straight, first), (resumed, second)):
        train(list(net.parameters()), optimizer, range(4, 9))
    assert equal(list(straight.parameters()), list(resumed.parameters()))


def test_parameter_groups_are_the_inner_ones_so_schedulers_work():
    params = made()
    optimizer = SNOO(ADana(params, lr=0.5), k=2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
    train(params, optimizer, range(1))
    scheduler.step()
    assert optimizer.inner.param_groups is optimizer.param_groups
    assert optimizer.inner.param_groups[0]["lr"] == 0.25
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer.param_groups[0]["lr"] = 9.0
    optimizer.load_state_dict(saved)
    scheduler.step()
    assert optimizer.inner.param_groups[0]["lr"] == pytest.approx(0.5 / 3)


def test_each_group_may_have_its_own_period_and_hyper_parameters_are_restored():
    a, b = made()
    groups = [{"params": [a]}, {"params": [b], "outer_k": 2, "outer_lr": 1.0, "outer_mu": 0.0}]
    optimizer = SNOO(torch.optim.SGD(groups, lr=0.1), k=1)
    plain = b.detach().clone().requires_grad_()
    train([a, b], optimizer, range(3))
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        torch.randn(a.shape, generator=generator)
        plain.grad = torch.randn(b.shape, generator=generator)
        torch.optim.SGD([plain], lr=0.1).step()
    torch.testing.assert_close(b, plain)
    other = SNOO(torch.optim.SGD([{"params": [a]}, {"params": [b]}], lr=0.5), k=7)
    other.load_state_dict(optimizer.state_dict())
    assert [group["outer_k"] for group in other.param_groups] == [1, 2]


def test_a_parameter_without_gradient_keeps_its_clock_and_its_weights():
    still, moved = made()
    before = still.detach().clone()
    optimizer = SNOO(torch.optim.AdamW([still, moved], lr=0.1), k=2)
    for _ in range(4):
        moved.grad = torch.ones(5)
        optimizer.step()
    assert torch.equal(still, before)
    assert [optimizer.state[p]["outer_step"].item() for p in (still, moved)] == [0, 4]


def test_outer_weights_begin_where_the_first_step_finds_them():
    """A model's weights are often loaded after its optimizer was made."""
    params, other = made(), made()
    early = SNOO(torch.optim.SGD(params, lr=0.1), k=2)
    with torch.no_grad():
        for p, q in zip(params, other, strict=True):
            p.mul_(3), q.mul_(3)
    late = SNOO(torch.optim.SGD(other, lr=0.1), k=2)
    train(params, early, range(4)), train(other, late, range(4))
    assert equal(params, other)


def test_closure_is_evaluated_with_gradients_and_its_loss_returned():
    (p, _) = made()
    q = p.detach().clone().requires_grad_()
    optimizer, plain = SNOO(torch.optim.SGD([p], lr=0.1), k=2), SNOO(torch.optim.SGD([q], lr=0.1), k=2)

    def closure():
        optimizer.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return loss

    for _ in range(4):
        want = q.detach().square().sum()
        torch.testing.assert_close(optimizer.step(closure).detach(), want)
        q.grad = 2 * q.detach()
        plain.step()
    torch.testing.assert_close(p, q)


def test_a_step_that_is_skipped_changes_nothing_and_does_not_count():
    params = made()
    optimizer = SNOO(torch.optim.AdamW(params, lr=0.1), k=2)
    train(params, optimizer, range(1))
    before, state = [p.detach().clone() for p in params], copy.deepcopy(optimizer.state_dict()["state"])
    optimizer.step(found_nonfinite=torch.tensor(True))
    optimizer.found_inf = torch.tensor(1.0)  # as GradScaler says it
    optimizer.step()
    del optimizer.found_inf
    assert equal(params, before)
    after = optimizer.state_dict()["state"]
    assert all(
        torch.equal(torch.as_tensor(after[i][key]), torch.as_tensor(state[i][key])) for i in state for key in state[i]
    )


def test_low_precision_parameters_keep_slow_outer_steps():
    """In bfloat16 a step of 1e-4 from 1 would be lost; the outer weights are float32."""
    p = torch.ones(4, dtype=torch.bfloat16, requires_grad=True)
    optimizer = SNOO(torch.optim.SGD([p], lr=0.004), k=1, lr_outer=0.01, mu=0.0)
    for _ in range(5):
        p.grad = torch.ones_like(p)
        optimizer.step()
    assert optimizer.state[p]["outer"].dtype == torch.float32
    assert torch.all(optimizer.state[p]["outer"] < 1)


def test_it_copies_and_pickles():
    params = made()
    optimizer = SNOO(DanaStarMK4(params, lr=0.1), k=3)
    train(params, optimizer, range(2))
    for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        copied = twin.param_groups[0]["params"]
        fresh = copy.deepcopy(optimizer)
        train(copied, twin, range(2, 5)), train(fresh.param_groups[0]["params"], fresh, range(2, 5))
        assert equal(copied, fresh.param_groups[0]["params"])


def test_it_offers_what_the_inner_optimizer_reports():
    params = made()
    optimizer = build_optimizer("snoo-dana", params, lr=0.1, k=2)
    train(params, optimizer, range(1))
    assert optimizer.coefficients()["t"] == 1
    assert "tau" in optimizer.collect_stats()
    assert not hasattr(SNOO(torch.optim.SGD(made(), lr=0.1)), "coefficients")
    with pytest.raises(AttributeError, match="nonsense"):
        _ = optimizer.nonsense


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"k": 0}, "k is 0"),
        ({"k": 2.5}, "k is 2.5"),
        ({"k": True}, "k is True"),
        ({"lr_outer": 0.0}, "lr_outer"),
        ({"lr_outer": float("nan")}, "lr_outer"),
        ({"lr_outer": "fast"}, "lr_outer"),
        ({"mu": 1.0}, "mu"),
        ({"mu": -0.1}, "mu"),
    ],
)
def test_settings_that_mean_nothing_are_refused_in_one_line(settings, word):
    with pytest.raises(UserError, match=word) as caught:
        SNOO(torch.optim.SGD(made(), lr=0.1), **settings)
    assert "\n" not in str(caught.value)


def test_what_is_no_optimizer_is_refused():
    with pytest.raises(UserError, match="must be an optimizer"):
        SNOO(made())
    optimizer = SNOO(torch.optim.SGD(made(), lr=0.1))
    with pytest.raises(UserError, match="k is 0"):
        optimizer.add_param_group({"params": [torch.ones(1, requires_grad=True)], "outer_k": 0})
    assert len(optimizer.param_groups) == 1


def test_state_saved_without_it_or_from_another_model_is_refused_and_nothing_changes():
    params = made()
    plain = ADana(params, lr=0.1)
    optimizer = SNOO(ADana(params, lr=0.1), k=2)
    with pytest.raises(UserError, match="without SNOO"):
        optimizer.load_state_dict(plain.state_dict())
    with pytest.raises(UserError, match="state_dict"):
        optimizer.load_state_dict({"state": {}})
    large = [torch.ones(6, 3, requires_grad=True), torch.ones(5, requires_grad=True)]
    with pytest.raises(UserError, match=r"\(6, 3\).*\(4, 3\)"):
        optimizer.load_state_dict(SNOO(ADana(large, lr=0.7), k=2).state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.1
    entry = copy.deepcopy(optimizer.state_dict())
    del entry["state"][0]["outer_momentum"]
    with pytest.raises(UserError, match="outer_momentum"):
        optimizer.load_state_dict(entry)


def test_all_parts_of_a_group_that_the_inner_optimizer_splits_take_outer_steps():
    first, matrix, vector = (torch.ones(shape, requires_grad=True) for shape in ((2, 2), (3, 3), (3,)))
    optimizer = SNOO(Muon([first], lr=0.1), k=2)
    optimizer.add_param_group({"params": [matrix, vector]})
    for _ in range(2):
        for p in (first, matrix, vector):
            p.grad = torch.ones_like(p)
        optimizer.step()
    assert [group["outer_k"] for group in optimizer.param_groups] == [2, 2, 2]
    assert all(optimizer.state[p]["outer_momentum"].abs().sum() > 0 for p in (first, matrix, vector))


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["snoo", "snoo-dana"])
def test_fsdp2_equals_one_process_across_the_outer_step(name):
    def net():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(7, 5), nn.LayerNorm(5), nn.Linear(5, 3))  # nothing divides by two

    def run(model):
        optimizer = build_optimizer(name, model, lr=0.01, k=2)
        for step in range(5):
            optimizer.zero_grad()
            model(torch.randn(4, 7, generator=torch.Generator().manual_seed(step))).square().sum().backward()
            optimizer.step()
        return optimizer

    def full(tensor):
        return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()

    def rank(rank: int, world_size: int):
        model = net()
        fully_shard(model, mesh=init_device_mesh("cpu", (world_size,)))
        state = get_optimizer_state_dict(model, run(model))["state"]
        return [full(p) for p in model.parameters()], {key: full(entry["outer"]) for key, entry in state.items()}

    model = net()
    optimizer = run(model)
    for params, outers in run_ranks(rank, 2):
        for found, (key, p) in zip(params, model.named_parameters(), strict=True):
            torch.testing.assert_close(found, p.detach(), rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(outers[key], optimizer.state[p]["outer"], rtol=1e-6, atol=1e-6)
