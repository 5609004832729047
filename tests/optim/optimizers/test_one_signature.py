"""The family has one signature: a model or parameters, lr, omega and horizon, settings by kind; a class is its name."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import danalab.optim as optim
from danalab.cli._shared.flags import parse
from danalab.errors import UserError
from danalab.optim import build_optimizer, list_optimizers, optimizer_spec
from danalab.optim.registry import read_settings
from danalab.optim.values import read_value, written
from danalab.train.config.train_config import TrainConfig

FAMILY = {
    "adana": "ADana",
    "dana-mk4": "DanaMK4",
    "dana-star": "DanaStar",
    "dana-star-mk4": "DanaStarMK4",
    "adamw-decaying-wd": "AdamWDecayingWD",
    "muon": "Muon",
    "d-muon": "DMuon",
    "dana-muon": "DanaMuon",
    "manau": "Manau",
}
BY_KIND = [name for name in list_optimizers() if {"by_kind", "weight_decay"} <= set(optimizer_spec(name).settings)]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(7, 4)
        self.up = nn.Linear(4, 5)
        self.lm_head = nn.Linear(5, 7, bias=False)


def after_three_steps(build):
    model = Net()
    optimizer = build(model)
    draw = torch.Generator().manual_seed(1)
    for _ in range(3):
        for p in model.parameters():
            p.grad = torch.randn(p.shape, generator=draw)
        optimizer.step()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize(("name", "class_name"), FAMILY.items())
def test_a_class_and_its_name_give_the_same_run(name, class_name):
    settings = {"lr": 0.01, "omega": 4.0, "horizon": 100}
    by_class = after_three_steps(lambda model: getattr(optim, class_name)(model, **settings))
    by_name = after_three_steps(lambda model: build_optimizer(name, model, **settings))
    assert all(torch.equal(p, q) for p, q in zip(by_class, by_name, strict=True))
    undecayed = after_three_steps(lambda model: getattr(optim, class_name)(model, lr=0.01))
    assert not all(torch.equal(p, q) for p, q in zip(by_class, undecayed, strict=True))


@pytest.mark.parametrize(("name", "class_name"), FAMILY.items())
def test_without_a_rate_the_name_has_that_of_its_class(name, class_name):
    by_class, by_name = getattr(optim, class_name)(Net()), build_optimizer(name, Net())
    assert [group["lr"] for group in by_class.param_groups] == [group["lr"] for group in by_name.param_groups]


@pytest.mark.parametrize("name", [name for name in FAMILY if optimizer_spec(name).decay == "coupled"])
def test_the_error_names_the_equal_weight_decay(name):
    build = getattr(optim, FAMILY[name])
    with pytest.raises(UserError, match="give one of them") as error:
        build(Net(), lr=0.01, omega=4.0, horizon=1000, weight_decay=0.1)
    equal = float(re.search(r"is weight_decay ([\d.]+)", str(error.value))[1])
    falls = {"wd_ts": 1000.0} if optimizer_spec(name).decay_falls else {}
    one = after_three_steps(lambda model: build(model, lr=0.01, omega=4.0, horizon=1000))
    other = after_three_steps(lambda model: build(model, lr=0.01, weight_decay=equal, **falls))
    assert all(torch.equal(p, q) for p, q in zip(one, other, strict=True))


def test_a_class_without_omega_names_the_equal_setting():
    with pytest.raises(UserError, match=r"AdEMAMix has no omega; the equal setting is weight_decay=4$"):
        optim.AdEMAMix(Net(), lr=0.01, omega=4.0, horizon=100)
    with pytest.raises(UserError, match=r"weight_decay=omega / \(lr \* horizon\)$"):
        optim.AdEMAMix(Net(), lr=0.01, horizon=100)


@pytest.mark.parametrize("given", [{"omega": 4.0}, {"horizon": 10}])
def test_half_of_a_decay_is_refused(given):
    with pytest.raises(UserError, match="omega and horizon belong together"):
        optim.DanaMuon(Net(), **given)


def test_groups_that_decay_by_themselves_exclude_omega():
    with pytest.raises(UserError, match=r"a group has weight_decay 0\.1, and the optimizer omega 4"):
        optim.Muon([{"params": Net().parameters(), "weight_decay": 0.1}], omega=4.0, horizon=10)


def settings_by_kind(optimizer):
    return {group.get("kind"): (group["lr"], group["weight_decay"]) for group in optimizer.param_groups}


@pytest.mark.parametrize("name", BY_KIND)
def test_kinds_have_rates_of_their_own_absolute_or_relative(name):
    kinds = {
        "embedding": {"lr": 2e-3, "weight_decay": 0.5},
        "head": {"lr_factor": 0.25},
        "matrix": {"weight_decay": 0.0},
    }
    optimizer = build_optimizer(name, Net(), lr=0.02, weight_decay=0.1, aux_lr=7e-3, by_kind=kinds)
    decay = (
        0.1 if optimizer_spec(name).extra is None else 0.0
    )  # the library's decay of other parameters is aux_weight_decay
    assert settings_by_kind(optimizer) == {
        "embedding": (2e-3, 0.5), "head": (5e-3, decay), "matrix": (0.02, 0.0), "vector": (7e-3, 0.0)
    }  # fmt: skip


@pytest.mark.parametrize("name", [name for name in BY_KIND if "betas" in str(optimizer_spec(name).settings)])
def test_a_kind_has_a_beta_of_its_own_in_every_optimizer_with_betas(name):
    optimizer = build_optimizer(name, Net(), lr=0.02, by_kind="embedding:beta2=0.995 head:beta1=0.5,beta2=0.9")
    betas = {group["kind"]: group.get("betas") for group in optimizer.param_groups}
    assert betas["embedding"] == (betas["vector"][0], 0.995)
    assert betas["head"] == (0.5, 0.9)


@pytest.mark.parametrize("name", ["dana-muon", "manau"])
def test_a_kind_may_have_a_constant_beta2_in_place_of_log_time(name):
    a, b = (build_optimizer(name, Net(), lr=0.02, by_kind=kinds) for kinds in ("embedding:beta2=0.9", None))
    for optimizer in (a, b):
        for step in range(3):
            for p in (p for group in optimizer.param_groups for p in group["params"]):
                p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(step))
            optimizer.step()
    for one, other in zip(a.param_groups, b.param_groups, strict=True):
        for p, q in zip(one["params"], other["params"], strict=True):
            assert torch.equal(a.state[p].get("exp_avg_sq", p), b.state[q].get("exp_avg_sq", q)) == (
                one["kind"] != "embedding"
            )


def test_kinds_are_told_by_names_where_parameters_are_given():
    optimizer = optim.DanaMuon(
        Net().named_parameters(), lr=0.02, by_kind={"embedding": {"lr": 2e-3}, "head": {"lr_factor": 0.25}}
    )
    known = settings_by_kind(optimizer)
    assert known["embedding"] == (2e-3, 0.0)
    assert known["head"] == (5e-3, 0.0)
    assert known[None] == (0.02, 0.0)


def test_kinds_are_flags_that_may_be_repeated_and_are_checked_before_a_run():
    words = [
        "--data",
        "x",
        "--opt",
        "muon",
        "--lr",
        "0.02",
        "--group",
        "embedding:lr=3,beta2=0.995",
        "--group",
        "head:lr_factor=0.5",
    ]
    config = parse(TrainConfig, words, prog="danalab train", description="").flags
    assert config.optimizer_settings["by_kind"] == {
        "embedding": {"lr": 3.0, "beta2": 0.995},
        "head": {"lr_factor": 0.5},
    }
    for wrong, says in (("head:momentun=3", "did you mean 'momentum'"), ("had:lr=3", "did you mean 'head'")):
        with pytest.raises(UserError, match=says):
            read_settings(optimizer_spec("muon"), {"by_kind": wrong})


def test_the_text_of_kinds_is_the_mapping():
    setting = optimizer_spec("d-muon").settings["by_kind"]
    text = "embedding:lr=0.002,betas=0.9/0.99 head:cautious_decay=true,lr_factor=0.5"
    kinds = {"embedding": {"lr": 2e-3, "betas": (0.9, 0.99)}, "head": {"cautious_decay": True, "lr_factor": 0.5}}
    assert read_value("--by-kind", setting, text) == read_value("--by-kind", setting, kinds) == kinds
    assert written(kinds) == text
    for wrong in ("head", "head:lr", "head:lr=x", "head:lr=0.1,", 3):
        with pytest.raises(UserError, match=r"--by-kind is .*; it must be settings of kinds, as in embedding:lr=2e-3"):
            read_value("--by-kind", setting, wrong)


@pytest.mark.parametrize(
    ("by_kind", "words"),
    [
        ({"embeding": {}}, "did you mean 'embedding'"),
        ({"head": {"momentun": 0.9}}, "did you mean 'momentum'"),
        ({"head": {"lr": 1e-3, "lr_factor": 2.0}}, "lr or lr_factor"),
        ({"head": {"lr_factor": -1.0}}, "not negative"),
        ({"head": {"lr": float("nan")}}, "lr is nan"),
        ({"head": 3}, "must map settings to values"),
        (3, "must map kinds to settings"),
    ],
)
def test_what_is_no_setting_of_a_kind_is_refused_in_one_line(by_kind, words):
    with pytest.raises(UserError, match=words) as error:
        optim.DMuon(Net(), by_kind=by_kind)
    assert "\n" not in str(error.value)


def test_a_table_says_what_each_parameter_was_taken_for():
    lines = optim.DanaMuon(Net(), lr=0.02, omega=4.0, horizon=1000).describe().splitlines()
    rows = {line.split()[0]: line for line in lines[1:]}
    assert set(rows) == {"matrix", "head", "embedding", "vector"}
    assert "up.weight" in rows["matrix"]
    assert "embedding.weight" in rows["embedding"]
    assert rows["vector"].split()[1:3] == ["1", "5"]
    assert optim.ADana(Net()).describe().splitlines()[1].split()[:2] == ["-", "2"]


def test_dana_muons_rates_for_the_rest_are_relative_to_the_matrices_unless_one_is_given():
    assert {kind: lr for kind, (lr, _) in settings_by_kind(optim.DanaMuon(Net(), lr=0.032)).items()} == {
        "matrix": 0.032, "embedding": 0.008, "head": 0.008, "vector": 0.002
    }  # fmt: skip
    for given in ({"aux_lr": 1e-3}, {"aux_lr_factor": 1e-3 / 0.032}):
        rates = {lr for lr, _ in settings_by_kind(optim.DanaMuon(Net(), lr=0.032, **given)).values()}
        assert rates == {0.032, 1e-3}
    by_names = optim.DanaMuon(Net().named_parameters(), lr=0.032)
    assert {group["lr"] for group in by_names.param_groups} == {0.032, 0.008, 0.002}
    assert {lr for lr, _ in settings_by_kind(optim.Muon(Net(), lr=0.02, aux_lr_factor=None)).values()} == {0.02}
