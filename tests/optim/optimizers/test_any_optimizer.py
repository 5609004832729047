"""What `build_optimizer` promises of every optimizer, ours or a library's: bad input refused, rehearsals harmless."""

from __future__ import annotations

import contextlib
import copy
import io
import math
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from danalab.errors import UserError
from danalab.optim import DistributedMuonAdamW, build_optimizer, list_optimizers, optimizer_spec
from danalab.optim.distributed.dtensor.adapter import DTensorAdapter
from danalab.optim.optimizers.checks import MAY_BE_NONE
from danalab.optim.values import kind_of

pytest.importorskip("pytorch_optimizer")
NAMES = list_optimizers()
SETTINGS: dict[str, dict[str, Any]] = {
    **{name: {"precondition_frequency": 2} for name in ("soap", "kl-soap")},
    **{name: {"k": 2} for name in ("snoo", "snoo-dana")},
    "scion": {"radius": 1.0, "other_radius": 4.0},
}


class Tiny(nn.Module):
    def __init__(self, width: int = 4, sparse: bool = False):
        super().__init__()
        self.embedding = nn.Embedding(7, width, sparse=sparse)
        self.up = nn.Linear(width, 5)
        self.norm = nn.LayerNorm(5)
        self.head = nn.Linear(5, 7, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.up(self.embedding(tokens))))


def tiny(**settings: Any) -> Tiny:
    torch.manual_seed(0)
    return Tiny(**settings)


def build(name: str, params: Any, lr: float = 0.01, **settings: Any) -> Any:
    return build_optimizer(name, params, lr=lr, **{**SETTINGS.get(name, {}), **settings})


def gradients(model: nn.Module, step: int) -> None:
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(100 * step + p.numel()))


def train(model: nn.Module, optimizer: Any, steps: range) -> None:
    for step in steps:
        gradients(model, step)
        optimizer.step()
        optimizer.zero_grad()


def _gradients_in(model: nn.Module, step: int) -> None:
    """`gradients` in the dtype of the model, small numbers of few bits."""
    for p in model.parameters():
        noise = torch.randn(p.shape, generator=torch.Generator().manual_seed(100 * step + p.numel()))
        p.grad = noise.bfloat16().to(p.dtype)


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def same(found: list[Tensor], want: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, want, strict=True))


def refusal(act: Any, *words: str) -> None:
    with pytest.raises(UserError) as caught:
        act()
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


@pytest.mark.parametrize("name", NAMES)
def test_sparse_gradients_are_refused_by_name_before_anything_moves(name):
    model = tiny(sparse=True)
    optimizer = build(name, model)
    before = weights(model)
    model(torch.tensor([1, 2])).sum().backward()
    refusal(optimizer.step, "embedding.weight", "dense")
    assert same(weights(model), before)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_that_are_no_real_numbers_are_refused_by_name(name):
    for dtype in (torch.complex64, torch.int64):
        named = [("odd", torch.ones(2, dtype=dtype, requires_grad=dtype.is_complex))]
        refusal(lambda named=named: build(name, named), "'odd'", str(dtype))


@pytest.mark.parametrize("name", NAMES)
def test_no_parameters_are_refused(name):
    for nothing in ([], iter(()), [{"params": []}, {"params": []}]):
        refusal(lambda nothing=nothing: build(name, nothing), name, "no parameters")
    refusal(lambda: build(name, ["weight"]), name)
    refusal(lambda: build(name, torch.ones(2, requires_grad=True)), name)
    p = torch.ones(2, requires_grad=True)
    refusal(lambda: build(name, [p, p]), "twice")


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", NAMES)
def test_numbers_that_mean_nothing_are_refused_by_name(name):
    spec = optimizer_spec(name)
    for lr in (-1.0, math.nan, math.inf, "fast", True, torch.ones(2)):
        refusal(lambda lr=lr: build(name, tiny(), lr=lr), "lr")
    for setting, what in spec.settings.items():
        usual = what.default
        if isinstance(usual, bool) or not isinstance(usual, (int, float, tuple)):
            continue
        numbers = usual if isinstance(usual, tuple) else (usual,)
        bad = [math.nan, math.inf] + [-0.5] * all(number is None or number >= 0 for number in numbers)
        for value in bad:
            whole = (value,) * len(usual) if isinstance(usual, tuple) else value
            refusal(lambda setting=setting, whole=whole: build(name, tiny(), **{setting: whole}), setting)


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", NAMES)
def test_numbers_of_a_group_are_checked_too(name):
    refusal(lambda: build(name, [{"params": list(tiny().up.parameters()), "lr": -1.0}]), "lr")


WRONG = {"number": "x", "integer": 1.5, "switch": "yes", "word": 3, "numbers": 0.9, "kinds": 3}


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", NAMES)
def test_values_of_another_type_are_refused_by_name(name):
    for setting, what in optimizer_spec(name).settings.items():
        wrong = [WRONG[kind_of(what)]]
        if what.default is not None and setting not in MAY_BE_NONE:
            wrong.append(None)
        for value in wrong:
            refusal(lambda setting=setting, value=value: build(name, tiny(), **{setting: value}), setting)


WEIRD_STEPS = (-1, "x", None, float("nan"), torch.tensor(-3), [1], True, 2**70, 1.5)


@pytest.mark.parametrize("name", NAMES)
def test_a_state_dict_of_another_form_is_refused_in_one_line(name):
    model = tiny()
    optimizer = build(name, model)
    train(model, optimizer, range(2))
    saved = optimizer.state_dict()
    groups = saved["param_groups"]
    for nonsense in (
        {"state": 3, "param_groups": 3},
        {"state": [], "param_groups": [{}]},
        {"state": {}, "param_groups": [{"params": 3}]},
        {"state": saved["state"], "param_groups": [3] * len(groups)},
        {"state": {0: 3}, "param_groups": groups},
    ):
        refusal(lambda nonsense=nonsense: optimizer.load_state_dict(nonsense), "state_dict")
    counted = {key: entry for key, entry in saved["state"].items() if "step" in entry}
    for step in WEIRD_STEPS if counted else ():
        entries = saved["state"] | {key: {**entry, "step": step} for key, entry in counted.items()}
        refusal(lambda entries=entries: optimizer.load_state_dict({**saved, "state": entries}), "step count")
    key, entry = next(((key, entry) for key, entry in saved["state"].items() if entry), (0, {}))
    moment = next((k for k, value in entry.items() if isinstance(value, Tensor) and value.ndim), None)
    for value in (None, "x", [1.0]) if moment else ():
        entries = saved["state"] | {key: {**entry, moment: value}}
        refusal(lambda entries=entries: optimizer.load_state_dict({**saved, "state": entries}), moment)


@pytest.mark.parametrize("name", NAMES)
def test_empty_parameters_and_numbers_that_are_not_finite_end_nothing(name):
    model = tiny()
    model.nothing = nn.Parameter(torch.zeros(0, 4))
    optimizer = build(name, [{"params": [p], "use_muon": p.ndim > 1} for p in model.parameters()])
    with contextlib.suppress(UserError):  # a decomposition that fails
        for step in range(3):
            gradients(model, step)
            if step == 1:
                model.up.weight.grad[0, 0] = math.nan
            optimizer.step()
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


@pytest.mark.parametrize("name", NAMES)
def test_omega_is_not_silently_replaced_by_the_decay_of_a_group(name):
    spec = optimizer_spec(name)
    groups = [{"params": [torch.ones(4, 4, requires_grad=True)], "weight_decay": 0.1, "use_muon": True}]
    if "weight_decay" not in spec.settings:
        refusal(lambda: build(name, tiny(), omega=4.0, horizon=600), "no weight decay")
        refusal(lambda: build(name, tiny(), decay_bound=0.5), "no weight decay")
        return
    refusal(lambda: build(name, groups, omega=4.0, horizon=600), "weight_decay 0.1", "omega")
    build(name, [{**groups[0], "weight_decay": 0.0}], omega=4.0, horizon=600)
    if "decay_bound" not in spec.settings:
        refusal(lambda: build(name, tiny(), decay_bound=0.5), "decay_bound")


def test_a_setting_that_a_library_has_once_for_all_groups_is_refused_in_one():
    group = {"params": list(tiny().up.parameters()), "maximize": True}
    refusal(lambda: build("lion", [group]), "maximize", "all groups")
    optimizer = build("lion", tiny().norm.parameters())
    refusal(lambda: optimizer.add_param_group(group), "maximize")


def test_numbers_of_torch_optimizers_are_numbers_though_their_defaults_are_whole():
    for name, setting in (("sgd", "dampening"), ("sgd", "weight_decay"), ("radam", "weight_decay")):
        assert kind_of(optimizer_spec(name).settings[setting]) == "number"


@pytest.mark.parametrize("name", [name for name in NAMES if optimizer_spec(name).decay != "none"])
def test_weight_decay_is_given_in_one_form(name):
    refusal(lambda: build(name, tiny(), omega=4.0, weight_decay=0.1, horizon=100), "omega")


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", NAMES)
def test_state_of_another_optimizer_is_refused_and_nothing_changes(name):
    for other in ("adamw", "adana", "lion"):
        if other == name:
            continue
        model = tiny()
        source, optimizer = build(other, tiny(), lr=0.3), build(name, model)
        saved = copy.deepcopy(source.state_dict())
        refusal(lambda optimizer=optimizer, saved=saved: optimizer.load_state_dict(saved), "state")
        assert optimizer.param_groups[0]["lr"] == 0.01


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", NAMES)
def test_state_of_another_model_is_refused(name):
    other, model = tiny(width=6), tiny()
    source, optimizer = build(name, other), build(name, model)
    train(other, source, range(1))
    if any(isinstance(v, Tensor) and v.ndim for state in source.state_dict()["state"].values() for v in state.values()):
        refusal(lambda: optimizer.load_state_dict(source.state_dict()), "shape", "(5, 4)")
    refusal(lambda: optimizer.load_state_dict(build(name, nn.Linear(2, 2)).state_dict()), "group")
    for nonsense in ({}, {"state": {}}, None, [1]):
        refusal(lambda nonsense=nonsense: optimizer.load_state_dict(nonsense), "state_dict")


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", NAMES)
def test_a_step_that_found_nonfinite_gradients_leaves_everything(name):
    model = tiny()
    optimizer = build(name, model, **({"weight_decay": 0.1} if "weight_decay" in optimizer_spec(name).settings else {}))
    train(model, optimizer, range(2))
    before, state = weights(model), copy.deepcopy(optimizer.state_dict())
    for found in (True, torch.tensor(True)):
        gradients(model, 5)
        model.up.weight.grad[0, 0] = math.nan
        optimizer.step(found_nonfinite=found)
        assert same(weights(model), before)
        assert_same_state(optimizer.state_dict(), state)
    train(model, optimizer, range(2, 3))
    assert all(torch.isfinite(p).all() for p in model.parameters())


def assert_same_state(found: Any, want: Any) -> None:
    if isinstance(want, dict):
        assert found.keys() == want.keys()
        for key in want:
            assert_same_state(found[key], want[key])
    elif isinstance(want, (list, tuple)):
        assert len(found) == len(want)
        for a, b in zip(found, want, strict=True):
            assert_same_state(a, b)
    elif isinstance(want, Tensor):
        assert torch.equal(found, want)
    else:
        assert found == want


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", NAMES)
def test_asking_for_the_state_changes_no_parameter_and_no_later_step(name):
    asked, alone = tiny(), tiny()
    first, second = build(name, asked), build(name, alone)
    get_optimizer_state_dict(asked, first)
    assert same(weights(asked), weights(alone))
    train(asked, first, range(2)), train(alone, second, range(2))
    get_optimizer_state_dict(asked, first)
    for p in asked.parameters():
        p.grad = torch.zeros_like(p)
    rates = [group["lr"] for group in first.param_groups]
    for group in first.param_groups:
        group["lr"] = 0.0
    first.step()
    for group, lr in zip(first.param_groups, rates, strict=True):
        group["lr"] = lr
    assert same(weights(asked), weights(alone))
    train(asked, first, range(2, 4)), train(alone, second, range(2, 4))
    assert same(weights(asked), weights(alone))


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_before_the_first_step_is_as_good_as_none(name):
    model, alone = tiny(), tiny()
    saved = copy.deepcopy(build(name, tiny()).state_dict())
    first, second = build(name, model), build(name, alone)
    first.load_state_dict(saved)
    train(model, first, range(3)), train(alone, second, range(3))
    assert same(weights(model), weights(alone))


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", NAMES)
def test_a_scaled_loss_gives_the_same_steps_and_an_overflow_gives_none(name):
    scaled, plain = tiny(), tiny()
    first, second = build(name, scaled), build(name, plain)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
    tokens = torch.arange(7)
    for step in range(3):
        first.zero_grad(), second.zero_grad()
        nn.functional.cross_entropy(plain(tokens), tokens).backward()
        second.step()
        scaler.scale(nn.functional.cross_entropy(scaled(tokens), tokens)).backward()
        scaler.step(first)
        scaler.update()
        if step == 1:
            before, state = weights(scaled), copy.deepcopy(first.state_dict())
            first.zero_grad()
            scaler.scale(scaled(tokens).sum() * math.inf).backward()
            scaler.step(first)
            assert same(weights(scaled), before)
            assert_same_state(first.state_dict(), state)
            scaler.update(1024.0)
    assert same(weights(scaled), weights(plain))


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", NAMES)
def test_a_parameter_that_gets_its_first_gradient_late_starts_then(name):
    model, alone = tiny(), nn.Linear(4, 5)
    alone.load_state_dict(model.up.state_dict())
    first = build(name, model)
    gradients(model, 0)
    model.norm.weight.grad = None
    before = model.norm.weight.detach().clone()
    first.step()
    assert torch.equal(model.norm.weight, before)
    get_optimizer_state_dict(model, first)
    assert torch.equal(model.norm.weight, before)
    train(model, first, range(1, 3))
    assert not torch.equal(model.norm.weight, before)


@pytest.mark.parametrize("name", [name for name in NAMES if optimizer_spec(name).train_eval])
def test_evaluating_before_the_first_step_changes_nothing(name):
    model = tiny()
    optimizer = build(name, model)
    before = weights(model)
    get_optimizer_state_dict(model, optimizer)
    optimizer.eval()
    assert same(weights(model), before)
    optimizer.train()
    assert same(weights(model), before)


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", NAMES)
def test_groups_can_be_added_later(name):
    model = tiny()
    optimizer = build(name, model.up)
    new = list(model.norm.named_parameters())
    spec = optimizer_spec(name)
    if spec.by_kind and isinstance(optimizer, DTensorAdapter):
        refusal(lambda: optimizer.add_param_group({"params": new}), "construction")
        return
    kind = {} if not spec.by_kind else {"use_muon": False}
    optimizer.add_param_group({"params": new, "lr": 0.02, **kind})
    assert optimizer.param_groups[-1]["lr"] == 0.02
    before = [p.detach().clone() for _, p in new]
    train(model, optimizer, range(3))
    assert not any(torch.equal(p, old) for (_, p), old in zip(new, before, strict=True))


@pytest.mark.sample(12)
@pytest.mark.parametrize("way", ["copied", "pickled"])
@pytest.mark.parametrize("name", NAMES)
def test_it_can_be_copied_and_pickled_with_its_model_and_goes_on_alike(name, way):
    model = tiny()
    optimizer = build(name, model)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)  # which puts a step of its own over the optimizer's
    train(model, optimizer, range(3))
    both = (model, optimizer)
    twin, its = copy.deepcopy(both) if way == "copied" else pickle.loads(pickle.dumps(both))
    train(model, optimizer, range(3, 6))
    train(twin, its, range(3, 6))
    assert same(weights(model), weights(twin))


def test_a_copy_of_muon_still_knows_what_groups_added_later_get():
    twin = copy.deepcopy(build("muon", tiny().up, aux_lr=0.003))
    twin.add_param_group({"params": [("gain", nn.Parameter(torch.ones(3)))]})
    assert twin.param_groups[-1]["lr"] == 0.003


def test_what_belongs_to_a_group_of_processes_is_not_copied_by_halves():
    optimizer = DistributedMuonAdamW(tiny(), lr=0.01)
    for act in (copy.deepcopy, pickle.dumps):
        refusal(lambda act=act: act(optimizer), "state_dict()")


def test_an_estimate_of_the_curvature_that_no_step_has_taken_yet_is_copied_too():
    model = tiny()
    optimizer = build("sophia", model)
    gradients(model, 0)
    optimizer.update_hessian(7.0)
    twin, its = copy.deepcopy((model, optimizer))
    train(model, optimizer, range(1, 2))
    train(twin, its, range(1, 2))
    assert same(weights(model), weights(twin))


@pytest.mark.sample(12)
@pytest.mark.parametrize("dtypes", [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_model_may_go_on_in_another_dtype(name, dtypes):
    first, second = dtypes
    model = tiny().to(first)
    optimizer = build(name, model)
    for step in range(3):
        _gradients_in(model, step)
        optimizer.step()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    other = copy.deepcopy(model).to(second)
    resumed = build(name, other)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for step in range(3, 6):
        for each, its in ((model, optimizer), (other, resumed)):
            _gradients_in(each, step)
            its.step()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.isfinite(q).all()
        assert torch.allclose(p.float(), q.float(), atol=0.02, rtol=0.02)


def test_what_a_library_has_besides_a_step_is_still_there():
    optimizer = build("lion", tiny())
    assert isinstance(optimizer, DTensorAdapter)
    assert type(optimizer.inner).__name__ == "Lion"
    assert "Lion" in repr(optimizer)
    assert type(optimizer).__name__ == "Lion"
    assert [type(each) for each in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer)))] == 2 * [
        type(optimizer)
    ]
    with pytest.raises(AttributeError):
        optimizer.train()
    with pytest.raises(AttributeError):
        optimizer.nothing_like_it  # noqa: B018


def test_schedulers_and_closures_work_on_libraries_optimizers():
    model = tiny()
    optimizer = build("lion", model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)

    def closure() -> Tensor:
        gradients(model, 0)
        return torch.tensor(3.0)

    assert optimizer.step(closure) == 3.0
    scheduler.step()
    before = model.up.bias.detach().clone()
    optimizer.step(closure)
    assert (model.up.bias - before).abs().max().item() == pytest.approx(0.005, rel=1e-3)
