"""Every option of the update of matrices in every optimizer of matrices: it changes the step, or is refused in a line.

What is on is in the table of groups and among the numbers for logging; without options both are what they always were.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from danalab import optim
from danalab.cli.app import main
from danalab.errors import UserError
from danalab.models import ModelConfig, build_model
from danalab.optim import build_optimizer, list_optimizers, optimizer_spec
from danalab.optim.optimizers import matrix
from danalab.optim.values import OPTIONS, those_with

pytest.importorskip("pytorch_optimizer")
CONFIG = ModelConfig("gpt", 12, 1, 4, 3, 24, vocab_size=20, seq_len=8, n_kv_heads=2)
NAMES = [name for name in list_optimizers() if optimizer_spec(name).by_kind]
ON: dict[str, dict[str, Any]] = {
    "normalise": {"normalise": "rows"},
    "normuon": {"normalise": "normuon"},
    "row_beta": {"normalise": "normuon", "row_beta": 0.1},
    "per_head": {"per_head": True},
    "hold_norm": {"hold_norm": True},
    "uw_floor": {"uw_floor": 30.0},
    "cautious_decay": {"cautious_decay": True},
    "orthogonalise": {"orthogonalise": True},
    "ns_method": {"ns_method": "polar-express"},
    "ns_steps": {"ns_steps": 2},
    "ns_dtype": {"ns_dtype": "bfloat16"},
}
OFF = {"row_beta": {"normalise": "normuon"}, "orthogonalise": {"orthogonalise": False}}
"""What an option is compared with, where that is not the optimizer without it."""
AROUND = ["muon", "d-muon", "dana-muon", "manau", "soda-muon"]
CLASSES = [getattr(matrix, name) for name in matrix.__all__ if isinstance(getattr(matrix, name), type)]


def stepped(name: str, **settings: Any) -> list[torch.Tensor]:
    model = build_model(CONFIG, seed=0)
    known = optimizer_spec(name).settings
    usual = {key: value for key, value in {"weight_decay": 0.1, "orthogonalise": True}.items() if key in known}
    optimizer = build_optimizer(name, model, lr=0.02, **{**usual, **settings})
    for step in range(3):
        for i, p in enumerate(model.parameters()):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(100 * step + i))
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def refusal(build: Any) -> str:
    with pytest.raises(UserError) as error:
        build()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_every_option_is_tested():
    assert set(OPTIONS) <= set(ON)
    assert those_with("uw_floor").split(", ") == those_with("hold_norm").split(", ") == AROUND
    assert those_with("heads") == those_with("normalise") == "muon, d-muon, dana-muon, manau, muon-h, scion, soda-muon"
    assert those_with("betas") == ""


@pytest.mark.parametrize("option", ON)
@pytest.mark.parametrize("name", NAMES)
def test_an_option_changes_the_update_or_is_refused_with_those_that_have_it(name, option):
    setting = next(iter(ON[option]))
    if setting not in optimizer_spec(name).settings:
        words = refusal(lambda: build_optimizer(name, build_model(CONFIG, seed=0), **ON[option]))
        assert words == f"{name} has no setting '{setting}'; {those_with(setting)} have it"
        return
    pairs = zip(stepped(name, **ON[option]), stepped(name, **OFF.get(option, {})), strict=True)
    assert not all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("option", OPTIONS)
def test_a_class_refuses_what_it_does_not_have_and_names_those_that_do(cls, option):
    if option not in inspect.signature(cls).parameters:
        words = refusal(lambda: cls(build_model(CONFIG, seed=0), **{option: ON[option][option]}))
        assert words == f"{cls.__name__} has no {option}; remove it, or use one of {those_with(option)}"


@pytest.mark.parametrize("key", ["heads", "normalise", "hold_norm", "uw_floor", "cautious_decay"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("matrix_group", [True, False])
def test_an_option_of_a_group_is_not_ignored(name, key, matrix_group):
    value = {"heads": 4, **{k: v[k] for k, v in ON.items() if k in v}}[key]
    group = {"params": [torch.nn.Parameter(torch.ones(4, 6))], "use_muon": matrix_group, key: value}
    if ("per_head" if key == "heads" else key) in optimizer_spec(name).settings:
        build_optimizer(name, [group])
        return
    assert those_with(key) in refusal(lambda: build_optimizer(name, [group]))
    cls = next((each for each in CLASSES if optimizer_spec(name).build is each), None)
    if cls is not None:
        assert f"a group sets {key} to {value}" in refusal(lambda: cls([group])).replace("'", "")


@pytest.mark.parametrize("name", ["dion2", "adamuon"])
def test_an_option_of_a_kind_is_refused_alike(name):
    words = refusal(lambda: build_optimizer(name, build_model(CONFIG, seed=0), by_kind={"matrix": {"uw_floor": 2.0}}))
    assert f"by_kind of matrix sets 'uw_floor' ({', '.join(AROUND)} have it); it may set" in words


def test_kl_soap_refuses_an_orthogonalisation_that_it_does_not_make():
    for settings in ({"ns_method": "polar-express"}, {"ns_steps": 4}):
        words = refusal(lambda given=settings: build_optimizer("kl-soap", build_model(CONFIG, seed=0), **given))
        assert words == f"KLSOAP: {next(iter(settings))} has no effect without orthogonalise; set it, too"


def test_the_command_line_and_files_name_those_that_have_an_option(tmp_path, capsys):
    file = tmp_path / "run.yaml"
    file.write_text("opt: dion2\nuw_floor: 2.0\n")
    for words in (["--opt", "dion2", "--uw-floor", "2"], ["--config", str(file)]):
        assert main(["train", *words]) == 2
        assert f"({', '.join(AROUND)} have it)" in capsys.readouterr().err


@pytest.mark.parametrize("name", AROUND)
def test_options_that_are_on_are_in_the_table_and_among_the_numbers(name):
    def made(**settings: Any) -> Any:
        return build_optimizer(name, build_model(CONFIG, seed=0), **settings)

    plain = made()
    assert {line.split()[3] for line in plain.describe().splitlines()[1:]} == {
        plain.inner.rule_of(group).name if name == "soda-muon" else plain.rule_of(group).name
        for group in plain.param_groups
    }
    assert set(plain.coefficients()) == {"t", "lr", "schedule"}
    on = {"per_head": True, "normalise": "normuon", "row_beta": 0.9, "uw_floor": 2.0, "ns_method": "polar-express"}
    optimizer = made(**on)
    rows = optimizer.describe().splitlines()[1:]
    told = ", normalise=normuon, row_beta=0.9, uw_floor=2, ns_method=polar-express"
    assert [f", heads=4{told}" in row for row in rows if "q.weight" in row] == [True]
    assert [f"moment{told} " in row for row in rows if "mlp.up" in row] == [True]
    assert all("normuon" not in row for row in rows if not row.startswith("matrix"))
    found = {key: value for key, value in optimizer.coefficients().items() if key not in plain.coefficients()}
    want = {"heads": 4, "normalise_normuon": 1, "row_beta": 0.9, "uw_floor": 2.0, "ns_method_polar-express": 1}
    assert {key: float(value) for key, value in found.items()} == want


def test_options_of_the_rest_and_of_other_optimizers_are_in_the_table():
    rows = build_optimizer("dana-muon", build_model(CONFIG, seed=0), cautious_decay=True).describe().splitlines()[1:]
    assert all(", cautious_decay " in row for row in rows)
    assert ", hold_norm " in optim.Muon(build_model(CONFIG, seed=0), hold_norm=True).describe()
    rows = build_optimizer("kl-soap", build_model(CONFIG, seed=0), orthogonalise=True).describe().splitlines()[1:]
    assert ["matrices, orthogonalise " in row for row in rows] == [row.startswith("matrix") for row in rows]
    assert "cautious_decay" in optim.ADana(build_model(CONFIG, seed=0), cautious_decay=True).describe()
