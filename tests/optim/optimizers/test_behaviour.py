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
        " beta2=None, momentum_cooldown=0.0, foreach=None, fused=None, capturable=False, maximize=False,"
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


def test_decay_follows_the_schedule_and_not_the_peak_learning_rate():
    for peak in (1e-6, 1e-9):
        p = param(1, dtype=torch.float64)
        p.grad = torch.zeros_like(p)
        optimizer = ADana([p], lr=peak, weight_decay=0.2, wd_ts=4.0)
        optimizer.param_groups[0]["lr"] = peak / 2
        optimizer.step()
        assert p.item() == pytest.approx(1 - 0.5 * 0.2 / (1 + 1 / 4), abs=1e-12)


def test_omega_and_horizon_give_omega_over_time():
    group = ADana([param(1)], omega=4.0, horizon=1000).param_groups[0]
    assert (group["weight_decay"], group["wd_ts"]) == (0.04, 100.0)
    group = ADana([param(1)], omega=4.0, wd_ts=50.0).param_groups[0]
    assert (group["weight_decay"], group["wd_ts"]) == (0.08, 50.0)
    group = ADana([{"params": [param(1)], "omega": 2.0, "horizon": 100}], weight_decay=0.01).param_groups[0]
    assert (group["weight_decay"], group["wd_ts"]) == (0.2, 10.0)


def test_a_group_with_weight_decay_beside_omega_is_refused_and_0_is_not():
    groups = [{"params": [param(2, 2)], "weight_decay": 0.1}, {"params": [param(2)], "weight_decay": 0.0}]
    with pytest.raises(UserError, match=r"weight_decay 0.1, and the optimizer omega 4; .*leave weight_decay out"):
        ADana(groups, lr=2e-3, omega=4.0, horizon=600)
    del groups[0]["weight_decay"]
    bounded, still = ADana(groups, lr=2e-3, omega=4.0, horizon=600).param_groups
    assert bounded["weight_decay"] == 4.0 / 60
    assert still["weight_decay"] == 0


def test_steps_beyond_the_horizon_are_said_once(caplog):
    optimizer = ADana([with_gradient(param(2))], omega=4.0, horizon=3)
    for _ in range(6):
        optimizer.step()
    assert [r.getMessage() for r in caplog.records if "beyond" in r.getMessage()] == [
        "ADana: step 4 is beyond the horizon of 3 steps; weight decay goes on falling as omega / (wd_ts + t):"
        " build the optimizer with the length of the whole run"
    ]


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"lr": -1.0}, "lr"),
        ({"lr": float("nan")}, "lr"),
        ({"lr": "fast"}, "lr"),
        ({"lr": torch.ones(2)}, "lr"),
        ({"delta": 0.0}, "delta"),
        ({"delta": float("inf")}, "delta"),
        ({"kappa": -0.1}, "kappa"),
        ({"kappa": 2.0}, "kappa"),
        ({"eps": -1e-8}, "eps"),
        ({"gamma3": float("nan")}, "gamma3"),
        ({"weight_decay": -0.1}, "weight_decay"),
        ({"wd_ts": 0.0}, "wd_ts"),
        ({"weight_decay": 100.0, "wd_ts": 1.0}, "first step"),
        ({"omega": 4.0, "weight_decay": 0.1, "horizon": 100}, "both set the weight decay"),
        ({"omega": 4.0}, "horizon"),
        ({"horizon": 100}, "omega"),
        ({"omega": 4.0, "horizon": 100, "wd_ts": 3.0}, "both"),
        ({"omega": 4.0, "horizon": 0}, "horizon"),
        ({"omega": -4.0, "horizon": 10}, "omega"),
        ({"foreach": True, "fused": True}, "fused"),
        ({"foreach": True, "capturable": True}, "capturable"),
    ],
)
def test_settings_that_mean_nothing_are_refused_in_one_line(settings, word):
    with pytest.raises(UserError, match=word) as caught:
        ADana([param(2)], **settings)
    assert "\n" not in str(caught.value)


def test_bad_betas_and_clip_are_refused():
    with pytest.raises(UserError, match="betas"):
        AdamWDecayingWD([param(1)], betas=(0.9, 1.0))
    with pytest.raises(UserError, match="clipsnr"):
        DanaMK4([param(1)], clipsnr=-1.0)


def test_a_bad_setting_of_a_group_is_refused_and_the_group_not_kept():
    optimizer = ADana([param(1)])
    with pytest.raises(UserError, match="delta"):
        optimizer.add_param_group({"params": [param(2)], "delta": -1.0})
    assert len(optimizer.param_groups) == 1


def test_a_group_whose_back_end_is_refused_is_not_kept(monkeypatch):
    optimizer = ADana([param(1)])

    def no_compiler():
        raise UserError("no compiler")

    monkeypatch.setattr("danalab.optim.step.backends.choice.library", no_compiler)
    with pytest.raises(UserError, match="no compiler"):
        optimizer.add_param_group({"params": [param(2)], "fused": True})
    assert len(optimizer.param_groups) == len(optimizer.state) == 1


def test_a_group_of_which_a_part_is_refused_is_not_kept_at_all():
    optimizer = Muon([param(2, 2)], lr=0.1)
    with pytest.raises(UserError, match="complex64"):
        optimizer.add_param_group({"params": [param(3, 3), torch.ones(2, dtype=torch.complex64, requires_grad=True)]})
    assert len(optimizer.param_groups) == len(optimizer.state) == 1


def test_a_group_whose_omega_is_none_has_the_defaults():
    optimizer = ADana([param(1)], omega=4.0, horizon=1000)
    optimizer.add_param_group({"params": [param(2)], "omega": None, "horizon": None})
    optimizer.add_param_group({"params": [param(2)], "omega": 2.0})
    decays = [(group["weight_decay"], group["wd_ts"]) for group in optimizer.param_groups]
    assert decays == [(0.04, 100.0), (0.04, 100.0), (0.02, 100.0)]


@pytest.mark.parametrize(
    "params",
    [[], [torch.ones(2, dtype=torch.complex64, requires_grad=True)], [torch.ones(2, dtype=torch.int64)], ["w"]],
    ids=["empty", "complex", "integer", "no tensor"],
)
def test_parameters_that_cannot_be_optimized_are_refused(params):
    with pytest.raises(UserError):
        ADana(params)


def test_sparse_gradients_are_refused_by_name_and_nothing_changes():
    table = nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    optimizer = ADana(table.named_parameters())
    with pytest.raises(UserError, match="'weight'"):
        optimizer.step()
    assert optimizer.state[table.weight]["step"] == 0


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


@pytest.mark.parametrize("horizon", [1, 10, 20, 30, 100, 1000])
def test_omega_takes_at_most_twice_the_learning_rate_of_a_weight_however_short_the_run(horizon):
    p = param(1)
    p.grad = torch.zeros_like(p)
    optimizer = ADana([p], lr=1e-3, omega=4.0, horizon=horizon)
    optimizer.step()
    assert optimizer.coefficients()["lambda"] == min(4.0 / (horizon / 10 + 1), 2e-3)
    assert p.item() == pytest.approx(1 - 2e-3)


def test_the_bound_of_the_decay_can_be_chosen_and_left_out():
    def first_decay(lr: float = 1e-3, **settings) -> float:
        (p,) = [param(1)]
        optimizer = ADana([p], lr=lr, **settings)
        optimizer.state[p]["step"].fill_(1)
        return optimizer.coefficients()["lambda"]

    short = {"omega": 4.0, "horizon": 60}
    assert first_decay(**short, decay_bound=0.5) == 5e-4
    assert first_decay(**short, decay_bound=0) == pytest.approx(4 / 7)
    assert first_decay(weight_decay=0.2) == 0.2
    assert first_decay(weight_decay=0.2, decay_bound=3.0) == 3e-3
    assert first_decay(lr=0.5, **short) == 0.5  # never more than half a weight
    with pytest.raises(UserError, match="decay_bound is -1"):
        first_decay(**short, decay_bound=-1)


def test_omega_is_not_bounded_once_it_has_fallen_below_the_bound():
    (p,) = [param(1)]
    optimizer = ADana([p], lr=1e-3, omega=4.0, horizon=10_000)
    optimizer.state[p]["step"].fill_(5000)
    assert optimizer.coefficients()["lambda"] == pytest.approx(4.0 / (1000 + 5000))


@pytest.mark.parametrize(
    ("settings", "warns"),
    [
        ({"weight_decay": 0.1}, "half in 7 steps"),
        ({"weight_decay": 0.6, "wd_ts": 10.0}, "0.545 of each weight in the first step"),
        ({"weight_decay": 1e-3}, ""),
        ({"weight_decay": 0.04, "wd_ts": 100.0}, ""),
        ({"omega": 4.0, "horizon": 10}, ""),
    ],
)
def test_a_decay_that_empties_the_weights_is_warned_of_once_with_numbers(settings, warns, caplog):
    ADana([param(2)], lr=1e-3, **settings)
    assert len(caplog.records) == bool(warns)
    assert warns in caplog.text
    assert not warns or "omega=4.0" in caplog.text


@pytest.mark.parametrize(("key", "meant"), [("kapa", "kappa"), ("weightdecay", "weight_decay"), ("omga", "omega")])
def test_a_misspelt_setting_of_a_group_is_refused(key, meant):
    with pytest.raises(UserError, match=f"did you mean '{meant}'"):
        ADana([{"params": [param(1)], key: 0.5}])
    ADana([{"params": [param(1)], "name": "mine", "layer": 3}])


@pytest.mark.parametrize("scheduler", ["OneCycleLR", "CyclicLR"])
def test_a_schedule_above_the_rate_at_construction_does_not_multiply_the_decay(scheduler, caplog):
    p = param(1)
    p.grad = torch.zeros_like(p)
    optimizer = ADana([p], lr=1e-3, weight_decay=1e-3)
    settings = {"OneCycleLR": {"max_lr": 1e-2, "total_steps": 20}, "CyclicLR": {"base_lr": 1e-3, "max_lr": 1e-2}}
    schedule = getattr(torch.optim.lr_scheduler, scheduler)(optimizer, **settings[scheduler], cycle_momentum=False)
    largest = 0.0
    for _ in range(10):
        before = p.item()
        optimizer.step()
        schedule.step()
        largest = max(largest, 1 - p.item() / before)
    assert largest <= 1.0001e-3
    assert caplog.text.count("above the 0.001 at construction") == 1


def test_a_rate_above_the_one_at_construction_is_reported_where_a_cooldown_follows_it(caplog):
    p = param(1)
    p.grad = torch.ones_like(p)
    optimizer = ADana([p], lr=1e-3, momentum_cooldown=1.0)
    optimizer.param_groups[0]["lr"] = 1e-2
    optimizer.step()
    assert "the momentum's cooldown follows lr / peak_lr" in caplog.text
    assert optimizer.coefficients()["beta"] == pytest.approx(1 / 9)  # as at the rate at construction


def test_a_negative_cooldown_is_refused():
    with pytest.raises(UserError, match=r"momentum_cooldown is -1\.0"):
        ADana([param(1)], momentum_cooldown=-1.0)


def test_a_setting_that_the_optimizer_has_not_is_named():
    with pytest.raises(UserError, match="ADana has no betas; remove them"):
        ADana([param(1)], betas=(0.9, 0.999))
    with pytest.raises(TypeError, match=r"DanaStar has no weight_decy \(did you mean 'weight_decay'\?\); remove it"):
        DanaStar([param(1)], weight_decy=0.1)
